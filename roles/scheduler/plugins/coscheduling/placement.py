"""Placing a gang group as a whole: the plan, made once a round, that every member then follows (SCH-NT-02)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koord import seams
from koord.api.annotations import AnnotationError, parse_gang_network_topology_index
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle, Survey
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import SUCCESS, Code, Status, error
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.coscheduling.cache import BOUND, RELEASED, WAITING, Gang, GangCache, Round
from roles.scheduler.plugins.network_topology.network import Network, selector_of
from roles.scheduler.plugins.network_topology.offers import Offers, offers
from roles.scheduler.plugins.network_topology.plan import Demand, Layout, Offer, Planner, demand_of
from roles.scheduler.plugins.network_topology.tree import Tree

PLUGIN = "Coscheduling"
_SHOWN = 10  # places whose offer is told when nothing fits


def rank_of(pod: PodInfo) -> tuple[int, int, str]:
    """Sorts members by rank: the index of the annotation first, then those without one, then by name."""
    try:
        index = parse_gang_network_topology_index(pod.pod.metadata.annotations)
    except AnnotationError:
        index = None
    return (0, index, pod.name) if index is not None and index >= 0 else (1, 0, pod.name)


def _laid(counts: Mapping[int, int], capacity: int) -> NDArray[np.intp]:
    """Counts by slot as a column."""
    found = np.zeros(capacity, dtype=np.intp)
    found[list(counts)] = list(counts.values())
    return found


class Placement:
    """Plans with a cycle of its own, so that looking disturbs no decision under way."""

    def __init__(self, handle: Handle, cache: GangCache, network: Network, *, aware: bool = True) -> None:
        self._handle = handle
        self._aware = aware
        self._cache = cache
        self.network = network
        self._cycle: Cycle | None = None

    @property
    def cycle(self) -> Cycle:
        """The cycle that what-ifs about jobs use."""
        if self._cycle is None:
            self._cycle = Cycle(self._handle.frameworks, self._handle.state)
        return self._cycle

    def gathers(self, gang: Gang) -> bool:
        """Whether the gang's pods are placed along the network tree, or in one domain."""
        spec = gang.spec
        return spec is not None and (bool(spec.domain) or (self._aware and spec.topology is not None))

    def tree_of(self, gang: Gang) -> Tree | None:
        """The tree along which a gang is placed; None while there is none."""
        if gang.spec is not None and gang.spec.domain:
            return self.network.domains(gang.spec.domain)
        return self.network.tree() if self._handle.network_topology else None

    def find(self, ctx: CycleContext, gang: Gang, current: Round, candidates: NDArray[np.bool_]) -> Steps[tuple[Status, str]]:
        """The node that the plan has for the pod of a gang that is gathered."""
        if current.plan is None:
            status = yield from self._make(ctx, gang, current, candidates)
            if not status.ok:
                return status, ""
        node = (current.plan or {}).get(ctx.pod.uid)
        return (SUCCESS, node) if node else (error(f"gang {gang.id}: the plan has no node for pod {ctx.pod.key}"), "")

    def _make(self, ctx: CycleContext, gang: Gang, current: Round, candidates: NDArray[np.bool_]) -> Steps[Status]:
        tree = self.tree_of(gang)
        if tree is None:
            return error(f"gang {gang.id} asks for a place in the network, but there is no cluster network topology")
        pods = sorted(self._cache.ready(gang), key=rank_of)
        if all(pod.uid != ctx.pod.uid for pod in pods):
            return error(f"gang {gang.id}: pod {ctx.pod.key} is not among its pending pods")
        current.unplanned = False
        started = seams.perf_counter()
        layout, found = yield from self.layout(tree, gang, pods, candidates)
        if not layout.counts:
            fewest = self._fewest(gang, pods, ctx.pod)
            if len(fewest) < len(pods):
                pods = fewest
                layout, found = yield from self.layout(tree, gang, pods, candidates)
        if not layout.counts:
            current.unplanned = True
            current.places = tuple(layout.offered)
            return Status(Code.UNSCHEDULABLE, (self._refusal(gang, len(pods), layout, found.first),), also=found.refusing())
        nodes = [name for name, count in layout.counts for _ in range(count)]
        current.batch = self._handle.gates.get("EnableInlineBatchSchedule", False)
        if current.batch:
            took = seams.perf_counter() - started
            ctx.effects.append(lambda: self._cache.metrics.batch_planned(took))
        current.offered = dict(layout.counts)
        current.follow({pod.uid: node for pod, node in zip(pods, nodes, strict=True)})
        return SUCCESS

    def layout(self, tree: Tree, gang: Gang, pods: Sequence[PodInfo], candidates: NDArray[np.bool_]) -> Steps[tuple[Layout, Offers]]:
        """Where pods of a gang, in order of rank, go as things are."""
        spec = gang.spec
        assert spec is not None
        cluster = self._handle.state.cluster
        found = yield from offers(self.cycle, self._handle.state, pods, candidates, PLUGIN)
        leaves = self.network.slots_of(tree)
        totals, kind = found.first.evaluation.totals, selector_of(pods[0])
        slots = np.where(leaves >= 0, found.counts[leaves], 0)
        scores = np.where(slots > 0, totals[leaves], 0.0) if len(totals) else None
        existing = _laid(self.network.counts(kind), cluster.capacity)[leaves] if kind else None
        own = self._placed(gang)
        demand = Demand(len(pods), spec.domain)
        if spec.topology is not None:
            demand = demand_of(tree, spec.topology, len(pods))
        return Planner(tree, demand, Offer(slots, scores, existing, _laid(own, cluster.capacity)[leaves] if own else None)).plan(), found

    def _placed(self, gang: Gang) -> dict[int, int]:
        """Members of the group that have nodes already, by slot."""
        cluster = self._handle.state.cluster
        found: dict[int, int] = {}
        for stage in (WAITING, RELEASED, BOUND):
            for pod in self._cache.members(gang, stage):
                slot = cluster.slot_of_pod(pod.uid)
                if slot >= 0:
                    found[slot] = found.get(slot, 0) + 1
        return found

    def _fewest(self, gang: Gang, pods: Sequence[PodInfo], first: PodInfo) -> list[PodInfo]:
        """As many pods as the gangs of the group need at least, the pod at hand among them: that one alone where they need nobody more."""
        left = {other.id: other.lacking(other.spec) for other in self._cache.peers(gang) if other.spec is not None}
        chosen: set[str] = set()
        for pod in (first, *pods):
            other = self._cache.gang_of(pod)
            if other is not None and pod.uid not in chosen and left.get(other.id, 0) > 0:
                left[other.id] -= 1
                chosen.add(pod.uid)
        return [pod for pod in pods if pod.uid in chosen] or [first]

    def _refusal(self, gang: Gang, wanted: int, layout: Layout, first: Survey) -> str:
        """What is missing: the pods, what the places offer, what refuses the first pod, and the multiples."""
        assert gang.spec is not None
        most = sorted(layout.offered, key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{name}: {count}" for name, count in most[:_SHOWN])
        more = f" and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
        strategies = gang.spec.topology.gather_strategy if gang.spec.topology is not None else ()
        multiples = ", ".join(f"{s.layer}: {s.pod_count_multiple}" for s in strategies if s.pod_count_multiple > 1)
        where = f"domain of label {gang.spec.domain}" if gang.spec.domain else "place in the network"
        text = f"no {where} takes {wanted} pods of gang group {gang.group.id} together; they offer {shown}{more}"
        if multiples:
            text += f"; numbers of pods must be multiples of {multiples}"
        return f"{text}; {first.failure().message().rstrip('.')}"
