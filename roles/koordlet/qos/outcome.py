"""What a strategy decides in a tick, and what a strategy is. Strategies are pure: a snapshot in, an outcome out.

They do no I/O of their own (host files are read through the snapshot, each at most once a tick), have no clock (``now`` is an
argument) and no globals; what they have to remember is a state that they are handed and hand back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from koord.decisions.record import Record
from roles.koordlet.actuation.writes import Batch, Kind, Write
from roles.koordlet.host.cgroup_files import TABLE
from roles.koordlet.metrics.series import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable

    from roles.koordlet.eviction.tasks import EvictionTask
    from roles.koordlet.metrics.registry import Metrics
    from roles.koordlet.options import Options
    from roles.koordlet.states.model import Snapshot
    from roles.koordlet.states.slo import SLO

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Sample:
    """A gauge to set: ``family`` is an attribute of the metrics registry. ``value`` None forgets the series."""

    family: str
    value: float | None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A Kubernetes event to send about a pod (``namespace`` and ``name``), or about the node when they are empty."""

    type: str
    reason: str
    message: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    observed: bool = False
    """Whether it tells what was seen rather than what was done: then it is sent in observe mode too."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[S]):
    """A decision: the next state, what to write, whom to evict, why."""

    state: S
    batches: tuple[Batch, ...] = ()
    tasks: tuple[EvictionTask, ...] = ()
    records: tuple[Record, ...] = ()
    samples: tuple[Sample, ...] = ()
    cleared: tuple[str, ...] = ()
    """Gauge families that are rebuilt this tick and forget their series first."""
    notices: tuple[Notice, ...] = ()
    findings: Mapping[str, Mapping[str, Any]] | None = None
    """What the NodeMetric says of pods from now on (``podsMetric[].extensions``), by uid; None leaves what it says."""
    requests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What it asks others to do about pods: like findings, but not in observe mode."""


class Strategy(ABC, Generic[S]):
    """One strategy of the QoS manager. ``name`` is what ``--strategy-modes`` and records call it."""

    name: ClassVar[str]
    features: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[tuple[str, ...]] = ()
    """Feature gates, of which one has to be on; without any, the one of its name."""
    urgent: ClassVar[bool] = False
    """Whether it relieves a stall, so that kernel pressure runs it at once."""

    def __init__(self, options: Options, gate: Callable[[str], bool]) -> None:
        self.options = options
        self.gate = gate

    @property
    def enabled(self) -> bool:
        """Whether one of its gates is on."""
        return any(map(self.gate, self.gates or (self.name,)))

    @property
    def interval(self) -> float:
        """Seconds between two decisions; 0 or less turns it off."""
        return self.options.reconcile_interval_seconds

    @abstractmethod
    def initial(self) -> S:
        """The state before the first decision."""

    @abstractmethod
    def decide(self, snapshot: Snapshot, slo: SLO, state: S, now: float) -> Outcome[S]:
        """Decide for one tick. ``slo`` is the snapshot's NodeSLO, which exists."""

    def evicted(self, state: S, now: float) -> S:
        """The state after a run of this strategy's tasks that evicted something new (a cool-down starts)."""
        return state

    def kept(self, state: S) -> bytes:
        """What is to be known again after a restart; empty: nothing."""
        return b""

    def resumed(self, kept: bytes) -> S:
        """The state before the first decision of a process that was handed what another one kept. Raises ValueError."""
        return self.initial()


class OutcomeError(Exception):
    """A result that cannot be carried out; the text says what and what is accepted."""


def check_outcome(outcome: Any, metrics: Metrics) -> None:
    """Raises OutcomeError."""
    if not isinstance(outcome, Outcome):
        raise OutcomeError(f"decide gave {type(outcome).__name__}, an Outcome is wanted")
    for batch in _all(outcome.batches, Batch, "batches"):
        for write in batch:
            _check_write(write)
    _all(outcome.records, Record, "records")
    _all(outcome.notices, Notice, "notices")
    for family in outcome.cleared:
        _gauge(family, metrics)
    for sample in _all(outcome.samples, Sample, "samples"):
        gauge = _gauge(sample.family, metrics)
        if len(sample.labels) != len(gauge.labels) or not all(isinstance(label, str) for label in sample.labels):
            raise OutcomeError(f"gauge {sample.family} has labels {gauge.labels}, not {sample.labels}")
        if sample.value is not None and (isinstance(sample.value, bool) or not isinstance(sample.value, int | float)):
            raise OutcomeError(f"gauge {sample.family}: {sample.value!r} is no number")


def _all(found: Any, kind: type, what: str) -> tuple[Any, ...]:
    if not isinstance(found, tuple | list) or not all(isinstance(one, kind) for one in found):
        raise OutcomeError(f"{what}: a tuple of {kind.__name__} is wanted, not {found!r:.80}")
    return tuple(found)


def _check_write(write: Any) -> None:
    if not isinstance(write, Write):
        raise OutcomeError(f"a batch holds {type(write).__name__}, a Write is wanted")
    texts = (write.resource, write.target, write.value, write.device, write.fallback, write.origin, write.reason)
    if not all(isinstance(text, str) for text in texts) or not isinstance(write.kind, Kind):
        raise OutcomeError(f"{write}: resource, target, value and the like are text, kind is a Kind")
    if write.kind in (Kind.CGROUP, Kind.TRIGGER) and write.resource not in TABLE:
        raise OutcomeError(
            f"{write}: {write.resource} is not one of the files of host/cgroup_files.py, which have their names of cgroup v1; "
            "any other file is a Write of Kind.FILE with its path"
        )


def _gauge(family: Any, metrics: Metrics) -> Gauge:
    found = getattr(metrics, family, None) if isinstance(family, str) else None
    if not isinstance(found, Gauge):
        raise OutcomeError(f"{family!r} is no gauge of koordlet")
    return found
