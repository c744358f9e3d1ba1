"""The operations server over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from koord.decisions.record import Record, Subject, decode_many
from koord.decisions.recorder import Recorder
from koord.process import logs, metrics
from koord.process.errors import ConfigurationError
from koord.process.health import Health
from koord.process.http import OpsServer
from koord.process.requests import Request, Response


async def get(url: str, method: str = "GET", **options: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return answer.status, await answer.text()


def test_health_paths() -> None:
    async def main() -> None:
        server = OpsServer(role="scheduler")
        server.health.register("caches", gate=True)
        server.health.register("leader", live=True, probe=lambda: (True, ""))
        await server.start()
        url = server.url
        code, text = await get(f"{url}/healthz")
        assert code == 503
        assert "[-]caches failed: not reported yet" in text
        assert (await get(f"{url}/livez"))[0] == 200
        server.health.set("caches", True, "synced")
        assert await get(f"{url}/healthz") == (200, "ok")
        server.health.set("webhook", False, "no certificate yet")
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/readyz"))[0] == 503
        assert await get(f"{url}/readyz?exclude=webhook") == (200, "ok")
        assert (await get(f"{url}/healthz?verbose"))[1] == "[+]caches ok: synced\n[+]leader ok\nhealthz check passed\n"
        assert (await get(f"{url}/healthz/caches"))[0] == 200
        assert (await get(f"{url}/healthz/nope"))[0] == 404
        server.health.register("leader", live=True, probe=lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        assert "[-]leader failed: ZeroDivisionError" in (await get(f"{url}/livez"))[1]
        await server.stop()

    asyncio.run(main())


@pytest.mark.feature("SCH-FW-02")
def test_health_checks_as_metrics() -> None:
    async def main() -> str:
        server = OpsServer(role="scheduler")
        server.health.register("caches", gate=True)
        await server.start()
        await get(f"{server.url}/readyz")
        server.health.set("caches", True)
        await get(f"{server.url}/readyz")
        await get(f"{server.url}/healthz")
        text = (await get(f"{server.url}/metrics/slis"))[1]
        await server.stop()
        return text

    lines = asyncio.run(main()).splitlines()
    assert "# TYPE kubernetes_healthchecks_total counter" in lines
    assert 'kubernetes_healthcheck{name="caches",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="caches",status="error",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="caches",status="success",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="caches",status="success",type="healthz"} 1.0' in lines
    assert not any('type="livez"' in line for line in lines)


def test_metrics_version_and_decisions() -> None:
    async def main() -> None:
        recorder = Recorder("scheduler")
        recorder.record(Record("scheduler", Subject("Pod", "ns", "p"), 1.0, "Scheduled", numbers={"score": 9}))
        server = OpsServer(role="scheduler", recorder=recorder)
        metrics.watch_recorder(server.registry, recorder)
        metrics.client_observer(server.registry, "https://10.0.0.1:6443")("GET", 0, 0.01)
        await server.start()
        _, text = await get(f"{server.url}/metrics")
        assert 'koord_build_info{role="scheduler"' in text
        assert 'rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"} 1.0' in text
        assert "koord_decisions_recorded_total 1.0" in text
        assert "process_resident_memory_bytes" in text
        assert (await get(f"{server.url}/metrics", headers={"Accept": "application/openmetrics-text"}))[1].endswith("# EOF\n")
        assert '"role": "scheduler"' in (await get(f"{server.url}/version"))[1]
        code, body = await get(f"{server.url}/debug/decisions?kind=Pod&namespace=ns&name=p")
        assert code == 200
        assert decode_many(body) == recorder.ring.find()
        assert (await get(f"{server.url}/debug/decisions?frob=1"))[0] == 400
        await server.stop()

    asyncio.run(main())


def test_own_routes_and_profiling(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = OpsServer()

        async def fail(request: Request) -> Response:
            raise RuntimeError("boom")

        async def node(request: Request) -> Response:
            return Response(text=request.match_info["name"])

        server.route("GET", "/fail", fail)
        server.route("GET", "/nodes/{name}", node)
        server.json("/configz", lambda: {"a": 1})
        server.enable_profiling()
        switched: list[str] = []
        server.flag("s", lambda text: switched.append(str(int(text))))
        await server.start()
        assert await get(f"{server.url}/nodes/n1") == (200, "n1")
        assert await get(f"{server.url}/fail") == (500, "RuntimeError: boom\n")
        assert await get(f"{server.url}/configz") == (200, '{"a":1}')
        assert (await get(f"{server.url}/debug/decisions"))[0] == 404
        assert "test_http.py" in (await get(f"{server.url}/debug/tasks"))[1]
        assert (await get(f"{server.url}/debug/flags/s", "PUT", data="7"))[0] == 200
        assert switched == ["7"]
        assert (await get(f"{server.url}/debug/flags/s", "PUT", data="x"))[0] == 400
        assert (await get(f"{server.url}/debug/flags/zz", "PUT", data="x"))[0] == 404
        assert (await get(f"{server.url}/debug/flags/v", "PUT", data="6"))[0] == 200
        assert (await get(f"{server.url}/debug/flags/v", "PUT", data="²"))[:2] == (400, "v: '²' must be a whole number of up to 8 digits\n")
        logs.set_verbosity(0)
        await server.stop()

    asyncio.run(main())


def test_an_address_in_use_is_a_clear_refusal_and_health_can_be_shared() -> None:
    async def main() -> None:
        health = Health()
        first = OpsServer(health=health)
        await first.start()
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: .*address already in use"):
            await OpsServer(port=first.port).start()
        with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:1"):
            await OpsServer("192.0.2.1", 1).start()
        second = OpsServer(health=health)
        await second.start()
        health.register("x", gate=True)
        assert (await get(f"{first.url}/healthz"))[0] == (await get(f"{second.url}/healthz"))[0] == 503
        await first.stop()
        await second.stop()
        await second.stop()

    asyncio.run(main())
