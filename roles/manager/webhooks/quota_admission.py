"""Quota admission: a pod is only let in while its quota has room (MGR-POD-V-03).

Deciding (`evaluate`) is pure. `QuotaAdmission` carries it out: pods that wait for one quota are decided in order of arrival within one
write, and a write only counts if nobody else wrote in between.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from cachetools import LRUCache

from koord import seams
from koord.accounting.resources import ResourceVector, format, format_value, parse
from koord.api import names
from koord.api.kinds import ELASTICQUOTAS
from koord.api.objects import ElasticQuota, convert
from koord.api.quantity import QuantityError
from koord.kube.client import Client
from koord.kube.errors import ApiError, Conflict, NotFound
from roles.manager.options import Options
from roles.manager.webhooks.review import Refusal

log = logging.getLogger("koord.manager.webhooks")

WORKERS, TIMEOUT, REMEMBERED = 16, 10.0, 100
_COUNTED = frozenset(
    {
        *(f"{prefix}{name}" for prefix in ("", "requests.") for name in ("cpu", "memory", "ephemeral-storage")),
        *names.BATCH_RESOURCES,
        *names.MID_RESOURCES,
        names.RESOURCE_GPU,
        names.RESOURCE_NVIDIA_GPU,
        names.RESOURCE_GPU_SHARED,
        names.RESOURCE_GPU_MEMORY_RATIO,
    }
)


def amounts(quota: ElasticQuota, key: str) -> ResourceVector:
    """A ResourceList annotation; absent or empty is no amount. Raises Refusal when it cannot be read: guessing would let anyone in."""
    text = quota.metadata.annotations.get(key)
    if not text:
        return {}
    try:
        return parse(orjson.loads(text))
    except (orjson.JSONDecodeError, QuantityError, AttributeError, TypeError) as error:
        raise Refusal(f"quota {quota.key}: annotation {key} must be a JSON ResourceList, got {text!r}: {error}", 500) from None


def counted(quota: ElasticQuota, wanted: ResourceVector) -> ResourceVector:
    """The part of a pod's request that the quota counts; empty when it counts nothing."""
    ceiling = quota.spec.max
    if _COUNTED.isdisjoint(ceiling):
        return {}
    return {name: amount for name, amount in wanted.items() if amount and name in ceiling}


def evaluate(quota: ElasticQuota, used: ResourceVector, request: ResourceVector) -> str:
    """Why the request does not fit beside `used`, "" if it does; only exceeded resources are named."""
    limit = amounts(quota, names.ANNOTATION_QUOTA_ADMISSION) or parse(quota.spec.max)
    over = sorted(name for name, amount in request.items() if name in limit and used.get(name, 0) + amount > limit[name])
    if not over:
        return ""

    def shown(vector: Mapping[str, int]) -> str:
        return ",".join(f"{name}={format_value(name, vector.get(name, 0))}" for name in over)

    return f"exceeded quota: {quota.key}, requested: {shown(request)}, used: {shown(used)}, limited: {shown(limit)}"


