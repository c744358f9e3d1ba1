"""A node for hooks: an API server, a kubelet, a machine of files, and koordlet as a process or its hooks driven by hand."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from roles.koordlet.actuation.executor import Mode
from roles.koordlet.hooks.asking import Asking
from roles.koordlet.hooks.reconciler import Pass, Reconciler
from roles.koordlet.hooks.registry import make_hooks
from roles.koordlet.options import Options
from tests.support import patience


def _load(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_HERE = Path(__file__).parent
observe = _load("koord_test_koordlet_observe", _HERE.parent / "observe" / "conftest.py")
process = _load("koord_test_koordlet_process", _HERE.parent / "observe" / "test_process.py")
act = _load("koord_test_koordlet_act", _HERE.parent / "act" / "conftest.py")


class Hooked:
    """Hooks on a machine of files, in the world of the acting half's tests; a pass only happens in :meth:`run`."""

    def __init__(self, machine: Any, *gates: str, **options: Any) -> None:
        self.world = act.World(machine)
        self.machine = machine
        self.records: list[Any] = []
        machine.recorder.add(self)
        self.options, self.gates = {"node_name": "node-a", **options}, gates
        self._begin()

    def _begin(self) -> None:
        machine = self.machine
        self.asking = Asking(make_hooks(Options(**self.options), lambda name: name in self.gates))
        self.reconciler = Reconciler(self.asking, executor=machine.executor, modes=lambda _: Mode.ENFORCE, metrics=machine.metrics)

    def restart(self) -> None:
        """Another life of the agent: of the one before it knows what is on disk."""
        self.machine.restart()
        self._begin()

    def write(self, record: Any) -> None:
        """Take a decision record."""
        self.records.append(record)

    def run(self) -> Pass:
        snapshot = self.world.snapshot()
        done = asyncio.run(self.reconciler.run(snapshot, self.asking.learn(snapshot)))
        assert done.failed == 0
        return done

    def files(self, resource: str, value: str, *directories: str) -> None:
        for directory in directories:
            self.machine.put(resource, directory, value)


@pytest.fixture
def hooked(tmp_path: Path) -> Callable[..., Hooked]:
    """``hooked("BatchResource", v2=True, disable_unset_cpu_quota=True)``: hooks that are on, on a machine."""

    def make(*gates: str, v2: bool = False, **options: Any) -> Hooked:
        return Hooked(act.build(tmp_path, v2=v2), *gates, **options)

    return make


class RealHooked(Hooked):
    """The same on the kernel's own cgroup v1 hierarchies, below a group of the test's own."""

    def make(self, *directories: str) -> None:
        for sub in SUBSYSTEMS:
            for directory in directories:
                os.makedirs(os.path.join(self.machine.root.cgroup, sub, directory), exist_ok=True)


SUBSYSTEMS = ("cpu", "cpuacct", "memory", "cpuset")


@contextlib.contextmanager
def real_groups(root: Path) -> Iterator[None]:
    """Groups of the test's own in the kernel's hierarchies, seen below ``root`` as its cgroup file systems."""
    own = [Path(f"/sys/fs/cgroup/{sub}/koord-test-hooks-{os.getpid()}") for sub in SUBSYSTEMS]
    root.mkdir(parents=True, exist_ok=True)
    try:
        for directory in own:
            directory.mkdir()
            (root / directory.parent.name).symlink_to(directory)
            if directory.parent.name == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (directory / name).write_text((directory.parent / name).read_text())
                (directory / "cgroup.clone_children").write_text("1")
        yield
    finally:
        for directory in own:
            for path, _, _ in sorted(os.walk(directory), key=lambda w: -len(w[0])):
                os.rmdir(path)


@pytest.fixture
def real_cgroups() -> Callable[[Path], contextlib.AbstractContextManager[None]]:
    if os.geteuid() != 0 or not all(os.access(f"/sys/fs/cgroup/{sub}/cgroup.procs", os.W_OK) for sub in SUBSYSTEMS):
        pytest.skip(f"needs root and writable cgroup v1 hierarchies {', '.join(SUBSYSTEMS)}")
    return real_groups


@pytest.fixture
def real_hooked(tmp_path: Path, real_cgroups: Any) -> Iterator[Callable[..., RealHooked]]:
    with real_cgroups(tmp_path / "sys/fs/cgroup"):
        yield lambda *gates, **options: RealHooked(act.build(tmp_path), *gates, **options)


async def until(condition: Callable[[], bool], seconds: float = 20.0, what: str = "") -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.05)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return until


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Any]:
    return lambda **options: observe.HostTree(tmp_path / "host", **options)


@pytest.fixture
def kubelet() -> Callable[..., Any]:
    return observe.serve_kubelet  # type: ignore[no-any-return]


@pytest.fixture
def make_node() -> Callable[..., dict[str, Any]]:
    return observe.node_object  # type: ignore[no-any-return]


@pytest.fixture
def make_pod() -> Callable[..., dict[str, Any]]:
    return observe.pod  # type: ignore[no-any-return]


@pytest.fixture
def start() -> Callable[..., Any]:
    return process.start  # type: ignore[no-any-return]


@pytest.fixture
def cluster() -> Callable[..., Any]:
    return process.cluster  # type: ignore[no-any-return]


@pytest.fixture
def listed() -> Callable[..., bytes]:
    return lambda *pods: orjson.dumps({"kind": "PodList", "items": list(pods)})
