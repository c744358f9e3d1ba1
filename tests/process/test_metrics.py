"""Histograms of our own say what those of the library say."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from koord.process import metrics


def test_quick_histograms_read_like_the_librarys() -> None:
    ours, theirs = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    quick = metrics.Timings("a_seconds", "Help.", ["x"], buckets=(0.1, 1, 2.5), registry=ours)
    plain = metrics.Timings("b", "Help.", buckets=(1, 2), registry=ours)
    slow = Histogram("a_seconds", "Help.", ["x"], buckets=(0.1, 1, 2.5), registry=theirs)
    other = Histogram("b", "Help.", buckets=(1, 2), registry=theirs)
    for value in (0.1, 0.05, 0.5, 1.0, 2.4, 9.0):
        quick.labels("y").observe(value)
        slow.labels("y").observe(value)
    plain.observe(1.5)
    other.observe(1.5)
    created = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert sorted(generate_latest(ours).decode().splitlines()) == sorted(created)
    with pytest.raises(ValueError, match="has labels: x"):
        quick.observe(1.0)
