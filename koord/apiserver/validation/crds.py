"""Validation of CustomResourceDefinitions."""

from __future__ import annotations

from typing import Any

from koord.apiserver.errors import Cause, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.validation.names import dns_1035_label

Obj = dict[str, Any]

_APPROVED = "api-approved.kubernetes.io"


def check_crd(obj: Obj, causes: list[Cause]) -> None:
    """Names, versions and schemas."""
    spec = obj.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group") or ""
    plural = names.get("plural") or ""
    for key in ("plural", "kind"):
        if not names.get(key):
            causes.append(required(f"spec.names.{key}"))
    if not group:
        causes.append(required("spec.group"))
    elif "." not in group:
        causes.append(invalid_value("spec.group", group, "should be a domain with at least one dot"))
    if obj["metadata"].get("name") != f"{plural}.{group}":
        causes.append(invalid_value("metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group'))
    if plural and dns_1035_label(plural):
        causes.append(invalid_value("spec.names.plural", plural, dns_1035_label(plural)))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        causes.append(invalid_value("spec.names.listKind", names["listKind"], "kind and listKind may not be the same"))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        causes.append(not_supported("spec.scope", spec.get("scope") or "", ("Cluster", "Namespaced")))
    if (group.endswith(".k8s.io") or group == "k8s.io" or group.endswith(".kubernetes.io")) and _APPROVED not in (
        obj["metadata"].get("annotations") or {}
    ):
        text = 'protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111'
        causes.append(required("metadata.annotations[api-approved.kubernetes.io]", text))
    _versions(spec.get("versions") or [], causes)


def _versions(versions: list[Obj], causes: list[Cause]) -> None:
    if not versions:
        causes.append(required("spec.versions"))
    stored = 0
    seen: set[str] = set()
    for i, version in enumerate(versions):
        path = f"spec.versions[{i}]"
        name = version.get("name") or ""
        if not name or dns_1035_label(name):
            causes.append(invalid_value(f"{path}.name", name, dns_1035_label(name) or "must not be empty"))
        if name in seen:
            causes.append(invalid_value("spec.versions", name, "must contain unique version names"))
        seen.add(name)
        stored += bool(version.get("storage"))
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
        elif not isinstance(schema, dict):
            causes.append(invalid_value(f"{path}.schema.openAPIV3Schema", schema, "must be an object"))
        else:
            where = f"{path}.schema.openAPIV3Schema"
            if schema.get("type") != "object":
                causes.append(invalid_value(f"{where}.type", schema.get("type", ""), "must be object at the root"))
            _structural(schema, where, causes)
    if versions and stored != 1:
        causes.append(
            invalid_value("spec.versions", [v.get("name") for v in versions], "must have exactly one version marked as storage version")
        )


_JUNCTORS = ("allOf", "anyOf", "oneOf")


def _structural(schema: Obj, path: str, causes: list[Cause]) -> None:
    """Each specified node needs a type (or says that it is free), and lists need the schema of their items."""
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    kind = schema.get("type")
    if not kind and not free:
        causes.append(required(f"{path}.type", "must not be empty for specified object fields"))
    if kind == "array" and not isinstance(schema.get("items"), dict):
        causes.append(required(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties"):
        causes.append(field_forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"))
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        causes.append(required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"))
    for name, inner in (schema.get("properties") or {}).items():
        if isinstance(inner, dict):
            _structural(inner, f"{path}.properties[{name}]", causes)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _structural(schema[key], f"{path}.{key}", causes)


def check_crd_update(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """Group, scope and names that objects depend on are fixed."""
    spec, before = new["spec"], old["spec"]
    for key in ("group", "scope"):
        if spec.get(key) != before.get(key):
            causes.append(invalid_value(f"spec.{key}", spec.get(key), "field is immutable"))
    for key in ("plural", "kind"):
        if spec["names"].get(key) != before["names"].get(key):
            causes.append(invalid_value(f"spec.names.{key}", spec["names"].get(key), "field is immutable"))
