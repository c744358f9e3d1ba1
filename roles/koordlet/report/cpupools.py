"""CPUs of the node by who may use them: shared pools, pods pinned by the kubelet, reservations (KLO-SI-05). Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from koord.accounting.cpuset import EMPTY, CPUSet, CPUSetError
from koord.api.names import ANNOTATION_NODE_RESERVATION, ANNOTATION_NODE_SYSTEM_QOS_RESOURCE
from koord.api.qos import QoSClass
from koord.api.quantity import Quantity, QuantityError, parse_milli
from roles.koordlet.host.topology import CPUTopology
from roles.koordlet.report.packing import PackingError, take_packed
from roles.koordlet.states.allocation import claimant, held, held_cpus
from roles.koordlet.states.model import PodState
from roles.koordlet.states.nodecpus import ANY_NODE, NodeCPUs

log = logging.getLogger(__name__)


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The JSON object of an annotation; None when it is absent or not an object."""
    if not text:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _cpus(text: object) -> CPUSet:
    """A CPU list of a foreign object; what cannot be read is the empty set."""
    try:
        return CPUSet.parse(text) if isinstance(text, str) else EMPTY
    except CPUSetError:
        return EMPTY


def pod_cpuset(pod: PodState, node: NodeCPUs = ANY_NODE) -> CPUSet:
    """CPUs of the pod's own, as the topology shows them; empty for one that shares."""
    return held_cpus(pod, node).cpus


@dataclass(frozen=True, slots=True)
class KubeletPolicy:
    """What the kubelet's configuration says about CPUs. ``known`` is False when the kubelet is not asked."""

    known: bool = False
    cpu_manager: str = ""
    options: dict[str, str] = field(default_factory=dict)
    reserved: CPUSet = EMPTY
    topology_policy: str = "None"

    @property
    def static(self) -> bool:
        return self.cpu_manager == "static"

    def annotation(self) -> dict[str, Any]:
        """``{policy, options, reservedCPUs}`` without empty ones; ``{}`` when the kubelet is not asked."""
        out: dict[str, Any] = {}
        if self.known and self.cpu_manager:
            out["policy"] = self.cpu_manager
        if self.known and self.options:
            out["options"] = self.options
        if self.static and self.reserved:
            out["reservedCPUs"] = str(self.reserved)
        return out


_TOPOLOGY_POLICIES = {
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
}


def _cpu_milli(reserved: object) -> int:
    quantity = reserved.get("cpu") if isinstance(reserved, dict) else None
    if quantity is None:
        return 0
    try:
        return parse_milli(quantity)
    except QuantityError as error:
        log.warning("kubelet configuration: reserved cpu is ignored: %s", error)
        return 0


def kubelet_policy(config: Mapping[str, Any], topology: CPUTopology) -> KubeletPolicy:
    """The parts of ``kubeletconfig`` that matter for CPUs."""
    manager = str(config.get("cpuManagerPolicy") or "")
    options = config.get("cpuManagerPolicyOptions")
    reserved = EMPTY
    if manager == "static":
        reserved = _static_reserved(config, topology)
    key = (str(config.get("topologyManagerPolicy") or ""), str(config.get("topologyManagerScope") or "container"))
    return KubeletPolicy(
        known=True,
        cpu_manager=manager,
        options={str(k): str(v) for k, v in options.items()} if isinstance(options, dict) else {},
        reserved=reserved,
        topology_policy=_TOPOLOGY_POLICIES.get(key, "None"),
    )


