"""Prometheus registries: one a role, with what every role exposes about itself and its API client."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from koord.decisions.recorder import Recorder
from koord.version import VERSION

LATENCY_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds


class _Collector:
    """Garbage collector counters, read when asked for."""

    def collect(self) -> Iterator[Metric]:
        collections = CounterMetricFamily("python_gc_collections", "Garbage collections by generation.", labels=["generation"])
        for generation, numbers in enumerate(gc.get_stats()):
            collections.add_metric([str(generation)], numbers["collections"])
        yield collections
        yield GaugeMetricFamily("python_gc_frozen_objects", "Objects that the collector need not look at.", value=gc.get_freeze_count())


def registry(role: str) -> CollectorRegistry:
    """A fresh registry with process, runtime and build metrics."""
    result = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=result)
    PlatformCollector(registry=result)
    result.register(_Collector())  # type: ignore[arg-type]
    Gauge("koord_build_info", "Version of this process.", ["role", "version"], registry=result).labels(role, VERSION).set(1)
    return result


def client_observer(target: CollectorRegistry, server: str) -> Callable[[str, int, float], None]:
    """`rest_client_*` metrics; give the result to `Client(observer=...)`. Statuses are `<error>` where no answer came."""
    host = urlsplit(server).netloc
    requests = Counter("rest_client_requests", "Requests to the API server.", ["code", "method", "host"], registry=target)
    seconds = Histogram(
        "rest_client_request_duration_seconds", "Seconds of requests.", ["verb", "host"], buckets=LATENCY_BUCKETS, registry=target
    )

    def observe(method: str, status: int, duration: float) -> None:
        requests.labels(str(status) if status else "<error>", method, host).inc()
        seconds.labels(method, host).observe(duration)

    return observe


def watch_recorder(target: CollectorRegistry, recorder: Recorder) -> None:
    """`koord_decisions_*`: how many records there were and how many a sink lost."""

    class Decisions:
        def collect(self) -> Iterable[Metric]:
            yield CounterMetricFamily("koord_decisions_recorded", "Decision records.", value=recorder.recorded)
            yield CounterMetricFamily("koord_decisions_sink_failures", "Records that a sink did not take.", value=recorder.failed)
            yield GaugeMetricFamily("koord_decisions_kept", "Records that /debug/decisions can answer with.", value=len(recorder.ring))

    target.register(Decisions())  # type: ignore[arg-type]


def expose(target: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The registry's text and its content type: OpenMetrics where it is accepted, else Prometheus' own."""
    if "application/openmetrics-text" in accept:
        openmetrics: Callable[[CollectorRegistry], bytes] = generate_openmetrics
        return openmetrics(target), OPENMETRICS
    return generate_latest(target), CONTENT_TYPE_LATEST
