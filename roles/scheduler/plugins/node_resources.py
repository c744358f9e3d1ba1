"""NodeResourcesFit and NodeResourcesBalancedAllocation over the resource columns (SCH-KS-02, SCH-KS-03).

Scores are whole numbers. Products stay below 2^53 and quotients of the sizes nodes have (below 128 TiB) never round across a whole
number, so flooring a float64 quotient equals integer division.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import is_extended
from koord.api import names
from koord.api.kinds import DEVICECLASSES
from koord.decisions.record import NOBODY_OFFERS, Term
from roles.scheduler.cluster.arithmetic import AnyRows, at, at_least, at_most, floored, looked_up, several
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cluster.vocabulary import CPU, MEMORY
from roles.scheduler.config.args import NodeResourcesBalancedAllocationArgs, NodeResourcesFitArgs, ResourceWeight
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, PreFilter, PreScore, Rejection, Score
from roles.scheduler.framework.status import SKIP, SUCCESS, Status
from roles.scheduler.framework.tally import Tally

log = logging.getLogger(__name__)

_TOO_MANY_PODS = 1
_NEVER_FITS = 1 << 60
_TOLD_APART = 58  # resources of a pod that have a bit of their own; those beyond share the one after
RESOURCE_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
"""What the resource of a device class by its own name begins with."""
_NONE: Mapping[str, str] = {}


def is_scalar(resource: str) -> bool:
    """Extended resources, huge pages and attachable volumes: those that scoring skips for pods that do not ask for them."""
    return (
        "/" in resource
        or resource.startswith(names.RESOURCE_HUGEPAGES_PREFIX)
        or resource.startswith(names.RESOURCE_ATTACHABLE_VOLUMES_PREFIX)
    )


class Scored(NamedTuple):
    """The resources that count in a score: their ids; (id, what the pod adds in base units, weight) of each; and what the weights add up
    to, at least 1."""

    resources: tuple[int, ...]
    lines: list[tuple[int, float, float]]
    weight: float


def scored(resources: Sequence[ResourceWeight], shape: PodShape, cluster: Cluster, *, non_zero: bool) -> Scored:
    """The resources that count for a pod. `non_zero`: CPU and memory with scheduler defaults for containers without requests."""
    found: list[tuple[int, float, float]] = []
    for entry in resources:
        amount = float(shape.amounts.get(entry.name, 0))
        if amount == 0 and is_scalar(entry.name):
            continue
        resource = cluster.vocabulary.resources.intern(entry.name)
        cluster.ensure(resource)
        if non_zero and resource in (CPU, MEMORY):
            amount = shape.non_zero[resource]
        found.append((resource, amount, float(entry.weight)))
    return scored_of(found)


def scored_of(found: Iterable[tuple[int, float, float]]) -> Scored:
    """What counts, of resources by id with what the pod adds and the weight."""
    lines = sorted(found)  # what is added up are whole numbers: the order does not matter
    return Scored(tuple(resource for resource, _, _ in lines), lines, max(sum(weight for _, _, weight in lines), 1.0))


def left_percent(free: Any, amount: Any, divisor: Any) -> Any:
    """What stays free beside an amount, in whole percent of what there is; 0 where there is nothing."""
    part = free - amount
    part = at_least(part, 0.0)
    part *= 100.0
    part /= divisor
    return floored(part)


def used_percent(free: Any, amount: Any, capacity: Any, divisor: Any) -> Any:
    """What is used with an amount more, in whole percent of what there is and at most all of it; 0 where there is nothing."""
    part = capacity - (free - amount)
    part = at_most(at_least(part, 0.0), capacity)
    part *= 100.0
    part /= divisor
    return floored(part)


def mean_percent(
    cluster: Cluster, counted: Scored, rows: AnyRows, *,
    most: bool, table: Vector | None = None, non_zero: bool = False, more_cpu: Any = None,
) -> Any:  # fmt: skip
    """What is used (`most`) or stays free with the pod, in percent: the weighted mean of the resources that a node has, not rounded.

    `table` has the score of each percentage; resources that score nothing do not count then. `non_zero`: what is free by the defaults for
    containers without requests. `more_cpu` is milli-CPU that amplification adds.
    """
    all_count = table is None and cluster.everywhere(counted.resources)
    total: Any = None
    weights: Any = 0.0  # of what counts, where not everything does
    for resource, amount, weight in counted.lines:
        free = at(cluster.non_zero_free[resource] if non_zero and resource <= MEMORY else cluster.free[resource], rows)
        divisor = at(cluster.divisor[resource], rows)
        more = amount + more_cpu if more_cpu is not None and resource == CPU else amount
        if most:
            part = used_percent(free, more, at(cluster.allocatable[resource], rows), divisor)
        else:
            part = left_percent(free, more, divisor)
        if table is not None:
            part = looked_up(table, part)
        if not all_count:
            counts = divisor < np.inf
            part *= counts
            weights = weights + (counts if table is None else counts & (part > 0)) * weight
        if weight != 1.0:
            part *= weight
        if total is None:
            total = part
        else:
            total += part
    total /= counted.weight if all_count else at_least(weights, 1.0)
    return total


class NodeResourcesFit(PreFilter, Filter, Score):
    """Refuses nodes without room; scores by LeastAllocated, MostAllocated or RequestedToCapacityRatio.

    The filter only says yes or no; which resources lack is worked out when a failure is explained. Refined codes are bit masks: bit 0
    too many pods, bit i+1 the pod's i-th resource (bit 59 those from the 58th on), bit 60 when a resource is more than the node has in all.
    """

    name = "NodeResourcesFit"
    Args = NodeResourcesFitArgs
    takes_slot = True

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ignored = frozenset(args.ignored_resources) | handle.extended
        self._ignored_prefixes = tuple(f"{group}/" for group in args.ignored_resource_groups)
        native = [name for name in args.ignored_resources if not is_extended(name)]
        native += [group for group in args.ignored_resource_groups if not is_extended(f"{group}/x")]
        if native:
            log.warning("profile %s: %s: %s cannot be ignored, only extended resources can", handle.profile, self.name, ", ".join(native))
        self._most = args.scoring_strategy.type != "LeastAllocated"
        ratio = args.scoring_strategy.requested_to_capacity_ratio
        self._ratio = None  # the score of each percentage, where it is not the percentage itself
        if args.scoring_strategy.type == "RequestedToCapacityRatio" and ratio is not None:
            self._ratio = ratio_table([(point.utilization, point.score * 10) for point in ratio.shape])
        self._memo_key = f"{self.name}/score"

    # ---------------------------------------------------------------- filter

    def pre_filter(self, ctx: CycleContext) -> Status:
        cluster, shape = ctx.cluster, ctx.pod.shape
        wanted = tuple(
            (resource, amount) for resource, amount in shape.requests if not self._ignores(cluster.vocabulary.resources[resource])
        )
        for resource, _ in wanted:
            cluster.ensure(resource)
        ctx.data[self.name] = wanted
        return SUCCESS

    def _wanted(self, ctx: CycleContext) -> tuple[tuple[int, float], ...]:
        """(resource, amount) that must fit."""
        if self.name not in ctx.data:
            self.pre_filter(ctx)
        wanted: tuple[tuple[int, float], ...] = ctx.data[self.name]
        return wanted

    def _scored(self, ctx: CycleContext) -> Scored:
        known: Scored | None = ctx.data.get(self._memo_key)
        if known is None:
            known = ctx.data[self._memo_key] = scored(self.args.scoring_strategy.resources, ctx.pod.shape, ctx.cluster, non_zero=True)
        return known

    def _ignores(self, resource: str) -> bool:
        if resource in names.COUNTED_BY_CARD:
            return True
        named = resource in self._ignored or (bool(self._ignored_prefixes) and resource.startswith(self._ignored_prefixes))
        return named and is_extended(resource)

    def filter(self, ctx: CycleContext, rows: AnyRows) -> Any:
        cluster, backed = ctx.cluster, self._backed
        lacks = at(cluster.pod_slots, rows) < 1.0
        for resource, amount in self._wanted(ctx):
            short = at(cluster.free[resource], rows) < amount
            if backed and cluster.vocabulary.resources[resource] in backed:
                short &= at(cluster.allocatable[resource], rows) > 0
            lacks |= short
        return lacks

    def must_fit(self, pod: PodInfo) -> Sequence[int]:
        known: tuple[int, ...] | None = pod.shape.memo.get((self, "must fit"))
        if known is None:
            names_of = self.handle.cluster.vocabulary.resources
            known = tuple(resource for resource, amount in pod.shape.requests if amount > 0 and not self._ignores(names_of[resource]))
            pod.shape.memo[self, "must fit"] = known
        if not self._backed:
            return known
        names_of = self.handle.cluster.vocabulary.resources
        return tuple(resource for resource in known if names_of[resource] not in self._backed)

    @property
    def _backed(self) -> Mapping[str, str]:
        """Extended resources for which nodes that have none of them may give devices (DynamicResources)."""
        found: Mapping[str, str] = self.handle.shared.get("backed resources", _NONE)
        return found

    def tally(self, ctx: CycleContext) -> Tally:
        return _FitTally(ctx.cluster, self._wanted(ctx), self._backed)

    def room(self, ctx: CycleContext) -> Vector:
        cluster = ctx.cluster
        room = np.floor(np.maximum(cluster.pod_slots, 0.0))
        for resource, amount in self._wanted(ctx):
            if amount > 0:
                fitting = np.floor(np.maximum(cluster.free[resource], 0.0) / amount)
                if self._backed and cluster.vocabulary.resources[resource] in self._backed:
                    fitting = np.where(cluster.allocatable[resource] > 0, fitting, np.inf)
                np.minimum(room, fitting, out=room)
        return room

    def refine(self, ctx: CycleContext, slots: NDArray[np.intp], codes: Codes) -> Codes:
        tally = self.tally(ctx)
        return tally.codes(slots, np.zeros((tally.size, len(slots))))

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        reasons = ["Too many pods"] if code & _TOO_MANY_PODS else []
        vocabulary = ctx.cluster.vocabulary.resources
        wanted = self._wanted(ctx)
        reasons.extend(f"Insufficient {vocabulary[res]}" for index, (res, _) in enumerate(wanted[:_TOLD_APART]) if code & _bit(index))
        if code & _bit(_TOLD_APART):
            reasons.append(f"Insufficient {' or '.join(vocabulary[res] for res, _ in wanted[_TOLD_APART:])}")
        return Rejection(tuple(reasons), resolvable=not code & _NEVER_FITS)

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        """Requests that no pod's leaving helps: there is no node that offers any of it."""
        cluster = ctx.cluster
        names_of, backed = cluster.vocabulary.resources, self._backed
        asked = (resource for resource, amount in self._wanted(ctx) if amount > 0 and names_of[resource] not in backed)
        missing = (resource for resource in asked if not (cluster.allocatable[resource] > 0).any())
        return [Term(f"{cluster.vocabulary.resources[resource]}: {NOBODY_OFFERS}", 0, unit="base units") for resource in missing]

    # ---------------------------------------------------------------- score

    def score(self, ctx: CycleContext, rows: AnyRows) -> Any:
        cluster, counted = ctx.cluster, self._scored(ctx)
        if not counted.lines:
            return 0.0
        mean = mean_percent(cluster, counted, rows, most=self._most, table=self._ratio, non_zero=True)
        if self._ratio is not None:
            mean += 0.5
        return floored(mean)

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.DELETE | Action.SCALE_DOWN, _frees_something),
            Subscription(UNSCHEDULED_POD, Action.SCALE_DOWN),
            Subscription(NODE, Action.ADD | Action.UPDATE_ALLOCATABLE, self._might_fit),
            Subscription(DEVICECLASSES.kind, Action.ADD | Action.UPDATE, _stands_for_something),
        )

    def _might_fit(self, pod: PodInfo, event: ClusterEvent) -> bool:
        view = event.new
        if view is None:
            return False
        backed = self._backed
        wanted = (
            (name, amount)
            for name, amount in pod.shape.amounts.items()
            if not self._ignores(name) and (name not in backed or view.allocatable.get(name, 0))
        )
        if any(amount > view.allocatable.get(name, 0) for name, amount in wanted):
            return False
        if event.old is None:
            return True
        before = event.old.allocatable
        return any(view.allocatable.get(name, 0) > before.get(name, 0) for name in (*pod.shape.amounts, names.RESOURCE_PODS))


