"""A work queue whose keys come by rank instead of by arrival."""

from __future__ import annotations

import heapq

from koord.kube.workqueue import WorkQueue

Rank = tuple[int, float]
_LAST: Rank = (1 << 30, 0.0)


class RankedQueue(WorkQueue):
    """The lowest rank comes first; of equal ones the one that waits longest. A key that is put again takes its new rank."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._ranks: dict[str, Rank] = {}
        self._heap: list[tuple[Rank, int, str]] = []
        self._number = 0

    def put(self, key: str, rank: Rank) -> None:
        """Work on the key when it is its turn."""
        if self.held:
            return
        if rank != self._ranks.get(key) or key not in self._ready:
            self._ranks[key] = rank
            self._push(key)
        super().add(key)

    def add(self, key: str) -> None:
        """Work on a key again, with the rank that it had."""
        if self.held:
            return
        self._push(key)
        super().add(key)

    def _push(self, key: str) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self._ranks.get(key, _LAST), self._number, key))

    def _first(self) -> str:
        while True:
            rank, _, key = heapq.heappop(self._heap)
            # An entry of a key that was taken already, or has another rank by now, is of no use any more.
            if key in self._ready and rank == self._ranks.get(key, _LAST):
                return key

    def hold(self) -> None:
        """See WorkQueue."""
        super().hold()
        self._ranks.clear()
        self._heap.clear()

    def done(self, key: str) -> None:
        """The key is worked off."""
        if key not in self._again:
            self._ranks.pop(key, None)
        super().done(key)
