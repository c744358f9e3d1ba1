"""What is compared, continued: patches, validation of fields, deletions and updates in their less usual forms."""

from __future__ import annotations

from typing import Any

from .scenarios import DEPLOYMENTS, MAPS, PODS, config_map, pod
from .transcript import APPLY, JSON_PATCH, MERGE, STRATEGIC, Transcript, settle

YAML = "application/yaml"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"


def json_patches(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map(a="1", b="2"))
    path = MAPS + "/m"
    for patch in (
        [{"op": "move", "from": "/data/a", "path": "/data/c"}],
        [{"op": "copy", "from": "/data/c", "path": "/data/d"}],
        [{"op": "replace", "path": "/data/none", "value": "x"}],
        [{"op": "remove", "path": "/data/none"}],
        [{"op": "remove", "path": "/nothing/here"}],
        [{"op": "add", "path": "/nothing/here", "value": "x"}],
        [{"op": "test", "path": "/data/c", "value": "1"}, {"op": "replace", "path": "/data/c", "value": "3"}],
        [{"op": "test", "path": "/data/none", "value": "1"}],
        [{"op": "test", "path": "/data/none", "value": None}],
        [{"op": "move", "from": "/data/none", "path": "/data/x"}],
        [{"op": "copy", "from": "/data/none", "path": "/data/x"}],
        [{"op": "add", "path": "/metadata/finalizers", "value": []}],
        [
            {"op": "add", "path": "/metadata/finalizers", "value": ["x.io/a"]},
            {"op": "add", "path": "/metadata/finalizers/-", "value": "x.io/b"},
        ],
        [{"op": "add", "path": "/metadata/finalizers/5", "value": "x.io/c"}],
        [{"op": "remove", "path": "/metadata/finalizers/7"}],
        [{"op": "replace", "path": "/metadata/finalizers/0", "value": "x.io/z"}],
        [{"op": "replace", "path": "", "value": {"data": {"all": "new"}}}],
        [{"op": "add", "path": "/metadata/annotations", "value": {"a~/b": "1"}}],
        [{"op": "replace", "path": "/metadata/annotations/a~0~1b", "value": "2"}],
        [{"op": "add", "path": "/data/n", "value": 5}],
        [{"op": "replace", "path": "/metadata/name", "value": "other"}],
        [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}],
        [{"op": "nonsense", "path": "/data"}],
        [{"path": "/data"}],
        [],
        {"op": "add", "path": "/data/x", "value": "1"},
        "[{",
        [{"op": "remove", "path": "/metadata/finalizers"}],
    ):
        t.verdict("PATCH", path, patch, JSON_PATCH)


def merge_patches(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map(a="1", b="2"))
    path = MAPS + "/m"
    for patch in (
        {"data": None},
        {"data": {"a": {"b": None}}},
        [],
        "3",
        "",
        {"data": [1]},
        {"metadata": {"labels": {"l": "v"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}},
        {"metadata": {"namespace": "other"}},
        {"kind": "Secret"},
        {"apiVersion": "v2"},
        {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}},
        {"metadata": {"resourceVersion": "0"}},
        {"metadata": {"resourceVersion": ""}},
        {"metadata": {"resourceVersion": "x"}},
        {"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}},
        {"metadata": None},
        {"binaryData": {"x": "!!"}},
        {"binaryData": {"x": "AAA="}, "data": {"x": "y"}},
        {"immutable": True},
        {"data": {"late": "1"}},
        {"immutable": False},
    ):
        t.verdict("PATCH", path, patch, MERGE)


def strategic_patches(t: Transcript) -> None:
    many = [{"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "d", "image": "i:1"}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": many, "nodeSelector": {"x": "y", "z": "w"}}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    t.raw("POST", DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})

    def inner(**change: Any) -> dict[str, Any]:
        return {"spec": {"template": {"spec": change}}}

    for patch in (
        inner(containers=[{"name": "d", "$patch": "delete"}]),
        inner(containers=[{"name": "c", "env": [{"name": "A", "$patch": "delete"}, {"name": "C", "value": "3"}]}]),
        inner(containers=[{"name": "e", "image": "i:2"}], **{"$setElementOrder/containers": [{"name": "e"}, {"name": "c"}]}),
        inner(nodeSelector={"$patch": "replace", "only": "this"}),
        inner(nodeSelector={"$retainKeys": ["q"], "q": "r"}),
        inner(containers=[{"$patch": "replace"}, {"name": "n", "image": "i:3"}]),
        inner(containers=[{"image": "no-name"}]),
        inner(nodeSelector={"$patch": "nonsense"}),
        {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}},
        inner(nodeSelector=None),
        {"spec": {"template": {"spec": {"containers": {}}}}},
    ):
        out = t.raw("PATCH", DEPLOYMENTS + "/d", patch, STRATEGIC)
        body = out[1].get("reason") if out[0] >= 400 else {"strategy": out[1]["spec"]["strategy"], **out[1]["spec"]["template"]["spec"]}
        t.note(status=out[0], spec=body)


