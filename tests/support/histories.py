"""Random histories of one machine on real groups (BEY-JRN-01).

Agents write, are killed with -9 at any moment, are upgraded and see the machine elsewhere; a kubelet resizes; containers are made anew;
restores are killed, too. In the end every file holds what its owner set.
usage: python -m tests.support.histories [count] [first seed] [seconds]      as root, cgroup v1; prints one line of JSON
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import Restored, journal_path, restore
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.states.model import HostState
from tests.support.realcgroups import CONTROLLERS, Tree

GROUPS = ("kubepods.slice/a", "kubepods.slice/a/c", "kubepods.slice/b")
QUOTA, SHARES, LIMIT = "cpu.cfs_quota_us", "cpu.shares", "memory.limit_in_bytes"
#: What the agent writes and what others set never meet, so that it can be told whose a value is. Of quotas others set one value only: a
#: child of 52 whose parent was made 51 while the agent held the child at 22 is nothing that the kernel would take back.
OURS = {QUOTA: (21_000, 22_000, 23_000), SHARES: (110, 120, 130), LIMIT: (96 << 20, 112 << 20, 160 << 20)}
THEIRS = {QUOTA: (51_000, -1), SHARES: (510, 520, 530), LIMIT: (224 << 20, 256 << 20)}
#: Longest life of a process that is to be killed (seconds): from before its journal is open to after its last write.
_LIFE = 0.012
_MS_BIND, _MNT_DETACH, _MS_REC_PRIVATE = 4096, 2, (1 << 14) | (1 << 18)
_CLONE_NEWNS = 0x20000


class WrongError(AssertionError):
    """A file does not hold what its owner set."""


class History:
    """One machine below ``base``. ``mount`` binds its root to another place for every process; else a link does."""

    GROUPS = GROUPS

    def __init__(self, base: Path, seed: int, *, mount: bool = False) -> None:
        self.base, self.mounted = base, mount
        self.random = random.Random(seed)
        self.places = Path(tempfile.mkdtemp(prefix="koord-mounts-", dir=base.parent))
        self.number = 0
        self.agent: Executor | None = None
        self.seen: Path | None = None
        self.done: Counter[str] = Counter()
        self.theirs = {(name, group): self.now(name, group) for group in self.GROUPS for name in OURS}

    def file(self, name: str, group: str) -> Path:
        return self.base / "sys/fs/cgroup" / name.partition(".")[0] / group / name

    def now(self, name: str, group: str) -> str:
        return self.file(name, group).read_text().strip()

    # -- where the machine is seen -------------------------------------------------------------------------------------------

    def _see(self) -> HostRoot:
        self.number += 1
        there = self.places / str(self.number)
        if self.mounted:
            there.mkdir()
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mount(str(self.base).encode(), str(there).encode(), None, _MS_BIND, None) != 0:
                raise OSError(ctypes.get_errno(), "bind mount")
        else:
            there.symlink_to(self.base)
        self.seen = there
        return HostRoot.at(str(there))

    def _unsee(self) -> None:
        there, self.seen = self.seen, None
        if there is None:
            return
        if self.mounted:
            ctypes.CDLL(None).umount2(str(there).encode(), _MNT_DETACH)
            there.rmdir()
        else:
            there.unlink()

    # -- what happens --------------------------------------------------------------------------------------------------------

    def _start(self) -> Executor:
        root = self._see()
        journal = Journal(journal_path(root), root)
        journal.open()
        return Executor(HostState(root, Cgroups.detect(root), HostFiles()), journal)

    def end(self) -> None:
        """The agent stops, and an upgrade may follow: the next one sees the machine elsewhere."""
        if self.agent is not None and self.agent.journal is not None:
            self.agent.journal.close()
            self.agent.host.files.close_all()
        self.agent = None
        self._unsee()

    def _wants(self, agent: Executor) -> None:
        name, group = self.random.choice(list(OURS)), self.random.choice(self.GROUPS)
        applied = agent.apply([sequence(Write(name, group, str(self.random.choice(OURS[name])), cached=False))], rule="r", now=1.0)
        if not all("refused" in str(error) for error in applied.failed):
            raise WrongError(f"not written: {applied.failed}")

    def write(self) -> None:
        self.agent = self.agent or self._start()
        self._wants(self.agent)

    def resize(self) -> None:
        name, group = self.random.choice(list(OURS)), self.random.choice(self.GROUPS)
        before = self.now(name, group)
        self._resized(name, group, self.random.choice(THEIRS[name]))
        if (after := self.now(name, group)) != before:
            self.theirs[name, group] = after

    def _resized(self, name: str, group: str, value: int) -> None:
        with contextlib.suppress(OSError):  # the kernel lets nobody do that now
            self.file(name, group).write_text(str(value))

    def recreate(self) -> None:
        """A container ends and another one has its name."""
        group = self.random.choice(self.GROUPS[1:])
        self._made_anew(group)
        self.theirs.update({(name, group): self.now(name, group) for name in OURS})

    def _made_anew(self, group: str) -> None:
        for controller in CONTROLLERS:
            path = self.base / "sys/fs/cgroup" / controller / group
            path.rmdir()
            path.mkdir()
            if controller == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (path / name).write_text((path.parent / name).read_text())

    def _killed(self, work: Callable[[], object]) -> None:
        """Do it in a process that is killed with -9 at some moment."""
        self.end()
        life = self.random.random() * _LIFE
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                work()
            os._exit(0)
        time.sleep(life)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.number += 1
        place = self.places / str(self.number)
        self.seen = place if os.path.lexists(place) else None
        self._unsee()

    def writes_and_is_killed(self) -> None:
        def work() -> None:
            agent = self._start()
            for _ in range(30):
                self._wants(agent)

        self._killed(work)

    def restore_is_killed(self) -> None:
        self._killed(lambda: restore(self._see()))

    def restored(self) -> Restored:
        """A restore under yet another path gives everybody theirs."""
        self.end()
        result = restore(self._see())
        self._unsee()
        now = {key: self.now(*key) for key in self.theirs}
        wrong = {f"{group}/{name}": (now[name, group], text) for (name, group), text in self.theirs.items() if now[name, group] != text}
        if wrong or result.lost or result.failed:
            raise WrongError(f"wrong {wrong}, lost {result.lost}, failed {[str(e) for e in result.failed]}")
        return result

    STEPS = {"write": 6, "resize": 3, "end": 2, "recreate": 1, "restored": 1, "writes_and_is_killed": 3, "restore_is_killed": 1}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            (what,) = self.random.choices(list(self.STEPS), list(self.STEPS.values()))
            self.done[what] += 1
            getattr(self, what)()
        self.restored()

    def close(self) -> None:
        self.end()
        shutil.rmtree(self.places)


def machine(base: Path) -> Path:
    """A machine's root below ``base``, without groups yet."""
    root = base / "machine"
    for path in (*(f"sys/fs/cgroup/{controller}" for controller in CONTROLLERS), "proc/sys/kernel/random", "var/run/koordlet"):
        (root / path).mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text("one\n")
    return root


