"""What changed since when: the log of changed rows that cached vectors catch up from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NODE = 1  # labels, taints, unschedulable, allocatable, images; a row that appeared or went
PODS = 2  # pods of the row: requested resources, ports, pod count
FIRST_FREE_KIND = 4  # further bits are given to the columns that plugins register

_KEEP = 1 << 14


class ChangeLog:
    """An append-only list of (slot, kinds) with absolute positions; old entries are dropped.

    A cached vector remembers the position it is current at and asks `since` for what to redo. `epoch` changes
    when vectors no longer have the right length and must be built anew.
    """

    __slots__ = ("_base", "_keep", "_kinds", "_slots", "epoch")

    def __init__(self, keep: int = _KEEP) -> None:
        self._slots: list[int] = []
        self._kinds: list[int] = []
        self._base = 0
        self._keep = keep
        self.epoch = 0

    @property
    def position(self) -> int:
        """The position after the newest entry."""
        return self._base + len(self._slots)

    def note(self, slot: int, kinds: int) -> None:
        """Record that a row changed in the given kinds."""
        self._slots.append(slot)
        self._kinds.append(kinds)
        if len(self._slots) > 2 * self._keep:
            drop = len(self._slots) - self._keep
            del self._slots[:drop]
            del self._kinds[:drop]
            self._base += drop

    def rewind(self, position: int) -> None:
        """Forget what was noted since a position: all of it was undone, and nobody has looked meanwhile."""
        start = max(0, position - self._base)
        del self._slots[start:]
        del self._kinds[start:]

    def resized(self) -> None:
        """Record that every vector has a new length."""
        self.epoch += 1

    def since(self, position: int) -> tuple[NDArray[np.intp], int] | None:
        """Slots that changed since a position, each once, and the kinds of all changes together; None if that is further back than the log
        reaches."""
        start = position - self._base
        if start < 0:
            return None
        if start == len(self._slots) - 1:  # nearly always, where pods are decided one after another
            return np.array((self._slots[start],), dtype=np.intp), self._kinds[start]
        slots = set(self._slots[start:])
        kinds = 0
        for kind in set(self._kinds[start:]):
            kinds |= kind
        return np.fromiter(slots, np.intp, len(slots)), kinds
