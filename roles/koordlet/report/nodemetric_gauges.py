"""The reported values as Prometheus gauges (gate NodeMetricPromMetrics)."""

from __future__ import annotations

from typing import Any

from koord.api.quantity import parse_milli, parse_value
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.metrics.series import Gauge

_UNITS = {"cpu": "core", "memory": "byte"}


def _set(gauge: Gauge, usage: dict[str, Any], *labels: str) -> None:
    for resource, quantity in (usage.get("resources") or {}).items():
        value = parse_milli(quantity) / 1000 if resource == "cpu" else float(parse_value(quantity))
        gauge.set(value, *labels, resource, _UNITS.get(resource, "integer"))


def export_gauges(metrics: Metrics, node_metric: dict[str, Any]) -> None:
    """Reset and fill the gauges from a report's ``nodeMetric``; what was not reported has no series."""
    for gauge in (metrics.report_node, metrics.report_system, metrics.report_numa_node, metrics.report_numa_system):
        gauge.clear()
    _set(metrics.report_node, node_metric.get("nodeUsage") or {})
    _set(metrics.report_system, node_metric.get("systemUsage") or {})
    for entry in node_metric.get("numaUsages") or []:
        number = str(entry["numaNodeID"])
        _set(metrics.report_numa_node, entry.get("nodeUsage") or {}, number)
        _set(metrics.report_numa_system, entry.get("systemUsage") or {}, number)
