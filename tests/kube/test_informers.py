"""Informers against a server with faults."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web

from koord.api.kinds import NODEMETRICS, PODS
from koord.api.objects import Pod
from koord.kube import reflector
from koord.kube.informers import Informer, InformerFactory
from koord.kube.reflector import WITNESSES
from koord.kube.wire import decode_list
from tests.support import patience


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_FIRST", 0.01)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT", 0.05)


def names(informer: Any) -> list[str]:
    return sorted(obj.metadata.name for obj in informer.list())


class Log:
    """What the handlers were told."""

    def __init__(self, informer: Any) -> None:
        self.lines: list[str] = []
        informer.add_handler(
            lambda obj: self.lines.append(f"+{obj.metadata.name}"),
            lambda old, new: self.lines.append(f"~{new.metadata.name}:{old.metadata.resource_version}>{new.metadata.resource_version}"),
            lambda obj: self.lines.append(f"-{obj.metadata.name}"),
        )


def test_list_watch_and_handlers(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            seen = Log(informer)
            assert not informer.synced
            factory.start()
            factory.start()
            await factory.wait_synced()
            server.put("b")
            server.put("a")
            server.remove("b")
            await eventually(lambda: len(seen.lines) == 4)
            assert seen.lines == ["+a", "+b", "~a:101>103", "-b"]
            assert informer.get("default/a").metadata.resource_version == "103"
            assert "default/b" not in informer
            late = Log(informer)
            assert late.lines == ["+a"]
            agent = server.requests[0].headers["User-Agent"]
            assert agent.startswith("koord/")
            assert agent.endswith("(test)")
            await factory.stop()

    asyncio.run(main())


def test_one_watch_serves_several_projections_also_late_ones(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            factory = InformerFactory(client)
            pods, dicts = factory.informer(PODS, Pod), factory.informer(PODS)
            assert factory.informer(PODS, Pod) is pods
            factory.start()
            await factory.wait_synced()
            seen = Log(pods)
            await eventually(lambda: len(server.watchers) == 1)
            assert dicts.get("default/a")["kind"] == "Pod"
            labels = factory.informer(PODS, Pod, transform=lambda obj: obj.metadata.labels or None)
            await factory.wait_synced()
            server.put("b", metadata={"labels": {"x": "y"}})
            await eventually(lambda: labels.get("default/b") == {"x": "y"})
            assert len(labels) == 1  # what the transform leaves out is not there
            assert seen.lines == ["+a", "+b"]
            await eventually(lambda: len(server.watchers) == 1)
            server.put("b")
            await eventually(lambda: len(labels) == 0)
            await factory.stop()

    asyncio.run(main())


def test_resumes_from_the_last_version_after_a_disconnect(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            seen = Log(informer)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            server.put("a")
            await eventually(lambda: seen.lines == ["+a"])
            server.send(b'{"type":"ADDED","object":{"metadata":{"name":"half')
            server.send(None)  # closed in the middle of a line
            server.put("b")
            await eventually(lambda: seen.lines == ["+a", "+b"])
            await eventually(lambda: bool(server.watchers))
            server.send(b"this is no event\n")
            await eventually(lambda: sum("watch" in request.query for request in server.requests) == 3)
            server.put("c")
            await eventually(lambda: seen.lines == ["+a", "+b", "+c"])
            lists = [request for request in server.requests if "watch" not in request.query]
            assert [request.query.get("limit") for request in lists[1:]] == [str(WITNESSES)] * (len(lists) - 1), "looked at, and not listed"
            watches = [request.query["resourceVersion"] for request in server.requests if "watch" in request.query]
            assert watches == ["100", "101", "102"]
            assert all(request.query["allowWatchBookmarks"] == "true" for request in server.requests if "watch" in request.query)
            await factory.stop()

    asyncio.run(main())


def test_bookmarks_move_the_version(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            factory.informer(PODS, Pod)
            factory.start()
            await eventually(lambda: bool(server.watchers))
            server.version = 900
            server.send(b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"900"}}}\n')
            server.send(None)
            await eventually(lambda: server.requests[-1].query.get("resourceVersion") == "900")
            await factory.stop()

    asyncio.run(main())


def test_gone_lists_again_and_tells_what_was_missed(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            for name in "abc":
                server.put(name)
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            seen = Log(informer)
            factory.start()
            await eventually(lambda: bool(server.watchers))
            seen.lines.clear()
            server.watchers.clear()  # what happens now is not told
            server.remove("a")
            server.put("b")
            server.put("d")
            server.remove("c")
            server.put("c", metadata={"uid": "another"})
            server.compact()
            await server.stop()
            await server.start()
            await eventually(lambda: names(informer) == ["b", "c", "d"] and "-a" in seen.lines)
            assert sorted(seen.lines) == ["+c", "+d", "-a", "-c", "~b:102>105"]
            assert seen.lines.index("-c") < seen.lines.index("+c")
            await factory.stop()

    asyncio.run(main())


def test_gone_as_an_event(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            factory.informer(PODS, Pod)
            factory.start()
            await eventually(lambda: bool(server.watchers))
            server.send(b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n')
            await eventually(lambda: sum("watch" not in request.query for request in server.requests) == 2)
            await factory.stop()

    asyncio.run(main())


def test_survives_every_kind_of_refusal_and_an_absent_server(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            answers = [500, 429, 409, 401, 403, 503, 410, 400, 404]

            def script(request: web.Request) -> web.Response | None:
                return web.Response(status=answers.pop(0)) if answers else None

            server.script = script
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(20))
            assert names(informer) == ["a"]
            await eventually(lambda: bool(server.watchers))
            await server.stop()
            await asyncio.sleep(0.3)
            assert names(informer) == ["a"]
            await server.start()
            server.put("b")
            await eventually(lambda: names(informer) == ["a", "b"], 10)
            await factory.stop()

    asyncio.run(main())


def pod(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}}


def bookmark(version: int) -> bytes:
    return orjson.dumps({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}}) + b"\n"


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "the same"])
def test_a_server_behind_a_balancer_that_is_restored_from_a_backup(fault_server: Any, eventually: Any, restored: bool) -> None:
    """The balancer ends the watch in order and says 503 meanwhile. The first objects are those of before, and the version is ahead."""

    async def main() -> None:
        async with fault_server() as (server, client):
            for number in range(2 * reflector.WITNESSES):
                server.put(f"a{number:02}")
            backup = server.version
            server.put("z-ghost")
            server.put("z-gone")
            factory = InformerFactory(client)
            pods = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: server.watchers)
            server.remove("z-gone")
            server.put("a00", metadata={"labels": {"l": "1"}})
            await eventually(lambda: "default/z-gone" not in pods)
            server.script = lambda request: web.Response(status=503, text="no upstream")
            server.send(None)
            await eventually(lambda: factory.status()[0]["error"])
            server.version += 50
            if restored:
                del server.objects["z-ghost"]
                server.objects["a00"] = pod("a00", server.version)
                server.objects["b-again"] = pod("b-again", backup)
                server.history.clear()
            server.script = None
            await eventually(lambda: server.watchers)
            server.put("new")
            await eventually(lambda: "default/new" in pods)
            names = {item.metadata.name for item in pods.list()}
            assert ("z-ghost" in names, "b-again" in names) == (not restored, restored)
            assert factory.status()[0]["lists"] == (2 if restored else 1)
            await factory.stop()

    asyncio.run(main())


def test_versions_that_go_back_are_a_list_and_no_loop(fault_server: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that count differently behind one address: each list is the truth, and each time later than the last."""
    pauses: list[float] = []
    pause_for = reflector.Reflector._pause_for

    async def short(self: Any, seconds: float) -> None:
        pauses.append(seconds)
        await pause_for(self, 0.01)

    monkeypatch.setattr(reflector.Reflector, "_pause_for", short)

    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("ghost")
            factory = InformerFactory(client)
            pods = factory.informer(PODS, Pod)
            told: list[str] = []
            pods.add_handler(on_delete=lambda obj: told.append(obj.metadata.name))
            factory.start()
            await factory.wait_synced()
            for number in range(4):
                await eventually(lambda: server.watchers)
                server.objects = {f"p{number}": pod(f"p{number}", 10)}
                server.version -= 5
                server.history.clear()
                lists = factory.status()[0]["lists"]

                def listed(before: int = lists) -> bool:
                    server.send(bookmark(server.version))  # to the watch that follows by now
                    return bool(factory.status()[0]["lists"] == before + 1)

                await eventually(listed)
                assert [item.metadata.name for item in pods.list()] == [f"p{number}"]
                last = [r for r in server.requests if "watch" not in r.query and "fieldSelector" not in r.query][-1]
                assert "resourceVersion" not in last.query  # of the database, whatever caches say
            assert told == ["ghost", "p0", "p1", "p2"]
            assert [seconds >= least for seconds, least in zip(pauses, (0.5, 1.0, 2.0, 4.0), strict=True)] == [True] * 4
            await factory.stop()

    asyncio.run(main())


