"""Interference: a latency-sensitive pod that waits more than usual, and the best-effort pod that probably makes it wait (BEY-INT-01).

For each pod and signal (waiting for CPU, memory and disks by PSI, cycles per instruction, segments sent again, packets dropped) a decayed
baseline is learned. A value that stays out of the ordinary is called out, with the best-effort pod whose activity moves with it. By
default that is all: only in mode ``enforce`` is something done about the culprit, more the longer it lasts, and undone when its victims
have recovered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from koord.api.qos import QoSClass
from koord.api.times import format_time
from koord.decisions.record import Record, Subject, Term
from roles.koordlet.qos.baseline import APART, Baseline, aligned, chance, covariance, smoothed
from roles.koordlet.qos.interference_files import Held, batches
from roles.koordlet.qos.interference_measures import NAME, Measures, Ongoing
from roles.koordlet.qos.outcome import Notice, Outcome, Sample, Strategy
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import SLO
from roles.koordlet.store import kinds
from roles.koordlet.store.series import Series
from roles.koordlet.store.view import MetricsView

#: Values before anything is called out; values in a row that call it out, or off; values after which the unusual is the new usual (as
#: many as if they came every ten seconds).
WARM_UP, IN_A_ROW, ADAPT_AFTER = 30, 4, 180
#: How far back a culprit is looked for (seconds), how many common points that takes, and how closely it must move with the signal.
LOOK_BACK, LEAST_POINTS, LEAST_CORRELATION = 300.0, 16, 0.6
#: How long a pod is squeezed before it is asked whether that helped, and the pause when nobody's squeeze did (seconds); to which part of
#: its value a signal has to fall.
TRIAL, REST, HELPED = 20.0, 300.0, 0.75
#: How long what is usual for a workload is known without a pod of it here (seconds), and of how many at most.
KEPT, MOST_KEPT = 86_400.0, 512
#: Where samples come more often than every ten seconds, each signal has a second, slower look at the means of ten seconds: single seconds
#: scatter so much that only large rises stand out. What its baseline is called beside the signal's.
SLOWER = " (10 s)"
#: Times closer than this (seconds) are of the same sample.
SAME = 0.1
#: Chance of blaming an innocent pod, of all that are compared.
FALSE_BLAME = 0.05
#: Kind of a series and what selects it beside the pod.
Selection = tuple[str, dict[str, str]]
_SENSITIVE = frozenset({QoSClass.LSE, QoSClass.LSR, QoSClass.LS})


@dataclass(frozen=True, slots=True)
class Signal:
    """``floor`` is the least rise that matters, in the signal's unit; ``series`` is where the signal is, without it cycles per
    instruction. ``culprits`` is what is compared of best-effort pods, the next one where nobody moves with the signal;
    ``substitute`` stands in where the node has none of these series."""

    name: str
    unit: str
    floor: float
    culprits: tuple[Selection, ...]
    series: Selection | None = None
    substitute: Selection | None = None
    recent: Selection | None = None
    """Where the signal is as of the last round alone; ``series`` stands in."""


def _pressure(resource: str, precision: str = "10") -> Selection:
    return kinds.POD_PSI, {"psi_resource": resource, "psi_precision": precision, "psi_degree": "some"}


def _recent(resource: str) -> Selection:
    return _pressure(resource, kinds.PSI_RECENT)


def _network(counter: str) -> Selection:
    return kinds.POD_NETWORK, {"network_counter": counter}


_CPU: Selection = (kinds.POD_CPU, {})
_MEMORY: Selection = (kinds.POD_MEMORY, {})
_DISK: Selection = (kinds.POD_DISK, {})
SIGNALS = (
    Signal("cpu", "percent", 5.0, (_CPU,), _pressure("cpu"), recent=_recent("cpu")),
    Signal("memory", "percent", 2.0, (_MEMORY,), _pressure("mem"), recent=_recent("mem")),
    Signal("io", "percent", 5.0, (_DISK,), _pressure("io"), _CPU, _recent("io")),
    Signal("cpi", "cycles per instruction", 0.2, (_CPU,)),
    Signal("retransmits", "percent of segments", 1.0, (_network("bytes"),), _network("retransmits")),
    Signal("drops", "percent of packets", 1.0, (_network("bytes"), _CPU), _network("drops")),
)


@dataclass(frozen=True, slots=True)
class Watched:
    """One signal of one pod. ``high`` and ``low`` count values in a row; ``since`` is when it was called out (0: it is not).
    ``limit`` is what the last run of high values began above."""

    baseline: Baseline = field(default_factory=Baseline)
    high: int = 0
    low: int = 0
    since: float = 0.0
    limit: float = 0.0
    rose: float = 0.0
    """When the run of high values began."""
    culprit: str = ""
    """uid of who is blamed, on trial or ``proven``: squeezed since ``began``, when the signal was at ``level``."""
    began: float = 0.0
    level: float = 0.0
    proven: bool = False
    tried: tuple[str, ...] = ()
    """uids of those whose squeeze did not help."""
    rest: float = 0.0
    """Until when nobody is tried, after all were (0: not all were)."""
    young: int = 0
    """Values left in which a pod that took over its siblings' baseline is not called out, nor teaches what is high: it starts."""

    def over(self) -> Watched:
        """Nothing is out of the ordinary any more."""
        return Watched(self.baseline, low=self.low)

    def on_trial(self, culprit: str, value: float, now: float) -> Watched:
        """With somebody else to blame; empty: nobody is left."""
        tried = (*self.tried, self.culprit) if self.culprit else self.tried
        if not culprit:
            return replace(self, culprit="", tried=(), rest=now + REST, proven=False)
        return replace(self, culprit=culprit, began=now, level=value, tried=tried, rest=0.0, proven=False)

    def helped(self, value: float) -> bool:
        """Whether the signal is where it should be, or clearly less than when the trial began."""
        return value <= max(self.limit, HELPED * self.level)

    def taken(self, value: float, at: float, floor: float) -> Watched:
        """With one more value.

        A run of high values is judged by the limit that it began above. All values are learned, but for what follows a call-out: a long
        trouble teaches as much as a short one, unless it lasts so long that it is the new usual.
        """
        lasting = self.high >= ADAPT_AFTER and at - self.rose >= (ADAPT_AFTER - 1) * APART
        running = (self.high > 0 or self.since > 0) and not lasting
        limit = self.limit if running else self.baseline.limit(floor)
        if self.young:
            baseline = self.baseline.learned(value, at) if value <= limit else replace(self.baseline, at=at)
            return replace(self, baseline=baseline, low=self.low + 1, limit=limit, young=self.young - 1)
        if self.baseline.count < WARM_UP or value <= limit:
            return replace(self, baseline=self.baseline.learned(value, at), high=0, low=self.low + 1, limit=limit)
        teaches = not self.since or not running
        baseline = self.baseline.learned(value, at) if teaches else replace(self.baseline, at=at)
        return replace(self, baseline=baseline, high=self.high + 1, low=0, limit=limit, rose=self.rose if self.high else at)


Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class InterferenceState:
    """By pod uid and signal."""

    watched: dict[Key, Watched] = field(default_factory=dict)
    cooling_since: float | None = None
    held: dict[str, Held] = field(default_factory=dict)
    """Culprits that are squeezed or throttled, by uid."""
    asked: frozenset[str] = frozenset()
    """Culprits that are asked to migrate."""
    workloads: dict[Key, Baseline] = field(default_factory=dict)
    """What is usual by workload and signal: a pod begins with its siblings' norm, also after a restart."""


