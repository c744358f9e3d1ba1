"""Validation of what the subresources of a pod change: its status, the resources of its containers, its ephemeral containers."""

from __future__ import annotations

import ipaddress
from typing import Any

from koord.apiserver.defaulting.pods import qos_class
from koord.apiserver.errors import Cause, field_forbidden, invalid_value
from koord.apiserver.validation.names import qualified_name

Obj = dict[str, Any]

_RESIZABLE = ("cpu", "memory")


def check_pod_part(subresource: str, new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Check one subresource's change. `new` and `old` are whole pods."""
    if subresource == "status":
        _status(new.get("status") or {}, old.get("status") or {}, causes)
    elif subresource == "resize":
        _resize(new["spec"], old["spec"], causes)
    elif subresource == "ephemeralcontainers":
        _ephemeral(new["spec"], old["spec"], causes)


def _status(status: Obj, before: Obj, causes: list[Cause]) -> None:
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        causes.append(invalid_value("status.qosClass", status.get("qosClass") or "", "field is immutable"))
    for i, condition in enumerate(status.get("conditions") or ()):
        if wrong := qualified_name(condition.get("type") or ""):
            causes.append(invalid_value(f"status.conditions[{i}].Type", condition.get("type") or "", wrong))
    for i, address in enumerate(status.get("podIPs") or ()):
        try:
            ipaddress.ip_address(address.get("ip") or "")
        except ValueError:
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(invalid_value(f"status.podIPs[{i}]", address.get("ip") or "", text))


def _resize(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    if qos_class(spec) != qos_class(before):
        causes.append(invalid_value("spec", qos_class(spec), "Pod QOS Class may not change as a result of resizing"))
    if _fixed(spec) != _fixed(before):
        causes.append(field_forbidden("spec", "only cpu and memory resources are mutable"))


def _fixed(spec: Obj) -> list[Obj]:
    """The resources of all containers that a resize may not touch."""
    found = []
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            sides = {side: {k: v for k, v in (resources.get(side) or {}).items() if k not in _RESIZABLE} for side in ("requests", "limits")}
            found.append(sides)
    return found


def _ephemeral(spec: Obj, before: Obj, causes: list[Cause]) -> None:
    present = {c.get("name"): c for c in spec.get("ephemeralContainers") or ()}
    for container in before.get("ephemeralContainers") or ():
        name = container.get("name")
        if name not in present:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be removed\n'))
        elif present[name] != container:
            causes.append(field_forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{name}" may not be changed\n'))
