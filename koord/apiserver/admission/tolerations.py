"""DefaultTolerationSeconds: pods stay five minutes on a node that is not ready or not reachable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.attributes import CREATE, UPDATE, Attributes

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_KEYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS = 300


def _covers(toleration: dict[str, Any], key: str) -> bool:
    return bool(toleration.get("effect", "NoExecute") == "NoExecute" and toleration.get("key", key) == key)


def admit(core: Core, attributes: Attributes) -> None:
    if attributes.subresource or attributes.operation not in (CREATE, UPDATE) or attributes.obj is None:
        return
    spec = attributes.obj.get("spec")
    if spec is None:
        return
    tolerations = spec.get("tolerations") or []
    missing = [key for key in _KEYS if not any(_covers(t, key) for t in tolerations)]
    if missing:
        spec["tolerations"] = [
            *tolerations,
            *({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SECONDS} for key in missing),
        ]
