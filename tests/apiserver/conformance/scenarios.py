"""What is compared: short stories with an API server."""

from __future__ import annotations

from typing import Any

from .transcript import APPLY, JSON_PATCH, MERGE, STRATEGIC, Transcript, settle

PODS = "/api/v1/namespaces/{ns}/pods"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = spec.pop("containers", [{"name": "c", "image": "busybox:1"}])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def config_map(name: str = "m", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def create_defaults(t: Transcript) -> None:
    t.call("POST", PODS, pod())
    resources = {"requests": {"cpu": "1000m"}, "limits": {"cpu": 2, "memory": "1024Mi"}}
    probe = {"httpGet": {"port": 80}}
    container = {"name": "c", "image": "busybox", "resources": resources, "ports": [{"containerPort": 80}], "livenessProbe": probe}
    volumes = [{"name": "v", "configMap": {"name": "x"}}, {"name": "e"}]
    t.call("POST", PODS, pod("q", containers=[container], volumes=volumes, serviceAccountName="default"))
    guaranteed = {"limits": {"cpu": "1", "memory": "1Gi"}}
    t.call("POST", PODS, pod("g", containers=[{"name": "c", "image": "a/b@sha256:" + "0" * 64, "resources": guaranteed}]))


def create_errors(t: Transcript) -> None:
    t.call("POST", PODS, pod())
    t.call("POST", PODS, pod())
    t.call("POST", PODS, pod("Bad_Name"))
    t.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    t.call("POST", PODS, {**pod("x"), "spec": {"containers": []}})
    t.call("POST", PODS, {**pod("x"), "metadata": {"name": "x", "namespace": "other"}})
    t.call("POST", PODS, {**pod("x"), "metadata": {"name": "x", "labels": {"bad key": "v"}}})
    t.call(
        "POST", PODS, pod("x", containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}])
    )
    t.call("POST", PODS, pod("x", containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "-1"}}}]))
    t.call("POST", PODS, pod("x", containers=[{"name": "c", "image": "i", "resources": {"requests": {"x.io/gpu": "1"}}}]))
    t.call("POST", PODS, pod("x", tolerations=[{"operator": "Nope", "key": "a"}]))
    t.call("POST", PODS, pod("x", priorityClassName="nope"))
    t.call("POST", PODS, pod("x", priority=5))
    t.call("POST", "/api/v1/namespaces/not-there/pods", pod("x"))
    t.call("POST", "/api/v1/nodes", {"metadata": {"name": "UPPER"}})


def read_errors(t: Transcript) -> None:
    t.call("GET", PODS + "/none")
    t.call("GET", "/apis/apps/v1/namespaces/{ns}/deployments/none")
    t.call("GET", "/apis/no.such.group/v1/things")
    t.call("GET", PODS + "?fieldSelector=spec.nope=1")
    status, out = t.raw("GET", PODS + "?labelSelector=a%20in%20b")
    t.note(status=status, reason=out["reason"])
    t.call("GET", PODS + "?resourceVersion=abc")
    status, out = t.raw("GET", PODS + "?limit=1&continue=garbage")
    t.note(status=status, reason=out["reason"])
    t.call("POST", PODS + "/none", {})


