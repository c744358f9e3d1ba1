"""RemovePodsViolatingTopologySpreadConstraint: evict pods from domains that have too many (DS-K8S-08)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import model_validator

from koord.api.objects import Pod, TopologySpreadConstraint
from koord.kube.selectors import SelectorError
from roles.descheduler.framework.effects import Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.nodefit import Placeable
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, importance, in_name_order, one_of
from roles.descheduler.plugins.community.spreading import Domain, Spread, moves

POLICIES = ("DoNotSchedule", "ScheduleAnyway")


class RemovePodsViolatingTopologySpreadConstraintArgs(CommunityArgs):
    """RemovePodsViolatingTopologySpreadConstraint; `constraints` are the whenUnsatisfiable values that count."""

    constraints: list[str] = ["DoNotSchedule"]
    """Constraints that count, by whenUnsatisfiable: `DoNotSchedule`, `ScheduleAnyway`."""
    topology_balance_node_fit: bool = True
    """A pod may leave only if a node of a smaller domain would take it."""

    @model_validator(mode="after")
    def _accepted(self) -> RemovePodsViolatingTopologySpreadConstraintArgs:
        one_of("constraints", self.constraints, POLICIES)
        return self


class RemovePodsViolatingTopologySpreadConstraint:
    """A Balance plugin without memory."""

    name: ClassVar[str] = "RemovePodsViolatingTopologySpreadConstraint"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: RemovePodsViolatingTopologySpreadConstraintArgs, interval: float) -> None:
        self.args = args
        self._chosen = args.chosen()

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Namespace by namespace, constraint by constraint; then the pods that all of them together give up leave, each once."""
        by_namespace: dict[str, list[PodView]] = {}
        for node in nodes:
            for view in in_name_order(node.pods):
                if self._chosen(view.pod) and not view.leaving:
                    by_namespace.setdefault(view.pod.metadata.namespace, []).append(view)
        leaving: dict[str, tuple[PodView, str]] = {}
        for _, views in sorted(by_namespace.items()):
            for spread in self._spreads(views):
                for view in self._given_up(spread, views, nodes, handle):
                    leaving.setdefault(view.pod.metadata.uid, (view, spread.reason()))
        for view, reason in leaving.values():
            if not handle.filter(view.pod):
                yield Evict(view.pod, reason)

    def _spreads(self, views: Iterable[PodView]) -> Iterator[Spread]:
        """Each distinct constraint of the pods, once."""
        seen: set[object] = set()
        for view in views:
            for constraint in view.pod.spec.topology_spread_constraints:
                if constraint.when_unsatisfiable not in self.args.constraints:
                    continue
                spread = _compiled(constraint, view.pod)
                if spread is not None and spread.identity not in seen:
                    seen.add(spread.identity)
                    yield spread

    def _given_up(self, spread: Spread, views: list[PodView], nodes: list[NodeView], handle: Handle) -> list[PodView]:
        domains = _domains(spread, views, nodes)
        sizes = [len(domain.pods) for domain in domains.values()]
        if not sizes or max(sizes) - min(sizes) <= spread.max_skew:
            return []
        average = sum(sizes) / len(sizes)
        below = [node for domain in domains.values() if len(domain.pods) < average for node in domain.nodes]
        fits: dict[str, bool] = {}

        def fits_below(view: PodView) -> bool:
            uid = view.pod.metadata.uid
            if uid not in fits:
                pod = Placeable(view)
                fits[uid] = any(node.name != view.pod.spec.node_name and not pod.community_unfit(node) for node in below)
            return fits[uid]

        evictable = {view.pod.metadata.uid: not handle.filter(view.pod) for domain in domains.values() for view in domain.pods}
        for domain in domains.values():
            # the last ones leave first: pods that stay anyway stand in front, then those bound to nodes, then the important ones
            domain.pods.sort(key=lambda view: importance(view.pod), reverse=True)
            domain.pods.sort(key=lambda view: not _bound_to_nodes(view.pod))
            domain.pods.sort(key=lambda view: evictable[view.pod.metadata.uid])
            if len(domain.pods) > average:
                domain.pods.sort(key=lambda view: evictable[view.pod.metadata.uid] and fits_below(view))
        moved = moves(sorted(domains.values(), key=lambda domain: (len(domain.pods), domain.value)), average, spread.max_skew)
        return [view for view in moved if not self.args.topology_balance_node_fit or fits_below(view)]


def _compiled(constraint: TopologySpreadConstraint, pod: Pod) -> Spread | None:
    """None for a constraint whose selector cannot be read."""
    try:
        return Spread(constraint, pod)
    except SelectorError:
        return None


def _domains(spread: Spread, views: Iterable[PodView], nodes: list[NodeView]) -> dict[str, Domain]:
    """Domains of the nodes that count, also empty ones, with the matching pods that are not on their way out."""
    domains: dict[str, Domain] = {}
    of_node: dict[str, Domain] = {}
    for node in nodes:
        value = node.node.metadata.labels.get(spread.topology_key)
        if value is None:
            continue
        if spread.counts(node):
            domain = domains.setdefault(value, Domain(value))
            domain.nodes.append(node)
            of_node[node.name] = domain
    for view in views:
        domain_ = of_node.get(view.pod.spec.node_name)
        if domain_ is not None and not view.pod.metadata.deletion_timestamp and spread.selector.matches(view.pod.metadata.labels):
            domain_.pods.append(view)
    return domains


def _bound_to_nodes(pod: Pod) -> bool:
    return bool(pod.spec.node_selector) or (pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None)
