"""What a claim's pod needs of the node (KA-DRA-01). Pure: claim, Device object and CDI names in, the kubelet's answer or a refusal out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koord.api.deviceslices import DRIVER, device_name

Obj = dict[str, Any]


class ClaimError(ValueError):
    """A claim cannot be prepared; the text says why, and is shown as an event of the pod."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One device of a claim; ``cdi`` is its name for the runtime."""

    request: str
    pool: str
    device: str
    cdi: str
    share: str = ""


def prepared(claim: Obj, uid: str, node: str, device: Obj | None, described: Mapping[str, str], own: Mapping[str, str]) -> list[Prepared]:
    """The devices of this driver in an allocated claim. ``device`` is the node's Device object, ``described`` are names by ids and bus
    addresses that vendors' tools gave, ``own`` those that koordlet gives, by device. Raises ClaimError."""
    if (claim.get("metadata") or {}).get("uid") != uid:
        raise ClaimError("it was deleted and made again: the pod that waits has to be made again, too")
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = [one for one in (allocation.get("devices") or {}).get("results") or () if one.get("driver") == DRIVER]
    if not results:
        raise ClaimError(f"no device of driver {DRIVER} is allocated to it")
    known = _devices(device)
    found = []
    for one in results:
        name = str(one.get("device"))
        if one.get("pool") != node:
            raise ClaimError(f"device {name} is of pool {one.get('pool')!r}, this is node {node}")
        if name not in known:
            said = f"the Device object of the node has {', '.join(sorted(known)) or 'none'}" if device else "the node has no Device object"
            raise ClaimError(f"device {name} is not there: {said}")
        request = str(one.get("request")).partition("/")[0]  # of an alternative the kubelet knows the request's name alone
        found.append(Prepared(request, node, name, _cdi(name, known[name], described, own), str(one.get("shareID") or "")))
    return found


def devices_of_type(device: Obj | None, kind: str) -> dict[str, str]:
    """Ids of a type's devices in a Device object, by their names in slices."""
    return {name: str(info.get("id") or "") for name, info in _devices(device).items() if info.get("type") == kind}


def _devices(device: Obj | None) -> dict[str, Obj]:
    out: dict[str, Obj] = {}
    for info in ((device or {}).get("spec") or {}).get("devices") or ():
        minor = info.get("minor")
        name = device_name(str(info.get("type")), minor) if isinstance(minor, int) else ""
        if name:
            out.setdefault(name, info)
    return out


def _cdi(name: str, info: Obj, described: Mapping[str, str], own: Mapping[str, str]) -> str:
    if name in own:
        return own[name]
    ids = [text for text in (info.get("id"), (info.get("topology") or {}).get("busID")) if text]
    for text in ids:
        if text in described:
            return described[text]
    wanted = " or ".join(repr(text) for text in ids) or "without an id"
    raise ClaimError(
        f"no CDI specification in /etc/cdi or /var/run/cdi has a device {wanted} ({name}): "
        "the vendor's tool writes it (of NVIDIA: nvidia-ctk cdi generate)"
    )
