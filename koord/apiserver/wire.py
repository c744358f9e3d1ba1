"""Objects to bytes: the stored bytes serve every reader, with the head (`kind`, `apiVersion`) cut or exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource


# events.k8s.io/v1 -> v1
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
    "reportingController": "reportingComponent",
}
_BACK = {v: k for k, v in _NAMES.items()}


def from_wire(obj: Obj) -> Obj:
    """To the stored form."""
    out = {_NAMES.get(key, key): value for key, value in obj.items()}
    out["kind"], out["apiVersion"] = "Event", "v1"
    return out


def to_wire(obj: Obj) -> Obj:
    """From the stored form."""
    out: Obj = {"kind": "Event", "apiVersion": "events.k8s.io/v1"}
    for key, value in obj.items():
        if key not in out:
            out[_BACK.get(key, key)] = value
    return out


_FIRST = ("kind", "apiVersion", "metadata", "spec")
_LAST = "status"


def canonical(obj: Obj, kind: str, api_version: str) -> Obj:
    """The object with its keys in the stored order: kind, apiVersion, metadata, spec, the rest, status."""
    out: Obj = {"kind": kind, "apiVersion": api_version, "metadata": obj["metadata"]}
    if "spec" in obj:
        out["spec"] = obj["spec"]
    for key, value in obj.items():
        if key not in _FIRST and key != _LAST:
            out[key] = value
    if _LAST in obj:
        out[_LAST] = obj[_LAST]
    return out


def head_length(raw: bytes) -> int:
    """Length of `{"kind":"…","apiVersion":"…",` at the start of stored bytes."""
    return raw.index(b',"metadata":') + 1


def raw_of(entry: Entry, resource: Resource) -> bytes:
    """The object as this resource's version shows it."""
    raw = entry.raw
    if resource.to_wire is not None:
        return orjson.dumps(resource.to_wire(entry.copy()))
    if raw.startswith(resource.head):
        return raw
    return resource.head + raw[head_length(raw) :]


def obj_of(entry: Entry, resource: Resource) -> Obj:
    """A copy of the object in this resource's version."""
    obj = entry.copy()
    if resource.to_wire is not None:
        return resource.to_wire(obj)
    obj["apiVersion"] = resource.api_version
    return obj


def item_of(entry: Entry, resource: Resource) -> bytes:
    """The object as a list item. Items of built-in lists carry neither kind nor apiVersion, as kube-apiserver's do."""
    raw = raw_of(entry, resource)
    if resource.custom:
        return raw
    return b"{" + raw[len(resource.head) :]


def list_body(resource: Resource, items: list[bytes], rv: int, continue_: str = "", remaining: int | None = None) -> bytes:
    """A `…List` object around serialised items."""
    meta: Obj = {"resourceVersion": str(rv)}
    if continue_:
        meta["continue"] = continue_
    if remaining is not None:
        meta["remainingItemCount"] = remaining
    head = f'{{"kind":"{resource.list_kind}","apiVersion":"{resource.api_version}","metadata":'.encode()
    return b"".join((head, orjson.dumps(meta), b',"items":[', b",".join(items), b"]}"))
