"""What is stored here and not enforced: said with every write of such an object, so that nobody relies on it."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

_KINDS = {
    "ValidatingAdmissionPolicy": "this API server does not evaluate ValidatingAdmissionPolicies",
    "ValidatingAdmissionPolicyBinding": "this API server does not evaluate ValidatingAdmissionPolicies",
    "MutatingAdmissionPolicy": "this API server does not evaluate MutatingAdmissionPolicies",
    "ResourceQuota": "this API server does not enforce ResourceQuotas",
    "LimitRange": "this API server does not apply LimitRanges",
    "NetworkPolicy": "this API server has no network that could enforce NetworkPolicies",
}


def warnings(kind: str, obj: Obj) -> list[str]:
    """A line for each thing that an object of this kind asks for in vain."""
    known = _KINDS.get(kind)
    if known:
        return [known]
    if kind == "CustomResourceDefinition":
        versions = (obj.get("spec") or {}).get("versions") or ()
        rules = sum(_rules((version.get("schema") or {}).get("openAPIV3Schema")) for version in versions)
        if rules:
            return [f"this API server does not evaluate x-kubernetes-validations ({rules} in this definition)"]
    return []


def _rules(schema: Any) -> int:
    """How many nodes of a schema carry CEL rules."""
    if isinstance(schema, dict):
        return bool(schema.get("x-kubernetes-validations")) + sum(_rules(value) for value in schema.values())
    return sum(_rules(value) for value in schema) if isinstance(schema, list) else 0