def main(count: int, first: int, seconds: float = math.inf) -> dict[str, object]:
    """Histories with seeds from ``first`` on, for at most ``seconds``; what happened how often, and what was wrong."""
    libc = ctypes.CDLL(None, use_errno=True)
    own_mounts = libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
    base = Path(tempfile.mkdtemp(prefix="koord-histories-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    done: Counter[str] = Counter()
    wrong: list[str] = []
    began, number = time.monotonic(), 0
    root = machine(base)
    tree = Tree(SimpleNamespace(root=HostRoot.at(str(root))))
    try:
        tree.make(*GROUPS)
        for number in range(count):
            if time.monotonic() - began > seconds:
                break
            history = History(root, first + number, mount=own_mounts)
            try:
                history.run(history.random.randint(6, 18))
            except WrongError as error:
                wrong.append(f"seed {first + number}: {error}")
                with contextlib.suppress(OSError):
                    os.unlink(journal_path(HostRoot.at(str(root))))
            finally:
                history.close()
            done += history.done
            done["histories"] += 1
    finally:
        tree.remove()
        shutil.rmtree(base)
    return {"done": done, "wrong": wrong, "mounts": own_mounts}


def in_process(count: int, first: int = 0) -> dict[str, object]:
    """The same in a process of its own, whose mounts and forks are nobody else's."""
    command = [sys.executable, "-m", "tests.support.histories", str(count), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    result: dict[str, object] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    print(json.dumps(main(*given, *(100, 0)[len(given) :])))
