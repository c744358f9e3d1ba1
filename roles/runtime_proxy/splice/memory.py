"""Memory for requests that are held for hooks, bounded in bytes whatever their number."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class MemoryBudget:
    """Bytes to be shared. Who asks for more than is free waits, and the smallest request is served first."""

    def __init__(self, size: int, waiting: int = 0) -> None:
        self.size = size
        self.waiting = waiting or size  # bytes that messages may hold which wait for memory: callers may send some before they are told
        self.free = size
        self.loose = 0  # bytes that came of messages which wait for memory
        self._waiting: list[tuple[int, int, Ticket]] = []
        self._count = 0

    def ask(self, size: int, granted: Callable[[], None]) -> Ticket:
        """Reserve so many bytes; `granted` is called once they are, maybe at once."""
        ticket = Ticket(self, size, granted)
        self._count += 1
        heapq.heappush(self._waiting, (size, self._count, ticket))
        self._serve()
        return ticket

    def _serve(self) -> None:
        while self._waiting and (self._waiting[0][2].closed or self._waiting[0][0] <= self.free):
            size, _, ticket = heapq.heappop(self._waiting)
            if not ticket.closed:
                self.free -= size
                ticket._hold()
                ticket.granted()

    def _give_back(self, size: int) -> None:
        self.free += size
        self._serve()


class Ticket:
    """One reservation, waiting or held, until closed."""

    __slots__ = ("_budget", "_loose", "closed", "granted", "held", "size")

    def __init__(self, budget: MemoryBudget, size: int, granted: Callable[[], None]) -> None:
        self._budget = budget
        self.size = size
        self.granted = granted
        self.held = False
        self.closed = False
        self._loose = 0

    def wait_with(self, size: int) -> bool:
        """Note bytes that came before there is memory. False when too many wait in this way."""
        self._loose += size
        self._budget.loose += size
        return self._budget.loose <= self._budget.waiting

    def _hold(self) -> None:
        self.held = True
        self._budget.loose -= self._loose
        self._loose = 0

    def close(self) -> None:
        """Give back what was reserved, or stop waiting."""
        if not self.closed:
            self.closed = True
            self._budget.loose -= self._loose
            if self.held:
                self._budget._give_back(self.size)
