"""Namespaces, owner references, budgets and events: what happens after a write."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from koord.apiserver import turns
from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers import disruption, queue
from koord.apiserver.controllers.disruption import DisruptionController
from koord.apiserver.controllers.gc import OWNERS_GONE, GarbageCollector
from koord.apiserver.controllers.queue import Controller
from koord.apiserver.core import Core
from tests.support import patience

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


def pod(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}


def owner(obj: dict[str, Any], *, block: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }


async def gone(api: Any, path: str) -> bool:
    for _ in patience.tries(50):
        if (await api.call("GET", path))[0] == 404:
            return True
        await asyncio.sleep(0.01)
    return False


class FullDisk:
    """A disk that refuses so many removals of objects whose key begins so."""

    failure = ""

    def __init__(self, refuses: int, prefix: str = "") -> None:
        self.refuses, self.prefix = refuses, prefix
        self.refused = 0

    def put(self, bucket: str, key: str, version: int, body: bytes) -> None:
        pass

    def remove(self, bucket: str, key: str, version: int) -> None:
        if self.refused < self.refuses and key.startswith(self.prefix):
            self.refused += 1
            raise sqlite3.OperationalError("database or disk is full")


async def turns_between(api: Any, bucket: str, act: Any, done: Any) -> list[int]:
    """What others had of the event loop, in turns, at each deletion from a bucket: `act` begins them, `done` says when all are over."""
    had, at = 0, []

    def note(event: Any) -> None:
        if event.type == "DELETED":
            at.append(had)

    api.server.core.store.bucket(bucket).listeners.append(note)
    acting = asyncio.ensure_future(act())
    async with asyncio.timeout(patience.seconds(20)):
        while not (acting.done() and done()):
            had += 1
            await asyncio.sleep(0)
    await acting
    return at


CASES = ("collection", "namespace", "background", "foreground", "definition", "events")


@pytest.mark.parametrize("case", CASES)
def test_others_have_their_turn_while_much_is_deleted(with_api: Any, monkeypatch: pytest.MonkeyPatch, widget_crd: Any, case: str) -> None:
    """Each object is its own slice here."""
    count = 40
    core_path = "/api/v1/namespaces"

    async def body(api: Any) -> None:
        core = api.server.core
        bucket, place, obj = "/configmaps", f"{core_path}/other/configmaps", {"metadata": {}}
        await api.post(core_path, {"metadata": {"name": "other"}})
        if case.endswith("ground"):
            place, refs = MAPS, owner(await api.post(MAPS, {"metadata": {"name": "owner"}}), block=True)
            obj = {"metadata": {"ownerReferences": [refs], "labels": {"l": "1"}}}
        elif case == "definition":
            bucket, place = "example.com/widgets", "/apis/example.com/v1/namespaces/other/widgets"
            obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {}, "spec": {"size": 1}}
        elif case == "events":
            bucket, place, obj = "/events", f"{core_path}/other/events", {"metadata": {}, "involvedObject": {"namespace": "other"}}
        for n in range(count):
            await api.post(place, {**obj, "metadata": {**obj["metadata"], "name": f"o{n}"}})
        monkeypatch.setattr(turns, "SLICE", -1.0)

        async def act() -> None:
            if case == "collection":
                assert len((await api.ok("DELETE", place))["items"]) == count
            elif case == "namespace":
                await api.ok("DELETE", f"{core_path}/other")
            elif case == "definition":
                await api.ok("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com")
            elif case != "events":
                await api.ok("DELETE", f"{MAPS}/owner?propagationPolicy={case.capitalize()}")

        def done() -> bool:
            left = [entry for entry in core.store.bucket(bucket).entries.values() if entry.name.startswith("o")]
            going = case == "namespace" and core.store.bucket("/namespaces").get("", "other") is not None
            return not left and not going

        at = await turns_between(api, bucket, act, done)
        assert len(at) == count + (1 if case.endswith("ground") else 0)
        assert len(set(at)) > count // 2

    with_api(body, crds=[widget_crd], config=ServerConfig(event_ttl=1.0))


def test_a_dependent_that_comes_while_the_others_go_is_seen(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Any) -> None:
        ref = owner(await api.post(MAPS, {"metadata": {"name": "owner"}}), block=True)
        for n in range(4):
            await api.post(MAPS, {"metadata": {"name": f"o{n}", "ownerReferences": [ref]}})
        monkeypatch.setattr(turns, "SLICE", -1.0)
        bucket = api.server.core.store.bucket("/configmaps")
        late = bucket.get("default", "o1").copy()
        late["metadata"] |= {"name": "late", "uid": "late", "finalizers": ["example.com/held"]}

        def add(event: Any) -> None:
            if event.type == "DELETED" and event.entry.name == "o0":
                bucket.put("default", "late", late)

        bucket.listeners.append(add)
        await api.ok("DELETE", f"{MAPS}/owner?propagationPolicy=Foreground")
        for n in range(4):
            assert await gone(api, f"{MAPS}/o{n}")
        assert (await api.get(f"{MAPS}/owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
        assert (await api.get(f"{MAPS}/late"))["metadata"]["deletionTimestamp"]
        await api.merge(f"{MAPS}/late", {"metadata": {"finalizers": None}})
        assert await gone(api, f"{MAPS}/owner")

    with_api(body)


def test_what_a_full_disk_refused_a_controller_is_done_later(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "a"}})
        await api.post("/api/v1/namespaces/a/configmaps", {"metadata": {"name": "m"}})
        disk = api.server.core.store.disk = FullDisk(3)
        await api.ok("DELETE", "/api/v1/namespaces/a")
        assert await gone(api, "/api/v1/namespaces/a")
        assert disk.refused == 3

    with_api(body)


def test_a_write_that_fails_leaves_the_controller_the_rest_of_its_work(with_api: Any) -> None:
    """What waits behind the failed key does not wait for its next try."""

    async def body(api: Any) -> None:
        for name in ("a", "b"):
            await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
            await api.post(f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "m"}})
        disk = api.server.core.store.disk = FullDisk(1_000_000, "a/")
        await api.ok("DELETE", "/api/v1/namespaces/a")
        await api.ok("DELETE", "/api/v1/namespaces/b")
        assert await gone(api, "/api/v1/namespaces/b")
        assert (await api.call("GET", "/api/v1/namespaces/a"))[0] == 200
        disk.refuses = 0
        assert await gone(api, "/api/v1/namespaces/a")

    with_api(body)


def test_namespace_deletion_empties_it_and_refuses_creates(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "a"}})
        await api.post("/api/v1/namespaces/a/configmaps", {"metadata": {"name": "held", "finalizers": ["x.io/hold"]}})
        await api.post("/api/v1/namespaces/a/configmaps", {"metadata": {"name": "free"}})
        going = await api.ok("DELETE", "/api/v1/namespaces/a")
        assert going["status"]["phase"] == "Terminating"
        assert await gone(api, "/api/v1/namespaces/a/configmaps/free")
        status, out = await api.call("POST", "/api/v1/namespaces/a/configmaps", {"metadata": {"name": "late"}})
        assert (status, out["reason"]) == (403, "Forbidden")
        assert out["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        assert (await api.call("GET", "/api/v1/namespaces/a"))[0] == 200
        await api.merge("/api/v1/namespaces/a/configmaps/held", {"metadata": {"finalizers": None}})
        assert await gone(api, "/api/v1/namespaces/a")

    with_api(body)


def test_a_binding_of_another_pod_of_the_same_name_is_refused_in_the_words_of_the_storage(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(PODS, pod("p"))
        for key, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            binding = {"metadata": {"name": "p", key: "1"}, "target": {"kind": "Node", "name": "n"}}
            status, out = await api.call("POST", PODS + "/p/binding", binding)
            assert (status, out["reason"], out["details"]) == (409, "Conflict", {"name": "p", "kind": "pods"})
            assert out["message"] == (
                'Operation cannot be fulfilled on pods "p": StorageError: invalid object, Code: 4, Key: /registry/pods/default/p, '
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: 1, "
                f"{what} in object meta: {made['metadata'][key]}"
            )

    with_api(body)


def test_a_pod_that_is_bound_is_promised_no_node_any_more(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PODS, pod("p"))
        await api.merge(PODS + "/p/status", {"status": {"nominatedNodeName": "n1"}})
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n2"}}
        await api.post(PODS + "/p/binding?dryRun=All", binding)
        assert (await api.get(PODS + "/p"))["status"]["nominatedNodeName"] == "n1"
        await api.post(PODS + "/p/binding", binding)
        bound = await api.get(PODS + "/p")
        assert bound["spec"]["nodeName"] == "n2"
        assert "nominatedNodeName" not in bound["status"]

    with_api(body)


@pytest.mark.parametrize("what", ["binding", "eviction"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "Pod"}, 'Pod in version "v1" cannot be handled as a '),
        ({"apiVersion": "apps/v1"}, 'in version "v1" cannot be handled as a '),
        ({"metadata": {"name": "p", "namespace": "other"}}, "does not match the namespace"),
    ],
)
def test_bindings_and_evictions_are_what_the_path_says(with_api: Any, what: str, change: dict[str, Any], said: str) -> None:
    async def body(api: Any) -> None:
        made = await api.post(PODS, pod("p"))
        sent = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}, **change}
        status, out = await api.call("POST", f"{PODS}/p/{what}", sent)
        assert status == 400
        assert said in out["message"]
        assert await api.get(PODS + "/p") == made

    with_api(body)


def test_an_eviction_of_the_older_version_counts(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PODS, pod("p"))
        await api.post(PODS + "/p/eviction", {"kind": "Eviction", "apiVersion": "policy/v1beta1", "metadata": {"name": "p"}})
        assert (await api.call("GET", PODS + "/p"))[0] == 404

    with_api(body)


def test_the_pods_of_a_namespace_go_before_what_they_use(with_api: Any) -> None:
    async def body(api: Any) -> None:
        space = "/api/v1/namespaces/doomed"
        await api.post("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
        await api.post(f"{space}/configmaps", {"metadata": {"name": "used"}})
        await api.post(f"{space}/pods", {**pod("p"), "spec": {**pod("p")["spec"], "nodeName": "n"}})
        await api.ok("DELETE", space)
        for _ in patience.tries(50):
            if (await api.get(f"{space}/pods/p"))["metadata"].get("deletionTimestamp"):
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert "deletionTimestamp" in (await api.get(f"{space}/pods/p"))["metadata"]
        assert (await api.call("GET", f"{space}/configmaps/used"))[0] == 200
        await api.ok("DELETE", f"{space}/pods/p?gracePeriodSeconds=0")
        assert await gone(api, space)

    with_api(body)


def test_a_namespace_that_goes_takes_no_bindings_evictions_and_tokens(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "a"}})
        await api.post("/api/v1/namespaces/a/pods", pod("p", finalizers=["x.io/hold"]))
        await api.post("/api/v1/namespaces/a/serviceaccounts", {"metadata": {"name": "s", "finalizers": ["x.io/hold"]}})
        await api.ok("DELETE", "/api/v1/namespaces/a")
        for path, wanted in (
            ("pods/p/eviction", {"metadata": {"name": "p"}}),
            ("pods/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}}),
            ("pods/none/eviction", {"metadata": {"name": "none"}}),
            ("serviceaccounts/s/token", {"spec": {}}),
        ):
            plural, name, _ = path.split("/")
            status, out = await api.call("POST", f"/api/v1/namespaces/a/{path}", wanted)
            why = f'{plural} "{name}" is forbidden: unable to create new content in namespace a because it is being terminated'
            assert (status, out["message"]) == (403, why)
            assert out["details"]["causes"][0]["reason"] == "NamespaceTerminating"
            status, out = await api.call("POST", f"/api/v1/namespaces/none/{path}", wanted)
            assert (status, out["message"]) == (404, 'namespaces "none" not found')

    with_api(body)


def test_a_pod_that_goes_is_only_hurried_by_who_says_when(with_api: Any) -> None:
    async def body(api: Any) -> None:
        async def told(name: str, **options: int) -> int | None:
            return (await api.ok("DELETE", f"{PODS}/{name}", options or None))["metadata"]["deletionGracePeriodSeconds"]

        for name in ("slow", "done"):
            made = pod(name)
            made["spec"]["nodeName"] = "n"
            await api.post(PODS, made)
        assert await told("slow", gracePeriodSeconds=60) == 60
        assert await told("slow") == 60  # although its own period is 30
        assert await told("slow", gracePeriodSeconds=90) == 60
        assert await told("slow", gracePeriodSeconds=-1) == 1
        assert await told("done") == 30
        await api.merge(PODS + "/done/status", {"status": {"phase": "Succeeded"}})
        assert await told("done") == 30
        assert await told("done", gracePeriodSeconds=5) == 5
        assert (await api.call("GET", PODS + "/done"))[0] == 200
        await told("done", gracePeriodSeconds=0)
        assert (await api.call("GET", PODS + "/done"))[0] == 404

    with_api(body)


def test_some_namespaces_cannot_be_deleted(with_api: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("DELETE", "/api/v1/namespaces/default")
        assert (status, out["message"]) == (403, 'namespaces "default" is forbidden: this namespace may not be deleted')

    with_api(body)


def test_background_deletion_takes_dependents_along(with_api: Any) -> None:
    async def body(api: Any) -> None:
        first, second = await api.post(MAPS, {"metadata": {"name": "o1"}}), await api.post(MAPS, {"metadata": {"name": "o2"}})
        await api.post(PODS, pod("one", ownerReferences=[owner(first)]))
        await api.post(PODS, pod("both", ownerReferences=[owner(first), owner(second)]))
        await api.post(PODS, pod("stranger", ownerReferences=[{**owner(first), "uid": "never-was-here"}]))
        await api.ok("DELETE", MAPS + "/o1")
        assert await gone(api, PODS + "/one")
        assert [r["name"] for r in (await api.get(PODS + "/both"))["metadata"]["ownerReferences"]] == ["o2"]
        assert (await api.call("GET", PODS + "/stranger"))[0] == 200
        # a controller that has not heard yet makes more of them, or takes over what was there
        await api.post(PODS, pod("late", ownerReferences=[owner(first)]))
        await api.merge(PODS + "/stranger", {"metadata": {"ownerReferences": [owner(first)]}})
        await api.post(PODS, pod("late-both", ownerReferences=[owner(first), owner(second)]))
        assert await gone(api, PODS + "/late")
        assert await gone(api, PODS + "/stranger")
        assert [r["name"] for r in (await api.get(PODS + "/late-both"))["metadata"]["ownerReferences"]] == ["o2"]

    with_api(body)


def test_foreground_deletion_waits_for_blocking_dependents(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "o"}})
        await api.post(MAPS, {"metadata": {"name": "dep", "ownerReferences": [owner(made, block=True)], "finalizers": ["x.io/hold"]}})
        waits = await api.ok("DELETE", MAPS + "/o", {"propagationPolicy": "Foreground"})
        assert waits["metadata"]["finalizers"] == ["foregroundDeletion"]
        await asyncio.sleep(0.05)
        assert (await api.get(MAPS + "/dep"))["metadata"]["deletionTimestamp"]
        assert (await api.call("GET", MAPS + "/o"))[0] == 200
        await api.merge(MAPS + "/dep", {"metadata": {"finalizers": None}})
        assert await gone(api, MAPS + "/o")

    with_api(body)


def twofold(crd: dict[str, Any]) -> dict[str, Any]:
    """The definition with a version in which objects are stored, and that is not served."""
    old = {**crd["spec"]["versions"][0], "name": "v1alpha1", "served": False}
    return {**crd, "spec": {**crd["spec"], "versions": [{**crd["spec"]["versions"][0], "storage": False}, old]}}


WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


@pytest.mark.parametrize("policy", ["Foreground", "Orphan", "Background"])
def test_dependents_stored_in_a_version_that_is_not_served_are_followed(with_api: Any, widget_crd: Any, policy: str) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "o"}})
        for name in ("gone", "left"):
            meta = {"name": name, "ownerReferences": [owner(made)]}
            await api.post(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1}})
        crd = await api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com")
        await api.ok("PUT", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", twofold(crd))
        meta = {"name": "new", "ownerReferences": [owner(made)]}
        await api.post(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1}})
        await api.merge(f"{WIDGETS}/gone", {"spec": {"size": 2}})  # from now on in the other version
        await api.ok("DELETE", f"{WIDGETS}/gone")
        await api.ok("DELETE", f"{MAPS}/o?propagationPolicy={policy}")
        assert await gone(api, MAPS + "/o")
        for name in ("left", "new"):
            if policy == "Orphan":
                assert "ownerReferences" not in (await api.get(f"{WIDGETS}/{name}"))["metadata"]
            else:
                assert await gone(api, f"{WIDGETS}/{name}")

    with_api(body, crds=[widget_crd])


def test_a_definition_whose_objects_are_stored_in_a_version_that_is_not_served_ends(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        meta = {"name": "w", "finalizers": ["x.io/hold"]}
        await api.post(WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1}})
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
        await api.ok("DELETE", path)
        for _ in patience.tries(50):
            if (await api.get(f"{WIDGETS}/w"))["metadata"].get("deletionTimestamp"):
                break
            await asyncio.sleep(0.01)
        await api.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
        assert await gone(api, path)

    with_api(body, crds=[twofold(widget_crd)])


def test_orphan_deletion_lets_dependents_go(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(MAPS, {"metadata": {"name": "o"}})
        await api.post(MAPS, {"metadata": {"name": "dep", "ownerReferences": [owner(made)]}})
        await api.ok("DELETE", MAPS + "/o?propagationPolicy=Orphan")
        assert await gone(api, MAPS + "/o")
        assert "ownerReferences" not in (await api.get(MAPS + "/dep"))["metadata"]

    with_api(body)


def test_budget_status_and_eviction(with_api: Any) -> None:
    async def body(api: Any) -> None:
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in ("a", "b"):
            await api.post(PODS, {**pod(name, labels={"app": "x"})})
            await api.merge(f"{PODS}/{name}/status", ready)
        budget = {"metadata": {"name": "pdb"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
        await api.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
        await asyncio.sleep(0.02)
        status = (await api.get("/apis/policy/v1/namespaces/default/poddisruptionbudgets/pdb"))["status"]
        assert (status["disruptionsAllowed"], status["currentHealthy"], status["desiredHealthy"]) == (1, 2, 1)
        assert (await api.call("POST", PODS + "/a/eviction", {"metadata": {"name": "a"}}))[0] == 201
        code, out = await api.call("POST", PODS + "/b/eviction", {"metadata": {"name": "b"}})
        assert (code, out["reason"]) == (429, "TooManyRequests")
        assert out["details"]["causes"][0] == {
            "reason": "DisruptionBudget",
            "message": "The disruption budget pdb needs 1 healthy pods and has 1 currently",
        }

    with_api(body, config=ServerConfig(enabled_controllers=frozenset({"disruption"})))


def owned_pod(name: str, uid: str, ready: bool = True) -> Obj:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": uid, "uid": uid, "controller": True}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "x"}, "ownerReferences": [reference]}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}, "status": {"conditions": conditions}}


def test_others_have_their_turn_while_a_budgets_pods_are_counted_and_what_they_write_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod is its own slice here."""
    monkeypatch.setattr(turns, "SLICE", -1.0)

    async def main() -> None:
        core = Core(ServerConfig())
        pods, budgets = core.store.bucket("/pods"), core.store.bucket("policy/poddisruptionbudgets")
        for n in range(40):
            pods.put("default", f"p{n:02}", owned_pod(f"p{n:02}", f"job{n // 4}"))
        controller = DisruptionController(core)
        controller.start()
        spec = {"maxUnavailable": "10%", "selector": {"matchLabels": {"app": "x"}}}
        head = {"name": "pdb", "namespace": "default", "uid": "u"}
        made = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": head, "spec": spec}
        budgets.put("default", "pdb", made)
        had = 0
        async with asyncio.timeout(patience.seconds(20)):
            while "status" not in budgets.get("default", "pdb").obj:
                had += 1
                if had == 20:  # some were looked at, others were not
                    pods.remove("default", "p00")
                    pods.remove("default", "p39")
                    for name in ("a", "z", "p01", "p38"):
                        pods.put("default", name, owned_pod(name, "more", ready=name == "z"))
                await asyncio.sleep(0)
        controller.stop()
        assert had > 40
        status = budgets.get("default", "pdb").obj["status"]
        assert (status["expectedPods"], status["currentHealthy"], status["desiredHealthy"]) == (40, 37, 36)

    asyncio.run(main())


