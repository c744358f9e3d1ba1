"""What the demo measures, and what it concludes from it (pure): samples in, numbers of the report out.

Times are monotonic seconds of this machine; CPU is in cores, latencies in milliseconds, memory in bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

REACTION_WINDOW = 0.2
REACTION_HOLD = 1.0
# a mean after the step above this share of the mean before it is no fall
LEAST_FALL = 0.9
BASELINE_SECONDS = 3.0
NOISE_WINDOW = 1.0
MOST_NOISY_SHARE = 0.05
"""Of the seconds of a phase: one in twenty with somebody else's work decides a 99th percentile."""
CONTRADICTION = 1.25
"""A service alone that is slower by this than the same service among batch jobs: something else made it so."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one moment. `*_ns` are cumulative CPU times, None when the group does not exist."""

    time: float
    node_busy: float
    """Busy CPU seconds of the whole machine since boot."""
    be_ns: int | None = None
    service_ns: int | None = None
    batch_ns: int | None = None
    """CPU of the batch pods, whichever tier they are in."""
    pods_ns: int | None = None
    """CPU of all pods of the node."""
    be_quota_us: int | None = None
    batch_cpu: int | None = None
    """`kubernetes.io/batch-cpu` allocatable of the node, milli-CPU."""
    own_ns: int | None = None
    """CPU of the sandbox itself: API server and roles."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One second of the load generator."""

    time: float
    step: int
    count: int
    errors: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """All requests of one step of the load."""

    rate: float
    seconds: float
    count: int
    errors: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(slots=True)
class PhaseResult:
    """Everything seen in one phase."""

    kind: str
    begin: float
    end: float = 0.0
    steps: list[StepResult] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    step_times: list[tuple[float, int, float]] = field(default_factory=list)
    """(time, index, rate) at which each step began."""
    work_units: int = 0
    batch_pods: int = 0
    evictions: int = 0
    request_milli: int = 0
    """What each CPU burner requests, milli-CPU; 0 for nothing."""
    quiet_cores: float = 0.0
    """Of the CPU that neither pods nor the sandbox use, what is no disturbance; 0 where nobody looked."""
    attempts: int = 1
    """How often the phase was measured; this is the quietest."""

    def others(self) -> list[float]:
        """CPU that neither pods nor the sandbox used, in cores, second by second."""
        seen = [s for s in self.samples if s.pods_ns is not None and s.own_ns is not None]
        found: list[float] = []
        last = seen[0] if seen else None
        for one in seen:
            assert last is not None
            if one.time - last.time < NOISE_WINDOW:
                continue
            known = ((one.pods_ns or 0) - (last.pods_ns or 0) + (one.own_ns or 0) - (last.own_ns or 0)) / 1e9
            found.append(max(0.0, (one.node_busy - last.node_busy - known) / (one.time - last.time)))
            last = one
        return found

    def noisy_seconds(self) -> int:
        """Seconds in which others used more than is quiet."""
        return sum(level > self.quiet_cores for level in self.others()) if self.quiet_cores else 0

    def disturbed(self) -> bool:
        """Whether others used so much, for so long, that it shows in a 99th percentile."""
        return self.noisy_seconds() > MOST_NOISY_SHARE * len(self.others())

    def peak(self) -> StepResult | None:
        """The highest rate of the load, None when the load did not come to its end."""
        rows = merge_steps(self.steps)
        return rows[-1] if rows else None

    def node_utilisation(self, cpus: int) -> float:
        """Mean CPU utilisation of the machine in percent."""
        if len(self.samples) < 2:
            return 0.0
        first, last = self.samples[0], self.samples[-1]
        span = last.time - first.time
        return 100.0 * (last.node_busy - first.node_busy) / (span * cpus) if span > 0 else 0.0

    def batch_cpu_offered(self) -> int:
        """Largest batch-cpu that the node offered in the phase, milli-CPU."""
        return max((s.batch_cpu or 0 for s in self.samples), default=0)

    def batch_cores(self) -> float:
        """Mean CPU of the batch pods in cores. A pod that goes takes its counter along: only growth counts."""
        seen = [s for s in self.samples if s.batch_ns is not None]
        if len(seen) < 2 or seen[-1].time <= seen[0].time:
            return 0.0
        grown = sum(max(0, (b.batch_ns or 0) - (a.batch_ns or 0)) for a, b in itertools.pairwise(seen))
        return grown / 1e9 / (seen[-1].time - seen[0].time)

    def rest_cores(self) -> float:
        """Mean CPU in cores of everything on the machine that is no pod: this sandbox's control plane, and whatever else runs."""
        seen = [s for s in self.samples if s.pods_ns is not None]
        if len(seen) < 2 or seen[-1].time <= seen[0].time:
            return 0.0
        pods = ((seen[-1].pods_ns or 0) - (seen[0].pods_ns or 0)) / 1e9
        return max(0.0, (seen[-1].node_busy - seen[0].node_busy - pods) / (seen[-1].time - seen[0].time))

    def rises(self) -> list[float]:
        """Times at which the arrival rate stepped up."""
        return [time for (_, _, before), (time, _, rate) in zip(self.step_times, self.step_times[1:], strict=False) if rate > before]

    def reactions(self) -> list[Reaction]:
        """For each step up, how fast the best-effort tier gave way."""
        found = (reaction(self.samples, time) for time in self.rises())
        return [r for r in found if r is not None]


