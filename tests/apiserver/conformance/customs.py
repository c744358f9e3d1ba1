"""What is compared, continued: custom resources in depth, and server-side apply on them."""

from __future__ import annotations

from typing import Any

from .reads import PARTIAL, TABLE
from .scenarios import CRDS
from .transcript import JSON_PATCH, MERGE, Transcript, settle

STRING = {"type": "string"}
_ANY = {"x-kubernetes-preserve-unknown-fields": True}


def crd(t: Transcript, plural: str, schema: dict[str, Any], **version: Any) -> dict[str, Any]:
    """A namespaced definition in a group of this run."""
    group = f"{t.ns}.example.com"
    one = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": schema}},
        **version,
    }
    names = {"plural": plural, "kind": plural.capitalize()[:-1]}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [one]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": spec,
    }


def serve(t: Transcript, definition: dict[str, Any]) -> str:
    """Create a definition and wait until it is served; returns the path of its objects."""
    status, out = t.raw("POST", CRDS, definition)
    assert status == 201, out
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/namespaces/{{ns}}/{spec['names']['plural']}"
    for _ in range(100):
        if t.raw("GET", path)[0] == 200:
            break
        settle()
    return path


def remove(t: Transcript, plural: str) -> None:
    t.raw("DELETE", f"{CRDS}/{plural}.{t.ns}.example.com")


