"""What pods are charged on top of the reported usage: the pod assign cache (SCH-LA-06, SCH-LA-07)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from koord.accounting.estimate import estimate_resource
from koord.api import annotations as api
from koord.api.objects import Pod
from koord.api.priority import PriorityClass, translate_resource_name
from koord.api.times import parse_time
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cluster.vocabulary import MAX_EXACT
from roles.scheduler.config.args import LoadAwareSchedulingArgs
from roles.scheduler.plugins.load_aware.metric import Metric, Usage

_REMEMBERED = 1024


class Estimator:
    """Estimates pods over the plugin's resources; kept with the shape, since nothing else decides it."""

    def __init__(self, args: LoadAwareSchedulingArgs, resources: Sequence[str], memo: str) -> None:
        self._factors = args.estimated_scaling_factors
        self._custom = args.allow_customize_estimation
        self._scheduled = args.estimated_seconds_after_pod_scheduled or 0
        self._initialized = args.estimated_seconds_after_initialized or 0
        self._resources = tuple(resources)
        self._memo = memo

    def estimate(self, pod: PodInfo) -> Usage:
        """Estimated usage in base units by resource of the plugin."""
        shape = pod.shape
        known: Usage | None = shape.memo.get(self._memo)
        if known is None:
            custom = self._custom_factors(shape)
            factors = {**self._factors, **custom} if custom else self._factors
            known = shape.memo[self._memo] = tuple(self._one(shape, name, factors.get(name)) for name in self._resources)
        return known

    @staticmethod
    def _one(shape: PodShape, native: str, factor: int | None) -> float:
        """`koord.accounting.estimate.estimate_pod` for one resource, from amounts that the shape has parsed already."""
        name = translate_resource_name(shape.priority_class, native) if factor is not None else ""
        if factor is None or not name:
            return 0.0
        estimated = estimate_resource(name, shape.amounts.get(name, 0), shape.limits.get(name, 0), factor)
        return float(min(max(estimated, 0), MAX_EXACT))  # a pod may name any factor: what columns add up has to stay exact

    def _custom_factors(self, shape: PodShape) -> dict[str, int] | None:
        if not self._custom:
            return None
        try:
            return api.parse_estimated_scaling_factors(shape.annotations)
        except api.AnnotationError:
            return None  # by contract as if it were absent

    def windows(self, shape: PodShape) -> tuple[int, int]:
        """(seconds after scheduling, seconds after initialization) in which the estimate counts whatever is reported; 0 is off."""
        scheduled, initialized = self._scheduled, self._initialized
        if self._custom:
            own = api.estimated_seconds_after_pod_scheduled(shape.annotations)
            scheduled = own if own >= 0 else scheduled
            own = api.estimated_seconds_after_initialized(shape.annotations)
            initialized = own if own >= 0 else initialized
        return scheduled, initialized


class Charge:
    """One cached pod: its estimate, when it was assigned and until when the estimate is forced (seconds)."""

    __slots__ = ("assigned", "deadline", "estimate", "key", "prod")

    def __init__(self, pod: PodInfo, estimator: Estimator, assigned: float) -> None:
        self.key = pod.key
        self.prod = pod.shape.priority_class is PriorityClass.PROD
        self.estimate = estimator.estimate(pod)
        self.assigned = condition_time(pod.pod, "PodScheduled") or assigned
        scheduled, initialized = estimator.windows(pod.shape)
        since = condition_time(pod.pod, "Initialized") if initialized > 0 else 0.0
        self.deadline = 0.0
        if initialized > 0 and since:
            self.deadline = since + initialized
        elif scheduled > 0:
            self.deadline = self.assigned + scheduled

    def parts(self, metric: Metric | None) -> tuple[Usage, Usage]:
        """(what is added to the node's usage, what counts as prod usage) under a report."""
        estimate = self.estimate
        reported = metric.pods.get(self.key) if metric is not None else None
        if reported is None:
            return estimate, (estimate if self.prod else _zeros(estimate))
        assert metric is not None
        updated = metric.updated or 0.0
        charged = updated - metric.interval < self.assigned or self.deadline > updated
        delta = tuple(max(0.0, e - u) for e, u in zip(estimate, reported.usage, strict=True)) if charged else _zeros(estimate)
        if not self.prod:
            return delta, _zeros(estimate)
        if not reported.prod:
            return delta, estimate
        return delta, tuple(u + d for u, d in zip(reported.usage, delta, strict=True))


def _zeros(like: Usage) -> Usage:
    return (0.0,) * len(like)


def condition_time(pod: Pod, kind: str) -> float:
    """lastTransitionTime of a condition that is True, 0.0 when there is none or it cannot be read."""
    for condition in pod.status.conditions:
        if condition.type == kind and condition.status == "True" and condition.last_transition_time:
            try:
                return parse_time(condition.last_transition_time)
            except ValueError:
                return 0.0
    return 0.0


class AssignTimes:
    """When pods without a condition were first seen on a node. Those that left are remembered for a while, so that a what-if that takes
    a pod away and puts it back leaves no trace."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, float] = OrderedDict()

    def enter(self, uid: str, now: float) -> float:
        """The time for a pod that enters."""
        return self._left.pop(uid, now)

    def leave(self, uid: str, assigned: float) -> None:
        """Remember the time of a pod that leaves."""
        self._left[uid] = assigned
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
