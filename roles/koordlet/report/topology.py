"""The NodeResourceTopology object: what it should say, and whether what stands there differs (KLO-SI-05). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from koord.accounting.cpuset import CPUSet
from koord.api import names
from koord.api.annotations import raw_allocatable
from koord.api.kinds import NODERESOURCETOPOLOGIES
from koord.api.labels import effective_cpu_bind_policy
from roles.koordlet.host.numa import NumaNode
from roles.koordlet.host.topology import BasicInfo, CPUTopology
from roles.koordlet.report.cpupools import (
    KubeletPolicy,
    Pinned,
    kubelet_pinned,
    node_reservation,
    owned_cpus,
    shared_pools,
    system_qos,
)
from roles.koordlet.report.zones import make_zones, merge_zones, numa_reserved, zone_values
from roles.koordlet.states.model import PodState
from roles.koordlet.states.nodecpus import NodeCPUs

if TYPE_CHECKING:
    from koord.api.objects import Node

Object = dict[str, Any]

ANNOTATIONS = (
    names.ANNOTATION_NRT_CPU_BASIC_INFO,
    names.ANNOTATION_NRT_CPU_TOPOLOGY,
    names.ANNOTATION_NRT_CPU_SHARED_POOLS,
    names.ANNOTATION_NRT_BE_CPU_SHARED_POOLS,
    names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY,
    names.ANNOTATION_NRT_POD_CPU_ALLOCS,
    names.ANNOTATION_NODE_RESERVATION,
    names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE,
)


@dataclass(frozen=True, slots=True)
class TopologyInput:
    """Everything that the object is computed from."""

    node: Node
    topology: CPUTopology
    basic: BasicInfo
    numa: Sequence[NumaNode]
    pods: Sequence[PodState]
    policy: KubeletPolicy
    cpu_manager_state: bytes | None = None
    """Content of the kubelet's checkpoint; None when there is no such file."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the object should say."""

    annotations: dict[str, str]
    labels: dict[str, str]
    policies: list[str]
    zones: list[dict[str, Any]]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def compute(data: TopologyInput) -> Wanted:
    """Raises :class:`~roles.koordlet.report.zones.ZoneError` or ``CPUStateError``; then nothing is to be changed."""
    topology, node = data.topology, data.node
    node_annotations = node.metadata.annotations
    pinned, cpus = _held_on(data)
    from_ls, from_be = owned_cpus(data.pods, pinned, cpus)
    reservation, reserved_cpus = node_reservation(node_annotations, topology)
    system, system_cpus = system_qos(node_annotations)
    withheld: CPUSet = reserved_cpus | system_cpus
    detail = [{"id": c.id, "core": c.core, "socket": c.socket, "node": c.node} for c in topology.by_id.values()]
    annotations = {
        names.ANNOTATION_NRT_CPU_BASIC_INFO: _json(data.basic.wire()),
        names.ANNOTATION_NRT_CPU_TOPOLOGY: _json({"detail": detail}),
        names.ANNOTATION_NRT_CPU_SHARED_POOLS: _json(shared_pools(topology, from_ls, withheld)),
        names.ANNOTATION_NRT_BE_CPU_SHARED_POOLS: _json(shared_pools(topology, from_be, withheld)),
        names.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: _json(data.policy.annotation()),
        names.ANNOTATION_NRT_POD_CPU_ALLOCS: _json([p.wire() for p in pinned] or None),
        names.ANNOTATION_NODE_RESERVATION: _json(reservation),
        names.ANNOTATION_NODE_SYSTEM_QOS_RESOURCE: _json(system),
    }
    numa_label = node.metadata.labels.get(names.LABEL_NODE_ENABLE_NUMA_RESERVATION, "")
    reserved: dict[str, int] = {}
    if numa_label == "true":
        zones = {"cpu": len(topology.nodes), "memory": sum(node.memory.total > 0 for node in data.numa)}
        reserved = numa_reserved(node.status.capacity, raw_allocatable(node.status.allocatable, node.metadata.annotations), zones)
    return Wanted(
        annotations=annotations,
        labels={names.LABEL_NODE_ENABLE_NUMA_RESERVATION: numa_label} if numa_label else {},
        policies=[data.policy.topology_policy],
        zones=make_zones(topology, data.numa, reserved),
    )


def _held_on(data: TopologyInput) -> tuple[list[Pinned], NodeCPUs]:
    """The kubelet's pods with their CPUs, and with them the node's side of every other answer."""
    policy = data.policy
    bind = effective_cpu_bind_policy(data.node.metadata.labels, policy.cpu_manager, policy.options)
    cpus = NodeCPUs(CPUSet(data.topology.ids), bind != names.NODE_CPU_BIND_NONE)
    if not policy.static:
        return [], cpus
    # who claims CPUs of a pod of the kubelet's is itself only a pod of the kubelet's
    first = kubelet_pinned(data.cpu_manager_state, data.pods, cpus)
    cpus = replace(cpus, pinned={entry.uid: entry.cpus for entry in first})
    pinned = kubelet_pinned(data.cpu_manager_state, data.pods, cpus)
    return pinned, replace(cpus, pinned={entry.uid: entry.cpus for entry in pinned})


def new_object(node: Node) -> Object:
    """The empty object that is created when the node has none."""
    return {
        "apiVersion": NODERESOURCETOPOLOGIES.api_version,
        "kind": NODERESOURCETOPOLOGIES.kind,
        "metadata": {
            "name": node.metadata.name,
            "labels": {names.LABEL_MANAGED_BY: "Koordinator"},
            "ownerReferences": [owner_reference(node)],
        },
        "topologyPolicies": ["None"],
        "zones": [],
    }


def owner_reference(node: Node) -> Object:
    """A controller reference to the Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _parsed(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, str) else ...
    except orjson.JSONDecodeError:
        return ...


def difference(existing: Object, wanted: Wanted) -> Object | None:
    """The merge patch that brings an object to what is wanted, or None when nothing that counts differs.

    Annotations compare as JSON values. Zones are sent as a whole list, with what others keep in them.
    """
    metadata = existing.get("metadata") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    changed = {k: v for k, v in wanted.annotations.items() if _parsed(annotations.get(k)) != _parsed(v)}
    changed_labels: Object = {k: v for k, v in wanted.labels.items() if labels.get(k) != v}
    if not wanted.labels and names.LABEL_NODE_ENABLE_NUMA_RESERVATION in labels:
        changed_labels[names.LABEL_NODE_ENABLE_NUMA_RESERVATION] = None
    zones = merge_zones(existing.get("zones") or [], wanted.zones)
    fields: Object = {}
    if list(existing.get("topologyPolicies") or []) != wanted.policies:
        fields["topologyPolicies"] = wanted.policies
    if zone_values(existing.get("zones") or []) != zone_values(zones):
        fields["zones"] = zones
    return merge_patch(metadata, changed_labels, changed, fields)


def merge_patch(metadata: Object, labels: Object, annotations: Object, fields: Object) -> Object | None:
    """Of the changes those that there are, None for none; against the version that was read.

    Fields may be lists: another writer's change between our read and this patch must not be lost.
    """
    changed: Object = {name: value for name, value in (("labels", labels), ("annotations", annotations)) if value}
    if not changed and not fields:
        return None
    if metadata.get("resourceVersion"):
        changed["resourceVersion"] = metadata["resourceVersion"]
    return {"metadata": changed, **fields} if changed else fields
