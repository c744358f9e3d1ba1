"""What is compared, continued: custom resources whose definition changes, is refused its names, or goes; and fields that selectors name."""

from __future__ import annotations

import copy
import urllib.parse
from typing import Any

from .customs import STRING, body, crd, remove, serve
from .scenarios import CRDS
from .transcript import MERGE, Transcript, settle

INT = {"type": "integer"}


def _until(t: Transcript, path: str, *wanted: str) -> Any:
    """The object once conditions of it have these statuses ("Established=True"), or "gone" once there is none."""
    for _ in range(400):
        status, out = t.raw("GET", path)
        if status == 404:
            return "gone"
        told = {f"{c['type']}={c['status']}" for c in (out.get("status") or {}).get("conditions") or ()}
        if {*wanted} <= told:
            return out
        settle()
    raise AssertionError(f"{path} never had {wanted}")


def _told(out: Any) -> Any:
    """The conditions of a definition."""
    return sorted([c["type"], c["status"], c["reason"], c["message"]] for c in out["status"]["conditions"])


def ratcheting(t: Transcript) -> None:
    """What a stricter definition would not take any more may stay where it is."""
    pair = {"type": "object", "required": ["k"], "properties": {"k": STRING, "v": STRING}}
    pairs = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "maxItems": 5, "items": pair}
    properties = {"s": STRING, "n": INT, "l": {"type": "array", "maxItems": 5, "items": STRING}, "m": pairs}
    made = crd(t, "rats", {"spec": {"type": "object", "properties": properties}})
    path, named = serve(t, made), f"{CRDS}/{made['metadata']['name']}"
    t.raw("POST", path, body(t, "Rat", spec={"s": "long", "n": 50, "l": ["x"], "m": [{"k": "a", "v": "long"}, {"k": "b", "v": "ok"}]}))
    stricter = copy.deepcopy(t.raw("GET", named)[1])
    spec = stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["s"]["maxLength"] = 2
    spec["properties"]["n"]["maximum"] = 10
    spec["properties"]["l"]["minItems"] = 2
    spec["properties"]["m"]["items"]["properties"]["v"]["maxLength"] = 2
    spec["properties"]["q"], spec["required"] = STRING, ["q"]
    spec["x-kubernetes-validations"] = [{"rule": "self.n < 100"}, {"rule": "self.s == 'ab'", "message": "must be ab"}]
    t.note(stricter=t.raw("PUT", named, stricter)[0])
    for _ in range(400):
        if t.raw("POST", path + "?dryRun=All", body(t, "Rat", "probe", spec={"s": "long"}))[0] == 422:
            break
        settle()
    t.verdict("PATCH", path + "/w", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    for change in (
        {"n": 51},
        {"q": "x"},
        {"s": "longer"},
        {"l": ["y"]},
        {"m": [{"k": "a", "v": "long"}, {"k": "b", "v": "no"}]},
        {"m": [{"k": "c", "v": "long"}]},
        {"s": "ab"},
        {"s": "ac"},
    ):
        t.verdict("PATCH", path + "/w", {"spec": change}, MERGE)
    remove(t, "rats")


def selectable_fields(t: Transcript) -> None:
    schema = {"spec": {"type": "object", "properties": {"color": STRING, "n": INT, "b": {"type": "boolean"}}}}
    fields = [{"jsonPath": f".spec.{key}"} for key in ("color", "n", "b")]
    path = serve(t, crd(t, "sels", schema, selectableFields=fields))
    for name, spec in (("a", {"color": "red", "n": 1, "b": True}), ("b", {"color": "blue", "n": 2}), ("c", {})):
        t.raw("POST", path, body(t, "Sel", name, spec=spec))
    settle()
    for query in (
        "spec.color=red",
        "spec.color!=red",
        "spec.n=2",
        "spec.b=true",
        "spec.b=",
        "spec.color=",
        "spec.other=1",
        "metadata.name=a,spec.color=red",
    ):
        status, out = t.raw("GET", f"{path}?fieldSelector={urllib.parse.quote(query)}")
        t.note(query=query, status=status, items=[item["metadata"]["name"] for item in out.get("items", ())])
    start = t.raw("GET", path)[1]["metadata"]["resourceVersion"]
    t.raw("PATCH", path + "/a", {"spec": {"color": "blue"}}, MERGE)
    settle()
    for color in ("red", "blue"):
        t.watch(f"{path}?resourceVersion={start}&fieldSelector=spec.color%3D{color}")
    t.verdict("DELETE", path + "?fieldSelector=spec.color%3Dblue")
    settle()
    t.note(left=[item["metadata"]["name"] for item in t.raw("GET", path)[1]["items"]])
    remove(t, "sels")


def selectable_field_errors(t: Transcript) -> None:
    properties: dict[str, Any] = {f"c{i}": STRING for i in range(9)}
    properties |= {"f": {"type": "number"}, "l": {"type": "array", "items": STRING}, "d": {"type": "string", "format": "date-time"}}
    properties["m"] = {"type": "object", "additionalProperties": STRING}
    schema = {"spec": {"type": "object", "properties": properties}}
    for paths in (
        [".spec.missing"],
        ["spec.c0"],
        [".metadata.name"],
        [".kind"],
        [".spec"],
        [".spec.c0", ".spec.c0"],
        [".spec.l[0]"],
        [".spec.f"],
        [""],
        [f".spec.c{i}" for i in range(9)],
        [".spec.m.x"],
        [".spec.d"],
    ):
        made = crd(t, "sexs", schema, selectableFields=[{"jsonPath": path} for path in paths])
        status, out = t.raw("POST", CRDS + "?dryRun=All", made)
        causes = [[c["field"], c["reason"], c["message"]] for c in (out.get("details") or {}).get("causes") or ()]
        t.note(paths=paths[:2], status=status, causes=causes)


def taken_names(t: Transcript) -> None:
    """A kind has one definition in a group; who comes later is served once the name is free."""
    first = crd(t, "lifes", {"spec": {"type": "object"}})
    first["spec"]["names"]["shortNames"] = ["lf"]
    path = serve(t, first)
    second = crd(t, "others", {"spec": {"type": "object"}})
    named = f"{CRDS}/{second['metadata']['name']}"
    for change in ({"kind": "Life", "listKind": "Lives"}, {"kind": "Life"}, {"singular": "lf"}, {"shortNames": ["ot", "lf"]}):
        second["spec"]["names"] = {"plural": "others", "kind": "Other", **change}
        t.raw("POST", CRDS, second)
        told = _until(t, named, "NamesAccepted=False")
        t.note(conditions=_told(told), accepted=told["status"]["acceptedNames"], served=t.raw("GET", path.replace("lifes", "others"))[0])
        remove(t, "others")
        _until(t, named, "never")
    second["spec"]["names"] = {"plural": "others", "kind": "Life"}
    t.raw("POST", CRDS, second)
    _until(t, named, "NamesAccepted=False")
    remove(t, "lifes")
    told = _until(t, named, "NamesAccepted=True", "Established=True")
    t.note(conditions=_told(told), accepted=told["status"]["acceptedNames"])
    remove(t, "others")


def definition_that_goes(t: Transcript) -> None:
    made = crd(t, "leavers", {"spec": {"type": "object"}}, subresources={"status": {}})
    path, named = serve(t, made), f"{CRDS}/{made['metadata']['name']}"
    group = f"/apis/{t.ns}.example.com"
    t.verdict("PATCH", named + "?dryRun=All", {"spec": {"scope": "Cluster"}}, MERGE)
    t.verdict("PATCH", named + "?dryRun=All", {"spec": {"versions": [{**made["spec"]["versions"][0], "name": "v2"}]}}, MERGE)
    held = {**body(t, "Leaver", "held"), "metadata": {"name": "held", "finalizers": ["x.io/f"]}}
    t.raw("POST", path, held)
    t.raw("POST", path, body(t, "Leaver", "free"))
    t.note(deleted=t.raw("DELETE", named)[0])
    told = _until(t, named, "Terminating=True")
    meta = told["metadata"]
    t.note(conditions=[c[:2] for c in _told(told)], finalizers=meta["finalizers"], deleting=bool(meta.get("deletionTimestamp")))
    for _ in range(400):
        left = t.raw("GET", path)[1]["items"]
        if [item["metadata"]["name"] for item in left] == ["held"] and left[0]["metadata"].get("deletionTimestamp"):
            break
        settle()
    t.note(left=[item["metadata"]["name"] for item in left])
    t.call("POST", path, body(t, "Leaver", "late"))
    t.call("PUT", path + "/late", body(t, "Leaver", "late"))
    t.note(verbs=t.raw("GET", group + "/v1")[1]["resources"][0]["verbs"])
    t.raw("PATCH", path + "/held", {"metadata": {"finalizers": None}}, MERGE)
    t.note(definition=_until(t, named, "never"))
    for _ in range(400):
        if t.raw("GET", group)[0] == 404:
            break
        settle()
    t.note(group=t.raw("GET", group)[0], objects=t.raw("GET", path)[0])


SCENARIOS = (ratcheting, selectable_fields, selectable_field_errors, taken_names, definition_that_goes)
