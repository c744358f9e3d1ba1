"""koordlet's families inside the process registry, so that /metrics is the union of all (KLO-MET-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.koordlet.metrics.registry import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class Bridge:
    """A collector for ``prometheus_client``; keeps the exact names, which its own counters would extend by ``_total``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.plain_counters = tuple(family.name for family in metrics.families() if family.kind == "counter")

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import Metric

        for family in filter(self._metrics.shows, self._metrics.families()):
            metric = Metric(family.name, family.help, "unknown" if family.kind == "counter" else family.kind)
            for name, names, values, number in family.samples():
                labels = dict(zip(names, values, strict=True))
                if family.with_node:
                    labels["node"] = self._metrics.node
                metric.add_sample(name, labels, number)
            if metric.samples:
                yield metric


def attach(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Make the registry expose koordlet's families too."""
    registry.register(Bridge(metrics))
