"""One decoded view of a watched collection: objects by key, indexes, handlers."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec

from koord.api.objects import decoder

log = logging.getLogger("koord.kube.informers")

T = TypeVar("T")
Transform = Callable[[Any], Any]
IndexFunction = Callable[[T], "str | Iterable[str] | None"]
_plain: Callable[[Any], Any] = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class DecodeFailure:
    """An object that could not be read; the store keeps the last version that could."""

    resource_version: str
    message: str


@dataclass(frozen=True, slots=True)
class Handler(Generic[T]):
    """What somebody wants to be told of. Called on the event loop, must not block."""

    on_add: Callable[[T], object] | None = None
    on_update: Callable[[T, T], object] | None = None
    on_delete: Callable[[T], object] | None = None


class _Index(Generic[T]):
    """Objects by the values that a function gives them; the function depends on the object alone."""

    def __init__(self, name: str, function: IndexFunction[T]) -> None:
        self.name = name
        self.function = function
        self.objects: dict[str, dict[str, T]] = {}

    def _values(self, key: str, obj: T) -> tuple[str, ...]:
        try:
            given = self.function(obj)
        except Exception:  # whatever somebody else's function raises must not stop the watch
            log.exception("index %s failed for %s", self.name, key)
            given = None
        return () if given is None else (given,) if isinstance(given, str) else tuple(given)

    def put(self, key: str, obj: T, old: T | None) -> None:
        values = self._values(key, obj)
        if old is not None:
            for value in self._values(key, old):
                if value not in values:
                    self._drop(value, key)
        for value in values:
            self.objects.setdefault(value, {})[key] = obj

    def remove(self, key: str, old: T) -> None:
        for value in self._values(key, old):
            self._drop(value, key)

    def _drop(self, value: str, key: str) -> None:
        members = self.objects.get(value)
        if members is not None:
            members.pop(key, None)
            if not members:
                del self.objects[value]


class Informer(Generic[T]):
    """The objects of one kind (and selection), decoded one way, kept up to date by a watch.

    Keys are ``namespace/name``, or ``name`` for cluster-scoped objects. Objects must not be changed. Before `synced`, and
    only then, objects may be missing; afterwards the cache lags behind the API server by the watch's delay only.
    """

    def __init__(
        self, label: str, projection: type[T], transform: Transform | None = None, *, type_meta: tuple[str, str] = ("", "")
    ) -> None:
        self.label = label
        self.projection = projection
        self.transform = transform
        self.failures: dict[str, DecodeFailure] = {}
        self._decode: Callable[[Any], Any] = _plain if projection is dict else decoder(cast(Any, projection))
        self._type_meta = type_meta if projection is dict else None
        self._objects: dict[str, T] = {}
        self._indexes: dict[str, _Index[T]] = {}
        # never changed in place: a handler that is told of a change may come or go meanwhile
        self._handlers: tuple[Handler[T], ...] = ()
        self._synced = asyncio.Event()

    # -- reading --

    def get(self, key: str) -> T | None:
        """The object with this key."""
        return self._objects.get(key)

    def list(self) -> list[T]:
        """All objects."""
        return [*self._objects.values()]

    def items(self) -> Iterator[tuple[str, T]]:
        """Keys and objects; not to be kept across an await."""
        return iter(self._objects.items())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def index(self, name: str, function: IndexFunction[T]) -> None:
        """Keep objects by what `function(obj)` returns: a value, several values, or None. A second call with the same name is ignored."""
        if name in self._indexes:
            return
        index = self._indexes[name] = _Index(name, function)
        for key, obj in self._objects.items():
            index.put(key, obj, None)

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects that have this value in the index. Raises KeyError for an index that does not exist."""
        return [*self._indexes[name].objects.get(value, {}).values()]

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        await self._synced.wait()

    def add_handler(
        self,
        on_add: Callable[[T], object] | None = None,
        on_update: Callable[[T, T], object] | None = None,
        on_delete: Callable[[T], object] | None = None,
    ) -> Callable[[], None]:
        """Be told of changes: `on_add(obj)`, `on_update(old, new)`, `on_delete(last)`; first, at once, of every object that is there.

        The handlers are plain functions, called in the order of the changes. An exception in one is logged and does not keep
        others from being told. Returns a function that removes the handler.
        """
        handler = Handler(on_add, on_update, on_delete)
        self._handlers = (*self._handlers, handler)
        if on_add is not None:
            for obj in self.list():
                self._tell(on_add, obj)

        def remove() -> None:
            self._handlers = tuple(other for other in self._handlers if other is not handler)

        return remove

    # -- fed by the reflector --

    def receive(self, key: str, resource_version: str, raw: msgspec.Raw, *, replaced_uid: str = "") -> None:
        """An object as it is now. `replaced_uid` is its uid where a delete in between may have been missed."""
        old = self._objects.get(key)
        if old is not None and replaced_uid and uid_of(old) not in ("", replaced_uid):
            self.forget(key)  # it is gone, also if the new one cannot be read
            old = None
        try:
            obj = self.read(raw)
        except Exception as error:  # a transform is somebody else's code; a bad object must not stop the watch
            self._fail(key, resource_version, error)
            return
        if self.failures:
            self.failures.pop(key, None)
        if obj is None:
            self.forget(key)
            return
        stored = getattr(obj, "stored_key", key)  # an equal string that the object keeps anyway
        self._objects[stored] = obj
        for index in self._indexes.values():
            index.put(stored, obj, old)
        if old is None:
            for handler in self._handlers:
                if handler.on_add is not None:
                    self._tell(handler.on_add, obj)
        else:
            for handler in self._handlers:
                if handler.on_update is not None:
                    self._tell(handler.on_update, old, obj)

    def read(self, raw: msgspec.Raw) -> T | None:
        """Decode an object; None if the transform leaves it out."""
        obj = self._decode(raw)
        if self._type_meta is not None:
            if not isinstance(obj, dict):
                raise msgspec.ValidationError("must be an object")
            obj.setdefault("apiVersion", self._type_meta[0])  # items of a list come without
            obj.setdefault("kind", self._type_meta[1])
        return cast("T | None", obj if self.transform is None else self.transform(obj))

    def forget(self, key: str, final: msgspec.Raw | None = None) -> None:
        """An object is gone; `final` is its last state, if the server told it."""
        self.failures.pop(key, None)
        old = self._objects.pop(key, None)
        if old is None:
            return
        for index in self._indexes.values():
            index.remove(key, old)
        last = old
        if final is not None and self._handlers:
            try:
                last = self.read(final) or old
            except Exception:
                log.debug("%s %s: its last state cannot be read", self.label, key, exc_info=True)
        for handler in self._handlers:
            if handler.on_delete is not None:
                self._tell(handler.on_delete, last)

    def set_synced(self) -> None:
        """The first list is in."""
        self._synced.set()

    def _fail(self, key: str, resource_version: str, error: Exception) -> None:
        known = self.failures.get(key)
        if known is not None and known.resource_version == resource_version:
            return
        self.failures[key] = DecodeFailure(resource_version, str(error))
        kept = "its last good version stays in use" if key in self._objects else "it is left out"
        log.error("%s %s (resourceVersion %s) cannot be read: %s; %s", self.label, key, resource_version, error, kept)

    def _tell(self, function: Callable[..., object], *arguments: T) -> None:
        try:
            function(*arguments)
        except Exception:  # one listener's mistake is not the others'
            log.exception("%s: handler %s failed", self.label, getattr(function, "__qualname__", function))


def uid_of(obj: Any) -> str:
    """The uid of a dict or projection, "" if it has none."""
    if isinstance(obj, dict):
        uid = (obj.get("metadata") or {}).get("uid")
    else:
        uid = getattr(getattr(obj, "metadata", None), "uid", "")
    return uid if isinstance(uid, str) else ""
