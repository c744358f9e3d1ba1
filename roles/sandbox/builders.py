"""How an object is written down: kind and metadata, a pod with its one container, a pod of a ReplicaSet (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.kinds import PODS, Kind

Obj = dict[str, Any]
SCHEDULER = "koord-scheduler"
APP_LABEL = "app"


def obj(kind: Kind, name: str, namespace: str = "", *, labels: Obj | None = None, annotations: Obj | None = None, **content: Any) -> Obj:
    """An object of a kind; its metadata has only what is given."""
    meta: Obj = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if labels is not None:
        meta["labels"] = labels
    if annotations is not None:
        meta["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **content}


def container(name: str, image: str, requests: Mapping[str, str], limits: Mapping[str, str] | None = None) -> Obj:
    """A container of a pod; without `limits` it has none."""
    return {"name": name, "image": image, "resources": {"requests": dict(requests), **({"limits": dict(limits)} if limits else {})}}


def replica(owner: Obj, name: str) -> Obj:
    """A pod of a ReplicaSet as its controller makes it, from the template."""
    meta, template = owner["metadata"], owner["spec"]["template"]
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
    made = {**template["metadata"], "name": name, "namespace": meta["namespace"], "ownerReferences": [reference]}
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": made, "spec": template["spec"]}
