"""Any history of writes, kills, other mounts and other hands on real groups: in the end everybody has what is theirs (BEY-JRN-01)."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path, restore
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.model import HostState

GROUPS = ("kubepods.slice/a", "kubepods.slice/a/c", "kubepods.slice/b")
QUOTA, SHARES, LIMIT = "cpu.cfs_quota_us", "cpu.shares", "memory.limit_in_bytes"
#: What the agent writes and what others set never meet, so that it can be told whose a value is.
OURS = {QUOTA: (21_000, 22_000, 23_000), SHARES: (110, 120, 130), LIMIT: (96 << 20, 112 << 20, 160 << 20)}
THEIRS = {QUOTA: (51_000, 52_000, -1), SHARES: (510, 520, 530), LIMIT: (224 << 20, 256 << 20)}
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


class History:
    """One agent after the other on one machine, each seeing it under a path of its own."""

    def __init__(self, machine, tree, seed: int) -> None:
        self.machine, self.tree = machine, tree
        self.random = random.Random(seed)
        self.mounts = 0
        self.places = Path(tempfile.mkdtemp(prefix="koord-mounts-"))
        self.agent: Executor | None = None
        self.theirs: dict[tuple[str, str], str] = {}
        for group in GROUPS:
            for name in OURS:
                self.theirs[name, group] = self.now(name, group)

    def now(self, name: str, group: str) -> str:
        return Path(self.machine.host.cgroups.file(name, group)).read_text().strip()

    def start(self) -> None:
        self.mounts += 1
        there = self.places / str(self.mounts)
        there.symlink_to(self.machine.base)
        root = HostRoot.at(str(there))
        journal = Journal(journal_path(root), root)
        journal.open()
        self.agent = Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal)

    def kill(self) -> None:
        """As kill -9: nothing is said, and what was open is closed by the kernel. The mount goes with the process."""
        if self.agent is not None and self.agent.journal is not None:
            self.agent.journal.close()
            self.agent.host.files.close_all()
            (self.places / str(self.mounts)).unlink()
        self.agent = None

    def write(self, name: str, group: str) -> None:
        if self.agent is None:
            self.start()
        assert self.agent is not None
        wanted = str(self.random.choice(OURS[name]))
        applied = self.agent.apply([sequence(Write(name, group, wanted, cached=False))], rule="r", now=1.0)
        assert all("refused" in str(error) for error in applied.failed)

    def resize(self, name: str, group: str) -> None:
        wanted = str(self.random.choice(THEIRS[name]))
        try:
            Path(self.machine.host.cgroups.file(name, group)).write_text(wanted)
        except OSError:
            return  # the kernel lets nobody do that now
        self.theirs[name, group] = self.now(name, group)

    def step(self) -> None:
        name, group = self.random.choice(list(OURS)), self.random.choice(GROUPS)
        what = self.random.choices(("write", "resize", "kill", "restore"), (6, 3, 2, 1))[0]
        if what == "write":
            self.write(name, group)
        elif what == "resize":
            self.resize(name, group)
        else:
            self.kill()
            if what == "restore":
                self.restored()

    def restored(self) -> None:
        """A restore under yet another path gives everybody theirs."""
        self.kill()
        self.mounts += 1
        there = self.places / str(self.mounts)
        there.symlink_to(self.machine.base)
        result = restore(HostRoot.at(str(there)))
        there.unlink()
        assert (result.lost, result.failed) == ([], [])
        assert {key: self.now(*key) for key in self.theirs} == self.theirs

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.places)


@pytest.mark.root
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/sys/fs/cgroup/memory").is_dir(), reason="needs root and cgroup v1")
@pytest.mark.parametrize("seed", range(60 if LONG else 6))
def test_after_any_history_everybody_has_what_is_theirs(machine, tree, seed: int) -> None:
    tree.make(*GROUPS)
    history = History(machine, tree, seed)
    try:
        for _ in range(120):
            history.step()
        history.restored()
    finally:
        history.close()
