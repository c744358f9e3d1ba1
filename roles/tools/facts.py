"""What there is to explain with: records, the live object and what could not be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.api.gangs import gang_name
from koord.api.names import ANNOTATION_CONFIG_MIRROR
from koord.api.times import TimeError, parse_time
from koord.decisions.record import Record


@dataclass(slots=True)
class Live:
    """What the API server says. None or empty where it was not asked, or has none."""

    obj: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Gathered:
    """All that was found, and what could not be asked. `asked`: the roles, of which so many `answered`."""

    records: list[Record] = field(default_factory=list)
    live: Live | None = None
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    answered: int = 0
    # namespaces that have an object of the name, where none was given
    places: list[str] = field(default_factory=list)
    # namespaces that have an object of the name, where that which was given has none
    elsewhere: list[str] = field(default_factory=list)

    @property
    def obj(self) -> dict[str, Any]:
        """The live object; empty where it was not asked for, or is not there."""
        return (self.live.obj if self.live is not None else None) or {}


def gang_of(obj: Mapping[str, Any]) -> str:
    """The name of the gang that a pod is a member of, as the scheduler reads it; "" for none."""
    meta = obj.get("metadata") or {}
    return gang_name(meta.get("labels") or {}, meta.get("annotations") or {})


def uids_of(obj: Mapping[str, Any]) -> frozenset[str]:
    """The UIDs by which an object is known: its own, and what its kubelet uses: the name of a node, the hash of a static pod's file."""
    meta = obj.get("metadata") or {}
    kubelets = meta.get("name") if obj.get("kind") == "Node" else (meta.get("annotations") or {}).get(ANNOTATION_CONFIG_MIRROR)
    return frozenset(filter(None, (meta.get("uid"), kubelets)))


def time_of(text: Any) -> float | None:
    """An RFC 3339 time, None where there is none that can be read."""
    try:
        return parse_time(str(text)) if text else None
    except TimeError:
        return None


def event_time(event: Mapping[str, Any]) -> str:
    """When an event was last seen, as RFC 3339 text."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("eventTime")
        or event.get("deprecatedLastTimestamp")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )
