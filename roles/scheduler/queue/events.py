"""Events that happen while pods are in flight, kept so that a pod that fails can look whether one of them helps it."""

from __future__ import annotations

from collections import deque

from roles.scheduler.framework.events import ClusterEvent


class EventLog:
    """Keeps events as long as a pod that was in flight when they happened still is."""

    def __init__(self) -> None:
        self._events: deque[tuple[ClusterEvent, str]] = deque()
        self._first = 0
        self._open: dict[str, int] = {}

    @property
    def opened(self) -> bool:
        """Whether any pod is in flight."""
        return bool(self._open)

    def open(self, uid: str) -> int:
        """A pod goes in flight; returns the position from which events concern it."""
        position = self._first + len(self._events)
        self._open[uid] = position
        return position

    def close(self, uid: str) -> None:
        """A pod is in flight no more; events that nobody needs are dropped."""
        self._open.pop(uid, None)
        if not self._events:
            return
        # Positions rise in the order pods went in flight, so the first one still open needs most.
        needed = next(iter(self._open.values()), self._first + len(self._events))
        while self._first < needed and self._events:
            self._events.popleft()
            self._first += 1

    def append(self, event: ClusterEvent, owner: str = "") -> None:
        """Record an event; `owner` is the UID of the only pod it concerns, "" for all."""
        if self._open:
            self._events.append((event, owner))

    def since(self, position: int) -> list[tuple[ClusterEvent, str]]:
        """Events from a position on."""
        start = max(0, position - self._first)
        return [self._events[index] for index in range(start, len(self._events))]