def workload_of(pod: PodState) -> str:
    """Who made the pod, over its revisions; a pod that nobody made stands for itself."""
    meta = pod.pod.metadata
    owner = next((o for o in meta.owner_references if o.controller), None)
    if owner is None:
        return f"{pod.namespace}/Pod/{pod.name}"
    revision = pod.labels.get("pod-template-hash", "")
    return f"{pod.namespace}/{owner.kind}/{owner.name.removesuffix(f'-{revision}') if revision else owner.name}"


def _remembered(before: dict[Key, Baseline], pods: Sequence[PodState], watched: dict[Key, Watched]) -> dict[Key, Baseline]:
    """Of each workload the baseline of its most experienced pod here; those of workloads that are gone for a while, up to a bound."""
    owners = {pod.uid: workload_of(pod) for pod in pods}
    now: dict[Key, Baseline] = {}
    for (uid, signal), one in watched.items():
        key = (owners.get(uid, ""), signal)
        known = now.get(key)
        if key[0] and not one.young and one.baseline.count >= WARM_UP and (known is None or one.baseline.experience > known.experience):
            now[key] = one.baseline
    both = {**before, **now}
    newest = max((baseline.at for baseline in both.values()), default=0.0)
    left = sorted((key for key in both if both[key].at > newest - KEPT), key=lambda key: both[key].at)[-MOST_KEPT:]
    return both if len(left) == len(both) else {key: both[key] for key in left}


