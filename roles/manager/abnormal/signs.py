"""What speaks against a node, from 0 (nothing) to 1 (as bad as it gets), each with its reason, and the steady level (BEY-ABN-01). Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord.api.objects import NodeMetric
from koord.api.priority import PriorityClass, parse_class
from koord.api.times import TimeError, parse_time
from koord.decisions.record import Term
from roles.manager.noderesource.reports import extended

STALE_FROM, STALE_FULL = 3.0, 10.0  # report intervals without a report
PRESSURE_FROM, PRESSURE_FULL = {"cpu": 20.0, "mem": 5.0, "io": 10.0}, {"cpu": 60.0, "mem": 30.0, "io": 50.0}  # percent of time
EVICTIONS_FROM, EVICTIONS_FULL = 3, 12  # pods evicted from the node within WINDOW
OUTLIERS_FULL = 3  # services of the node whose CPI stands out
WINDOW = 1800.0  # seconds over which evictions are counted
MIN_REPLICAS = 4  # of a workload, before one of them can stand out
SIGMAS, LEAST_EXCESS = 2.0, 1.25
DEFAULT_INTERVAL = 60.0
_SERVICES = frozenset((PriorityClass.PROD, PriorityClass.NONE))


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of one node at one moment."""

    stale: float = 0.0
    pressure: float = 0.0
    outliers: float = 0.0
    evictions: float = 0.0
    terms: tuple[Term, ...] = ()

    @property
    def score(self) -> float:
        """The worst of them: several small troubles are not a big one."""
        return max(self.stale, self.pressure, self.outliers, self.evictions)


def judge(metric: NodeMetric | None, *, now: float, outliers: Sequence[str] = (), evictions: int = 0) -> Signs:
    """The signs of a node. `outliers` are its pods whose CPI stands out, `evictions` pods evicted from it lately."""
    terms: list[Term] = []
    stale = _staleness(metric, now, terms)
    pressure = _pressure(metric, terms) if not stale else 0.0  # an old report tells nothing of today's pressure
    standing_out = min(len(outliers) / OUTLIERS_FULL, 1.0)
    if outliers:
        terms.append(Term("outliers", len(outliers), f"CPI far above that of their workload: {', '.join(sorted(outliers)[:3])}"))
    evicted = _ramp(evictions, EVICTIONS_FROM, EVICTIONS_FULL)
    if evicted:
        terms.append(Term("evictions", evictions, f"pods evicted within {WINDOW:g}s; more than {EVICTIONS_FROM} count"))
    return Signs(stale, pressure, standing_out, evicted, tuple(terms))


def _ramp(value: float, begin: float, full: float) -> float:
    return min(max((value - begin) / (full - begin), 0.0), 1.0)


def _staleness(metric: NodeMetric | None, now: float, terms: list[Term]) -> float:
    """Reports that should have come. A node that never reported is new, not abnormal."""
    if metric is None or not metric.status.update_time:
        return 0.0
    try:
        age = now - parse_time(metric.status.update_time)
    except TimeError:
        return 0.0
    policy = metric.spec.metric_collect_policy
    interval = (policy.report_interval_seconds if policy else None) or DEFAULT_INTERVAL
    found = _ramp(age / interval, STALE_FROM, STALE_FULL)
    if found:
        terms.append(Term("stale", round(age, 1), f"seconds since the last NodeMetric; one is due every {interval:g}s"))
    return found


def _pressure(metric: NodeMetric | None, terms: list[Term]) -> float:
    """The resource that services of the node wait for most, as a mean over those that report it."""
    waits: dict[str, list[float]] = {}
    for entry in extended(metric.status.pods_metric) if metric is not None else ():
        if parse_class(entry.priority) in _SERVICES:
            for resource, value in _numbers((entry.extensions or {}).get("psi")).items():
                waits.setdefault(resource, []).append(value)
    worst = 0.0
    for resource, begin in PRESSURE_FROM.items():
        mean = statistics.fmean(waits[resource]) if waits.get(resource) else 0.0
        found = _ramp(mean, begin, PRESSURE_FULL[resource])
        if found:
            terms.append(Term(f"pressure.{resource}", round(mean, 1), f"percent of time that services waited; more than {begin:g} counts"))
        worst = max(worst, found)
    return worst


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    return {key: float(v) for key, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool) and v >= 0}


