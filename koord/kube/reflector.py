"""List, then watch, for ever: one collection of the API server mirrored into any number of decoded stores."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

import msgspec

from koord import seams
from koord.api.kinds import Kind
from koord.api.objects import RawList, decoder
from koord.kube import errors
from koord.kube.client import PAGE, Client
from koord.kube.ratelimit import Backoff
from koord.kube.store import Informer

log = logging.getLogger("koord.kube.informers")

BACKOFF_FIRST = 0.2  # seconds
BACKOFF_LIMIT = 15.0  # seconds
MISSING_KIND_PERIOD = 30.0  # seconds between looks for a kind that the server does not serve
STEADY = 5.0  # seconds that a watch lasts to count as working, if nothing came through it
SLICE = 200  # objects handled before others get the event loop


class Meta(msgspec.Struct, rename={"resource_version": "resourceVersion"}, gc=False):
    """What identifies an object and its version."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""


class Head(msgspec.Struct, gc=False):
    """An object without what only its projections read."""

    metadata: Meta = msgspec.field(default_factory=Meta)


class Event(msgspec.Struct, gc=False):
    """A line of a watch."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


_decode_event = msgspec.json.Decoder(Event).decode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_list = decoder(RawList)


class BrokenStream(errors.ApiError):
    """A watch sent what is no event."""

    def __init__(self, detail: str) -> None:
        super().__init__(0, "BrokenStream", detail)


class Reflector:
    """Mirrors one kind (in one namespace, with one selection) into its stores. `run` is its life."""

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
        self._versions: dict[str, str] = {}
        self._version = ""
        self._was_away = False
        self._backoff = Backoff(BACKOFF_FIRST, BACKOFF_LIMIT)

    async def run(self) -> None:
        """List and watch until cancelled; failures are logged once a kind of failure and retried with growing pauses."""
        list_needed = True
        while True:
            try:
                if not list_needed and self._was_away:
                    list_needed = await self._went_back()
                self._was_away = False
                if list_needed:
                    await self._list()
                    list_needed = False
                began = seams.monotonic()
                await self._watch()
                if seams.monotonic() - began < STEADY:  # a server that ends watches at once must not be hammered
                    await seams.sleep(self._backoff.next())
                else:
                    self._recovered()
            except errors.ApiError as error:
                list_needed = list_needed or _must_list(error)
                self._was_away = self._was_away or isinstance(error, errors.Unreachable)
                await seams.sleep(self._pause(error))

    def _pause(self, error: errors.ApiError) -> float:
        pause = self._backoff.next()
        if isinstance(error, errors.Gone):
            log.info("%s: %s; listing again", self.label, error)
            return pause
        if isinstance(error, errors.NotFound):
            if self.optional:
                self._empty()
            pause = max(pause, MISSING_KIND_PERIOD * (0.5 + pause / BACKOFF_LIMIT / 2)) if self.optional else pause
        text = str(error)
        if self.optional and isinstance(error, errors.NotFound):
            log.log(logging.DEBUG if self.error else logging.INFO, "%s: not served here; looked for now and then", self.label)
        elif text != self.error:
            log.warning("%s: list or watch failed: %s; trying again", self.label, text)
        self.error = text
        return max(pause, min(error.retry_after or 0.0, 60.0))

    def _empty(self) -> None:
        """The server does not serve the kind: there are no objects."""
        self._delete_missing(set())
        for store in self.stores:
            store.set_synced()

    def _recovered(self) -> None:
        if self.error:
            log.info("%s: list and watch work again", self.label)
            self.error = ""
        self._backoff.reset()

    # -- list --

    async def _list(self) -> None:
        # A selection is cheap to answer from the server's cache and dear to answer from its database.
        selective = bool(self.label_selector or self.field_selector)
        version = "0" if selective and not self._version else ""
        try:
            await self._read_pages(PAGE, version)
        except errors.Gone:
            await self._read_pages(0, "")

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
        async with aclosing(pages):
            async for page in pages:
                try:
                    content = _decode_list(page)
                except msgspec.DecodeError as error:
                    raise BrokenStream(f"the list cannot be read: {error}") from error
                listed = content.metadata.resource_version
                for number, raw in enumerate(content.items or ()):
                    self._listed(raw, seen)
                    if number % SLICE == SLICE - 1:
                        await seams.sleep(0)
        self._delete_missing(seen)
        self._version = listed
        self.lists += 1
        for store in self.stores:
            store.set_synced()

    def _listed(self, raw: msgspec.Raw, seen: set[str]) -> None:
        meta = self._meta(raw)
        if meta is None:
            return
        key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        seen.add(key)
        unchanged = self._versions.get(key) == meta.resource_version != ""
        self._versions[key] = meta.resource_version
        for store in self.stores:
            if not unchanged or not store.synced:
                store.receive(key, meta.resource_version, raw, replaced_uid=meta.uid)

    def _delete_missing(self, seen: set[str]) -> None:
        for key in [key for key in self._versions if key not in seen]:
            del self._versions[key]
            for store in self.stores:
                store.forget(key)

    def _meta(self, raw: msgspec.Raw) -> Meta | None:
        try:
            return _decode_head(raw).metadata
        except msgspec.DecodeError as error:
            log.error("%s: an object without readable metadata is skipped: %s", self.label, error)
            return None

    async def _went_back(self) -> bool:
        """Whether the server, back again, knows less than we have seen: its data were restored or lost.

        A watch from a version that is still to come would wait in silence, with our picture of a world that is no more.
        """
        async with aclosing(self.client.pages(self.kind, self.namespace, limit=1)) as pages:
            async for page in pages:
                now = _decode_head(page).metadata.resource_version
                if now.isdigit() and self._version.isdigit() and int(now) < int(self._version):
                    log.warning("%s: the server went back from version %s to %s; listing again", self.label, self._version, now)
                    return True
                break
        return False

    # -- watch --

    async def _watch(self) -> None:
        batches = self.client.watch_batches(
            self.kind,
            self.namespace,
            resource_version=self._version,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
        )
        self.watches += 1
        async with aclosing(batches):
            async for lines in batches:
                for number, line in enumerate(lines):
                    self._event(line)
                    if number % SLICE == SLICE - 1:
                        await seams.sleep(0)
                self._recovered()

    def _event(self, line: bytes) -> None:
        try:
            event = _decode_event(line)
        except msgspec.DecodeError as error:
            raise BrokenStream(f"a line of the watch cannot be read: {error}") from error
        self.events += 1
        kind = event.type
        if kind == "ERROR":
            status = msgspec.json.decode(event.object)
            raise errors.from_status(status if isinstance(status, dict) else {})
        meta = self._meta(event.object)
        if meta is None:
            return
        if kind in {"ADDED", "MODIFIED"}:
            self._changed(meta, event.object)
        elif kind == "DELETED":
            key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            self._versions.pop(key, None)
            for store in self.stores:
                store.forget(key, event.object)
        elif kind != "BOOKMARK":
            log.warning("%s: a watch event of unknown type %r is skipped", self.label, kind)
            return
        if meta.resource_version:
            self._version = meta.resource_version

    def _changed(self, meta: Meta, raw: msgspec.Raw) -> None:
        key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        if self._versions.get(key) == meta.resource_version != "":
            return  # told twice: by the list and by the watch
        self._versions[key] = meta.resource_version
        for store in self.stores:
            store.receive(key, meta.resource_version, raw)


def _must_list(error: errors.ApiError) -> bool:
    """Whether watching from the last version makes no sense any more."""
    if isinstance(error, errors.Gone):
        return True
    if isinstance(error, (errors.NotFound, errors.BadRequest)):
        return True
    causes = error.details.get("causes") or ()
    return any(isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes)
