"""Resource quotas are enforced and counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.apiserver import turns
from koord.apiserver.admission.quotas import Count, shown, usage
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-SEC-01")
Obj = dict[str, Any]
SPACE = "/api/v1/namespaces/default"
QUOTAS, PODS = f"{SPACE}/resourcequotas", f"{SPACE}/pods"


def quota(name: str = "q", *, scopes: list[str] | None = None, selector: Obj | None = None, **hard: str) -> Obj:
    spec: Obj = {"hard": {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}}
    if scopes:
        spec["scopes"] = scopes
    if selector:
        spec["scopeSelector"] = {"matchExpressions": [selector]}
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, cpu: str = "", limit: str = "", **spec: Any) -> Obj:
    resources: Obj = {}
    if cpu:
        resources["requests"] = {"cpu": cpu}
    if limit:
        resources["limits"] = {"cpu": limit}
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}], **spec}}


async def used(api: Any, name: str = "q", **wanted: str) -> None:
    """Wait until the quota counts what is wanted."""
    wanted = {key.replace("__", "/").replace("_", "."): value for key, value in wanted.items()}
    for _ in patience.tries(200):
        found = (await api.get(f"{QUOTAS}/{name}")).get("status", {}).get("used")
        if found == wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError((found, wanted))


def test_objects_are_counted_and_the_next_is_refused(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(count__secrets="1", configmaps="2", **{"count__deployments_apps": "0"}))
        await api.post(f"{SPACE}/secrets", {"metadata": {"name": "a"}})
        status, out = await api.call("POST", f"{SPACE}/secrets", {"metadata": {"name": "b"}})
        assert (status, out["reason"]) == (403, "Forbidden")
        text = "exceeded quota: q, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1"
        assert out["message"] == f'secrets "b" is forbidden: {text}'
        await api.ok("DELETE", f"{SPACE}/secrets/a")
        await used(api, count__secrets="0", configmaps="0", count__deployments_apps="0")
        await api.post(f"{SPACE}/secrets", {"metadata": {"name": "b"}})
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        made = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
        assert (await api.call("POST", "/apis/apps/v1/namespaces/default/deployments", made))[0] == 403
        assert (await api.call("POST", "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": "free"}}))[0] in (201, 404)

    with_api(body)


def test_pods_use_what_they_request_until_they_end(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(requests_cpu="2", pods="3", requests_example_com__gpu="1"))
        await api.post(PODS, pod("a", "1500m"))
        status, out = await api.call("POST", PODS, pod("b", "600m"))
        assert (status, "requested: requests.cpu=600m, used: requests.cpu=1500m, limited: requests.cpu=2" in out["message"]) == (403, True)
        assert "failed quota: q: must specify requests.cpu for: c" in (await api.call("POST", PODS, pod("b")))[1]["message"]
        await api.post(PODS, pod("b", "500m"))
        await api.merge(PODS + "/a/status", {"status": {"phase": "Succeeded"}})
        for _ in patience.tries(200):
            if (await api.get(QUOTAS + "/q"))["status"]["used"]["requests.cpu"] == "500m":
                break
            await asyncio.sleep(0.01)
        await api.post(PODS, pod("c", "1500m"))
        gpu = {
            "name": "c",
            "image": "i",
            "resources": {"requests": {"cpu": "0", "example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}},
        }
        status, out = await api.call("POST", PODS, {"metadata": {"name": "g"}, "spec": {"containers": [gpu]}})
        assert (status, "requests.example.com/gpu=2" in out["message"]) == (403, True)

    with_api(body)


def test_a_dry_run_is_checked_and_not_counted(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(pods="1"))
        await api.post(PODS + "?dryRun=All", pod("a"))
        await used(api, pods="0")
        await api.post(PODS, pod("a"))
        assert (await api.call("POST", PODS + "?dryRun=All", pod("b")))[0] == 403
        assert (await api.call("POST", PODS, pod("a")))[0] == 403

    with_api(body)


def test_what_is_refused_elsewhere_is_not_counted(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(configmaps="3"))
        await api.post(f"{SPACE}/configmaps", {"metadata": {"name": "a"}})
        assert (await api.call("POST", f"{SPACE}/configmaps", {"metadata": {"name": "a"}}))[0] == 409
        await used(api, configmaps="1")

    with_api(body)


@pytest.mark.parametrize(
    ("limits", "counted", "left_out"),
    [
        ({"scopes": ["BestEffort"], "pods": "0"}, pod("x"), pod("x", "1")),
        ({"scopes": ["NotBestEffort"], "pods": "0"}, pod("x", "1"), pod("x")),
        ({"scopes": ["Terminating"], "pods": "0"}, pod("x", activeDeadlineSeconds=5), pod("x")),
        ({"scopes": ["NotTerminating"], "pods": "0"}, pod("x"), pod("x", activeDeadlineSeconds=5)),
        (
            {"selector": {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}, "pods": "0"},
            pod("x", priorityClassName="high"), pod("x", priorityClassName="low"),
        ),
        (
            {"selector": {"scopeName": "PriorityClass", "operator": "DoesNotExist"}, "pods": "0"},
            pod("x"), pod("x", priorityClassName="low"),
        ),
    ],
)  # fmt: skip
def test_scopes_choose_the_pods(with_api: Any, limits: Obj, counted: Obj, left_out: Obj) -> None:
    async def body(api: Any) -> None:
        for name, value in (("high", 10), ("low", 1)):
            await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
        await api.post(QUOTAS, quota(**limits))
        assert (await api.call("POST", PODS, counted))[0] == 403
        assert (await api.call("POST", PODS, left_out))[0] == 201

    with_api(body)


def test_services_and_claims(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(
            QUOTAS, quota(services_nodeports="1", requests_storage="10Gi", **{"fast_storageclass_storage_k8s_io__requests_storage": "1Gi"})
        )
        service = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}}
        assert (await api.call("POST", f"{SPACE}/services", service))[0] == 403
        service["spec"]["type"] = "ClusterIP"
        await api.post(f"{SPACE}/services", service)
        assert (await api.call("PATCH", f"{SPACE}/services/s", {"spec": {"type": "NodePort"}}, kind="application/merge-patch+json"))[
            0
        ] == 403
        claim = {
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "fast"},
        }
        assert (await api.call("POST", f"{SPACE}/persistentvolumeclaims", claim))[0] == 403
        claim["spec"]["storageClassName"] = "slow"
        await api.post(f"{SPACE}/persistentvolumeclaims", claim)

    with_api(body)


def test_many_at_once_are_never_more_than_the_limit(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(pods="5"))
        answers = await asyncio.gather(*(api.call("POST", PODS, pod(f"p{at}")) for at in range(12)))
        assert sorted(status for status, _ in answers) == [201] * 5 + [403] * 7
        await used(api, pods="5")

    with_api(body)


MAPS = f"{SPACE}/configmaps"


async def turns_until(done: Any) -> int:
    """What others have of the event loop until something is done."""
    had = 0
    async with asyncio.timeout(patience.seconds(20)):
        while not done():
            had += 1
            await asyncio.sleep(0)
    return had


@pytest.mark.parametrize("asked", [False, True])
def test_others_have_their_turn_while_much_is_counted(with_api: Any, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Each object is its own slice here, whoever counts: the controller, or writes that wait for it."""

    async def body(api: Any) -> None:
        for n in range(40):
            await api.post(MAPS, {"metadata": {"name": f"m{n}"}})
        entry = await api.post(QUOTAS, quota(count__configmaps="60"))
        await used(api, count__configmaps="40")
        monkeypatch.setattr(turns, "SLICE", -1.0)
        bucket = api.server.core.store.bucket("/resourcequotas")
        obj = bucket.get("default", "q").copy()
        obj["status"] = {}
        bucket.put("default", "q", obj)
        quotas, writes = api.server.core.admission.quotas, []
        if asked:
            writes = [asyncio.ensure_future(api.post(MAPS, {"metadata": {"name": f"late{n}"}})) for n in range(9)]
        else:
            obj = bucket.get("default", "q").copy()
            obj["spec"] = {"hard": {"count/configmaps": "70"}}
            bucket.put("default", "q", obj)
        counted = lambda: bucket.get("default", "q").obj["status"] != {}  # noqa: E731
        assert await turns_until(counted) > 40
        await asyncio.gather(*writes)
        assert entry["metadata"]["uid"] == bucket.get("default", "q").obj["metadata"]["uid"]
        await used(api, count__configmaps="49" if asked else "40")
        assert not quotas._counts

    with_api(body)


