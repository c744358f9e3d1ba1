"""Reads of what a cache does not show, for reviews: few, shared, and never in the way of other work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from koord import seams
from koord.api.kinds import Kind
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound, Unreachable
from koord.kube.ratelimit import TokenBucket

FRESH = 1.0  # seconds for which an answer is not asked for again
STALE = 10.0  # seconds for which an old answer is given at once, while a new one is fetched
PATIENCE = 1.0  # seconds that a review waits for an answer
QPS, BURST = 2.0, 10  # reads: a synced cache lacks an object for moments only, so more than that is made-up names
REMEMBERED = 1000


_Key = tuple[str, str | None, str]


@dataclass(slots=True)
class _Answer:
    time: float
    found: dict[str, Any] | None
    error: ApiError | None = None


class LiveReads:
    """Asks the API server for objects that a synced cache lacks, because its watch may lag by a moment.

    For one object there is at most one read a second, shared by all who ask. Without budget the cache's word stands: None.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = seams.monotonic) -> None:
        self._client, self._clock = client, clock
        self._bucket = TokenBucket(QPS, BURST)
        self._answers: LRUCache[_Key, _Answer] = LRUCache(REMEMBERED)
        self._reading: dict[_Key, asyncio.Task[None]] = {}

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """An object, None where there is none. Raises ApiError when the API server cannot tell."""
        key, now = (kind.plural, namespace, name), self._clock()
        answer: _Answer | None = self._answers.get(key)
        age = now - answer.time if answer is not None else STALE
        if age >= FRESH and key not in self._reading and self._bucket.take(now):
            task = self._reading[key] = asyncio.create_task(self._read(kind, name, namespace), name=f"live read of {kind.plural} {name}")
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        if age >= STALE and key in self._reading:
            # Whoever stops waiting leaves the read to the others.
            await asyncio.wait({self._reading[key]}, timeout=PATIENCE)
            answer = self._answers.get(key)
            if answer is None:
                raise Unreachable(f"no answer about {kind.plural} {name} within {PATIENCE:.0f}s")
        if answer is None:
            return None
        if answer.error is not None:
            raise answer.error
        return answer.found

    async def _read(self, kind: Kind, name: str, namespace: str | None) -> None:
        key = (kind.plural, namespace, name)
        try:
            found = await self._client.get(kind, name, namespace) if namespace else await self._client.get(kind, name)
        except NotFound:
            self._answers[key] = _Answer(self._clock(), None)
        except ApiError as error:
            self._answers[key] = _Answer(self._clock(), None, error)
        else:
            self._answers[key] = _Answer(self._clock(), found)
