"""Prod reclaimable and Prod peak for one report, with their metrics (KLO-PRED-03)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from koord.api.names import ANNOTATION_NODE_RAW_ALLOCATABLE
from koord.api.priority import PriorityClass
from koord.api.quantity import QuantityError, format_binary, format_milli, parse_milli, parse_value
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.prediction.models import PROD_KEYS, Models
from roles.koordlet.prediction.peak import Amount, Outcome, PeakInput, UnknownModelError, by_pods, by_priority, combine
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    from koord.api.objects import Node

log = logging.getLogger(__name__)

_PROD = str(PriorityClass.PROD)


def _amount(resources: Any) -> Amount | None:
    if not isinstance(resources, dict) or "cpu" not in resources or "memory" not in resources:
        return None
    try:
        return Amount(parse_milli(resources["cpu"]), parse_value(resources["memory"]))
    except QuantityError:
        return None


def node_allocatable(node: Node) -> Amount | None:
    """Raw allocatable of the annotation if it can be read, else ``status.allocatable``; None without either."""
    text = node.metadata.annotations.get(ANNOTATION_NODE_RAW_ALLOCATABLE)
    if text:
        try:
            raw = _amount(orjson.loads(text))
        except orjson.JSONDecodeError:
            raw = None
        if raw is not None:
            return raw
        log.warning("node annotation %s cannot be read, status.allocatable counts", ANNOTATION_NODE_RAW_ALLOCATABLE)
    return _amount(dict(node.status.allocatable))


def usage(amount: Amount) -> dict[str, Any]:
    """Wire form of an amount."""
    return {"resources": {"cpu": format_milli(amount.cpu), "memory": format_binary(amount.memory)}}


class ReclaimableReporter:
    """Runs both predictors and combines them; ``ready`` says whether training has begun."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics

    def compute(self, now: float, node: Node | None, pods: Sequence[PodState]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Usages for ``prodReclaimableMetric`` ({} when unknown) and ``prodPeakMetric`` (None when unknown)."""
        try:
            allocatable = node_allocatable(node) if node is not None else None
            if allocatable is None:
                raise UnknownModelError("the node's allocatable resources")
            outcomes = self._predict(now, allocatable, pods)
        except (UnknownModelError, QuantityError) as error:
            log.debug("prod reclaimable is not known: %s", error)
            self._failed()
            return {}, None
        final = outcomes["minPredictor"]
        self._export(outcomes)
        return usage(final.reclaimable), usage(final.peak)

    def _predict(self, now: float, allocatable: Amount, pods: Sequence[PodState]) -> dict[str, Outcome]:
        options = self._models.options
        data = PeakInput(now, allocatable, options.safety_margin, options.cold_start)
        of_pods, passed = by_pods(data, pods, self._models.predict)
        of_priority = by_priority(data, passed, self._models.predict, PROD_KEYS)
        return {
            "podReclaimablePredictor": of_pods,
            "priorityReclaimablePredictor": of_priority,
            "minPredictor": combine(of_pods, of_priority),
        }

    def _export(self, outcomes: dict[str, Outcome]) -> None:
        metrics = self._metrics
        for name, outcome in outcomes.items():
            for gauge, amount in ((metrics.reclaimable, outcome.reclaimable), (metrics.peak, outcome.peak)):
                gauge.set(amount.cpu / 1000, name, "cpu", "core")
                gauge.set(amount.memory, name, "memory", "byte")
        final = outcomes["minPredictor"].reclaimable
        metrics.priority_reclaimable.set(final.cpu / 1000, _PROD, "cpu", "core")
        metrics.priority_reclaimable.set(final.memory, _PROD, "memory", "byte")
        metrics.priority_reclaimable_status.set(0, _PROD)

    def _failed(self) -> None:
        self._metrics.priority_reclaimable.set(0, _PROD, "cpu", "core")
        self._metrics.priority_reclaimable.set(0, _PROD, "memory", "byte")
        self._metrics.priority_reclaimable_status.set(1, _PROD)
