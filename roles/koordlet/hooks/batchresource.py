"""BatchResource: cgroup limits of best-effort pods from their batch resources (KA-HK-03).

Kubernetes knows nothing of batch-cpu and batch-memory and puts such pods into BestEffort without limits; this hook gives pod and
containers the shares, quota and memory limit that native resources of the same size would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from koord.api.annotations import AnnotationError, parse_cpu_normalization_ratio
from koord.api.annotations_node import NO_RATIO, ratios_differ
from koord.api.qos import QoSClass
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, RuleError
from roles.koordlet.host.cgroup_files import milli_to_quota, milli_to_shares, normalized_quota
from roles.koordlet.states.model import Snapshot

CFS_QUOTA = "cfsQuota"


@dataclass(frozen=True, slots=True)
class BatchRule:
    """``unlimited``: suppress works by the quota of the whole tier, so that single quotas would only be in its way."""

    unlimited: bool = False
    ratio: float = NO_RATIO


def node_ratio(snapshot: Snapshot, last: float) -> float:
    """CPU normalization ratio of the Node, -1 for none; ``last`` where it changed too little. Raises RuleError."""
    if snapshot.node is None:
        return last
    try:
        ratio = parse_cpu_normalization_ratio(snapshot.node.metadata.annotations)
    except AnnotationError as error:
        raise RuleError(f"Node {snapshot.node_name}: {error}") from None
    return ratio if ratios_differ(ratio, last) else last


def _total(parts: Sequence[int | None]) -> int:
    """Sum of limits; -1 when one of them is none."""
    if any(part is None or part <= 0 for part in parts):
        return -1
    return sum(part for part in parts if part is not None)


def _positive_sum(parts: Sequence[int | None]) -> int:
    return sum(part for part in parts if part is not None and part > 0)


def _largest(totals: Sequence[int]) -> int:
    """The limit that holds each of them; -1 is no limit."""
    return -1 if -1 in totals else max(totals)


class BatchResource(Hook[BatchRule]):
    """See the module."""

    name: ClassVar[str] = "BatchResource"
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX,)
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER)

    def learn(self, snapshot: Snapshot, rule: BatchRule | None) -> BatchRule:
        last = rule or BatchRule()
        unlimited = last.unlimited
        if snapshot.slo is not None:
            threshold = snapshot.slo.threshold
            unlimited = threshold.enable and threshold.cpu_suppress_policy == CFS_QUOTA
        try:
            ratio = node_ratio(snapshot, last.ratio)
        except RuleError as error:
            raise RuleError(str(error), BatchRule(unlimited, last.ratio)) from None
        return BatchRule(unlimited, ratio)

    def pod(self, pod: PodContext, rule: BatchRule | None) -> Answer | None:
        together = (pod.batch, *pod.init_batch)
        if pod.qos is not QoSClass.BE or not any(together):
            return None
        request = max(_positive_sum([b.cpu_request for b in side]) for side in together)
        cpu = _largest([_total([b.cpu_limit for b in side]) for side in together])
        memory = _largest([_total([b.memory_limit for b in side]) for side in together])
        return self._answer(request, cpu, memory, rule)

    def container(self, container: ContainerContext, rule: BatchRule | None) -> Answer | None:
        batch = container.batch
        if container.pod.qos is not QoSClass.BE or container.sandbox or not batch.declared:
            return None
        return self._answer(batch.cpu_request or 0, _total([batch.cpu_limit]), _total([batch.memory_limit]), rule)

    def _answer(self, request: int, cpu: int, memory: int, rule: BatchRule | None) -> Answer:
        rule = rule or BatchRule()
        quota = -1 if rule.unlimited else normalized_quota(milli_to_quota(cpu), rule.ratio)
        return Answer(cpu_shares=milli_to_shares(request), cpu_quota=quota, memory_limit=memory)
