"""Which object is meant."""

from __future__ import annotations

from typing import Any, NamedTuple

from koord.api.kinds import Kind


class ObjectRef(NamedTuple):
    """What an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"
    resource_version: str = ""

    def wire(self) -> dict[str, str]:
        """A core/v1 ObjectReference."""
        pairs = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        return {key: value for key, value in pairs.items() if value}


def reference(obj: Any, kind: Kind | None = None) -> ObjectRef:
    """The reference of a dict or of a projection; objects of a list do not say their kind, so `kind` does."""
    if isinstance(obj, dict):
        meta = obj.get("metadata") or {}
        name, namespace, uid = meta.get("name", ""), meta.get("namespace", ""), meta.get("uid", "")
        its_kind, version = obj.get("kind", ""), obj.get("apiVersion", "")
    else:
        meta = obj.metadata
        name, namespace, uid = meta.name, meta.namespace, meta.uid
        its_kind, version = getattr(obj, "kind", ""), getattr(obj, "api_version", "")
    if kind is not None:
        its_kind, version = kind.kind, kind.api_version
    return ObjectRef(its_kind, name, namespace, uid, version or "v1")
