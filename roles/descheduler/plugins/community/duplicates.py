"""RemoveDuplicates: spread pods of one owner that crowd on a node (DS-K8S-07)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

import msgspec

from koord.api.objects import Pod
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.nodefit import Placeable, compiled_affinity, untolerated
from roles.descheduler.picture import NodeView
from roles.descheduler.plugins.community.common import CommunityNamespaces, LenientModel, age, candidates, owner_kinds

OwnerKey = tuple[str, str, str, str]  # namespace, kind, name, images
PodKey = tuple[tuple[str, ...], ...]


class RemoveDuplicatesArgs(LenientModel):
    """RemoveDuplicates."""

    namespaces: CommunityNamespaces | None = None
    """Namespaces whose pods are looked at."""
    exclude_owner_kinds: list[str] = []
    """Kinds of owners whose pods stay."""


@dataclass(slots=True)
class Duplicates:
    """Pods of one owner with the same images: how many there are in all, and those beyond the first of each node."""

    total: int = 0
    extra: dict[str, list[Pod]] = field(default_factory=dict)


class RemoveDuplicates:
    """A Balance plugin without memory. On each node the pod whose eviction costs most stays, among equals the oldest."""

    name: ClassVar[str] = "RemoveDuplicates"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: RemoveDuplicatesArgs, interval: float) -> None:
        self.args = args

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Owner by owner: no node keeps more than an even share of the pods."""
        gone: set[str] = set()
        collected: dict[OwnerKey, Duplicates] = {}
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            self._collect(node, handle, collected)
        suited: dict[bytes, frozenset[str]] = {}
        for (namespace, kind, name, _), found in sorted(collected.items()):
            if handle.pause():
                yield PAUSE
            targets = _targets(found, nodes, suited)
            if targets < 2:
                continue
            upper = ceil(found.total / targets)
            for where, pods in sorted(found.extra.items()):
                if len(pods) + 1 <= upper:
                    continue
                reason = f"node {where} has {len(pods) + 1} pods of {kind} {namespace}/{name}, {upper} would be even"
                for pod in pods[upper - 1 :]:
                    if pod.metadata.uid not in gone and (yield Evict(pod, reason)):
                        gone.add(pod.metadata.uid)

    def _collect(self, node: NodeView, handle: Handle, found: dict[OwnerKey, Duplicates]) -> None:
        seen: Counter[PodKey] = Counter()
        pods = [view.pod for view in candidates(node, handle, self._chosen)]
        for pod in sorted(pods, key=lambda pod: (-eviction_cost(pod), -age(pod, handle.now))):
            key, owners = _pod_key(pod), _owner_keys(pod)
            for owner in owners:
                entry = found.setdefault(owner, Duplicates())
                entry.total += 1
                if seen[key]:
                    entry.extra.setdefault(node.name, []).append(pod)
            seen[key] += 1

    def _chosen(self, pod: Pod) -> bool:
        if not pod.metadata.owner_references or owner_kinds(pod) & set(self.args.exclude_owner_kinds):
            return False
        return self.args.namespaces is None or self.args.namespaces.allows(pod.metadata.namespace)


def _images(pod: Pod) -> list[str]:
    return sorted(container.image for container in pod.spec.containers)


def _owner_keys(pod: Pod) -> list[OwnerKey]:
    images = "#".join(_images(pod))
    return [(pod.metadata.namespace, owner.kind, owner.name, images) for owner in pod.metadata.owner_references]


def _pod_key(pod: Pod) -> PodKey:
    owners = [(pod.metadata.namespace, owner.kind, owner.name) for owner in pod.metadata.owner_references]
    return tuple(sorted((*owner, image) for owner in owners for image in _images(pod)))


def _targets(found: Duplicates, nodes: list[NodeView], known: dict[bytes, frozenset[str]]) -> int:
    """How many nodes suit the duplicates by taints and labels; `known` keeps what was found out about pods of the same shape.

    A pod that only one node suits cannot be spread, and says nothing about others."""
    sets: dict[bytes, frozenset[str]] = {}
    for pods in found.extra.values():
        for pod in pods:
            spec = pod.spec
            shape = msgspec.json.encode((spec.node_selector, spec.affinity.node_affinity if spec.affinity else None, spec.tolerations))
            if shape not in known:
                rule = compiled_affinity(pod)
                known[shape] = frozenset(
                    node.name
                    for node in nodes
                    if untolerated(pod, node.node) is None and not Placeable.affinity_problem(pod, node.node, rule)
                )
            if len(known[shape]) > 1:
                sets[shape] = known[shape]
    return len(frozenset().union(*sets.values())) if len(sets) > 1 else sum(map(len, sets.values()))