def test_a_second_watch_that_is_ahead_makes_no_bookmark_an_alarm(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            factory = InformerFactory(client)
            pods = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: server.watchers)
            (one,) = factory._reflectors.values()
            version = server.version
            await one._take([bookmark(version + 10)], one._version)  # as told on another connection
            server.send(bookmark(version + 5))
            await eventually(lambda: one.events == 2)
            server.version += 10
            server.put("b")
            await eventually(lambda: "default/b" in pods)
            assert factory.status()[0]["lists"] == 1
            await factory.stop()

    asyncio.run(main())


def test_pages_and_a_continuation_that_expires(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "PAGE", 3)

    async def main() -> None:
        async with fault_server() as (server, client):
            for number in range(10):
                server.put(f"p{number}")
            server.page_expires = True
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            assert len(informer) == 10
            assert [request.query.get("limit") for request in server.requests if "watch" not in request.query] == ["3", "3", None]
            await factory.stop()

    asyncio.run(main())


def test_a_bad_object_is_reported_once_and_the_last_good_one_stays(
    fault_server: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("good")
            server.put("bad", spec={"nodeName": ["no", "text"]})
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            dicts = factory.informer(PODS)
            factory.start()
            await factory.wait_synced()
            assert names(informer) == ["good"]
            assert len(dicts) == 2
            await eventually(lambda: bool(server.watchers))
            server.put("good", spec={"nodeName": {"no": "text"}})
            server.put("other")
            await eventually(lambda: names(informer) == ["good", "other"])
            assert informer.get("default/good").spec.node_name == "n1"
            assert sorted(informer.failures) == ["default/bad", "default/good"]
            assert "nodeName" in informer.failures["default/good"].message
            reported = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
            assert len(reported) == 2
            assert "last good version stays" in reported[1]
            server.put("bad")
            await eventually(lambda: names(informer) == ["bad", "good", "other"])
            assert sorted(informer.failures) == ["default/good"]
            assert factory.status()[0]["unreadable"] == ["default/good"]
            server.send(b'{"type":"ADDED","object":{"metadata":"none"}}\n')
            server.put("last")
            await eventually(lambda: "default/last" in informer)
            await factory.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())


