"""NodeResourcesFit and NodeResourcesBalancedAllocation over the resource columns (SCH-KS-02, SCH-KS-03).

Scores are whole numbers. Products stay below 2^53 and quotients of the sizes nodes have (below 128 TiB) never round across a whole
number, so flooring a float64 quotient equals integer division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api import names
from koord.api.kinds import DEVICECLASSES
from koord.decisions.record import NOBODY_OFFERS, Term
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import HUNDRED, ONE, ZERO, Vector, constant
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cluster.vocabulary import CPU, MEMORY
from roles.scheduler.config.args import NodeResourcesBalancedAllocationArgs, NodeResourcesFitArgs, ResourceWeight
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, PreFilter, PreScore, Rejection, Score
from roles.scheduler.framework.status import SKIP, SUCCESS, Status
from roles.scheduler.framework.tally import Tally

_TOO_MANY_PODS = 1
_NEVER_FITS = 1 << 60
_HALF = constant(0.5)
_FIFTY = constant(50.0)
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
    """The resources that count in a score: their ids, and by line what the pod adds (base units) and the weights (None: all are 1).
    `weight` is what the weights add up to, at least 1; `lines` are (id, amount, weight) in plain numbers."""

    resources: tuple[int, ...]
    amounts: Vector
    weights: Vector | None
    weight: Vector
    lines: list[tuple[int, float, float]]


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
    listed = sorted(found)  # what is added up are whole numbers: the order does not matter
    weights = np.array([weight for _, _, weight in listed])
    amounts = np.array([amount for _, amount, _ in listed], dtype=np.float64)[:, None]
    total = constant(max(float(weights.sum()), 1.0))
    alike = bool((weights == 1.0).all())
    return Scored(tuple(resource for resource, _, _ in listed), amounts, None if alike else weights[:, None], total, listed)


def added_up(lines: Vector) -> Vector:
    """The sum by row, over all lines; may be in the place of the first. Of few lines, which numpy's own sum takes long for."""
    total: Vector = lines[0]
    for line in lines[1:]:
        np.add(total, line, out=total)
    return total


def left_percent(free: Vector, amount: Any, divisor: Vector) -> Vector:
    """What stays free beside an amount, in whole percent of what there is; 0 where there is nothing."""
    part: Vector = np.subtract(free, amount)
    np.maximum(part, ZERO, out=part)
    np.multiply(part, HUNDRED, out=part)
    np.divide(part, divisor, out=part)
    np.floor(part, out=part)
    return part


def left_percent_of(free: float, amount: float, divisor: float) -> int:
    """`left_percent` of one row."""
    left = free - amount
    return math.floor(left * 100.0 / divisor) if left > 0.0 else 0


def used_percent(free: Vector, amount: Any, capacity: Vector, divisor: Vector) -> Vector:
    """What is used with an amount more, in whole percent of what there is and at most all of it; 0 where there is nothing."""
    part: Vector = np.subtract(capacity, np.subtract(free, amount))
    np.clip(part, ZERO, capacity, out=part)
    np.multiply(part, HUNDRED, out=part)
    np.divide(part, divisor, out=part)
    np.floor(part, out=part)
    return part


