"""Metrics of the descheduler. `descheduler_pods_evicted` is upstream's; the others are ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koord.process.metrics import Tally

if TYPE_CHECKING:
    from roles.descheduler.framework.effects import Outcome


class Metrics:
    """One set a process, in the registry that its HTTP port serves."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._seconds = Histogram("koord_descheduler_round_duration_seconds", "Seconds of a round.", registry=self.registry)
        self._rounds = Counter("koord_descheduler_rounds", "Rounds: done, failed or skipped.", ("result",), registry=self.registry)
        self._would = Counter(
            "koord_descheduler_pods_would_evict", "Evictions that a dry run decided.", ("strategy", "namespace"), registry=self.registry
        )
        self._refused = Counter(
            "koord_descheduler_pods_not_evicted",
            "Evictions that a plugin requested and that were refused.",
            ("strategy",),
            registry=self.registry,
        )
        self._turns = Histogram(
            "koord_descheduler_plugin_duration_seconds", "Seconds of a turn of a plugin.", ("plugin",), registry=self.registry
        )
        self._evicted = Tally(
            "descheduler_pods_evicted",
            "Evictions by result (success, error, or the limit that refused), plugin, namespace and node.",
            ("result", "strategy", "namespace", "node"),
            self.registry,
        )
        self._moves = Counter(
            "koord_descheduler_moves_measured", "Moves by whether their node got cooler.", ("helped",), registry=self.registry
        )
        self._relief = Counter(
            "koord_descheduler_relief",
            "By how much nodes came down after moves, and by how much they were expected to: milli-CPU, bytes.",
            ("resource", "kind"),
            registry=self.registry,
        )
        self._classes = Gauge(
            "koord_descheduler_nodes", "Nodes of the last round as LowNodeLoad classed them.", ("node_class",), registry=self.registry
        )

    def evicted(self, result: str, strategy: str, namespace: str, node: str) -> None:
        """One answer of the Eviction API or of what stands in its place (DS-OBS-01): `result` is success, error or a limit's text."""
        self._evicted.inc(result, strategy, namespace, node)

    def _measured(self, numbers: Mapping[str, float | int | str]) -> None:
        self._moves.labels(str(numbers["helped"])).inc()
        for key, value in numbers.items():
            resource, _, kind = key.rpartition(".")
            if kind == "before" and (expected := numbers.get(f"{resource}.expected")) is not None:
                self._relief.labels(resource, "expected").inc(max(0.0, float(value) - float(expected)))
                self._relief.labels(resource, "measured").inc(max(0.0, float(value) - float(numbers[f"{resource}.after"])))

    def time_round(self) -> AbstractContextManager[object]:
        return self._seconds.time()

    def round_done(self, outcome: Outcome) -> None:
        self._rounds.labels("skipped" if outcome.skipped else "failed" if outcome.errors else "done").inc()
        for plugin, seconds in outcome.turns:
            self._turns.labels(plugin).observe(seconds)
        classes: dict[str, int] = {}
        for record in outcome.records:
            if record.verdict == "WouldEvict":
                self._would.labels(record.rule, record.subject.namespace).inc()
            elif record.verdict == "NotEvicted":
                self._refused.labels(record.rule).inc()
            elif record.verdict == "Measured":
                self._measured(record.numbers)
            elif record.verdict == "Classified":
                node_class = str(record.numbers["class"])
                classes[node_class] = classes.get(node_class, 0) + 1
        self._classes.clear()
        for node_class, count in classes.items():
            self._classes.labels(node_class).set(count)
