"""Lists and watches over HTTP: versions, bookmarks, initial events, compaction, shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from koord.apiserver.watch import WatchStreams
from tests.support import patience

MAPS = "/api/v1/namespaces/default/configmaps"


async def make(api: Any, *names: str) -> None:
    for name in names:
        await api.post(MAPS, {"metadata": {"name": name}})


def test_compaction_ends_watches_and_lists_with_410(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await make(api, "a", "b", "c")
        first = await api.get(MAPS + "?limit=1")
        old = first["metadata"]["resourceVersion"]
        await make(api, "d")
        api.server.core.store.compact()
        events = await api.watch(f"{MAPS}?resourceVersion={old}")
        assert [(e["type"], e["object"]["code"], e["object"]["reason"]) for e in events] == [("ERROR", 410, "Expired")]
        status, out = await api.call("GET", f"{MAPS}?limit=1&continue={first['metadata']['continue']}")
        assert (status, out["reason"]) == (410, "Expired")
        rest = await api.get(f"{MAPS}?continue={out['metadata']['continue']}")
        assert [i["metadata"]["name"] for i in rest["items"]] == ["b", "c", "d"]
        status, out = await api.call("GET", f"{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")
        assert status == 410

    with_api(body)


def test_a_version_from_the_future_is_a_timeout_to_retry(with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("GET", MAPS + "?resourceVersion=999999")
        assert (status, out["reason"]) == (504, "Timeout")
        assert out["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        assert api.headers["Retry-After"] == "1"

    with_api(body)


def test_initial_events_end_with_a_marked_bookmark(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await make(api, "a", "b")
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        events = await api.watch(f"{MAPS}?{query}")
        assert [e["type"] for e in events][:3] == ["ADDED", "ADDED", "BOOKMARK"]
        assert events[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        status, out = await api.call("GET", f"{MAPS}?watch=1&sendInitialEvents=true")
        assert (status, out["details"]["causes"][0]["field"]) == (422, "resourceVersionMatch")

    with_api(body)


def test_a_client_that_has_gone_leaves_no_traceback(with_api: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A watch is told something while its connection closes: by the client, or because the server ends."""
    pump = WatchStreams._pump

    async def closing(self: WatchStreams, request: Any, *others: Any) -> None:
        request.transport.close()
        await pump(self, request, *others)

    async def body(api: Any) -> None:
        await make(api, "a")
        with pytest.raises(aiohttp.ClientError):
            await api.watch(MAPS + "?resourceVersion=0")
        assert [m["metadata"]["name"] for m in (await api.get(MAPS))["items"] if m["metadata"]["name"] == "a"] == ["a"]

    monkeypatch.setattr(WatchStreams, "_pump", closing)
    with_api(body)
    assert not [record for record in caplog.records if record.exc_info]


def test_bookmarks_come_before_the_end(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await make(api, "a")
        version = (await api.get(MAPS))["metadata"]["resourceVersion"]
        events = await api.watch(f"{MAPS}?resourceVersion={version}&allowWatchBookmarks=true")
        assert [(e["type"], e["object"]["metadata"]["resourceVersion"]) for e in events] == [("BOOKMARK", version)]
        assert await api.watch(f"{MAPS}?resourceVersion={version}") == []

    with_api(body)


def test_built_in_list_items_carry_no_kind_and_custom_ones_do(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await make(api, "a")
        assert "kind" not in (await api.get(MAPS))["items"][0]
        path = "/apis/example.com/v1/namespaces/default/widgets"
        await api.post(path, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}})
        assert (await api.get(path))["items"][0]["kind"] == "Widget"

    with_api(body, crds=[widget_crd])


def test_a_watcher_that_leaves_is_forgotten(with_api: Any) -> None:
    async def body(api: Any) -> None:
        bucket = api.server.core.store.bucket("/configmaps")
        before = len(bucket.listeners)
        response = await api.session.get(MAPS + "?watch=1")
        await make(api, "a")
        line = await response.content.readline()
        assert orjson.loads(line)["type"] == "ADDED"
        assert len(bucket.listeners) == before + 1
        response.close()
        for _ in patience.tries(100):
            await asyncio.sleep(0.01)
            if len(bucket.listeners) == before:
                return
        raise AssertionError("the watcher is still there")

    with_api(body)


