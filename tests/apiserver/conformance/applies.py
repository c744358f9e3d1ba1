"""What is compared, continued: server-side apply on custom and on built-in kinds, and who owns what afterwards."""

from __future__ import annotations

from typing import Any

from .customs import STRING, body, crd, remove, serve
from .scenarios import DEPLOYMENTS, MAPS, PODS, config_map, pod
from .transcript import APPLY, MERGE, Transcript


def apply_in_depth(t: Transcript) -> None:
    item = {"type": "object", "required": ["name"], "properties": {"name": STRING, "v": STRING, "w": STRING}}
    spec = {
        "type": "object",
        "properties": {
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": STRING},
            "atomic": {"type": "array", "items": STRING},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": STRING, "b": STRING}},
            "map": {"type": "object", "additionalProperties": STRING},
            "n": {"type": "integer", "default": 3},
        },
    }
    status = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    path = serve(t, crd(t, "applies", {"spec": spec, "status": status}, subresources={"status": {}}))

    def apply(who: str, **parts: Any) -> None:
        t.call("PATCH", f"{path}/w?fieldManager={who}", body(t, "Applie", **parts), APPLY)

    def managers() -> None:
        t.managers(path + "/w")

    apply("a", spec={"keyed": [{"name": "x", "v": "1"}], "set": ["p"], "atomic": ["1"], "whole": {"a": "1"}, "map": {"k": "1"}})
    apply("b", spec={"keyed": [{"name": "y", "v": "2"}, {"name": "x", "w": "9"}], "set": ["q"], "map": {"l": "2"}})
    managers()
    apply("b", spec={"atomic": ["2"]})
    apply("b", spec={"whole": {"b": "1"}})
    apply("b", spec={"keyed": [{"name": "x", "v": "5"}], "n": 3})
    apply("b&force=true", spec={"keyed": [{"name": "x", "v": "5"}], "atomic": ["2"], "n": 4})
    managers()
    apply("a", spec={"set": ["p"]})
    managers()
    apply("b", spec={})
    managers()
    for bad in ({"keyed": [{"v": "no name"}]}, {"keyed": [{"name": "d"}, {"name": "d"}]}, {"set": ["p", "p"]}, {"n": "x"}, {"junk": 1}):
        t.verdict("PATCH", f"{path}/w?fieldManager=a", body(t, "Applie", spec=bad), APPLY)
    t.call("PATCH", f"{path}/w/status?fieldManager=s", body(t, "Applie", spec={"n": 9}, status={"ok": True}), APPLY)
    managers()
    t.call("PATCH", f"{path}/none/status?fieldManager=s", body(t, "Applie", "none", status={"ok": True}), APPLY)
    t.call("PATCH", f"{path}/w?fieldManager=a", {**body(t, "Applie"), "metadata": {"name": "w", "resourceVersion": "1"}}, APPLY)
    t.call("PATCH", f"{path}/w?fieldManager=a", body(t, "Applie", "other"), APPLY)
    t.verdict("PATCH", f"{path}/w?fieldManager=a", {"metadata": {"name": "w"}}, APPLY)
    t.call("PATCH", f"{path}/w?fieldManager={'x' * 129}", body(t, "Applie"), APPLY)
    t.call("PATCH", f"{path}/w?force=true", {"spec": {}}, MERGE)
    t.call(
        "PATCH",
        f"{path}/u?fieldManager=a",
        {**body(t, "Applie", "u"), "metadata": {"name": "u", "uid": "00000000-0000-4000-8000-000000000000"}},
        APPLY,
    )
    t.raw("PATCH", f"{path}/w?fieldManager=edit", {"spec": {"map": {"k": "2", "new": "3"}}}, MERGE)
    managers()
    apply("a", spec={"map": {"k": "3"}})
    t.raw("PATCH", f"{path}/w", {"metadata": {"managedFields": [{}]}}, MERGE)
    t.note(reset=t.raw("GET", path + "/w")[1]["metadata"].get("managedFields"))
    apply("c", spec={"map": {"k": "4"}})
    managers()
    remove(t, "applies")


