"""RemoveDuplicates: spread pods of one owner that crowd on a node (DS-K8S-07)."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

import msgspec

from koord.api.objects import Pod
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import Runs, free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.nodefit import Placeable, compiled_affinity, untolerated
from roles.descheduler.plugins.community.common import (
    CommunityNamespaces,
    LenientModel,
    age,
    in_name_order,
    may_leave,
    owner_kinds,
)
from roles.descheduler.snapshot import NodeView, PodView

OwnerKey = tuple[str, str, str, str]  # namespace, kind, name, images
Extra = dict[str, list[Pod]]  # pods of one owner beyond the first of each node


class RemoveDuplicatesArgs(LenientModel):
    """RemoveDuplicates."""

    namespaces: CommunityNamespaces | None = None
    """Namespaces whose pods are looked at."""
    exclude_owner_kinds: list[str] = []
    """Kinds of owners whose pods stay."""


class RemoveDuplicates:
    """A Balance plugin without memory. On each node the pod whose eviction costs most stays, among equals the oldest."""

    name: ClassVar[str] = "RemoveDuplicates"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: RemoveDuplicatesArgs, interval: float) -> None:
        self.args = args

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Owner by owner: no node keeps more than an even share of the pods."""
        gone: set[str] = set()
        total: dict[OwnerKey, int] = {}
        extra: dict[OwnerKey, Extra] = {}
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            self._collect(node, handle, total, extra)
        owners = Runs[Extra]()
        for owner, found in extra.items():
            if handle.pause():
                yield PAUSE
            owners.add(owner, found)
        suited: dict[bytes, frozenset[str]] = {}
        for owner, found in owners.in_order():
            if handle.pause():
                yield PAUSE
            targets = _targets(found, nodes, suited)
            if targets < 2:
                continue
            namespace, kind, name, _ = owner
            upper = ceil(total[owner] / targets)
            for where, pods in sorted(found.items()):
                if len(pods) + 1 <= upper:
                    continue
                reason = f"node {where} has {len(pods) + 1} pods of {kind} {namespace}/{name}, {upper} would be even"
                for pod in pods[upper - 1 :]:
                    if pod.metadata.uid not in gone and (yield Evict(pod, reason)):
                        gone.add(pod.metadata.uid)
        yield from free(handle, total, extra)

    def _collect(self, node: NodeView, handle: Handle, total: dict[OwnerKey, int], extra: dict[OwnerKey, Extra]) -> None:
        """Count the pods of each owner, and find those beside which a pod of the same owners stays."""
        alike: dict[tuple[OwnerKey, ...], list[PodView]] = {}
        for view in node.pods:
            pod = view.pod
            if not pod.metadata.owner_references or not may_leave(view, handle, self._chosen):
                continue
            owners = _owner_keys(pod)
            for owner in owners:
                total[owner] = total.get(owner, 0) + 1
            beside = alike.get(owners)
            if beside is None:
                alike[owners] = [view]
            else:
                beside.append(view)
        if len(alike) == len(node.pods):
            return
        beyond = [(view, owners) for owners, views in alike.items() for view in self._by_rank(views, handle)[1:]]
        owners_of = {view.pod.metadata.uid: owners for view, owners in beyond}
        for view in self._by_rank([view for view, _ in beyond], handle):
            for owner in owners_of[view.pod.metadata.uid]:
                extra.setdefault(owner, {}).setdefault(node.name, []).append(view.pod)

    @staticmethod
    def _by_rank(views: list[PodView], handle: Handle) -> list[PodView]:
        """The pod that stays is first."""
        if len(views) < 2:
            return views
        return sorted(in_name_order(views), key=lambda view: (-eviction_cost(view.pod), -age(view.pod, handle.now)))

    def _chosen(self, pod: Pod) -> bool:
        if not pod.metadata.owner_references or (self.args.exclude_owner_kinds and owner_kinds(pod) & set(self.args.exclude_owner_kinds)):
            return False
        return self.args.namespaces is None or self.args.namespaces.allows(pod.metadata.namespace)


def _owner_keys(pod: Pod) -> tuple[OwnerKey, ...]:
    """Each owner together with the images, in an order that does not depend on how they are listed."""
    containers = pod.spec.containers
    images = containers[0].image if len(containers) == 1 else "#".join(sorted(container.image for container in containers))
    namespace = pod.metadata.namespace
    found = [(namespace, owner.kind, owner.name, images) for owner in pod.metadata.owner_references]
    return tuple(sorted(found) if len(found) > 1 else found)


def _targets(found: Extra, nodes: list[NodeView], known: dict[bytes, frozenset[str]]) -> int:
    """How many nodes suit the duplicates by taints and labels; `known` keeps what was found out about pods of the same shape.

    A pod that only one node suits cannot be spread, and says nothing about others."""
    sets: dict[bytes, frozenset[str]] = {}
    for pods in found.values():
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
