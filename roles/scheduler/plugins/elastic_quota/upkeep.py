"""Background work of the leader: built-in quotas, status, metrics, revoking (SCH-EQ-01, 09, 10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api import names
from koord.api.kinds import ELASTICQUOTAS
from koord.api.objects import ElasticQuota, convert
from koord.decisions.record import Record, Subject, Term
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.servertime import clock_of
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.gangs import what_goes
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.elastic_quota.args import ElasticQuotaArgs
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache, overdue_at
from roles.scheduler.plugins.elastic_quota.metrics import QuotaMetrics
from roles.scheduler.plugins.elastic_quota.model import DEFAULT, ROOT, SYSTEM
from roles.scheduler.plugins.elastic_quota.revoke import Revoker
from roles.scheduler.plugins.elastic_quota.status import Patch, patch_of
from roles.scheduler.plugins.elastic_quota.tree import Quota

if TYPE_CHECKING:
    from koord.kube.client import Client

log = logging.getLogger(__name__)

_ROUND = 1.0  # seconds between looks at the status of all quotas
_METRICS_EVERY = 10.0
_RETRY = 10.0
_EVICT_WITHIN = 10.0  # seconds from a decision in which its pods are evicted: later the quota may not be over its runtime any more
_AT_ONCE = 8  # status writes under way together
_QUOTAS, _SAMPLES = 16, 256  # looked at, and listed, before others have the event loop
_PER_ROUND = 200  # status writes in a round; the rest has its turn in the next


class Upkeep:
    """Writes what the cache says. Only while this process may write; a write that fails is tried again in the next round."""

    def __init__(self, args: ElasticQuotaArgs, handle: Handle, cache: QuotaCache, metrics: QuotaMetrics) -> None:
        self._args = args
        self._handle = handle
        self._cache = cache
        self._metrics = metrics
        self._clock = clock_of(handle.client)
        self._evaluated: dict[str, tuple[int, ElasticQuota]] = {}
        self._next = 0  # place among the quotas at which the next round begins

    # ---------------------------------------------------------------- built-in quotas

    async def create_built_in(self) -> None:
        """Create the root, system and default quota where they are missing, trying again until they are there; then look now and then."""
        told: dict[str, str] = {}
        while True:
            for name in (ROOT, SYSTEM, DEFAULT):
                if self._cache.shown(name) is None and self._handle.may_write():
                    await self._create(name, told)
            await seams.sleep(_RETRY)

    async def _create(self, name: str, told: dict[str, str]) -> None:
        labels: dict[str, str] = {}
        if name == ROOT:
            labels = {names.LABEL_QUOTA_PARENT: "", names.LABEL_QUOTA_IS_PARENT: "true", names.LABEL_QUOTA_ALLOW_LENT_RESOURCE: "false"}
        maximum = self._args.system_quota_group_max if name == SYSTEM else self._args.default_quota_group_max
        namespace = self._args.quota_group_namespace
        body: dict[str, Any] = {
            "apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind,
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {} if name == ROOT else {"max": {key: str(value) for key, value in maximum.items()}},
        }  # fmt: skip
        try:
            await self._handle.api.create(ELASTICQUOTAS, body, namespace)
        except AlreadyExists:
            return
        except ApiError as error:
            if told.get(name) != str(error):
                told[name] = str(error)
                log.warning("quota %s/%s could not be created, it is tried again: %s", namespace, name, error)

    # ---------------------------------------------------------------- status

    async def keep_status(self) -> None:
        """Every second: bring the cache and the objects together; every ten seconds the metrics."""
        metrics_at = 0.0
        while True:
            started = seams.perf_counter()
            self.refresh()
            if started >= metrics_at:
                metrics_at = started + _METRICS_EVERY
                for number, _ in enumerate(self._metrics.show([*self._cache.quotas()])):
                    if number % _SAMPLES == _SAMPLES - 1:
                        await seams.sleep(0)
            if self._handle.may_write():
                await self.write_status()
                self._metrics.wrote(seams.perf_counter() - started)
            await seams.sleep(max(0.05, _ROUND - (seams.perf_counter() - started)))

    def refresh(self) -> None:
        """Bring all runtimes up to date."""
        started = seams.perf_counter()
        self._cache.sweep(self._clock())
        self._cache.settle()
        for tree in self._cache.trees.values():
            tree.refresh_all()
        self._metrics.took("RefreshRuntime", seams.perf_counter() - started)

    async def write_status(self) -> None:
        """A round of writes: the first objects found that do not show what the cache says; the next round goes on behind them."""
        due: list[tuple[Quota, ElasticQuota, Patch]] = []
        for number, found in enumerate(self._due()):
            due.extend(() if found is None else (found,))
            if len(due) == _PER_ROUND:
                break
            if number % _QUOTAS == _QUOTAS - 1:
                await seams.sleep(0)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(quota: Quota, shown: ElasticQuota, patch: Patch) -> None:
            async with gate:
                try:
                    await self._patch(quota, shown, patch)
                except DEFECTS as failure:  # of one quota, which is to hold up no other
                    if ends_us(failure):
                        raise
                    log.exception("status of quota %s could not be written", quota.name)

        await asyncio.gather(*(one(*item) for item in due))

    def _due(self) -> Iterator[tuple[Quota, ElasticQuota, Patch] | None]:
        """Quotas whose object does not show what the cache says, and None for others that were looked at, from where the last round ended.
        One that neither changed since it was found right is not."""
        quotas = [*self._cache.quotas()]  # others come and go meanwhile
        known = self._evaluated
        self._evaluated = {quota.name: known[quota.name] for _, quota in quotas if quota.name in known}
        start = self._next % len(quotas)
        for self._next, (tree, quota) in enumerate(quotas[start:] + quotas[:start], start + 1):
            shown = self._cache.shown(quota.name)
            if shown is None:
                continue
            before = self._evaluated.get(quota.name)
            hooks = self._cache.hooks.of(tree)
            if before is not None and before[0] == quota.version and before[1] is shown and not hooks:
                continue
            extra: dict[str, str] = {}
            for more in self._cache.hooks.tell(tree, "UpdateQuotaStatus", lambda hook, quota=quota: hook.annotations(quota)):  # type: ignore[misc]
                extra.update(more)
            patch = patch_of(quota, shown, extra)
            if patch is None:
                self._evaluated[quota.name] = (quota.version, shown)
                yield None
            else:
                yield quota, shown, patch

    async def _patch(self, quota: Quota, shown: ElasticQuota, patch: Patch) -> None:
        if not self._handle.may_write():
            return
        name, namespace = shown.metadata.name, shown.metadata.namespace
        try:
            written = await self._handle.api.patch(ELASTICQUOTAS, name, patch, namespace)
            self._cache.show(convert(written, ElasticQuota))
        except NotFound:
            return
        except ApiError as error:
            log.warning("status of quota %s/%s could not be written, it is tried again: %s", namespace, name, error)

    # ---------------------------------------------------------------- revoking

    async def revoke(self) -> None:
        """Evict pods of quotas that were over their runtime for too long (monitorAllQuotas). Nobody knows of the time in which the machine
        slept, and while a watch is silent they may be under it by now: then they have the same time again."""
        revoker = Revoker(self._args.delay_evict_time, self._leaves)
        while True:
            await seams.sleep(max(0.05, self._args.revoke_pod_interval))
            self.refresh()
            if self._handle.may_write():
                gangs = self._handle.state.gangs
                due = revoker.due(self._cache, seams.monotonic(), gangs)
                if not due or not self._handle.may_evict():
                    continue
                what = what_goes([pod for _, pod in due], gangs)
                api = self._handle.api.within(_EVICT_WITHIN)
                for quota, pod in due:
                    await self._evict(api, quota, pod, what[pod.uid])

    def _leaves(self, pod: PodInfo) -> bool:
        """Whether a pod is on its way out, and not for so long that nobody knows whether it goes."""
        return self._handle.state.leaving(pod) and not (pod.deleting and self._clock() >= overdue_at(pod))

    def _record(self, quota: str, pod: PodInfo, what: str) -> None:
        """Why the pod had to go: what its quota uses, may use and is guaranteed, and what the pod takes of it."""
        member, found = self._cache.member(pod.uid), self._cache.quota(quota)
        terms: list[Term] = []
        if found is not None and member is not None:
            limit = found[1].limit()
            for name in sorted(member.amount):
                used, runtime = found[1].used.get(name, 0), limit.get(name, 0)
                terms.append(Term(name, used, f"used, runtime {runtime}, min {found[1].spec.min.get(name, 0)}, pod {member.amount[name]}"))
        message = f"quota {quota} has been over its runtime for more than {self._args.delay_evict_time:g} s; the pod goes {what}"
        subject = Subject("Pod", pod.namespace, pod.name, pod.pod.metadata.uid)
        record = Record(
            "scheduler", subject, seams.now(), "Evicted", "ElasticQuota", message, {"quota": quota}, tuple(terms), ("SCH-EQ-09",)
        )
        self._handle.record(record)

    async def _evict(self, api: Client, quota: str, pod: PodInfo, what: str) -> None:
        try:
            await api.evict(pod.namespace, pod.name, uid=pod.pod.metadata.uid or None)
            self._record(quota, pod, what)
            log.info("pod %s is evicted (%s): its quota %s has been over its runtime for too long", pod.key, what, quota)
        except NotFound:
            return
        except ApiError as error:
            log.warning("pod %s of quota %s, which is over its runtime, could not be evicted: %s", pod.key, quota, error)