def field_validation(t: Transcript) -> None:
    odd = {**config_map(a="1"), "nope": 1, "metadata": {"name": "m", "zzz": True}}
    for how in ("Strict", "Warn", "Ignore", "Nonsense", ""):
        t.call("POST", f"{MAPS}?dryRun=All&fieldValidation={how}", odd)
    t.call("POST", f"{MAPS}?dryRun=All", odd)
    twice = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"1","a":"2"},"data":{"b":"1"}}'
    for how in ("Strict",):
        t.verdict("POST", f"{MAPS}?dryRun=All&fieldValidation={how}", twice)
    deep = pod(containers=[{"name": "c", "image": "i", "imagee": 1, "env": [{"name": "A", "valu": "1"}]}], hostnetwork=True)
    for how in ("Strict", "Warn"):
        t.call("POST", f"{PODS}?dryRun=All&fieldValidation={how}", deep)
    t.verdict("POST", f"{MAPS}?dryRun=All&fieldValidation=Strict", "kind: ConfigMap\nmetadata:\n  name: m\n  name: n\nnope: 1\n", YAML)
    t.raw("POST", MAPS, config_map(a="1"))
    t.call("PUT", f"{MAPS}/m?fieldValidation=Strict", odd)
    t.call("PATCH", f"{MAPS}/m?fieldValidation=Strict", {"nope": 1}, MERGE)
    t.call("PATCH", f"{MAPS}/m?fieldValidation=Warn", {"nope": 1}, STRATEGIC)
    t.call("PATCH", f"{MAPS}/m?fieldValidation=Strict", [{"op": "add", "path": "/nope", "value": 1}], JSON_PATCH)
    for how in ("&fieldValidation=Strict", ""):
        applied = {**odd, "metadata": {"name": "m", "namespace": t.ns}}
        t.call("PATCH", f"{MAPS}/m?fieldManager=one{how}", applied, APPLY)


