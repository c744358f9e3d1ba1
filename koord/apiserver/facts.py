"""Facts of stored objects that several parts of the server ask for: of pods, and of conditions."""

from __future__ import annotations

from koord.api.quantity import parse_milli
from koord.apiserver.schema.builtin import now
from koord.apiserver.store import Obj


def containers(spec: Obj) -> list[Obj]:
    """The containers of a pod specification, those that initialise it last."""
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort by the cpu and memory of the pod as a whole, where it has some, else of all containers."""
    guaranteed, any_set = True, False
    whole = any((spec.get("resources") or {}).get(part) for part in ("requests", "limits"))
    for container in (spec,) if whole else containers(spec):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            wanted, bound = parse_milli(requests.get(name, 0)), parse_milli(limits.get(name, 0))
            any_set = any_set or wanted > 0 or bound > 0
            guaranteed = guaranteed and bound > 0 and (name not in requests or wanted == bound)
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def same_wish(one: Obj, other: Obj) -> bool:
    """Whether two states are of one object that wants the same."""
    return one["metadata"].get("uid") == other["metadata"].get("uid") and (one.get("spec") or {}) == (other.get("spec") or {})


def ended(pod: Obj) -> bool:
    """Whether a pod will never run again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def conditions(obj: Obj) -> Obj:
    """The status of each condition by its type."""
    return {condition.get("type"): condition.get("status") for condition in (obj.get("status") or {}).get("conditions") or ()}


def is_ready(pod: Obj) -> bool:
    """Whether the condition Ready of a pod holds."""
    return bool(conditions(pod).get("Ready") == "True")


def set_condition(status: Obj, condition: Obj) -> None:
    """Replace or add a condition; the time of a transition stays where the status does."""
    conditions = status.setdefault("conditions", [])
    for i, old in enumerate(conditions):
        if old.get("type") == condition["type"]:
            since = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
            conditions[i] = {**condition, "lastTransitionTime": since or now()}
            return
    conditions.append({**condition, "lastTransitionTime": now()})
