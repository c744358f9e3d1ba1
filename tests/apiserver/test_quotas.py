"""Resource quotas are enforced and counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.apiserver.admission.quotas import shown, usage
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
