"""The in-memory store: one global resource version, a bucket per stored resource, and a history for watches.

Objects are dicts that nobody changes once stored, next to their serialised bytes: a list joins the bytes, a watch event is
serialised once for all watchers, and a copy for an update is `orjson.loads(entry.raw)`, the quickest deep copy there is.
All methods are synchronous and run on one event loop, so each is atomic.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter
from typing import Any, Protocol

import orjson

from koord.apiserver.backlog import Backlog

log = logging.getLogger(__name__)

Obj = dict[str, Any]

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
# What is remembered for watches: so many events of each resource, and so many bytes of all: their objects, before and after, and
# the lines that were made of them.
HISTORY_EVENTS = 16_384
HISTORY_BYTES = 192 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Entry:
    """One version of one object. `obj` must not be changed; an old version keeps only its bytes."""

    key: str
    namespace: str
    name: str
    _obj: Obj | None
    rv: int
    raw: bytes

    @property
    def obj(self) -> Obj:
        return self.copy() if self._obj is None else self._obj

    def copy(self) -> Obj:
        """A deep copy that the caller may change."""
        decoded: Obj = orjson.loads(self.raw)
        return decoded

    def forget(self) -> None:
        """Drop the dict of a superseded version: the history then costs its bytes only."""
        self._obj = None


@dataclass(slots=True, eq=False)
class Event:
    """One write. `entry` is the new state (for DELETED the last state with the version of the deletion), `prev` the one before."""

    type: str
    entry: Entry
    prev: Entry | None
    rv: int
    # where it was written: what an object says of its version may be served by nobody
    bucket: str
    # (event type, API version prefix) -> the line on the wire, shared by all watchers (see `Bucket.remember`)
    cache: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    # what it holds, in bytes
    size: int = 0


Listener = Callable[[Event], None]


class Keeper(Protocol):
    """What has every write before anybody hears of it. An exception means that nothing was kept."""

    # why the last write was not kept; "" when it was
    failure: str

    def put(self, bucket: str, key: str, version: int, body: bytes) -> None: ...

    def remove(self, bucket: str, key: str, version: int) -> None: ...


def make_key(namespace: str, name: str) -> str:
    """As kube-apiserver has it in etcd, so that lists have its order: what begins `a-b/` comes before what begins `a/`."""
    return f"{namespace}/{name}"


class Bucket:
    """All objects of one stored resource, with the events that led here."""

    __slots__ = ("_order", "compacted", "entries", "history", "history_bytes", "listeners", "name", "store")

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.entries: dict[str, Entry] = {}
        self.history: deque[Event] = deque()
        self.history_bytes = 0
        # events at or below this version are gone
        self.compacted = 0
        self.listeners: list[Listener] = []
        self._order: list[str] | None = None

    def get(self, namespace: str, name: str) -> Entry | None:
        return self.entries.get(make_key(namespace, name))

    def ordered(self) -> list[str]:
        """Keys in list order."""
        order = self._order
        if order is None:
            order = self._order = sorted(self.entries)
        return order

    def select(self, namespace: str | None, start_after: str = "") -> Iterator[Entry]:
        """Entries in list order, of one namespace or of all (None), after the given key."""
        order = self.ordered()
        prefix = "" if namespace is None else make_key(namespace, "")
        first = bisect_left(order, max(prefix, start_after + "\0") if start_after else prefix)
        for i in range(first, len(order)):
            if not order[i].startswith(prefix):
                return
            yield self.entries[order[i]]

    def keys(self, namespace: str) -> list[str]:
        """Keys of a namespace in list order, as they are now."""
        order = self.ordered()
        return order[bisect_left(order, make_key(namespace, "")) : bisect_left(order, namespace + "0")]  # which comes next to a slash

    def put(self, namespace: str, name: str, obj: Obj) -> Entry:
        """Create or replace. Stamps the new resource version into `obj`, which belongs to the store from now on."""
        store = self.store
        rv = store.rv + 1
        obj["metadata"]["resourceVersion"] = str(rv)
        key = make_key(namespace, name)
        prev = self.entries.get(key)
        entry = Entry(key, namespace, name, obj, rv, orjson.dumps(obj))
        if store.disk is not None:
            store.disk.put(self.name, key, rv, entry.raw)
        store.rv = rv
        self.entries[key] = entry
        if prev is None:
            self._order = None
        self._emit(Event(ADDED if prev is None else MODIFIED, entry, prev, rv, self.name))
        return entry

    def reshape(self, entry: Entry, obj: Obj) -> None:
        """Show a stored object in another form. That is no write: it keeps its version, on disk it stays as it is, and nobody is told."""
        self.entries[entry.key] = Entry(entry.key, entry.namespace, entry.name, obj, entry.rv, orjson.dumps(obj))
        entry.forget()

    def remove(self, namespace: str, name: str) -> Entry | None:
        """Remove an object; returns its last state, stamped with the version of the deletion."""
        key = make_key(namespace, name)
        prev = self.entries.get(key)
        if prev is None:
            return None
        store = self.store
        rv = store.rv + 1
        if store.disk is not None:
            store.disk.remove(self.name, key, rv)
        store.rv = rv
        del self.entries[key]
        obj = prev.copy()
        obj["metadata"]["resourceVersion"] = str(rv)
        entry = Entry(key, namespace, name, obj, rv, orjson.dumps(obj))
        self._order = None
        self._emit(Event(DELETED, entry, prev, rv, self.name))
        return entry

    def _emit(self, event: Event) -> None:
        self.history.append(event)
        self._charge(event, len(event.entry.raw) + (len(event.prev.raw) if event.prev is not None else 0))
        self.store.tell(self, event)
        if event.prev is not None:
            event.prev.forget()
        if event.type == DELETED:
            event.entry.forget()
        if len(self.history) > HISTORY_EVENTS:
            self.drop_oldest()
        self.store.shrink_history()

    def remember(self, event: Event, key: tuple[str, bytes], line: bytes) -> None:
        """Keep a line of an event for other watchers, as long as the event itself is kept."""
        if event.rv > self.compacted:
            event.cache[key] = line
            self._charge(event, len(line))
            self.store.shrink_history()

    def _charge(self, event: Event, size: int) -> None:
        event.size += size
        self.history_bytes += size
        self.store.history_bytes += size

    def drop_oldest(self) -> None:
        """Forget the oldest event, with all that was made of it."""
        event = self.history.popleft()
        self.history_bytes -= event.size
        self.store.history_bytes -= event.size
        event.cache.clear()
        self.compacted = event.rv

    def compact(self, rv: int) -> None:
        """Forget the events up to and including `rv`: watches from before get 410."""
        while self.history and self.history[0].rv <= rv:
            self.drop_oldest()
        self.compacted = max(self.compacted, rv)

    def since(self, rv: int) -> list[Event] | None:
        """Events after `rv`, oldest first; None when some of them are already forgotten."""
        if rv < self.compacted:
            return None
        out = list(takewhile(lambda event: event.rv > rv, reversed(self.history)))
        out.reverse()
        return out

    def at(self, rv: int) -> list[Entry] | None:
        """The state as of `rv`, in list order; None when that is compacted away."""
        events = self.since(rv)
        if events is None:
            return None
        if not events:
            return list(self.select(None))
        state = dict(self.entries)
        for event in reversed(events):
            if event.prev is None:
                state.pop(event.entry.key, None)
            else:
                state[event.entry.key] = event.prev
        return [state[key] for key in sorted(state)]


class Store:
    """The buckets and the version counter they share."""

    def __init__(self, rv: int = 1) -> None:
        self.rv = rv
        # versions up to here were given out by an earlier process
        self.born = rv if rv > 1 else 0
        self.buckets: dict[str, Bucket] = {}
        # what the histories of all buckets hold
        self.history_bytes = 0
        # what all watchers have not been sent yet
        self.backlog = Backlog()
        # called with every event of every bucket, in order
        self.listeners: list[Listener] = []
        # what keeps each write before anybody hears of it, if anything does
        self.disk: Keeper | None = None
        self._untold: deque[tuple[Bucket, Event]] = deque()
        self._delivering = False

    def tell(self, bucket: Bucket, event: Event) -> None:
        """Tell the listeners. What one of them writes meanwhile is told after this event, so that all hear the same order.

        The write is done whatever a listener makes of it: one that fails is logged, and keeps nobody else from hearing.
        """
        self._untold.append((bucket, event))
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._untold:
                where, what = self._untold.popleft()
                for listener in (*where.listeners, *self.listeners):
                    try:
                        listener(what)
                    except Exception:
                        log.exception("a listener failed on %s %s of %s", what.type, what.entry.name, where.name)
        finally:
            self._delivering = False
            self._untold.clear()

    def shrink_history(self) -> None:
        """Keep to the bound: the resource that takes most gives, so that what changes seldom can be followed from far back."""
        while self.history_bytes > HISTORY_BYTES:
            max(self.buckets.values(), key=attrgetter("history_bytes")).drop_oldest()

    def bucket(self, name: str) -> Bucket:
        found = self.buckets.get(name)
        if found is None:
            found = self.buckets[name] = Bucket(self, name)
            # nothing is known of the time before this process, where it started from a snapshot
            found.compacted = self.born
        return found

    def compact(self, rv: int | None = None) -> None:
        """Forget the watch history up to `rv` (default: all of it), as etcd's compaction does."""
        limit = self.rv if rv is None else rv
        for bucket in self.buckets.values():
            bucket.compact(limit)
