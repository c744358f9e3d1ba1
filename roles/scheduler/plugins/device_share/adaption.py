"""What the device plugins of other projects expect on a pod (SCH-DEV-15). Pure.

They find out from annotations which cards a pod got, and some want the node locked while one pod at a time passes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from koord.api import names
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE
from roles.scheduler.plugins.device_share.holdings import Allocation, Place, Share

HUAWEI_PREDICATE_TIME: Final = "predicate-time"
HUAWEI_ASCEND_310P: Final = "huawei.com/Ascend310P"
CAMBRICON_ASSIGNED: Final = "CAMBRICON_DSMLU_ASSIGHED"  # their spelling
CAMBRICON_PROFILE: Final = "CAMBRICON_DSMLU_PROFILE"
CAMBRICON_LOCK: Final = "cambricon.com/dsmlu.lock"
METAX_ALLOCATED: Final = "metax-tech.com/gpu-devices-allocated"
METAX_LOCK: Final = "hami.io/mutex.lock"

_DUO: Final = "Ascend-310P3-300I-DUO"
_CAMBRICON_UNIT: Final = 256 << 20  # bytes of memory in one step of a profile
_MI: Final = 1 << 20


class NotAdaptable(ValueError):
    """The vendor's device plugin cannot serve such an allocation."""


@dataclass(slots=True)
class Adaption:
    """What is written on the pod, and the node annotation that must be locked first ("" for none)."""

    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    lock: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The node: its name, vendor and model as the Device says, and the ids of its devices."""

    node: str
    vendor: str
    model: str
    ids: Mapping[Place, str]


def lock_of(vendor: str) -> str:
    """The annotation with which a vendor's nodes are locked, "" for none."""
    return {names.GPU_VENDOR_CAMBRICON: CAMBRICON_LOCK, names.GPU_VENDOR_METAX: METAX_LOCK}.get(vendor, "")


def adapt(allocation: Allocation, machine: Machine, provider: str, now: int) -> Adaption:
    """What the pod needs. `provider` is its isolation provider, `now` in nanoseconds since the epoch. Raises NotAdaptable."""
    result = Adaption({names.ANNOTATION_BIND_TIMESTAMP: str(now)})
    gpus = [share for share in allocation if share.type == GPU]
    if not gpus:
        return result
    result.annotations[names.ANNOTATION_GPU_MINORS] = _minors(gpus)
    if provider == names.GPU_ISOLATION_PROVIDER_HAMI_CORE:
        result.labels[names.LABEL_HAMI_VGPU_NODE] = machine.node
    vendor = _VENDORS.get(machine.vendor)
    if vendor is not None:
        vendor(result, gpus, machine, now)
        result.lock = lock_of(machine.vendor)
    return result


def _minors(gpus: Sequence[Share]) -> str:
    return ",".join(str(share.minor) for share in gpus)


def _huawei(result: Adaption, gpus: Sequence[Share], machine: Machine, now: int) -> None:
    result.annotations[HUAWEI_PREDICATE_TIME] = str(now)
    first = gpus[0]
    virtual = len(gpus) == 1 and first.template
    result.annotations[names.RESOURCE_HUAWEI_NPU_CORE] = f"{first.minor}-{first.template}" if virtual else _minors(gpus)
    if machine.model == _DUO:
        result.annotations[HUAWEI_ASCEND_310P] = ",".join(f"Ascend310P-{share.minor}" for share in gpus)


def _cambricon(result: Adaption, gpus: Sequence[Share], machine: Machine, now: int) -> None:
    if len(gpus) > 1:
        raise NotAdaptable(f"cambricon: {len(gpus)} cards are wanted; its device plugin shares one card at a time")
    (share,) = gpus
    amounts = dict(share.amounts)
    core, memory = amounts.get(names.RESOURCE_GPU_CORE, 0), amounts.get(names.RESOURCE_GPU_MEMORY, 0)
    if not core:
        raise NotAdaptable(f"cambricon: {names.RESOURCE_GPU_CORE} must be requested")
    if memory < _CAMBRICON_UNIT:
        raise NotAdaptable(f"cambricon: {names.RESOURCE_GPU_MEMORY} must be at least 256Mi")
    result.annotations[CAMBRICON_ASSIGNED] = "false"
    result.annotations[CAMBRICON_PROFILE] = f"{share.minor}_{core}_{memory // _CAMBRICON_UNIT}"


def _metax(result: Adaption, gpus: Sequence[Share], machine: Machine, now: int) -> None:
    devices = []
    for share in gpus:
        amounts = dict(share.amounts)
        compute = amounts.get(names.RESOURCE_GPU_CORE, WHOLE)
        memory = amounts.get(names.RESOURCE_GPU_MEMORY, 0) // _MI
        devices.append({"uuid": machine.ids.get(share.place, ""), "compute": compute, "vRam": memory})
    result.annotations[METAX_ALLOCATED] = orjson.dumps([devices]).decode()


_VENDORS: Mapping[str, Callable[[Adaption, Sequence[Share], Machine, int], None]] = {
    names.GPU_VENDOR_HUAWEI: _huawei,
    names.GPU_VENDOR_CAMBRICON: _cambricon,
    names.GPU_VENDOR_METAX: _metax,
}