def update_conflicts(t: Transcript) -> None:
    made = t.call("POST", MAPS, config_map(a="1"))
    newer = {**made, "data": {"a": "2"}}
    t.call("PUT", MAPS + "/m", newer)
    t.call("PUT", MAPS + "/m", newer)
    t.call("PUT", MAPS + "/m", config_map(a="3"))
    t.call("PUT", MAPS + "/none", config_map("none"))
    t.call("PUT", MAPS + "/m", config_map("other"))
    t.call("PUT", MAPS + "/m", {**config_map(a="4"), "metadata": {"name": "m", "uid": "00000000-0000-4000-8000-000000000000"}})
    first = t.call("GET", MAPS + "/m")
    again = t.call("PUT", MAPS + "/m", first)
    t.note(same_version=first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"])
    t.call("PATCH", MAPS + "/m", {"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}}, MERGE)


def patches(t: Transcript) -> None:
    t.call("POST", MAPS, config_map(a="1", b="2"))
    t.call("PATCH", MAPS + "/m", {"data": {"a": None, "c": "3"}}, MERGE)
    t.call("PATCH", MAPS + "/m", [{"op": "add", "path": "/data/d", "value": "4"}, {"op": "remove", "path": "/data/b"}], JSON_PATCH)
    t.call("PATCH", MAPS + "/m", [{"op": "test", "path": "/data/d", "value": "5"}], JSON_PATCH)
    t.call("PATCH", MAPS + "/none", {"data": {}}, MERGE)
    t.call("PATCH", MAPS + "/m", {"metadata": {"name": "other"}}, MERGE)
    t.call("POST", PODS, pod())
    t.call("PATCH", PODS + "/p", {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}, STRATEGIC)
    t.call("PATCH", PODS + "/p", {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}, STRATEGIC)
    t.call("PATCH", PODS + "/p", {"metadata": {"finalizers": ["x.io/a", "x.io/b"]}}, STRATEGIC)
    t.call("PATCH", PODS + "/p", {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a"]}}, STRATEGIC)
    t.call("PATCH", PODS + "/p", {"metadata": {"finalizers": None}}, MERGE)


def pod_immutability(t: Transcript) -> None:
    t.call("POST", PODS, pod())
    for change in ({"nodeSelector": {"a": "b"}}, {"schedulerName": "other"}, {"containers": [{"name": "d", "image": "x"}]}):
        status, out = t.raw("PATCH", PODS + "/p", {"spec": change}, MERGE)
        causes = [{"field": c["field"], "reason": c["reason"]} for c in out["details"]["causes"]]
        t.note(status=status, reason=out["reason"], causes=causes)
    t.call("PATCH", PODS + "/p", {"spec": {"activeDeadlineSeconds": 10}}, MERGE)
    t.call("PATCH", PODS + "/p", {"spec": {"activeDeadlineSeconds": 20}}, MERGE)


def status_subresource(t: Transcript) -> None:
    t.call("POST", PODS, {**pod(), "status": {"phase": "Running"}})
    t.call("PATCH", PODS + "/p", {"status": {"phase": "Running"}}, MERGE)
    t.call(
        "PATCH", PODS + "/p/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "x"}, "metadata": {"labels": {"l": "v"}}}, MERGE
    )
    t.call("PATCH", PODS + "/p/status", {"status": {"conditions": [{"type": "A", "status": "True"}]}}, STRATEGIC)
    t.call("PATCH", PODS + "/p/status", {"status": {"conditions": [{"type": "B", "status": "True"}]}}, STRATEGIC)
    t.call("GET", PODS + "/p/nope")


def bindings(t: Transcript) -> None:
    t.call("POST", PODS, pod())
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    t.call("POST", PODS + "/p/binding", {**binding, "target": {"kind": "Pod", "name": "n1"}})
    t.call("POST", PODS + "/p/binding", {**binding, "target": {"kind": "Node"}})
    t.call("POST", PODS + "/p/binding", binding)
    t.call("POST", PODS + "/p/binding", binding)
    t.call("GET", PODS + "/p")
    t.call("POST", PODS + "/none/binding", {**binding, "metadata": {"name": "none"}})


def deletion(t: Transcript) -> None:
    t.call("POST", MAPS, config_map())
    t.call("DELETE", MAPS + "/m", {"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}})
    t.call("DELETE", MAPS + "/m", {"preconditions": {"resourceVersion": "1"}})
    t.call("DELETE", MAPS + "/m?dryRun=All")
    t.call("DELETE", MAPS + "/m")
    t.call("DELETE", MAPS + "/m")
    t.call("POST", PODS, pod("unbound"))
    t.call("DELETE", PODS + "/unbound")
    t.call("POST", PODS, pod("bound", nodeName="n1"))
    t.call("DELETE", PODS + "/bound")
    t.call("DELETE", PODS + "/bound", {"gracePeriodSeconds": 5})
    t.call("PATCH", PODS + "/bound", {"metadata": {"finalizers": ["x.io/late"]}}, MERGE)
    t.call("DELETE", PODS + "/bound", {"gracePeriodSeconds": 0})
    t.call("GET", PODS + "/bound")
    t.call("POST", PODS, pod("one", nodeName="n1"))
    t.call("DELETE", PODS + "/one?gracePeriodSeconds=1&propagationPolicy=Nonsense")


def finalizers(t: Transcript) -> None:
    held = config_map("held")
    held["metadata"]["finalizers"] = ["x.io/hold"]
    t.call("POST", MAPS, held)
    t.call("DELETE", MAPS + "/held")
    going = t.call("DELETE", MAPS + "/held")
    t.call("PATCH", MAPS + "/held", {"data": {"still": "writable"}}, MERGE)
    t.call("PATCH", MAPS + "/held", {"metadata": {"finalizers": ["x.io/hold", "x.io/more"]}}, MERGE)
    t.call("PATCH", MAPS + "/held", {"metadata": {"finalizers": None}}, MERGE)
    t.call("GET", MAPS + "/held")
    settle()
    t.watch(f"{MAPS}?resourceVersion={going['metadata']['resourceVersion']}&fieldSelector=metadata.name%3Dheld")
    t.call("POST", MAPS, {**config_map("bad"), "metadata": {"name": "bad", "finalizers": ["plain"]}})


def lists(t: Transcript) -> None:
    for name in ("a", "b", "c"):
        t.raw("POST", MAPS, {**config_map(name), "metadata": {"name": name, "labels": {"n": name}}})
    settle()
    mine = "labelSelector=n"
    first = t.call("GET", f"{MAPS}?{mine}&limit=2")
    t.raw("DELETE", MAPS + "/c")
    token = first["metadata"]["continue"]
    second = t.call("GET", f"{MAPS}?{mine}&limit=2&continue={token}")
    t.note(first_version_is_kept=first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"])
    t.call("GET", f"{MAPS}?labelSelector=n%20in%20(a,b),n!=b")
    t.call("GET", f"{MAPS}?fieldSelector=metadata.name=b")
    t.call("GET", f"{MAPS}?resourceVersionMatch=Exact")
    version = first["metadata"]["resourceVersion"]
    t.call("GET", f"{MAPS}?{mine}&resourceVersion={version}&resourceVersionMatch=Exact")
    t.call("GET", f"{MAPS}?{mine}&resourceVersion=0&resourceVersionMatch=Exact")


def delete_collection(t: Transcript) -> None:
    for name in ("a", "b", "c"):
        t.raw("POST", MAPS, {**config_map(name), "metadata": {"name": name, "labels": {"n": name}}})
    settle()
    t.raw("DELETE", f"{MAPS}?labelSelector=n%20in%20(a,b)")
    t.call("GET", f"{MAPS}?labelSelector=n")


def watches(t: Transcript) -> None:
    start = t.raw("GET", MAPS)[1]["metadata"]["resourceVersion"]
    t.raw("POST", MAPS, {**config_map("a"), "metadata": {"name": "a", "labels": {"l": "1"}}})
    t.raw("PATCH", MAPS + "/a", {"metadata": {"labels": {"l": "2"}}}, MERGE)
    t.raw("PATCH", MAPS + "/a", {"metadata": {"labels": {"l": "1"}}}, MERGE)
    t.raw("PATCH", MAPS + "/a", {"data": {"x": "y"}}, MERGE)
    t.raw("DELETE", MAPS + "/a")
    settle()
    t.watch(f"{MAPS}?resourceVersion={start}")
    selected = t.watch(f"{MAPS}?resourceVersion={start}&labelSelector=l%3D1")
    left = selected[1]["object"]
    t.note(left_with_old_labels=left["metadata"]["labels"])
    t.watch(f"{MAPS}?resourceVersion={start}&fieldSelector=metadata.name%3Dother")
    t.raw("POST", MAPS, config_map("now"))
    settle()
    t.watch(f"{MAPS}?fieldSelector=metadata.name%3Dnow")
    t.watch(f"{MAPS}?resourceVersion=0&fieldSelector=metadata.name%3Dnow")
    gone = t.raw("DELETE", MAPS + "/now")
    t.note(deleted=gone[0])


def pod_watch_by_node(t: Transcript) -> None:
    start = t.raw("GET", PODS)[1]["metadata"]["resourceVersion"]
    t.raw("POST", PODS, pod())
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    t.raw("POST", PODS + "/p/binding", binding)
    settle()
    t.watch(f"{PODS}?resourceVersion={start}&fieldSelector=spec.nodeName%3Dn1")
    t.watch(f"{PODS}?resourceVersion={start}&fieldSelector=spec.nodeName%3D")


def generate_name(t: Transcript) -> None:
    status, out = t.raw("POST", MAPS, {"metadata": {"generateName": "g-"}})
    t.note(status=status, length=len(out["metadata"]["name"]), prefix=out["metadata"]["name"][:2], kept=out["metadata"]["generateName"])


def dry_run(t: Transcript) -> None:
    t.call("POST", MAPS + "?dryRun=All", config_map())
    t.call("GET", MAPS + "/m")
    t.raw("POST", MAPS, config_map(a="1"))
    t.call("PATCH", MAPS + "/m?dryRun=All", {"data": {"a": "2"}}, MERGE)
    t.call("GET", MAPS + "/m")


def deployments(t: Transcript) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    t.call("POST", DEPLOYMENTS, made)
    t.call("PATCH", DEPLOYMENTS + "/d", {"spec": {"replicas": 3}}, MERGE)
    t.call("PATCH", DEPLOYMENTS + "/d/status", {"status": {"replicas": 1}}, MERGE)
    t.call("GET", DEPLOYMENTS + "/d/scale")
    t.call("PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": 4}}, MERGE)
    t.call("POST", DEPLOYMENTS, {**made, "metadata": {"name": "e"}, "spec": {**spec, "selector": {"matchLabels": {"a": "c"}}}})


def priorities(t: Transcript) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = f"pc-{t.ns}"
    t.call("POST", path, {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"})
    t.call("POST", PODS, pod(priorityClassName=name))
    status, out = t.raw("PATCH", f"{path}/{name}", {"value": 5}, MERGE)
    t.note(status=status, reasons=[c["reason"] for c in out["details"]["causes"]])
    t.call("POST", path, {"metadata": {"name": name + "-x"}, "value": 2000000000})
    t.call("POST", path, {"metadata": {"name": "system-mine"}, "value": 1})
    t.call("POST", PODS, pod("s", priorityClassName="system-node-critical"))
    t.raw("DELETE", f"{path}/{name}")


def nodes(t: Transcript) -> None:
    path, name = "/api/v1/nodes", f"n-{t.ns}"
    status = {"capacity": {"cpu": "4", "memory": "8388608Ki"}, "conditions": [{"type": "Ready", "status": "True"}]}
    t.call("POST", path, {"metadata": {"name": name}, "status": status})
    t.call("PATCH", f"{path}/{name}/status", {"status": {"allocatable": {"kubernetes.io/batch-cpu": "1000", "cpu": "3500m"}}}, MERGE)
    t.call("PATCH", f"{path}/{name}", {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "8"}}}, MERGE)
    t.call("PATCH", f"{path}/{name}", {"spec": {"taints": [{"key": "k", "effect": "Nope"}]}}, MERGE)
    t.call("PATCH", f"{path}/{name}/status", {"status": {"allocatable": {"kubernetes.io/batch-cpu": "0.5"}}}, MERGE)
    t.call("DELETE", f"{path}/{name}")


def widget_crd(group: str) -> dict[str, Any]:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "either": {"x-kubernetes-int-or-string": True},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "parts": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}},
            },
        },
    }
    root = {"type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": {"ok": {"type": "boolean"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]},
    }


def custom_resources(t: Transcript) -> None:
    group = f"{t.ns}.example.com"
    t.raw("POST", CRDS, widget_crd(group))
    path = f"/apis/{group}/v1/namespaces/{{ns}}/widgets"
    for _ in range(50):
        if t.raw("GET", path)[0] == 200:
            break
        settle()
    t.call("GET", f"{CRDS}/widgets.{group}")

    def widget(called: str, **spec: Any) -> dict[str, Any]:
        return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": called}, "spec": spec}

    t.call("POST", path, {**widget("w", size=1, junk=True, free={"k": [1]}), "status": {"ok": True}})
    for bad in ({"size": 0}, {"size": 11}, {}, {"size": "x"}, {"size": 1, "colour": "green"}, {"size": 1, "name": "ABC"}, {"size": 1, "either": []},  # noqa: E501
                {"size": 1, "parts": [{"name": "a"}, {"name": "a"}]}):  # fmt: skip
        t.call("POST", path, widget("bad", **bad))
    for bad in ({"size": 1, "name": "toolong"}, {"size": 1, "parts": [{}]}):
        status, out = t.raw("POST", path, widget("bad", **bad))
        t.note(status=status, reason=out["reason"], causes=len(out["details"]["causes"]))
    t.call("PUT", path + "/w", widget("w", size=2))
    t.call("PATCH", path + "/w", {"spec": {"size": 2}, "status": {"ok": False}}, MERGE)
    t.call("PATCH", path + "/w/status", {"spec": {"size": 9}, "status": {"ok": True}, "metadata": {"labels": {"a": "b"}}}, MERGE)
    t.call("PATCH", path + "/w", {"spec": {"size": 3}}, STRATEGIC)
    status, out = t.raw("POST", path, {"metadata": {"name": "x"}, "spec": {"size": 1}})
    t.note(status=status, reason=out["reason"])
    t.call("GET", path)
    t.call("DELETE", path + "/w")
    t.raw("DELETE", f"{CRDS}/widgets.{group}")


def crd_errors(t: Transcript) -> None:
    def variant(**change: Any) -> dict[str, Any]:
        crd = widget_crd(f"{t.ns}.bad.example.com")
        crd["spec"].update(change)
        return crd

    for crd in (variant(scope="Nowhere"), variant(versions=[]), variant(group="other.example.com")):
        status, out = t.raw("POST", CRDS, crd)
        t.note(
            status=status,
            reason=out.get("reason"),
            fields=sorted({c["field"] for c in out["details"]["causes"] if c["field"].startswith("spec")}),
        )


def server_side_apply(t: Transcript) -> None:
    path = MAPS + "/m?fieldManager="
    t.call("PATCH", path + "one", config_map(a="1", b="2"), APPLY)
    t.call("PATCH", path + "two", config_map(a="9"), APPLY)
    t.call("PATCH", path + "two&force=true", config_map(a="9"), APPLY)
    t.call("PATCH", path + "one", config_map(), APPLY)
    t.call("PATCH", MAPS + "/m", config_map(), APPLY)
    t.managers(MAPS + "/m")
    t.raw("PATCH", MAPS + "/m?fieldManager=editor", {"data": {"a": "10"}}, MERGE)
    t.managers(MAPS + "/m")
    t.call("PATCH", path + "three", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "managedFields": [{}]}}, APPLY)


