"""What a monitoring system reads: kube-scheduler's metrics, by its names, from a running scheduler; and what the benchmark reads."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from koord.apiserver.testing import running_server
from koord.process.http import OpsServer
from roles.scheduler import resource_metrics, testing
from tests.benchmarks import bench_scheduler_api
from tests.support import patience

from .gang.conftest import gangs

__all__ = ["gangs"]  # the fixture


async def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a page by name and sorted labels."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.feature("SCH-FW-02")
@pytest.mark.feature("SCH-FW-05")
def test_inherited_metrics_are_current_when_they_are_read(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4")
            await live.pod("fits", cpu="1500m")
            await live.bound("fits")
            await live.pod("huge", cpu="64")
            await live.refused("huge")
            await live.pod("gated", schedulingGates=[{"name": "wait"}])
            await live.consistent()
            found = await samples(f"{live.ops.url}/metrics")
            profile = ("profile", "koord-scheduler")
            assert found["scheduler_loop_turn_duration_seconds_count", ()] > 0
            assert found["scheduler_loop_longest_turn_seconds", ()] > 0
            assert found["scheduler_pending_pods", (("queue", "unschedulable"),)] == 1
            assert found["scheduler_pending_pods", (("queue", "gated"),)] == 1
            assert found["scheduler_pending_pods", (("queue", "active"),)] == 0
            assert found["scheduler_cache_size", (("type", "nodes"),)] == 1
            assert found["scheduler_cache_size", (("type", "pods"),)] == 1
            assert found["scheduler_goroutines", (("operation", "binding"),)] == 0
            assert found["scheduler_unschedulable_pods", (("plugin", "NodeResourcesFit"), profile)] == 1
            assert found["scheduler_unschedulable_pods", (("plugin", "SchedulingGates"), profile)] == 1
            assert found["scheduler_pod_scheduling_sli_duration_seconds_count", (("attempts", "1"),)] == 1
            assert found["scheduler_scheduling_algorithm_duration_seconds_count", ()] == 2
            for point in ("Reserve", "Permit", "PreBind", "Bind"):
                key = (("extension_point", point), profile, ("status", "Success"))
                assert found["scheduler_framework_extension_point_duration_seconds_count", key] == 1
            for point, plugin in (("PreFilter", "NodeResourcesFit"), ("Filter", "NodeResourcesFit"), ("Score", "ImageLocality"),
                                  ("Reserve", "VolumeBinding"), ("Bind", "DefaultBinder")):  # fmt: skip
                key = (("extension_point", point), ("plugin", plugin), ("status", "Success"))
                assert found["scheduler_plugin_execution_duration_seconds_count", key] == 1  # of the first attempt, not of the second
            assert found["leader_election_master_status", (("name", "kube-scheduler"),)] == 1

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
@pytest.mark.feature("SCH-FW-09")
def test_attempts_are_counted_when_they_end_and_time_on_permit_is_nobodys(gangs: Any) -> None:
    """Two members need a node each and there is one: the first holds it and waits."""

    def attempts(result: str) -> float:
        return found.get(("scheduler_schedule_attempts_total", (("profile", "koord-scheduler"), ("result", result))), 0.0)

    def waits(result: str) -> float:
        return found.get(("scheduler_permit_wait_duration_seconds_count", (("result", result),)), 0.0)

    async def run() -> None:
        nonlocal found
        async with gangs(nodes=("4",)) as g:
            app, page = g.live.app, f"{g.live.ops.url}/metrics"
            await g.group("job", 2, annotations={"mode": "NonStrict"})
            for number in range(2):
                await g.member(f"p{number}", "job", cpu="4")
            while not (app.waiting.all() and len(app.queue) == 2 and app.queue.counts()["unschedulable"]):
                await asyncio.sleep(0.01)
            found = await samples(page)
            assert (attempts("scheduled"), attempts("error")) == (0, 0)
            assert (tried := attempts("unschedulable")) >= 1
            assert found["scheduler_preemption_attempts_total", ()] == tried
            assert not len(app.monitor)  # a plugin set the limit of the wait
            await g.live.node("other", cpu="4")
            await g.bound("p0", "p1")
            await g.live.consistent()
            found = await samples(page)
            assert (attempts("scheduled"), waits("Success"), waits("Unschedulable")) == (2, 1, 0)
            assert not len(app.monitor)
            await g.group("late", 2, annotations={"mode": "NonStrict"}, scheduleTimeoutSeconds=1)
            await g.live.node("third", cpu="4")
            for number in range(2):
                await g.member(f"q{number}", "late", cpu="4")
            while not waits("Unschedulable"):
                await asyncio.sleep(0.05)
                found = await samples(page)
            assert attempts("scheduled") == 2
            assert attempts("unschedulable") > tried + 1  # who had no node, and who waited for it in vain

    found: dict[Any, float] = {}
    asyncio.run(run())


@pytest.mark.feature("SCH-FW-02")
def test_requests_and_limits_of_pods(scheduler: Any) -> None:
    async def run() -> None:
        async with scheduler() as live:
            await live.node("n", cpu="4")
            await live.pod("p", cpu="1500m")
            await live.bound("p")
            await live.consistent()
            found = await samples(f"{live.ops.url}/metrics/resources")
            about = {"namespace": "default", "pod": "p", "node": "n", "scheduler": "koord-scheduler", "priority": "0"}
            amounts = {("cpu", "cores"): 1.5, ("memory", "bytes"): 64 * 2**20}
            for (resource, unit), amount in amounts.items():
                labels = tuple(sorted({**about, "resource": resource, "unit": unit}.items()))
                assert found["kube_pod_resource_request", labels] == amount

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-02")
def test_a_page_without_pods_is_one_that_prometheus_takes() -> None:
    """On a standby. Prometheus 3 refuses an answer without a content type, and calls the target down."""

    async def run() -> None:
        server = OpsServer("127.0.0.1", 0)
        server.route("GET", "/metrics/resources", resource_metrics.resource_page(lambda: ()))
        await server.start()
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics/resources") as answer:
            assert (answer.status, answer.headers.get("Content-Type")) == (200, CONTENT_TYPE_LATEST)
            assert not any(family.samples for family in text_string_to_metric_families(await answer.text()))
        await server.stop()

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-05")
def test_many_pods_are_written_off_the_event_loop(monkeypatch: Any) -> None:
    """A scrape of a hundred thousand pods takes seconds; the pods are those of the moment it began."""
    threads: list[threading.Thread] = []
    written = resource_metrics.expose

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return written(*args)

    monkeypatch.setattr(resource_metrics, "expose", noted)
    pods = [testing.World().parser.parse(testing.pod("p", cpu="2"))]
    page = resource_metrics.resource_page(lambda: iter(pods))
    asked: Any = SimpleNamespace(headers={})
    body = asyncio.run(page(asked)).body
    assert b'pod="p",priority="",resource="cpu",scheduler="koord-scheduler",unit="cores"} 2.0' in body
    assert [thread is threading.main_thread() for thread in threads] == [False]


@pytest.mark.feature("SCH-PERF-01")
def test_the_benchmark_binds_every_kind_of_pods_and_counts_them(tmp_path: Any) -> None:
    """The harness itself, small: nodes, a burst, the rate and the CPU time of the scheduler's own process."""

    async def run() -> None:
        async with running_server() as server:
            loads = [bench_scheduler_api.LOADS[0], bench_scheduler_api.LOADS[2]]
            measure = asyncio.to_thread(bench_scheduler_api.measure, server.kubeconfig_path, loads, 12, 12, None, tmp_path)
            rows = await asyncio.wait_for(measure, patience.seconds(60))
            for load, rate, cpu in zip(loads, rows[::2], rows[1::2], strict=True):
                assert rate.measured > 0
                assert rate.what == f"API server, 12 nodes x 12 pods, {load.what}"
                assert cpu.unit == "ms"
            homes = [pod["spec"].get("nodeName") for pod in await bench_scheduler_api.all_pods(server.kubeconfig_path)]
            assert len(homes) == len(set(homes)) == 12
            assert all(homes)
            await bench_scheduler_api.clear(server.kubeconfig_path, 12)
            assert await bench_scheduler_api.all_pods(server.kubeconfig_path) == []

    asyncio.run(run())
