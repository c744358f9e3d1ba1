"""Events that happen while pods are in flight, kept so that a pod that fails can look whether one of them helps it.

What is kept is bounded by objects times kinds of change, not by time: events of one object and kind are merged, and of an event only that
is kept which hints read (`Subscription.keep`). Of a kind whose objects come and go the oldest are folded into one, that something happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from roles.scheduler.framework.events import Action, ClusterEvent

MOST = 8192  # objects of a kind of change
_FOLDED = object()


class Kept:
    """The events of one object and kind: how it was before the first and before the last one, and the last one. `first` and `last` are
    their positions."""

    __slots__ = ("before", "event", "first", "last")

    def __init__(self, event: ClusterEvent, position: int) -> None:
        self.before = event.old
        self.event = event
        self.first = self.last = position

    def follow(self, event: ClusterEvent, position: int) -> None:
        """One more."""
        self.event = event
        self.last = position

    def helps(self, since: int, test: Callable[[ClusterEvent, bool], bool]) -> bool:
        """Whether what happened after a position passes a test: all changes together, or the last one. Where some happened before, nobody
        knows how the object was then: hints (the test's second argument) are not asked."""
        if self.first <= since:
            return test(self.event, False)
        return test(self.event, True) or (self.before is not self.event.old and test(self.event._replace(old=self.before), True))


class EventLog:
    """Keeps events as long as a pod that was in flight when they happened still is. Positions count events."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Action], OrderedDict[Hashable, Kept]] = {}
        self._open: dict[str, int] = {}
        self.position = 0

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    @property
    def opened(self) -> bool:
        """Whether any pod is in flight."""
        return bool(self._open)

    def is_open(self, uid: str) -> bool:
        """Whether events are kept for a pod."""
        return uid in self._open

    def open(self, uid: str) -> int:
        """A pod goes in flight; returns the position after which events concern it."""
        self._open[uid] = self.position
        return self.position

    def close(self, uid: str) -> None:
        """A pod needs no events any more; those that nobody needs are dropped."""
        position = self._open.pop(uid, None)
        if position is None or not self._kept:
            return
        # Positions rise in the order pods went in flight, so the first one still open needs most.
        needed = next(iter(self._open.values()), self.position)
        if needed <= position:
            return
        for kind, objects in list(self._kept.items()):
            while objects and next(iter(objects.values())).last <= needed:
                objects.popitem(last=False)
            if not objects:
                del self._kept[kind]

    def append(self, event: ClusterEvent) -> None:
        """Record an event."""
        if not self._open:
            return
        self.position += 1
        objects = self._kept.setdefault((event.resource, event.action), OrderedDict())
        key = (object_of(event), event.job)
        known = objects.get(key)
        if known is None:
            objects[key] = Kept(event, self.position)
            if len(objects) > MOST:
                self._fold(objects)
        else:
            known.follow(event, self.position)
            objects.move_to_end(key)

    def _fold(self, objects: OrderedDict[Hashable, Kept]) -> None:
        """Nobody knows any more what the objects were that changed first: hints are not asked about them."""
        folded = objects.pop((_FOLDED, None), None)
        _, oldest = objects.popitem(last=False)
        if folded is None:
            folded = Kept(oldest.event._replace(old=None, new=None, job=None), -1)
        folded.last = oldest.last
        objects[_FOLDED, None] = folded
        objects.move_to_end((_FOLDED, None), last=False)

    def since(self, position: int, wanted: Callable[[ClusterEvent], bool]) -> Iterator[Kept]:
        """What happened after a position, the latest first, of the kinds that are wanted."""
        for objects in self._kept.values():
            latest = next(reversed(objects.values()))
            if latest.last > position and wanted(latest.event):
                for kept in reversed(objects.values()):
                    if kept.last <= position:
                        break
                    yield kept


def object_of(event: ClusterEvent) -> Hashable:
    """What tells the object of an event from others of its kind."""
    found: Any = event.new if event.new is not None else event.old
    for name in ("uid", "name"):  # pods, views of nodes
        value = getattr(found, name, None)
        if isinstance(value, str) and value:
            return value
    if isinstance(found, Mapping):
        named = found.get("metadata") or {}
        return named.get("namespace", ""), named.get("name", "")
    meta = getattr(found, "metadata", None)
    if meta is not None:
        return meta.namespace, meta.name
    return found if found is None or isinstance(found, str) else id(found)