def test_what_is_written_while_it_is_counted_counts_once(with_api: Any) -> None:
    """Objects before and after the one that the count has come to are made, changed and deleted at each of its steps."""

    async def body(api: Any) -> None:
        await api.post(QUOTAS, quota(pods="1k", requests_cpu="1k", count__pods="1k", count__secrets="1k"))
        for n in range(10):
            await api.post(PODS, pod(f"p{n}", f"{n + 1}"))
        store = api.server.core.store
        pods, entry = store.bucket("/pods"), store.bucket("/resourcequotas").get("default", "q")

        def fresh(name: str, cpu: str, phase: str = "Pending") -> None:
            made = pods.get("default", "p9").copy()
            made["metadata"] |= {"name": name, "uid": name}
            made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
            made["status"] = {"phase": phase}
            pods.put("default", name, made)

        acts: list[Any] = [
            lambda: fresh("a", "7"), lambda: fresh("z", "11"), lambda: fresh("a", "9"), lambda: fresh("z", "5"),
            lambda: pods.remove("default", "a"), lambda: pods.remove("default", "z"), lambda: fresh("p0", "3", "Failed"),
            lambda: fresh("p8", "3", "Failed"), lambda: pods.remove("default", "p1"), lambda: fresh("p1", "20"),
            lambda: pods.remove("default", "p7"), lambda: fresh("p7", "21"), lambda: fresh("p7", "22"), lambda: fresh("p0", "1"),
        ]  # fmt: skip
        steps = sum(1 for _ in Count(api.server.core, entry).steps())
        for first in range(steps):
            before = {key: found.copy() for key, found in pods.entries.items()}
            count = Count(api.server.core, entry)
            store.listeners.append(count.follow)
            left = list(acts)
            for at, _ in enumerate(count.steps()):
                for _ in range(3 if at >= first and left else 0):
                    if left:
                        left.pop(0)()
            store.listeners.remove(count.follow)
            again = Count(api.server.core, entry)
            for _ in again.steps():
                pass
            assert count.used == again.used, first
            if not left:  # p8 has ended
                assert shown(count.used) == "count/pods=10,count/secrets=0,pods=9,requests.cpu=78"
            for key in list(pods.entries):
                if key not in before:
                    pods.remove("default", pods.entries[key].name)
            for made in before.values():
                pods.put("default", made["metadata"]["name"], made)

    with_api(body)