@dataclass(frozen=True, slots=True)
class Reaction:
    """The best-effort tier around a step up of the service's load. `seconds` is None when its CPU did not fall in time."""

    before_cores: float
    after_cores: float
    seconds: float | None
    quota_seconds: float | None
    """Until the agent first lowered the CFS quota of the tier; None when it did not."""


def rate(samples: Sequence[Sample], begin: float, end: float) -> float | None:
    """Mean CPU of the best-effort tier in cores over [begin, end], from the samples nearest to both ends."""
    inside = [s for s in samples if begin <= s.time <= end and s.be_ns is not None]
    if len(inside) < 2 or inside[-1].time <= inside[0].time:
        return None
    return ((inside[-1].be_ns or 0) - (inside[0].be_ns or 0)) / 1e9 / (inside[-1].time - inside[0].time)


def reaction(samples: Sequence[Sample], step: float, *, within: float = 8.0) -> Reaction | None:
    """Time from a load step until the best-effort tier's CPU has made half of its fall, and stays there for a second.

    Where it ends depends on what the service takes, so the way is measured, not the end: from the mean of the three seconds before
    the step to the mean of the seconds after it. The time counts to the end of the first 0.2 s window at or below the middle.
    None without a baseline to compare with.
    """
    before = rate(samples, step - BASELINE_SECONDS, step)
    after = rate(samples, step + 1.0, step + within)
    if before is None or after is None or before < 0.05:
        return None
    later = [s for s in samples if step < s.time <= step + within and s.be_ns is not None]
    middle = (before + after) / 2
    fell: float | None = None
    if after > before * LEAST_FALL:
        later = []
    for one in later:
        short = rate(samples, one.time - REACTION_WINDOW, one.time)
        held = rate(samples, one.time, one.time + REACTION_HOLD)
        if one.time - REACTION_WINDOW >= step and short is not None and held is not None and max(short, held) <= middle:
            fell = one.time - step
            break
    return Reaction(before, after, fell, _first_cut(samples, step, within))


def _first_cut(samples: Sequence[Sample], step: float, within: float) -> float | None:
    previous: int | None = None
    for one in samples:
        quota = one.be_quota_us
        if quota is None or one.time > step + within:
            continue
        effective = quota if quota >= 0 else 2**62
        if one.time > step and previous is not None and effective < previous:
            return one.time - step
        previous = effective
    return None


def load_lines(lines: Iterable[dict[str, Any]], result: PhaseResult) -> bool:
    """Take the load generator's JSON lines into a phase; True once its summary has been seen."""
    ended = False
    for line in lines:
        event = line.get("event")
        if event == "step":
            result.step_times.append((line["monotonic"], line["index"], line["rate"]))
        elif event == "tick":
            result.ticks.append(Tick(line["monotonic"], line["step"], line["count"], line["errors"], line["p50"], line["p99"]))
        elif event == "end":
            result.steps = [StepResult(**step) for step in line["steps"]]
            ended = True
    return ended


def quieter(one: PhaseResult | None, other: PhaseResult) -> PhaseResult:
    """Of two measurements of a phase the one that is to be believed."""
    if one is None:
        return other
    return min((one, other), key=lambda result: (not result.steps, result.noisy_seconds(), sum(result.others())))


def contradiction(phases: Iterable[PhaseResult]) -> bool:
    """Whether the service was slower alone than with batch jobs under koord: then the figures say something about others only."""
    by_kind = {phase.kind: phase.peak() for phase in phases}
    alone, koord = by_kind.get("alone"), by_kind.get("koord")
    return alone is not None and koord is not None and alone.p99 > CONTRADICTION * koord.p99


def merge_steps(steps: Sequence[StepResult]) -> list[StepResult]:
    """Steps of one rate as one row: the worst of their percentiles, so that no step's tail is averaged away."""
    by_rate: dict[float, list[StepResult]] = {}
    for step in steps:
        by_rate.setdefault(step.rate, []).append(step)
    return [
        StepResult(
            rate=one,
            seconds=sum(s.seconds for s in group),
            count=sum(s.count for s in group),
            errors=sum(s.errors for s in group),
            p50=max(s.p50 for s in group),
            p95=max(s.p95 for s in group),
            p99=max(s.p99 for s in group),
            max=max(s.max for s in group),
        )
        for one, group in sorted(by_rate.items())
    ]