def test_an_object_of_ten_thousand_levels_keeps_no_other_from_being_read(fault_server: Any, eventually: Any) -> None:
    levels = 9_990
    deep = b'{"metadata":{"name":"deep","namespace":"default"},"spec":{"x":' + b"[" * levels + b"]" * levels + b"}}"
    assert len(decode_list(b'{"items":[' + deep + b',{"metadata":{}}]}').items or ()) == 2

    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            server.send(b'{"type":"ADDED","object":' + deep + b"}\n")
            await eventually(lambda: "default/deep" in informer.failures)
            server.put("other")
            await eventually(lambda: names(informer) == ["other"])
            await factory.stop()

    asyncio.run(main())


def test_a_failing_handler_does_not_stop_the_others(fault_server: Any, eventually: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)

            def explode(obj: Pod) -> None:
                raise RuntimeError("boom")

            informer.add_handler(explode)
            remove = informer.add_handler(explode)
            informer.index("broken", explode)  # type: ignore[arg-type]
            seen = Log(informer)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            server.put("a")
            await eventually(lambda: seen.lines == ["+a"])
            assert sum("boom" in (record.exc_text or "") for record in caplog.records) == 3
            remove()
            caplog.clear()
            server.put("b")
            await eventually(lambda: seen.lines == ["+a", "+b"])
            assert sum("boom" in (record.exc_text or "") for record in caplog.records) == 2
            await factory.stop()

    asyncio.run(main())


def test_handlers_that_come_or_go_while_a_change_is_told() -> None:
    informer = Informer("pods", dict)
    told: list[str] = []

    def once(obj: dict[str, Any]) -> None:
        told.append("once")
        remove()
        informer.add_handler(lambda obj: told.append("late"))

    remove = informer.add_handler(once)
    informer.add_handler(lambda obj: told.append("next"))
    informer.receive("a", "1", msgspec.Raw(b'{"metadata": {"name": "a"}}'))
    assert told == ["once", "late", "next"]
    informer.receive("b", "2", msgspec.Raw(b'{"metadata": {"name": "b"}}'))
    assert told[3:] == ["next", "late"]


