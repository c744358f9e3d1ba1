"""What sources of usage beside koordlet tell, as the plugins that go by it see it (DS-K8S-09)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roles.descheduler.snapshot import Vector

KUBERNETES_METRICS, PROMETHEUS = "KubernetesMetrics", "Prometheus"
METRIC_RESOURCE = "MetricResource"
MEASURED = frozenset({"cpu", "memory"})  # what a report that leaves it out says nothing about: it is not unused
EXPIRES = 180.0  # seconds after which what was told says nothing any more
WHOLE = 100_000  # of a Prometheus query's 1.0, so that percent have three digits


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source told at a time (seconds since the epoch): usage of nodes by name, of pods by namespace and name, in base units."""

    at: float
    nodes: Mapping[str, Vector] = field(default_factory=dict)
    pods: Mapping[tuple[str, str], Vector] = field(default_factory=dict)


def key_of(source: str, query: str = "") -> str:
    """By what a plugin finds its reading."""
    return f"{source} {query}".strip()