def test_metadata_only_and_tables(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
        partial = await api.ok("GET", MAPS + "/a", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
        assert (partial["kind"], "data" in partial) == ("PartialObjectMetadata", False)
        listed = await api.ok("GET", MAPS, accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
        assert (listed["kind"], listed["items"][0]["kind"]) == ("PartialObjectMetadataList", "PartialObjectMetadata")
        table = await api.ok("GET", MAPS, accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert table["rows"][0]["cells"][:2] == ["a", 1]
        status, out = await api.call("GET", MAPS, accept="application/vnd.kubernetes.protobuf")
        assert (status, out["reason"]) == (406, "NotAcceptable")

    with_api(body)


PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_a_watch_has_one_shape_bookmarks_included(with_api: Any) -> None:
    """Clients that cache metadata only decode every event as such; the bookmark tells them that the state is complete."""

    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
        query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"

        async def seen(accept: str, more: str = "") -> list[Any]:
            async with api.session.get(f"{MAPS}?{query}{more}", headers={"Accept": accept}) as response:
                assert response.status == 200
                return [orjson.loads(line) for line in (await response.read()).splitlines()]

        added, end, last = await seen(PARTIAL)
        kinds = [(e["type"], e["object"]["kind"], e["object"]["apiVersion"]) for e in (added, end, last)]
        assert kinds == [(type_, "PartialObjectMetadata", "meta.k8s.io/v1") for type_ in ("ADDED", "BOOKMARK", "BOOKMARK")]
        assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert end["object"]["metadata"]["resourceVersion"] == str(api.server.core.store.rv)

        added, end, last = await seen(TABLE)
        assert [e["object"]["kind"] for e in (added, end, last)] == ["Table"] * 3
        assert [c["name"] for c in added["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert end["object"]["columnDefinitions"] is None  # told once a watch
        assert end["object"]["metadata"]["resourceVersion"] == str(api.server.core.store.rv)
        (row,) = end["object"]["rows"]
        assert row["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        added, *_ = await seen(TABLE, "&includeObject=Object")
        assert added["object"]["rows"][0]["object"]["data"] == {"k": "v"}

    with_api(body)


def test_a_shape_that_no_event_can_have_is_refused_at_once(with_api: Any) -> None:
    async def body(api: Any) -> None:
        for accept in ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/yaml"):
            status, out = await api.call("GET", MAPS + "?watch=1&timeoutSeconds=1", accept=accept)
            assert (status, out["reason"]) == (406, "NotAcceptable")
        status, out = await api.call("GET", MAPS + "?watch=1&timeoutSeconds=1&includeObject=All", accept=TABLE)
        assert (status, out["reason"]) == (400, "BadRequest")
        async with api.session.get(MAPS + "?watch=1&timeoutSeconds=1", headers={"Accept": "application/yaml,application/json"}) as response:
            assert (response.status, response.content_type) == (200, "application/json")

    with_api(body)


def test_one_object_as_a_table_carries_what_is_asked_for(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
        for include, carried in (("Object", {"k": "v"}), ("Metadata", None)):
            table = await api.ok("GET", f"{MAPS}/a?includeObject={include}", accept=TABLE)
            assert table["rows"][0]["object"].get("data") == carried
        table = await api.ok("GET", f"{MAPS}/a?includeObject=None", accept=TABLE)
        assert "object" not in table["rows"][0]

    with_api(body)


def test_strict_validation_and_dry_run(with_api: Any) -> None:
    async def body(api: Any) -> None:
        pods = "/api/v1/namespaces/default/pods"
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "imagge": "x"}]}}
        status, out = await api.call("POST", pods + "?fieldValidation=Strict", pod)
        assert (status, out["message"].partition(": ")[2]) == (400, 'strict decoding error: unknown field "spec.containers[0].imagge"')
        status, out = await api.call("POST", pods + "?fieldValidation=Strict", b'{"metadata":{"name":"p","name":"q"}}')
        why = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: duplicate field "metadata.name"'
        assert (status, out["message"]) == (400, why)
        await api.ok("POST", pods + "?dryRun=All&fieldValidation=Ignore", pod)
        assert api.warnings == []
        assert (await api.call("GET", pods + "/p"))[0] == 404
        assert (await api.call("POST", pods + "?dryRun=Some", pod))[0] == 422
        await api.post(MAPS, {"metadata": {"name": "kept"}})
        for options in ({"dryRun": ["All"]}, {"dryRun": ["Some"]}):
            await api.call("DELETE", MAPS, options)
            await api.call("DELETE", MAPS + "/kept", options)
            await api.ok("GET", MAPS + "/kept")
        for everywhere in ("/apis/apps/v1/deployments", "/api/v1/configmaps", "/api/v1/namespaces"):
            assert (await api.call("DELETE", everywhere))[0] == 405

    with_api(body)


def test_a_token_is_needed_where_one_is_set(with_api: Any) -> None:
    from koord.apiserver.config import ServerConfig

    async def body(api: Any) -> None:
        assert (await api.call("GET", MAPS))[0] == 401
        assert (await api.call("GET", "/healthz"))[0] == 200
        api.session.headers["Authorization"] = "Bearer s3cret"
        assert (await api.call("GET", MAPS))[0] == 200

    with_api(body, config=ServerConfig(token="s3cret"))


def test_both_event_groups_show_the_same_events(with_api: Any) -> None:
    async def body(api: Any) -> None:
        regarding = {"kind": "Pod", "namespace": "default", "name": "p"}
        event = {
            "metadata": {"name": "e"}, "regarding": regarding, "note": "hello", "reason": "R", "type": "Normal", "action": "A",
            "eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "x.io/c", "reportingInstance": "i",
        }  # fmt: skip
        made = await api.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
        assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "hello")
        core = await api.get("/api/v1/namespaces/default/events/e")
        assert (core["apiVersion"], core["message"], core["involvedObject"]["name"]) == ("v1", "hello", "p")
        found = await api.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp,reason%3DR")
        assert len(found["items"]) == 1

    with_api(body)


def test_a_watch_that_cannot_take_an_event_ends_alone(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is answered as what it is, stored; the others hear of it; the watch that failed ends, so that its client asks again."""

    async def body(api: Any) -> None:
        store = api.server.core.store
        failing = await api.session.get(MAPS + f"?watch=1&resourceVersion={store.rv}")
        (broken,) = store.backlog.holders
        other = await api.session.get(MAPS + f"?watch=1&resourceVersion={store.rv}")
        while len(store.backlog.holders) < 2 or any(watcher._told is not None for watcher in store.backlog.holders):
            await asyncio.sleep(0)
        monkeypatch.setattr(type(broken), "_consider", broken_for(broken, type(broken)._consider))
        await make(api, "a")
        assert orjson.loads(await other.content.readline())["object"]["metadata"]["name"] == "a"
        assert await failing.content.read() == b""  # an end in order
        assert broken.notify not in broken.bucket.listeners
        other.close()

    with_api(body)


def broken_for(broken: Any, consider: Any) -> Any:
    """A method that fails for one watcher."""

    def method(watcher: Any, event: Any) -> None:
        if watcher is broken:
            raise RuntimeError("cannot take it")
        consider(watcher, event)

    return method
