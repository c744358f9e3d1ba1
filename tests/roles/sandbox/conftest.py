"""Fixtures of the sandbox's tests: real cgroups of a run of their own, removed afterwards."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roles.sandbox.process_kubelet import layout
from roles.sandbox.process_kubelet.cgroups import RunGroups


@pytest.fixture
def hierarchies() -> layout.Hierarchies:
    """The machine's cgroup hierarchies; skips without root or writable controllers."""
    if os.geteuid() != 0:
        pytest.skip("needs root for cgroups")
    try:
        found = layout.detect()
    except layout.LayoutError as error:
        pytest.skip(str(error))
    if not all(os.access(mount, os.W_OK) for _, mount in found.mounts):
        pytest.skip("cgroup hierarchies are not writable")
    return found


@pytest.fixture
def groups(hierarchies: layout.Hierarchies) -> Iterator[RunGroups]:
    """The groups of a run of this test only."""
    made = RunGroups(hierarchies, secrets.token_hex(4))
    try:
        made.create_top()
    except layout.LayoutError as error:
        pytest.skip(str(error))
    yield made
    assert made.remove_all() == []


@pytest.fixture
def running() -> Callable[[int], bool]:
    """Whether a process runs; one that only waits for its parent to take note of its end does not."""

    def look(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    return look


COUNTERS = ("usage", "stat", "procs", "tasks", "pressure", "failcnt", "kmem", "numa_stat", "io_service", "io_serviced", "events", "threads")


@pytest.fixture
def cgroup_settings(hierarchies: layout.Hierarchies) -> Callable[[], dict[str, str]]:
    """Reads what the cgroups of this machine are set to, test runs in flight left out."""
    return lambda: settings_of(hierarchies)


def settings_of(hierarchies: layout.Hierarchies) -> dict[str, str]:
    """Every readable setting (not counters) of every cgroup on the machine that belongs to no test run in flight."""
    found = {}
    for _, mount in hierarchies.mounts:
        for directory, names, files in os.walk(mount):
            # Other users of the machine come and go; their groups are not ours to compare.
            names[:] = [n for n in names if n != "process_api" and not n.startswith("koord-")]
            for name in files:
                if any(word in name for word in COUNTERS) or not name.startswith(("cpu", "memory", "blkio", "pids")):
                    continue
                path = Path(directory) / name
                try:
                    found[str(path)] = path.read_text()
                except OSError:
                    continue
    return found
