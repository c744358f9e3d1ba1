"""The live side of the journal: takes down what happens, on the event loop, and leaves the writing to a thread (BEY-REPLAY-01)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import dropwhile
from typing import Any

from koord.decisions.record import Record
from koord.decisions.sinks import LineFile
from roles.scheduler.binding.binder import Outcome
from roles.scheduler.framework.status import Status
from roles.scheduler.journal.lines import Beginning, Change, Decided, Encoder, Happening, Made, Operation

_BACKLOG = 200_000  # items


class JournalFile(LineFile):
    """Files of lines. Each begins with a head and all objects, so that it can be read without the others."""

    def __init__(self, path: str, **limits: Any) -> None:
        super().__init__(path, backlog=_BACKLOG, **limits)
        self._encoder = Encoder()
        self._begun = 0
        self._lost = 0
        self.excess = -1
        """By how many bytes the file that is being written is larger than it should be: than `max_bytes`, and twice what it begins with."""

    def _lines(self, items: list[Any]) -> bytes:
        return self._encoder.lines(items)

    def _write(self, items: list[Any]) -> None:
        self._open()
        if self.dropped != self._lost:  # what comes before the next beginning may lean on what is missing
            items = list(dropwhile(lambda item: not isinstance(item, Beginning), items))
        done = 0
        for number, item in enumerate(items):
            if isinstance(item, Beginning):
                self._append(self._lines(items[done:number]))
                if self._size:
                    self._rotate()
                done = number + 1
                self._append(self._lines([item]))
                self._begun = self._size or 0
                self._lost = self.dropped
        self._append(self._lines(items[done:]))
        self.excess = (self._size or 0) - max(self.max_bytes, 2 * self._begun)


class Journal:
    """Told by the scheduler of everything that its decisions depend on, in order. This one keeps nothing."""

    keeps = False

    def begins(self, standing: Callable[[], Beginning], settled: Callable[[], bool]) -> None:
        """The scheduler begins. `standing` tells all that is there now, `settled` whether nothing is under way."""

    def change(self, channel: str, old: Any, new: Any, now: float) -> None:
        """An object appeared, changed or went, as observers are told now."""

    def happened(self, what: Operation, now: float, uid: str = "", *more: Any) -> None:
        """Something else happened."""

    def nothing(self, now: float) -> None:
        """Nobody is next."""

    def turn_over(self) -> None:
        """No decision is under way: a new file may begin."""

    def bound(self, uid: str, outcome: Outcome, status: Status, now: float) -> None:
        """A binding ended."""

    def decided(self, made: Made, record: Record) -> None:
        """What came of the turn that was told last."""


class FileJournal(Journal):
    """Writes it to files."""

    keeps = True

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._standing: Callable[[], Beginning] | None = None
        self._settled: Callable[[], bool] = lambda: False
        self._dropped = 0
        self._idle = True  # nothing was told since nobody was next

    def begins(self, standing: Callable[[], Beginning], settled: Callable[[], bool]) -> None:
        """The first file begins."""
        self._standing, self._settled = standing, settled
        self._file.put(standing())

    def change(self, channel: str, old: Any, new: Any, now: float) -> None:
        self._file.put(Change(now, channel, old, new))
        self._idle = False

    def happened(self, what: Operation, now: float, uid: str = "", *more: Any) -> None:
        self._file.put(Happening(now, what, uid, more))
        self._idle = False

    def bound(self, uid: str, outcome: Outcome, status: Status, now: float) -> None:
        self.happened(Operation.BOUND, now, uid, outcome.value, int(status.code), status.plugin, status.message)

    def decided(self, made: Made, record: Record) -> None:
        self._file.put(Decided.of(made, record))

    def nothing(self, now: float) -> None:
        """Nobody is next: the moment for a new file, if one is due."""
        if not self._idle:
            self._file.put(Happening(now, Operation.NOTHING))
            self._idle = True
        self.turn_over()

    def turn_over(self) -> None:
        """Begin a new file if this one is full, or lacks what was dropped; while something is under way at every moment it grows to twice
        its size."""
        file = self._file
        lost = file.dropped != self._dropped
        if self._standing is None or not (lost or file.excess > 0):
            return
        if lost or file.excess > file.max_bytes or self._settled():
            self._dropped = file.dropped
            file.excess = -1
            begins = self._standing()
            begins.head["continues"] = not lost
            file.put(begins)