def test_a_quota_that_changes_while_it_is_counted_is_counted_anew(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Any) -> None:
        for n in range(20):
            await api.post(MAPS, {"metadata": {"name": f"m{n}"}})
        monkeypatch.setattr(turns, "SLICE", -1.0)
        await api.post(QUOTAS, quota(count__configmaps="60"))
        writes = [asyncio.ensure_future(api.post(MAPS, {"metadata": {"name": f"late{n}"}})) for n in range(3)]
        await api.merge(f"{QUOTAS}/q", {"spec": {"hard": {"count/configmaps": None, "configmaps": "70"}}})
        await asyncio.gather(*writes)
        await used(api, configmaps="23")
        assert (await api.get(f"{QUOTAS}/q"))["status"]["hard"] == {"configmaps": "70"}

    with_api(body)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (quota(nonsense="1"), "spec.hard[nonsense]"),
        (quota(pods="-1"), "spec.hard[pods]"),
        (quota(pods="500m"), "spec.hard[pods]"),
        (quota(pods="1", scopes=["Nope"]), "spec.scopes"),
        (quota(configmaps="1", scopes=["BestEffort"]), "spec.scopes"),
        (quota(pods="1", scopes=["BestEffort", "NotBestEffort"]), "spec.scopes"),
        (quota(pods="1", selector={"scopeName": "PriorityClass", "operator": "In"}), "spec.scopeSelector.matchExpressions.values"),
    ],
)
def test_a_quota_that_means_nothing_is_refused(with_api: Any, made: Obj, field: str) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", QUOTAS, made)
        assert (status, field in [c["field"] for c in out["details"]["causes"]]) == (422, True), out

    with_api(body)


def test_usage_of_a_pod_with_init_containers_sidecars_and_overhead() -> None:
    def container(cpu: str, **more: str) -> Obj:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("200m", restartPolicy="Always"), container("3")],
        "overhead": {"cpu": "100m"},
    }
    made = {"metadata": {"name": "p"}, "spec": spec}
    assert shown(usage("", "pods", made, 0.0)) == "count/pods=1,cpu=3300m,limits.cpu=3300m,pods=1,requests.cpu=3300m"
    assert shown(usage("", "pods", {**made, "status": {"phase": "Failed"}}, 0.0)) == "count/pods=1"
