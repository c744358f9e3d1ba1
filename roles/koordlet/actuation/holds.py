"""Holds: who has a file for itself for a while, so that no file has two owners (BEY-TUNE-01, BEY-INT-01).

A strategy that takes over a file which another one keeps in order (a quota, a weight) says so with the write. What the others want
there meanwhile waits. When it lets go, the file gets what they want, else what it held before; one of them that wanted it for itself
holds it from then on. Holds are on disk before the file is
written: what a killed agent held is given back when the next one starts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from koord import seams
from roles.koordlet.actuation import disklines
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.journal import Journal, JournalError
from roles.koordlet.actuation.restore import Restored, put_back
from roles.koordlet.actuation.target import Target, key_of
from roles.koordlet.actuation.writes import Hold as Ownership
from roles.koordlet.actuation.writes import Write
from roles.koordlet.host.root import HostRoot

log = logging.getLogger(__name__)

Key = tuple[str, str, str]


@dataclass(slots=True)
class Hold:
    """``before`` is what the file held, raw; ``wanted`` is the newest value that another rule, ``wanted_by``, wanted."""

    rule: str
    path: str
    before: str
    wanted: Write | None = None
    wanted_by: str = ""


class Holds:
    """All holds of this process. ``record`` None keeps none on disk (nothing outlives the process then)."""

    def __init__(self, record: Journal | None = None) -> None:
        self._record = record
        self._holds: dict[Key, Hold] = {}
        self._dropped = False
        self._journal: Journal | None = None

    def __len__(self) -> int:
        return len(self._holds)

    def holder(self, resource: str, target: str, device: str = "") -> str:
        """The rule that holds a file, "" for none."""
        hold = self._holds.get((target, resource, device))
        return hold.rule if hold is not None else ""

    def waits(self, write: Write, rule: str, *, kept: bool = True) -> bool:
        """Whether a write has to wait because another rule holds the file. What it wanted is kept, if it would be written (`kept`)."""
        if not self._holds:
            return False
        hold = self._holds.get(key_of(write))
        if hold is None or hold.rule == rule:
            return False
        if kept:
            hold.wanted, hold.wanted_by = write, rule
        return True

    def take(self, targets: Sequence[Target], rule: str) -> list[tuple[Target, WriteError]]:
        """Hold files, before they are written, with one append for all. What cannot be had: held by another rule, or not put on record."""
        refused: list[tuple[Target, WriteError]] = []
        fresh: list[Target] = []
        for target in targets:
            hold = self._holds.get(key_of(target.write))
            if hold is None:
                fresh.append(target)
            elif hold.rule != rule:
                refused.append((target, WriteError(Trouble.BUSY, target.path, f"is held by {hold.rule}")))
        entries = [entry for target in fresh if (entry := target.entry()) is not None]
        if self._record is not None and not self._record.remember(entries):
            failure = self._record.failure
            return refused + [(target, WriteError(Trouble.UNJOURNALLED, target.path, failure)) for target in fresh]
        for target in fresh:
            self._holds[key_of(target.write)] = Hold(rule, target.path, target.write.origin or target.current)
        return refused

    def released(self, write: Write, rule: str) -> Hold | None:
        """The hold that a release ends; None when the rule holds no such file."""
        hold = self._holds.get(key_of(write))
        return hold if hold is not None and hold.rule == rule else None

    def drop(self, write: Write) -> None:
        """End a hold: its file has been given back."""
        self._dropped = self._holds.pop(key_of(write), None) is not None or self._dropped

    def hand_over(self, write: Write) -> None:
        """End a hold whose file has got what others want. A rule that waited to hold it does so now: what it gives back one day is what
        the file held before both."""
        hold = self._holds.get(key_of(write))
        if hold is not None and hold.wanted is not None and hold.wanted.hold is Ownership.TAKE:
            self._holds[key_of(write)] = Hold(hold.wanted_by, hold.path, hold.before)
        else:
            self.drop(write)

    def forget_gone(self) -> None:
        """Drop holds of files that are no more: containers and processes end."""
        gone = [key for key, hold in self._holds.items() if not os.path.lexists(hold.path)]
        for key in gone:
            del self._holds[key]
        self._dropped = bool(gone) or self._dropped

    def stay(self) -> None:
        """See :meth:`Journal.stay`."""
        if self._record is not None:
            self._record.stay()

    def see(self, root: HostRoot, journal: Journal | None) -> None:
        """Where the machine is, and the journal of all writes."""
        self._journal = journal
        if self._record is not None:
            self._record.see(root)

    def recover(self, allowed: tuple[str, ...]) -> Restored:
        """Give back what a killed run held, where it still is what that run wrote. Raises JournalError; it may be asked again then, also
        when this run holds files."""
        if self._record is None:
            return Restored()
        seams.files().because("give back")
        self._record.compact()
        known = {entry.path: entry.ours for entry in self._journal or ()}
        own = {hold.path for hold in self._holds.values()}
        held = [replace(entry, ours=known.get(entry.path)) for entry in self._record if entry.path not in own]
        result = put_back(held, allowed=allowed, journal=self._journal if self._journal is not None else self._record)
        failed = {error.path for error in (*result.failed, *result.lost)}
        self._record.keep_only([entry for entry in self._record if entry.path in failed or entry.path in own])
        return result

    def close(self) -> None:
        if self._record is not None:
            self._record.close()

    def settle(self) -> None:
        """After a round of writes: let the disk say what is held now."""
        if not self._dropped or self._record is None:
            return
        self._dropped = False
        held = {hold.path for hold in self._holds.values()}
        try:
            self._record.keep_only([entry for entry in self._record if entry.path in held])
        except JournalError as error:
            # too many on record do no harm while this process lives, and the next start says what it puts back
            log.error("%s", error)


def text_before(write: Write, before: str) -> str:
    """What to write so that a file says again what it said before; of files with a line a disk only the disk's line."""
    if not write.resource.startswith(disklines.PREFIXES):
        return before
    line = disklines.by_disk(before).get(write.device)
    return disklines.without(write.resource, write.device) if line is None else f"{write.device} {line}"
