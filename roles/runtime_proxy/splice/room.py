"""Memory for requests that are held for hooks, bounded in bytes whatever their number."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Room:
    """Bytes to be shared. Who finds no room waits, and the smallest request is served first."""

    def __init__(self, size: int, waiting: int = 0) -> None:
        self.size = size
        self.waiting = waiting or size  # bytes that messages may hold which wait for room: callers may send some before they are told
        self.free = size
        self.loose = 0  # bytes that came of messages which wait for room
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

    __slots__ = ("_loose", "_room", "closed", "granted", "held", "size")

    def __init__(self, room: Room, size: int, granted: Callable[[], None]) -> None:
        self._room = room
        self.size = size
        self.granted = granted
        self.held = False
        self.closed = False
        self._loose = 0

    def wait_with(self, size: int) -> bool:
        """Note bytes that came before there is room. False when too many wait in this way."""
        self._loose += size
        self._room.loose += size
        return self._room.loose <= self._room.waiting

    def _hold(self) -> None:
        self.held = True
        self._room.loose -= self._loose
        self._loose = 0

    def close(self) -> None:
        """Give back what was reserved, or stop waiting."""
        if not self.closed:
            self.closed = True
            self._room.loose -= self._loose
            if self.held:
                self._room._give_back(self.size)
