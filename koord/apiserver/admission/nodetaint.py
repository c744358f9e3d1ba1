"""TaintNodesByCondition: a new node is not ready until somebody says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.apiserver.admission.attributes import CREATE, Attributes

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_TAINT = "node.kubernetes.io/not-ready"


def admit(core: Core, attributes: Attributes) -> None:
    if attributes.operation != CREATE or attributes.subresource or attributes.obj is None:
        return
    taints = attributes.obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == _TAINT and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": _TAINT, "effect": "NoSchedule"})
