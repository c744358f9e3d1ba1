"""A machine made of plain files, and what every test of the acting half builds on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from koord.decisions.recorder import Recorder
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.model import HostState


@dataclass
class Machine:
    """A host root in a temporary directory, its cgroup tree, and an executor on it."""

    base: Path
    v2: bool
    root: HostRoot
    host: HostState = field(init=False)
    recorder: Recorder = field(default_factory=lambda: Recorder("koordlet"))
    metrics: Metrics = field(default_factory=lambda: Metrics("node-a"))
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.metrics.node_known = True
        self.host = HostState(self.root, Cgroups.detect(self.root), HostFiles())
        self.journal = Journal(journal_path(self.root))
        self.journal.open()
        self.executor = Executor(self.host, self.journal, metrics=self.metrics, recorder=self.recorder, clock=lambda: self.now)

    def put(self, resource: str, directory: str, text: str) -> Path:
        """Make a cgroup file, and its directory."""
        spec = self.host.cgroups.spec(resource)
        parts = (directory, spec.file) if self.v2 and not spec.v1_layout else (spec.subsystem, directory, spec.file)
        path = Path(self.root.cgroup, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        return path

    def get(self, resource: str, directory: str) -> str:
        return Path(self.host.cgroups.file(resource, directory)).read_text().strip()

    def file(self, path: str, text: str) -> Path:
        """Make a file below the host root."""
        made = self.base / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        return made


def build(base: Path, *, v2: bool = False) -> Machine:
    for sub in ("sys/fs/cgroup", "proc/sys/vm", "var/run/koordlet", "sys/kernel"):
        (base / sub).mkdir(parents=True, exist_ok=True)
    if v2:
        (base / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    for sub in ("", "cpu", "cpuset", "memory", "cpuacct", "blkio", "net_cls"):
        if v2 and sub:
            continue
        os.makedirs(base / "sys/fs/cgroup" / sub / "kubepods.slice", exist_ok=True)
    return Machine(base, v2, HostRoot.at(str(base)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """cgroup v1."""
    return build(tmp_path)


@pytest.fixture
def machine_v2(tmp_path: Path) -> Machine:
    return build(tmp_path, v2=True)


@pytest.fixture(scope="session")
def make_machine() -> Callable[..., Machine]:
    return build
