"""What is checked of the kinds of `resource.k8s.io`, beside the rules of `schema/rules.json`: claims, templates, classes and slices."""

from __future__ import annotations

from typing import Any

from koord.apiserver.cel import devices as selectors
from koord.apiserver.errors import Cause, field_forbidden, invalid_value, required, too_long, too_many
from koord.apiserver.schema.builtin import Path_, now, path_text
from koord.apiserver.schema.lists import put_member
from koord.apiserver.schema.rules import checking, defaulting, parting
from koord.apiserver.store import Obj
from koord.apiserver.validation.pods import amount
from koord.kube.patch import json_equal

_DEVICES, _DEVICES_ADVANCED = 128, 64
_VALUES = ("bool", "bools", "int", "ints", "string", "strings", "version", "versions")
_IMMUTABLE = "field is immutable"


@defaulting("V1DeviceTaint")
def _taint(taint: Obj) -> None:
    taint.setdefault("timeAdded", now())


# -- claims --------------------------------------------------------------------------------------------------------------------------


@checking("V1DeviceClaim")
def _claim(claim: Obj, path: Path_, causes: list[Cause]) -> None:
    """Constraints and configurations speak of requests that there are."""
    where, requests = path_text(path), claim.get("requests") or []
    names = {request.get("name") for request in requests}
    names |= {f"{request.get('name')}/{sub.get('name')}" for request in requests for sub in request.get("firstAvailable") or ()}
    for part in ("constraints", "config"):
        for at, item in enumerate(claim.get(part) or ()):
            for number, name in enumerate(item.get("requests") or ()):
                if name not in names:
                    text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
                    causes.append(invalid_value(f"{where}.{part}[{at}].requests[{number}]", name, text))


@checking("V1DeviceConstraint")
def _constraint(constraint: Obj, path: Path_, causes: list[Cause]) -> None:
    where = path_text(path)
    given = [key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key)]
    if not given:
        causes.append(required(where, "one of matchAttribute or distinctAttribute is required"))
    if len(given) == 2:
        causes.append(invalid_value(where, constraint, "exactly one of matchAttribute or distinctAttribute is required"))
    for key in given:
        domain, slash, name = constraint[key].partition("/")
        if not (domain and slash and name):
            causes.append(invalid_value(f"{where}.{key}", constraint[key], "must include a domain"))


@checking("V1DeviceRequest")
def _request(request: Obj, path: Path_, causes: list[Cause]) -> None:
    where, alternatives = path_text(path), request.get("firstAvailable") or []
    if ("exactly" in request) == bool(alternatives):
        text = "exactly one of `exactly` or `firstAvailable` is required"
        causes.append(invalid_value(where, request, text) if alternatives else required(where, text))


@checking("V1ExactDeviceRequest", "V1DeviceSubRequest")
def _wanted(request: Obj, path: Path_, causes: list[Cause]) -> None:
    where, mode, count = path_text(path), request.get("allocationMode"), request.get("count", 0)
    if mode == "All" and count:
        causes.append(invalid_value(f"{where}.count", count, "must not be specified when allocationMode is 'All'"))
    if mode == "ExactCount" and count <= 0:
        causes.append(invalid_value(f"{where}.count", count, "must be greater than zero"))
    for name, value in ((request.get("capacity") or {}).get("requests") or {}).items():
        amount(value, f"{where}.capacity.requests[{name}]", causes)


@checking("V1DeviceToleration")
def _toleration(toleration: Obj, path: Path_, causes: list[Cause]) -> None:
    if toleration.get("operator") == "Exists" and toleration.get("value"):
        causes.append(invalid_value(f"{path_text(path)}.value", toleration["value"], "must be empty for operator `Exists`"))


@checking("V1DeviceSelector")
def _selector(selector: Obj, path: Path_, causes: list[Cause]) -> None:
    where = f"{path_text(path)}.cel"
    expression = (selector.get("cel") or {}).get("expression") or ""
    if not expression:
        causes.append(required(f"{where}.expression" if "cel" in selector else where))
    elif len(expression) > selectors.MAX_LENGTH:
        causes.append(too_long(f"{where}.expression", selectors.MAX_LENGTH))
    else:
        try:
            selectors.compiled(expression)
        except selectors.CelError as error:
            causes.append(invalid_value(f"{where}.expression", expression, str(error)))


