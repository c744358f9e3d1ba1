"""Histograms of our own say what those of the library say."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from koord.kube.workqueue import WorkQueue
from koord.process import metrics
from koord.process.queues import QueueMetrics


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


def test_counters_keep_their_names_and_say_what_they_are() -> None:
    registry = CollectorRegistry(auto_describe=False)
    tally = metrics.Tally("evicted", "Evictions.", ("result",), registry)
    tally.inc("success")
    tally.inc("success")
    text = metrics.expose(registry)[0].decode()
    assert text == '# HELP evicted Evictions.\n# TYPE evicted counter\nevicted{result="success"} 2.0\n'


def test_queues_show_depth_adds_retries_and_durations() -> None:
    async def story() -> str:
        queue = WorkQueue("things", longest=0.0)
        registry = CollectorRegistry(auto_describe=False)
        QueueMetrics(registry).watch([queue])
        queue.add_all(["a", "b", "a"])
        assert await queue.get() == "a"
        queue.add("a")
        queue.failed("a")
        assert await queue.get() == "b"
        queue.done("b")
        queue.forget("a")
        queue.close()
        return metrics.expose(registry)[0].decode()

    lines = asyncio.run(story()).splitlines()
    assert 'workqueue_depth{name="things"} 0.0' in lines
    assert 'workqueue_adds_total{name="things"} 5.0' in lines
    assert 'workqueue_retries_total{name="things"} 1.0' in lines
    assert 'workqueue_queue_duration_seconds_count{name="things"} 2.0' in lines
    assert 'workqueue_work_duration_seconds_count{name="things"} 2.0' in lines
