"""What a node offers, from its NodeResourceTopology and the Node itself (SCH-NUMA-02, 05, 06, 09, 10)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from koord.accounting.cpuset import EMPTY, CPUSet, CPUSetError
from koord.accounting.resources import ResourceVector, amplify, parse_quantity
from koord.api import annotations as api
from koord.api import names
from koord.api.labels import effective_cpu_bind_policy, numa_topology_policy
from koord.api.objects import NodeResourceTopology
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.plugins.numa.machine import MAX_NUMA_NODE, NO_MACHINE, Machine, machine_of
from roles.scheduler.plugins.numa.picks import NODE_POLICIES
from roles.scheduler.plugins.topology_manager.hints import Policy, mask_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_ZONE_TYPE = "Node"
_ZONE_PREFIX = "node-"
_KUBELET_POLICIES = {
    "BestEffort": Policy.BEST_EFFORT, "Restricted": Policy.RESTRICTED, "SingleNUMANodePodLevel": Policy.SINGLE_NUMA_NODE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """What a NodeResourceTopology says. `zones` are allocatable by NUMA node as reported; `ratios` None where it has none."""

    machine: Machine = NO_MACHINE
    reserved: int = 0
    cpu_manager: str = ""
    cpu_manager_options: Mapping[str, str] = field(default_factory=dict)
    policy: Policy = Policy.NONE
    zones: Mapping[int, ResourceVector] = field(default_factory=dict)
    ratios: Mapping[str, float] | None = None


NO_REPORT = Report()


@dataclass(frozen=True, slots=True)
class Facts:
    """A node as allocation sees it. `zones` are allocatable by NUMA node, ascending, amplified and without reserved CPUs; `ratio` is the
    amplification of cpu, None where the Node's annotation cannot be read; `strategy` is the label, "" for the default."""

    machine: Machine = NO_MACHINE
    reserved: int = 0
    bind_policy: str = ""
    policy: Policy = Policy.NONE
    strategy: str = ""
    zones: Mapping[int, ResourceVector] = field(default_factory=dict)
    zone_mask: int = 0
    resources: frozenset[str] = frozenset()
    ratios: Mapping[str, float] = field(default_factory=dict)
    ratio: float | None = 1.0


NO_FACTS = Facts()


def read_report(topology: NodeResourceTopology) -> Report:
    """Read the object; what cannot be read is named in the log and counts as absent."""
    name, annotations = topology.metadata.name, topology.metadata.annotations or {}

    def read(parse: Callable[[Mapping[str, str]], T], default: T) -> T:
        return _tolerant(name, lambda: parse(annotations), default)

    text = annotations.get(names.ANNOTATION_NRT_CPU_TOPOLOGY, "")
    machine = _tolerant(name, lambda: machine_of(text), NO_MACHINE) if text else NO_MACHINE
    kubelet = read(api.parse_kubelet_cpu_manager_policy, None) or api.KubeletCPUManagerPolicy()
    policy = next((_KUBELET_POLICIES[p] for p in topology.topology_policies if p in _KUBELET_POLICIES), Policy.NONE)
    reserved, zones = _reserved(name, annotations, kubelet.reserved_cpus), _zones(topology)
    return Report(machine, reserved, kubelet.policy, kubelet.options, policy, zones, read(api.parse_amplification_ratios, None))


