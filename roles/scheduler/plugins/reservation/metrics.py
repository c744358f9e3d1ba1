"""Metrics of reservations under upstream's names (SCH-RSV-16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from koord.api import names
from koord.api.objects import Reservation
from koord.api.v1alpha1.reservation import PHASE_AVAILABLE, PHASE_FAILED, PHASE_PENDING, PHASE_SUCCEEDED
from koord.process.metrics import Listed
from roles.scheduler.plugins.reservation.status import legible

_PHASES = (PHASE_PENDING, PHASE_AVAILABLE, PHASE_SUCCEEDED, PHASE_FAILED)
_GI = float(1 << 30)

Sample = tuple[tuple[str, ...], float]


class ReservationMetrics:
    """All of them; `registry` None keeps them to itself (tests, what-ifs)."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        name, text = "scheduler_reservation_status_phase", "1 for the phase that a Reservation is in, 0 for the others."
        self._phase = Listed(name, text, ["name", "phase"], registry=registry)
        name, text = "scheduler_reservation_resource", "allocatable, allocated (cores, Gi or raw) and utilization (ratio) of a Reservation."
        self._resource = Listed(name, text, ["type", "name", "resource", "unit"], registry=registry)
        self._queries = Counter(
            "scheduler_reservation_selector_index_query", "Lookups in the selector index: hit or miss.", ["result"], registry=registry
        )
        self._candidates = Histogram(
            "scheduler_reservation_selector_index_candidates_count", "Nodes that a hit in the selector index leaves.",
            buckets=tuple(float(2**power) for power in range(14)), registry=registry,
        )  # fmt: skip

    def show(self, reservations: Sequence[Reservation]) -> Iterator[None]:
        """Replace all series by what is there now, in steps."""
        yield from self._phase.listing(sample for reservation in reservations for sample in _phases(reservation))
        yield from self._resource.listing(sample for reservation in reservations for sample in _resources(reservation))

    def query(self, result: str, candidates: int) -> None:
        """The selector index was asked."""
        self._queries.labels(result).inc()
        if result == "hit" and candidates:
            self._candidates.observe(candidates)


def _phases(reservation: Reservation) -> Iterator[Sample]:
    name, phase = reservation.metadata.name, reservation.status.phase or PHASE_PENDING
    return (((name, one), float(one == phase)) for one in _PHASES)


def _resources(reservation: Reservation) -> Iterator[Sample]:
    name = reservation.metadata.name
    allocatable, allocated = legible(reservation.status.allocatable), legible(reservation.status.allocated)
    for resource, amount in allocatable.items():
        unit, size = _unit(resource)
        taken = allocated.get(resource, 0)
        yield ("allocatable", name, resource, unit), amount / size
        yield ("allocated", name, resource, unit), taken / size
        if amount > 0:
            yield ("utilization", name, resource, "ratio"), taken / amount


def _unit(resource: str) -> tuple[str, float]:
    """The unit of a resource and how much of the base unit it is."""
    if resource == names.RESOURCE_CPU:
        return "core", 1000.0
    return ("Gi", _GI) if resource == names.RESOURCE_MEMORY else ("raw", 1.0)
