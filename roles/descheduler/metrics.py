"""Metrics of the descheduler. `descheduler_pods_evicted` is upstream's; the others are ours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from roles.descheduler.framework.round import Outcome


class Metrics:
    """One set a process, in the registry that its HTTP port serves."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._seconds = Histogram("koord_descheduler_round_duration_seconds", "Time of a round.", registry=self.registry)
        self._rounds = Counter("koord_descheduler_rounds", "Rounds by result.", ("result",), registry=self.registry)
        self._would = Counter(
            "koord_descheduler_pods_would_evict", "Evictions that a dry run decided.", ("strategy", "namespace"), registry=self.registry
        )
        self._classes = Gauge("koord_descheduler_nodes", "Nodes of the last round by class.", ("node_class",), registry=self.registry)

    def time_round(self) -> AbstractContextManager[object]:
        return self._seconds.time()

    def round_done(self, outcome: Outcome) -> None:
        self._rounds.labels("skipped" if outcome.skipped else "done").inc()
        classes: dict[str, int] = {}
        for record in outcome.records:
            if record.verdict == "WouldEvict":
                self._would.labels(record.rule, record.subject.namespace).inc()
            elif record.verdict == "Classified":
                node_class = str(record.numbers["class"])
                classes[node_class] = classes.get(node_class, 0) + 1
        self._classes.clear()
        for node_class, count in classes.items():
            self._classes.labels(node_class).set(count)