class _FitTally(Tally):
    """What pods request of the resources that count, after the pods themselves."""

    def __init__(self, cluster: Cluster, wanted: Sequence[tuple[int, float]], backed: Mapping[str, str]) -> None:
        names_of = cluster.vocabulary.resources
        self._devices = frozenset(resource for resource, _ in wanted if backed and names_of[resource] in backed)
        self.size = 1 + len(wanted)
        self._cluster = cluster
        self._wanted = wanted
        self._weights: dict[PodShape, tuple[float, ...]] = {}

    def weigh(self, slot: int, pod: PodInfo) -> tuple[float, ...]:
        return self.brought(pod.shape)

    def brought(self, shape: PodShape) -> tuple[float, ...]:
        known = self._weights.get(shape)
        if known is None:
            amounts = dict(shape.requests)
            known = self._weights[shape] = (1.0, *(amounts.get(resource, 0.0) for resource, _ in self._wanted))
        return known

    def passes(self, slots: NDArray[np.intp], freed: Vector) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = np.greater_equal(np.add(self._cluster.pod_slots[slots], freed[0]), 1.0)
        for index, (resource, amount) in enumerate(self._wanted, 1):
            enough = np.greater_equal(np.add(self._cluster.free[resource][slots], freed[index]), amount)
            if resource in self._devices:
                enough |= self._cluster.allocatable[resource][slots] <= 0
            np.logical_and(result, enough, out=result)
        return result

    def codes(self, slots: NDArray[np.intp], freed: Vector) -> NDArray[np.int64]:
        cluster = self._cluster
        codes: NDArray[np.int64] = np.where(cluster.pod_slots[slots] + freed[0] < 1.0, _TOO_MANY_PODS, 0).astype(np.int64)
        for index, (resource, amount) in enumerate(self._wanted):
            given = cluster.allocatable[resource][slots]
            counts = given > 0 if resource in self._devices else True
            codes |= np.where((cluster.free[resource][slots] + freed[index + 1] < amount) & counts, _bit(index), 0)
            codes |= np.where((given < amount) & counts, _NEVER_FITS, 0)
        return codes


