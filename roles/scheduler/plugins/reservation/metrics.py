"""Metrics of reservations under upstream's names (SCH-RSV-16)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koord.accounting.resources import ResourceVector, parse
from koord.api import names
from koord.api.objects import Reservation, ResourceList
from koord.api.v1alpha1.reservation import PHASE_AVAILABLE, PHASE_FAILED, PHASE_PENDING, PHASE_SUCCEEDED

_PHASES = (PHASE_PENDING, PHASE_AVAILABLE, PHASE_SUCCEEDED, PHASE_FAILED)
_GI = float(1 << 30)


class ReservationMetrics:
    """All of them; `registry` None keeps them to itself (tests, what-ifs)."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._phase = Gauge(
            "scheduler_reservation_status_phase",
            "1 for the phase that a Reservation is in, 0 for the others.",
            ["name", "phase"],
            registry=registry,
        )
        self._resource = Gauge(
            "scheduler_reservation_resource",
            "allocatable, allocated (cores, Gi or raw) and utilization (ratio) of a Reservation.",
            ["type", "name", "resource", "unit"],
            registry=registry,
        )
        self._queries = Counter(
            "scheduler_reservation_selector_index_query", "Lookups in the selector index: hit or miss.", ["result"], registry=registry
        )
        self._candidates = Histogram(
            "scheduler_reservation_selector_index_candidates_count", "Nodes that a hit in the selector index leaves.",
            buckets=tuple(float(2**power) for power in range(14)), registry=registry,
        )  # fmt: skip

    def show(self, reservations: Iterable[Reservation]) -> None:
        """Replace all series by what is there now."""
        self._phase.clear()
        self._resource.clear()
        for reservation in reservations:
            name, phase = reservation.metadata.name, reservation.status.phase or PHASE_PENDING
            for one in _PHASES:
                self._phase.labels(name, one).set(float(one == phase))
            allocatable, allocated = _amounts(reservation.status.allocatable), _amounts(reservation.status.allocated)
            for resource, amount in allocatable.items():
                unit, size = _unit(resource)
                taken = allocated.get(resource, 0)
                self._resource.labels("allocatable", name, resource, unit).set(amount / size)
                self._resource.labels("allocated", name, resource, unit).set(taken / size)
                if amount > 0:
                    self._resource.labels("utilization", name, resource, "ratio").set(taken / amount)

    def query(self, result: str, candidates: int) -> None:
        """The selector index was asked."""
        self._queries.labels(result).inc()
        if result == "hit" and candidates:
            self._candidates.observe(candidates)


def _amounts(amounts: ResourceList) -> ResourceVector:
    try:
        return parse(dict(amounts))
    except ValueError:
        return {}


def _unit(resource: str) -> tuple[str, float]:
    """The unit of a resource and how much of the base unit it is."""
    if resource == names.RESOURCE_CPU:
        return "core", 1000.0
    return ("Gi", _GI) if resource == names.RESOURCE_MEMORY else ("raw", 1.0)
