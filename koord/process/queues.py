"""Work queues as metrics, under the names of Kubernetes' client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koord.process.metrics import Timings, by_label

if TYPE_CHECKING:
    from koord.kube.workqueue import WorkQueue

_SECONDS = tuple(10.0**power for power in range(-8, 2))


class QueueMetrics:
    """`workqueue_*` of the queues that are watched."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: list[WorkQueue] = []
        self._waited = Timings(
            "workqueue_queue_duration_seconds", "Seconds that a key waits in a queue.", ["name"], buckets=_SECONDS, registry=registry
        )
        self._worked = Timings(
            "workqueue_work_duration_seconds", "Seconds of work on a key.", ["name"], buckets=_SECONDS, registry=registry
        )
        registry.register(self)  # type: ignore[arg-type]

    def watch(self, queues: Iterable[WorkQueue]) -> None:
        """Show these queues too."""
        for queue in queues:
            queue.waited, queue.worked = self._waited.labels(queue.name), self._worked.labels(queue.name)
            self._queues.append(queue)

    def collect(self) -> Iterator[Metric]:
        """Samples as they are now."""
        depth = GaugeMetricFamily("workqueue_depth", "Keys that wait in a queue.", labels=["name"])
        yield by_label(depth, ((queue.name, len(queue)) for queue in self._queues))
        adds = CounterMetricFamily("workqueue_adds", "Keys that were added to a queue.", labels=["name"])
        yield by_label(adds, ((queue.name, queue.adds) for queue in self._queues))
        retries = CounterMetricFamily("workqueue_retries", "Keys that came again because work on them failed.", labels=["name"])
        yield by_label(retries, ((queue.name, queue.retries) for queue in self._queues))
