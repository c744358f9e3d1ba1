"""Built-in kinds checked strictly, without a server: every field known and of its type, by the models of the kubernetes package."""

from __future__ import annotations

from typing import Any

from kubernetes import client

MODELS = {
    ("v1", "Namespace"): "V1Namespace",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("v1", "Service"): "V1Service",
    ("apps/v1", "Deployment"): "V1Deployment",
    ("apps/v1", "DaemonSet"): "V1DaemonSet",
    ("batch/v1", "Job"): "V1Job",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
    ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget",
    ("scheduling.k8s.io/v1", "PriorityClass"): "V1PriorityClass",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "V1ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "V1ClusterRoleBinding",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "V1CustomResourceDefinition",
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): "V1ValidatingAdmissionPolicy",
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): "V1ValidatingAdmissionPolicyBinding",
}
PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
    "object": (object,),
}
QUANTITIES = ("limits", "requests", "capacity", "hard")


def problems(obj: dict[str, Any]) -> list[str]:
    """What a strict API server would refuse. Raises KeyError for a kind that has no model here."""
    model = MODELS[obj["apiVersion"], obj["kind"]]
    return list(_object(obj, getattr(client, model), obj["kind"]))


def _object(value: Any, model: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: an object is wanted"]
    attributes = {wire: name for name, wire in model.attribute_map.items()}
    found = []
    for key, item in value.items():
        if key not in attributes:
            found.append(f"{where}.{key}: unknown field")
        else:
            found += _value(item, model.openapi_types[attributes[key]], f"{where}.{key}")
    return found


def _value(value: Any, kind: str, where: str) -> list[str]:
    if kind.startswith(("list[", "List[")):
        if not isinstance(value, list):
            return [f"{where}: a list is wanted"]
        inner = kind[5:-1]
        return [problem for number, item in enumerate(value) for problem in _value(item, inner, f"{where}[{number}]")]
    if kind.startswith(("dict(", "Dict[")):
        if not isinstance(value, dict):
            return [f"{where}: a map is wanted"]
        inner = kind.split(",", 1)[1].strip(" )]")
        quantities = where.rsplit(".", 1)[-1] in QUANTITIES
        return [problem for key, item in value.items() for problem in ([] if quantities else _value(item, inner, f"{where}.{key}"))]
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind not in ("bool", "object")):
            return [f"{where}: {kind} is wanted, not {value!r}"]
        return []
    return _object(value, getattr(client, kind), where)