def apply_lists(t: Transcript) -> None:
    def deployment(**container: Any) -> dict[str, Any]:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}

    path = DEPLOYMENTS + "/d?fieldManager="
    t.raw("PATCH", path + "one", deployment(name="c", image="i:1", env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80}]), APPLY)
    t.raw("PATCH", path + "two", deployment(name="side", image="s:1"), APPLY)
    t.call("PATCH", path + "one", deployment(name="c", image="i:2", env=[{"name": "B", "value": "1"}]), APPLY)
    t.call("PATCH", path + "two", deployment(name="c", image="i:3"), APPLY)
    t.managers(DEPLOYMENTS + "/d")


def namespaces(t: Transcript) -> None:
    name = t.ns + "-x"
    t.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    t.raw("POST", f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "held", "finalizers": ["x.io/hold"]}})
    t.call("DELETE", f"/api/v1/namespaces/{name}")
    t.call("POST", f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "late"}})
    t.raw("PATCH", f"/api/v1/namespaces/{name}/configmaps/held", {"metadata": {"finalizers": None}}, MERGE)
    status, out = t.raw("GET", f"/api/v1/namespaces/{name}")
    if status == 200:
        out["spec"] = {"finalizers": []}
        t.raw("DELETE", f"/api/v1/namespaces/{name}/configmaps/held")
        t.raw("PUT", f"/api/v1/namespaces/{name}/finalize", out)
    settle()
    t.call("GET", f"/api/v1/namespaces/{name}")
    t.call("DELETE", "/api/v1/namespaces/default")


