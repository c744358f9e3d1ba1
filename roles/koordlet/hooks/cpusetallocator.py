"""CPUSetAllocator: which CPUs a container runs on (KA-HK-02).

By the scheduler's allocation if there is one, else by the share pools that the node publishes in its NodeResourceTopology.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from koord.accounting.cpuset import CPUSet, CPUSetError
from koord.api.annotations import (
    AnnotationError,
    parse_cpu_shared_pools,
    parse_kubelet_cpu_manager_policy,
    parse_resource_status,
    parse_system_qos_resource,
)
from koord.api.names import ANNOTATION_RESOURCE_STATUS, RESOURCE_BATCH_CPU, RESOURCE_CPU
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError, parse_milli
from roles.koordlet.hooks.context import Answer, ContainerContext, HostAppContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, Pods, RuleError
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.qos import view
from roles.koordlet.qos.outcome import Sample
from roles.koordlet.states.allocation import requests_cpu, stated_cpus
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs

NodePools = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class PoolRule:
    """Share pools by NUMA node as the node published them, in its order."""

    pools: NodePools = ()
    be_pools: NodePools = ()
    policy: str = ""
    """Of the kubelet's CPU manager."""
    system: str = ""
    """CPUs of class SYSTEM."""
    cpus: NodeCPUs = ANY_NODE
    beyond: frozenset[str] = frozenset()
    """Which of the CPUs for classes the BestEffort level has not all of: on cgroup v1 the kernel refuses them there."""

    @property
    def shared(self) -> str | None:
        """All share pools; None when there is none."""
        return ",".join(cpus for _, cpus in self.pools) or None

    def has(self, node: int) -> bool:
        """Whether the node published a share pool, maybe an empty one, of a NUMA node."""
        return any(node == number for number, _ in (*self.pools, *self.be_pools))

    def of_nodes(self, nodes: tuple[int, ...], *, best_effort: bool) -> str | None:
        """Pools of some NUMA nodes, in the order of the nodes."""
        by_node = dict(self.be_pools if best_effort else self.pools)
        return ",".join(by_node[node] for node in nodes if by_node.get(node)) or None


def _held(pod: PodContext, rule: PoolRule | None) -> CPUSet:
    """CPUs of the pod's own. A list that cannot be read is none: its author must not get out of the share pools by it.

    In a runtime's request it is an error, which fails the request or not as the policy says. Raises AnnotationError.
    """
    if pod.state is None:
        stated_cpus(pod.annotations.get(ANNOTATION_RESOURCE_STATUS, ""))
    return pod.held(rule.cpus if rule is not None else ANY_NODE).cpus


def _nodes(pod: PodContext) -> tuple[int, ...]:
    """NUMA nodes of which a pod that requests CPU has some; none where that cannot be read."""
    try:
        status = parse_resource_status(pod.annotations)
        if status is None or not requests_cpu(pod.claimant):
            return ()
        return tuple(
            part.node
            for part in status.numa_node_resources
            if any(parse_milli(part.resources.get(name, "0")) > 0 for name in (RESOURCE_CPU, RESOURCE_BATCH_CPU))
        )
    except (AnnotationError, QuantityError):
        return ()


class CPUSetAllocator(Hook[PoolRule]):
    """See the module."""

    name: ClassVar[str] = "CPUSetAllocator"
    pod_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_RUN_POD_SANDBOX,)
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER)
    rebuilds: ClassVar[tuple[str, ...]] = ("share_pool_info", "be_share_pool_info")

    def learn(self, snapshot: Snapshot, rule: PoolRule | None) -> PoolRule | None:
        if snapshot.nrt is None:
            return rule
        annotations = snapshot.nrt.annotations
        try:
            policy = parse_kubelet_cpu_manager_policy(annotations)
            system = parse_system_qos_resource(annotations)
            rule = PoolRule(
                pools=_pools(annotations, best_effort=False),
                be_pools=_pools(annotations, best_effort=True),
                policy=policy.policy if policy is not None else "",
                system=system.cpuset if system is not None else "",
                cpus=snapshot.cpus,
            )
            return replace(rule, beyond=_beyond(snapshot, rule.system, rule.shared or ""))
        except AnnotationError as error:
            raise RuleError(f"NodeResourceTopology {snapshot.node_name}: {error}") from None

    def pod(self, pod: PodContext, rule: PoolRule | None) -> Answer | None:
        return Answer(cpu_quota=-1) if self._unlimited(pod, rule) else None

    def container(self, container: ContainerContext, rule: PoolRule | None) -> Answer | None:
        pod = container.pod
        cpuset = self._cpuset(pod, rule)
        quota = -1 if self._unlimited(pod, rule) and not container.sandbox else None
        return Answer(cpuset=cpuset, cpu_quota=quota)

    def host_app(self, app: HostAppContext, rule: PoolRule | None) -> Answer | None:
        return Answer(cpuset=rule.shared) if rule is not None and app.qos is QoSClass.LS else None

    def samples(self, rule: PoolRule | None, pods: Pods) -> Iterator[Sample]:
        if rule is None:
            return
        for prefix, pools in (("share_pool", rule.pools), ("be_share_pool", rule.be_pools)):
            cpus = CPUSet.parse(",".join(cpus for _, cpus in pools))
            yield Sample(f"{prefix}_cores", len(cpus))
            if self.gate("PerCPUMetric"):
                yield from (Sample(f"{prefix}_info", 1, (str(cpu),)) for cpu in cpus)

    def _unlimited(self, pod: PodContext, rule: PoolRule | None) -> bool:
        """Bound pods need no quota, which would only throttle them on their own CPUs."""
        return bool(_held(pod, rule)) and not self.options.disable_unset_cpu_quota

    def _cpuset(self, pod: PodContext, rule: PoolRule | None) -> str | None:
        """CPUs for a pod's containers; None to leave them as they are, empty to take none."""
        own = _held(pod, rule)
        if own:
            return str(own)
        if rule is None:
            return None
        nodes = tuple(node for node in _nodes(pod) if rule.has(node))
        if nodes and (pod.qos is not QoSClass.BE or self.gate("BECPUManager")):
            return rule.of_nodes(nodes, best_effort=pod.qos is QoSClass.BE)
        cpus = self._of_class(pod, rule)
        return "" if pod.kube_qos == BESTEFFORT and cpus in rule.beyond else cpus

    @staticmethod
    def _of_class(pod: PodContext, rule: PoolRule) -> str | None:
        if pod.qos is QoSClass.SYSTEM and rule.system:
            return rule.system
        if pod.qos is QoSClass.LS:
            return rule.shared
        if pod.kube_qos == BESTEFFORT:
            return ""
        return None if rule.policy == "static" else rule.shared


def _beyond(snapshot: Snapshot, *lists: str) -> frozenset[str]:
    host = snapshot.host
    level = None if host.cgroups.v2 else view.cpuset(host, host.cgroups.qos_dir(BESTEFFORT))
    return frozenset() if level is None else frozenset(cpus for cpus in lists if not CPUSet.parse(cpus) <= level)


def _pools(annotations: dict[str, str], *, best_effort: bool) -> NodePools:
    pools = parse_cpu_shared_pools(annotations, best_effort=best_effort) or ()
    for pool in pools:
        try:
            CPUSet.parse(pool.cpuset)
        except CPUSetError as error:
            raise RuleError(f"share pool of NUMA node {pool.node}: {error}") from None
    return tuple((pool.node, pool.cpuset) for pool in pools if pool.cpuset)