def dry_runs(t: Transcript) -> None:
    t.call("POST", MAPS + "?dryRun=Some", config_map())
    t.call("POST", MAPS + "?dryRun=", config_map("empty"))
    t.call("POST", MAPS + "?dryRun=All", {"metadata": {"generateName": "x" * 5}, "data": {"a": "b"}} and config_map("g"))
    t.raw("POST", MAPS, config_map(a="1"))
    t.call("PUT", MAPS + "/m?dryRun=All", config_map(a="2"))
    t.call("PATCH", MAPS + "/m?dryRun=All&fieldManager=x", config_map(a="3"), APPLY)
    t.call("PATCH", MAPS + "/fresh?dryRun=All&fieldManager=x", config_map("fresh", a="3"), APPLY)
    t.call("DELETE", MAPS + "/m", {"dryRun": ["All"]})
    t.call("DELETE", MAPS + "/m", {"dryRun": ["Some"]})
    t.call("DELETE", MAPS + "?labelSelector=x%3Dy&dryRun=All")
    t.call("GET", MAPS + "/m")
    t.raw("POST", PODS, pod())
    t.call("POST", PODS + "/p/binding?dryRun=All", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
    t.call("GET", PODS + "/p")


def deletions(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map())
    for options in ({"kind": "ConfigMap", "apiVersion": "v1"}, "["):
        t.verdict("DELETE", MAPS + "/m", options)
    for options in (
        {"gracePeriodSeconds": -1},
        {"propagationPolicy": "Nonsense"},
        {"orphanDependents": True, "propagationPolicy": "Background"},
        {"nope": 1},
        {"preconditions": {"uid": "x"}},
    ):
        t.call("DELETE", MAPS + "/m", options)
    t.call("DELETE", MAPS + "/m?propagationPolicy=Foreground&dryRun=All")
    t.call("DELETE", MAPS + "/m?propagationPolicy=Orphan&dryRun=All")
    t.call("DELETE", MAPS + "/m?orphanDependents=true&dryRun=All")
    t.call("DELETE", MAPS + "/m")
    made = t.raw("POST", MAPS, config_map())[1]
    t.call(
        "DELETE",
        MAPS + "/m",
        {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]},
        },
    )
    t.raw("POST", PODS, pod("b", nodeName="n1", terminationGracePeriodSeconds=7))
    first = t.call("DELETE", PODS + "/b")
    again = t.call("DELETE", PODS + "/b", {"gracePeriodSeconds": 100})
    t.note(longer_is_ignored=first["metadata"]["deletionTimestamp"] == again["metadata"]["deletionTimestamp"])
    t.call("DELETE", PODS + "/b", {"gracePeriodSeconds": 1})
    t.call("DELETE", PODS + "/b", {"gracePeriodSeconds": 0, "preconditions": {"uid": "no"}})
    t.call("DELETE", PODS + "/b", {"gracePeriodSeconds": 0})
    t.raw("POST", PODS, pod("done", nodeName="n1"))
    t.raw("PATCH", PODS + "/done/status", {"status": {"phase": "Succeeded"}}, MERGE)
    t.call("DELETE", PODS + "/done")
    held = pod("held", nodeName="n1")
    held["metadata"]["finalizers"] = ["x.io/a"]
    t.raw("POST", PODS, held)
    t.call("DELETE", PODS + "/held?gracePeriodSeconds=0")
    t.call("PATCH", PODS + "/held", {"metadata": {"finalizers": None}}, MERGE)
    t.call("GET", PODS + "/held")


