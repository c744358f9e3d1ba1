"""The node's side of "which CPUs has this pod": which there are, and whom the kubelet gave some (BEY-SEC-03, KA-HK-02). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koord.accounting.cpuset import EMPTY, CPUSet, CPUSetError
from koord.api import names
from koord.api.annotations import AnnotationError, parse_kubelet_cpu_manager_policy, parse_pod_cpu_allocs
from koord.api.labels import effective_cpu_bind_policy

if TYPE_CHECKING:
    from koord.api.objects import Node
    from roles.koordlet.host.topology import CPUTopology


@dataclass(frozen=True, slots=True)
class NodeCPUs:
    """The node's side of every answer."""

    present: CPUSet = EMPTY
    """CPUs of the node; empty while they are not known."""
    binds_all: bool = False
    """The node's CPU bind policy gives CPUs to every pod that requests them, whatever its class."""
    pinned: Mapping[str, CPUSet] = field(default_factory=dict)
    """CPUs that the kubelet's CPU manager gave away, by the pod's uid."""

    def pinned_to_others(self, uid: str) -> CPUSet:
        """CPUs of the kubelet's pods but for one."""
        out = EMPTY
        for owner, cpus in self.pinned.items():
            if owner != uid:
                out = out | cpus
        return out


ANY_NODE = NodeCPUs()


def node_cpus(node: Node | None, annotations: Mapping[str, str], topology: CPUTopology | None) -> NodeCPUs:
    """From the Node's labels and what its NodeResourceTopology publishes. What cannot be read counts as not said."""
    try:
        policy = parse_kubelet_cpu_manager_policy(annotations)
    except AnnotationError:
        policy = None
    labels = node.metadata.labels if node is not None else {}
    bind = effective_cpu_bind_policy(labels, policy.policy if policy else "", policy.options if policy else None)
    return NodeCPUs(
        present=CPUSet(topology.ids) if topology is not None else EMPTY,
        binds_all=bind != names.NODE_CPU_BIND_NONE,
        pinned=_pinned(annotations),
    )


def _pinned(annotations: Mapping[str, str]) -> dict[str, CPUSet]:
    try:
        entries = parse_pod_cpu_allocs(annotations) or ()
    except AnnotationError:
        return {}
    out: dict[str, CPUSet] = {}
    for entry in entries:
        if entry.managed_by_kubelet and (cpus := cpus_of(entry.cpuset)):
            out[entry.uid] = out.get(entry.uid, EMPTY) | cpus
    return out


def cpus_of(text: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return EMPTY
