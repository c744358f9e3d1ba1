"""What is compared, continued: the subresources that schedulers, deschedulers and agents write."""

from __future__ import annotations

from typing import Any

from .scenarios import DEPLOYMENTS, PODS, pod
from .transcript import JSON_PATCH, MERGE, STRATEGIC, Transcript, settle

BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"


def evictions(t: Transcript) -> None:
    def evict(name: str, **options: Any) -> None:
        wanted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        t.call("POST", f"{PODS}/{name}/eviction", {**wanted, **({"deleteOptions": options} if options else {})})

    def running(name: str, **labels: str) -> None:
        made = pod(name, nodeName="n1")
        made["metadata"]["labels"] = labels
        t.raw("POST", PODS, made)
        t.raw(
            "PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, MERGE
        )

    t.raw("POST", PODS, pod("unbound"))
    evict("unbound")
    evict("none")
    running("free")
    evict("free", dryRun=["All"])
    evict("free", preconditions={"uid": "00000000-0000-4000-8000-000000000000"})
    evict("free", gracePeriodSeconds=7)
    t.call("GET", PODS + "/free")
    running("held", app="a")
    running("held2", app="a")
    t.raw("POST", BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}})
    settle()
    evict("held")
    status = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1}
    t.raw("PATCH", f"{BUDGETS}/b/status", {"status": status}, MERGE)
    settle()
    evict("held", dryRun=["All"])
    evict("held")
    t.call("GET", f"{BUDGETS}/b")
    evict("held2")
    t.raw("PATCH", f"{PODS}/held2/status", {"status": {"phase": "Succeeded"}}, MERGE)
    evict("held2")
    running("twice", app="b")
    for name in ("c", "d"):
        t.raw("POST", BUDGETS, {"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "b"}}}})
    settle()
    evict("twice")
    t.verdict("POST", f"{PODS}/held2/eviction", {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "held2"}})
    t.verdict("POST", f"{PODS}/held2/eviction", {"metadata": {"name": "other"}})
    t.verdict("POST", f"{PODS}/held2/eviction", {})
    t.verdict("GET", f"{PODS}/held2/eviction")


def resizes(t: Transcript) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    t.raw("POST", PODS, pod("p", containers=[{"name": "c", "image": "i:1", "resources": resources}]))

    def resize(kind: str = STRATEGIC, **change: Any) -> None:
        t.call("PATCH", f"{PODS}/p/resize", {"spec": {"containers": [{"name": "c", "resources": change}]}}, kind)

    resize(requests={"cpu": "1500m"})
    t.verdict("PATCH", f"{PODS}/p/resize", {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}, STRATEGIC)
    resize(requests={"cpu": "3"})
    resize(requests={"example.com/x": "1"}, limits={"example.com/x": "1"})
    t.verdict("PATCH", f"{PODS}/p", {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1700m"}}}]}}, STRATEGIC)
    t.call(
        "PATCH",
        f"{PODS}/p/resize",
        {"spec": {"containers": [{"name": "c", "image": "i:2"}]}, "metadata": {"labels": {"a": "b"}}},
        STRATEGIC,
    )
    t.call("GET", f"{PODS}/p/resize")
    t.verdict("PATCH", f"{PODS}/none/resize", {}, MERGE)
    t.verdict("DELETE", f"{PODS}/p/resize")
    debugger = {"name": "debug", "image": "busybox:1", "targetContainerName": "c"}
    t.call("PATCH", f"{PODS}/p/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}}, STRATEGIC)
    t.verdict("PATCH", f"{PODS}/p/ephemeralcontainers", {"spec": {"ephemeralContainers": []}}, MERGE)


def pod_status(t: Transcript) -> None:
    t.raw("POST", PODS, pod("p"))
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "m",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    t.call("PATCH", f"{PODS}/p/status", {"status": {"conditions": [condition], "nominatedNodeName": "n1"}}, STRATEGIC)
    t.call(
        "PATCH",
        f"{PODS}/p/status",
        {
            "status": {
                "$setElementOrder/conditions": [{"type": "PodScheduled"}, {"type": "Ready"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        },
        STRATEGIC,
    )
    t.call("PATCH", f"{PODS}/p/status", {"status": {"nominatedNodeName": None}}, MERGE)
    t.call("PATCH", f"{PODS}/p/status", [{"op": "remove", "path": "/status/conditions/0"}], JSON_PATCH)
    t.verdict("PATCH", f"{PODS}/p/status", {"status": {"phase": "Nonsense"}}, MERGE)
    t.verdict("PATCH", f"{PODS}/p/status", {"status": {"conditions": [{"type": "", "status": "True"}]}}, MERGE)
    t.verdict("PATCH", f"{PODS}/p/status", {"status": {"conditions": [{"type": "A", "status": "Maybe"}]}}, MERGE)
    t.verdict("PATCH", f"{PODS}/p/status", {"status": {"qosClass": "Guaranteed"}}, MERGE)
    t.verdict("PATCH", f"{PODS}/p/status", {"status": {"podIPs": [{"ip": "nope"}]}}, MERGE)
    binding = {"metadata": {"name": "p", "annotations": {"a": "b"}, "labels": {"c": "d"}}, "target": {"kind": "Node", "name": "n1"}}
    t.verdict("POST", f"{PODS}/p/binding", {**binding, "metadata": {"name": "p", "uid": "00000000-0000-4000-8000-000000000000"}})
    t.verdict("POST", f"{PODS}/p/binding", {**binding, "metadata": {"name": "other"}})
    t.call("POST", f"{PODS}/p/binding", binding)
    t.call("GET", f"{PODS}/p")
    gated = pod("gated", schedulingGates=[{"name": "x.io/g"}])
    t.call("POST", PODS, gated)
    t.verdict("POST", f"{PODS}/gated/binding", {"metadata": {"name": "gated"}, "target": {"kind": "Node", "name": "n1"}})
    t.call("PATCH", f"{PODS}/gated", {"spec": {"nodeSelector": {"a": "b"}}}, MERGE)
    t.call("PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}, MERGE)
    t.verdict("POST", PODS, pod("both", nodeName="n1", schedulingGates=[{"name": "x.io/g"}]))
    t.call("GET", PODS + "?fieldSelector=spec.nodeName%3Dn1,status.phase!%3DSucceeded")


def scales(t: Transcript) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["x", "y"]}]},
        "template": template,
    }
    t.raw("POST", DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
    scale = t.call("GET", f"{DEPLOYMENTS}/d/scale")
    t.call("PUT", f"{DEPLOYMENTS}/d/scale", {**scale, "spec": {"replicas": 3}})
    t.call("PUT", f"{DEPLOYMENTS}/d/scale", {**scale, "spec": {"replicas": 4}})
    t.call("PUT", f"{DEPLOYMENTS}/d/scale?dryRun=All", {"metadata": {"name": "d"}, "spec": {"replicas": 9}})
    t.call("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}}, MERGE)
    t.verdict("PATCH", f"{DEPLOYMENTS}/none/scale", {"spec": {"replicas": 1}}, MERGE)
    t.verdict("DELETE", f"{DEPLOYMENTS}/d/scale")
    t.call("GET", f"{DEPLOYMENTS}/d")


def strategies(t: Transcript) -> None:
    """What differs from kind to kind: finalizers, PUTs, and the metadata that a status or a generation is about."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{t.ns}"
    t.call("PUT", roles, {"metadata": {"name": t.ns, "namespace": "other"}, "rules": []})
    t.raw("DELETE", roles)
    slices = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"
    made = {"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": []}
    t.call("PUT", slices + "/x", made)
    t.raw("POST", slices, made)
    for path, parts in (
        ("coordination.k8s.io/v1/namespaces/{ns}/leases", {"spec": {}}),
        ("policy/v1/namespaces/{ns}/poddisruptionbudgets", {"spec": {}}),
        ("rbac.authorization.k8s.io/v1/namespaces/{ns}/roles", {"rules": []}),
    ):
        t.verdict("POST", f"/apis/{path}?dryRun=All", {"metadata": {"name": "x", "finalizers": ["plain"]}, **parts})
    template: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    t.raw("POST", DEPLOYMENTS, {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec})
    changed = {"metadata": {"labels": {"a": "c"}, "annotations": {"a": "c"}}}
    t.call("PATCH", DEPLOYMENTS + "/x/status", changed, MERGE)
    for path in (DEPLOYMENTS, slices):
        t.call("PATCH", path + "/x", {"metadata": {"annotations": {"a": "d"}}}, MERGE)
        t.call("PATCH", path + "/x", {"metadata": {"labels": {"a": "d"}}}, MERGE)
    t.raw("POST", PODS, pod())
    t.call("PUT", PODS + "/p/status", {"metadata": {"name": "p"}, "status": {"phase": "Running"}})
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}]
    t.call("PATCH", PODS + "/p/status", {"metadata": {"ownerReferences": owners}}, MERGE)
    for kind in ({"kind": "Pod"}, {"apiVersion": "apps/v1"}):
        for what in ("binding", "eviction"):
            t.verdict("POST", f"{PODS}/p/{what}", {"metadata": {"name": "p"}, "target": {"name": "n"}, **kind})
    t.verdict("PUT", PODS + "/p/resize", pod(containers=[{"name": "d", "image": "i"}]))
    t.raw("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}})
    t.verdict("PATCH", PODS + "/p/status", {"status": {"nominatedNodeName": "m"}}, MERGE)
    jobs = "/apis/batch/v1/namespaces/{ns}/jobs"
    t.raw(
        "POST",
        jobs,
        {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}},
    )
    t.call("GET", jobs + "/j")
    for status in ({}, {"startTime": "2026-01-01T00:00:00Z"}, {"conditions": [{"type": "Suspended", "status": "True"}]}, {"active": 1}):
        t.raw("PATCH", jobs + "/j/status", {"status": status}, MERGE)
        for moved in ({"nodeSelector": {"a": "b"}}, {"priorityClassName": "x"}):
            t.verdict("PATCH", jobs + "/j?dryRun=All", {"spec": {"template": {"spec": moved}}}, MERGE)


SCENARIOS = (strategies, evictions, resizes, pod_status, scales)
