"""`koord sandbox up --detach` and `koord sandbox down`: a sandbox without a terminal of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from roles.sandbox import objects, state

LOG = "sandbox.log"
START_SECONDS = 180.0
END_SECONDS = 60.0
PERIOD = 0.1


def up(arguments: Sequence[str]) -> int:
    """Start `koord sandbox up` with these arguments in the background; returns when it can be used, or with its status when it cannot."""
    try:
        store = state.State()
    except (state.StateError, OSError) as error:
        return _complain(str(error))
    log = store.path / f"up-{os.getpid()}.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            [*objects.self_command(), "sandbox", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **objects.python_env()},
            start_new_session=True,
        )
    try:
        run = _published(store, process)
        if run is None:
            print(log.read_text(encoding="utf-8", errors="replace").rstrip(), file=sys.stderr)
            return process.returncode or 1
        kept = store.scratch(run.id) / LOG  # goes with the run
        with suppress(FileNotFoundError):  # it has ended by now
            log.replace(kept)
    finally:
        log.unlink(missing_ok=True)
    print(f"sandbox {run.id} runs (pid {run.pid}); its log is {kept}")
    for line in state.beside(store, run)[:-1]:
        print(line)
    print(f"export KUBECONFIG={store.scratch(run.id) / state.KUBECONFIG}")
    print(f"koord sandbox down {run.id}")
    return 0


def _published(store: state.State, process: subprocess.Popen[bytes]) -> state.Run | None:
    """The run of this process once it can be reached; None when the process ended, or took too long and was ended."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for run in store.reachable():
            with suppress(psutil.NoSuchProcess):
                if process.pid in (run.pid, psutil.Process(run.pid).ppid()):
                    return run
        time.sleep(PERIOD)
    if process.poll() is None:
        process.terminate()
        process.wait()
        _complain(f"the sandbox could not be used within {START_SECONDS:.0f} s and was ended")
    return None


def down(run_id: str | None, every: bool) -> int:
    """End the sandbox that runs, or the one that is named, or all; returns when nothing of it is left."""
    try:
        store = state.State()
    except (state.StateError, OSError) as error:
        return _complain(str(error))
    alive = [run for run in store.runs() if run.alive]
    if run_id is not None:
        alive = [run for run in alive if run.id == run_id]
        if not alive:
            return _complain(f"no sandbox {run_id} runs{_known(store)}", "down")
    elif len(alive) > 1 and not every:
        known = ", ".join(f"{run.id} (pid {run.pid})" for run in alive)
        return _complain(f"{len(alive)} sandboxes run: {known}; name one, or --all", "down")
    if not alive:
        print("no sandbox runs")
        return 0
    for run in alive:
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGTERM)
    return max(_ended(store, run) for run in alive)


def _ended(store: state.State, run: state.Run) -> int:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        if not run.alive and not _left(store, run):
            print(f"sandbox {run.id} ended")
            return 0
        time.sleep(PERIOD)
    return _complain(
        f"sandbox {run.id} (pid {run.pid}) has not ended after {END_SECONDS:.0f} s; its files are in {store.scratch(run.id)}", "down"
    )


def _left(store: state.State, run: state.Run) -> list[Path]:
    """Files of the run: the process that restores the machine removes them last."""
    return [path for path in (store.path / f"run-{run.id}.json", store.scratch(run.id)) if path.exists()]


def _known(store: state.State) -> str:
    return "; there are: " + ", ".join(run.id for run in store.runs() if run.alive) if any(run.alive for run in store.runs()) else ""


def _complain(text: str, command: str = "up") -> int:
    print(f"koord sandbox {command}: error: {text}", file=sys.stderr)
    return 1
