"""Runs the strategies that are due on one snapshot, and carries out what they decide.

A strategy that fails is logged and loses its tick; the others go on. In observe mode its decisions are recorded and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from koord.decisions.record import Record, Subject
from koord.process.steady import SteadyClock
from roles.koordlet.actuation.executor import Applied, Executor, Mode
from roles.koordlet.qos.outcome import Notice, Outcome, Strategy, check_outcome

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from roles.koordlet.eviction.tasks import EvictionTask
    from roles.koordlet.metrics.registry import Metrics
    from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)

#: What strategies have to say of pods in the NodeMetric, by uid.
Findings = Mapping[str, Mapping[str, Any]]

#: Running a strategy this much early saves a wake-up of its own (seconds).
_EARLY = 0.05


class Evicting(Protocol):
    """Carries eviction tasks out in the background, one run a strategy at a time."""

    def busy(self, strategy: str) -> bool:
        """Whether an earlier run of the strategy has not ended yet."""

    def submit(self, strategy: str, tasks: Sequence[EvictionTask], mode: Mode, done: Callable[[int], None]) -> None:
        """Start a run; ``done`` gets the number of pods that it newly evicted."""


@dataclass(slots=True)
class _Running:
    name: str
    urgent: bool
    strategy: Strategy[Any]
    state: Any
    mode: Mode
    due: float = 0.0
    failed: str = ""
    held_back: bool = False


@dataclass(eq=False)
class QOSManager:
    """``tick`` is called after each round of sensing, within the same reading of the host's files."""

    strategies: Sequence[Strategy[Any]]
    _: KW_ONLY
    executor: Executor
    evicting: Evicting
    recorder: Recorder
    metrics: Metrics
    modes: Callable[[str], Mode]
    notify: Callable[[Notice], None]
    publish: Callable[[Findings], None] = lambda findings: None

    def __post_init__(self) -> None:
        self._clock = SteadyClock(slew=0.0)
        self._running = {
            s.name: _Running(s.name, bool(s.urgent), s, s.initial(), self.modes(s.name))
            for s in self.strategies
            if s.enabled and s.interval > 0
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Strategies that run."""
        return tuple(self._running)

    @property
    def held_back(self) -> tuple[str, ...]:
        """Strategies that fell back to observing because old values cannot be put on record."""
        return tuple(name for name, r in self._running.items() if r.held_back)

    def kept(self) -> dict[str, bytes]:
        """What strategies want to know again after a restart, by name. One that fails keeps nothing."""
        out: dict[str, bytes] = {}
        for running in self._running.values():
            try:
                if kept := running.strategy.kept(running.state):
                    out[running.name] = bytes(kept)
            except (Exception, SystemExit):
                log.exception("strategy %s failed when it was asked what to keep", running.name)
        return out

    def resume(self, kept: Mapping[str, bytes]) -> None:
        """Hand strategies what they kept, before the first tick. What one cannot use is ignored."""
        for name, data in kept.items():
            running = self._running.get(name)
            try:
                if running is not None:
                    running.state = running.strategy.resumed(data)
            except (Exception, SystemExit) as error:
                log.warning("strategy %s cannot use what it kept: %s", name, error)

    def tick(self, snapshot: Snapshot, mono: float) -> None:
        """Run what is due at this moment. Without a NodeSLO, a Node or a pod list nothing is decided."""
        if snapshot.slo is None or not snapshot.pods_synced:
            return
        now = self._clock.at(snapshot.time, mono)
        for running in self._running.values():
            if running.due <= mono + _EARLY:
                self._run(running, snapshot, now, mono)

    def run_now(self, name: str, snapshot: Snapshot, mono: float) -> None:
        """Kernel pressure: run a strategy out of turn if it relieves a stall, else only when it is due. One that is off stays off."""
        running = self._running.get(name)
        if running is None or snapshot.slo is None or not snapshot.pods_synced:
            return
        if running.urgent or running.due <= mono + _EARLY:
            self._run(running, snapshot, self._clock.at(snapshot.time, mono), mono)

    # -- a strategy ----------------------------------------------------------------------------------------------------------

    def _run(self, running: _Running, snapshot: Snapshot, now: float, mono: float) -> None:
        name, slo = running.name, snapshot.slo
        if slo is None or self.evicting.busy(name):
            return
        try:
            running.due = mono + running.strategy.interval
            outcome: Outcome[Any] = running.strategy.decide(snapshot, slo, running.state, now)
            check_outcome(outcome, self.metrics)
            running.state = outcome.state
            self._carry_out(running, outcome, snapshot.time, now)
        except (Exception, SystemExit) as error:
            # one strategy's mistake must not take the others' isolation away
            self.metrics.strategy_failures.inc(name)
            text = f"{type(error).__name__}: {error}"
            if text != running.failed:
                log.exception("strategy %s failed; it decides nothing until that is over", name)
            running.failed = text
            return
        if running.failed:
            log.info("strategy %s decides again", name)
            running.failed = ""

    def _carry_out(self, running: _Running, outcome: Outcome[Any], now: float, steady: float) -> None:
        name, mode = running.name, running.mode
        applied = self.executor.apply(outcome.batches, rule=name, now=now, mode=mode)
        self._watch_journal(running, applied, now)
        if applied.would:
            self.metrics.would_write.inc(name, amount=len(applied.would))
        for record in outcome.records:
            verdict = _WOULD.get(record.verdict, record.verdict) if mode is Mode.OBSERVE else record.verdict
            self.recorder.record(_told(record, verdict, now))
        self._gauge(outcome)
        if outcome.findings is not None:
            asked = outcome.requests if mode is Mode.ENFORCE else {}
            uids = dict.fromkeys((*outcome.findings, *asked))
            self.publish({uid: {**outcome.findings.get(uid, {}), **asked.get(uid, {})} for uid in uids})
        for notice in outcome.notices:
            if mode is Mode.ENFORCE or notice.observed:
                self.notify(notice)
        if outcome.tasks:
            self.evicting.submit(name, outcome.tasks, mode, lambda fresh: self._evicted(running, fresh, steady))

    def _evicted(self, running: _Running, fresh: int, now: float) -> None:
        if not fresh:
            return
        try:
            running.state = running.strategy.evicted(running.state, now)
        except (Exception, SystemExit):
            self.metrics.strategy_failures.inc(running.name)
            log.exception("strategy %s failed when it was told of evictions", running.name)

    def _watch_journal(self, running: _Running, applied: Applied, now: float) -> None:
        if applied.unjournalled == running.held_back:
            return
        running.held_back = applied.unjournalled
        name = running.name
        verdict, message = "Enforcing", "old values are put on record again"
        if running.held_back:
            verdict, message = "HeldBack", f"only observing what is not on record: {applied.failed[-1].detail}"
            log.error("strategy %s only observes where old values cannot be put on record", name)
        about = Subject("Node", name=self.metrics.node)
        self.recorder.record(Record("koordlet", about, now, verdict, rule=name, message=message, features=("BEY-JRN-01",)))

    def _gauge(self, outcome: Outcome[Any]) -> None:
        for family in outcome.cleared:
            getattr(self.metrics, family).clear()
        for sample in outcome.samples:
            gauge = getattr(self.metrics, sample.family)
            if sample.value is None:
                gauge.remove(*sample.labels)
            else:
                gauge.set(sample.value, *sample.labels)


_WOULD = {
    "Suppressed": "WouldSuppress",
    "Unrestricted": "WouldRelease",
    "QuotaRaised": "WouldRaiseQuota",
    "QuotaLowered": "WouldLowerQuota",
    "Tuned": "WouldTune",
    "Untuned": "WouldUntune",
    "Squeezed": "WouldSqueeze",
    "Throttled": "WouldThrottle",
    "MigrationAsked": "WouldAskToMigrate",
    "SetFree": "WouldSetFree",
}


def _told(record: Record, verdict: str, now: float) -> Record:
    """A record with its verdict as it is told, and the time by the wall clock."""
    return Record(
        record.role,
        record.subject,
        now,
        verdict,
        record.rule,
        record.message,
        record.numbers,
        record.terms,
        record.features,
    )
