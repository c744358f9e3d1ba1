"""LowNodeUtilization by usage from beside koordlet: the metrics server through the API server, and Prometheus over HTTP."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from koord.api import kinds
from koord.api.times import format_time
from koord.config.errors import InvalidConfig
from koord.kube import errors
from roles.descheduler.build import Options, sources
from roles.descheduler.config import parse_configuration
from roles.descheduler.reading import EXPIRES, METRIC_RESOURCE
from roles.descheduler.usage import MetricsServer, SourceError, shares
from tests.roles.descheduler.support import Obj, configuration, descheduling, metric, node, pod

QUERY = "instance:node_cpu:rate:sum"


def vector(**by_node: Any) -> Obj:
    result = [{"metric": {"instance": name}, "value": [0, str(value)]} for name, value in by_node.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@asynccontextmanager
async def prometheus(answer: Obj) -> AsyncIterator[tuple[str, list[tuple[str, str]]]]:
    """A server that answers every query so; its URL, and the queries with the tokens that came."""
    asked: list[tuple[str, str]] = []

    async def query(request: web.Request) -> web.Response:
        asked.append(((await request.post())["query"], request.headers.get("Authorization", "")))  # type: ignore[arg-type]
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def by_query(url: str, *, interval: str = "5m", **args: Any) -> str:
    found = {"thresholds": {METRIC_RESOURCE: 30}, "targetThresholds": {METRIC_RESOURCE: 60}, "metricsUtilization": {"source": "Prometheus"}}
    providers = [{"source": "Prometheus", "prometheus": {"url": url}}]
    plugins = {"balance": ["LowNodeUtilization"]}
    return configuration(plugins, {"LowNodeUtilization": found | args}, metricsProviders=providers, deschedulingInterval=interval)


@pytest.mark.feature("DS-K8S-09")
@pytest.mark.parametrize(("args", "left"), [({}, 1), ({"evictionLimits": {"node": 2}}, 2)])
def test_a_query_says_which_nodes_are_full(args: Obj, left: int) -> None:
    async def scenario() -> None:
        async with prometheus(vector(busy=0.8, calm=0.1)) as (url, asked):
            objects = [node("busy"), node("calm"), node("unknown"), *(pod(f"p{number}", "busy", cpu="100m") for number in range(4))]
            async with descheduling(objects, by_query(url, **args)) as running:
                await running.wait_rounds(1)
                assert len(await running.pods()) == 4 - left
                assert "MetricResource usage(80.00%)>target(60.00%)" in running.records("Evicted")[0].message
                assert any("node unknown is left out" in record.message for record in running.records("Round"))
            assert asked == [(QUERY, "")]

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-09")
@pytest.mark.parametrize(("args", "leave"), [({}, 1), ({"evictionLimits": {"node": 2}}, 2)])
def test_no_more_pods_leave_a_node_by_a_query_while_as_many_as_may_are_terminating(args: Obj, leave: int) -> None:
    async def scenario() -> None:
        async with prometheus(vector(busy=0.8, calm=0.1)) as (url, _):
            slow = [pod(f"p{number}", "busy", cpu="100m", terminationGracePeriodSeconds=600) for number in range(4)]
            async with descheduling([node("busy"), node("calm"), *slow], by_query(url, interval="50ms", **args)) as running:
                await running.wait_rounds(4)
                assert len(running.records("Evicted")) == leave

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-09")
def test_a_prometheus_that_does_not_answer_moves_nobody() -> None:
    async def scenario() -> None:
        objects = [node("busy"), node("calm"), pod("p", "busy")]
        async with descheduling(objects, by_query("http://127.0.0.1:1")) as running:
            await running.wait_rounds(1)
            assert await running.pods() == {"p"}
            assert len([record for record in running.records("Round") if "is left out" in record.message]) == 2

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-09")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": "error", "error": "parse error"}, "parse error"),
        ([], "no object"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "a vector is needed"),
        (vector(a="NaN"), "0 to 1"),
        (vector(a=1.5), "0 to 1"),
        (
            {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"instance": "a"}, "value": [0, "0.1"]}] * 2}},
            "several samples of a",
        ),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "1"]}]}}, "instance"),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"instance": "a"}, "value": []}]}}, "the form"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_with_a_reason(answer: Any, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        shares(answer)


class Served:
    """An API server's answers by path, and its Secrets."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    async def raw(self, method: str, path: str) -> tuple[int, bytes]:
        found = self.answers.get(path.rpartition("/")[2])
        return (404, b"") if found is None else (200, orjson.dumps({"items": found}))

    async def get(self, kind: kinds.Kind, name: str, namespace: str) -> Obj:
        if name not in self.answers:
            raise errors.NotFound(404, {"message": "not found"})
        return dict(self.answers[name])


