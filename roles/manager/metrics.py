"""The manager's metrics, with upstream's names and labels (MGR-MET-01)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from koord.api import names
from koord.process.metrics import Tally, Timings
from koord.process.queues import QueueMetrics

_BUCKETS = tuple(0.001 * 2**k for k in range(20))
_UNITS = {
    names.RESOURCE_BATCH_CPU: ("integer", 1000),
    names.RESOURCE_BATCH_MEMORY: ("byte", 1),
    # mid-cpu keeps the milli value that dashboards already divide by a thousand.
    names.RESOURCE_MID_CPU: ("integer", 1),
    names.RESOURCE_MID_MEMORY: ("byte", 1),
}


def _status(ok: bool) -> str:
    return "succeeded" if ok else "failed"


def run(plugin: str, ok: bool, step: str) -> tuple[str, str, str]:
    """How a run of a node resource plugin is labelled."""
    return plugin, _status(ok), step


class Metrics:
    """Counters and gauges in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Tally:
            return Tally(name, text, labels, registry)

        self.registry = registry
        self.is_leader = Gauge("koordinator_manager_is_leader", "1 while this replica leads, else 0.", registry=registry)
        self._node_resource = counter(
            "slo_controller_node_resource_reconcile_count", "Writes of node resources by outcome and kind of write.", "status", "reason"
        )
        self._node_metric = counter(
            "slo_controller_nodemetric_reconcile_count", "Writes of NodeMetrics by outcome and kind of write.", "status", "reason"
        )
        self._node_metric_parse = counter(
            "slo_controller_nodemetric_spec_parse_count", "Specs of NodeMetrics derived from the ConfigMap, by outcome.", "status", "reason"
        )
        self._node_slo = counter(
            "slo_controller_nodeslo_reconcile_count", "Writes of NodeSLOs by outcome and kind of write.", "status", "reason"
        )
        self._node_slo_parse = counter(
            "slo_controller_nodeslo_spec_parse_count", "Parts of NodeSLOs derived from the ConfigMap, by outcome.", "status", "reason"
        )
        self._plugins = counter(
            "slo_controller_node_resource_run_plugin_status",
            "Runs of node resource plugins by outcome and step.",
            "plugin",
            "status",
            "reason",
        )
        self._extended = Gauge(
            "slo_controller_node_extended_resource_allocatable_internal",
            "Batch and mid resources as calculated: batch-cpu in cores, mid-cpu in milli-cores, memory in bytes.",
            ("node", "resource", "unit"),
            registry=registry,
        )
        self.held_nodes = Gauge(
            "koord_manager_overcommit_held_nodes",
            "Nodes that keep their batch and mid without reports, because reports are missing on many nodes at once.",
            registry=registry,
        )
        self.spread_nodes = Gauge(
            "koord_manager_config_waiting_nodes",
            "Nodes that an edit of slo-controller-config has not reached yet.",
            registry=registry,
        )
        self.webhook_duration = Timings(
            "koord_manager_webhook_webhook_duration_milliseconds",
            "Milliseconds in a plugin of a webhook.",
            ("webhook_type", "object_type", "operation", "plugin_name", "status"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.binding_decisions = counter(
            "koord_manager_webhook_binding_admission_decisions_total", "Decisions of the binding webhook.", "decision"
        )
        self.quota_shared_weight = Gauge(
            "koord_manager_webhook_quota_shared_weight",
            "Shared weight of a quota whose default was filled in; base units.",
            ("elasticquota_name", "resource_name"),
            registry=registry,
        )
        self._weighted: dict[str, set[str]] = {}
        self.queues = QueueMetrics(registry)
        self.config_errors = Gauge(
            "koord_manager_config_errors", "Mistakes in the present slo-controller-config; 0 when all of it is in force.", registry=registry
        )

    def node_resource_reconciled(self, ok: bool, reason: str) -> None:
        """A write of the noderesource controller."""
        self._node_resource.inc(_status(ok), reason)

    def node_metric_reconciled(self, ok: bool, reason: str) -> None:
        """A write of the nodemetric controller."""
        self._node_metric.inc(_status(ok), reason)

    def node_slo_reconciled(self, ok: bool, reason: str) -> None:
        """A write of the nodeslo controller."""
        self._node_slo.inc(_status(ok), reason)

    def spec_parsed(self, node_metric_ok: bool, node_slo: Mapping[str, bool]) -> None:
        """A parse of the ConfigMap: whether each part was good."""
        self._node_metric_parse.inc(_status(node_metric_ok), "getNodeMetricCollectPolicy")
        for reason, ok in node_slo.items():
            self._node_slo_parse.inc(_status(ok), reason)

    def plugin_ran(self, plugin: str, ok: bool, reason: str) -> None:
        """A node resource plugin ran."""
        self._plugins.inc(*run(plugin, ok, reason))

    def plugins_ran(self, runs: Iterable[tuple[str, str, str]]) -> None:
        """Node resource plugins ran; the labels are made by `run`."""
        self._plugins.add(runs)

    def extended_resources(self, node: str, resources: Mapping[str, int]) -> None:
        """What was calculated for a node; a resource that it does not have loses its series."""
        for name, (unit, parts) in _UNITS.items():
            if name in resources:
                self._extended.labels(node, name, unit).set(resources[name] / parts)
            else:
                self.forget_extended(node, name, unit)

    def shared_weight(self, quota: str, resource: str, amount: int) -> None:
        """The shared weight of a quota was filled in."""
        self._weighted.setdefault(quota, set()).add(resource)
        self.quota_shared_weight.labels(quota, resource).set(amount)

    def forget_shared_weights(self, quota: str) -> None:
        """A quota is gone, and its series with it."""
        for resource in self._weighted.pop(quota, ()):
            self.quota_shared_weight.remove(quota, resource)

    def forget_extended(self, node: str, resource: str, unit: str) -> None:
        """Drop the series of a resource that is gone."""
        try:
            self._extended.remove(node, resource, unit)
        except KeyError:
            return
