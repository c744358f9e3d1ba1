"""Watches: what one watcher sees of the events of a bucket, with selector transitions, initial state and bookmarks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from koord.apiserver.store import ADDED, DELETED, MODIFIED, Bucket, Entry, Event
from koord.apiserver.wire import raw_of

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Match = Callable[[dict[str, Any]], bool]
# (entry, resource) -> the bytes of the "object" member
Encode = Callable[[Entry], bytes]

# A watcher that lets this much pile up is cut off, as kube-apiserver does with slow watchers; it can list again.
MAX_BACKLOG_BYTES = 256 * 1024 * 1024
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def frame(type_: str, body: bytes) -> bytes:
    """One line of the watch stream."""
    return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"


class Watcher:
    """One open watch. `take()` gives the bytes to send; `wake` is set when there are some."""

    __slots__ = ("_backlog", "_bytes", "bucket", "encode", "match", "name", "namespace", "overrun", "resource", "start", "wake")

    def __init__(
        self,
        bucket: Bucket,
        resource: Resource,
        *,
        namespace: str | None,
        name: str | None = None,
        match: Match | None = None,
        encode: Encode | None = None,
    ) -> None:
        self.bucket = bucket
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.match = match
        self.encode = encode
        self.wake = asyncio.Event()
        self.overrun = False
        # events at or below this version are not for this watcher
        self.start = 0
        self._backlog: deque[bytes] = deque()
        self._bytes = 0

    # -- life ------------------------------------------------------------------------------------------------------------------

    def open_at(self, rv: int) -> bool:
        """Follow from just after `rv`; False when the events since then are partly forgotten."""
        events = self.bucket.since(rv)
        if events is None:
            return False
        self.start = rv
        for event in events:
            self.offer(event)
        self.bucket.listeners.append(self.offer)
        return True

    def open_with_state(self, entries: list[Entry], rv: int) -> None:
        """Show the present state (`entries`, as of `rv`) as ADDED events, then follow."""
        for entry in entries:
            self._push(frame(ADDED, self._body(entry)))
        self.start = rv
        self.bucket.listeners.append(self.offer)

    def close(self) -> None:
        """Stop following."""
        if self.offer in self.bucket.listeners:
            self.bucket.listeners.remove(self.offer)
        self.wake.set()

    # -- events ----------------------------------------------------------------------------------------------------------------

    def offer(self, event: Event) -> None:
        """Take one event of the bucket, if it is for this watcher."""
        if event.rv <= self.start:
            return
        entry = event.entry
        if self.namespace is not None and entry.namespace != self.namespace:
            return
        if self.name is not None and entry.name != self.name:
            return
        match = self.match
        if match is None:
            self._send(event.type, event, entry)
            return
        before = event.prev is not None and match(event.prev.obj)
        after = event.type != DELETED and match(entry.obj)
        if after:
            self._send(MODIFIED if before else ADDED, event, entry)
        elif before:
            # leaving the selection looks like a deletion: the last matching content with the version of this event
            assert event.prev is not None
            gone = event.prev.copy()
            gone["metadata"]["resourceVersion"] = str(event.rv)
            self._push(frame(DELETED, self._body(Entry(entry.key, entry.namespace, entry.name, gone, event.rv, orjson.dumps(gone)))))

    def _send(self, type_: str, event: Event, entry: Entry) -> None:
        if self.encode is not None:
            self._push(frame(type_, self.encode(entry)))
            return
        key = (type_, self.resource.head)
        line = event.cache.get(key)
        if line is None:
            line = event.cache[key] = frame(type_, raw_of(entry, self.resource))
        self._push(line)

    def _body(self, entry: Entry) -> bytes:
        return self.encode(entry) if self.encode is not None else raw_of(entry, self.resource)

    def bookmark(self, rv: int, *, initial_end: bool = False) -> None:
        """Tell how far this watch has come."""
        meta: dict[str, Any] = {"resourceVersion": str(rv), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        body = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        self._push(frame("BOOKMARK", orjson.dumps(body)))

    def _push(self, line: bytes) -> None:
        self._backlog.append(line)
        self._bytes += len(line)
        if self._bytes > MAX_BACKLOG_BYTES:
            self.overrun = True
        if not self.wake.is_set():
            self.wake.set()

    def take(self) -> bytes:
        """All bytes that wait, in order."""
        self.wake.clear()
        backlog = self._backlog
        if not backlog:
            return b""
        out = backlog[0] if len(backlog) == 1 else b"".join(backlog)
        backlog.clear()
        self._bytes = 0
        return out