@dataclass(slots=True)
class _Waiting:
    request: ResourceVector
    answer: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class QuotaAdmission:
    """Admits pods against quotas. `cached(key)` is what the informer has of a quota."""

    def __init__(self, client: Client, options: Options, cached: Callable[[str], ElasticQuota | None]) -> None:
        self.client, self.options, self.cached = client, options, cached
        self._waiting: dict[str, list[_Waiting]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._written: LRUCache[str, ElasticQuota] = LRUCache(REMEMBERED)
        self._slots = asyncio.Semaphore(WORKERS)

    async def admit(self, quota: ElasticQuota, wanted: ResourceVector, *, dry_run: bool) -> None:
        """Let a request in and count it. Raises Refusal: 400 when it does not fit, 500 when that cannot be told in time."""
        request = counted(quota, wanted)
        if not request:
            return
        if dry_run:
            why = evaluate(quota, amounts(quota, names.ANNOTATION_QUOTA_CHILD_REQUEST), request)
        else:
            waiting = _Waiting(request)
            self._waiting.setdefault(quota.key, []).append(waiting)
            if quota.key not in self._tasks:
                self._tasks[quota.key] = asyncio.create_task(self._work(quota.key), name=f"quota admission {quota.key}")
            try:
                why = await asyncio.wait_for(waiting.answer, TIMEOUT)
            except TimeoutError:
                raise Refusal(f"quota {quota.key}: no decision within {TIMEOUT:.0f}s", 500) from None
        if why:
            raise Refusal(why)

    async def _work(self, key: str) -> None:
        try:
            while batch := [one for one in self._waiting.pop(key, []) if not one.answer.done()]:
                async with self._slots:
                    try:
                        await self._decide(key, batch)
                    except Exception as error:  # who waits must be told, whatever it is
                        text = error.message if isinstance(error, Refusal) else f"quota {key}: {error}"
                        if not isinstance(error, (ApiError, Refusal, QuantityError)):
                            log.error("quota %s: its pods cannot be decided on", key, exc_info=error)
                        for one in batch:
                            if not one.answer.done():
                                one.answer.set_exception(Refusal(text, 500))
        finally:
            del self._tasks[key]

    async def _decide(self, key: str, batch: list[_Waiting]) -> None:
        """Decide a batch in order and write once; after a conflict everything is decided anew on the fresh quota."""
        retries = min(self.options.quota_update_max_retries, 3 + (int(math.log2(len(batch))) if len(batch) > 1 else 0))
        quota, slept = self._latest(key), 0.0
        if quota is None:
            quota = await self._fresh(key)
        for number in range(retries + 1):
            used = amounts(quota, names.ANNOTATION_QUOTA_CHILD_REQUEST)
            answers: list[str] = []
            for one in batch:
                answers.append(evaluate(quota, used, one.request))
                if not answers[-1]:
                    used = {**used, **{name: used.get(name, 0) + amount for name, amount in one.request.items()}}
            try:
                if not all(answers):
                    await self._write(key, quota, used)
            except Conflict:
                if number == retries:
                    raise
                slept += await self._pause(slept)
                newer = None if self.options.quota_update_conflict_fresh_get else self._latest(key)
                stale = newer is None or newer.metadata.resource_version == quota.metadata.resource_version
                quota = await self._fresh(key) if newer is None or stale else newer
                continue
            for one, why in zip(batch, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(why)
            return

    async def _pause(self, slept: float) -> float:
        jitter = self.options.quota_update_retry_jitter
        pause = seams.rng().uniform(jitter / 2, jitter) if jitter > 0 else 0.0
        if not pause or slept + pause > self.options.quota_update_max_total_jitter:
            return 0.0
        await seams.sleep(pause)
        return pause

    def _latest(self, key: str) -> ElasticQuota | None:
        """The newer of what the informer has and what was written last: the watch lags behind our own writes."""
        seen, written = self.cached(key), self._written.get(key)
        if seen is None or written is None or seen.metadata.uid != written.metadata.uid:
            return seen
        return written if _version(written) > _version(seen) else seen

    async def _fresh(self, key: str) -> ElasticQuota:
        namespace, _, name = key.partition("/")
        try:
            return convert(await self.client.get(ELASTICQUOTAS, name, namespace), ElasticQuota)
        except NotFound:
            raise Refusal(f"quota {key}: it does not exist any more") from None

    async def _write(self, key: str, quota: ElasticQuota, used: ResourceVector) -> None:
        namespace, _, name = key.partition("/")
        text = orjson.dumps(format(used), option=orjson.OPT_SORT_KEYS).decode()
        metadata: dict[str, Any] = {"annotations": {names.ANNOTATION_QUOTA_CHILD_REQUEST: text}}
        metadata["resourceVersion"] = quota.metadata.resource_version
        written = await self.client.patch(ELASTICQUOTAS, name, {"metadata": metadata}, namespace, type="merge")
        self._written[key] = convert(written, ElasticQuota)


def _version(quota: ElasticQuota) -> tuple[int, str]:
    text = quota.metadata.resource_version
    return len(text), text