def leases(t: Transcript) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-01-01T00:00:00.123456Z"}
    made = t.call("POST", path, {"metadata": {"name": "l"}, "spec": spec})
    t.note(micro=made["spec"]["renewTime"][-4:])
    t.call("PUT", path + "/l", {**made, "spec": {**spec, "holderIdentity": "you"}})
    t.call("PUT", path + "/l", {**made, "spec": {**spec, "holderIdentity": "late"}})
    t.call("POST", path, {"metadata": {"name": "z"}, "spec": {"leaseDurationSeconds": 0}})


def bad_bodies(t: Transcript) -> None:
    status, _ = t.raw("POST", PODS, "{not json")
    t.note(status=status)
    status, out = t.raw("POST", PODS, {**pod(), "spec": {"containers": "x"}})
    t.note(status=status, reason=out["reason"])
    status, out = t.raw("POST", PODS, {**pod(), "kind": "Node"})
    t.note(status=status, reason=out["reason"])
    status, out = t.raw("POST", PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "lots"}}}]))
    t.note(status=status, reason=out["reason"])
    status, out = t.raw("PATCH", PODS + "/p", {"a": 1}, "application/unknown")
    t.note(status=status, reason=out["reason"])


SCENARIOS = (
    create_defaults, create_errors, read_errors, update_conflicts, patches, pod_immutability, status_subresource, bindings, deletion,
    finalizers, lists, delete_collection, watches, pod_watch_by_node, generate_name, dry_run, deployments, priorities, nodes,
    custom_resources, crd_errors, server_side_apply, apply_lists, namespaces, leases, bad_bodies,
)  # fmt: skip
