"""A watch that lives and carries nothing, the age of a picture, and where lists come from."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aiohttp import web

from koord.api.kinds import CONFIGMAPS, NODEMETRICS, PODS
from koord.api.objects import Pod
from koord.apiserver.testing import running_server
from koord.kube import errors, reflector
from koord.kube import informers as module
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.informers import InformerFactory
from tests.support import patience


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_FIRST", 0.01)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT", 0.05)
    monkeypatch.setattr(reflector, "QUIET", (0.3, 0.5))
    monkeypatch.setattr(reflector, "RELIST_SPREAD", 0.1)


def config_map(name: str, value: str = "") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}


def lists(requests: list[web.Request]) -> list[dict[str, str]]:
    return [dict(request.query) for request in requests if "watch" not in request.query]


def test_a_stalled_watch_is_caught_up_without_a_list(pipe: Any, eventually: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as direct, pipe(server.url) as between:
            config = direct.config
            async with Client(ClientConfig(between.url, credentials=config.credentials)) as client:
                factory = InformerFactory(client)
                informer = factory.informer(CONFIGMAPS)
                told: list[str] = []
                informer.add_handler(
                    lambda obj: told.append(f"+{obj['metadata']['name']}"),
                    lambda old, new: told.append(f"~{new['metadata']['name']}"),
                    lambda obj: told.append(f"-{obj['metadata']['name']}"),
                )
                await direct.create(CONFIGMAPS, config_map("old"), "default")
                await direct.create(CONFIGMAPS, config_map("gone"), "default")
                factory.start()
                await factory.wait_synced()
                between.stall_open()
                told.clear()
                await direct.create(CONFIGMAPS, config_map("news"), "default")
                await direct.replace(CONFIGMAPS, config_map("old", "2"), "default")
                await direct.delete(CONFIGMAPS, "gone", "default")
                await eventually(lambda: told == ["+news", "~old", "-gone"], 15)
                (row,) = factory.status()
                assert (row["lists"], row["stalls"], row["watches"] >= 1) == (1, 1, True)
                await direct.create(CONFIGMAPS, config_map("later"), "default")  # and the new watch works
                await eventually(lambda: "default/later" in informer, 15)
                await factory.stop()

    asyncio.run(main())
    assert "the watch has stalled" in caplog.text


async def refused(*given: Any, **named: Any) -> Any:
    raise errors.Unreachable("nobody answers")
    yield  # what a watch is


def test_who_begins_to_lead_learns_at_once_what_a_stalled_watch_has_not_told(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "QUIET", (600.0, 601.0))

    async def main() -> None:
        async with running_server() as server, server.client() as direct, pipe(server.url) as between:
            config = direct.config
            async with Client(ClientConfig(between.url, credentials=config.credentials)) as client:
                factory = InformerFactory(client)
                informer = factory.informer(CONFIGMAPS)
                absent = factory.informer(NODEMETRICS, optional=True)
                assert await factory.verify(), "nothing is watched yet"
                factory.start()
                await factory.wait_synced()
                between.stall_open()
                await direct.create(CONFIGMAPS, config_map("news"), "default")
                assert await factory.verify(60.0)
                assert "default/news" in informer
                assert len(absent) == 0
                between.stall_open()
                monkeypatch.setattr(module.Client, "watch_batches", refused)
                assert not await factory.verify(0.2)
                await factory.stop()

    asyncio.run(main())


def test_who_begins_to_lead_does_not_take_old_news_of_a_slow_watch_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "QUIET", (600.0, 601.0))
    quickly = module.Client.watch_batches

    async def slowly(self: Client, *given: Any, timeout_seconds: int | None = None, **named: Any) -> Any:
        more = {} if timeout_seconds is None else {"timeout_seconds": timeout_seconds}
        async for lines in quickly(self, *given, **named, **more):
            for line in lines:
                if timeout_seconds is None:
                    await asyncio.sleep(0.3)
                yield [line]

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            factory = InformerFactory(client)
            informer = factory.informer(CONFIGMAPS)
            monkeypatch.setattr(module.Client, "watch_batches", slowly)
            factory.start()
            await factory.wait_synced()
            for number in range(20):
                await client.create(CONFIGMAPS, config_map(f"news-{number}"), "default")
            assert await factory.verify(60.0)
            assert all(f"default/news-{number}" in informer for number in range(20))
            await factory.stop()

    asyncio.run(main())


def test_who_begins_to_lead_does_not_sit_out_the_pause_of_a_watch_that_failed(eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_FIRST", 600.0)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT", 600.0)
    monkeypatch.setattr(reflector, "DOUBT_RETRY", 0.2)

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            factory = InformerFactory(client)
            informer = factory.informer(CONFIGMAPS)
            with monkeypatch.context() as away:
                away.setattr(module.Client, "watch_batches", refused)
                factory.start()
                (one,) = factory._reflectors.values()
                await eventually(lambda: one._rest is not None, 15)
                assert not await factory.verify(0.5)
                assert one.watches > 2, "it is tried again while somebody waits"
            await client.create(CONFIGMAPS, config_map("news"), "default")
            assert await factory.verify(60.0)
            assert "default/news" in informer
            await factory.stop()

    asyncio.run(main())


def test_a_quiet_watch_that_lives_is_left_alone_and_its_picture_stays_young(eventually: Any) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            factory = InformerFactory(client)
            factory.informer(CONFIGMAPS)
            factory.start()
            await factory.wait_synced()
            (one,) = factory._reflectors.values()
            before = one._true_at
            await eventually(lambda: one._true_at > before, 15)  # the second connection says that nothing happened
            (row,) = factory.status()
            assert (row["lists"], row["stalls"], row["watches"]) == (1, 0, 1)
            await factory.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "lives", "lists", "watches"),
    [(code, lives, 1, 1 if lives else 2) for code in (429, 503, 401, 0) for lives in (True, False)] + [(410, True, 2, 2)],
)
def test_a_watch_that_nobody_may_ask_about_just_now_is_left_alone(
    fault_server: Any, eventually: Any, code: int, lives: bool, lists: int, watches: int
) -> None:
    """An API server that throttles, or one of several that fails, does not know us or does not answer (0), admits no new watch; the one
    that there is goes on. Whether it is dead is seen once one may ask."""

    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            asked = []

            def script(request: web.Request) -> web.Response | None:
                if "watch" not in request.query or (code == 410 and asked):
                    return None
                asked.append(request)
                if not code:
                    assert request.transport is not None
                    request.transport.abort()
                return web.Response(status=code or 200, text="not now")

            server.script = script
            await eventually(lambda: len(asked) >= (1 if code == 410 else 2), 15)
            if not lives:
                server.watchers.clear()
            server.put("news")
            await eventually(lambda: "default/news" in informer or not lives, 15)
            server.script = None
            assert await factory.verify(60.0)
            assert "default/news" in informer
            await eventually(lambda: [(row["watches"], row["error"]) for row in factory.status()] == [(watches, "")], 15)
            assert factory.status()[0]["lists"] == lists
            await factory.stop()

    asyncio.run(main())


def test_who_begins_to_lead_does_not_hammer_a_server_that_throttles(
    fault_server: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "QUIET", (600.0, 601.0))
    monkeypatch.setattr(reflector, "DOUBT_RETRY", 600.0)

    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            before = len(server.requests)
            server.script = lambda request: web.Response(status=429, text="not now")
            assert not await factory.verify(1.0)
            assert len(server.requests) <= before + 1
            server.put("news")
            await eventually(lambda: "default/news" in informer, 15)
            await factory.stop()

    asyncio.run(main())


def test_a_picture_grows_old_when_nobody_answers(pipe: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "CATCH_UP_LIMIT", 0.3)
    monkeypatch.setattr(module, "MAX_CACHE_AGE", 2.5)

    async def main() -> None:
        async with running_server() as server, server.client() as direct, pipe(server.url) as between:
            async with Client(ClientConfig(between.url, credentials=direct.config.credentials)) as client:
                factory = InformerFactory(client)
                factory.informer(CONFIGMAPS)
                factory.start()
                await factory.wait_synced()
                assert factory.fresh() == (True, "")
                between.stalled = True
                await eventually(lambda: not factory.fresh()[0], 15)
                assert factory.fresh()[1].startswith("nothing was heard of configmaps: ")
                assert factory.age(CONFIGMAPS) == pytest.approx(factory.ages()["configmaps"], abs=0.5)
                assert factory.age(PODS) == 0.0
                between.stalled = False
                await eventually(lambda: factory.fresh()[0], 15)
                await factory.stop()

    asyncio.run(main())


def test_a_watch_that_is_late_and_not_dead_never_tells_what_is_older(fault_server: Any, eventually: Any) -> None:
    """The silent watch gets its events at last, after another connection has told newer ones: they do not come back."""

    async def main() -> None:
        async with fault_server() as (server, client):
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            versions: list[str] = []
            informer.add_handler(
                lambda obj: versions.append(obj.metadata.resource_version),
                lambda old, new: versions.append(new.metadata.resource_version),
            )
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: len(server.watchers) == 1)
            (silent,) = server.watchers
            server.watchers.clear()  # the watch is served by a node that hears of nothing for a while
            server.put("a")
            server.put("a")
            await eventually(lambda: versions == ["102"] or versions == ["101", "102"], 15)
            for _, line in server.history:
                silent.put_nowait(line)
            server.put("b")
            await eventually(lambda: "default/b" in informer, 15)
            assert versions == sorted(set(versions))
            assert informer.get("default/a").metadata.resource_version == "102"
            await factory.stop()

    asyncio.run(main())


def test_first_list_and_relist_come_from_the_watch_cache(fault_server: Any, eventually: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            await eventually(lambda: bool(server.watchers))
            server.put("b")
            await eventually(lambda: "default/b" in informer)
            server.objects.clear()
            server.compact()
            gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
            server.send(gone)
            await eventually(lambda: len(informer) == 0)
            first, relist = lists(server.requests)
            assert first["resourceVersion"] == "0"
            assert (relist["resourceVersion"], relist["resourceVersionMatch"]) == ("102", "NotOlderThan")
            assert "limit" not in relist
            await factory.stop()

    asyncio.run(main())


def test_relists_of_many_are_spread(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that comes back tells all at once that they are too old; they do not list at once."""
    monkeypatch.undo()

    async def main() -> list[float]:
        pauses: list[float] = []
        async with fault_server() as (_, client):
            for _ in range(200):
                each = reflector.Reflector(client, PODS, None, "", "", optional=False)
                pauses.append(each._pause(errors.Gone(410, "Expired", "too old")))
        return sorted(pauses)

    pauses = asyncio.run(main())
    assert pauses[0] < 0.4
    assert 1.5 < pauses[-1] <= reflector.RELIST_SPREAD
    assert max(b - a for a, b in pairwise(pauses)) < 0.2, "spread, not in heaps"


