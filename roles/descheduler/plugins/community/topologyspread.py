"""RemovePodsViolatingTopologySpreadConstraint: evict pods from domains that have too many (DS-K8S-08)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import ClassVar

import msgspec
from pydantic import model_validator

from koord.api.objects import Pod
from koord.api.selectors import SelectorError
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, importance, in_name_order, one_of
from roles.descheduler.plugins.community.spreading import DomainMaps, Spread, moves, spelling
from roles.descheduler.podindex import PodIndex

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
        pods = PodIndex()
        spreads: dict[str, dict[object, Spread]] = {}
        seen: set[bytes] = set()
        for node in nodes:
            for view in in_name_order(node.pods):
                if handle.pause():
                    yield PAUSE
                if self._chosen(view.pod) and not view.leaving:
                    pods.add(view)
                    self._collect(view.pod, seen, spreads.setdefault(view.pod.metadata.namespace, {}))
        maps = DomainMaps((yield from Columns.paced(nodes)))
        leaving: dict[str, tuple[PodView, str]] = {}
        for namespace, found in sorted(spreads.items()):
            for spread in found.values():
                if handle.pause():
                    yield PAUSE
                matching = pods.matching(namespace, spread.selector)
                if handle.pause(len(matching)):
                    yield PAUSE
                given_up = yield from self._given_up(spread, matching, maps, handle)
                for view in given_up:
                    leaving.setdefault(view.pod.metadata.uid, (view, spread.reason()))
        for view, reason in leaving.values():
            if not handle.filter(view.pod):
                yield Evict(view.pod, reason)

    def _collect(self, pod: Pod, seen: set[bytes], spreads: dict[object, Spread]) -> None:
        """Each distinct constraint, once. A constraint whose selector cannot be read is passed over."""
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable not in self.args.constraints:
                continue
            key = spelling(constraint, pod)
            if key in seen:
                continue
            seen.add(key)
            with contextlib.suppress(SelectorError):
                spread = Spread(constraint, pod)
                spreads.setdefault(spread.identity, spread)

    def _given_up(self, spread: Spread, views: list[PodView], maps: DomainMaps, handle: Handle) -> Generator[Effect, bool, list[PodView]]:
        domains, count, size = maps.filled(spread, views)
        sizes = [len(domain.pods) for domain in domains]
        if not sizes or max(sizes) - min(sizes) <= spread.max_skew:
            return []
        for _ in maps.columns.learn():
            yield PAUSE
        average = size / count
        below = maps.smaller(spread, domains, average)
        fits: dict[bytes, bool] = {}

        def fits_below(view: PodView) -> bool:
            shape = _shape(view)
            if shape not in fits:
                fits[shape] = bool(maps.columns.elsewhere(view, community=True, among=below))
            return fits[shape]

        for domain in domains:
            # the last ones leave first: pods that stay anyway stand in front, then those bound to nodes, then the important ones
            order: dict[str, tuple[bool, bool, bool, float, bool, int, int]] = {}
            for view in domain.pods:
                if handle.pause():
                    yield PAUSE
                evictable = not handle.filter(view.pod)
                fit = evictable and len(domain.pods) > average and fits_below(view)
                priority, stays, qos, cost = importance(view.pod)
                order[view.pod.metadata.uid] = (fit, evictable, not _bound_to_nodes(view.pod), -priority, not stays, -qos, -cost)
            domain.pods.sort(key=lambda view: order[view.pod.metadata.uid])
        moved = moves(domains, average, spread.max_skew, spread.most(count))
        return [view for view in moved if not self.args.topology_balance_node_fit or fits_below(view)]


def _shape(view: PodView) -> bytes:
    """What decides where a pod fits, apart from its own node."""
    spec = view.pod.spec
    return msgspec.json.encode(
        (sorted(view.requests.items()), spec.node_selector, spec.affinity, spec.tolerations, view.pod.metadata.namespace)
    )


def _bound_to_nodes(pod: Pod) -> bool:
    return bool(pod.spec.node_selector) or (pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None)
