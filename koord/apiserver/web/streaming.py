"""Watch responses: a stream of JSON lines that lives until its time is up, the client goes, or the server stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from koord import seams
from koord.apiserver.errors import StatusError, expired, field_forbidden, invalid, too_large_resource_version
from koord.apiserver.rest.read import ListQuery
from koord.apiserver.watch import Encode, Watcher, frame
from koord.apiserver.web.render import PLAIN, Shape

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.store import Entry
    from koord.apiserver.web.render import Renderer

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

    def __init__(self, core: Core, render: Renderer) -> None:
        self.core = core
        self.render = render
        self._open: set[Watcher] = set()
        self._stopping = False

    def stop(self) -> None:
        """End all watches."""
        self._stopping = True
        for watcher in list(self._open):
            watcher.close()

    def _encoder(self, resource: Resource, wanted: Shape) -> Encode | None:
        if wanted is PLAIN or not wanted.as_:
            return None
        return lambda entry: self.render.body(resource, entry, wanted)

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
            encode=self._encoder(resource, wanted),
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
