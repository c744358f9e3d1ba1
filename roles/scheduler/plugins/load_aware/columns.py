"""Usage columns of LoadAwareScheduling (SCH-LA-01..05, 08, 09): what filter and score need of every node, for prod pods and for others.

All decisions that depend on the node alone (which thresholds, which usage, whether a check applies) are made when the node, its
metric or its pods change, so that a cycle is left with a few vector operations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import parse
from koord.api.annotations import AnnotationError, node_penalty, parse_raw_allocatable
from koord.api.objects import NodeMetric
from koord.api.times import format_micro_time
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Columns, Vector, grown
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.config.args import LoadAwareSchedulingArgs
from roles.scheduler.framework.context import State
from roles.scheduler.plugins.load_aware.charges import AssignTimes, Charge, Estimator
from roles.scheduler.plugins.load_aware.metric import Metric, Usage
from roles.scheduler.plugins.load_aware.thresholds import Thresholds, of_args, of_node

log = logging.getLogger(__name__)

OTHER, PROD = 0, 1
_NEVER = math.inf


class NodeLoad:
    """What is known of one slot beyond the arrays."""

    __slots__ = ("base", "charges", "delta", "estimates", "metric", "prod", "sources", "summed", "thresholds")

    def __init__(self, size: int, thresholds: Thresholds) -> None:
        self.base: list[float] = [0.0] * size
        self.thresholds = thresholds
        self.metric: Metric | None = None
        self.charges: dict[str, Charge] = {}
        self.summed = False  # whether what follows, the sums of the charges, is up to date
        self.delta = [0.0] * size
        self.prod = [0.0] * size
        self.estimates = [0.0] * size
        # By class of pods, what the filter's and the score's usage is made of beside the report; see `_source`.
        self.sources: list[tuple[int, int]] = [(-1, -1), (-1, -1)]


Row = tuple[tuple[float, ...], tuple[float, ...], float]


class Report(NamedTuple):
    """What a node showed at some time, by class of pods."""

    name: str
    rows: tuple[Row, ...]


class PodClass:
    """Arrays of one class of pods, by resource: `used` and the `limit` in percent that must not be reached, `room` for scoring.

    `expires` is when the filter finds the metric expired, `score_expires` when the score does; infinity for never.
    """

    def __init__(self, resources: int, capacity: int) -> None:
        self.used = [np.zeros(capacity) for _ in range(resources)]
        self.limit = [np.full(capacity, _NEVER) for _ in range(resources)]
        self.room = [np.full(capacity, -_NEVER) for _ in range(resources)]
        self.expires = np.full(capacity, _NEVER)
        self.score_expires = np.full(capacity, _NEVER)
        self.aggregated: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self.limited = [0] * resources  # how many rows have a limit

    def row(self, slot: int) -> Row:
        """Usage and limits by resource, and when they expire."""
        return tuple(c.item(slot) for c in self.used), tuple(c.item(slot) for c in self.limit), self.expires.item(slot)

    def grow(self, capacity: int) -> None:
        """Lengthen the arrays."""
        self.used = [grown(column, capacity) for column in self.used]
        self.limit = [grown(column, capacity, _NEVER) for column in self.limit]
        self.room = [grown(column, capacity, -_NEVER) for column in self.room]
        self.expires = grown(self.expires, capacity, _NEVER)
        self.score_expires = grown(self.score_expires, capacity, _NEVER)
        self.aggregated = grown(self.aggregated, capacity)


class LoadColumns(Columns):
    """Follows nodes, pods and NodeMetrics. `epoch` moves when a metric that was fresh at the last look has expired since."""

    def __init__(self, args: LoadAwareSchedulingArgs, state: State, memo: str) -> None:
        self.args = args
        self.resources = _resources(args)
        self._nothing: Usage = (0.0,) * len(self.resources)
        self.estimator = Estimator(args, self.resources, memo)
        self.epoch = 0
        self._state = state
        self._times = AssignTimes()
        self._thresholds = of_args(args, self.resources)
        self._metrics: dict[str, Metric] = {}
        self._loads: dict[int, NodeLoad] = {}
        self._next_expiry = _NEVER
        self._stale = False
        self._before: dict[str, Report] = {}  # what nodes showed before their last reports

    def attach(self, cluster: Cluster) -> None:
        self.cluster = cluster
        size = len(self.resources)
        self.classes = (PodClass(size, cluster.capacity), PodClass(size, cluster.capacity))
        self.divisor: list[Vector] = [np.full(cluster.capacity, _NEVER) for _ in range(size)]
        # What an abnormal node keeps of its score (BEY-ABN-01), and how many keep less than all of it.
        self.trust: Vector = np.ones(cluster.capacity)
        self.distrusted = 0

    def grow(self, capacity: int) -> None:
        for group in self.classes:
            group.grow(capacity)
        self.divisor = [grown(column, capacity, _NEVER) for column in self.divisor]
        self.trust = grown(self.trust, capacity, 1.0)

    # ---------------------------------------------------------------- events

    def node_set(self, slot: int, old: NodeView | None, new: NodeView) -> None:
        load = self._load(slot)
        load.thresholds = of_node(self._thresholds, new, self.resources)
        allocatable = dict(new.allocatable)
        try:
            allocatable.update(parse(parse_raw_allocatable(new.annotations) or {}))
        except (AnnotationError, ValueError) as error:
            log.warning("node %s: %s; it is ignored", new.name, error)
        load.base = [float(allocatable.get(name, 0)) for name in self.resources]
        load.metric = self._metrics.get(new.name)
        self._trust(slot, 1.0 - node_penalty(new.annotations) / 100.0)
        load.summed = False
        self._write(slot, load)

    def node_removed(self, slot: int, old: NodeView) -> None:
        load = self._load(slot)
        self._trust(slot, 1.0)
        self._before.pop(old.name, None)
        load.metric = None
        load.base = [0.0] * len(self.resources)
        load.summed = False
        self._write(slot, load)

    def metric_set(self, old: NodeMetric | None, new: NodeMetric | None) -> None:
        """A NodeMetric appeared, changed or went. A malformed one is logged and the last good one stays."""
        present = new or old
        assert present is not None
        name = present.metadata.name
        if new is None:
            self._metrics.pop(name, None)
        else:
            try:
                self._metrics[name] = Metric(new, self.resources)
            except ValueError as error:
                log.warning("NodeMetric %s: %s; the last good one stays", name, error)
                return
        slot = self.cluster.slot_of(name)
        if slot >= 0 and self.cluster.alive[slot]:
            load = self._load(slot)
            self._before[name] = self.report(name, slot)
            load.metric = self._metrics.get(name)
            load.summed = False
            self._write(slot, load)
            self.cluster.changes.note(slot, self.kind)

    def report(self, name: str, slot: int) -> Report:
        """What filtering looks at on a node, as it is now."""
        return Report(name, tuple(group.row(slot) for group in self.classes))

    def before(self, name: str) -> Report | None:
        """The same before the node's last report."""
        return self._before.get(name)

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        if pod.reservation:  # usage belongs to the real owners
            return
        load = self._load(slot)
        charge = load.charges[pod.uid] = Charge(pod, self.estimator, self._times.enter(pod.uid, self._state.now))
        self._shift(slot, load, charge, 1.0)

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        load = self._load(slot)
        charge = load.charges.pop(pod.uid, None)
        if charge is not None:
            self._times.leave(pod.uid, charge.assigned)
            self._shift(slot, load, charge, -1.0)

    def pod_replaced(self, slot: int, old: PodInfo, new: PodInfo) -> None:
        if old.pod.status.conditions == new.pod.status.conditions or new.reservation:
            return
        load = self._load(slot)
        before = load.charges.get(new.uid)
        if before is None:
            return
        charge = load.charges[new.uid] = Charge(new, self.estimator, before.assigned)
        if load.summed:
            self._sum(load, before, -1.0)
            self._sum(load, charge, 1.0)
        self._write(slot, load)
        self.cluster.changes.note(slot, self.kind)

    def counted(self, slot: int, uid: str, *, number: int) -> Usage:
        """What the filter's usage on a slot is less by without a pod, by resource, for a class of pods."""
        load = self._loads.get(slot)
        charge = load.charges.get(uid) if load is not None else None
        if charge is None:
            return self._nothing
        assert load is not None
        source = load.sources[number][0]
        if source == _NOTHING:
            return self._nothing
        return charge.estimate if source == _ESTIMATES else charge.parts(load.metric)[source]

    def stamp(self, now: float) -> int:
        """Moves when the passing of time has expired a metric."""
        if now >= self._next_expiry:
            self.epoch += 1
            self._stale = any(bool((column <= now).any()) for g in self.classes for column in (g.expires, g.score_expires))
            later = [float(column[column > now].min(initial=_NEVER)) for g in self.classes for column in (g.expires, g.score_expires)]
            self._next_expiry = min(later)
        return self.epoch

    def stale(self, now: float) -> bool:
        """Whether any metric may have expired; False spares looking."""
        self.stamp(now)
        return self._stale

    def view(self, slot: int) -> dict[str, Any]:
        """The node as the debug endpoint shows it (SCH-LA-10), amounts by resource in base units."""
        load = self._load(slot)
        self._recount(load)
        pods = load.metric.pods if load.metric is not None else {}

        def on_top(charge: Charge) -> Usage:
            """What counts as prod usage beyond what is reported as that."""
            reported, counts = pods.get(charge.key), charge.parts(load.metric)[1]
            if not charge.prod or reported is None or not reported.prod:
                return counts
            return tuple(amount - used for amount, used in zip(counts, reported.usage, strict=True))

        def named(values: Iterable[float]) -> dict[str, float]:
            return dict(zip(self.resources, values, strict=True))

        deltas = [(charge.key, on_top(charge)) for charge in load.charges.values()]
        prod_delta = [sum(amounts) for amounts in zip(self._nothing, *(delta for _, delta in deltas), strict=True)]
        return {
            "pods": [
                {"timestamp": format_micro_time(charge.assigned), "pod": charge.key}
                for charge in sorted(load.charges.values(), key=lambda charge: (charge.assigned, charge.key))
            ],
            "prodUsage": named(prod - delta for prod, delta in zip(load.prod, prod_delta, strict=True)),
            "nodeDelta": named(load.delta),
            "prodDelta": named(prod_delta),
            "nodeEstimated": named(load.estimates),
            "nodeDeltaPods": sorted(c.key for c in load.charges.values() if any(c.parts(load.metric)[0])),
            "prodDeltaPods": sorted(key for key, delta in deltas if any(delta)),
            "nodeEstimatedPods": sorted(charge.key for charge in load.charges.values()),
        }

    # ---------------------------------------------------------------- inside

    def _load(self, slot: int) -> NodeLoad:
        load = self._loads.get(slot)
        if load is None:
            load = self._loads[slot] = NodeLoad(len(self.resources), self._thresholds)
        return load

    def _trust(self, slot: int, share: float) -> None:
        self.distrusted += int(share < 1.0) - int(self.trust[slot] < 1.0)
        self.trust[slot] = share

    def _sum(self, load: NodeLoad, charge: Charge, sign: float) -> None:
        """Add a pod to the sums of a node, or take it off."""
        delta, prod = charge.parts(load.metric)
        for index, estimate in enumerate(charge.estimate):
            load.delta[index] += sign * delta[index]
            load.prod[index] += sign * prod[index]
            load.estimates[index] += sign * estimate

    def _shift(self, slot: int, load: NodeLoad, charge: Charge, sign: float) -> None:
        """One pod more or less: what it is charged moves the arrays, and nothing else does."""
        sources = (*charge.parts(load.metric), charge.estimate)
        load.summed = False
        for number, group in enumerate(self.classes):
            used, room = load.sources[number]
            if used >= 0:
                for column, amount in zip(group.used, sources[used], strict=True):
                    if amount:
                        column[slot] = column.item(slot) + sign * amount
            if room >= 0:
                for column, amount in zip(group.room, sources[room], strict=True):
                    if amount:
                        column[slot] = column.item(slot) - sign * amount

    def _recount(self, load: NodeLoad) -> None:
        """Bring the sums of a node up to date."""
        if load.summed:
            return
        load.summed = True
        size = len(self.resources)
        load.delta, load.prod, load.estimates = [0.0] * size, [0.0] * size, [0.0] * size
        for charge in load.charges.values():
            self._sum(load, charge, 1.0)

    def _write(self, slot: int, load: NodeLoad) -> None:
        """Bring the arrays of a slot up to date."""
        args, metric = self.args, load.metric
        self._recount(load)
        for index, base in enumerate(load.base):
            self.divisor[index][slot] = base if base > 0 else _NEVER
        expiry = _NEVER
        if metric is not None:
            expiry = -_NEVER if metric.updated is None else metric.updated + args.node_metric_expiration_seconds
            if expiry > self._state.now:
                self._next_expiry = min(self._next_expiry, expiry)
            else:
                self._stale = True
        for number, group in enumerate(self.classes):
            choice = load.thresholds.choose(prod=number == PROD)
            group.aggregated[slot] = choice.aggregated
            checked = metric is not None and metric.usage is not None and choice.active
            used = self._used(load, choice.mode) if checked else None
            expires = metric is not None and choice.active and args.filter_expired_node_metrics
            group.expires[slot] = expiry if expires else _NEVER
            for index, threshold in enumerate(choice.values):
                limit = threshold + 0.5 if used is not None and threshold > 0 else _NEVER
                group.limited[index] += int(limit < _NEVER) - int(group.limit[index][slot] < _NEVER)
                group.limit[index][slot] = limit
                group.used[index][slot] = used[index] if used is not None else 0.0
            scored = self._write_score(slot, load, group, expiry, prod=number == PROD)
            load.sources[number] = (_source(metric, choice.mode) if checked else _NOTHING, scored)

    def _write_score(self, slot: int, load: NodeLoad, group: PodClass, expiry: float, *, prod: bool) -> int:
        """Write the room for scoring; returns what it is made of."""
        metric = load.metric
        group.score_expires[slot] = expiry
        used: Usage | None = None
        mode = ("", 0.0)
        if metric is not None and metric.usage is not None:
            aggregated = self.args.aggregated
            if prod and self.args.score_according_prod_usage:
                mode = ("prod", 0.0)
            elif aggregated is not None and aggregated.score_aggregation_type:
                mode = (aggregated.score_aggregation_type, aggregated.score_aggregated_duration)
            used = self._used(load, mode)
        for index, base in enumerate(load.base):
            group.room[index][slot] = base - used[index] if used is not None and base > 0 else -_NEVER
        return _source(metric, mode) if used is not None else _NOTHING

    def _used(self, load: NodeLoad, mode: tuple[str, float]) -> Usage:
        """Existing usage by mode: "" instantaneous, "prod", or an aggregation type with its window."""
        metric = load.metric
        assert metric is not None
        assert metric.usage is not None
        kind, duration = mode
        if kind == "prod":
            system = metric.system if self.args.prod_usage_include_sys else (0.0,) * len(load.prod)
            return tuple(p + s for p, s in zip(load.prod, system, strict=True))
        usage = metric.window(kind, duration) if kind else metric.usage
        if usage is None:
            return tuple(load.estimates)
        return tuple(u + d for u, d in zip(usage, load.delta, strict=True))


# What of a pod's charge counts in a usage: an index into what `_sum` returns.
_NOTHING, _DELTA, _PROD, _ESTIMATES = -1, 0, 1, 2


def _source(metric: Metric | None, mode: tuple[str, float]) -> int:
    """Which part of a pod's charge counts under a mode: its delta, its prod usage, or (an unreported window) its whole estimate."""
    kind, duration = mode
    if kind == "prod":
        return _PROD
    return _ESTIMATES if kind and metric is not None and metric.window(kind, duration) is None else _DELTA


def _resources(args: LoadAwareSchedulingArgs) -> tuple[str, ...]:
    """Every resource that the plugin ever looks at, in lexicographic order."""
    found = {"cpu", "memory", *args.resource_weights, *args.usage_thresholds, *args.prod_usage_thresholds, *args.estimated_scaling_factors}
    found.update(args.supported_resources)
    if args.aggregated is not None:
        found.update(args.aggregated.usage_thresholds)
    return tuple(sorted(found))
