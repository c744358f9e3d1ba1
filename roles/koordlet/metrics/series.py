"""Prometheus series by hand: gauges, counters and histograms (KLO-MET-01).

The names of upstream's counters carry no ``_total``, which the usual client library would add, and many gauges are rebuilt
every round: a dictionary a family does both in a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.utils import floatToGoString

LabelValues = tuple[str, ...]

#: Expiring families forget a series that was not updated for this long (seconds).
EXPIRE_AFTER = 300.0


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """``count`` upper bounds: start, start*factor, …"""
    return tuple(start * factor**k for k in range(count))


class Family:
    """One metric name. Label values are given in the order of ``labels``; ``node`` is put in front by the registry."""

    kind = "untyped"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), *, expires: bool = False, with_node: bool = True) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.expires = expires
        self.with_node = with_node
        self._values: dict[LabelValues, float] = {}
        self._touched: dict[LabelValues, float] = {}
        self.clock: Callable[[], float] = lambda: 0.0

    def _check(self, values: LabelValues) -> None:
        if len(values) != len(self.labels):
            raise ValueError(f"metric {self.name} has the labels {self.labels}, got {values}")

    def _touch(self, values: LabelValues) -> None:
        if self.expires:
            self._touched[values] = self.clock()

    def get(self, *values: str) -> float | None:
        return self._values.get(values)

    def clear(self) -> None:
        """Forget all series (a gauge that is rebuilt every round)."""
        self._values.clear()
        self._touched.clear()

    def remove(self, *values: str) -> None:
        self._values.pop(values, None)
        self._touched.pop(values, None)

    def remove_where(self, label: str, value: str) -> None:
        """Forget the series of one object, for example all with ``pod_uid`` = …"""
        at = self.labels.index(label)
        for key in [k for k in self._values if k[at] == value]:
            self.remove(*key)

    def sweep(self, now: float) -> None:
        """Drop series of an expiring family that were not updated for five minutes."""
        if self.expires:
            for key in [k for k, at in self._touched.items() if now - at > EXPIRE_AFTER]:
                self.remove(*key)

    def samples(self) -> Iterable[tuple[str, tuple[str, ...], LabelValues, float]]:
        """(name, label names, label values, value) of every line."""
        for values, value in self._values.items():
            yield self.name, self.labels, values, value


class Gauge(Family):
    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self._check(labels)
        self._values[labels] = value
        self._touch(labels)


class Counter(Family):
    kind = "counter"

    def inc(self, *labels: str, amount: float = 1.0) -> None:
        self._check(labels)
        self._values[labels] = self._values.get(labels, 0.0) + amount
        self._touch(labels)


class Histogram(Family):
    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Sequence[str], buckets: Sequence[float], *, with_node: bool = False) -> None:
        super().__init__(name, help_text, labels, with_node=with_node)
        self.buckets = tuple(buckets)
        self._counts: dict[LabelValues, list[int]] = {}

    def observe(self, value: float, *labels: str) -> None:
        self._check(labels)
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self.buckets) + 1)
        for i, bound in enumerate(self.buckets):
            if value <= bound:
                counts[i] += 1
                break
        else:
            counts[-1] += 1
        self._values[labels] = self._values.get(labels, 0.0) + value

    def samples(self) -> Iterable[tuple[str, tuple[str, ...], LabelValues, float]]:
        for values, counts in self._counts.items():
            running = 0
            for bound, count in zip((*map(floatToGoString, self.buckets), "+Inf"), counts, strict=True):
                running += count
                yield f"{self.name}_bucket", (*self.labels, "le"), (*values, bound), running
            yield f"{self.name}_sum", self.labels, values, self._values[values]
            yield f"{self.name}_count", self.labels, values, running