class Counted(list):
    """How often it was gone through."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


def test_pods_of_many_owners_that_nobody_knows_are_gone_through_once() -> None:
    """Once for each owner, 20,000 pods of 2,000 Jobs held the event loop for two minutes."""

    async def main() -> None:
        pods = Counted(disruption._seen(owned_pod(f"p{n}", f"job{n // 2}")) for n in range(100))
        assert DisruptionController(Core(ServerConfig()))._expected("default", pods) == 100
        assert pods.times == 1

    asyncio.run(main())


def test_the_deletion_of_an_owner_goes_on_after_a_restart(with_api: Any, tmp_path: Path) -> None:
    """Each way: the first life ends before its collector comes to any of them."""

    async def before(api: Any) -> None:
        for policy in ("Background", "Foreground", "Orphan"):
            name = policy.lower()
            made = await api.post(MAPS, {"metadata": {"name": name}})
            await api.post(MAPS, {"metadata": {"name": f"of-{name}", "ownerReferences": [owner(made, block=True)]}})
        stranger = {**owner(made), "uid": "never-was-here"}
        await api.post(MAPS, {"metadata": {"name": "stranger", "ownerReferences": [stranger]}})
        collector = next(c for c in api.server.server.controllers._running if isinstance(c, GarbageCollector))
        for policy in ("Background", "Foreground", "Orphan"):
            collector._stopped = True  # as after kill -9: what it is told does not come to be worked on
            await api.ok("DELETE", f"{MAPS}/{policy.lower()}", {"propagationPolicy": policy})

    async def after(api: Any) -> None:
        for name in ("of-background", "foreground", "of-foreground", "orphan"):
            assert await gone(api, f"{MAPS}/{name}"), name
        assert "ownerReferences" not in (await api.get(MAPS + "/of-orphan"))["metadata"]
        assert (await api.call("GET", MAPS + "/stranger"))[0] == 200
        assert not api.server.core.store.bucket(OWNERS_GONE).entries

    with_api(before, config=ServerConfig(data_dir=tmp_path))
    with_api(after, config=ServerConfig(data_dir=tmp_path))


def test_events_expire(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/api/v1/namespaces/default/events"
        await api.post(path, {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"}})
        assert await gone(api, path + "/e")

    with_api(body, config=ServerConfig(event_ttl=0.1))


def test_events_expire_after_a_write_that_failed(with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/api/v1/namespaces/default/events"
        disk = api.server.core.store.disk = FullDisk(2)
        await api.post(path, {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"}})
        assert await gone(api, path + "/e")
        assert disk.refused == 2

    with_api(body, config=ServerConfig(event_ttl=0.1))


def test_the_last_finalizer_going_is_seen_as_a_deletion_only(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m", "finalizers": ["x.io/hold"]}})
        waits = await api.ok("DELETE", MAPS + "/m")
        await api.merge(MAPS + "/m", {"metadata": {"finalizers": None}})
        events = await api.watch(f"{MAPS}?resourceVersion={waits['metadata']['resourceVersion']}")
        assert [e["type"] for e in events] == ["DELETED"]

    with_api(body)


def test_resize_changes_resources_and_nothing_else(with_api: Any) -> None:
    async def body(api: Any) -> None:
        container = {"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}
        await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container]}})
        wanted = {"name": "c", "image": "other", "resources": {"requests": {"cpu": "2"}}}
        out = await api.merge(PODS + "/p/resize", {"spec": {"containers": [wanted], "nodeName": "n"}})
        assert out["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}
        assert out["spec"]["containers"][0]["image"] == "i:1"
        assert "nodeName" not in out["spec"]
        status, _ = await api.call("PATCH", PODS + "/p", {"spec": {"containers": [wanted]}}, kind="application/merge-patch+json")
        assert status == 422

    with_api(body)


@pytest.mark.parametrize(
    ("path", "spec", "warned"),
    [
        ("/apis/batch/v1/namespaces/default/jobs", {"template": {"spec": {"restartPolicy": "Never"}}}, True),
        ("/api/v1/namespaces/default/replicationcontrollers", {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}, False),
    ],
)
def test_pods_of_jobs_and_replication_controllers_stay_unless_asked_otherwise(
    path: str, spec: dict[str, Any], warned: bool, with_api: Any
) -> None:
    spec["template"]["spec"]["containers"] = pod("x")["spec"]["containers"]

    async def body(api: Any) -> None:
        for name, query in (("stays", ""), ("goes", "?propagationPolicy=Background")):
            made = await api.post(path, {"metadata": {"name": name}, "spec": spec})
            await api.post(PODS, pod(f"of-{name}", ownerReferences=[owner(made)]))
            await api.ok("DELETE", f"{path}/{name}{query}")
            said = any("child pods are preserved by default" in warning for warning in api.warnings)
            assert said is (warned and name == "stays")
            assert await gone(api, f"{path}/{name}")
        assert await gone(api, PODS + "/of-goes")
        assert "ownerReferences" not in (await api.get(PODS + "/of-stays"))["metadata"]

    with_api(body)


@pytest.mark.parametrize("query", ["", "?propagationPolicy=Orphan", "?propagationPolicy=Foreground"])
def test_nothing_waits_for_a_collector_that_is_switched_off(query: str, with_api: Any) -> None:
    async def body(api: Any) -> None:
        path = "/apis/batch/v1/namespaces/default/jobs"
        spec = {"template": {"spec": {"restartPolicy": "Never", "containers": pod("x")["spec"]["containers"]}}}
        await api.post(path, {"metadata": {"name": "j"}, "spec": spec})
        await api.ok("DELETE", f"{path}/j{query}")
        assert (await api.call("GET", f"{path}/j"))[0] == 404

    with_api(body, config=ServerConfig(disabled_controllers=frozenset({"garbagecollector"})))


def test_work_that_adds_a_key_is_followed_by_one_run() -> None:
    runs: list[list[str]] = []

    class Adding(Controller[str]):
        def work(self, key: str) -> None:
            if key == "a":
                self.add("c")

        def _run(self) -> None:
            runs.append(list(self._keys))
            super()._run()

    async def main() -> None:
        controller = Adding(Core(ServerConfig()))
        controller.add("a")
        controller.add("b")
        for _ in range(10):
            await asyncio.sleep(0)
        assert runs == [["a", "b"], ["c"]]

    asyncio.run(main())


def test_what_takes_long_to_count_rests_and_misses_nothing(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Controller[str]):
        rests = 9
        worked = 0

        def work(self, key: str) -> None:
            self.worked += 1

    async def body(api: Any) -> None:
        counting = Counting(api.server.core)
        counting._resting["a"] = asyncio.get_running_loop().time() + 0.05
        for _ in range(3):
            counting.add("a")
        assert not counting._keys
        for _ in patience.tries(100):
            if counting.worked:
                break
            await asyncio.sleep(0.01)
        assert counting.worked == 1
        monkeypatch.setattr(queue, "SLICE", -1.0)  # everything takes long
        counting.add("a")
        while counting.worked < 2:
            await asyncio.sleep(0)
        assert "a" in counting._resting
        counting.stop()

    with_api(body)