def facts_of(report: Report, node: NodeView) -> Facts:
    """A report together with the Node's labels and annotations."""
    labels, annotations = node.labels, node.annotations
    reserved = report.reserved | _node_reserved(node.name, annotations)
    ratios: Mapping[str, float] | None = report.ratios
    broken = False
    if ratios is None:
        try:
            ratios = _sane(api.parse_amplification_ratios(annotations) or {})
        except api.AnnotationError as error:
            log.warning("node %s: %s", node.name, error)
            ratios, broken = {}, True
    amplified = report.ratios is not None  # the reported zones have the ratios in them
    zones: dict[int, ResourceVector] = {}
    for zone, amounts in sorted(report.zones.items()):
        cpus = report.machine.nodes.get(zone, 0) & reserved
        rest = dict(amounts)
        if cpus and names.RESOURCE_CPU in rest:
            rest[names.RESOURCE_CPU] = max(0, rest[names.RESOURCE_CPU] - 1000 * cpus.bit_count())
        zones[zone] = rest if amplified else amplify(rest, ratios)
    bind = effective_cpu_bind_policy(labels, report.cpu_manager, report.cpu_manager_options)
    label = Policy(numa_topology_policy(labels))
    return Facts(
        machine=report.machine,
        reserved=reserved,
        bind_policy=NODE_POLICIES.get(bind, ""),
        policy=label or report.policy,
        strategy=labels.get(names.LABEL_NODE_NUMA_ALLOCATE_STRATEGY, ""),
        zones=zones,
        zone_mask=mask_of(zones),
        resources=frozenset(name for amounts in zones.values() for name in amounts),
        ratios=ratios,
        ratio=None if broken else max(1.0, ratios.get(names.RESOURCE_CPU, 1.0)),
    )


def _tolerant(name: str, read: Callable[[], T], default: T) -> T:
    try:
        return read()
    except ValueError as error:
        log.warning("NodeResourceTopology %s: %s; it counts as absent", name, error)
        return default


def _sane(ratios: Mapping[str, float]) -> Mapping[str, float]:
    for name, ratio in ratios.items():
        if not math.isfinite(ratio):
            raise api.AnnotationError(names.ANNOTATION_NODE_RESOURCE_AMPLIFICATION_RATIO, f"{name}: {ratio} is no ratio")
    return ratios


def _cpus(name: str, text: str) -> CPUSet:
    return _tolerant(name, lambda: CPUSet.parse(text), EMPTY) if text else EMPTY


def _reserved(name: str, annotations: Mapping[str, str], kubelet: str) -> int:
    """CPUs that are not handed out: the kubelet's own, those of pods that it pinned, the node reservation's, the system tier's."""
    allocs = _tolerant(name, lambda: api.parse_pod_cpu_allocs(annotations), None) or ()
    system = _tolerant(name, lambda: api.parse_system_qos_resource(annotations), None)
    cpus = _cpus(name, kubelet) | CPUSet.from_mask(_node_reserved(name, annotations))
    for alloc in allocs:
        if alloc.managed_by_kubelet and alloc.uid and alloc.cpuset:
            cpus |= _cpus(name, alloc.cpuset)
    if system is not None and system.cpuset_exclusive:
        cpus |= _cpus(name, system.cpuset)
    return cpus.mask


def _node_reserved(name: str, annotations: Mapping[str, str]) -> int:
    if names.ANNOTATION_NODE_RESERVATION not in annotations:
        return 0
    try:
        reservation = api.parse_node_reservation(annotations)
        return CPUSet.parse(reservation.reserved_cpus).mask if reservation is not None else 0
    except (ValueError, CPUSetError) as error:
        log.warning("node %s: %s; it is ignored", name, error)
        return 0


def _zones(topology: NodeResourceTopology) -> dict[int, ResourceVector]:
    """Allocatable by NUMA node. A zone that cannot be read is left out."""
    found: dict[int, ResourceVector] = {}
    for zone in topology.zones:
        number = zone.name.removeprefix(_ZONE_PREFIX)
        if zone.type != _ZONE_TYPE or not zone.name.startswith(_ZONE_PREFIX) or not number.isascii() or not number.isdigit():
            continue
        if int(number) > MAX_NUMA_NODE:
            log.warning("NodeResourceTopology %s: zone %s is left out: ids go up to %d", topology.metadata.name, zone.name, MAX_NUMA_NODE)
            continue
        try:
            found[int(number)] = {entry.name: parse_quantity(entry.name, entry.allocatable) for entry in zone.resources if entry.name}
        except ValueError as error:
            log.warning("NodeResourceTopology %s: zone %s: %s; it is left out", topology.metadata.name, zone.name, error)
    return found
