"""Carrying a preemption out: victims get the DisruptionTarget condition, are deleted, and an event tells why (scheduler-job.md 5.9)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from koord.api.kinds import PODS
from koord.api.times import format_time
from koord.kube.errors import ApiError, NotFound
from roles.scheduler.binding.reporter import Reporter
from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.podinfo import PodInfo

log = logging.getLogger(__name__)


class Evictor:
    """Removes victims. Waiting pods are rejected instead of deleted: they are not on the node yet."""

    def __init__(self, client: Any, reporter: Reporter, waiting: WaitingPods, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._reporter = reporter
        self._waiting = waiting
        self._may_write = may_write

    async def evict(self, preemptor: PodInfo, victims: Iterable[PodInfo], node: str, now: float) -> bool:
        """Remove the victims one after the other. False after a failure, which is logged: the rest is left to the next attempt."""
        for victim in victims:
            if self._waiting.reject(victim.uid, "DefaultPreemption", "preempted"):
                continue
            if victim.deleting:
                continue  # on its way already
            if not self._may_write():
                return True  # another leader's business now
            try:
                await self._remove(preemptor, victim, now)
            except NotFound:
                continue
            except ApiError as failure:
                log.warning("preemption: pod %s could not be removed from %s: %s", victim.key, node, failure)
                return False
            self._reporter.event(
                victim, "Normal", "Preempted", f"Preempted by pod {preemptor.uid} on node {victim.node_name or node}", "Preempting"
            )
        return True

    async def _remove(self, preemptor: PodInfo, victim: PodInfo, now: float) -> None:
        uid = victim.pod.metadata.uid
        condition = {
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": f"{preemptor.shape.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": format_time(now),
        }  # fmt: skip
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        await self._client.patch(PODS, victim.name, body, victim.namespace, type="strategic", subresource="status")
        await self._client.delete(PODS, victim.name, victim.namespace, preconditions={"uid": uid})
