"""Shared informers: one list and watch per collection and process, however many roles and projections look at it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypedDict, TypeVar, Unpack, overload

from koord import seams
from koord.api.kinds import Kind
from koord.kube.client import Client
from koord.kube.reflector import Reflector
from koord.kube.store import DecodeFailure, Informer, Transform

__all__ = ["DecodeFailure", "Informer", "InformerFactory"]

log = logging.getLogger("koord.kube.informers")

VERIFY_LIMIT = 60.0  # seconds that a new leader waits at most to know that its caches are current: all, not only those that others look at
MAX_CACHE_AGE = 60.0  # seconds; nobody acts on a cache that is older
DOUBTFUL_AGE = 30.0  # seconds; a watch that lives has told or been asked by then: nobody makes room on a cache that is older

T = TypeVar("T")


class Wanted(TypedDict, total=False):
    """What an informer can be told beside its kind and projection; see `InformerFactory.informer`."""

    namespace: str | None
    label_selector: str
    field_selector: str
    transform: Transform | None
    optional: bool


class InformerFactory:
    """Hands out informers and runs their watches."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reflectors: dict[tuple[Kind, str | None, str, str], Reflector] = {}
        self._tasks: dict[Reflector, asyncio.Task[None]] = {}
        self._started = False

    @overload
    def informer(self, kind: Kind, projection: type[dict[Any, Any]] = dict, **wanted: Unpack[Wanted]) -> Informer[dict[str, Any]]: ...

    @overload
    def informer(self, kind: Kind, projection: type[T], **wanted: Unpack[Wanted]) -> Informer[T]: ...

    def informer(
        self,
        kind: Kind,
        projection: type[Any] = dict,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        transform: Transform | None = None,
        optional: bool = False,
    ) -> Informer[Any]:
        """The informer of a kind as a projection (a msgspec struct, or `dict`), the same one for the same arguments.

        `transform(obj)` is applied after decoding: it returns what is stored, or None to leave the object out. With
        `optional`, a kind that the server does not serve counts as one without objects (looked for again every half minute).
        """
        place = (kind, namespace if kind.namespaced else None, label_selector, field_selector)
        reflector = self._reflectors.get(place)
        if reflector is None:
            reflector = self._reflectors[place] = Reflector(self.client, *place, optional=optional)
        reflector.optional = reflector.optional and optional
        for store in reflector.stores:
            if store.projection is projection and store.transform is transform:
                return store
        store = Informer(reflector.label, projection, transform, type_meta=(kind.api_version, kind.kind))
        reflector.stores.append(store)
        if self._started:
            self._run(reflector)  # anew: the new store needs a list, which leaves the other stores as they are
        return store

    def start(self) -> None:
        """Start watching; informers asked for later start at once. To be called on the event loop; calling it again does nothing."""
        self._started = True
        for reflector in self._reflectors.values():
            if reflector not in self._tasks:
                self._run(reflector)

    def _run(self, reflector: Reflector) -> None:
        before = self._tasks.pop(reflector, None)
        if before is not None:
            before.cancel()
        task = asyncio.get_running_loop().create_task(self._supervise(reflector, before), name=f"watch {reflector.label}")
        self._tasks[reflector] = task

    async def _supervise(self, reflector: Reflector, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while True:
            try:
                await reflector.run()
            except Exception:  # a defect of ours must not silently freeze a role's cache
                log.exception("%s: the watch failed unexpectedly; starting it again", reflector.label)
                await seams.sleep(5.0)

    @property
    def synced(self) -> bool:
        """Whether every informer has its first list."""
        return all(store.synced for reflector in self._reflectors.values() for store in reflector.stores)

    async def wait_synced(self) -> None:
        """Wait until every informer that has been asked for has its first list."""
        while not self.synced:
            stores = [store for reflector in self._reflectors.values() for store in reflector.stores]
            await asyncio.gather(*(store.wait_synced() for store in stores))

    def status(self) -> list[dict[str, Any]]:
        """What each watch is doing, for debug pages: kind, objects, events, lists, the last failure."""
        return [
            {
                "kind": reflector.label,
                "namespace": reflector.namespace or "",
                "labelSelector": reflector.label_selector,
                "fieldSelector": reflector.field_selector,
                "synced": all(store.synced for store in reflector.stores),
                "objects": max((len(store) for store in reflector.stores), default=0),
                "unreadable": sorted({key for store in reflector.stores for key in store.failures}),
                "lists": reflector.lists,
                "watches": reflector.watches,
                "stalls": reflector.stalls,
                "age": round(reflector.age, 1),
                "events": reflector.events,
                "error": reflector.error,
            }
            for reflector in self._reflectors.values()
        ]

    def ages(self) -> dict[str, float]:
        """Seconds since the cache of each kind was last known to be current; the oldest where a kind is watched several times."""
        found: dict[str, float] = {}
        for reflector in self._reflectors.values():
            found[reflector.label] = max(reflector.age, found.get(reflector.label, 0.0))
        return found

    def stalls(self) -> dict[str, int]:
        """How often a watch of each kind was found to carry nothing."""
        found: dict[str, int] = {}
        for reflector in self._reflectors.values():
            found[reflector.label] = found.get(reflector.label, 0) + reflector.stalls
        return found

    def age(self, *kinds: Kind) -> float:
        """The greatest age of a cache, of these kinds or of all; seconds."""
        return max((reflector.age for reflector in self._reflectors.values() if not kinds or reflector.kind in kinds), default=0.0)

    def fresh(self) -> tuple[bool, str]:
        """A readiness probe: whether every cache is young enough to act on."""
        old = sorted(f"{label}: {age:.0f} s" for label, age in self.ages().items() if age > MAX_CACHE_AGE)
        return (False, "nothing was heard of " + ", ".join(old)) if old else (True, "")

    async def verify(self, limit: float = VERIFY_LIMIT) -> bool:
        """Ask the server whether the caches are current, and wait until they are, `limit` seconds at most; whether all are.

        For who begins to lead: the one before may have written a moment ago, and a watch that has stalled since is not known by its age.
        """
        asking = [asyncio.ensure_future(reflector.verify()) for reflector in self._reflectors.values() if reflector in self._tasks]
        if not asking:
            return True
        try:
            _, late = await asyncio.wait(asking, timeout=limit)
        finally:
            for task in asking:
                task.cancel()
        if late:
            log.warning("%d of %d caches could not be verified within %g s", len(late), len(asking), limit)
        return not late

    async def stop(self) -> None:
        """End all watches. The informers keep what they have."""
        self._started = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
