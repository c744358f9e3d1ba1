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
from koord.apiserver.web.render import Shape, Stream, warn

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.read import ListQuery, Match

# What all watchers together may let pile up. Beyond it those with most are cut off, as kube-apiserver does with slow watchers: the stream
# ends, and the client goes on from the last version that it saw.
MAX_BACKLOG_BYTES = 256 * 1024 * 1024
PIECE = 128 * 1024  # bytes that are on their way to a client at a time
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def frame(type_: str, shown: bytes) -> bytes:
    """One line of the watch stream."""
    return b'{"type":"' + type_.encode() + b'","object":' + shown + b"}\n"


@dataclass(slots=True, eq=False)
class Watcher:
    """One open watch. `take()` gives the bytes to send; `wake` is set when there are some.

    What was there before the watch began is not kept for it: the state is read from the bucket, and past events from the history, as fast
    as the client takes them.
    """

    bucket: Bucket
    resource: Resource
    _: KW_ONLY
    namespace: str | None
    match: Match | None = None
    # what makes another shape of what it is shown
    shaped: Stream | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    # the stream ends behind what is on its way: others need the memory, or the history does not reach back any more
    overrun: bool = False
    # closes the connection, whatever is on its way
    hang_up: Callable[[], None] | None = None
    # events at or below this version are not for this watcher
    start: int = 0
    # bytes that are kept for it: those that wait, and those on their way (the last that were taken)
    waiting: int = 0
    sending: int = 0
    # when it last took something, as the backlog of the server counts
    turn: int = 0
    _backlog: deque[bytes] = field(default_factory=deque)
    # the last key of the state that it has been shown, while it is shown the state
    _shown: str | None = None
    _mark_end: bool = False
    # the last version of the history that it has been told, while it is told the history
    _told: int | None = None

    # -- life ------------------------------------------------------------------------------------------------------------------

    def open_at(self, rv: int) -> bool:
        """Follow from just after `rv`; False when the events since then are partly forgotten."""
        if rv < self.bucket.compacted:
            return False
        self.start = self._told = rv
        self._follow()
        return True

    def open_with_state(self, *, mark_end: bool = False) -> None:
        """Show the present state as ADDED events, with a bookmark behind it if its end is to be marked, then follow."""
        self.start = self.bucket.store.rv
        self._shown, self._mark_end = "", mark_end
        self._follow()

    def _follow(self) -> None:
        self.bucket.store.backlog.holders.add(self)
        self.bucket.listeners.append(self.notify)

    def close(self) -> None:
        """Stop following."""
        self._leave()
        self._hold(waiting=0, sending=0)
        self.bucket.store.backlog.holders.discard(self)
        self.wake.set()

    def cut(self) -> None:
        """Give up what waits; the stream ends behind what is on its way."""
        self._leave()
        self._hold(waiting=0, sending=self.sending)
        self.overrun = True
        self.wake.set()

    def abort(self) -> None:
        """Give up what is on its way, too."""
        if self.hang_up is not None:
            self.hang_up()
        self.overrun = True
        self.close()

    def _leave(self) -> None:
        self._backlog.clear()
        if self.notify in self.bucket.listeners:
            self.bucket.listeners.remove(self.notify)

    def _hold(self, *, waiting: int, sending: int) -> None:
        self.bucket.store.backlog.total += waiting + sending - self.waiting - self.sending
        self.waiting, self.sending = waiting, sending

    # -- events ----------------------------------------------------------------------------------------------------------------

    def notify(self, event: Event) -> None:
        """Take one event of the bucket, if it is for this watcher. One that fails is cut: its client must not miss what it asks for."""
        # what the history or the state will show is not kept besides
        if event.rv > self.start and self._told is None and not (self._shown is not None and event.entry.key > self._shown):
            try:
                self._consider(event)
            except Exception:
                self.cut()
                raise

    def _consider(self, event: Event) -> None:
        entry = event.entry
        if self.namespace is not None and entry.namespace != self.namespace:
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
        if self.shaped is not None:
            self._push(frame(type_, self.shaped.object(entry)))
            return
        key = (type_, self.resource.head)
        line = event.cache.get(key)
        if line is None:
            line = frame(type_, self.resource.raw(entry))
            self.bucket.remember(event, key, line)
        self._push(line)

    def _body(self, entry: Entry) -> bytes:
        return self.shaped.object(entry) if self.shaped is not None else self.resource.raw(entry)

    def bookmark(self, rv: int, *, initial_end: bool = False) -> None:
        """Tell how far this watch has come; while it has not been told all, that would not be true, and nothing is said."""
        if self._shown is not None or self._told is not None:
            return
        meta: dict[str, Any] = {"resourceVersion": str(rv), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        mark = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        self._push(frame("BOOKMARK", self.shaped.bookmark(meta) if self.shaped is not None else orjson.dumps(mark)))

    def _push(self, line: bytes) -> None:
        if self.overrun:
            return
        backlog, size = self.bucket.store.backlog, len(line)
        self._backlog.append(line)
        self.waiting += size
        backlog.total += size
        if not self.wake.is_set():
            self.wake.set()
        if backlog.total > MAX_BACKLOG_BYTES:
            backlog.shrink(MAX_BACKLOG_BYTES)

    # -- sending ---------------------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """The next bytes to send, about PIECE of them, in order. Those of the last call count as sent."""
        self.wake.clear()
        backlog = self.bucket.store.backlog
        backlog.turn += 1
        self.turn = backlog.turn
        self._hold(waiting=self.waiting, sending=0)
        if not self._backlog and not self.overrun:
            self._read_on()
        pieces: list[bytes] = []
        size = 0
        while self._backlog and size < PIECE:
            pieces.append(self._backlog.popleft())
            size += len(pieces[-1])
        self._hold(waiting=self.waiting - size, sending=size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_on(self) -> None:
        """More of what was there before this watch, if it has not been told all of it."""
        if self._told is not None:
            self._read_history(self._told)
        elif self._shown is not None:
            self._read_state(self._shown)

    def _read_history(self, told: int) -> None:
        events = self.bucket.since(told)
        if events is None:  # it was slower than the history is long
            self.overrun = True
            return
        for event in events:
            self._consider(event)
            self._told = event.rv
            if self.overrun or self.waiting >= PIECE:
                return
        self.start, self._told = max(self.start, self.bucket.store.rv), None

    def _read_state(self, shown: str) -> None:
        for entry in self.bucket.select(self.namespace, shown):
            self._shown = entry.key
            if self.match is None or self.match(entry.obj):
                self._push(frame(ADDED, self._body(entry)))
                if self.overrun or self.waiting >= PIECE:
                    return
        self._shown = None
        if self._mark_end:
            self.bookmark(self.bucket.store.rv, initial_end=True)


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
        asked = query.send_initial_events
        if asked is not None and wanted > store.rv:
            return too_large_resource_version(wanted, store.rv)
        if asked or (asked is None and not wanted):
            watcher.open_with_state(mark_end=bool(asked and query.allow_bookmarks))
        elif not watcher.open_at(wanted or store.rv):
            return expired(f"too old resource version: {wanted} ({bucket.compacted + 1})")
        return None

    async def serve(
        self, request: web.BaseRequest, resource: Resource, query: ListQuery, wanted: Shape, given: dict[str, str]
    ) -> web.StreamResponse:
        """Stream a watch. `given` is the query as it came."""
        check_watch(query)
        watcher = Watcher(
            self.core.store.bucket(resource.bucket),
            resource,
            namespace=query.namespace,
            match=query.match,
            shaped=Stream(resource, wanted, given) if wanted.as_ else None,
        )
        error = self._start(watcher, query)
        response = web.StreamResponse(headers=_HEADERS)
        warn(response, [resource.deprecation])
        response.enable_chunked_encoding()
        if request.transport is not None:
            # drained means that the kernel has taken it: until then it counts
            request.transport.set_write_buffer_limits(high=1, low=0)
            watcher.hang_up = request.transport.abort
        self._open.add(watcher)
        try:
            await response.prepare(request)
            if error is not None:
                await response.write(frame("ERROR", orjson.dumps(error.status())))
                await response.write_eof()
                return response
            await self._pump(request, response, watcher, query)
        finally:
            self._open.discard(watcher)
            watcher.close()
        await response.write_eof()
        return response

    async def _pump(self, request: web.BaseRequest, response: web.StreamResponse, watcher: Watcher, query: ListQuery) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + (query.timeout_seconds or seams.rng().randint(_MIN_LIFE, 2 * _MIN_LIFE))
        every = self.core.config.bookmark_seconds
        mark = min(loop.time() + every, max(loop.time(), end - _BOOKMARK_BEFORE_END)) if query.allow_bookmarks else end
        timer: asyncio.TimerHandle | None = None
        try:
            while not self._stopping:
                chunk = watcher.take()
                if chunk:
                    await response.write(chunk)
                    await request.writer.drain()
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
                if timer is None or timer.when() < min(end, mark):  # most events come between two bookmarks
                    timer = loop.call_at(min(end, mark), watcher.wake.set)
                await watcher.wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
