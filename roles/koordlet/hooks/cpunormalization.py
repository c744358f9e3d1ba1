"""CPUNormalization: the same quota means the same work on fast and on slow CPUs (KA-HK-04).

Quotas of LS pods and of pods without class are divided by the Node's ratio. When the ratio goes away they get their own quota
back. Where quota burst scales a container, burst starts from the divided quota, and this hook leaves the container to it.
A container that starts is given its whole quota by a runtime that asks no hook. On cgroup v1 its pod keeps its own until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from koord.api.annotations_node import NO_RATIO
from koord.api.qos import QoSClass
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.hooks.batchresource import node_ratio
from roles.koordlet.hooks.context import Answer, ContainerContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook
from roles.koordlet.host.cgroup_files import milli_to_quota, normalized_quota
from roles.koordlet.qos.burst import QUOTA_POLICIES, effective
from roles.koordlet.qos.restarts import awaited_milli
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs
from roles.koordlet.states.slo import CPUBurstStrategy


@dataclass(frozen=True, slots=True)
class RatioRule:
    """``used``: a ratio was there, for an agent before this one maybe, so that quotas may have to be put back."""

    ratio: float = NO_RATIO
    used: bool = False
    burst: CPUBurstStrategy | None = None
    """The node's burst strategy where quota burst may run."""
    widened: bool = False
    cpus: NodeCPUs = ANY_NODE
    nested: bool = False
    """Whether no container may have more than its pod (cgroup v1)."""


class CPUNormalization(Hook[RatioRule]):
    """See the module."""

    name: ClassVar[str] = "CPUNormalization"
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER)

    def learn(self, snapshot: Snapshot, rule: RatioRule | None) -> RatioRule | None:
        if rule is None and snapshot.node is None:
            return None  # an agent before this one may have divided quotas, and still be right
        last = RatioRule(used=any(entry.owner == self.name for entry in self.noted(Undo.WRITE))) if rule is None else rule
        ratio = node_ratio(snapshot, last.ratio)
        burst = snapshot.slo.cpu_burst if snapshot.slo is not None and self.gate("CPUBurst") else None
        nested = not snapshot.host.cgroups.v2
        return RatioRule(ratio, last.used or ratio > 0, burst, self.options.allow_pod_quota_burst, snapshot.cpus, nested)

    def pod(self, pod: PodContext, rule: RatioRule | None) -> Answer | None:
        awaited = awaited_milli(pod.state) if rule is not None and rule.nested and pod.state is not None else 0
        return self._answer(pod, pod.own_quota, rule, least=milli_to_quota(awaited))

    def container(self, container: ContainerContext, rule: RatioRule | None) -> Answer | None:
        return None if container.sandbox else self._answer(container.pod, container.own_quota, rule)

    def _answer(self, pod: PodContext, own: int | None, rule: RatioRule | None, *, least: int = -1) -> Answer | None:
        """The divided quota; the whole one where it would be less than ``least``."""
        if rule is None or not rule.used or own is None or own <= 0 or pod.qos not in {QoSClass.LS, QoSClass.NONE}:
            return None
        if self._bursting(pod, rule):
            return None
        if pod.held(rule.cpus).cpus:
            return None
        divided = normalized_quota(own, rule.ratio)
        return Answer(cpu_quota=divided if divided >= least else own)

    @staticmethod
    def _bursting(pod: PodContext, rule: RatioRule) -> bool:
        if rule.burst is None or pod.state is None:
            return False
        return effective(rule.burst, pod.state, widened=rule.widened).policy in QUOTA_POLICIES
