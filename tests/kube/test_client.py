"""The client against a server with faults, and against the embedded API server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
from aiohttp import web

from koord.api.kinds import CONFIGMAPS, NAMESPACES, NODES, PODS
from koord.apiserver.testing import running_server
from koord.kube import errors, transport
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.ratelimit import Backoff, TokenBucket


def refuse(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


def pod(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (418, "Teapot", errors.ApiError),
    ],
)
def test_errors_by_status(fault_server: Any, code: int, reason: str, error: type[errors.ApiError]) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.script = lambda request: refuse(code, reason, "because")
            with pytest.raises(error) as caught:
                await client.create(PODS, pod("p"), "default")
            assert type(caught.value) is error
            assert (caught.value.status, caught.value.reason, caught.value.message) == (code, reason, "because")
            assert str(caught.value) == f"because ({reason}, HTTP {code})"

    asyncio.run(main())


def test_an_answer_that_is_no_status_becomes_the_message() -> None:
    error = errors.from_response(502, b"<html>bad gateway</html>")
    assert isinstance(error, errors.ServerError)
    assert "bad gateway" in str(error)


def test_retries_what_is_safe_to_retry(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            answers: list[Any] = [refuse(500), refuse(503), ConnectionResetError(), None]
            server.script = lambda request: answers.pop(0) if answers else None
            assert await client.list(PODS)
            assert len(server.requests) == 4

            for make in (lambda: refuse(500, "InternalError"), ConnectionResetError):
                server.requests.clear()
                server.script = lambda request, make=make: make()
                with pytest.raises(errors.ApiError):
                    await client.create(PODS, pod("p"), "default")
                with pytest.raises(errors.ApiError):
                    await client.patch(PODS, "p", [], "default", type="json")
                assert len(server.requests) == 2  # neither was sent twice

    asyncio.run(main())


def test_waits_as_long_as_the_server_asks(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            answers = [refuse(429, "TooManyRequests", "slow down", **{"Retry-After": "1"})]
            server.script = lambda request: answers.pop() if answers else None
            began = time.monotonic()
            await client.create(PODS, pod("p"), "default")  # a write that was not let in may be sent again
            assert time.monotonic() - began > 0.95
            assert len(server.requests) == 2
            server.requests.clear()
            server.script = lambda request: refuse(429, "TooManyRequests", "budget", **{"Retry-After": "10"})
            with pytest.raises(errors.TooManyRequests) as caught:
                await client.evict("default", "p")
            assert caught.value.retry_after == 10
            assert len(server.requests) == 1

    asyncio.run(main())


def test_credentials_that_end_with_the_last_try_are_an_error_of_the_server(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            monkeypatch.setattr(transport, "ATTEMPTS", 2)
            answers = [refuse(401, "Unauthorized"), refuse(503)]
            server.script = lambda request: answers.pop() if answers else None
            with pytest.raises(errors.Unauthorized):
                await client.get(PODS, "p", "default")
            assert (await client.list(PODS)).items == []

    asyncio.run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        async with Client(ClientConfig(server="http://127.0.0.1:1")) as client:
            with pytest.raises(errors.Unreachable, match=r"http://127\.0\.0\.1:1: "):
                await client.get(PODS, "p", "default")

    asyncio.run(main())


def test_requests_as_the_server_sees_them(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            await client.patch(PODS, "p", {"a": 1}, "ns", subresource="status")
            await client.patch(NODES, "n", [{"op": "remove", "path": "/a"}], type="json")
            await client.patch(NODES, "n", {"a": 1}, type="strategic", field_manager="me")
            await client.patch(NODES, "n", {"a": 1}, type="apply", force=True)
            await client.delete(PODS, "p", "ns", grace_period_seconds=0, preconditions={"uid": "u"}, propagation="Background")
            await client.bind("ns", "p", "node-1", "u-1")
            await client.evict("ns", "p", grace_period_seconds=5, uid="u-1")
            seen = [(r.method, r.path, r.headers.get("Content-Type"), dict(r.query)) for r in server.requests]
            assert seen[0] == ("PATCH", "/api/v1/namespaces/ns/pods/p/status", "application/merge-patch+json", {"fieldManager": "koord"})
            assert seen[1][1:3] == ("/api/v1/nodes/n", "application/json-patch+json")
            assert seen[2][2:] == ("application/strategic-merge-patch+json", {"fieldManager": "me"})
            assert seen[3][2:] == ("application/apply-patch+yaml", {"fieldManager": "koord", "force": "true"})
            bodies = [orjson.loads(body) for body in server.bodies]
            assert bodies[4]["preconditions"] == {"uid": "u"}
            assert (bodies[4]["gracePeriodSeconds"], bodies[4]["propagationPolicy"]) == (0, "Background")
            assert seen[5][:2] == ("POST", "/api/v1/namespaces/ns/pods/p/binding")
            assert bodies[5]["target"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
            assert bodies[5]["metadata"]["uid"] == "u-1"
            assert bodies[6]["apiVersion"] == "policy/v1"
            assert bodies[6]["deleteOptions"] == {"gracePeriodSeconds": 5, "preconditions": {"uid": "u-1"}}
            assert await client.raw("POST", "/anything", {"x": 1}) == (200, b'{"kind": "Pod", "metadata": {"name": "x"}}')

    asyncio.run(main())


def test_eviction_falls_back_to_the_older_version(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):

            def script(request: web.Request) -> web.Response | None:
                old = b"v1beta1" in server.bodies[-1]
                return None if old else refuse(400, "BadRequest", 'no kind "Eviction" is registered for version "policy/v1"')

            server.script = script
            await client.evict("ns", "p")
            await client.evict("ns", "p")
            assert len(server.requests) == 3

    asyncio.run(main())


def test_list_begins_anew_when_a_continuation_has_expired(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            for number in range(7):
                server.put(f"p{number}")
            server.page_expires = True
            listed = await client.list(PODS, limit=3)
            assert [item["metadata"]["name"] for item in listed.items] == [f"p{number}" for number in range(7)]
            assert listed.resource_version == "107"
            assert len(server.requests) == 3
            assert len((await client.list(PODS, limit=3)).items) == 7
            assert len(server.requests) == 6

    asyncio.run(main())


def test_watch_yields_whole_lines(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):

            async def stream(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                for part in (b'{"a"', b':1}\n{"b":2}\n\n{"c"', b":3}", b"\n", b'{"cut":'):
                    await response.write(part)
                    await asyncio.sleep(0.01)
                return response

            server.script = stream
            assert [line async for line in client.watch(PODS)] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
            assert 300 <= int(server.requests[0].query["timeoutSeconds"]) <= 600
            server.script = lambda request: refuse(410, "Expired", "too old")
            with pytest.raises(errors.Gone):
                [line async for line in client.watch(PODS, resource_version="1")]

    asyncio.run(main())


def test_pacing(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, _):
            told: list[tuple[str, int]] = []
            config = ClientConfig(server=server.url)
            async with Client(config, qps=50, burst=5, observer=lambda method, status, seconds: told.append((method, status))) as client:
                began = time.monotonic()
                await asyncio.gather(*(client.get(PODS, "p", "default") for _ in range(15)))
                assert time.monotonic() - began > 0.19
            assert told == [("GET", 200)] * 15

    asyncio.run(main())


def test_token_bucket_and_backoff() -> None:
    bucket = TokenBucket(2.0, 3)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.take(10.5)
    assert not bucket.take(10.5)
    assert bucket.reserve(10.5) == pytest.approx(0.5)
    assert bucket.reserve(10.5) == pytest.approx(1.0)
    backoff = Backoff(1.0, 5.0, jitter=lambda: 1.0)
    assert [backoff.next() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_verbs_on_the_embedded_server() -> None:
    async def main() -> None:
        async with running_server() as server, server.client(role="test") as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            made = await client.create(PODS, pod("p"), "ns")
            with pytest.raises(errors.AlreadyExists):
                await client.create(PODS, pod("p"), "ns")
            await client.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "ns")
            with pytest.raises(errors.Conflict):
                await client.replace(PODS, made, "ns")
            await client.bind("ns", "p", "n1", made["metadata"]["uid"])
            with pytest.raises(errors.Conflict):
                await client.bind("ns", "p", "n1")
            assert (await client.get(PODS, "p", "ns"))["spec"]["nodeName"] == "n1"
            assert [item["metadata"]["name"] for item in (await client.list(PODS, label_selector="a=b")).items] == ["p"]
            assert (await client.list(PODS, field_selector="spec.nodeName=other")).items == []
            for number in range(7):
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}", "namespace": "ns"}}
                await client.create(CONFIGMAPS, body)
            assert len((await client.list(CONFIGMAPS, "ns", limit=2)).items) == 7
            await client.evict("ns", "p", grace_period_seconds=0)
            await client.delete(NODES, "n1")
            with pytest.raises(errors.NotFound):
                await client.get(NODES, "n1")

    asyncio.run(main())