def body(t: Transcript, kind: str, name: str = "w", version: str = "v1", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": f"{t.ns}.example.com/{version}", "kind": kind, "metadata": {"name": name}, **parts}


def defaults_and_pruning(t: Transcript) -> None:
    inner = {"type": "object", "default": {}, "properties": {"on": {"type": "boolean", "default": True}, "n": {"type": "integer"}}}
    spec = {
        "type": "object",
        "properties": {
            "deep": inner,
            "bare": {"type": "object", "properties": {"on": {"type": "boolean", "default": True}}},
            "list": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": STRING, "port": {"type": "integer", "default": 80}}},
            },
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "string", "default": "d"}}}},
            "free": {"type": "object", **_ANY, "properties": {"known": {"type": "object", "properties": {"a": STRING}}}},
            "gone": {"type": "string", "nullable": True, "default": "there"},
            "none": {"type": "string", "nullable": True},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": True, **_ANY},
            "either": {"x-kubernetes-int-or-string": True},
            "strings": {"type": "array", "items": STRING, "default": ["a"]},
        },
    }
    status = {"type": "object", "properties": {"ready": {"type": "boolean", "default": False}, "n": {"type": "integer"}}}
    path = serve(t, crd(t, "deeps", {"spec": spec, "status": status}, subresources={"status": {}}))
    t.call("POST", path, body(t, "Deep", "empty"))
    t.call("POST", path, body(t, "Deep", "spec", spec={}, top="x", status={"n": 3}))
    full = {
        "deep": {"n": 1, "junk": 2},
        "bare": {},
        "list": [{"name": "a"}, {"port": 1, "junk": 1}, {}],
        "map": {"k": {}, "l": {"x": "y", "z": 1}},
        "free": {"any": {"thing": [1]}, "known": {"a": "b", "junk": 1}},
        "gone": None,
        "none": None,
        "either": "50%",
        "strings": [],
    }
    t.call("POST", path, body(t, "Deep", "full", spec=full))
    t.call("POST", f"{path}?fieldValidation=Strict", body(t, "Deep", "strict", spec=full, top=1))
    t.call("POST", f"{path}?fieldValidation=Ignore", body(t, "Deep", "ignore", spec={"junk": 1}))
    t.call("POST", path, body(t, "Deep", "nulls", spec={"deep": None, "strings": None, "bare": {"on": None}}))
    t.call(
        "POST",
        path,
        body(t, "Deep", "emb", spec={"embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"y": 1}}}),
    )
    for embedded in ({}, {"kind": "Pod"}):
        t.verdict("POST", path, body(t, "Deep", "bad", spec={"embedded": embedded}))
    t.call("PATCH", path + "/empty/status", {"status": {"n": 5, "junk": 1}}, MERGE)
    t.call("PATCH", path + "/empty", {"spec": {"deep": {"n": 2}}, "status": {"n": 6}}, MERGE)
    t.call("PATCH", path + "/empty", {"spec": {"deep": None}}, MERGE)
    t.call("PUT", path + "/empty/status", body(t, "Deep", "empty", status={"ready": True}))
    stored = t.raw("GET", path + "/empty")[1]
    t.call(
        "PUT",
        path + "/empty/status",
        {
            **stored,
            "spec": {"deep": {"n": 9}},
            "metadata": {**stored["metadata"], "labels": {"l": "v"}, "finalizers": ["x.io/f"]},
            "status": {"ready": True},
        },
    )
    stored = t.raw("GET", path + "/empty")[1]
    t.call("PUT", path + "/empty", {**stored, "spec": {"deep": {"n": 9}}, "status": {"n": 1}})
    t.call(
        "PATCH",
        path + "/empty",
        [{"op": "replace", "path": "/status/ready", "value": False}, {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}],
        JSON_PATCH,
    )
    remove(t, "deeps")


def validation(t: Transcript) -> None:
    spec = {
        "type": "object",
        "properties": {
            "s": {"type": "string", "minLength": 2, "maxLength": 4},
            "re": {"type": "string", "pattern": "^a+$"},
            "n": {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "multipleOf": 5},
            "f": {"type": "number", "maximum": 1.5},
            "i32": {"type": "integer", "format": "int32"},
            "when": {"type": "string", "format": "date-time"},
            "length": {"type": "string", "format": "duration"},
            "ip": {"type": "string", "format": "ipv4"},
            "id": {"type": "string", "format": "uuid"},
            "bytes": {"type": "string", "format": "byte"},
            "odd": {"type": "string", "format": "no-such-format"},
            "arr": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}},
            "set": {"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
            "obj": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": STRING},
            "en": {"type": "integer", "enum": [1, 2]},
            "one": {"type": "object", "properties": {"a": STRING, "b": STRING}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "any": {"type": "object", "properties": {"a": STRING, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "all": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "allOf": [{"properties": {"a": {"minimum": 5}}}],
                "not": {"properties": {"a": {"enum": [7]}}},
            },
            "either": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+%?$"},
        },
    }
    path = serve(t, crd(t, "rules", {"spec": spec}))
    good = (
        {
            "s": "abc",
            "re": "aa",
            "n": 10,
            "f": 1,
            "i32": 5,
            "when": "2024-01-01T00:00:00Z",
            "length": "1h",
            "ip": "1.2.3.4",
            "bytes": "AAA=",
            "odd": "x",
            "arr": [1],
            "set": ["a", "b"],
            "obj": {"a": "b"},
            "en": 2,
        },
        {"one": {"a": "x"}, "any": {"b": "y"}, "all": {"a": 6}},
        {"either": 5},
        {"either": "5%"},
        {"f": 1.5, "n": 15.0},
    )
    for number, one in enumerate(good):
        t.verdict("POST", path, body(t, "Rule", f"good{number}", spec=one))
    for bad in (
        {"s": "a"},
        {"s": "abcde"},
        {"s": 5},
        {"re": "b"},
        {"n": 1},
        {"n": 7},
        {"n": 5.5},
        {"n": "5"},
        {"f": 1.6},
        {"f": "x"},
        {"when": "yesterday"},
        {"length": "1 fortnight"},
        {"ip": "1.2.3"},
        {"id": "x"},
        {"bytes": "!"},
        {"arr": []},
        {"arr": [1, 2, 3]},
        {"arr": ["x"]},
        {"arr": {}},
        {"set": ["a", "a"]},
        {"obj": {}},
        {"obj": {"a": "1", "b": "2", "c": "3"}},
        {"obj": {"a": 1}},
        {"en": 3},
        {"all": {"a": 4}},
        {"either": "x"},
        {"either": 1.5},
        {"either": True},
        {"s": None},
        {"s": "a", "re": "b"},
    ):
        t.verdict("POST", path, body(t, "Rule", "bad", spec=bad))
    for bad in ({"one": {}}, {"one": {"a": "x", "b": "y"}}, {"any": {}}, {"all": {"a": 7}}, {"i32": 5000000000}):
        status, out = t.raw("POST", path, body(t, "Rule", "bad", spec=bad))
        t.note(status=status, reason=out.get("reason"))
    t.verdict("POST", path, body(t, "Rule", "bad", spec=[]))
    t.verdict("POST", path, body(t, "Rule", "bad", spec="x"))
    t.verdict("PATCH", path + "/good0", {"spec": {"en": 9}}, MERGE)
    t.verdict("PATCH", path + "/good0", [{"op": "add", "path": "/spec/arr/-", "value": "x"}], JSON_PATCH)
    for wrong in (
        {**body(t, "Rule"), "apiVersion": "other/v1"},
        {**body(t, "Other")},
        {"kind": "Rule", "metadata": {"name": "x"}},
        {"apiVersion": f"{t.ns}.example.com/v1", "metadata": {"name": "x"}},
        {},
        "null",
        "[]",
        body(t, "Rule", "Bad_Name"),
        {**body(t, "Rule"), "metadata": {"name": "x", "labels": {"a": 1}}},
        {**body(t, "Rule"), "metadata": {"name": "x", "junk": 1}},
        {**body(t, "Rule"), "metadata": None},
        {**body(t, "Rule"), "metadata": "x"},
    ):
        t.verdict("POST", path, wrong)
    t.verdict("PUT", path + "/good0", body(t, "Rule", "good0", spec={}))
    t.verdict("PUT", path + "/none", body(t, "Rule", "none", spec={}))
    t.verdict("PUT", path + "/good0/status", body(t, "Rule", "good0"))
    t.verdict("GET", path + "?fieldSelector=spec.s%3Dx")
    t.verdict("GET", path + "?fieldSelector=metadata.name%3Dgood4")
    t.verdict("DELETE", path + "?fieldSelector=metadata.name%3Dgood4")
    remove(t, "rules")


def definitions(t: Transcript) -> None:
    def outcome(schema: dict[str, Any], **change: Any) -> None:
        made = crd(t, "odds", schema)
        made["spec"]["versions"][0].update(change.pop("version", {}))
        made["spec"].update(change)
        status, out = t.raw("POST", CRDS + "?dryRun=All", made)
        # what the conversion to the internal form adds says nothing new
        fields = {c["field"] for c in (out.get("details") or {}).get("causes") or ()} - {"spec.version", "status.storedVersions"}
        t.note(status=status, reason=out.get("reason"), fields=sorted(fields))

    for schema in (
        {"a": {}},
        {"a": {"type": "nope"}},
        {"a": {"type": "array"}},
        {"a": {"type": "string", "default": 5}},
        {"a": {"type": "object", "additionalProperties": False}},
        {"a": {"type": "object", "properties": {"b": STRING}, "additionalProperties": STRING}},
        {"a": {"type": "string", "pattern": "("}},
        {"a": {"$ref": "#/x"}},
        {"a": {"type": "array", "items": STRING, "x-kubernetes-list-type": "map"}},
        {
            "a": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": STRING}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["n"],
            }
        },
        {"a": {"type": "array", "items": STRING, "uniqueItems": True}},
        {"a": {"type": "string", "nullable": True}},
        {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
        {"metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}},
    ):
        outcome(schema)
    outcome({"a": STRING}, version={"subresources": {"scale": {"specReplicasPath": "spec.n", "statusReplicasPath": ".status.n"}}})
    outcome({"a": STRING}, version={"additionalPrinterColumns": [{"name": "A", "type": "nope", "jsonPath": "x"}]})
    outcome({"a": STRING}, version={"schema": None})
    outcome({"a": STRING}, version={"storage": False})
    outcome({"a": STRING}, version={"name": "Bad"})
    outcome({"a": STRING}, names={"plural": "others", "kind": "Odd"})
    outcome({"a": STRING}, names={"plural": "odds", "kind": "bad kind"})
    outcome({"a": STRING}, preserveUnknownFields=True)
    outcome({"a": STRING}, conversion={"strategy": "Webhook"})
    outcome({"a": STRING}, scope="")
    made = crd(t, "evens", {"a": STRING})
    t.raw("POST", CRDS, made)
    t.verdict("POST", CRDS, made)
    remove(t, "evens")


def versions_and_scale(t: Transcript) -> None:
    schema = {
        "spec": {"type": "object", "properties": {"n": {"type": "integer"}, "old": STRING}},
        "status": {"type": "object", "properties": {"n": {"type": "integer"}, "sel": STRING}},
    }
    columns = [
        {"name": "N", "type": "integer", "jsonPath": ".spec.n"},
        {"name": "Sel", "type": "string", "jsonPath": ".status.sel", "priority": 1, "description": "d"},
        {"name": "First", "type": "string", "jsonPath": ".metadata.labels.a\\.b/c"},
    ]
    scale = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.sel"}
    made = crd(t, "scales", schema, subresources={"status": {}, "scale": scale}, additionalPrinterColumns=columns)
    made["spec"]["versions"].append(
        {
            "name": "v1beta1",
            "served": True,
            "storage": False,
            "schema": {
                "openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
            },
        }
    )
    made["spec"]["versions"].append(
        {"name": "v1alpha1", "served": False, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}
    )
    path = serve(t, made)
    older = path.replace("/v1/", "/v1beta1/")
    t.call("POST", path, body(t, "Scale", spec={"n": 2}))
    t.call("PATCH", older + "/w", {"spec": {"n": 3}}, MERGE)
    t.call("POST", older, body(t, "Scale", "x", "v1beta1", spec={"n": 1}))
    t.call("GET", path.replace("/v1/", "/v1alpha1/"))
    t.call("GET", path + "/w/scale")
    t.call("PATCH", path + "/w/status", {"status": {"n": 1, "sel": "a=b"}}, MERGE)
    t.call("PATCH", path + "/w/scale", {"spec": {"replicas": 7}}, MERGE)
    t.call("PUT", path + "/w/scale", {"metadata": {"name": "w"}, "spec": {"replicas": 4}})
    status, out = t.raw("PATCH", path + "/w/scale", {"spec": {"replicas": -1}}, MERGE)
    t.note(status=status, reason=out["reason"])
    t.raw("PATCH", path + "/w", {"metadata": {"labels": {"a.b/c": "lab"}}}, MERGE)
    out = t.raw("GET", path, accept=TABLE)[1]
    t.note(columns=[{**column, "description": ""} for column in out["columnDefinitions"]], cells=[row["cells"] for row in out["rows"]])
    t.call("GET", path + "/w", accept=PARTIAL)
    remove(t, "scales")


SCENARIOS = (defaults_and_pruning, validation, definitions, versions_and_scale)
