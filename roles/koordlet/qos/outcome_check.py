"""What a strategy decided, checked where it comes in: a mistake of an extension costs its turn and nothing else (KA-PLG-01). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.decisions.record import Record
from roles.koordlet.actuation.writes import Batch, Kind, Write
from roles.koordlet.metrics.series import Gauge
from roles.koordlet.qos.outcome import Notice, Outcome, Sample

if TYPE_CHECKING:
    from roles.koordlet.metrics.registry import Metrics


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


def _gauge(family: Any, metrics: Metrics) -> Gauge:
    found = getattr(metrics, family, None) if isinstance(family, str) else None
    if not isinstance(found, Gauge):
        raise OutcomeError(f"{family!r} is no gauge of koordlet")
    return found
