"""events.k8s.io/v1 events: another shape of the same stored events."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

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
