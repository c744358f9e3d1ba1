"""Real usage from beside koordlet: the metrics server and Prometheus, asked once a round for the plugins that go by it (DS-K8S-09).

A source that does not answer is logged, and its last answer holds until it expires: nothing is decided on missing data.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import aiohttp
import orjson

from koord import seams
from koord.accounting import resources
from koord.api.quantity import QuantityError
from koord.api.times import TimeError, parse_time
from koord.kube import errors
from koord.kube.client import Client
from roles.descheduler.reading import EXPIRES, MEASURED, METRIC_RESOURCE, WHOLE, Reading
from roles.descheduler.snapshot import Vector

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds
AT_ONCE = 500  # items that are read before others get their turn


class SourceError(Exception):
    """A source did not tell; the text says why."""


class MetricsServer:
    """metrics.k8s.io as the API server serves it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, now: float) -> Reading:
        """Nodes and pods. Raises SourceError."""
        nodes = {name: usage async for (_, name), usage in self._items("nodes", now, lambda item: [item]) if usage.keys() >= MEASURED}
        pods = {key: usage async for key, usage in self._items("pods", now, lambda item: item.get("containers") or [])}
        return Reading(now, nodes, pods)

    async def _items(self, plural: str, now: float, parts: Callable[[Any], Iterable[Any]]) -> AsyncIterator[tuple[tuple[str, str], Vector]]:
        try:
            status, body = await self._client.raw("GET", f"/apis/metrics.k8s.io/v1beta1/{plural}")
        except errors.ApiError as error:
            raise SourceError(str(error)) from None
        if status != 200:
            raise SourceError(f"{plural} of metrics.k8s.io: HTTP {status}")
        try:
            items = (await seams.to_thread(orjson.loads, body)).get("items") or ()
        except (orjson.JSONDecodeError, AttributeError):
            raise SourceError(f"{plural} of metrics.k8s.io: the answer is no list") from None
        unread: list[BaseException] = []
        for number, item in enumerate(items, 1):
            if number % AT_ONCE == 0:
                await seams.sleep(0)
            try:
                meta = item["metadata"]
                if now - parse_time(item["timestamp"]) < EXPIRES:
                    usage = resources.sum_(resources.parse(part.get("usage") or {}) for part in parts(item))
                    if any(value < 0 for value in usage.values()):
                        raise QuantityError(f"{meta['name']}: less than nothing is used")
                    yield (meta.get("namespace", ""), meta["name"]), usage
            except (AttributeError, KeyError, TypeError, QuantityError, TimeError) as error:
                unread.append(error)
        if unread:
            log.warning("%d items of %s of metrics.k8s.io cannot be read, the first one: %r", len(unread), plural, unread[0])


class Prometheus:
    """A query whose answer has a sample a node: label `instance` is the node's name, the value a share from 0 to 1."""

    def __init__(self, url: str, query: str, token: Callable[[], Awaitable[str]]) -> None:
        self._url, self._query, self._token = url, query, token

    async def read(self, now: float) -> Reading:
        """The share of each node as METRIC_RESOURCE, of WHOLE. Raises SourceError."""
        token = await self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE), headers=headers) as session:
            try:
                async with session.post(f"{self._url.rstrip('/')}/api/v1/query", data={"query": self._query, "time": str(now)}) as answer:
                    body = orjson.loads(await answer.read())
            except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
                raise SourceError(f"{type(error).__name__}: {error}") from None
        return Reading(now, shares(body))


def shares(answer: Any) -> dict[str, Vector]:
    """The samples of an instant query by node. Raises SourceError for what is no answer, or a sample that is no share of a node."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        raise SourceError(str(answer.get("error") if isinstance(answer, dict) else "the answer is no object"))
    found: dict[str, Vector] = {}
    try:
        if answer["data"]["resultType"] != "vector":
            raise SourceError(f"the query gives a {answer['data']['resultType']}; a vector is needed")
        for sample in answer["data"]["result"]:
            node, share = sample["metric"].get("instance", ""), float(sample["value"][1])
            if not node:
                raise SourceError("a sample has no label instance, which names its node")
            if not math.isfinite(share) or not 0 <= share <= 1:
                raise SourceError(f"the sample of {node} is {share:g}; accepted: 0 to 1")
            if node in found:
                raise SourceError(f"there are several samples of {node}; one a node is needed")
            found[node] = {METRIC_RESOURCE: round(share * WHOLE)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"the answer has not the form of a query's: {error!r}") from None
    return found


class Sources:
    """The sources that plugins read, by key; their last answers."""

    def __init__(self, sources: Mapping[str, MetricsServer | Prometheus]) -> None:
        self._sources = sources
        self._last: dict[str, Reading] = {}

    async def readings(self, now: float, *, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, Reading]:
        """Ask those that are wanted; what has expired is not told."""
        asked = [key for key in self._sources if wanted(key)]
        for key, found in zip(asked, await asyncio.gather(*(self._ask(key, now) for key in asked)), strict=True):
            if found is not None:
                self._last[key] = found
        return {key: reading for key, reading in self._last.items() if now - reading.at < EXPIRES}

    async def _ask(self, key: str, now: float) -> Reading | None:
        try:
            return await asyncio.wait_for(self._sources[key].read(now), 2 * PATIENCE)
        except (SourceError, TimeoutError) as error:
            log.warning("%s does not tell what nodes use: %s", key, error or "it takes too long")
            return None
