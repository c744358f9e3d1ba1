"""RemovePodsViolatingTopologySpreadConstraint: evict pods from domains that have too many (DS-K8S-08)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import model_validator

from koord.api.objects import Pod
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.plugins.community.common import ChoosingPlugin, CommunityArgs, importance, one_of
from roles.descheduler.podindex import PodIndex, asked_for, in_order
from roles.descheduler.snapshot import NodeView, PodView
from roles.descheduler.spreading import DomainMaps, Spread, Uneven, compiled, moves

POLICIES = ("DoNotSchedule", "ScheduleAnyway")
AT_ONCE = 2000  # pods that are counted before others get their turn


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


class RemovePodsViolatingTopologySpreadConstraint(ChoosingPlugin[RemovePodsViolatingTopologySpreadConstraintArgs]):
    """A Balance plugin without memory."""

    name: ClassVar[str] = "RemovePodsViolatingTopologySpreadConstraint"
    point: ClassVar[str] = BALANCE

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Namespace by namespace, constraint by constraint; then the pods that all of them together give up leave, each once."""
        pods, spreads = PodIndex(), Spreads(frozenset(self.args.constraints))
        for node in nodes:
            if handle.pause(1 + len(node.pods)):
                yield PAUSE
            pods.add(node.pods)
        for alike in pods.templates.values():
            if handle.pause():
                yield PAUSE
            if self._chosen(alike.view.pod) and not all(pods.view(number).leaving for number in alike.numbers):
                spreads.collect(alike.view)
        if not spreads.found:
            yield from free(handle, *pods.tables())
            return
        columns = yield from Columns.paced(nodes)
        for _ in columns.know(pods, spreads.keys):
            yield PAUSE
        for key in sorted(spreads.topology_keys):
            columns.labels.column(key)
            yield PAUSE
        maps = DomainMaps(columns)
        leaving: dict[str, tuple[PodView, str]] = {}
        for few in self._batches(spreads, pods):
            for (spread, _), uneven in zip(few, maps.uneven(few, pods), strict=True):
                if handle.pause():
                    yield PAUSE
                if uneven is None:
                    continue
                given_up = yield from self._given_up(spread, uneven, pods, maps, handle)
                reason = spread.reason() if given_up else ""
                for view in given_up:
                    leaving.setdefault(view.pod.metadata.uid, (view, reason))
            yield PAUSE
        yield from free(handle, *spreads.found.values())
        yield from columns.free(handle)
        for view, reason in leaving.values():
            if not handle.filter(view.pod):
                yield Evict(view.pod, reason)
        yield from free(handle, leaving)

    def _batches(self, spreads: Spreads, pods: PodIndex) -> Iterator[list[tuple[Spread, Sequence[int]]]]:
        """The constraints with the numbers of their pods, namespace by namespace, a few at a time."""
        few: list[tuple[Spread, Sequence[int]]] = []
        size = 0
        for namespace, found in sorted(spreads.found.items()):
            for spread in found.values():
                few.append((spread, in_order([each for each in pods.alike(namespace, spread.selector) if self._chosen(each.view.pod)])))
                size += 1 + len(few[-1][1])
                if size >= AT_ONCE:
                    yield few
                    few, size = [], 0
        if few:
            yield few

    def _given_up(
        self, spread: Spread, uneven: Uneven, pods: PodIndex, maps: DomainMaps, handle: Handle
    ) -> Generator[Effect, bool, list[PodView]]:
        """Pods that leave, of the domains that have more than the average.

        One whose migration is under way counts where it is until it has been told to leave, and is the first that its domain gives up."""
        domains, count = uneven.domains, uneven.count
        average = uneven.size / count
        below = maps.smaller(spread, domains, average)
        known: dict[bytes, _Like] = {}
        view_of, rows = pods.view, pods.rows
        fit: set[int] = set()  # pods that would find a place
        for domain in domains:
            if len(domain.pods) <= average:
                continue
            # the last ones leave first: pods that stay anyway stand in front, then those bound to nodes, then the important ones
            order = []
            for number in domain.pods:
                if handle.pause():
                    yield PAUSE
                view = view_of(number)
                pod = view.pod
                evictable = not view.leaving and not handle.filter(pod)
                template = view.template
                like = known.get(template)
                if like is None:
                    like = known[template] = _Like(_bound_to_nodes(pod))
                if evictable and like.fits is None:
                    like.fits = bool(maps.columns.elsewhere(view, community=True, among=below))
                fits = evictable and bool(like.fits)
                if fits:
                    fit.add(number)
                priority, stays, qos, cost = importance(view)
                rank = (-priority, not stays, -qos, -cost, rows[number], pod.metadata.name, number)
                order.append((view.leaving, fits, evictable, not like.bound, rank))
            order.sort()
            domain.pods = [rank[-1] for *_, rank in order]
        if not self.args.topology_balance_node_fit:
            gone = moves(domains, average, spread.max_skew, spread.most(count))
            return [view for number in gone if not (view := view_of(number)).leaving]
        taken: dict[tuple[bytes, int], bool] = {}

        def takes(number: int, domain: int) -> bool:
            view = view_of(number)
            if (view.template, domain) not in taken:
                taken[view.template, domain] = maps.takes(spread, view, domain)
            return taken[view.template, domain]

        if not fit:
            return []
        return [view_of(number) for number in moves(domains, average, spread.max_skew, spread.most(count), takes) if number in fit]


@dataclass(slots=True)
class _Like:
    """Pods of one template: whether they are bound to nodes, and whether they would find a place (None: nobody has asked yet)."""

    bound: bool
    fits: bool | None = None


class Spreads:
    """The distinct constraints of pods, by namespace, and the labels that they ask for. `wanted` are values of whenUnsatisfiable."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self.found: dict[str, dict[object, Spread]] = {}
        self.keys: set[str] = set()
        self.topology_keys: set[str] = set()

    def collect(self, view: PodView) -> None:
        """One pod of each template is looked at. A constraint whose selector cannot be read is passed over."""
        for spread in compiled(view):
            if spread.policy in self._wanted:
                self.found.setdefault(view.pod.metadata.namespace, {}).setdefault(spread.identity, spread)
                self.keys.update(asked_for(spread.selector))
                self.topology_keys.add(spread.topology_key)


def _bound_to_nodes(pod: Pod) -> bool:
    return bool(pod.spec.node_selector) or (pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None)
