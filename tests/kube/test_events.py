"""Events on the embedded API server."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from koord import seams
from koord.api.kinds import EVENTS, PODS
from koord.api.objects import Pod
from koord.apiserver.testing import running_server
from koord.kube import events
from koord.kube.events import EventRecorder
from koord.kube.references import ObjectRef, reference


def about(name: str = "p", uid: str = "uid-1") -> ObjectRef:
    return ObjectRef("Pod", name, "default", uid)


def test_written_deduplicated_and_counted_up() -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            recorder = EventRecorder(client, "koord-scheduler", "host-1")
            for _ in range(3):
                recorder.event(about(), "Warning", "FailedScheduling", "0/3 nodes are available")
            recorder.event(about(), "Normal", "Scheduled", "bound to n1", action="Binding")
            recorder.event(ObjectRef("Node", "n1"), "Normal", "Suppressed", "ü" * 2000)
            await recorder.flush()
            found = {item["reason"]: item for item in (await client.list(EVENTS)).items}
            assert set(found) == {"FailedScheduling", "Scheduled", "Suppressed"}
            failed = found["FailedScheduling"]
            assert failed["series"]["count"] == 3
            assert failed["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default", "uid": "uid-1"}
            assert (failed["reportingController"], failed["reportingInstance"]) == ("koord-scheduler", "koord-scheduler-host-1")
            assert found["Scheduled"]["action"] == "Binding"
            assert found["Suppressed"]["metadata"]["namespace"] == "default"
            assert len(found["Suppressed"]["note"].encode()) <= 1024
            assert (recorder.sent, recorder.dropped) == (5, 0)
            await client.delete(EVENTS, failed["metadata"]["name"], "default")
            recorder.event(about(), "Warning", "FailedScheduling", "0/3 nodes are available")
            await recorder.stop()
            await recorder.stop()
            assert sum(item["reason"] == "FailedScheduling" for item in (await client.list(EVENTS)).items) == 1

    asyncio.run(main())


def test_one_object_cannot_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            now = [0.0]
            recorder = EventRecorder(client, "test", clock=lambda: now[0])
            for number in range(40):
                recorder.event(about(), "Normal", "Noise", f"{number}")
            recorder.event(about("other"), "Normal", "Noise", "heard")
            assert recorder.dropped == 15
            now[0] = 301.0
            recorder.event(about(), "Normal", "Noise", "later")
            recorder.event(about(), "Normal", "Noise", "too early again")
            assert recorder.dropped == 16
            await recorder.stop()
            notes = {item["note"] for item in (await client.list(EVENTS)).items}
            assert len(notes) == 27
            assert {"heard", "later"} <= notes

    asyncio.run(main())


def test_what_was_told_too_often_hides_nothing_else() -> None:
    """A pod that waited for nine minutes is placed; then its StatefulSet makes it anew."""

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            now = [0.0]
            recorder = EventRecorder(client, "test", clock=lambda: now[0])
            for _ in range(55):
                recorder.event(about(), "Warning", "FailedScheduling", "0/3 nodes are available")
                now[0] += 10.0
            assert recorder.dropped > 0
            recorder.event(about(), "Normal", "Scheduled", "bound to n1")
            recorder.event(about(uid="uid-2"), "Warning", "FailedScheduling", "0/3 nodes are available")
            recorder.event(about(uid="uid-2"), "Normal", "Scheduled", "bound to n1")
            await recorder.stop()
            found = {(item["regarding"]["uid"], item["reason"]) for item in (await client.list(EVENTS)).items}
            assert found == {(uid, reason) for uid in ("uid-1", "uid-2") for reason in ("FailedScheduling", "Scheduled")}

    asyncio.run(main())


def test_a_full_queue_and_bad_references_drop_and_never_raise(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE", 5)

    async def main() -> None:
        async with fault_server() as (server, client):
            recorder = EventRecorder(client, "test")
            for number in range(8):
                recorder.event(about(f"p{number}"), "Normal", "X", "y")
            assert recorder.dropped == 3
            recorder.event(None, "Normal", "X", "y")
            assert recorder.dropped == 4
            server.script = lambda request: web.Response(status=403, text="forbidden")
            await recorder.flush()
            assert recorder.dropped == 9
            assert recorder.sent == 0
            await recorder.stop()

    asyncio.run(main())


def test_references() -> None:
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u"}}
    assert reference(obj) == ObjectRef("Pod", "p", "ns", "u")
    pod = Pod()
    assert reference(pod, PODS).kind == "Pod"


def test_a_thousand_a_second_are_all_written_though_each_takes_long(fault_server: Any) -> None:
    """Sixteen at once: with 10 ms an event, 2,000 events of two seconds need no more than that to be written."""

    async def main() -> None:
        async with fault_server() as (server, client):
            under_way = [0, 0]

            async def script(request: web.Request) -> web.Response:
                under_way[0] += 1
                under_way[1] = max(under_way)
                await asyncio.sleep(0.01)
                under_way[0] -= 1
                return web.json_response({"kind": "Event", "metadata": {"name": "x"}}, status=201)

            server.script = script
            recorder = EventRecorder(client, "test")
            for number in range(2000):
                recorder.event(about(f"p{number}"), "Normal", "Scheduled", "bound")
            await recorder.flush(30)
            assert (recorder.sent, recorder.dropped) == (2000, 0)
            assert under_way[1] == events.WRITERS

    asyncio.run(main())


def test_warnings_go_first_and_are_not_dropped_for_normals(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE", 40)
    monkeypatch.setattr(events, "WRITERS", 1)

    async def main() -> None:
        async with fault_server() as (server, client):
            recorder = EventRecorder(client, "test")
            for number in range(40):
                recorder.event(about(f"n{number}"), "Normal", "Scheduled", "bound")
            for number in range(30):
                recorder.event(about(f"w{number}"), "Warning", "FailedScheduling", "no")
            recorder.event(about("late"), "Normal", "Scheduled", "bound")
            assert recorder.drops == {"queue_full": 31}
            await recorder.flush(10)
            written = [orjson.loads(body) for body in server.bodies]
            assert [event["type"] for event in written] == ["Warning"] * 30 + ["Normal"] * 10
            assert written[-1]["regarding"]["name"] == "n39"  # the oldest Normals made place

    asyncio.run(main())


def test_equal_events_count_up_though_many_are_written_at_once(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):

            async def script(request: web.Request) -> None:
                await asyncio.sleep(0.01)

            server.script = script
            recorder = EventRecorder(client, "test")
            for _ in range(10):
                recorder.event(about(), "Warning", "FailedScheduling", "no")
            await recorder.flush(10)
            assert [request.method for request in server.requests] == ["POST", *["PATCH"] * 9]
            assert orjson.loads(server.bodies[-1])["series"]["count"] == 10

    asyncio.run(main())


def test_a_lost_answer_makes_no_second_event_and_counts_once(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            monkeypatch.setattr(seams, "sleep", lambda seconds: asyncio.sleep(0))
            lost = [True]

            def script(request: web.Request) -> Any:
                if lost:
                    lost.pop()
                    return ConnectionResetError()
                if request.method == "POST":
                    return web.json_response({"kind": "Status", "reason": "AlreadyExists", "code": 409}, status=409)
                return None

            server.script = script
            recorder = EventRecorder(client, "test")
            recorder.event(about("p" * 199 + "-" + "x" * 9), "Warning", "FailedScheduling", "no")
            await recorder.flush(10)
            made = [orjson.loads(body)["metadata"]["name"] for body in server.bodies]
            assert len(made) == 2
            assert made[0] == made[1]
            assert made[0].startswith("p" * 199 + ".")  # a name with a hyphen before the dot would be refused
            assert recorder.dropped == 0

            lost += [True] * 5  # as often as the client tries by itself
            recorder.event(about("p" * 199 + "-" + "x" * 9), "Warning", "FailedScheduling", "no")
            await recorder.flush(10)
            assert orjson.loads(server.bodies[-1])["series"]["count"] == 2

    asyncio.run(main())


def test_an_event_that_comes_as_a_writer_ends_does_not_wait_for_the_next_one() -> None:
    """A task that is done counts among the writers until the loop has told so."""

    class Server:
        def __init__(self) -> None:
            self.written: list[str] = []

        async def create(self, kind: Any, body: Any, namespace: str) -> None:
            if not self.written:  # runs after the writer's end, and before anybody is told of it
                asyncio.get_running_loop().call_soon(recorder.event, about(), "Normal", "Scheduled", "the last one")
            self.written.append(body["note"])

    server = Server()

    async def main() -> None:
        nonlocal recorder
        recorder = EventRecorder(server, "koord-scheduler", "host-1")  # type: ignore[arg-type]
        recorder.event(about(), "Warning", "FailedScheduling", "the first one")
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.written == ["the first one", "the last one"]
        await recorder.flush()

    recorder: Any = None
    asyncio.run(main())
