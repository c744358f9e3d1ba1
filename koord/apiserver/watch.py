"""Watches: what one watcher sees of the events of a bucket, with selector transitions, initial state and bookmarks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from koord import seams
from koord.apiserver.errors import StatusError, expired, field_forbidden, invalid, too_large_resource_version
from koord.apiserver.store import ADDED, DELETED, MODIFIED, Bucket, Entry, Event
from koord.apiserver.web.render import Shape, body

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.read import ListQuery

Match = Callable[[dict[str, Any]], bool]
# (entry, resource) -> the bytes of the "object" member
Encode = Callable[[Entry], bytes]

# A watcher that lets this much pile up is cut off, as kube-apiserver does with slow watchers; it can list again.
MAX_BACKLOG_BYTES = 256 * 1024 * 1024
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def frame(type_: str, shown: bytes) -> bytes:
    """One line of the watch stream."""
    return b'{"type":"' + type_.encode() + b'","object":' + shown + b"}\n"


@dataclass(slots=True, eq=False)
class Watcher:
    """One open watch. `take()` gives the bytes to send; `wake` is set when there are some."""

    bucket: Bucket
    resource: Resource
    _: KW_ONLY
    namespace: str | None
    name: str | None = None
    match: Match | None = None
    encode: Encode | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    overrun: bool = False
    # events at or below this version are not for this watcher
    start: int = 0
    _backlog: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0

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
            line = event.cache[key] = frame(type_, self.resource.raw(entry))
        self._push(line)

    def _body(self, entry: Entry) -> bytes:
        return self.encode(entry) if self.encode is not None else self.resource.raw(entry)

    def bookmark(self, rv: int, *, initial_end: bool = False) -> None:
        """Tell how far this watch has come."""
        meta: dict[str, Any] = {"resourceVersion": str(rv), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        mark = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        self._push(frame("BOOKMARK", orjson.dumps(mark)))

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


# seconds: kube-apiserver ends watches without a time-out of their own after 30 to 60 minutes
_MIN_LIFE = 1800
_BOOKMARK_BEFORE_END = 2.0
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}


def _forbidden(field: str, text: str) -> StatusError:
    return invalid("ListOptions", "meta.k8s.io", "", [field_forbidden(field, text)])


def check_watch(query: ListQuery) -> None:
    """Combinations of options that a watch refuses."""
    if query.send_initial_events is not None:
        if query.rv_match != "NotOlderThan":
            raise _forbidden("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    elif query.rv_match:
        raise _forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    if query.continue_:
        raise _forbidden("continue", "continue is forbidden for watch")


class WatchStreams:
    """All open watch responses."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._open: set[Watcher] = set()
        self._stopping = False

    def stop(self) -> None:
        """End all watches."""
        self._stopping = True
        for watcher in list(self._open):
            watcher.close()

    def _start(self, watcher: Watcher, query: ListQuery) -> StatusError | None:
        """Open a watcher where the query says; the error goes into the stream, as an event."""
        store, bucket = self.core.store, watcher.bucket
        wanted = int(query.rv or 0)
        initial = query.send_initial_events
        if initial is None:
            initial = wanted == 0
        if query.send_initial_events is not None and wanted > store.rv:
            return too_large_resource_version(wanted, store.rv)
        if initial:
            match = query.match
            entries: list[Entry] = [e for e in bucket.select(query.namespace) if match is None or match(e.obj)]
            watcher.open_with_state(entries, store.rv)
            if query.send_initial_events and query.allow_bookmarks:
                watcher.bookmark(store.rv, initial_end=True)
            return None
        if not watcher.open_at(wanted or store.rv):
            return expired(f"too old resource version: {wanted} ({bucket.compacted + 1})")
        return None

    async def serve(self, request: web.BaseRequest, resource: Resource, query: ListQuery, wanted: Shape) -> web.StreamResponse:
        """Stream a watch."""
        check_watch(query)
        watcher = Watcher(
            self.core.store.bucket(resource.bucket),
            resource,
            namespace=query.namespace,
            match=query.match,
            encode=(lambda entry: body(resource, entry, wanted)) if wanted.as_ else None,
        )
        error = self._start(watcher, query)
        response = web.StreamResponse(headers=_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        if error is not None:
            await response.write(frame("ERROR", orjson.dumps(error.status())))
            await response.write_eof()
            return response
        self._open.add(watcher)
        try:
            await self._pump(response, watcher, query)
        finally:
            self._open.discard(watcher)
            watcher.close()
        await response.write_eof()
        return response

    async def _pump(self, response: web.StreamResponse, watcher: Watcher, query: ListQuery) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + (query.timeout_seconds or seams.rng().randint(_MIN_LIFE, 2 * _MIN_LIFE))
        every = self.core.config.bookmark_seconds
        mark = min(loop.time() + every, max(loop.time(), end - _BOOKMARK_BEFORE_END)) if query.allow_bookmarks else end
        while not self._stopping:
            chunk = watcher.take()
            if chunk:
                await response.write(chunk)
                continue
            if watcher.overrun:
                return
            moment = loop.time()
            if moment >= end:
                return
            if moment >= mark:
                watcher.bookmark(self.core.store.rv)
                mark = end if mark >= end - _BOOKMARK_BEFORE_END else min(moment + every, end - _BOOKMARK_BEFORE_END)
                continue
            try:
                async with asyncio.timeout_at(min(end, mark)):
                    await watcher.wake.wait()
            except TimeoutError:
                continue