@parting("ResourceV1ResourceClaim")
def _part(part: str, new: Obj, old: Obj, causes: list[Cause]) -> None:
    """The status of a claim: what was allocated stays until it is free; only what is allocated is reserved."""
    status, before = new.get("status") or {}, old.get("status") or {}
    _drop_freed(status, before)
    allocation, reserved = status.get("allocation"), status.get("reservedFor") or []
    if reserved and allocation is None:
        causes.append(field_forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    if reserved and new["metadata"].get("deletionTimestamp"):
        known = {consumer.get("uid") for consumer in before.get("reservedFor") or ()}
        if any(consumer.get("uid") not in known for consumer in reserved):
            causes.append(
                field_forbidden(
                    "status.reservedFor", "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
                )
            )
    if before.get("allocation") is not None and allocation is not None:
        if not json_equal(allocation, before["allocation"]):
            causes.append(invalid_value("status.allocation", allocation, _IMMUTABLE))
    elif allocation is not None:
        _allocated(allocation, new, causes)


def _drop_freed(status: Obj, before: Obj) -> None:
    """What drivers said of devices goes with their allocation."""

    def held(of: Obj) -> set[tuple[Any, ...]]:
        results = ((of.get("allocation") or {}).get("devices") or {}).get("results") or ()
        return {_device_key(result) for result in results}

    freed = held(before) - held(status)
    if freed and status.get("devices"):
        put_member(status, "devices", [one for one in status["devices"] if _device_key(one) not in freed])


def _device_key(of: Obj) -> tuple[Any, ...]:
    return tuple(of.get(key) for key in ("driver", "pool", "device", "shareID"))


def _allocated(allocation: Obj, claim: Obj, causes: list[Cause]) -> None:
    spec = (claim.get("spec") or {}).get("devices") or {}
    names = set()
    for request in spec.get("requests") or ():
        names |= {f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or ()} or {request["name"]}
    for at, result in enumerate((allocation.get("devices") or {}).get("results") or ()):
        if result.get("request") not in names:
            text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
            causes.append(invalid_value(f"status.allocation.devices.results[{at}].request", result.get("request"), text))


# -- classes and slices --------------------------------------------------------------------------------------------------------------


@checking("V1ResourceSliceSpec")
def _slice(spec: Obj, path: Path_, causes: list[Cause]) -> None:
    """Where the devices are: said once, for all of them or for each."""
    where = path_text(path)
    said = [key for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(key)]
    shared, devices = spec.get("sharedCounters") or [], spec.get("devices") or []
    text = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not said:
        causes.append(required(where, text))
    elif len(said) > 1:
        causes.append(invalid_value(where, "{" + ", ".join(said) + "}", text))
    if shared and devices:
        causes.append(invalid_value(where, spec.get("driver"), "only one of `sharedCounters` or `devices` is allowed"))
    _one_term(spec.get("nodeSelector"), f"{where}.nodeSelector", causes)
    advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    most = _DEVICES_ADVANCED if advanced else _DEVICES
    if len(devices) > most:
        causes.append(too_many(f"{where}.devices", len(devices), most))
    for at, device in enumerate(devices):
        _device(device, bool(spec.get("perDeviceNodeSelection")), f"{where}.devices[{at}]", causes)


def _one_term(selector: Obj | None, where: str, causes: list[Cause]) -> None:
    if selector is not None and len(selector.get("nodeSelectorTerms") or ()) != 1:
        causes.append(
            invalid_value(f"{where}.nodeSelectorTerms", selector.get("nodeSelectorTerms"), "must have exactly one node selector term")
        )


def _device(device: Obj, by_device: bool, where: str, causes: list[Cause]) -> None:
    placed = [key for key in ("nodeName", "nodeSelector", "allNodes") if device.get(key)]
    if by_device and len(placed) != 1:
        text = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"  # noqa: E501
        causes.append(required(where, text) if not placed else invalid_value(where, ", ".join(placed), text))
    if not by_device:
        text = "field may only be set when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        causes += [field_forbidden(f"{where}.{key}", text) for key in placed]
    for name, attribute in (device.get("attributes") or {}).items():
        given = [key for key in _VALUES if key in attribute]
        if len(given) != 1:
            text = "exactly one value must be specified"
            place = f"{where}.attributes[{name}]"
            causes.append(invalid_value(place, attribute, text) if given else required(place, text))
    for name, capacity in (device.get("capacity") or {}).items():
        if "value" not in capacity:
            causes.append(required(f"{where}.capacity[{name}].value"))
        if capacity.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            text = "allowMultipleAllocations must be true when any of its capacities has a requestPolicy"
            causes.append(field_forbidden(f"{where}.capacity[{name}].requestPolicy", text))