def points(metrics: MetricsView, signal: Signal, pod: PodState, window: float) -> Series:
    """A pod's signal over a window. Cycles per instruction of a pod are those of its containers together."""
    for selection in (signal.recent, signal.series):
        if selection is not None:
            kind, properties = selection
            found = metrics.query(kind, window, pod_uid=pod.uid, **properties)
            if found.values or selection is signal.series:
                return found
    cycles = _summed(metrics.query(kinds.CONTAINER_CPI, window, pod_uid=pod.uid, cpi_resource="cycle"))
    instructions = _summed(metrics.query(kinds.CONTAINER_CPI, window, pod_uid=pod.uid, cpi_resource="instruction"))
    both = {time: cycles[time] / instructions[time] for time in cycles if instructions.get(time, 0.0) > 0}
    times = sorted(both)
    return Series(times, [both[time] for time in times], times[-1] - times[0] if times else 0)


def _summed(series: Series) -> dict[int, float]:
    out: dict[int, float] = {}
    for time, value in zip(series.times, series.values, strict=True):
        out[time] = out.get(time, 0.0) + value
    return out


def culprit_of(snapshot: Snapshot, signal: Signal, pod: PodState) -> tuple[PodState, float] | None:
    """The best-effort pod whose activity explains most of the signal's movement, with the correlation; None when none does."""
    seen = points(snapshot.metrics, signal, pod, LOOK_BACK)
    others = [p for p in snapshot.pods if p.uid != pod.uid and p.active and p.best_effort]
    counted = False
    for selection in signal.culprits:
        found, any_points = _moving_with(snapshot, seen, others, selection)
        if found is not None:
            return found
        counted = counted or any_points
    if counted or signal.substitute is None:
        return None
    return _moving_with(snapshot, seen, others, signal.substitute)[0]


def _moving_with(
    snapshot: Snapshot, seen: Series, others: Sequence[PodState], selection: Selection
) -> tuple[tuple[PodState, float] | None, bool]:
    """The pod that moves most with what was seen, of those that move closely with it; and whether any pod has the series at all."""
    best: tuple[float, PodState, float] | None = None
    any_points = False
    kind, properties = selection
    step = max(int(snapshot.collect_interval * 1000), _typical_step(seen.times))
    for other in others:
        activity = snapshot.metrics.query(kind, LOOK_BACK, pod_uid=other.uid, **properties)
        any_points = any_points or bool(activity.values)
        moved = aligned(seen.times, activity.times, activity.values, step)
        pairs = [(a, b) for a, b in zip(seen.values, moved, strict=True) if b is not None]
        if len(pairs) < LEAST_POINTS:
            continue
        together, correlation = covariance(smoothed([a for a, _ in pairs]), smoothed([b for _, b in pairs]))
        close = max(LEAST_CORRELATION, chance(len(pairs), len(others), FALSE_BLAME))
        if correlation >= close and (best is None or together > best[0]):
            best = (together, other, correlation)
    return (None if best is None else (best[1], best[2])), any_points


def _typical_step(times: Sequence[int]) -> int:
    return (times[-1] - times[0]) // (len(times) - 1) if len(times) > 1 else 0


class InterferenceDetection(Strategy[InterferenceState]):
    """See the module."""

    name: ClassVar[str] = NAME
    features: ClassVar[tuple[str, ...]] = ("BEY-INT-01",)

    @property
    def interval(self) -> float:
        return self.options.psi_collector_interval

    def initial(self) -> InterferenceState:
        return InterferenceState()

    def evicted(self, state: InterferenceState, now: float) -> InterferenceState:
        return replace(state, cooling_since=now)

    def kept(self, state: InterferenceState) -> bytes:
        rows = [(*key, *baseline.row()) for key, baseline in state.workloads.items()]
        return msgspec.msgpack.encode(rows) if rows else b""

    def resumed(self, kept: bytes) -> InterferenceState:
        rows = msgspec.msgpack.decode(kept, type=list[tuple[str, str, float, float, int, float, float, bytes]])
        return InterferenceState(workloads={(workload, signal): Baseline.of(row) for workload, signal, *row in rows[:MOST_KEPT]})

    def decide(self, snapshot: Snapshot, slo: SLO, state: InterferenceState, now: float) -> Outcome[InterferenceState]:
        found = _Findings(self, snapshot, state, now)
        for pod in snapshot.pods:
            if pod.active and pod.qos in _SENSITIVE and not pod.best_effort:
                for signal in SIGNALS:
                    found.look(pod, signal)
        done = Measures(snapshot, slo, state.held, state.asked, found.ongoing, now)
        return Outcome(
            replace(
                state,
                watched=found.watched,
                held=done.held,
                asked=frozenset(done.asked),
                workloads=_remembered(state.workloads, snapshot.pods, found.watched),
            ),
            batches=tuple(b for b in batches(state.held.values(), done.held.values()) if b),
            tasks=tuple(done.tasks(state.cooling_since)),
            records=(*found.records, *done.records),
            samples=(*found.samples, *done.samples),
            cleared=("interference", "interference_action"),
            notices=tuple(found.notices),
            findings=found.findings(),
            requests=done.asked,
        )


