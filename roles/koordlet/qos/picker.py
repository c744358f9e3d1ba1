"""Which CPUs the best-effort tier gets when its CPUs are suppressed (KA-SUP-01). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from koord.accounting.cpuset import EMPTY, CPUSet
from koord.api.annotations import AnnotationError, parse_node_reservation, parse_system_qos_resource
from koord.api.qos import QoSClass
from roles.koordlet.host.topology import CPU, CPUTopology
from roles.koordlet.states.allocation import held_cpus
from roles.koordlet.states.model import PodState, TopologyState
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs


def pick(cpus: Sequence[CPU], wanted: int) -> list[int]:
    """``wanted`` CPUs, whole cores first, spread over the NUMA nodes; nothing when there are not that many."""
    if wanted <= 0 or len(cpus) < wanted:
        return []
    by_node: dict[tuple[int, int], list[CPU]] = {}
    for cpu in cpus:
        by_node.setdefault((cpu.node, cpu.socket), []).append(cpu)
    groups = [sorted(g, key=lambda c: (c.core, c.id)) for g in by_node.values()]
    groups.sort(key=lambda g: (-len(g), min(c.id for c in g)))
    picked: list[int] = []
    at = _pick_cores(groups, picked, wanted)
    # single CPUs, going on where the pairs ended
    left = [[c.id for c in g if c.id not in picked] for g in groups]
    while len(picked) < wanted:
        if left[at]:
            picked.append(left[at].pop(0))
        at = (at + 1) % len(left)
    return picked


def _pick_cores(groups: list[list[CPU]], picked: list[int], wanted: int) -> int:
    """Pairs of neighbours on one core, one a visit, round the groups; returns the group where it stopped."""
    used: set[int] = set()
    at, idle = 0, 0
    while wanted - len(picked) >= 2 and idle < len(groups):
        pair = _first_pair(groups[at], used)
        if pair is None:
            idle += 1
        else:
            idle = 0
            picked += pair
            used.update(pair)
        at = (at + 1) % len(groups)
    return at


def _first_pair(group: list[CPU], used: set[int]) -> tuple[int, int] | None:
    free = [c for c in group if c.id not in used]
    for first, second in pairwise(free):
        if first.core == second.core and first.socket == second.socket:
            return first.id, second.id
    return None


@dataclass(frozen=True, slots=True)
class Pools:
    """The node's CPUs by who may take them from the best-effort tier."""

    lsr: CPUSet = EMPTY
    lse: CPUSet = EMPTY
    """Exclusive ones: of LSE pods, and what the kubelet's CPU manager gave away."""
    reserved: CPUSet = EMPTY
    system: CPUSet = EMPTY
    problems: tuple[str, ...] = field(default=(), compare=False)

    def full(self, topology: CPUTopology) -> CPUSet:
        """The whole set of the tier: everything but exclusive, reserved and system-exclusive CPUs."""
        return CPUSet(topology.ids) - self.lse - self.reserved - self.system

    def candidates(self, topology: CPUTopology) -> tuple[list[CPU], list[CPU]]:
        """CPUs that LSR pods own, and all others that the tier may have; in topology order."""
        barred = self.lse | self.reserved | self.system
        owned = [c for c in topology if c.id in self.lsr and c.id not in barred]
        shared = [c for c in topology if c.id not in self.lsr and c.id not in barred]
        return owned, shared

    def minimal(self, topology: CPUTopology) -> CPUSet:
        """Where everything is taken: the least that the kernel accepts; empty where every CPU is exclusive."""
        return CPUSet(list(CPUSet(topology.ids) - self.lse)[:1])


def pools(pods: Sequence[PodState], nrt: TopologyState, node: NodeCPUs = ANY_NODE) -> Pools:
    """From what the pods hold and the annotations of NodeResourceTopology. What cannot be read is named and counts as none."""
    problems: list[str] = []
    lsr, lse = EMPTY, node.pinned_to_others("")
    for pod in pods:
        if pod.terminated:
            continue
        held = held_cpus(pod, node)
        if held.ignored:
            problems.append(f"pod {pod.key}: {held.ignored}")
        if held.exclusive:
            lse = lse | held.cpus
        elif pod.qos is QoSClass.LSR:
            lsr = lsr | held.cpus
    reserved = system = EMPTY
    try:
        reservation = parse_node_reservation(nrt.annotations)
        if reservation is not None:
            reserved = CPUSet.parse(reservation.reserved_cpus)
    except AnnotationError as error:
        problems.append(str(error))
    try:
        resource = parse_system_qos_resource(nrt.annotations)
        if resource is not None and resource.cpuset_exclusive:
            system = CPUSet.parse(resource.cpuset)
    except AnnotationError as error:
        problems.append(str(error))
    return Pools(lsr, lse, reserved, system, tuple(problems))


def allocated_cpus(pod: PodState, node: NodeCPUs = ANY_NODE) -> CPUSet:
    """CPUs of the pod's own; empty for one that shares."""
    return held_cpus(pod, node).cpus


def divide(topology: CPUTopology, held: Pools, allow_milli: int, old: int) -> CPUSet:
    """The new set of the tier from the allowance and the size of the old set; empty when no CPU is left for it.

    At least 2 CPUs, at most a tenth of the node more than now, and never more than there are.
    """
    owned, shared = held.candidates(topology)
    total = len(owned) + len(shared)
    if total == 0:
        return EMPTY
    wanted = max(-(-allow_milli // 1000), 2)
    growth = -(-len(topology) // 10)
    if wanted - old > growth:
        wanted = old + growth
    wanted = min(wanted, total)
    from_owned = wanted * len(owned) // total
    return CPUSet(pick(owned, from_owned) + pick(shared, wanted - from_owned))