def _bit(index: int) -> int:
    """What stands for the pod's i-th resource in a code."""
    return 2 << min(index, _TOLD_APART)


def _stands_for_something(pod: PodInfo, event: ClusterEvent) -> bool:
    """Whether a device class is for an extended resource that the pod wants."""
    if event.new is None:
        return True
    names_of = (event.new.spec.extended_resource_name, f"{RESOURCE_DEVICE_CLASS}{event.new.metadata.name}")
    return any(name in pod.shape.amounts for name in names_of)


def _frees_something(pod: PodInfo, event: ClusterEvent) -> bool:
    """A pod slot always comes free on a delete; on a scale-down a resource that the pod wants must have become less."""
    if event.action & Action.DELETE or event.new is None:
        return True
    before, after = event.old.shape.amounts, event.new.shape.amounts
    return any(after.get(name, 0) < before.get(name, 0) for name in pod.shape.amounts)


def ratio_table(points: Sequence[tuple[int, int]]) -> Vector:
    """Score by whole percent of utilization, 0..100: straight lines between the points, truncated to whole numbers."""
    table = np.zeros(101)
    for percent in range(101):
        score = float(points[-1][1])
        for index, (utilization, value) in enumerate(points):
            if percent <= utilization:
                score = float(value)
                if index:
                    low, base = points[index - 1]
                    score = base + float(math.trunc((value - base) * (percent - low) / (utilization - low)))
                break
        table[percent] = score
    return table