def cpi_outliers(metrics: Iterable[NodeMetric], workload_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Pods ("namespace/name") by node whose CPI is far above their workload's. `workload_of` maps pods to the uid of their controller."""
    families = Families(workload_of.get)
    for metric in metrics:
        families.add(metric)
    return families.outliers()


class Families:
    """The CPI of replicas by workload. `workload_of` gives the uid of a pod's controller, None for a pod without one."""

    def __init__(self, workload_of: Callable[[str], str | None]) -> None:
        self._workload_of = workload_of
        self._members: dict[str, list[tuple[str, str, float]]] = {}

    def add(self, metric: NodeMetric) -> None:
        """What a node reports."""
        for entry in extended(metric.status.pods_metric):
            key, cpi = f"{entry.namespace}/{entry.name}", _numbers(entry.extensions).get("cpi")
            workload = self._workload_of(key) if cpi else None
            if cpi and workload is not None:
                self._members.setdefault(workload, []).append((metric.metadata.name, key, cpi))

    def outliers(self) -> dict[str, list[str]]:
        """The pods that stand out, by node."""
        found: dict[str, list[str]] = {}
        for members in self._members.values():
            if len(members) >= MIN_REPLICAS:
                _stand_out(members, found)
        return found


def _stand_out(members: list[tuple[str, str, float]], found: dict[str, list[str]]) -> None:
    """Compare each replica with the others: one that is far off would hide itself in a mean that it takes part in.

    Mean and deviation of the others are the sums of all less its own part, so that the cost is linear. Sums are of distances from the
    mean: their squares are small, and taking one away loses no digits.
    """
    centre = statistics.fmean(cpi for _, _, cpi in members)
    own: dict[str, list[float]] = {}
    for _, key, cpi in members:
        own.setdefault(key, []).append(cpi - centre)
    everything = [distance for distances in own.values() for distance in distances]
    total, squares = math.fsum(everything), math.fsum(distance * distance for distance in everything)
    for node, key, cpi in members:
        rest = len(members) - len(own[key])
        if not rest:
            continue
        shift = (total - math.fsum(own[key])) / rest
        variance = (squares - math.fsum(distance * distance for distance in own[key])) / rest - shift * shift
        mean = centre + shift
        if cpi > max(mean + SIGMAS * math.sqrt(max(variance, 0.0)), mean * LEAST_EXCESS):
            found.setdefault(node, []).append(key)


RISE, FALL = 120.0, 600.0  # seconds after which half of the way up, or down, is gone
ABNORMAL, RECOVERED = 0.3, 0.1
STEP = 10  # penalties are multiples of it: a node is not written for every small change
MAX_PENALTY = 80  # percent; a node is never switched off by a guess


@dataclass(frozen=True, slots=True)
class Level:
    """How abnormal a node is, 0..1, and whether it counts as abnormal now."""

    value: float = 0.0
    abnormal: bool = False

    @property
    def penalty(self) -> int:
        """Percent by which overcommit and load-aware score of the node are lowered."""
        if not self.abnormal:
            return 0
        return min(max(round(self.value * 100 / STEP), 1) * STEP, MAX_PENALTY)


def moved(level: Level, score: float, seconds: float) -> Level:
    """The level after `seconds` in which the signs scored `score`."""
    half = RISE if score > level.value else FALL
    value = score + (level.value - score) * 0.5 ** (max(seconds, 0.0) / half)
    return Level(value, value >= (RECOVERED if level.abnormal else ABNORMAL))