class _Findings:
    """What one look over all pods found."""

    def __init__(self, strategy: InterferenceDetection, snapshot: Snapshot, state: InterferenceState, now: float) -> None:
        self.strategy, self.snapshot, self.state, self.now = strategy, snapshot, state, now
        self.watched: dict[Key, Watched] = {}
        self.records: list[Record] = []
        self.samples: list[Sample] = []
        self.notices: list[Notice] = []
        self.ongoing: list[Ongoing] = []
        self._findings: dict[str, list[dict[str, Any]]] = {}

    def look(self, pod: PodState, signal: Signal) -> None:
        names = (signal.name, signal.name + SLOWER) if self.strategy.interval < APART else (signal.name,)
        befores = [self._before(pod, name) for name in names]
        series = points(self.snapshot.metrics, signal, pod, 3 * max(self.strategy.interval, 20.0))
        newest = max(range(len(series.times)), key=lambda i: series.times[i], default=-1)
        called = [before.since > 0 for before in befores]
        for name, before in zip(names, befores, strict=True):
            key = (pod.uid, name)
            # who has called it out looks on alone until it is over
            if newest < 0 or (any(called) and not before.since):
                if before.baseline.count:
                    self.watched[key] = before
                continue
            # by the strategies' clock, which nobody sets
            at, value = self.now - (self.snapshot.time - series.times[newest] / 1000), series.values[newest]
            if name != signal.name:
                if at < before.baseline.at + APART - SAME:
                    self._kept(key, pod, signal, before)
                    continue
                last = [v for t, v in zip(series.times, series.values, strict=True) if t > series.times[newest] - APART * 1000]
                value = sum(last) / len(last)
            self._seen(key, pod, signal, value, at, before)
            called.append(self.watched[key].since > 0)

    def _before(self, pod: PodState, name: str) -> Watched:
        before = self.state.watched.get((pod.uid, name))
        if before is not None:
            return before
        siblings = self.state.workloads.get((workload_of(pod), name))
        # what is older than this process may be of a clock that was ahead
        return Watched() if siblings is None else Watched(replace(siblings, at=min(siblings.at, self.now)), young=WARM_UP)

    def _kept(self, key: Key, pod: PodState, signal: Signal, watched: Watched) -> None:
        """Nothing new: what was found stays."""
        self.watched[key] = watched
        if watched.since:
            self._show(pod, signal, max(watched.level, watched.limit), watched)

    def _seen(self, key: Key, pod: PodState, signal: Signal, value: float, at: float, before: Watched) -> None:
        after = before.taken(value, at, signal.floor) if at > before.baseline.at + SAME else before
        if not after.since and after.high >= IN_A_ROW:
            after = self._called_out(pod, signal, value, after)
        elif after.since and after.low >= IN_A_ROW:
            self._record("InterferenceOver", pod, signal, value, after, "")
            after = after.over()
        elif after.since:
            after = self._tried(pod, signal, value, at, after)
        self.watched[key] = after
        if after.since:
            self._show(pod, signal, value, after)

    def _called_out(self, pod: PodState, signal: Signal, value: float, watched: Watched) -> Watched:
        culprit = culprit_of(self.snapshot, signal, pod)
        who = f"; pod {culprit[0].key} moves with it (correlation {culprit[1]:.2f})" if culprit is not None else "; no pod moves with it"
        text = self._record("Interfered", pod, signal, value, watched, who, culprit)
        self.notices.append(Notice("Warning", "Interference", text, pod.namespace, pod.name, pod.uid, observed=True))
        watched = replace(watched, since=self.now)
        return watched if culprit is None else watched.on_trial(culprit[0].uid, value, self.now)

    def _tried(self, pod: PodState, signal: Signal, value: float, at: float, watched: Watched) -> Watched:
        """Blame is checked: who was squeezed and did not help is set free, and the next one is tried, until the pod recovers."""
        if watched.proven and self._here(watched.culprit):
            return watched
        if watched.culprit and self._here(watched.culprit):
            if at < watched.began + TRIAL:
                return watched
            if watched.helped(value):
                self._judge("Confirmed", pod, signal, watched, value)
                return replace(watched, proven=True)
            self._judge("Cleared", pod, signal, watched, value)
        elif not watched.culprit and not watched.tried and not watched.rest:
            found = culprit_of(self.snapshot, signal, pod)  # there may be enough to go by now
            return watched if found is None else watched.on_trial(found[0].uid, value, self.now)
        elif self.now < watched.rest:
            return watched
        return watched.on_trial(self._next(pod, signal, watched), value, self.now)

    def _here(self, uid: str) -> bool:
        pod = self.snapshot.pod(uid)
        return pod is not None and pod.active

    def _next(self, pod: PodState, signal: Signal, watched: Watched) -> str:
        """The most active best-effort pod of those that were not tried; who disturbs need not move with the signal."""
        tried = {*watched.tried, watched.culprit, pod.uid}
        kind, properties = signal.culprits[-1]
        rows = []
        for other in self.snapshot.pods:
            if other.uid not in tried and other.active and other.best_effort:
                seen = self.snapshot.metrics.query(kind, LOOK_BACK, pod_uid=other.uid, **properties).values
                if seen and (activity := sum(seen) / len(seen)) > 0:
                    rows.append((activity, other.uid))
        return max(rows)[1] if rows else ""

    def _judge(self, verdict: str, pod: PodState, signal: Signal, watched: Watched, value: float) -> None:
        """What became of a trial, on record of the pod that was squeezed."""
        culprit = self.snapshot.pod(watched.culprit)
        if culprit is None:
            return
        helped = "helped" if verdict == "Confirmed" else "did not help"
        text = f"squeezing it {helped} pod {pod.key}: {signal.name} was {watched.level:.2f} {signal.unit} and is {value:.2f}"
        subject = Subject("Pod", culprit.namespace, culprit.name, culprit.uid)
        numbers: dict[str, float | int | str] = {
            "signal": signal.name,
            "victim": pod.key,
            "before": round(watched.level, 4),
            "value": round(value, 4),
        }
        name, features = self.strategy.name, self.strategy.features
        self.records.append(Record("koordlet", subject, self.now, verdict, name, text, numbers=numbers, features=features))

    def _show(self, pod: PodState, signal: Signal, value: float, watched: Watched) -> None:
        culprit = self.snapshot.pod(watched.culprit) if watched.culprit else None
        ratio = value / watched.baseline.mean if watched.baseline.mean > 0 else value / signal.floor
        labels = (pod.namespace, pod.name, signal.name, culprit.key if culprit is not None else "")
        self.samples.append(Sample("interference", ratio, labels))
        told = {"signal": signal.name, "times": round(ratio, 2), "since": format_time(watched.since)}
        self._findings.setdefault(pod.uid, []).append(told | ({"antagonist": culprit.key} if culprit is not None else {}))
        if culprit is not None and culprit.active:
            self.ongoing.append(Ongoing(pod, signal.name, culprit, watched.since, watched.proven))

    def findings(self) -> dict[str, dict[str, Any]]:
        """What the NodeMetric says of the pods that wait."""
        return {uid: {"interference": told} for uid, told in self._findings.items()}

    def _record(
        self,
        verdict: str,
        pod: PodState,
        signal: Signal,
        value: float,
        watched: Watched,
        who: str,
        culprit: tuple[PodState, float] | None = None,
    ) -> str:
        baseline = watched.baseline
        usual = f"usually {baseline.mean:.2f} ± {baseline.variance**0.5:.2f}"
        text = f"{signal.name}: {value:.2f} {signal.unit}, {usual}{who}"
        numbers: dict[str, float | int | str] = {"value": round(value, 4), "mean": round(baseline.mean, 4), "signal": signal.name}
        if culprit is not None:
            numbers |= {"antagonist": culprit[0].key, "correlation": round(culprit[1], 3)}
        terms = (Term("limit", round(baseline.limit(signal.floor), 4), "99.5 % of all values, and a margin on top", signal.unit),)
        subject = Subject("Pod", pod.namespace, pod.name, pod.uid)
        features = self.strategy.features
        self.records.append(
            Record("koordlet", subject, self.now, verdict, self.strategy.name, text, numbers=numbers, terms=terms, features=features)
        )
        return text