class NodeResourcesBalancedAllocation(PreScore, Score):
    """Prefers nodes whose resources the pod brings closer to being used to the same degree, as kube-scheduler does since 1.36."""

    name = "NodeResourcesBalancedAllocation"
    Args = NodeResourcesBalancedAllocationArgs
    takes_slot = True

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS if any(amount for _, amount, _ in self._case(ctx).lines) else SKIP

    def _case(self, ctx: CycleContext) -> Scored:
        """The resources that count for the pod, with what is used more of each."""
        known: Scored | None = ctx.data.get(self.name)
        if known is None:
            known = ctx.data[self.name] = scored(self.args.resources, ctx.pod.shape, ctx.cluster, non_zero=False)
        return known

    def score(self, ctx: CycleContext, rows: AnyRows) -> Any:
        """How much better or worse balanced the node is with the pod: 75 for no change, 50 for the worst, 100 for the best."""
        cluster, counted = ctx.cluster, self._case(ctx)
        two = len(counted.resources) == 2 and cluster.everywhere(counted.resources)
        if not two:
            rows = several(rows)
        used, before = [], []
        for resource, amount, _ in counted.lines:
            held = at(cluster.allocatable[resource], rows) - at(cluster.free[resource], rows)
            divisor = at(cluster.divisor[resource], rows)
            more = held + amount
            more /= divisor
            held /= divisor
            used.append(at_most(more, 1.0))
            before.append(at_most(held, 1.0))
        # Any number of resources, of which nodes may lack some: those that a node lacks do not count there.
        there = None if two else np.array([cluster.allocatable[resource][rows] > 0 for resource in counted.resources])
        better = balance(used, there)
        better -= balance(before, there)
        better += 50.0
        better *= 0.5
        better = floored(better)
        better += 50.0
        return better


def balance(fractions: Sequence[Any], there: NDArray[np.bool_] | None) -> Any:
    """100 less the deviation between fractions (of those that are `there`; None: there are just two), in whole percent."""
    if there is None:
        apart = abs(fractions[0] - fractions[1])
        apart *= -0.5
    else:
        apart = -deviations(np.array(fractions), there)
    apart += 1.0
    apart *= 100.0
    return floored(apart)


def deviations(fractions: Vector, there: NDArray[np.bool_]) -> Vector:
    """By column the population standard deviation of those fractions that are there; for two of them half their distance."""
    count = there.sum(axis=0)
    total: Any = np.zeros(fractions.shape[1])
    for row, has in zip(fractions, there, strict=True):
        total += np.where(has, row, 0.0)
    mean = total / np.maximum(count, 1)
    squares: Any = np.zeros(fractions.shape[1])
    for row, has in zip(fractions, there, strict=True):
        squares += np.where(has, (row - mean) ** 2, 0.0)
    half = (np.where(there, fractions, -np.inf).max(axis=0) - np.where(there, fractions, np.inf).min(axis=0)) * 0.5
    spread = np.where(count == 2, half, np.sqrt(squares / np.maximum(count, 1)))
    return np.asarray(np.where(count < 2, 0.0, spread))