def test_who_was_cut_off_for_long_lists_soon_after_the_server_answers(fault_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses that grew while nobody answered are no reason to wait once the server says that the version is too old."""
    monkeypatch.undo()

    async def main() -> list[float]:
        async with fault_server() as (_, client):
            one = reflector.Reflector(client, PODS, None, "", "", optional=False)
            cut_off = [one._pause(errors.Unreachable("reset")) for _ in range(12)]
            return [cut_off[-1], *[one._pause(errors.Gone(410, "Expired", "too old")) for _ in range(12)]]

    cut_off, first, *others = asyncio.run(main())
    assert cut_off >= reflector.BACKOFF_LIMIT / 2
    assert first <= reflector.RELIST_SPREAD
    assert others[-1] >= reflector.BACKOFF_LIMIT / 2, "one that says so for ever is not hammered"


def test_the_database_is_asked_when_the_cache_cannot_answer(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")

            def script(request: web.Request) -> web.Response | None:
                if request.query.get("resourceVersion") != "0":
                    return None
                causes = {"causes": [{"reason": "ResourceVersionTooLarge"}]}
                return web.json_response({"kind": "Status", "code": 410, "reason": "Timeout", "details": causes}, status=410)

            server.script = script
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await factory.wait_synced()
            assert len(informer) == 1
            assert "resourceVersion" not in lists(server.requests)[-1]
            await factory.stop()

    asyncio.run(main())


def test_a_server_that_streams_lists_is_never_asked_for_one() -> None:
    async def main() -> None:
        seen: list[tuple[str, str, int]] = []
        async with running_server() as server, server.client(observer=lambda *told: seen.append(told)) as client:
            for number in range(5):
                await client.create(CONFIGMAPS, config_map(f"c{number}"), "default")
            before = len(seen)
            factory = InformerFactory(client)
            informer = factory.informer(CONFIGMAPS)
            factory.informer(PODS)
            factory.start()
            await factory.wait_synced()
            assert len(informer) == 5
            assert len(seen) == before + 1  # the version, once for all, and no list (watches are not observed)
            late = factory.informer(CONFIGMAPS, transform=lambda obj: obj["metadata"]["name"])
            await factory.wait_synced()
            assert sorted(late.list()) == [f"c{number}" for number in range(5)]
            await client.delete(CONFIGMAPS, "c0", "default")
            await asyncio.wait_for(_gone(informer, "default/c0"), patience.seconds(5))
            await factory.stop()

    async def _gone(informer: Any, key: str) -> None:
        while key in informer:
            await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["refused", "half", "plain"])
def test_a_list_that_cannot_be_streamed_is_read_in_pages(fault_server: Any, eventually: Any, how: str) -> None:
    """A server that says it could and does not: it refuses, ends in the middle, or knows no mark of the end."""

    async def main() -> None:
        async with fault_server() as (server, client):
            server.put("a")
            client._server.streams_lists = True

            async def script(request: web.Request) -> web.StreamResponse | None:
                if "sendInitialEvents" not in request.query:
                    return None
                if how == "refused":
                    body = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "sendInitialEvents is forbidden"}
                    return web.json_response(body, status=422)
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(server.history[0][1])
                if how == "plain":
                    await asyncio.sleep(5)
                return response

            server.script = script
            factory = InformerFactory(client)
            informer = factory.informer(PODS, Pod)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(10))
            assert len(informer) == 1
            server.put("b")
            await eventually(lambda: len(informer) == 2)
            assert sum("sendInitialEvents" in request.query for request in server.requests) == 1
            await factory.stop()

    asyncio.run(main())


@pytest.mark.parametrize("streams", [True, False])
def test_others_have_their_turn_between_any_two_objects(fault_server: Any, monkeypatch: pytest.MonkeyPatch, streams: bool) -> None:
    """What a handler does with one object may take long; so may the news that thousands are gone."""
    monkeypatch.setattr(reflector, "TURN", -1.0)

    async def main() -> tuple[int, int]:
        async with fault_server() as (_, client):
            one = reflector.Reflector(client, CONFIGMAPS, None, "", "", optional=False)
            store = module.Informer("configmaps", dict)
            one.stores.append(store)
            told, most, ends = 0, 0, False

            def tell(*_: Any) -> None:
                nonlocal told, most
                told += 1
                most = max(most, told)

            async def others() -> None:
                nonlocal told
                while not ends:
                    told = 0
                    await asyncio.sleep(0)

            store.add_handler(tell, tell, tell)
            other = asyncio.create_task(others())
            await asyncio.sleep(0)
            metas = [{"name": f"c{n}", "namespace": "d", "resourceVersion": f"{n}"} for n in range(40)]
            objects = [{**config_map("c"), "metadata": meta} for meta in metas]
            lines = [msgspec.json.encode({"type": "ADDED", "object": obj}) for obj in objects]
            if streams:
                one._initial = set()
                meta = {"resourceVersion": "50", "annotations": {"k8s.io/initial-events-end": "true"}}
                lines.append(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": meta}}))
            await one._take(lines, "")
            there = len(store)
            await one._listed_all(set(), "60")
            ends = True
            await other
            assert not len(store)
            return there, most

    assert asyncio.run(main()) == (40, 1)
