"""Priority: a pod's class becomes its priority; there is at most one default class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.attributes import CREATE, UPDATE, Attributes
from koord.apiserver.errors import forbidden

if TYPE_CHECKING:
    from koord.apiserver.core import Core

Obj = dict[str, Any]

_CLASSES = "scheduling.k8s.io/priorityclasses"


def _default_class(core: Core) -> Obj | None:
    """The class with globalDefault; of several the lowest, so that what the API server let through does least harm."""
    version = core.store.bucket(_CLASSES).history[-1].rv if core.store.bucket(_CLASSES).history else 0
    cached = core.cache.get("default priority class")
    if cached is not None and cached[0] == version:
        found: Obj | None = cached[1]
        return found
    classes = [e.obj for e in core.store.bucket(_CLASSES).entries.values() if e.obj.get("globalDefault")]
    found = min(classes, key=lambda c: c.get("value", 0)) if classes else None
    core.cache["default priority class"] = (version, found)
    return found


def admit(core: Core, attributes: Attributes) -> None:
    if attributes.resource.plural != "pods" or attributes.subresource or attributes.operation not in (CREATE, UPDATE):
        return
    pod = attributes.require_object()
    spec = pod.get("spec")
    if spec is None:
        return
    if attributes.operation == UPDATE:
        # the priority of an existing pod stays, also when a client sends it back without
        before = (attributes.old or {}).get("spec") or {}
        for key in ("priority", "preemptionPolicy"):
            if spec.get(key) is None and before.get(key) is not None:
                spec[key] = before[key]
        return
    name = spec.get("priorityClassName")
    if name:
        entry = core.store.bucket(_CLASSES).get("", name)
        if entry is None:
            raise forbidden("pods", "", attributes.name, f"no PriorityClass with name {name} was found")
        chosen: Obj | None = entry.obj
    else:
        chosen = _default_class(core)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    value = chosen.get("value", 0) if chosen else 0
    policy = (chosen.get("preemptionPolicy") if chosen else None) or "PreemptLowerPriority"
    given = spec.get("priority")
    if given is not None and given != value:
        why = f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"  # noqa: E501
        raise forbidden("pods", "", attributes.name, why)
    spec["priority"] = value
    given_policy = spec.get("preemptionPolicy")
    if given_policy is not None and given_policy != policy:
        why = f"the string value of PreemptionPolicy ({given_policy}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"  # noqa: E501
        raise forbidden("pods", "", attributes.name, why)
    spec["preemptionPolicy"] = policy


def validate(core: Core, attributes: Attributes) -> None:
    if attributes.resource.plural != "priorityclasses" or attributes.operation not in (CREATE, UPDATE):
        return
    wanted = attributes.require_object()
    if not wanted.get("globalDefault"):
        return
    for entry in core.store.bucket(_CLASSES).entries.values():
        if entry.obj.get("globalDefault") and entry.name != attributes.name:
            why = f"PriorityClass {entry.name} is already marked as default. Only one default can exist"
            raise forbidden("priorityclasses", "scheduling.k8s.io", attributes.name, why)
