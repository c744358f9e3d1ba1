"""What holds for any sequence of writes: a watch replayed over a list gives the list of later; a patch gives what applying it gives."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.apiserver import watch
from koord.apiserver.config import ServerConfig
from koord.apiserver.core import Core
from koord.apiserver.errors import StatusError
from koord.apiserver.rest import delete as deletion
from koord.apiserver.rest import patch as patching
from koord.apiserver.rest import read, write
from koord.apiserver.rest.context import DeleteOptions, Options
from koord.apiserver.ssa import fields as fieldset
from koord.apiserver.store import Store
from koord.apiserver.watch import Watcher
from koord.kube.patch import apply_json_patch, apply_merge_patch, diff_json_patch, diff_merge_patch

Obj = dict[str, Any]
NAMES = st.sampled_from(["a", "b", "c", "d"])
DATA = st.dictionaries(st.sampled_from(["k", "l", "m"]), st.sampled_from(["1", "2", "3"]), max_size=3)
LABEL = st.sampled_from(["x", "y", ""])
WRITES = st.lists(st.tuples(st.sampled_from(["put", "delete", "patch", "compact"]), NAMES, DATA, LABEL), max_size=25)


def fresh() -> tuple[Core, Any]:
    core = Core(ServerConfig())
    core.store.bucket("/namespaces").put("", "default", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}})
    resource = core.resources.by_path("", "v1", "configmaps")
    assert resource is not None
    return core, resource


async def do(core: Core, resource: Any, verb: str, name: str, data: Obj, label: str) -> None:
    meta: Obj = {"name": name, "labels": {"l": label} if label else None}
    try:
        if verb == "put":
            obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            if core.store.bucket("/configmaps").get("default", name) is None:
                await write.create(core, resource, "default", obj, Options())
            else:
                await write.replace(core, resource, "default", name, obj, Options())
        elif verb == "patch":
            patch = {"metadata": {"labels": meta["labels"]}, "data": data}
            await patching.patch_object(core, resource, "default", name, patching.MERGE_PATCH, patch, Options())
        elif verb == "delete":
            await deletion.delete(core, resource, "default", name, Options(), DeleteOptions())
    except StatusError as err:
        if err.code != 404:
            raise


def replay(state: dict[str, Obj], lines: bytes) -> dict[str, Obj]:
    for line in lines.splitlines():
        event = orjson.loads(line)
        name = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            assert name in state
            del state[name]
        else:
            assert (name in state) == (event["type"] == "MODIFIED")
            state[name] = event["object"]
    return state


def listed(core: Core, resource: Any, labels: str) -> dict[str, Obj]:
    page = read.list_page(core, resource, read.parse_query(resource, "default", {"labelSelector": labels}))
    return {e.name: e.obj for e in page.entries}


@settings(max_examples=60, deadline=None)
@given(before=WRITES, after=WRITES, labels=st.sampled_from(["", "l=x", "l!=x", "l in (x,y)", "!l"]))
def test_watch_replayed_over_a_list_is_the_later_list(before: list[Any], after: list[Any], labels: str) -> None:
    async def main() -> None:
        core, resource = fresh()
        for step in before:
            await do(core, resource, *step)
        state, rv = listed(core, resource, labels), core.store.rv
        early = Watcher(core.store.bucket("/configmaps"), resource, namespace="default", match=read.matcher(resource, labels, ""))
        assert early.open_at(rv)
        for step in after:
            await do(core, resource, *step)
        late = Watcher(core.store.bucket("/configmaps"), resource, namespace="default", match=read.matcher(resource, labels, ""))
        assert late.open_at(rv)
        now = listed(core, resource, labels)
        assert replay(dict(state), early.take()) == now
        assert replay(dict(state), late.take()) == now

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(before=WRITES, after=WRITES, labels=st.sampled_from(["", "l=x", "!l"]), state=st.booleans())
def test_a_watch_read_in_small_pieces_between_writes_is_the_later_list(
    before: list[Any], after: list[Any], labels: str, state: bool
) -> None:
    async def main() -> None:
        core, resource = fresh()
        shown: dict[str, Obj] = {}
        rv = core.store.rv
        for step in before:
            await do(core, resource, *step)
        watcher = Watcher(core.store.bucket("/configmaps"), resource, namespace="default", match=read.matcher(resource, labels, ""))
        if state:
            watcher.open_with_state()
        else:
            assert watcher.open_at(rv)
        for step in after:
            shown = replay(shown, watcher.take())
            await do(core, resource, *step)
        while data := watcher.take():
            shown = replay(shown, data)
        assert shown == listed(core, resource, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "PIECE", 1)
        asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(before=WRITES, after=WRITES)
def test_a_past_version_is_read_back_exactly(before: list[Any], after: list[Any]) -> None:
    async def main() -> None:
        core, resource = fresh()
        for step in before:
            await do(core, resource, *step)
        then = [e.obj for e in core.store.bucket("/configmaps").select(None)]
        rv = core.store.rv
        for step in after:
            await do(core, resource, *step)
        past = core.store.bucket("/configmaps").at(rv)
        assert past is not None
        assert [e.obj for e in past] == then

    asyncio.run(main())


JSON_LEAF = st.one_of(st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "b"]))
JSON = st.recursive(
    JSON_LEAF, lambda s: st.one_of(st.lists(s, max_size=3), st.dictionaries(st.sampled_from("abc"), s, max_size=3)), max_leaves=8
)


@settings(max_examples=80, deadline=None)
@given(old=st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), new=st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_a_patch_on_the_server_is_the_patch_applied(old: Obj, new: Obj) -> None:
    async def main() -> None:
        core, resource = fresh()
        resource = free_resource(core)
        meta = {"name": "w"}
        made = await write.create(
            core, resource, "default", {"apiVersion": "x.io/v1", "kind": "Free", "metadata": meta, "spec": old}, Options()
        )
        for kind, patch, want in (
            (patching.MERGE_PATCH, {"spec": diff_merge_patch(old, new)}, apply_merge_patch(old, diff_merge_patch(old, new))),
            (patching.JSON_PATCH, diff_json_patch({"spec": old}, {"spec": new}), apply_json_patch(old, diff_json_patch(old, new))),
        ):
            options = Options(dry_run=True)
            entry, _ = await patching.patch_object(core, resource, "default", "w", kind, patch, options)
            assert entry.obj["spec"] == want
        assert core.store.bucket(resource.bucket).get("default", "w") is made

    asyncio.run(main())


def free_resource(core: Core) -> Any:
    from koord.apiserver.resources import Resource
    from koord.apiserver.schema.structural import Structural

    version = {"name": "v1", "storage": True, "served": True}
    crd = {"spec": {"versions": [version]}}
    schema = Structural({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    resource = Resource("x.io", "v1", "Free", "frees", True, structural=schema, crd=crd, crd_version=version)
    core.resources.add(resource)
    return resource


TREE = st.recursive(st.just({}), lambda s: st.dictionaries(st.sampled_from(["f:a", "f:b", "f:c"]), s, min_size=1, max_size=3), max_leaves=8)


def members(a: Obj, prefix: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    out: set[tuple[str, ...]] = set()
    for key, inner in a.items():
        if key == ".":
            out.add(prefix)
        elif not inner:
            out.add((*prefix, key))
        else:
            out |= members(inner, (*prefix, key))
    return out


@given(a=TREE, b=TREE)
def test_field_sets_are_sets_and_come_back_from_the_wire(a: Obj, b: Obj) -> None:
    assert fieldset.unpack(a) == members(a)
    both = fieldset.unpack(a) | fieldset.unpack(b)
    assert members(fieldset.pack(both)) == members(a) | members(b)
    assert fieldset.unpack(fieldset.pack(both)) == both


def test_compaction_ends_old_watches() -> None:
    store = Store()
    bucket = store.bucket("x")
    for i in range(5):
        bucket.put("", f"n{random.randint(0, 2)}-{i}", {"metadata": {"name": f"n{i}"}})
    store.compact(3)
    assert bucket.since(2) is None
    assert bucket.at(2) is None
    kept = bucket.since(3)
    assert kept is not None
    assert [e.rv for e in kept] == [4, 5, 6]


@pytest.mark.parametrize("text", ["garbage", "", "eyJ2IjoxfQ"])
def test_a_bad_continue_token_is_a_bad_request(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        read.decode_continue(text)
    assert caught.value.code == 400
