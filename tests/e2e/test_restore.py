"""After any end the machine is as it was: cgroups, processes, files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roles.sandbox.process_kubelet import layout
from tests.e2e.conftest import Running
from tests.roles.sandbox.conftest import settings_of
from tests.support import patience

pytestmark = [pytest.mark.root, pytest.mark.kubectl, pytest.mark.feature("BEY-SBX-01")]

STUBBORN = "trap '' TERM; (trap '' TERM; setsid sleep 600) & while :; do sleep 1; done"


def pod(name: str, script: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": {"sandbox.koordinator.sh/process": "true"}},
            "spec": {
                "nodeName": "local",
                "containers": [
                    {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], "resources": {"requests": {"cpu": "100m"}}}
                ],
            },
        }
    )


def tops() -> list[Path]:
    return [p for _, mount in layout.detect().mounts for p in mount.glob(layout.PREFIX + "*")]


@pytest.fixture
def hierarchies() -> layout.Hierarchies:
    try:
        found = layout.detect()
    except layout.LayoutError as error:
        pytest.skip(str(error))
    if not all(os.access(mount, os.W_OK) for _, mount in found.mounts):
        pytest.skip("cgroup hierarchies are not writable")
    return found


@pytest.fixture
def busy(sandbox: Running, hierarchies: layout.Hierarchies) -> tuple[Running, dict[str, str], set[int], str]:
    """A sandbox with a pod that does not want to end; what the cgroups were set to before; the pod's processes; the run's id."""
    before = settings_of(hierarchies)
    sandbox.start("up", f"--scenario={sandbox.directory / 'scenario.yaml'}", "--nodes=1")
    run_id = sandbox.run_id()
    sandbox.kubectl("create", "--validate=false", "-f", "-", stdin=pod("stubborn", STUBBORN))

    def processes() -> set[int]:
        found: set[int] = set()
        for top in (mount / layout.group_name(run_id) for _, mount in hierarchies.mounts):
            for path in top.rglob("cgroup.procs"):
                found |= {int(word) for word in path.read_text().split()}
        return found

    # The resident pod's sleep, the shell, its loop's sleep, and the sleep in a session of its own.
    sandbox.until(lambda: len(processes()) >= 4, 40, "the pod's processes")
    return sandbox, before, processes(), run_id


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def check_restored(hierarchies: layout.Hierarchies, before: dict[str, str], pids: set[int], run_id: str, state: Path) -> None:
    assert not [p for p in tops() if p.name.endswith(run_id)]
    assert all(map(gone, pids))
    assert settings_of(hierarchies) == before
    assert not list(state.glob("run-*"))
    assert not (state / "endpoints.json").exists()
    assert not (state / "kubeconfig").exists()
    assert run_id not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_restores_everything(
    busy: tuple[Running, dict[str, str], set[int], str], hierarchies: layout.Hierarchies, number: signal.Signals
) -> None:
    running, before, pids, run_id = busy
    if number == signal.SIGINT:
        # A terminal sends it to both processes.
        os.kill(running.inner_pid(), number)
    assert running.stop(number) == 0
    check_restored(hierarchies, before, pids, run_id, running.state)


def test_the_guardian_restores_after_a_kill(busy: tuple[Running, dict[str, str], set[int], str], hierarchies: layout.Hierarchies) -> None:
    running, before, pids, run_id = busy
    os.kill(running.inner_pid(), signal.SIGKILL)
    assert running.process is not None
    assert running.process.wait(patience.seconds(40)) == 128 + signal.SIGKILL
    check_restored(hierarchies, before, pids, run_id, running.state)


def test_without_its_guardian_the_sandbox_ends_by_itself(
    busy: tuple[Running, dict[str, str], set[int], str], hierarchies: layout.Hierarchies
) -> None:
    running, before, pids, run_id = busy
    inner = running.inner_pid()
    assert running.process is not None
    running.process.kill()
    running.process.wait()
    wait(lambda: gone(inner), 40)
    check_restored(hierarchies, before, pids, run_id, running.state)


def test_clean_removes_what_two_kills_left(busy: tuple[Running, dict[str, str], set[int], str], hierarchies: layout.Hierarchies) -> None:
    running, before, pids, run_id = busy
    inner = running.inner_pid()
    assert running.process is not None
    os.kill(running.process.pid, signal.SIGSTOP)
    os.kill(inner, signal.SIGKILL)
    running.process.kill()
    running.process.wait()
    wait(lambda: gone(inner), 40)
    assert not all(map(gone, pids))
    done = running.run("clean")
    assert done.returncode == 0, done.stderr
    assert f"run {run_id}: removed" in done.stdout
    check_restored(hierarchies, before, pids, run_id, running.state)


def wait(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + patience.seconds(seconds)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_clean_does_not_touch_a_living_sandbox(busy: tuple[Running, dict[str, str], set[int], str]) -> None:
    running, _, pids, run_id = busy
    done = running.run("clean")
    assert done.returncode == 0
    assert run_id not in done.stdout
    # The loop's one-second sleep ends by itself; the others must not.
    assert sum(map(gone, pids)) <= 1
    assert running.stop() == 0
