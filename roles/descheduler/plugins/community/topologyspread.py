"""RemovePodsViolatingTopologySpreadConstraint: evict pods from domains that have too many (DS-K8S-08)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import ClassVar

from pydantic import model_validator

from koord.api.objects import Pod
from koord.api.selectors import SelectorError
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.community.common import CommunityArgs, importance, one_of
from roles.descheduler.spreading import DomainMaps, Spread, moves

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
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            for view in node.pods:
                if not view.leaving and self._chosen(view.pod):
                    spreads.collect(view)
        if not spreads.found:
            return
        columns = yield from Columns.paced(nodes)
        for _ in columns.learn(spreads.keys):
            yield PAUSE
        maps = DomainMaps(columns)
        leaving: dict[str, tuple[PodView, str]] = {}
        for namespace, found in sorted(spreads.found.items()):
            for spread in found.values():
                matching = [view for view in columns.matching(namespace, spread.selector) if not view.accepted and self._chosen(view.pod)]
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
        """Pods that leave, of the domains that have more than the average.

        One whose migration is under way counts where it is until it has been told to leave, and is the first that its domain gives up."""
        domains, count, size = maps.filled(spread, views)
        if not domains or len(domains[-1].pods) - len(domains[0].pods) <= spread.max_skew:
            return []
        average = size / count
        columns, below = maps.columns, maps.smaller(spread, domains, average)
        known: dict[bytes, bool] = {}
        fit: set[int] = set()  # ids of the views of pods that would find a place
        for domain in domains:
            if len(domain.pods) <= average:
                continue
            # the last ones leave first: pods that stay anyway stand in front, then those bound to nodes, then the important ones
            order = []
            for number, view in enumerate(domain.pods):
                if handle.pause():
                    yield PAUSE
                pod = view.pod
                evictable = not view.leaving and not handle.filter(pod)
                if fits := evictable:
                    template = view.template
                    if template not in known:
                        known[template] = bool(columns.elsewhere(view, community=True, among=below))
                    if fits := known[template]:
                        fit.add(id(view))
                priority, stays, qos, cost = importance(pod)
                place = columns.row(pod.spec.node_name), pod.metadata.name
                order.append((view.leaving, fits, evictable, not _bound_to_nodes(pod), -priority, not stays, -qos, -cost, *place, number))
            order.sort()
            domain.pods = [domain.pods[each[-1]] for each in order]
        if not self.args.topology_balance_node_fit:
            return [view for view in moves(domains, average, spread.max_skew, spread.most(count)) if not view.leaving]
        taken: dict[tuple[bytes, str], bool] = {}

        def takes(view: PodView, value: str) -> bool:
            if (view.template, value) not in taken:
                taken[view.template, value] = columns.fits_one(view, maps.rows(spread, value))
            return taken[view.template, value]

        return [view for view in moves(domains, average, spread.max_skew, spread.most(count), takes) if id(view) in fit] if fit else []


class Spreads:
    """The distinct constraints of pods, by namespace, and the labels that they ask for. `wanted` are values of whenUnsatisfiable."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self.found: dict[str, dict[object, Spread]] = {}
        self.keys: set[str] = set()
        self.seen: dict[bytes, None] = {}

    def collect(self, view: PodView) -> None:
        """One pod of each template is looked at. A constraint whose selector cannot be read is passed over."""
        template = view.template
        if template in self.seen:
            return
        self.seen[template] = None
        pod = view.pod
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable not in self._wanted:
                continue
            with contextlib.suppress(SelectorError):
                spread = Spread(constraint, pod)
                self.found.setdefault(pod.metadata.namespace, {}).setdefault(spread.identity, spread)
                self.keys.update(each.key for each in spread.selector.requirements if each.operator == "In")


def _bound_to_nodes(pod: Pod) -> bool:
    return bool(pod.spec.node_selector) or (pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None)
