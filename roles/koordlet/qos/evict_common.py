"""What the CPU and the memory evictions share: cool-down and the allocatable overcommit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from koord.api.names import RESOURCE_CPU
from koord.api.priority import PriorityClass, translate_resource_name
from koord.api.quantity import QuantityError, parse_value
from koord.decisions.record import Record, Subject, Term
from roles.koordlet.eviction.tasks import REQUEST, USED, EvictionTask, critical_percent
from roles.koordlet.eviction.victims import opted_in, overcommitted_class, priority_value, victim
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.allocation import requested
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import ThresholdStrategy

MAX_ALLOCATABLE_PRIORITY = 7999


@dataclass(frozen=True, slots=True)
class EvictState:
    """``cooling_since``: start of the cool-down (None: there is none). ``complaints``: invalid settings already told.

    ``unsampled``: pods whose use is not known, by uid, and since when.
    """

    cooling_since: float | None = None
    complaints: frozenset[str] = frozenset()
    unsampled: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Invalid:
    """Settings that a task cannot run with; only that task is skipped."""

    gate: str
    detail: str


def lasts(since: float | None, now: float, seconds: float) -> bool:
    """Whether what began at ``since`` goes on for ``seconds``; what began in the future does not: the clock was set."""
    return since is not None and 0 <= now - since < seconds


Found = EvictionTask | Invalid | None
Maker = Callable[[Snapshot, ThresholdStrategy], Found]


class EvictStrategy(Strategy[EvictState]):
    """One strategy for all gates of a resource, because they share victims, accounting and cool-down."""

    urgent: ClassVar[bool] = True

    def initial(self) -> EvictState:
        return EvictState()

    def evicted(self, state: EvictState, now: float) -> EvictState:
        return replace(state, cooling_since=now)

    def tasks(
        self, makers: Sequence[Maker], snapshot: Snapshot, threshold: ThresholdStrategy, state: EvictState, now: float
    ) -> Outcome[EvictState]:
        """What the makers of the gates that are on, in the order of the gates, want; a record for each setting that has become invalid."""
        found = [make(snapshot, threshold) for gate, make in zip(self.gates, makers, strict=True) if self.gate(gate)]
        invalid = {f"{each.gate}: {each.detail}": each for each in found if isinstance(each, Invalid)}
        node = Subject("Node", name=snapshot.node_name)
        records = tuple(
            Record("koordlet", node, now, "InvalidConfig", rule=each.gate, message=f"not evicting: {each.detail}")
            for text, each in invalid.items()
            if text not in state.complaints
        )
        tasks = tuple(each for each in found if isinstance(each, EvictionTask))
        return Outcome(replace(state, complaints=frozenset(invalid)), tasks=tasks, records=records)


def used_task(
    snapshot: Snapshot,
    gate: str,
    resource: str,
    *,
    used: int,
    capacity: int,
    limit: int,
    lower: int,
    pods: Callable[[], Sequence[PodState]],
) -> EvictionTask | None:
    """Evict pods until the node uses ``lower`` percent of its capacity, where it uses ``limit`` percent or more."""
    percent = used * 100 // capacity
    if percent < limit:
        return None
    release = capacity * (percent - lower) // 100
    what, amount, unit = ("CPU", f"{release}m", "milli") if resource == RESOURCE_CPU else ("memory", f"{release} bytes", "bytes")
    return EvictionTask(
        gate,
        USED,
        {resource: release},
        tuple(victim(snapshot, pod) for pod in pods()),
        f"the node uses {percent} % of its {what} (threshold {limit} %); {amount} to release",
        {"usage_percent": percent, "threshold_percent": limit, "lower_percent": lower, f"release_{unit}": release},
        critical=percent >= critical_percent(limit),
    )


def allocatable_task(
    snapshot: Snapshot,
    *,
    gate: str,
    native: str,
    threshold: int | None,
    lower: int | None,
    priority: int | None,
    measured: Callable[[PodState], int | None],
    release: Callable[[int, int, int], int],
) -> EvictionTask | Invalid | None:
    """Evict mid and batch pods that request more than the node now offers them.

    ``release(sum, allocatable, lower percent)`` is how much has to go; a resource that the node does not offer (any more) has to go
    whole. Native resources are not counted: no victim could ever cover them.
    """
    if threshold is None or threshold < 0 or lower is None or lower >= threshold:
        return Invalid(gate, f"threshold {threshold} and lower {lower} percent are needed, with lower below threshold")
    if priority is None or priority > MAX_ALLOCATABLE_PRIORITY:
        return Invalid(gate, f"allocatableEvictPriorityThreshold {priority} is needed, at most {MAX_ALLOCATABLE_PRIORITY}")
    if snapshot.node is None:
        return None
    targets: dict[str, int] = {}
    terms: list[Term] = []
    for cls in (PriorityClass.MID, PriorityClass.BATCH):
        resource = translate_resource_name(cls, native)
        pods = [p for p in snapshot.pods if p.priority_class is cls and p.active and priority_value(p) <= priority]
        total = sum(requested(p, resource) for p in pods)
        if total <= 0:
            continue
        try:
            offered = parse_value(snapshot.node.status.allocatable.get(resource, 0))
        except QuantityError:
            continue
        if offered <= 0:
            targets[resource] = total
        elif total / offered > threshold / 100:
            targets[resource] = release(total, offered, lower)
        terms.append(Term(resource, total, f"requested, of {offered} offered"))
    targets = {r: amount for r, amount in targets.items() if amount > 0}
    if not targets:
        return None

    def amount(pod: PodState) -> int:
        return requested(pod, translate_resource_name(pod.priority_class, native))

    pods = [
        p
        for p in opted_in(snapshot, gate, priority, measured, amount)
        if overcommitted_class(p) and translate_resource_name(p.priority_class, native) in targets
    ]
    wanted = ", ".join(f"{amount} of {resource}" for resource, amount in targets.items())
    return EvictionTask(
        gate,
        REQUEST,
        targets,
        tuple(victim(snapshot, p) for p in pods),
        f"requests exceed {threshold} % of what the node offers; {wanted} to release",
        {"threshold_percent": threshold, "lower_percent": lower, **{f"release_{r}": a for r, a in targets.items()}},
        tuple(terms),
    )
