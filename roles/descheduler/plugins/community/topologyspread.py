"""RemovePodsViolatingTopologySpreadConstraint: evict pods from domains that have too many (DS-K8S-08)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import ClassVar

from pydantic import model_validator

from koord.api.objects import Pod
from koord.api.selectors import SelectorError
from roles.descheduler.columns import Columns, shape_of
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, importance, one_of
from roles.descheduler.plugins.community.spreading import DomainMaps, Spread, moves, spelling

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
        spreads = Spreads(frozenset(self.args.constraints))
        for node in nodes:
            for view in node.pods:
                if handle.pause():
                    yield PAUSE
                if view.pod.spec.topology_spread_constraints and not view.leaving and self._chosen(view.pod):
                    spreads.collect(view.pod)
        if not spreads.found:
            return
        columns = yield from Columns.paced(nodes)
        for _ in columns.learn(spreads.keys):
            yield PAUSE
        maps = DomainMaps(columns)
        leaving: dict[str, tuple[PodView, str]] = {}
        for namespace, found in sorted(spreads.found.items()):
            for spread in found.values():
                matching = [view for view in columns.matching(namespace, spread.selector) if not view.leaving and self._chosen(view.pod)]
                if handle.pause(1 + len(matching)):
                    yield PAUSE
                given_up = yield from self._given_up(spread, matching, maps, handle)
                for view in given_up:
                    leaving.setdefault(view.pod.metadata.uid, (view, spread.reason()))
            yield from free(handle, found)
        yield from columns.free(handle)
        yield from free(handle, spreads.seen)
        for view, reason in leaving.values():
            if not handle.filter(view.pod):
                yield Evict(view.pod, reason)
        yield from free(handle, leaving)

    def _given_up(self, spread: Spread, views: list[PodView], maps: DomainMaps, handle: Handle) -> Generator[Effect, bool, list[PodView]]:
        """Pods that leave, of the domains that have more than the average."""
        domains, count, size = maps.filled(spread, views)
        if not domains or len(domains[-1].pods) - len(domains[0].pods) <= spread.max_skew:
            return []
        average = size / count
        columns, below = maps.columns, maps.smaller(spread, domains, average)
        known: dict[bytes, bool] = {}
        fit: set[str] = set()

        def fits_below(view: PodView) -> bool:
            shape = shape_of(view)
            if shape not in known:
                known[shape] = bool(columns.elsewhere(view, community=True, among=below))
            return known[shape]

        for domain in domains:
            if len(domain.pods) <= average:
                continue
            # the last ones leave first: pods that stay anyway stand in front, then those bound to nodes, then the important ones
            order: dict[str, tuple[object, ...]] = {}
            for view in domain.pods:
                if handle.pause():
                    yield PAUSE
                evictable = not handle.filter(view.pod)
                priority, stays, qos, cost = importance(view.pod)
                fits = evictable and fits_below(view)
                if fits:
                    fit.add(view.pod.metadata.uid)
                place = columns.row(view.pod.spec.node_name), view.pod.metadata.name
                order[view.pod.metadata.uid] = (fits, evictable, not _bound_to_nodes(view.pod), -priority, not stays, -qos, -cost, *place)
            domain.pods.sort(key=lambda view: order[view.pod.metadata.uid])
        moved = moves(domains, average, spread.max_skew, spread.most(count))
        return [view for view in moved if not self.args.topology_balance_node_fit or view.pod.metadata.uid in fit]


class Spreads:
    """The distinct constraints of pods, by namespace, and the labels that they ask for. `wanted` are values of whenUnsatisfiable."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self.found: dict[str, dict[object, Spread]] = {}
        self.keys: set[str] = set()
        self.seen: dict[bytes, None] = {}

    def collect(self, pod: Pod) -> None:
        """A constraint whose selector cannot be read is passed over."""
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable not in self._wanted:
                continue
            key = spelling(constraint, pod)
            if key in self.seen:
                continue
            self.seen[key] = None
            with contextlib.suppress(SelectorError):
                spread = Spread(constraint, pod)
                self.found.setdefault(pod.metadata.namespace, {}).setdefault(spread.identity, spread)
                self.keys.update(each.key for each in spread.selector.requirements if each.operator == "In")


def _bound_to_nodes(pod: Pod) -> bool:
    return bool(pod.spec.node_selector) or (pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None)