def collection_deletions(t: Transcript) -> None:
    for name in ("a", "b", "c"):
        t.raw("POST", MAPS, {**config_map(name), "metadata": {"name": name, "labels": {"n": name}}})
    held = {**config_map("held"), "metadata": {"name": "held", "labels": {"n": "h"}, "finalizers": ["x.io/a"]}}
    t.raw("POST", MAPS, held)
    settle()
    t.call("DELETE", MAPS + "?labelSelector=n%20in%20(a)&fieldSelector=metadata.name%3Db")
    t.verdict("DELETE", MAPS + "?labelSelector=n%20in")
    t.call("DELETE", MAPS + "?labelSelector=n%20in%20(a)", {"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}})
    t.call("DELETE", MAPS + "?fieldSelector=metadata.name%3Da")
    t.call("DELETE", MAPS + "?labelSelector=n", {"propagationPolicy": "Background"})
    settle()
    t.call("GET", MAPS + "?labelSelector=n")
    t.raw("PATCH", MAPS + "/held", {"metadata": {"finalizers": None}}, MERGE)
    t.raw("POST", PODS, pod("x"))
    t.raw("POST", PODS, pod("y", nodeName="n1"))
    settle()
    t.call("DELETE", PODS)
    t.call("DELETE", PODS + "?gracePeriodSeconds=0")
    settle()
    t.call("GET", PODS)


def updates(t: Transcript) -> None:
    made = t.raw("POST", MAPS, config_map(a="1"))[1]
    t.call("PUT", MAPS + "/m", {**made, "metadata": {**made["metadata"], "namespace": "other"}})
    t.call("PUT", MAPS + "/m", {**made, "metadata": {**made["metadata"], "resourceVersion": "x"}})
    t.call("PUT", MAPS + "/m", {**made, "metadata": {**made["metadata"], "creationTimestamp": None, "uid": None, "generation": 5}})
    t.verdict("PUT", MAPS + "/m", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m"}})
    t.call("PUT", MAPS + "/m", {"metadata": {}})
    t.call("PUT", LEASES + "/fresh", {"metadata": {"name": "fresh"}, "spec": {"holderIdentity": "me"}})
    t.call("PUT", LEASES + "/none", {"metadata": {"name": "none", "resourceVersion": "5"}})
    t.call("PUT", LEASES + "/none", {"metadata": {"name": "none", "uid": "00000000-0000-4000-8000-000000000000"}})
    secrets = "/api/v1/namespaces/{ns}/secrets"
    t.call("POST", secrets, {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"a": "eA==", "c": "ZA=="}})
    t.call("PATCH", secrets + "/s", {"type": "x/y"}, MERGE)
    t.verdict("PATCH", secrets + "/s", {"data": {"c": "no base64"}}, MERGE)
    t.call("PATCH", secrets + "/s", {"stringData": {"c": "new"}}, MERGE)
    t.verdict("POST", MAPS, {"metadata": {"generateName": "Bad_"}})
    t.call("POST", MAPS, {"metadata": {"name": "x" * 254}})
    t.verdict("POST", MAPS, {"metadata": {"generateName": "y" * 300}})
    t.call("POST", MAPS, {"metadata": {"name": "both", "generateName": "other-"}})
    t.call("POST", MAPS, {"metadata": {"name": "v", "resourceVersion": "5"}})
    t.call(
        "POST",
        MAPS,
        {
            "metadata": {
                "name": "given",
                "uid": "u",
                "creationTimestamp": "2001-01-01T00:00:00Z",
                "deletionTimestamp": "2001-01-01T00:00:00Z",
            }
        },
    )
    t.call("POST", MAPS, {"metadata": {"name": "o", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}})
    two = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": True} for name in ("p", "q")]
    t.call("POST", MAPS, {"metadata": {"name": "o", "ownerReferences": two}})
    t.call("POST", MAPS, {"metadata": {"name": "l", "annotations": {"bad key": "x"}, "labels": {"k": "bad value"}}})


def methods(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map())
    for method, path in (
        ("PUT", MAPS),
        ("PATCH", MAPS),
        ("POST", MAPS + "/m"),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", PODS + "/p/log"),
        ("GET", "/api/v1/nothing"),
        ("GET", "/api/v9/pods"),
        ("GET", "/apis/apps/v9/deployments"),
        ("GET", "/nowhere"),
        ("GET", MAPS + "/m/status"),
        ("PUT", PODS + "/none/status"),
        ("POST", "/api/v1/pods"),
        ("DELETE", "/apis/apps/v1/deployments"),
    ):
        t.call(method, path, {} if method != "GET" else None, MERGE if method == "PATCH" else "application/json")
    t.call("GET", MAPS + "/m", accept="application/xml, application/json;q=0.5")
    for body in (
        "",
        "null",
        "[]",
        '"x"',
        {"apiVersion": "v1", "kind": "ConfigMapList", "items": []},
        {"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}},
        {"metadata": {"name": "n", "labels": {"a": 1}}},
        {"metadata": {"name": "n"}, "data": {"a": 1}},
        {"metadata": "x"},
        {"kind": "ConfigMap", "metadata": {"name": "kind-only"}},
        {"apiVersion": "v1", "metadata": {"name": "version-only"}},
    ):
        t.verdict("POST", MAPS, body)
    t.verdict("POST", MAPS, config_map("t"), "text/plain")
    t.verdict("PATCH", MAPS + "/m", {"data": {"a": "1"}})


SCENARIOS = (json_patches, merge_patches, strategic_patches, field_validation, dry_runs, deletions, collection_deletions, updates, methods)
