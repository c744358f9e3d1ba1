"""Field selectors: which fields of which kinds can be selected by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from koord.api.selectors import SelectorError, parse_field_selector
from koord.apiserver.errors import bad_request

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]

Getter = Callable[[Obj], str]


def _get(*path: str, default: str = "") -> Getter:
    def getter(obj: Obj) -> str:
        value: Any = obj
        for key in path:
            value = value.get(key)
            if value is None:
                return default
        if value is True:
            return "true"
        if value is False:
            return "false"
        return str(value)

    return getter


def _source(obj: Obj) -> str:
    return (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""


_NAME = _get("metadata", "name")
_NAMESPACE = _get("metadata", "namespace")

_EVENT = {
    **{f"involvedObject.{key}": _get("involvedObject", key) for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")},  # noqa: E501
    "reason": _get("reason"),
    "reportingComponent": _get("reportingComponent"),
    "source": _source,
    "type": _get("type"),
}  # fmt: skip

# (group, plural) -> field -> its value; metadata.name and metadata.namespace work everywhere
_FIELDS: dict[tuple[str, str], dict[str, Getter]] = {
    ("", "pods"): {
        "spec.nodeName": _get("spec", "nodeName"),
        "spec.restartPolicy": _get("spec", "restartPolicy"),
        "spec.schedulerName": _get("spec", "schedulerName"),
        "spec.serviceAccountName": _get("spec", "serviceAccountName"),
        "spec.hostNetwork": _get("spec", "hostNetwork", default="false"),
        "status.phase": _get("status", "phase"),
        "status.podIP": _get("status", "podIP"),
        "status.podIPs": _get("status", "podIP"),
        "status.nominatedNodeName": _get("status", "nominatedNodeName"),
    },
    ("", "nodes"): {"spec.unschedulable": _get("spec", "unschedulable", default="false")},
    ("", "namespaces"): {"status.phase": _get("status", "phase"), "name": _NAME},
    ("", "secrets"): {"type": _get("type")},
    ("", "services"): {"spec.clusterIP": _get("spec", "clusterIP"), "spec.type": _get("spec", "type")},
    ("", "replicationcontrollers"): {"status.replicas": _get("status", "replicas", default="0")},
    ("apps", "replicasets"): {"status.replicas": _get("status", "replicas", default="0")},
    ("batch", "jobs"): {"status.successful": _get("status", "succeeded", default="0")},
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): {**_EVENT, **{f"regarding.{k.split('.')[1]}": v for k, v in _EVENT.items() if k.startswith("involved")}},
}


def _custom_fields(resource: Resource) -> dict[str, Getter]:
    fields = (resource.crd_version or {}).get("selectableFields") or ()
    return {f["jsonPath"].lstrip("."): _get(*f["jsonPath"].strip(".").split(".")) for f in fields}


def field_matcher(resource: Resource, text: str) -> Callable[[Obj], bool] | None:
    """A predicate for a field selector. Raises StatusError 400 for fields that cannot be selected by."""
    try:
        selector = parse_field_selector(text)
    except SelectorError as err:
        raise bad_request(str(err)) from err
    if not selector.requirements:
        return None
    known = _custom_fields(resource) if resource.custom else _FIELDS.get((resource.group, resource.plural), {})
    rules: list[tuple[Getter, str, bool]] = []
    for requirement in selector.requirements:
        field = requirement.field
        getter = _NAME if field == "metadata.name" else known.get(field)
        if getter is None and field == "metadata.namespace":
            getter = _NAMESPACE
        if getter is None:
            raise bad_request(f"field label not supported: {field}")
        rules.append((getter, requirement.value, requirement.negated))
    if len(rules) == 1:
        getter, wanted, negated = rules[0]
        return lambda obj: (getter(obj) == wanted) != negated
    return lambda obj: all((g(obj) == w) != n for g, w, n in rules)
