"""The resource executor: every change of the node goes through here (KA-EXE-01).

Strategies and hooks say what they want; the executor leaves out what is so already, puts the old value on record, writes in an
order that the kernel accepts (growth from parent to child, shrinking from child to parent), and tells what became of it. A batch
never stops at an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from koord import seams
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.holds import Holds, text_before
from roles.koordlet.actuation.journal import Journal, JournalError
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.memsw import swap_limit
from roles.koordlet.actuation.places import Base
from roles.koordlet.actuation.restore import give_back_unwanted
from roles.koordlet.actuation.target import REGISTRATION_FILE, Target, key_of, limited_with, reset_by, reset_to, resolve
from roles.koordlet.actuation.threeway import Undo, put_back
from roles.koordlet.actuation.triggers import Triggers
from roles.koordlet.actuation.writes import Batch, Hold, Kind, Merge, Write, sequence
from roles.koordlet.audit.log import AuditEvent
from roles.koordlet.host.errors import HostError

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from roles.koordlet.audit.log import AuditLog
    from roles.koordlet.metrics.registry import Metrics
    from roles.koordlet.states.model import HostState

log = logging.getLogger(__name__)

#: Cache entries that nobody renewed are dropped after this long (seconds); swept once a minute.
CACHE_TTL = 120.0
SWEEP_EVERY = 60.0
AUDIT_VERBOSITY = 3
#: So often a file is read again that changes while its value is put on record.
_LOOKS = 3

#: One write a thread: a record of each would push out everything else. Of the registration the log tells.
UNTOLD = frozenset({"tasks", "cgroup.procs", REGISTRATION_FILE})

Key = tuple[str, str, str]


class Mode(StrEnum):
    OBSERVE = "observe"
    ENFORCE = "enforce"


@dataclass(slots=True)
class Applied:
    """What became of batches. ``would`` counts changes that observe mode kept back."""

    written: list[Write] = field(default_factory=list)
    skipped: int = 0
    would: list[Write] = field(default_factory=list)
    failed: list[WriteError] = field(default_factory=list)

    @property
    def unjournalled(self) -> bool:
        """Whether something was left alone because its old value could not be put on record."""
        return any(e.trouble is Trouble.UNJOURNALLED for e in self.failed)


@dataclass(slots=True)
class Executor:
    """One a process. What is changed is on record in its ``journal`` before."""

    host: HostState
    journal: Journal
    audit: AuditLog | None = None
    metrics: Metrics | None = None
    recorder: Recorder | None = None
    force_after: float = 60.0
    """``--resource-force-update-seconds``."""
    observe_only: bool = False
    """Whatever mode is asked for, nothing is written."""
    clock: Callable[[], float] = seams.monotonic
    holds: Holds = field(default_factory=Holds)
    _cache: dict[Key, tuple[str, float]] = field(default_factory=dict)
    _would: dict[Key, tuple[str, float]] = field(default_factory=dict)
    """What observe mode kept back, and when it was last wanted."""
    _troubled: dict[Key, tuple[str, float]] = field(default_factory=dict)
    _owed: dict[Key, tuple[Write, str]] = field(default_factory=dict)
    """Releases that failed, with their rule: tried again once a minute."""
    _swept: float = 0.0
    triggers: Triggers = field(init=False)

    def __post_init__(self) -> None:
        self.triggers = Triggers(self._triggered)
        self.journal.see(self.host.root)
        self.holds.see(self.host.root, self.journal)

    def apply(self, batches: Iterable[Batch], *, rule: str, now: float, mode: Mode = Mode.ENFORCE) -> Applied:
        """Bring batches about, in order. ``rule`` is the strategy or hook, ``now`` the time of the decision (Unix seconds)."""
        applied = Applied()
        mode = Mode.OBSERVE if self.observe_only else mode
        seams.files().because(rule)
        for batch in batches:
            self._apply(batch, rule, now, mode, applied)
        self._sweep(now)
        self.holds.settle()
        self.journal.settle()
        return applied

    def note(self, entry: Entry, rule: str) -> bool:
        """Put something on record that is changed by other means than a file; whether it is there, and may be changed."""
        return not self.observe_only and self.journal.remember([entry], owner=rule)

    def noted(self, undo: Undo) -> list[Entry]:
        """What is on record that is undone that way, whoever noted it."""
        return [entry for entry in self.journal if entry.undo is undo]

    def forget_noted(self, entry: Entry) -> None:
        """Take what was undone off the record."""
        try:
            self.journal.keep_only(e for e in self.journal if e.path != entry.path)
        except JournalError as error:
            log.error("%s: it still says that %s was changed", error, entry.path)

    def give_back(self, former: Callable[[str, str], bool]) -> None:
        """Give files of cgroup directories, with the rule that wrote them, back what they held before; what others set since stays."""
        if self.observe_only:
            return
        found = [(entry, self._directory(entry)) for entry in self.journal if entry.undo is Undo.WRITE]
        mine = {entry.path: directory for entry, directory in found if directory and former(directory, entry.owner)}
        unwanted = [entry for entry, _ in found if entry.path in mine]
        give_back_unwanted(self.journal, unwanted, self.host.root, "nothing is wanted of it any more")
        for path, directory in mine.items():
            self.host.files.invalidate(path)
            self.forget(directory)

    def _directory(self, entry: Entry) -> str:
        """Which cgroup directory an entry is about, relative to the root of its hierarchy; "" for other files."""
        if entry.place is None or entry.place.base is not Base.CGROUP:
            return ""
        directory = os.path.dirname(entry.place.path)
        own_hierarchy = not self.host.cgroups.v2 or entry.resource == "net_cls.classid"
        return directory.partition("/")[2] if own_hierarchy else directory

    def needed(self, write: Write) -> bool:
        """Whether the cache does not already vouch for the value."""
        if not write.cached or write.hold is Hold.RELEASE:
            return True
        cached = self._cache.get(key_of(write))
        return cached is None or cached[0] != _cached_value(write) or self.clock() - cached[1] > self.force_after

    def changed(self, resource: str, directory: str, device: str = "") -> bool:
        """Whether the journal says that a cgroup file, as it is there now, or a disk's line of it, was changed by this agent or one before
        it."""
        entry = self._entry(resource, directory)
        return entry is not None and (not device or entry.ours is None or _names(device, entry.ours))

    def holds_ours(self, resource: str, directory: str, device: str = "") -> bool:
        """Whether there is something to take back: such a file, or line, still says what the agent wrote, and did not before."""
        entry = self._entry(resource, directory)
        if entry is None:
            return False
        try:
            now = self.host.files.read(entry.path).decode("utf-8", "replace")
        except HostError:
            return False
        back = put_back(entry.undo, entry.resource, entry.value, entry.ours, now).texts
        return _names(device, back) if device else bool(back)

    def _entry(self, resource: str, directory: str) -> Entry | None:
        """What is on record of the cgroup file that is there now."""
        try:
            entry = self.journal.get(self.host.cgroups.file(resource, directory))
        except (HostError, ValueError):
            return None
        return entry if entry is not None and self.journal.found(entry) else None

    def forget(self, directory: str) -> None:
        """Drop what is known about a cgroup directory and everything below it."""
        below = directory + "/"
        for table in (self._cache, self._would, self._troubled):
            for key in [k for k in table if k[0] == directory or k[0].startswith(below)]:
                del table[key]

    # -- a batch -------------------------------------------------------------------------------------------------------------

    def _apply(self, batch: Batch, rule: str, now: float, mode: Mode, applied: Applied) -> None:
        levels: list[list[Target]] = []
        for level in batch.levels:
            targets: list[Target] = []
            for write in level:
                if self.holds.waits(write, rule, kept=mode is Mode.ENFORCE) or not self.needed(write):
                    applied.skipped += 1
                    continue
                target = self._release(write, rule, applied) if write.hold is Hold.RELEASE else self._resolve(write, applied)
                if target is not None:
                    targets.append(target)
            levels.append(targets)
        everything = [target for level in levels for target in level]
        if mode is Mode.OBSERVE:
            self._observe(everything, rule, now, applied)
            return
        for target in everything:
            target.first = target.write.cached and key_of(target.write) not in self._cache
        allowed = self._on_record(everything, rule, now, applied) - self._not_held(everything, rule, applied)
        self._downwards(levels, allowed, rule, now, applied, stop=batch.stop_on_error)
        for targets in reversed(levels):
            for target in targets:
                if target.write.merge is not Merge.NONE and id(target) in allowed:
                    self._finish(target, rule, now, applied)

    def _downwards(self, levels: list[list[Target]], allowed: set[int], rule: str, now: float, applied: Applied, *, stop: bool) -> None:
        for targets in levels:
            for target in targets:
                if id(target) not in allowed:
                    if stop:
                        return
                    continue
                if target.write.merge is Merge.NONE:
                    if not self._finish(target, rule, now, applied) and stop:
                        return
                    continue
                try:
                    text = target.merged_text()
                    if text is not None:
                        self._put(target, text)
                        target.basis = text
                except WriteError as error:
                    allowed.discard(id(target))
                    self._failed(target.write, error, applied)

    def _finish(self, target: Target, rule: str, now: float, applied: Applied) -> bool:
        """Write the wanted value unless it stands there, and remember that it does; whether that worked."""
        before = target.current
        try:
            pending = not target.satisfied
            if pending:
                pending = self._put_or_fall_back(target, rule)
        except WriteError as error:
            self._failed(target.write, error, applied)
            return False
        key = key_of(target.write)
        if target.write.hold is Hold.RELEASE:
            self.holds.hand_over(target.write)
            self._owed.pop(key, None)
            self._cache.pop(key, None)
        elif target.write.cached:
            self._cache[key] = (_cached_value(target.write), self.clock())
        else:
            self._cache.pop(key, None)
        if self._troubled.pop(key, None) is not None:
            log.info("%s can be written again", target.path)
        self._would.pop(key, None)
        if pending or target.basis.strip() != target.first_basis.strip():
            applied.written.append(target.write)
            if target.write.resource not in UNTOLD:
                self._told(target, before, rule, now)
        else:
            applied.skipped += 1
        return True

    def _put_or_fall_back(self, target: Target, rule: str) -> bool:
        """Whether something was written: not when the fallback is what stands there already."""
        if target.write.kind is Kind.TRIGGER:
            self.triggers.put(target, rule)
            return True
        try:
            self._put(target, target.text)
        except WriteError as error:
            if error.trouble is not Trouble.INVALID or not target.write.fallback:
                raise
            target.text = target.write.fallback
            if target.satisfied:
                return False
            self._put(target, target.text)
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------------

    def _resolve(self, write: Write, applied: Applied) -> Target | None:
        try:
            return resolve(write, self.host)
        except WriteError as error:
            self._failed(write, error, applied)
            return None

    def _release(self, write: Write, rule: str, applied: Applied) -> Target | None:
        """What gives a held file back: what the others wanted last, else the value that the release names, else what it held before."""
        hold = self.holds.released(write, rule)
        if hold is None:
            return None
        named = replace(hold.wanted, hold=Hold.RELEASE) if hold.wanted is not None else write
        raw = None if named.value else text_before(write, hold.before)
        try:
            return resolve(named, self.host, raw=raw)
        except WriteError as error:
            if error.ignored:
                self.holds.drop(write)
            self._failed(write, error, applied)
            return None

    def _not_held(self, targets: list[Target], rule: str, applied: Applied) -> set[int]:
        """Take the files that a batch wants for its rule alone; the ids of those that cannot be had."""
        wanted = [target for target in targets if target.write.hold is Hold.TAKE]
        refused = self.holds.take(wanted, rule)
        for target, error in refused:
            self._failed(target.write, error, applied)
        for target in wanted:
            self._owed.pop(key_of(target.write), None)
        return {id(target) for target, _ in refused}

    def _on_record(self, targets: list[Target], rule: str, now: float, applied: Applied) -> set[int]:
        """Put the old values of what is going to change into the journal; the ids of targets that may be written."""
        changing = [t for t in targets if t.write.origin or t.given or not t.satisfied]
        wanted = [(t, e) for t in changing for e in (t.entry(), reset_by(t, self.host), limited_with(t))]
        entries = self.journal.without_us([e for _, e in wanted if e is not None])
        # others may have set the wanted value: should they then set what this agent wrote before, it would be taken for the agent's
        standing = [t for t in targets if t.satisfied and not (t.write.origin or t.given) and self.journal.get(t.path) is not None]
        entries += [e for t in standing if (e := t.entry()) is not None and self.journal.known(e.path, e.inode)]
        if self.journal.remember(entries, owner=rule, time=now):
            self._look_again(changing, rule, now)
            return {id(t) for t in targets}
        refused: set[int] = set()
        for target, entry in wanted:
            if entry is not None and not self.journal.known(entry.path, entry.inode):
                refused.add(id(target))
                self._failed(target.write, WriteError(Trouble.UNJOURNALLED, target.path, self.journal.failure), applied)
        return {id(t) for t in targets} - refused

    def _look_again(self, targets: list[Target], rule: str, now: float) -> None:
        """First values wait for the disk. What the kubelet gives a group that it is making comes meanwhile, and is the value before."""
        for _ in range(_LOOKS):
            moved = [t for t in targets if t.write.kind is Kind.CGROUP and not (t.write.origin or t.given) and t.looks_different()]
            entries = [entry for t in moved if (entry := t.entry()) is not None]
            if not entries or not self.journal.remember(entries, owner=rule, time=now):
                return

    def _put(self, target: Target, text: str) -> None:
        begun = seams.perf_counter()
        status = "failed"
        reset = reset_by(target, self.host)
        other = swap_limit(target.path, text) if target.write.kind is Kind.CGROUP else None
        # until the wanted value stands there, the cache vouches for nothing
        self._cache.pop(key_of(target.write), None)
        try:
            if other is not None and other.first:
                self._noted(other.path, other.text, lambda: kernel.write(other.path, other.text))
            if reset is not None:
                self.journal.writing(reset.path, reset_to(target, self.host))
            self._noted(target.path, text, lambda: target.put(text))
            status = "success"
            if other is not None and not other.first:
                self._noted(other.path, other.text, lambda: kernel.write(other.path, other.text))
            if reset is not None:
                self._put_back(reset)
        finally:
            self.host.files.invalidate(target.path)
            self._measure(target.write, seams.perf_counter() - begun, status)

    def _triggered(self, target: Target, seconds: float, error: WriteError | None) -> None:
        """The kernel is done with what it was asked, or was not willing."""
        self._measure(target.write, seconds, "success" if error is None else "failed")
        if error is not None:
            self._failed(target.write, error, Applied())

    def _measure(self, write: Write, seconds: float, status: str) -> None:
        if self.metrics is not None:
            kind = "resctrl-schema" if write.resource == "schemata" else "cgroup" if write.kind is Kind.CGROUP else "default"
            self.metrics.resource_update.observe(seconds * 1000, kind, status)

    def _noted(self, path: str, text: str, put: Callable[[], None]) -> None:
        """Write, with the journal knowing before and after what is ours there. Raises WriteError."""
        if self.journal.get(path) is None:
            put()
            return
        ours = self.journal.writing(path, text)
        try:
            put()
        except WriteError:
            self.journal.refused(path, ours)
            raise
        self.journal.wrote(path, self._as_kept(path, text))

    def _as_kept(self, path: str, text: str) -> str:
        """What the kernel made of a whole value that was written."""
        entry = self.journal.get(path)
        if entry is None or entry.undo not in (Undo.WRITE, Undo.REPLACE):
            return text
        try:
            return kernel.read(path)
        except WriteError:
            return text

    def _put_back(self, entry: Entry) -> None:
        """Give a file that the kernel has just set anew the value that is on record. An idle group does not take one; that is no error."""
        first = self.journal.get(entry.path)
        self.host.files.invalidate(entry.path)
        if first is None or first.inode != entry.inode:
            return
        try:
            self._noted(entry.path, first.value, lambda: kernel.write(entry.path, first.value))
        except WriteError as error:
            log.debug("%s", error)
        self.journal.wrote(entry.path, self._as_kept(entry.path, first.value))

    def _observe(self, targets: list[Target], rule: str, now: float, applied: Applied) -> None:
        for target in targets:
            key = key_of(target.write)
            if target.satisfied:
                self._would.pop(key, None)
                applied.skipped += 1
                continue
            applied.would.append(target.write)
            if target.write.resource in UNTOLD:
                continue
            known = self._would.get(key)
            self._would[key] = target.write.value, self.clock()
            if known is None or known[0] != target.write.value:
                self._record(target, target.current, rule, now, "WouldWrite")

    def _failed(self, write: Write, error: WriteError, applied: Applied) -> None:
        if error.ignored:
            return
        applied.failed.append(error)
        key = key_of(write)
        if write.hold is Hold.RELEASE and (holder := self.holds.holder(write.resource, write.target, write.device)):
            self._owed[key] = (write, holder)
        text = str(error)
        known = self._troubled.get(key)
        self._troubled[key] = text, self.clock()
        if known is None or known[0] != text:
            level = logging.INFO if error.trouble in (Trouble.BUSY, Trouble.UNJOURNALLED) else logging.WARNING
            log.log(level, "wanted %s: %s", write, text)

    def _told(self, target: Target, before: str, rule: str, now: float) -> None:
        self._record(target, before, rule, now, "Written")
        if self.audit is not None:
            about = target.write.about
            event = AuditEvent(
                type=about.type,
                namespace=about.namespace,
                name=about.name,
                container=about.container,
                reason=target.write.reason,
                message=f"update {target.path} from {before.strip()!r} to {target.text.strip()!r}",
            )
            self.audit.emit(event, AUDIT_VERBOSITY)

    def _record(self, target: Target, before: str, rule: str, now: float, verdict: str) -> None:
        if self.recorder is None:
            return
        old, new = before.strip()[:120], target.text.strip()[:120]
        self.recorder.record(
            Record(
                role="koordlet",
                subject=Subject("CgroupFile", name=target.path),
                time=now,
                verdict=verdict,
                rule=rule,
                message=f"{old} → {new}",
                numbers={"old": old, "new": new},
                features=("KA-EXE-01",),
            )
        )

    def _sweep(self, at: float) -> None:
        now = self.clock()
        if now - self._swept < SWEEP_EVERY:
            return
        self._swept = now
        self.holds.forget_gone()
        try:
            self.journal.stay()
            self.holds.stay()
        except (JournalError, OSError) as error:
            log.error("%s", error)  # the next write says what follows
        for write, rule in list(self._owed.values()):
            self._apply(sequence(write), rule, at, Mode.ENFORCE, Applied())
        # nothing is owed to a file that is gone, or that somebody else holds by now
        self._owed = {key: owed for key, owed in self._owed.items() if self._holds_still(*owed)}
        oldest = now - max(CACHE_TTL, 2 * self.force_after)
        # containers and threads end without a word
        gone = self._gone({key[0] for table in (self._cache, self._would, self._troubled) for key in table})
        for table in (self._cache, self._would, self._troubled):
            for key in [key for key, (_, at) in table.items() if at < oldest or key[0] in gone]:
                del table[key]

    def _holds_still(self, write: Write, rule: str) -> bool:
        return self.holds.holder(write.resource, write.target, write.device) == rule

    def _gone(self, targets: set[str]) -> set[str]:
        """Those of cgroup directories that are in no hierarchy any more."""
        return {target for target in targets if not os.path.isabs(target) and not self.host.cgroups.exists(target)}


def _names(device: str, lines: Iterable[str]) -> bool:
    return any(line.split()[:1] == [device] for line in lines)


def _cached_value(write: Write) -> str:
    """What the cache remembers: another fallback is another value."""
    return f"{write.value}|{write.fallback}" if write.fallback else write.value