class NodeResourcesFit(PreFilter, Filter, Score):
    """Refuses nodes without room; scores by LeastAllocated, MostAllocated or RequestedToCapacityRatio.

    The filter only says yes or no; which resources lack is worked out when a failure is explained. Refined codes are bit masks: bit 0
    too many pods, bit i+1 the pod's i-th resource, bit 60 when a resource is more than the node has in all.
    """

    name = "NodeResourcesFit"
    Args = NodeResourcesFitArgs

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ignored = frozenset(args.ignored_resources) | handle.extended | names.COUNTED_BY_CARD
        self._ignored_prefixes = tuple(f"{group}/" for group in args.ignored_resource_groups)
        self._strategy = args.scoring_strategy.type
        ratio = args.scoring_strategy.requested_to_capacity_ratio
        self._ratio = ratio_table([(point.utilization, point.score * 10) for point in ratio.shape]) if ratio is not None else np.zeros(101)
        self._memo_key, self._row_key = f"{self.name}/score", f"{self.name}/row"

    # ---------------------------------------------------------------- filter

    def pre_filter(self, ctx: CycleContext) -> Status:
        cluster, shape = ctx.cluster, ctx.pod.shape
        wanted = tuple(
            (resource, constant(amount)) for resource, amount in shape.requests if not self._ignores(cluster.vocabulary.resources[resource])
        )
        for resource, _ in wanted:
            cluster.ensure(resource)
        ctx.data[self.name] = wanted
        return SUCCESS

    def _wanted(self, ctx: CycleContext) -> tuple[tuple[int, Vector], ...]:
        """(resource, amount) that must fit."""
        if self.name not in ctx.data:
            self.pre_filter(ctx)
        wanted: tuple[tuple[int, Vector], ...] = ctx.data[self.name]
        return wanted

    def _scored(self, ctx: CycleContext) -> Scored:
        known: Scored | None = ctx.data.get(self._memo_key)
        if known is None:
            known = ctx.data[self._memo_key] = scored(self.args.scoring_strategy.resources, ctx.pod.shape, ctx.cluster, non_zero=True)
        return known

    def _ignores(self, resource: str) -> bool:
        return resource in self._ignored or (bool(self._ignored_prefixes) and resource.startswith(self._ignored_prefixes))

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes:
        cluster = ctx.cluster
        lacks = np.less(cluster.pod_slots[rows], ONE)
        for resource, amount in self._wanted(ctx):
            short = np.less(cluster.free[resource][rows], amount)
            if self._backed and cluster.vocabulary.resources[resource] in self._backed:
                short &= cluster.allocatable[resource][rows] > 0
            np.logical_or(lacks, short, out=lacks)
        return lacks

    def filter_one(self, ctx: CycleContext, slot: int) -> int:
        cluster = ctx.cluster
        if cluster.pod_slots.item(slot) < 1.0:
            return 1
        wanted: list[tuple[int, float]] | None = ctx.data.get(self._row_key)
        if wanted is None:
            wanted = ctx.data[self._row_key] = [(resource, amount.item()) for resource, amount in self._wanted(ctx)]
        free, backed = cluster.free, self._backed
        for resource, amount in wanted:
            if free[resource].item(slot) < amount and not (
                backed and cluster.vocabulary.resources[resource] in backed and cluster.allocatable[resource].item(slot) <= 0
            ):
                return 1
        return 0

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
        reasons.extend(f"Insufficient {vocabulary[res]}" for index, (res, _) in enumerate(self._wanted(ctx)) if code & (2 << index))
        return Rejection(tuple(reasons), resolvable=not code & _NEVER_FITS)

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        """Requests that no pod's leaving helps: there is no node that offers any of it."""
        cluster = ctx.cluster
        names_of, backed = cluster.vocabulary.resources, self._backed
        asked = (resource for resource, amount in self._wanted(ctx) if amount > 0 and names_of[resource] not in backed)
        missing = (resource for resource in asked if not (cluster.allocatable[resource] > 0).any())
        return [Term(f"{cluster.vocabulary.resources[resource]}: {NOBODY_OFFERS}", 0, unit="base units") for resource in missing]

    # ---------------------------------------------------------------- score

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        cluster = ctx.cluster
        resources, amounts, weights, weight, _ = self._scored(ctx)
        if not resources:
            return 0.0
        divisor = cluster.together("divisor", resources, rows)
        part = self._part(cluster.together("non_zero_free", resources, rows), divisor, amounts)
        counts: Any = None  # by resource and row, where not all of them do
        if not cluster.everywhere(resources):
            counts = np.isfinite(divisor)
            part *= counts
        if self._strategy == "RequestedToCapacityRatio":
            counts = part > 0 if counts is None else counts & (part > 0)
        if counts is not None:
            weight = np.maximum(np.sum(counts if weights is None else weights * counts, axis=0), ONE)
        if weights is not None:
            part *= weights
        mean = added_up(part)
        np.divide(mean, weight, out=mean)
        if self._strategy == "RequestedToCapacityRatio":
            np.add(mean, _HALF, out=mean)
        return np.floor(mean, out=mean)

    def score_one(self, ctx: CycleContext, slot: int) -> float:
        cluster, counted = ctx.cluster, self._scored(ctx)
        if self._strategy != "LeastAllocated" or not cluster.everywhere(counted.resources):
            return super().score_one(ctx, slot)
        total = 0.0
        for resource, amount, weight in counted.lines:
            free = cluster.non_zero_free if resource <= MEMORY else cluster.free
            total += left_percent_of(free[resource].item(slot), amount, cluster.divisor[resource].item(slot)) * weight
        return float(math.floor(total / counted.weight.item()))

    def _part(self, free: Vector, divisor: Vector, amounts: Vector) -> Vector:
        """Score 0..100 by resource and row."""
        if self._strategy == "LeastAllocated":
            return left_percent(free, amounts, divisor)
        # Infinity stands for no capacity.
        capacity = np.where(np.isfinite(divisor), divisor, 1.0)
        percent = used_percent(free, amounts, capacity, capacity)
        if self._strategy == "MostAllocated":
            return np.asarray(percent)
        return np.asarray(self._ratio[percent.astype(np.intp)])

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

    def __init__(self, cluster: Cluster, wanted: Sequence[tuple[int, Vector]], backed: Mapping[str, str]) -> None:
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
        result: NDArray[np.bool_] = np.greater_equal(np.add(self._cluster.pod_slots[slots], freed[0]), ONE)
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
            codes |= np.where((cluster.free[resource][slots] + freed[index + 1] < amount) & counts, 2 << index, 0)
            codes |= np.where((given < amount) & counts, _NEVER_FITS, 0)
        return codes


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

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS if self._case(ctx)[1].any() else SKIP

    def _case(self, ctx: CycleContext) -> tuple[tuple[int, ...], Vector, list[tuple[int, float, float]]]:
        """The resources that count for the pod, what is used more of each (line) with it and without it, and the lines in plain numbers."""
        known: tuple[tuple[int, ...], Vector, list[tuple[int, float, float]]] | None = ctx.data.get(self.name)
        if known is None:
            counted = scored(self.args.resources, ctx.pod.shape, ctx.cluster, non_zero=False)
            more = np.array((counted.amounts, np.zeros_like(counted.amounts)))
            known = ctx.data[self.name] = (counted.resources, more, counted.lines)
        return known

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        """How much better or worse balanced the node is with the pod: 75 for no change, 50 for the worst, 100 for the best."""
        balance = self._balance(ctx, rows)
        better: Vector = np.subtract(balance[0], balance[1])
        np.add(better, _FIFTY, out=better)
        np.multiply(better, _HALF, out=better)
        np.floor(better, out=better)
        np.add(better, _FIFTY, out=better)
        return better

    def score_one(self, ctx: CycleContext, slot: int) -> float:
        cluster, (resources, _, lines) = ctx.cluster, self._case(ctx)
        if len(resources) != 2 or not cluster.everywhere(resources):
            return super().score_one(ctx, slot)
        used, less = [], []
        for resource, amount, _ in lines:
            held = cluster.allocatable[resource].item(slot) - cluster.free[resource].item(slot)
            divisor = cluster.divisor[resource].item(slot)
            used.append(min((held + amount) / divisor, 1.0))
            less.append(min(held / divisor, 1.0))
        balance = math.floor((1.0 - abs(used[0] - used[1]) * 0.5) * 100.0)
        before = math.floor((1.0 - abs(less[0] - less[1]) * 0.5) * 100.0)
        return math.floor((balance - before + 50) * 0.5) + 50.0

    def _balance(self, ctx: CycleContext, rows: Rows) -> Vector:
        """100 less the deviation between the used fractions, in whole percent: with the pod, and without it."""
        cluster = ctx.cluster
        resources, more, _ = self._case(ctx)
        allocatable = cluster.together("allocatable", resources, rows)
        used = np.add(np.subtract(allocatable, cluster.together("free", resources, rows)), more)
        np.divide(used, cluster.together("divisor", resources, rows), out=used)
        np.minimum(used, ONE, out=used)
        if len(resources) != 2 or not cluster.everywhere(resources):
            # Any number of resources, of which nodes may lack some: those that a node lacks do not count there.
            return np.floor((1.0 - np.array([deviations(each, allocatable > 0) for each in used])) * 100.0)
        apart = np.subtract(used[:, 0], used[:, 1])
        np.abs(apart, out=apart)
        np.multiply(apart, _HALF, out=apart)
        np.subtract(ONE, apart, out=apart)
        np.multiply(apart, HUNDRED, out=apart)
        return np.floor(apart, out=apart)


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
