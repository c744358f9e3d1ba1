"""List, then watch, for ever: one collection of the API server mirrored into any number of decoded stores."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from koord import seams
from koord.api.kinds import Kind
from koord.kube import errors
from koord.kube.client import PAGE, WATCH_TIMEOUT, Client, Lines
from koord.kube.ratelimit import Backoff
from koord.kube.store import Informer, uid_of
from koord.kube.wire import (
    BrokenStream,
    Event,
    Meta,
    WentBack,
    decode_head,
    ends_initial,
    must_list,
    older,
    read_event,
    read_list,
    too_large,
)

log = logging.getLogger("koord.kube.informers")

BACKOFF_FIRST = 0.2  # seconds
BACKOFF_LIMIT = 15.0  # seconds
RELIST_SPREAD = 2.0  # seconds over which relists are spread: an API server that comes back tells everybody at once that they are too old
MISSING_KIND_PERIOD = 30.0  # seconds between looks for a kind that the server does not serve
STEADY = 5.0  # seconds that a watch lasts to count as working, if nothing came through it
TURN = 0.005  # seconds of handling objects before others get the event loop
QUIET = (16.0, 22.0)  # seconds of silence, at random between, after which a watch is asked whether it is alive
WITNESSES = 20  # objects by which a server that comes back is known to be the same
SLICE = 2000  # objects that are looked through at a time
NEWEST = 5  # and so many of the last that were written before, of which one has to be there unchanged
ASTRAY = (1.0, 60.0)  # seconds before the next list, the first time and at most, where versions go back again and again
LOOK = 0.1  # seconds between two looks at whether a doubt was answered
DOUBT_RETRY = 1.0  # seconds between tries while somebody waits for the answer, whatever the pause would be
CATCH_UP = 1  # seconds that the second watch lasts, by which it is asked
CATCH_UP_LIMIT = 5.0  # seconds that its answer may take
UNVERIFIED = (errors.TooManyRequests, errors.ServerError, errors.Unauthorized, errors.Unreachable)  # that the question was not answered
CATCH_UP_LOOKS = 5  # so often is looked whether the watch itself tells what the answer told


class Reflector:
    """Mirrors one kind (in one namespace, with one selection) into its stores. `run` is its life.

    A watch that is silent is asked on another connection what it should have told: a connection that lives but carries nothing is
    known within half a minute. `age` says how old the cache is.
    """

    def __init__(
        self, client: Client, kind: Kind, namespace: str | None, label_selector: str, field_selector: str, *, optional: bool
    ) -> None:
        self.client = client
        self.kind = kind
        self.namespace = namespace
        self.label_selector = label_selector
        self.field_selector = field_selector
        self.optional = optional
        self.label = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        self.stores: list[Informer[Any]] = []
        self.error: str = ""
        self.events = 0
        self.lists = 0
        self.watches = 0
        self.stalls = 0
        self._versions: dict[str, str] = {}
        self._version = ""
        self._was_away = self._was_gone = False
        self._list_needed = True
        self._consistent = False  # the next list has to be of the database: what caches say may be older than what is known
        self._streams = True
        self._initial: set[str] | None = None
        self._batches = 0
        self._told_at = self._true_at = self._verified_at = self._list_began = seams.monotonic()
        self._backoff = Backoff(BACKOFF_FIRST, BACKOFF_LIMIT)
        self._astray = Backoff(*ASTRAY)
        self._doubt: asyncio.Future[None] | None = None  # somebody wants to know whether a watch that follows is alive
        self._rest: asyncio.Future[None] | None = None  # a pause before the next try, which may be cut short

    @property
    def age(self) -> float:
        """Seconds since the cache was last known to be current."""
        return seams.monotonic() - self._true_at

    async def run(self) -> None:
        """List and watch until cancelled; failures are logged once a kind of failure and retried with growing pauses."""
        self._list_needed = True
        while True:
            try:
                if not self._list_needed and self._was_away:
                    self._list_needed = await self._went_back()
                self._was_away = False
                stream = self._list_needed and self._streams and await self.client.streams_lists()
                if self._list_needed and not stream:
                    await self._list()
                began = seams.monotonic()
                await self._watch(stream=stream)
                if seams.monotonic() - began < STEADY:  # a server that ends watches at once must not be hammered
                    await self._pause_for(self._backoff.next())
                else:
                    self._astray.reset()
                    self._recovered()
            except errors.ApiError as error:
                if self._initial is not None:  # a list that cannot be streamed is read in pages
                    self._initial, self._streams = None, isinstance(error, (errors.Unreachable, errors.NotFound))
                self._list_needed = self._list_needed or must_list(error)
                # behind a balancer it is the balancer that says so
                self._was_away = self._was_away or isinstance(error, (errors.Unreachable, errors.ServerError, BrokenStream))
                if self.optional and isinstance(error, errors.NotFound):  # the server does not serve the kind: there are no objects
                    await self._listed_all(set(), "")
                    self._list_needed = True  # a watch from nowhere would tell of what is there by then, in no order of versions
                await self._pause_for(self._pause(error))

    async def _pause_for(self, seconds: float) -> None:
        self._rest = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._rest}, timeout=seconds)
        self._rest = None

    def _pause(self, error: errors.ApiError) -> float:
        gone, self._was_gone = self._was_gone, isinstance(error, errors.Gone)
        if self._was_gone and not gone:  # the server answers: what was in the way before is no reason to wait with the list
            self._backoff.reset()
        pause = self._backoff.next()
        if isinstance(error, errors.Gone):
            log.info("%s: %s; listing again", self.label, error)
            return max(pause, seams.rng().random() * RELIST_SPREAD)
        if isinstance(error, WentBack):
            pause = max(pause, self._astray.next())
        if isinstance(error, errors.NotFound):
            pause = max(pause, MISSING_KIND_PERIOD * (0.5 + pause / BACKOFF_LIMIT / 2)) if self.optional else pause
        text = str(error)
        if self.optional and isinstance(error, errors.NotFound):
            log.log(logging.DEBUG if self.error else logging.INFO, "%s: not served here; looked for now and then", self.label)
        elif text != self.error:
            log.warning("%s: list or watch failed: %s; trying again", self.label, text)
        self.error = text
        return max(pause, min(error.retry_after or 0.0, 60.0))

    def _recovered(self) -> None:
        if self.error:
            log.info("%s: list and watch work again", self.label)
            self.error = ""
        self._was_gone = False
        self._backoff.reset()

    def _heard(self) -> None:
        """The server has just said something of the cache: as far as anybody knows it is current."""
        self._told_at = self._true_at = seams.monotonic()

    def _answered(self, asked_at: float) -> None:
        """The server has answered what it was asked at that time: unlike news, which may be old where they are read slowly, that is
        certain."""
        self._heard()
        self._verified_at = asked_at

    # -- list --

    async def _list(self) -> None:
        """From the server's watch cache where that is possible: the database is dear, and everybody lists at once after a restart."""
        self._list_began = seams.monotonic()
        version = "" if self._consistent else self._version or "0"
        limit = PAGE if version in ("", "0") else 0
        while True:
            try:
                return await self._read_pages(limit, version)
            except errors.ApiError as error:
                if isinstance(error, errors.Gone) and limit:
                    limit = 0  # the continuation expired on the way: one answer with everything is the only consistent list left
                elif version and (too_large(error) or isinstance(error, (errors.Gone, errors.BadRequest))):
                    limit = PAGE
                else:
                    raise
                version = ""

    async def _read_pages(self, limit: int, version: str) -> None:
        seen: set[str] = set()
        listed = ""
        pages = self.client.pages(
            self.kind,
            self.namespace,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            limit=limit,
            resource_version=version,
        )
        turn = _Turn()
        async with aclosing(pages):
            async for page in pages:
                content = read_list(page)
                listed = content.metadata.resource_version
                for raw in content.items or ():
                    self._listed(raw, seen)
                    await turn.give_way()
        await self._listed_all(seen, listed)

    async def _listed_all(self, seen: set[str], version: str) -> None:
        """The list is complete: what was not in it is gone."""
        turn = _Turn()
        for key in [key for key in self._versions if key not in seen]:
            del self._versions[key]
            for store in self.stores:
                store.forget(key)
            await turn.give_way()
        self._version = version
        self._list_needed = self._consistent = False
        self._answered(self._list_began)
        self.lists += 1
        for store in self.stores:
            store.set_synced()

    def _listed(self, raw: msgspec.Raw, seen: set[str]) -> None:
        meta = self._meta(raw)
        if meta is None:
            return
        key = meta.key
        seen.add(key)
        unchanged = self._same(meta)
        self._versions[key] = meta.resource_version
        for store in self.stores:
            if not unchanged or not store.synced:
                store.receive(key, meta.resource_version, raw, replaced_uid=meta.uid)

    def _meta(self, raw: msgspec.Raw) -> Meta | None:
        try:
            return decode_head(raw).metadata
        except msgspec.DecodeError as error:
            log.error("%s: an object without readable metadata is skipped: %s", self.label, error)
            return None

    async def _went_back(self) -> bool:
        """Whether the server, back again, is not the one that we know: its data were restored or lost.

        A watch from a version that is still to come would wait in silence, with a cache of objects that are no more. And where the
        server has come further than we had in the meantime, it would tell nothing of what was made before.
        """
        now, found, complete = await self._look(self.namespace, self.field_selector, WITNESSES)
        if (
            older(now, self._version)
            or any(self._contradicts(meta) for meta in found)
            or not await self._knows_newest(found, complete=complete)
        ):
            log.warning("%s: the server does not know version %s as we do, it is at %s; listing again", self.label, self._version, now)
            self._begin_anew()
            return True
        return False

    async def _look(self, namespace: str | None, field_selector: str, limit: int) -> tuple[str, list[Meta], bool]:
        """The version of the database, some objects that are there, and whether these are all."""
        pages = self.client.pages(self.kind, namespace, label_selector=self.label_selector, field_selector=field_selector, limit=limit)
        async with aclosing(pages):
            async for page in pages:
                content = read_list(page)
                found = [meta for raw in content.items or () if (meta := self._meta(raw)) is not None]
                return content.metadata.resource_version, found, not content.metadata.continue_
        return "", [], False

    async def _knows_newest(self, found: list[Meta], *, complete: bool) -> bool:
        """Whether the server knows what was written last before it went, as far as we have heard: then it knows all before that.

        What was changed meanwhile says nothing, and does no harm: the watch tells it. What is missing may have been deleted meanwhile, or
        never been made there. If in doubt, a list is needed.
        """
        there, newest, turn = {meta.key: meta for meta in found}, list[tuple[int, str]](), _Turn()
        known = list(self._versions.items())
        for begin in range(0, len(known), SLICE):
            part = [(int(version), key) for key, version in known[begin : begin + SLICE] if version.isdigit()]
            newest = heapq.nlargest(NEWEST, newest + part)
            await turn.give_way()
        for _, key in newest:
            namespace, _, name = key.rpartition("/")
            meta = there.get(key)
            if meta is None and not complete:
                selector = ",".join(filter(None, (self.field_selector, f"metadata.name={name}")))
                _, alone, _ = await self._look(namespace or None, selector, 1)
                meta = next((one for one in alone if one.key == key), None)
            if meta is None or self._contradicts(meta):
                return False
            if self._same(meta):
                return True
        return not newest

    def _begin_anew(self) -> None:
        """What is known of versions means nothing to this server. The objects stay until its list tells what is there."""
        self._version, self._consistent = "", True
        self._versions = dict.fromkeys(self._versions, "")

    def _contradicts(self, meta: Meta) -> bool:
        """Whether an object was written before the version that we have seen, and is not the one in our cache."""
        return (
            meta.resource_version.isdigit()
            and self._version.isdigit()
            and not older(self._version, meta.resource_version)
            and not self._same(meta)
        )

    def _same(self, meta: Meta) -> bool:
        """Whether an object is the one in our cache: another server may give the same number to another object of that name."""
        if self._versions.get(meta.key) != meta.resource_version or not meta.resource_version:
            return False
        return all(uid_of(store.get(meta.key)) in ("", meta.uid) for store in self.stores)

    # -- watch --

    async def _watch(self, *, stream: bool) -> None:
        """Follow the server until it ends the watch; with `stream`, the list comes first, in the same stream."""
        self.watches += 1
        began = self._told_at = seams.monotonic()
        if stream:
            self._list_began = began
        loop = asyncio.get_running_loop()
        following = loop.create_task(self._follow(stream=stream), name=f"follow {self.label}")
        following.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may end while nobody looks: while we ask
        try:
            while True:
                quiet = seams.rng().uniform(*QUIET)
                doubt = self._doubt = loop.create_future()
                pause = max(0.01, self._told_at + quiet - seams.monotonic())
                await asyncio.wait({following, doubt}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                    self._was_away = seams.monotonic() - began < WATCH_TIMEOUT[0]  # sooner than asked for: it may be another one soon
                    return
                asked = doubt.done() and self._initial is None
                if not asked and seams.monotonic() - self._told_at < QUIET[0]:
                    continue
                if self._initial is not None:
                    raise BrokenStream("the stream of the list has stopped")
                if await self._missed(following, asked=asked):
                    return
        finally:
            self._doubt = None
            following.cancel()
            await asyncio.wait({following})

    async def verify(self) -> None:
        """Wait until the cache is known to be current. A kind that is not served is.

        A pause after failures is cut short: who asks has been answered a moment ago, or will try no longer than we do.
        """
        since = again = seams.monotonic()
        while self._verified_at < since and (self._version or not self.optional):
            if self._doubt is not None and not self._doubt.done():
                self._doubt.set_result(None)
            if self._rest is not None and not self._rest.done() and seams.monotonic() >= again:
                self._rest.set_result(None)
                again = seams.monotonic() + DOUBT_RETRY
            await seams.sleep(LOOK)

    def _told(self, version: str, **options: Any) -> AsyncGenerator[Lines, None]:
        """What a watch from a version tells; `options` are those of `Client.watch_batches`."""
        client, labels, fields = self.client, self.label_selector, self.field_selector
        return client.watch_batches(
            self.kind, self.namespace, resource_version=version, label_selector=labels, field_selector=fields, **options
        )

    async def _follow(self, *, stream: bool) -> None:
        self._initial = set() if stream else None
        told = self._version
        batches = self._told("" if stream else self._version, initial_events=stream)
        async with aclosing(batches):
            async for lines in batches:
                self._batches += 1
                if self._initial is None:
                    self._heard()
                else:
                    self._told_at = seams.monotonic()
                told = await self._take(lines, told)
                self._recovered()
        if self._initial is not None:
            raise BrokenStream("the stream of the list ended before the list did")

    async def _take(self, lines: Lines, since: str) -> str:
        """Take over what a watch told that had come to the version `since`; returns how far it has come. Raises WentBack."""
        turn = _Turn()
        for line in lines:
            event = read_event(line)
            self.events += 1
            meta = self._meta(event.object)
            if meta is None:
                continue
            if self._initial is None:
                if older(meta.resource_version, since):
                    self._begin_anew()
                    raise WentBack(f"a watch tells of version {meta.resource_version} after {since}")
                since = meta.resource_version or since
            listed = self._event(event, meta)
            if listed is not None:
                await self._listed_all(*listed)
                self._initial, since = None, self._version
            await turn.give_way()
        return since

    async def _missed(self, following: asyncio.Task[None], *, asked: bool) -> bool:
        """Ask on another connection what the silent watch should have told; True if it told nothing of something.

        A watch that somebody asks about (`asked`) need not be silent: news that it has told meanwhile may be old ones."""
        before, lines, began, since = self._batches, list[bytes](), seams.monotonic(), self._version
        batches = self._told(self._version, timeout_seconds=CATCH_UP)
        ended = False
        try:
            async with asyncio.timeout(CATCH_UP_LIMIT), aclosing(batches):
                async for more in batches:
                    lines += more
            ended = True
        except TimeoutError:
            pass
        except UNVERIFIED as error:  # says nothing of the watch, and no other one would be admitted
            if str(error) != self.error:
                log.warning("%s: the silent watch cannot be verified: %s; trying again", self.label, error)
            self.error = str(error)
            self._told_at = seams.monotonic()
            if asked:  # whoever waits for the answer would ask again at once
                await asyncio.wait({following}, timeout=DOUBT_RETRY)
        if self._batches != before and asked and ended:
            for _ in range(CATCH_UP_LOOKS):
                if following.done() or not (lines := self._untold(lines)):
                    break
                await seams.sleep(LOOK)
        elif self._batches != before:
            return False  # it has told something in the meantime
        if following.done():
            return False
        if all(read_event(line).type == "BOOKMARK" for line in lines):
            await self._take(lines, since)
            if ended:
                self._answered(began)
                self._recovered()
            elif lines:
                self._heard()
            return False
        # From here on it must tell nothing more: its news would be older than what we take over now.
        following.cancel()
        await asyncio.wait({following})
        lines = self._untold(lines)
        log.warning("%s: the watch has stalled; another connection told %d events", self.label, len(lines))
        self.stalls += 1
        await self._take(lines, since)
        if ended:
            self._answered(began)
        else:
            self._heard()
        return True

    def _untold(self, lines: Lines) -> Lines:
        """Those of the lines that are beyond the version of the cache."""
        known = self._version
        heads = ((line, self._meta(read_event(line).object)) for line in lines)
        versions = [(line, meta.resource_version) for line, meta in heads if meta is not None]
        return [line for line, now in versions if not now.isdigit() or older(known, now) or not known.isdigit()]

    def _event(self, event: Event, meta: Meta) -> tuple[set[str], str] | None:
        """Take an event over. With the one that ends the list: what was listed, and the list's version."""
        kind = event.type
        if self._initial is not None:
            if kind == "ADDED":
                self._listed(event.object, self._initial)
                return None
            if ends_initial(event):
                return self._initial, meta.resource_version
        if kind in {"ADDED", "MODIFIED"}:
            self._changed(meta, event.object)
        elif kind == "DELETED":
            self._versions.pop(meta.key, None)
            for store in self.stores:
                store.forget(meta.key, event.object)
        elif kind != "BOOKMARK":
            log.warning("%s: a watch event of unknown type %r is skipped", self.label, kind)
            return None
        if meta.resource_version and not older(meta.resource_version, self._version):  # another watch may have told more
            self._version = meta.resource_version
        return None

    def _changed(self, meta: Meta, raw: msgspec.Raw) -> None:
        key = meta.key
        if self._versions.get(key) == meta.resource_version != "":
            return  # told twice: by the list and by the watch
        self._versions[key] = meta.resource_version
        for store in self.stores:
            store.receive(key, meta.resource_version, raw)


class _Turn:
    """How long we have had the event loop."""

    def __init__(self) -> None:
        self._began = seams.monotonic()

    async def give_way(self) -> None:
        """Let others have it if it has been long."""
        if seams.monotonic() - self._began > TURN:
            await seams.sleep(0)
            self._began = seams.monotonic()
