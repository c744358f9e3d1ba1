"""The dead man's switch: what becomes of best-effort pods when koordlet is gone for longer than it may be (``--guard``).

A process of its own, small and without the API server: a DaemonSet of its own, or a unit on a host. It looks at the
node's lock, which a koordlet holds as long as it lives, however it ends. Nobody has it for ``--guard-timeout``: best-effort pods get
back what suppression took (``release``), or are held at a safe share of the node (``hold``). A koordlet that comes back goes on from there.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koord import seams
from koord.process.errors import ConfigurationError
from koord.process.notify import notify, stay_watched
from roles.koordlet.actuation.errors import WriteError
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal, JournalError
from roles.koordlet.actuation.restore import Restored, following_kubelet, journal_path, put_back
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.host.cgroup import BESTEFFORT, Cgroups
from roles.koordlet.host.cgroup_files import CFS_PERIOD_US, quota_of
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.host.root import HostRoot
from roles.koordlet.lock import NodeLock
from roles.koordlet.qos import view
from roles.koordlet.states.model import HostState
from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.koordlet.options import Options

log = logging.getLogger(__name__)

NAME = "Guard"
RELEASE, HOLD = "release", "hold"
#: Whose values follow the load from second to second, so that they are wrong once nobody looks: the rules of journal entries.
FOLLOWING = frozenset({"BECPUSuppress", "InterferenceDetection", "MemoryOffloading", NAME})
#: Time between looks at the lock, and between attempts where something could not be done (seconds).
LOOK, AGAIN = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and what stands against the rest, a line each: that is tried again."""

    text: str
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when nobody holds the lock (monotonic seconds; None: somebody does), and whether that was answered: wholly, or as far as it
    went, so that the rest is tried again at ``next_at``."""

    alone_since: float | None = None
    acted: bool = False
    next_at: float | None = None

    def looked(self, *, held: bool, now: float) -> Watch:
        if held:
            return Watch()
        return replace(self, alone_since=now if self.alone_since is None else self.alone_since)

    def due(self, now: float, patience: float) -> bool:
        """Whether koordlet is gone for so long (seconds) that it is time to act."""
        waited = self.alone_since is not None and now - self.alone_since >= patience
        return waited and not self.acted and (self.next_at is None or now >= self.next_at)

    def answered(self, done: Done, now: float) -> Watch:
        return replace(self, next_at=now + AGAIN) if done.left else replace(self, acted=True)


class Guard:
    """Looks and acts. ``release`` or ``hold``, the latter at ``percent`` of the node's CPU."""

    def __init__(self, root: HostRoot, lock_file: str, *, action: str, percent: int, cpus: int) -> None:
        self._root, self._lock_file = root, lock_file
        self._action, self._percent, self._cpus = action, percent, cpus

    def held(self) -> bool:
        """Whether a koordlet lives. Takes the lock for no longer than it takes to see that nobody has it."""
        lock = NodeLock(self._lock_file)
        try:
            lock.acquire(patience=0.0)
        except ConfigurationError:
            return True
        lock.release()
        return False

    def act(self) -> Done | None:
        """Do what is configured; None when a koordlet is back. Never raises for what the machine refuses: that is what is left."""
        lock = NodeLock(self._lock_file)
        try:
            lock.acquire(patience=0.0)
        except ConfigurationError:
            return None
        try:
            return self._act()
        except (JournalError, HostError, WriteError, OSError) as error:
            return Done("nothing can be done", (str(error),))
        finally:
            lock.release()

    def _act(self) -> Done:
        path = journal_path(self._root)
        if not os.path.exists(path):
            return Done(f"nothing is done, for no koordlet has changed this machine since it was started: there is no journal at {path}")
        journal = Journal(path, self._root)
        try:
            journal.load()
            if not journal.not_understood and all(map(journal.gone, journal)):
                return Done("nothing is done, for nothing of what a koordlet wrote is left on this machine: its journal is empty")
            if self._action == HOLD:
                journal.compact()  # nothing is held that is not on record
                return self._hold(journal)
            try:
                journal.compact()
            except JournalError as error:  # a full disk: what is put back is on record already
                log.warning("%s; what was taken is given back all the same", error)
            return self._release(journal)
        finally:
            journal.close()

    def _release(self, journal: Journal) -> Done:
        """Entries stay on record: a koordlet that comes back, or a restore, finds them as they are."""
        following = following_kubelet((entry for entry in journal if entry.owner in FOLLOWING), self._root)
        result: Restored = put_back(following, allowed=self._root.machine_directories, journal=journal)
        for line in (*map(str, result.lost), *map(str, result.theirs)):
            log.warning("left as it is: %s", line)
        return Done(f"best-effort pods have back what was taken: {result}", tuple(map(str, result.failed)))

    def _hold(self, journal: Journal) -> Done:
        host = HostState(self._root, Cgroups.detect(self._root), HostFiles())
        try:
            return self._held(journal, host)
        finally:
            host.files.close_all()

    def _held(self, journal: Journal, host: HostState) -> Done:
        directory = host.cgroups.qos_dir(BESTEFFORT)
        if view.cpu_quota(host, directory) is None:
            return Done("best-effort pods are not held", (f"their level {directory} has no CPU quota that can be read",))
        quota = self._cpus * CFS_PERIOD_US * self._percent // 100
        levels = [] if host.cgroups.v2 else [d for level in view.tier(host, "cpu")[1:] for d in level]
        # on cgroup v1 no child may have more than its parent
        looser = [d for d in levels if (own := view.usual_quota(host, d)) is not None and own > quota]
        writes = [Write("cpu.cfs_quota_us", d, "-1", cached=False, reason=NAME) for d in looser]
        text = str(quota_of(quota, view.cpu_period(host, directory)))
        wanted = Write("cpu.cfs_quota_us", directory, text, cached=False, reason=NAME)
        applied = Executor(host, journal).apply([sequence(*writes, wanted)], rule=NAME, now=seams.now())
        if applied.failed:
            return Done("best-effort pods are not held as they should be", tuple(map(str, applied.failed)))
        return Done(f"best-effort pods are held at {self._percent} % of the node's CPU")


async def run(life: Life, options: Options, root: HostRoot) -> None:
    """Until asked to stop."""
    lock_file = options.lock_file or os.path.join(root.var_run, "koordlet", "koordlet.lock")
    guard = Guard(root, lock_file, action=options.guard_action, percent=options.guard_cpu_percent, cpus=os.cpu_count() or 1)
    watch, told = Watch(), Done("")
    log.info("koordlet may be gone for %g s; then: %s", options.guard_timeout, options.guard_action)
    notify("READY=1")
    life.spawn(stay_watched(life.stopping, lambda: True), "signs of life")
    while not life.stopping.is_set():
        now = seams.monotonic()
        watch = watch.looked(held=guard.held(), now=now)
        if watch.due(now, options.guard_timeout) and (done := guard.act()) is not None:
            if watch.next_at is None or done != told:
                _tell(done, now - (watch.alone_since or now))
            watch, told = watch.answered(done, now), done
        await pause(life.stopping, LOOK)


def _tell(done: Done, gone_for: float) -> None:
    log.warning("koordlet is gone for %.0f s: %s", gone_for, done.text)
    for line in done.left:
        log.error("tried again: %s", line)
