"""What a Reservation's status shows of scheduling, owners and its end (SCH-RSV-01, 05, 12). Pure: objects and
the time in, members of the status out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.accounting.resources import ResourceVector, add_into, equal, parse
from koord.accounting.resources import format as format_amounts
from koord.api.objects import Reservation
from koord.api.times import TimeError, format_time, parse_time
from koord.api.v1alpha1 import reservation as api
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.plugins.reservation.forms import as_held

Obj = dict[str, Any]


def conditions_of(reservation: Reservation) -> list[Obj]:
    """The conditions in wire form."""
    found: list[Obj] = msgspec.to_builtins(reservation.status.conditions)
    return [dict(condition) for condition in found]


def bound(conditions: list[Obj], allocatable: Mapping[str, int], node: str, now: float) -> Obj:
    """It was placed: it holds `allocatable` on the node from now on. `conditions` are those that it shows until now."""
    conditions = _set(conditions, api.CONDITION_SCHEDULED, "True", api.REASON_SCHEDULED, "", now)
    conditions = _set(conditions, api.CONDITION_READY, "True", api.REASON_AVAILABLE, "", now)
    return {"phase": api.PHASE_AVAILABLE, "nodeName": node, "allocatable": format_amounts(allocatable), "conditions": conditions}


def unscheduled(reservation: Reservation, message: str, now: float) -> Obj | None:
    """An attempt failed. What was placed once stays so; after the first failure only message and probe time are new."""
    conditions = conditions_of(reservation)
    known = _find(conditions, api.CONDITION_SCHEDULED)
    if known is not None and known.get("status") == "True":
        return None
    same = known is not None and known.get("message", "") == message and known.get("reason") == api.REASON_UNSCHEDULABLE
    if known is not None and same and now - _seconds(known.get("lastProbeTime")) < _PROBE_EVERY:
        return None
    return {"conditions": _set(conditions, api.CONDITION_SCHEDULED, "False", api.REASON_UNSCHEDULABLE, message, now)}


_PROBE_EVERY = 10.0  # seconds between writes that only refresh the probe time


def expired(reservation: Reservation, now: float, message: str = "") -> Obj:
    """Its time is over, or its node is gone."""
    conditions = conditions_of(reservation)
    known = _find(conditions, api.CONDITION_READY)
    moved = known is None or known.get("status") == "True"
    conditions = _set(conditions, api.CONDITION_READY, "False", api.REASON_EXPIRED, message, now, transition=moved)
    return {"phase": api.PHASE_FAILED, "conditions": conditions}


def used(reservation: Reservation, owners: Iterable[PodInfo], now: float, *, finished: bool, inner: Mapping[str, int]) -> Obj | None:
    """Who uses it and how much; None when it shows that already. `finished`: it was to be used once, and was. `inner`: what it keeps for
    itself."""
    status = reservation.status
    wanted = sorted(owners, key=lambda pod: pod.uid)
    references = [{"namespace": pod.namespace, "name": pod.name, "uid": pod.pod.metadata.uid} for pod in wanted]
    holds = legible(status.allocatable)
    allocated: ResourceVector = {}
    for pod in wanted:
        add_into(allocated, {name: amount for name, amount in as_held(pod.shape.amounts, holds).items() if name in holds})
    # What owners of an Aligned reservation take beyond what it gives comes from the node.
    allocated = {name: max(0, min(amount, holds[name] - inner.get(name, 0))) for name, amount in allocated.items()}
    shown = [(owner.namespace, owner.name, owner.uid) for owner in sorted(status.current_owners, key=lambda owner: owner.uid)]
    same = [tuple(reference.values()) for reference in references] == shown and equal(allocated, legible(status.allocated))
    if same and not finished:
        return None
    # Merging keeps what is not mentioned: names that nobody uses any more are taken out one by one.
    amounts: Obj | None = {**dict.fromkeys(status.allocated), **format_amounts(allocated)} if allocated else None
    result: Obj = {"currentOwners": references, "allocated": amounts}
    if finished:
        result["phase"] = api.PHASE_SUCCEEDED
        result["conditions"] = _set(conditions_of(reservation), api.CONDITION_READY, "False", api.REASON_SUCCEEDED, "", now)
    return result


def ended_at(reservation: Reservation) -> float | None:
    """When it failed or was used up, in seconds; None for one that did neither. One that does not say when counts from its creation."""
    phase = reservation.status.phase
    if phase not in (api.PHASE_FAILED, api.PHASE_SUCCEEDED):
        return None
    ended = 0.0
    for condition in reservation.status.conditions:
        if condition.type == api.CONDITION_READY:
            since, probed = _seconds(condition.last_transition_time), _seconds(condition.last_probe_time)
            ended = since if phase == api.PHASE_FAILED else probed or since
    return ended or _seconds(reservation.metadata.creation_timestamp)


def _set(
    conditions: list[Obj], kind: str, status: str, reason: str, message: str, now: float, *, transition: bool | None = None
) -> list[Obj]:
    """The list with one condition replaced; its transition time moves when its status does."""
    known = _find(conditions, kind)
    moved = (known is None or known.get("status") != status) if transition is None else transition
    since = format_time(now) if moved or known is None else known.get("lastTransitionTime") or format_time(now)
    fresh = {"type": kind, "status": status, "reason": reason, "lastProbeTime": format_time(now), "lastTransitionTime": since}
    if message:
        fresh["message"] = message
    return [fresh if condition is known else condition for condition in conditions] if known is not None else [*conditions, fresh]


def _find(conditions: list[Obj], kind: str) -> Obj | None:
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def _seconds(text: Any) -> float:
    try:
        return parse_time(text) if text else 0.0
    except TimeError:
        return 0.0


def legible(amounts: Mapping[str, Any]) -> ResourceVector:
    """Amounts that the status says; none where they cannot be read."""
    try:
        return parse(dict(amounts))
    except ValueError:
        return {}