def apply_builtin(t: Transcript) -> None:
    labels = {"metadata": {"name": "m", "labels": {"a": "1"}, "annotations": {"x": "y"}}}
    t.call("PATCH", MAPS + "/m?fieldManager=a", {**config_map(a="1"), **labels}, APPLY)
    t.call(
        "PATCH",
        MAPS + "/m?fieldManager=b",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"b": "2"}, "finalizers": ["x.io/f"]}},
        APPLY,
    )
    t.call("PATCH", MAPS + "/m?fieldManager=a", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}, APPLY)
    t.call("PATCH", MAPS + "/m?fieldManager=b", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}, APPLY)
    t.raw("PATCH", MAPS + "/m?fieldManager=ed", {"data": {"e": "1"}}, MERGE)
    t.call("PATCH", MAPS + "/m?fieldManager=b", config_map(e="2"), APPLY)
    t.call("PATCH", MAPS + "/m?fieldManager=b", config_map(e="1"), APPLY)
    t.raw("PUT", MAPS + "/m?fieldManager=put", config_map(z="1"))
    t.managers(MAPS + "/m")
    t.call("PATCH", PODS + "/p?fieldManager=a", pod("p", tolerations=[{"key": "k", "operator": "Exists"}]), APPLY)
    t.call(
        "PATCH",
        PODS + "/p?fieldManager=b",
        pod("p", containers=[{"name": "c", "image": "busybox:2", "ports": [{"containerPort": 80}]}]),
        APPLY,
    )
    t.call(
        "PATCH",
        PODS + "/p/status?fieldManager=b",
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"conditions": [{"type": "A", "status": "True"}]}},
        APPLY,
    )
    t.call(
        "PATCH",
        PODS + "/p/status?fieldManager=c",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}]},
        },
        APPLY,
    )
    t.managers(PODS + "/p")
    for odd in (
        "",
        "null",
        "[]",
        "x: [",
        {"kind": "ConfigMap", "metadata": {"name": "m"}},
        {"apiVersion": "v1", "metadata": {"name": "m"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m"}},
        {"apiVersion": "v1", "kind": "ConfigMap"},
    ):
        t.verdict("PATCH", MAPS + "/m?fieldManager=a", odd, APPLY)
    t.verdict(
        "PATCH", MAPS + "/yaml?fieldManager=a", 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata:\n  on: "yes"\n', APPLY
    )
    t.verdict("PATCH", MAPS + "/yaml?fieldManager=a", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata:\n  on: yes\n", APPLY)


def apply_identity(t: Transcript) -> None:
    """What an applied configuration may say of the object's identity and of its manager."""
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}
    t.raw("PATCH", MAPS + "/m?fieldManager=a", config_map(a="1"), APPLY)
    for meta in ({"uid": "nope"}, {"resourceVersion": "1"}, {"managedFields": [{"manager": "x"}]}):
        t.call("PATCH", MAPS + "/m?fieldManager=a", {**named, "metadata": {"name": "m", **meta}}, APPLY)
    t.call("PATCH", MAPS + "/gen?fieldManager=a", {**named, "metadata": {"generateName": "gen"}}, APPLY)
    t.call("PATCH", MAPS + "/m", named, APPLY)
    t.call("POST", MAPS + "?fieldManager=a%0Ab", config_map("n"))
    owner = {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}
    t.verdict("POST", MAPS, {"metadata": {"name": "n", "ownerReferences": [owner]}})


def apply_scales(t: Transcript) -> None:
    """Who sets the replicas through a Scale owns them in the object that is scaled."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}

    def deployment(**spec: Any) -> dict[str, Any]:
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}

    def scale(manager: str, replicas: int) -> None:
        wanted = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": replicas}}
        t.call("PATCH", f"{DEPLOYMENTS}/d/scale?fieldManager={manager}", wanted, APPLY)

    t.raw("PATCH", DEPLOYMENTS + "/d?fieldManager=a", deployment(replicas=2), APPLY)
    t.call("PATCH", DEPLOYMENTS + "/d/scale?fieldManager=hpa", {"spec": {"replicas": 5}}, MERGE)
    t.managers(DEPLOYMENTS + "/d")
    t.call("PATCH", DEPLOYMENTS + "/d?fieldManager=a", deployment(replicas=2), APPLY)
    t.verdict("PATCH", DEPLOYMENTS + "/d?fieldManager=a", deployment(), APPLY)
    scale("other", 7)
    scale("other&force=true", 7)
    t.managers(DEPLOYMENTS + "/d")
    scale("third", 7)
    t.managers(DEPLOYMENTS + "/d")
    scale("third", 8)


def applied_nulls(t: Transcript) -> None:
    """Nulls of an applied custom resource are values, on creation and later; only those with a default or a right to be null are taken."""
    named = {"type": "object", "required": ["name"], "properties": {"name": STRING, "kind": {**STRING, "default": "a"}, "v": STRING}}
    listed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "kind"], "items": named}
    fields = {
        "s": STRING,
        "d": {**STRING, "default": "x"},
        "n": {**STRING, "nullable": True},
        "l": listed,
        "items": {"type": "array", "items": STRING},
        "m": {"type": "object", "additionalProperties": STRING},
        "md": {"type": "object", "additionalProperties": {**STRING, "default": "y"}},
    }
    path = serve(t, crd(t, "nulls", {"spec": {"type": "object", "properties": fields}}))
    t.raw("POST", path, body(t, "Null", "old", spec={"s": "1"}))
    for spec in (
        {"s": None}, {"d": None}, {"n": None}, {"m": None}, {"m": {"a": None}}, {"md": {"a": None}}, {"l": None}, {"items": [None]},
        {"l": [{"name": "a", "v": None}]}, {"l": [{"name": "a"}]}, {"l": [{"name": "a", "kind": "a", "v": "1"}]},
    ):  # fmt: skip
        t.verdict("POST", path + "?dryRun=All", body(t, "Null", "sent", spec=spec))
        for name in ("new", "old"):
            t.verdict("PATCH", f"{path}/{name}?fieldManager=m&dryRun=All", body(t, "Null", name, spec=spec), APPLY)
    remove(t, "nulls")


SCENARIOS = (applied_nulls, apply_in_depth, apply_builtin, apply_identity, apply_scales)