def test_removing_a_handler_twice_leaves_its_equal_alone() -> None:
    informer = Informer("pods", dict)
    told: list[Any] = []
    remove = informer.add_handler(told.append)
    informer.add_handler(told.append)
    remove()
    remove()
    informer.receive("a", "1", msgspec.Raw(b'{"metadata": {"name": "a"}}'))
    assert len(told) == 1


def test_the_last_good_version_of_an_object_that_was_replaced_is_not_kept() -> None:
    informer = Informer("pods", Pod)
    seen = Log(informer)

    def receive(uid: str, version: str, spec: str) -> None:
        raw = f'{{"metadata": {{"name": "a", "uid": "{uid}", "resourceVersion": "{version}"}}, "spec": {spec}}}'
        informer.receive("a", version, msgspec.Raw(raw.encode()), replaced_uid=uid)

    receive("u1", "1", "{}")
    receive("u1", "2", "[]")
    assert (seen.lines, "a" in informer.failures) == (["+a"], True)
    receive("u2", "3", "[]")
    assert (seen.lines, names(informer), "a" in informer.failures) == (["+a", "-a"], [], True)
    receive("u2", "4", "{}")
    assert (seen.lines[2:], informer.failures) == (["+a"], {})


def test_indexes_follow_changes(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            informer.index("node", lambda obj: obj.spec.node_name or None)
            factory.start()
            await factory.wait_synced()
            informer.index("labels", lambda obj: obj.metadata.labels.keys())
            await eventually(lambda: bool(server.watchers))
            assert [obj.metadata.name for obj in informer.by_index("node", "n1")] == ["a"]
            server.put("a", spec={"nodeName": "n2"}, metadata={"labels": {"x": "1", "y": "2"}})
            await eventually(lambda: len(informer.by_index("node", "n2")) == 1)
            assert informer.by_index("node", "n1") == []
            assert len(informer.by_index("labels", "x")) == len(informer.by_index("labels", "y")) == 1
            server.remove("a")
            await eventually(lambda: not informer.by_index("node", "n2"))
            assert informer.by_index("labels", "x") == []
            with pytest.raises(KeyError):
                informer.by_index("nope", "x")
            await factory.stop()

    asyncio.run(main())


def test_an_optional_kind_that_is_not_served_is_empty(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.script = lambda request: web.Response(status=404) if "nodemetrics" in request.path else None
            factory = InformerFactory(client)
            informer = factory.informer(NODEMETRICS, dict, optional=True)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(5))
            assert len(informer) == 0
            await factory.stop()

    asyncio.run(main())


def test_a_kind_that_is_installed_later_with_its_objects_is_listed(
    fault_server: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A watch that begins nowhere tells first of what is there, in no order of versions."""
    monkeypatch.setattr(reflector, "MISSING_KIND_PERIOD", 0.05)

    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("b")
            server.put("a")
            first = server.version

            async def answer(request: web.Request) -> web.StreamResponse | None:
                if "watch" not in request.query or request.query.get("resourceVersion"):
                    return None
                response = web.StreamResponse()
                await response.prepare(request)
                for name, version in (("a", first), ("b", first - 1)):
                    await response.write(orjson.dumps({"type": "ADDED", "object": pod(name, version)}) + b"\n")
                return response

            server.script = lambda request: web.Response(status=404)
            factory = InformerFactory(client)
            pods = factory.informer(PODS, Pod, optional=True)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(5))
            assert len(pods) == 0
            server.script = answer
            await eventually(lambda: len(pods) == 2)
            await eventually(lambda: server.watchers)
            await factory.stop()

    asyncio.run(main())
    assert "list or watch failed" not in caplog.text


def test_selections_are_separate_watches(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            factory.informer(PODS, Pod)
            factory.informer(PODS, Pod, namespace="x", label_selector="a=b", field_selector="spec.nodeName=n")
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: len(server.watchers) == 2)
            queries = [
                (request.path, request.query.get("labelSelector"), request.query.get("fieldSelector")) for request in server.requests
            ]
            assert queries.count(("/api/v1/namespaces/x/pods", "a=b", "spec.nodeName=n")) == 2
            assert queries.count(("/api/v1/pods", None, None)) == 2
            await factory.stop()

    asyncio.run(main())


def test_a_very_long_line(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await eventually(lambda: bool(server.watchers))
            server.put("big", metadata={"annotations": {"a": "x" * 3_000_000}})
            await eventually(lambda: "default/big" in informer)
            assert len(informer.get("default/big").metadata.annotations["a"]) == 3_000_000
            await factory.stop()

    asyncio.run(main())