def _static_reserved(config: Mapping[str, Any], topology: CPUTopology) -> CPUSet:
    everything = CPUSet(topology.ids)
    explicit = config.get("reservedSystemCPUs")
    if explicit:
        cpus = _cpus(explicit)
        if not cpus or not cpus <= everything:
            log.warning("kubelet configuration: reservedSystemCPUs %r is not a subset of this node's CPUs %s", explicit, everything)
            return EMPTY
        return cpus
    milli = _cpu_milli(config.get("kubeReserved")) + _cpu_milli(config.get("systemReserved"))
    try:
        return take_packed(topology, everything, -(-milli // 1000))
    except PackingError as error:
        log.warning("kubelet configuration: reserved CPUs are ignored: %s", error)
        return EMPTY


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pod whose CPUs the kubelet's static policy chose."""

    uid: str
    namespace: str
    name: str
    cpus: CPUSet

    def wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        out = {k: v for k, v in out.items() if v}
        return {**out, "cpuset": str(self.cpus), "managedByKubelet": True}


def _scheduled(pod: PodState, node: NodeCPUs) -> bool:
    """Whether the pod's CPUs are those that the scheduler gave it."""
    return bool(held(pod.annotations, claimant(pod), node).cpus)


class CPUStateError(ValueError):
    """``cpu_manager_state`` is there but cannot be understood."""


def kubelet_pinned(state: bytes | None, pods: Sequence[PodState], node: NodeCPUs = ANY_NODE) -> list[Pinned]:
    """Pods of ``cpu_manager_state`` that koordinator does not manage, by uid. No or an empty file: none."""
    if state is None or not state.strip():
        return []
    try:
        entries = orjson.loads(state).get("entries") or {}
        rows = [(str(uid), list(containers.values())) for uid, containers in entries.items()]
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise CPUStateError(f"cpu_manager_state is not a checkpoint of the kubelet: {error}") from None
    by_uid = {p.uid: p for p in pods}
    out: list[Pinned] = []
    for uid, cpusets in sorted(rows):
        pod = by_uid.get(uid)
        if pod is not None and (pod.qos_label in {QoSClass.LS, QoSClass.BE} or _scheduled(pod, node)):
            continue
        cpus = EMPTY
        for text in cpusets:
            cpus = cpus | _cpus(text)
        if cpus:
            out.append(Pinned(uid, pod.namespace if pod else "", pod.name if pod else "", cpus))
    return out


def _quantities(resources: object) -> dict[str, str]:
    """A resource list as whoever reads the object compares it: canonical. Raises QuantityError."""
    return {str(name): str(Quantity(quantity)) for name, quantity in resources.items()} if isinstance(resources, dict) else {}


def node_reservation(annotations: Mapping[str, str], topology: CPUTopology) -> tuple[dict[str, Any], CPUSet]:
    """The published reservation and its CPUs: explicit ``reservedCPUs``, else ceil(cpu) CPUs by the packing rule."""
    given = _json_object(annotations.get(ANNOTATION_NODE_RESERVATION))
    if given is None:
        return {}, EMPTY
    try:
        resources = _quantities(given.get("resources"))
    except QuantityError as error:
        log.warning("node annotation %s is ignored: resources: %s", ANNOTATION_NODE_RESERVATION, error)
        return {}, EMPTY
    cpus = EMPTY
    if given.get("reservedCPUs"):
        cpus = _cpus(given["reservedCPUs"])
    elif "cpu" in resources:
        try:
            cpus = take_packed(topology, CPUSet(topology.ids), -(-parse_milli(resources["cpu"]) // 1000))
        except PackingError as error:
            log.warning("node annotation %s: %s", ANNOTATION_NODE_RESERVATION, error)
    out: dict[str, Any] = {}
    if resources:
        out["resources"] = resources
    if cpus:
        out["reservedCPUs"] = str(cpus)
    if given.get("applyPolicy"):
        out["applyPolicy"] = given["applyPolicy"]
    return out, cpus


def system_qos(annotations: Mapping[str, str]) -> tuple[dict[str, Any] | None, CPUSet]:
    """The published system-QoS resource and its exclusive CPUs (none when ``cpusetExclusive`` is false)."""
    if not annotations:
        return None, EMPTY
    given = _json_object(annotations.get(ANNOTATION_NODE_SYSTEM_QOS_RESOURCE))
    if given is None:
        return {}, EMPTY
    exclusive = given.get("cpusetExclusive") is not False
    return given, _cpus(given.get("cpuset")) if exclusive else EMPTY


def shared_pools(topology: CPUTopology, owned: CPUSet, withheld: CPUSet) -> list[dict[str, Any]]:
    """One pool a NUMA node that has CPUs besides ``owned``; ``withheld`` ones leave it, and may leave it empty."""
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in topology:
        if cpu.id not in owned:
            groups.setdefault((cpu.socket, cpu.node), []).append(cpu.id)
    pools: list[dict[str, Any]] = []
    for (socket, node), ids in sorted(groups.items()):
        pool: dict[str, Any] = {"socket": socket, "node": node}
        left = CPUSet(ids) - withheld
        if left:
            pool["cpuset"] = str(left)
        pools.append(pool)
    return pools


def owned_cpus(pods: Sequence[PodState], pinned: Sequence[Pinned], node: NodeCPUs = ANY_NODE) -> tuple[CPUSet, CPUSet]:
    """CPUs that leave the LS pool, and those that leave the BE pool (exclusive ones only)."""
    by_kubelet = EMPTY
    for entry in pinned:
        by_kubelet = by_kubelet | entry.cpus
    from_ls = from_be = by_kubelet
    for pod in pods:
        if pod.terminated:
            continue
        own = held_cpus(pod, node)
        from_ls = from_ls | own.cpus
        if own.exclusive:
            from_be = from_be | own.cpus
    return from_ls, from_be
