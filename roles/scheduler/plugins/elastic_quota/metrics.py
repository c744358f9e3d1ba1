"""Metrics of quotas under upstream's names (SCH-EQ-10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram

from koord.accounting.resources import ResourceVector
from koord.process.metrics import Listed, Timings
from roles.scheduler.plugins.elastic_quota.tree import Quota

_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")
_SECONDS = tuple(0.00001 * 4**power for power in range(10))


def spec_fields(quota: Quota) -> dict[str, ResourceVector]:
    """What its spec says, by the value of the label `field`."""
    return {"min": quota.spec.min, "max": quota.spec.max, "sharedWeight": quota.spec.weight}


def status_fields(quota: Quota) -> dict[str, ResourceVector]:
    """What a quota has, by the value of the label `field`."""
    fields = {**quota.told(), "used": quota.used, **spec_fields(quota)}
    if quota.spec.tree_root:
        fields["unschedulable-resource"] = quota.spec.unschedulable
    return fields


def _samples(tree: str, quota: Quota, fields: dict[str, ResourceVector]) -> Iterator[tuple[tuple[str, ...], float]]:
    spec = quota.spec
    for field, amounts in fields.items():
        for resource, amount in amounts.items():
            yield (spec.name, resource, tree, "true" if spec.is_parent else "false", spec.parent, field), float(amount)


class QuotaMetrics:
    """Gauges of all quotas, whose series go with the quota, and how long the plugin's work takes (seconds)."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        registry = registry if registry is not None else CollectorRegistry()

        def listed(name: str, text: str) -> Listed:
            text = f"{text}, by field; cpu in milli, the rest in units."
            return Listed(f"scheduler_elastic_quota_{name}", text, _LABELS, registry=registry)

        self._status = listed("status", "What a quota has and uses")
        self._spec = listed("spec", "What the spec of a quota says")
        name, text = "scheduler_elastic_quota_process_latency", "Seconds of an operation on the cache of quotas."
        self._latency = Timings(name, text, ["operation"], buckets=_SECONDS, registry=registry)
        name, text = "scheduler_elastic_quota_hook_plugin_latency", "Seconds of a call of a quota hook."
        self._hooks = Histogram(name, text, ["plugin", "operation"], buckets=_SECONDS, registry=registry)
        name, text = "scheduler_update_elastic_quota_status_duration_seconds", "Seconds of a round of status writes."
        self._writing = Histogram(name, text, registry=registry)

    def hook_took(self, key: str, operation: str, seconds: float) -> None:
        """A call of a quota hook was done."""
        self._hooks.labels(key, operation).observe(seconds)

    def took(self, operation: str, seconds: float) -> None:
        """An operation on the cache was done."""
        self._latency.labels(operation).observe(seconds)

    def wrote(self, seconds: float) -> None:
        """A round of status writes was done."""
        self._writing.observe(seconds)

    def show(self, quotas: Sequence[tuple[str, Quota]]) -> Iterator[None]:
        """Set the gauges to what is there now, in steps; series of quotas that are gone go."""
        yield from self._status.listing(sample for tree, quota in quotas for sample in _samples(tree, quota, status_fields(quota)))
        yield from self._spec.listing(sample for tree, quota in quotas for sample in _samples(tree, quota, spec_fields(quota)))
