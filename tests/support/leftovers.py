"""Processes that tests started and did not end: found by a mark in their environment, ended at the end of the run."""

from __future__ import annotations

import os
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "KOORD_TEST_RUN"
GRACE_SECONDS = 10.0
"""A sandbox's guardian needs a moment to put cgroups back."""
STARTING_SECONDS = 5.0
KERNEL_THREAD = 0x00200000


def mark() -> str:
    """The mark of this run, in the environment of everything that it starts."""
    return os.environ.setdefault(VARIABLE, secrets.token_hex(8))


def started_here(run: str) -> list[int]:
    """Processes with the mark that are neither this one nor above it."""
    above = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in above:
        above.add(pid)
        with suppress(OSError, IndexError, ValueError):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    wanted = f"{VARIABLE}={run}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in above:
            with suppress(OSError):
                if wanted in environment_of(entry).split(b"\0"):
                    found.append(int(entry.name))
    return found


def environment_of(entry: Path) -> bytes:
    """The environment of a process, given by its directory in /proc. One that has only just begun is waited for."""
    deadline = time.monotonic() + STARTING_SECONDS
    while not (found := (entry / "environ").read_bytes()) and _starting(entry) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def _starting(entry: Path) -> bool:
    """Whether a process has neither arguments nor an environment yet: its `exec` goes on after its parent was told of it."""
    if (entry / "cmdline").read_bytes():
        return False
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return fields[0] not in "ZX" and not int(fields[6]) & KERNEL_THREAD


def end(run: str) -> list[str]:
    """Ask them to end, then end them; returns their command lines."""
    found = started_here(run)
    names = []
    for pid in found:
        with suppress(OSError):
            names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := started_here(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return names
