"""Metrics of quotas under upstream's names (SCH-EQ-10)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, Histogram

from koord.accounting.resources import ResourceVector
from koord.process.metrics import Timings
from roles.scheduler.plugins.elastic_quota.tree import Quota

_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")
_SECONDS = tuple(0.00001 * 4**power for power in range(10))

Series = dict[tuple[str, ...], float]


def status_fields(quota: Quota) -> dict[str, ResourceVector]:
    """What a quota has, by the value of the label `field`."""
    fields = {
        "runtime": quota.limit(), "request": quota.request, "child-request": quota.child_request, "guaranteed": quota.guaranteed,
        "allocated": quota.allocated, "non-preemptible-request": quota.non_preemptible_request,
        "non-preemptible-used": quota.non_preemptible_used, "used": quota.used, "min": quota.spec.min, "max": quota.spec.max,
        "sharedWeight": quota.spec.weight,
    }  # fmt: skip
    if quota.spec.tree_root:
        fields["unschedulable-resource"] = quota.spec.unschedulable
    return fields


def _series(tree: str, quota: Quota, fields: dict[str, ResourceVector]) -> Series:
    spec = quota.spec
    return {
        (spec.name, resource, tree, "true" if spec.is_parent else "false", spec.parent, field): float(amount)
        for field, amounts in fields.items()
        for resource, amount in amounts.items()
    }


class QuotaMetrics:
    """Gauges of all quotas, whose series go with the quota, and how long the plugin's work takes (seconds)."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._status = Gauge(
            "scheduler_elastic_quota_status",
            "What a quota has and uses, by field; cpu in milli, the rest in units.",
            _LABELS,
            registry=registry,
        )
        self._spec = Gauge(
            "scheduler_elastic_quota_spec",
            "What the spec of a quota says, by field; cpu in milli, the rest in units.",
            _LABELS,
            registry=registry,
        )
        self._shown: list[tuple[Gauge, Series]] = [(self._status, {}), (self._spec, {})]
        self._latency = Timings(
            "scheduler_elastic_quota_process_latency",
            "Seconds of an operation on the books of quotas.",
            ["operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._hooks = Histogram(
            "scheduler_elastic_quota_hook_plugin_latency",
            "Seconds of a call of a quota hook.",
            ["plugin", "operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._writing = Histogram(
            "scheduler_update_elastic_quota_status_duration_seconds", "Seconds of a round of status writes.", registry=registry
        )

    def hook_took(self, key: str, operation: str, seconds: float) -> None:
        """A call of a quota hook was done."""
        self._hooks.labels(key, operation).observe(seconds)

    def took(self, operation: str, seconds: float) -> None:
        """An operation on the books was done."""
        self._latency.labels(operation).observe(seconds)

    def wrote(self, seconds: float) -> None:
        """A round of status writes was done."""
        self._writing.observe(seconds)

    def show(self, quotas: Iterable[tuple[str, Quota]]) -> None:
        """Set the gauges; series of quotas that are gone are removed."""
        status: Series = {}
        spec: Series = {}
        for tree, quota in quotas:
            status.update(_series(tree, quota, status_fields(quota)))
            spec.update(_series(tree, quota, {"min": quota.spec.min, "max": quota.spec.max, "sharedWeight": quota.spec.weight}))
        for index, series in enumerate((status, spec)):
            gauge, before = self._shown[index]
            for labels in before.keys() - series.keys():
                gauge.remove(*labels)
            for labels, value in series.items():
                if before.get(labels) != value:
                    gauge.labels(*labels).set(value)
            self._shown[index] = (gauge, series)
