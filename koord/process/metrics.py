"""Prometheus registries: one a role, with what every role exposes about itself and its API client."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import Counter as Counting
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.utils import floatToGoString

from koord.decisions.recorder import Recorder
from koord.version import VERSION

if TYPE_CHECKING:
    from koord.kube.events import EventRecorder

LATENCY_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds


class Timing:
    """A histogram of one set of labels. Not for several threads: counting takes no lock."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Timings:
    """A histogram for hot paths of one thread, a fifth of the cost of the library's. `buckets` are upper bounds, ascending."""

    def __init__(self, name: str, text: str, labels: Iterable[str] = (), *, buckets: Iterable[float], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, tuple(labels), tuple(map(float, buckets))
        self._children: dict[tuple[str, ...], Timing] = {}
        self.observe: Callable[[float], None] = self.labels().observe if not self._labels else self._unlabelled
        registry.register(self)  # type: ignore[arg-type]

    def _unlabelled(self, value: float) -> None:
        raise ValueError(f"{self._name} has labels: {', '.join(self._labels)}")

    def labels(self, *values: str) -> Timing:
        """The histogram of these label values; keep it."""
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = Timing(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        """Samples as they are now."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        edges = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, timing in self._children.items():
            family.add_metric(values, list(zip(edges, accumulate(timing.counts), strict=True)), timing.total)
        yield family


class Listed:
    """A gauge whose samples are listed anew now and then, in steps. A scrape takes them as they are, however many there are."""

    def __init__(self, name: str, text: str, labels: Iterable[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._family = self._empty()
        registry.register(self)  # type: ignore[arg-type]

    def _empty(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """Samples as they were listed last."""
        yield self._family

    def listing(self, samples: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[None]:
        """Replace all samples (label values, value); one a step, and at once for whoever scrapes."""
        family = self._empty()
        for values, value in samples:
            family.add_metric(values, value)
            yield
        self._family = family


class CountedFamily(Metric):
    """A counter's family that keeps its name, with or without `_total`; its collector names it in `plain_counters`."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        super().__init__(name, text, "unknown")  # "counter" would rename it; `expose` says the type
        self._labelnames = labels


class Tally:
    """A counter that keeps its name: the client library would add `_total`, which upstream's names do not have."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.plain_counters = (name,)
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)  # type: ignore[arg-type]

    def inc(self, *values: str) -> None:
        """Count one."""
        self._values[values] = self._values.get(values, 0.0) + 1

    def add(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Count one for each of these label values."""
        counted = self._values
        for values in keys:
            counted[values] = counted.get(values, 0.0) + 1

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CountedFamily(self.name, self.text, self.labels)
        for values, value in sorted(self._values.items()):
            family.add_sample(self.name, dict(zip(self.labels, values, strict=True)), value)
        yield family


def shown_type(family: Metric) -> str:
    """The type of a family as it is shown."""
    return "counter" if isinstance(family, CountedFamily) else family.type


class Collected:
    """Families that are made when they are asked for."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def by_label(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[tuple[str, float]]) -> Metric:
    """A family of one label, with these samples (the label's value, value)."""
    for value, number in samples:
        family.add_metric([value], number)
    return family


def _garbage() -> Iterator[Metric]:
    yield by_label(
        CounterMetricFamily("python_gc_collections", "Garbage collections by generation.", labels=["generation"]),
        ((str(generation), numbers["collections"]) for generation, numbers in enumerate(gc.get_stats())),
    )
    yield GaugeMetricFamily("python_gc_frozen_objects", "Objects that the collector need not look at.", value=gc.get_freeze_count())


def registry(role: str) -> CollectorRegistry:
    """A fresh registry with process, runtime and build metrics."""
    result = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=result)
    PlatformCollector(registry=result)
    result.register(Collected(_garbage))  # type: ignore[arg-type]
    Gauge("koord_build_info", "1, with the role and version of this process.", ["role", "version"], registry=result).labels(
        role, VERSION
    ).set(1)
    return result


def client_observer(target: CollectorRegistry, server: str) -> Callable[[str, int, float], None]:
    """`rest_client_*` metrics; give the result to `Client(observer=...)`. Statuses are `<error>` where no answer came."""
    host = urlsplit(server).netloc
    requests = Counter(
        "rest_client_requests",
        "Requests to the API server; code `<error>` where no answer came.",
        ["code", "method", "host"],
        registry=target,
    )
    seconds = Histogram(
        "rest_client_request_duration_seconds",
        "Seconds of requests to the API server.",
        ["verb", "host"],
        buckets=LATENCY_BUCKETS,
        registry=target,
    )

    known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def observe(method: str, status: int, duration: float) -> None:
        found = known.get((method, status))
        if found is None:  # looking a sample up by its labels costs more than counting
            counter = requests.labels(str(status) if status else "<error>", method, host)
            found = known[method, status] = (counter, seconds.labels(method, host))
        found[0].inc()
        found[1].observe(duration)

    return observe


def watch_recorder(target: CollectorRegistry, recorder: Recorder) -> None:
    """`koord_decisions_*`: how many records there were and how many a sink lost."""

    def decisions() -> Iterable[Metric]:
        yield CounterMetricFamily("koord_decisions_recorded", "Decision records that were made.", value=recorder.recorded)
        yield CounterMetricFamily("koord_decisions_sink_failures", "Records that a sink did not take.", value=recorder.failed)
        yield GaugeMetricFamily("koord_decisions_kept", "Records that /debug/decisions can answer with.", value=len(recorder.ring))

    target.register(Collected(decisions))  # type: ignore[arg-type]


def watch_events(target: CollectorRegistry, recorders: Callable[[], Iterable[EventRecorder]]) -> None:
    """`koord_events_*`: Kubernetes events that were written, and those that were dropped, by reason."""

    def families() -> Iterable[Metric]:
        yield CounterMetricFamily("koord_events_sent", "Kubernetes events that were written.", value=sum(one.sent for one in recorders()))
        counts: Counting[str] = Counting()
        for one in recorders():
            counts.update(one.drops)
        reasons = ("queue_full", "too_many", "unreachable", "refused", "not_leading", "failed", "unusable")
        yield by_label(
            CounterMetricFamily("koord_events_dropped", "Kubernetes events that were dropped.", labels=["reason"]),
            ((reason, counts[reason]) for reason in reasons),
        )

    target.register(Collected(families))  # type: ignore[arg-type]


class Watching(Protocol):
    """What watches the API server: an informer factory."""

    def ages(self) -> dict[str, float]:
        """Seconds since the cache of each kind was last known to be current."""
        ...

    def stalls(self) -> dict[str, int]:
        """How often a watch of each kind was found to carry nothing."""
        ...


def watch_caches(target: CollectorRegistry, watching: Watching) -> None:
    """`koord_watch_*`: how old the informer cache of each kind is, and how often its watch has stalled."""

    def families() -> Iterable[Metric]:
        age = "Seconds since the informer cache of a kind was last known to be current."
        yield by_label(GaugeMetricFamily("koord_watch_age_seconds", age, labels=["kind"]), sorted(watching.ages().items()))
        stalls = "Watches whose connection lived and carried nothing, while another one told news."
        yield by_label(CounterMetricFamily("koord_watch_stalls", stalls, labels=["kind"]), sorted(watching.stalls().items()))

    target.register(Collected(families))  # type: ignore[arg-type]


class Scraped:
    """All samples of a registry as they are now, to be written anywhere and at any time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())
        self._collector_to_names = dict.fromkeys(registry._collector_to_names)

    def __len__(self) -> int:
        return sum(len(family.samples) for family in self._families)

    def collect(self) -> Iterator[Metric]:
        """The samples."""
        return iter(self._families)


def expose(target: CollectorRegistry | Scraped, accept: str = "") -> tuple[bytes, str]:
    """The registry's text and its content type: OpenMetrics where it is accepted, else Prometheus' own."""
    written: Any = target  # they ask for nothing but `collect`
    if "application/openmetrics-text" in accept:
        openmetrics: Callable[[Any], bytes] = generate_openmetrics
        return openmetrics(written), OPENMETRICS
    text = generate_latest(written)
    for collector in list(target._collector_to_names):
        for name in getattr(collector, "plain_counters", ()):  # counters that keep their names come out as of no type
            text = text.replace(f"# TYPE {name} untyped\n".encode(), f"# TYPE {name} counter\n".encode(), 1)
    return text, CONTENT_TYPE_LATEST
