"""`/metrics/slis`: health checks as metrics, under the names of Kubernetes' own components."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from koord.process.health import Health
from koord.process.metrics import CountedFamily

PATHS = ("healthz", "livez", "readyz")
LABELS = ("name", "status", "type")


class Slis:
    """Each check as it is now, and how often it was found well or not when somebody asked."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.registry = CollectorRegistry(auto_describe=False)
        self.plain_counters = ("kubernetes_healthchecks_total",)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self.registry.register(self)  # type: ignore[arg-type]

    def looked(self, path: str, rows: Iterable[tuple[str, bool, str]]) -> None:
        """A health page was asked for."""
        self._counts.update((name, "success" if well else "error", path) for name, well, _ in rows)

    def collect(self) -> Iterator[Metric]:
        """Samples as they are now."""
        now = GaugeMetricFamily("kubernetes_healthcheck", "1 while a health check is well, else 0.", labels=["name", "type"])
        for path in PATHS:
            for name, well, _ in self.health.report(path)[1]:
                now.add_metric([name, path], float(well))
        yield now
        counts = CountedFamily("kubernetes_healthchecks_total", "Results of health checks, counted per request of a health page.", LABELS)
        for values, number in sorted(self._counts.items()):
            counts.add_sample(counts.name, dict(zip(LABELS, values, strict=True)), number)
        yield counts