def told(name: str, usage: Obj, *, age: float = 0.0, namespace: str = "", containers: int = 0) -> Obj:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    found = {"metadata": meta, "timestamp": format_time(1e9 - age)}
    return found | ({"containers": [{"usage": usage}] * containers} if containers else {"usage": usage})


@pytest.mark.feature("DS-K8S-09")
def test_what_the_metrics_server_tells() -> None:
    nodes = [told("n1", {"cpu": "1500m", "memory": "2Gi"}), told("old", {"cpu": "1"}, age=EXPIRES), told("odd", {"cpu": "much"}), {"x": 1}]
    nodes += [told("mute", {}), told("half", {"cpu": "1"}), told("less", {"cpu": "-1", "memory": "1Gi"})]
    pods = [told("p", {"cpu": "100m", "memory": "1Mi"}, namespace="d", containers=2)]
    found = asyncio.run(MetricsServer(Served({"nodes": nodes, "pods": pods})).read(1e9))  # type: ignore[arg-type]
    assert found.nodes == {"n1": {"cpu": 1500, "memory": 2 << 30}}
    assert found.pods == {("d", "p"): {"cpu": 200, "memory": 2 << 20}}
    with pytest.raises(SourceError, match="HTTP 404"):
        asyncio.run(MetricsServer(Served({})).read(1e9))  # type: ignore[arg-type]


@pytest.mark.feature("DS-K8S-09")
def test_the_metrics_server_stands_in_where_koordlet_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node has a koordlet, whose word counts; of the others the metrics server tells."""
    now = format_time(time.time())
    usage = {"metadata": {"name": "busy"}, "timestamp": now, "usage": {"cpu": "8", "memory": "1Gi"}}
    wrong = {"metadata": {"name": "calm"}, "timestamp": now, "usage": {"cpu": "9", "memory": "1Gi"}}
    each = [
        {"metadata": {"name": f"p{number}", "namespace": "default"}, "timestamp": now, "containers": [{"usage": {"cpu": "1"}}]}
        for number in range(6)
    ]
    served = Served({"nodes": [usage, wrong], "pods": each})

    async def raw(_: MetricsServer, plural: str, now: float, parts: Any) -> Any:
        async for item in real(MetricsServer(served), plural, now, parts):  # type: ignore[arg-type]
            yield item

    real = MetricsServer._items
    monkeypatch.setattr(MetricsServer, "_items", raw)
    objects = [node("busy"), node("calm"), metric("calm", "1"), *(pod(f"p{number}", "busy", cpu="100m") for number in range(6))]
    args = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 60}, "metricsUtilization": {"source": "KubernetesMetrics"}}

    async def scenario() -> None:
        async with descheduling(objects, configuration({"balance": ["LowNodeUtilization"]}, {"LowNodeUtilization": args})) as running:
            await running.wait_rounds(1)
            assert len(await running.pods()) == 4  # 80 %, 70 %, 60 %

    asyncio.run(scenario())


@pytest.mark.feature("DS-K8S-09")
@pytest.mark.feature("DS-CFG-01")
def test_where_the_token_goes_and_comes_from() -> None:
    def config(url: str, secret: str = "s") -> Any:
        reference = {"secretReference": {"namespace": "d", "name": secret}}
        text = by_query("http://x").replace("url: http://x", f"url: {url}\n    authToken: {reference}")
        return parse_configuration(text, "test")

    with pytest.raises(InvalidConfig, match="must begin with https"):
        config("http://prometheus")
    with pytest.raises(InvalidConfig, match="must be http"):
        config("https://prometheus:abc")
    key = f"Prometheus {QUERY}"
    token = base64.b64encode(b"abc\n").decode()
    served = Served({"s": {"data": {"prometheusAuthToken": token}}, "empty": {}})
    (made,) = sources(config("https://p"), [key], served)._sources.values()  # type: ignore[arg-type]
    assert asyncio.run(made._token()) == "abc"  # type: ignore[union-attr]
    for name, why in (("empty", "no readable"), ("none", "cannot be read")):
        (made,) = sources(config("https://p", name), [key], served)._sources.values()  # type: ignore[arg-type]
        with pytest.raises(SourceError, match=why):
            asyncio.run(made._token())  # type: ignore[union-attr]
    alone = by_query("http://x").partition("metricsProviders:")
    text = alone[0] + "profiles:" + alone[2].partition("profiles:")[2]
    with pytest.raises(InvalidConfig, match="needs an entry in metricsProviders"):
        Options(parse_configuration(text, "test"), "test")
