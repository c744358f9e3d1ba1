"""NamespaceLifecycle: nothing is created in a namespace that is not there or is going; three namespaces cannot be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.apiserver.admission.attributes import CREATE, DELETE, Attributes
from koord.apiserver.errors import forbidden, not_found

if TYPE_CHECKING:
    from koord.apiserver.core import Core

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})


def admit(core: Core, attributes: Attributes) -> None:
    resource = attributes.resource
    if not resource.namespaced:
        if attributes.operation == DELETE and resource.kind == "Namespace" and attributes.name in IMMORTAL:
            raise forbidden("namespaces", "", attributes.name, "this namespace may not be deleted")
        return
    if attributes.operation != CREATE:
        return
    namespace = attributes.namespace
    entry = core.store.bucket("/namespaces").get("", namespace)
    if entry is None:
        raise not_found("namespaces", "", namespace)
    if attributes.subresource:
        return
    if entry.obj["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated", "field": "metadata.namespace"}
        details = {"name": attributes.name, "kind": resource.plural, "causes": [cause]}
        if resource.group:
            details["group"] = resource.group
        raise forbidden(resource.plural, resource.group, attributes.name, why, details)
