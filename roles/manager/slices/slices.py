"""The ResourceSlices of a Device object (SCH-DRA-20). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from koord.api import names
from koord.api.deviceslices import DRIVER, device_name
from koord.api.kinds import DEVICES, RESOURCESLICES
from koord.api.objects import Device, DeviceInfo
from koord.api.quantity import Quantity, QuantityError

Obj = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "koord-manager"
_MOST = 64  # devices of a slice, so that taints and counters fit wherever a server has them
_LONGEST = 64  # characters of an attribute
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
_NUMA = range(1024)
_NODE_LABELS = (("vendor", names.LABEL_GPU_VENDOR), ("model", names.LABEL_GPU_MODEL))


def slices_of(device: Device, generation: int) -> list[Obj]:
    """What is published of a node's devices: those that are healthy, in pools named after the node. None of a node that hands out its GPUs
    in partitions only: claims know no such rule."""
    node = device.metadata.name
    labels = device.metadata.labels or {}
    if labels.get(names.LABEL_NODE_GPU_PARTITION_POLICY) == names.GPU_PARTITION_POLICY_HONOR:
        return []
    entries: dict[str, Obj] = {}
    for info in device.spec.devices:
        name = device_name(info.type, info.minor) if info.minor is not None else ""
        if name and info.health and name not in entries:
            entries[name] = _entry(name, info, labels)
    every = list(entries.values())
    parts = [every[start : start + _MOST] for start in range(0, len(every), _MOST)]
    return [_slice(device, node, number, {"name": node, "generation": generation, "resourceSliceCount": len(parts)}, part)
            for number, part in enumerate(parts)]  # fmt: skip


def slice_name(node: str, number: int) -> str:
    """The name of a slice; a node's name may be as long as a name can be."""
    name = f"{node}-{DRIVER}-{number}"
    return name if len(name) <= 253 else f"{hashlib.sha256(node.encode()).hexdigest()[:32]}-{DRIVER}-{number}"


def _slice(device: Device, node: str, number: int, pool: Obj, entries: Sequence[Obj]) -> Obj:
    owner = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "name": node, "uid": device.metadata.uid, "controller": True}
    return {
        "apiVersion": RESOURCESLICES.api_version, "kind": RESOURCESLICES.kind,
        "metadata": {"name": slice_name(node, number), "labels": {MANAGED_BY: MANAGER}, "ownerReferences": [owner]},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(entries)},
    }  # fmt: skip


def _entry(name: str, info: DeviceInfo, labels: dict[str, str]) -> Obj:
    attributes: dict[str, Obj] = {"type": {"string": info.type}, "minor": {"int": info.minor}}
    if info.type == names.DEVICE_TYPE_GPU:
        attributes |= {key: {"string": labels.get(label, "")} for key, label in _NODE_LABELS}
        version = labels.get(names.LABEL_GPU_DRIVER_VERSION, "")
        if _VERSION.fullmatch(version):
            attributes["driverVersion"] = {"version": version}
    attributes["uuid"] = {"string": info.id}
    topology = info.topology
    if topology is not None:
        attributes["resource.kubernetes.io/pcieRoot"] = {"string": topology.pcie_id}
        attributes["resource.kubernetes.io/pciBusID"] = {"string": topology.bus_id}
        if topology.node_id in _NUMA:
            attributes["numaNode"] = {"int": topology.node_id}
    kept = {key: value for key, value in attributes.items() if 0 < len(str(value.get("string", "-"))) <= _LONGEST}
    entry: Obj = {"name": name, "attributes": kept}
    memory = _quantity(info.resources.get(names.RESOURCE_GPU_MEMORY))
    if memory:
        entry["capacity"] = {"memory": {"value": memory}}
    return entry


def _quantity(value: str | int | float | None) -> str:
    if value is None:
        return ""
    try:
        return str(Quantity(str(value)))
    except QuantityError:
        return ""


def generation_of(entry: Obj) -> int:
    """The generation of the pool that a slice is part of."""
    return int(entry["spec"]["pool"].get("generation") or 0)


def due(shown: Sequence[Obj], wanted: Sequence[Obj], written: Sequence[Obj] = ()) -> int:
    """The generation in which `wanted` is published; 0 where nothing is to be done.

    `shown` is what a cache has, perhaps part of what was `written` last. The same is published again in the same generation, so that who
    was interrupted goes on; everything else needs a new one: one generation never says two things.
    """
    last = max(map(generation_of, shown), default=0)
    known = max(map(generation_of, written), default=0)
    if same(shown, wanted) and known <= last and all(generation_of(entry) == last for entry in shown):
        return 0
    if known and known >= last:
        return known if same(written, wanted) else known + 1
    said = [_said(entry) for entry in wanted]
    goes_on = last and all(_said(entry) in said for entry in shown if generation_of(entry) == last)
    return last if goes_on else last + 1


def same(shown: Sequence[Obj], wanted: Sequence[Obj]) -> bool:
    """Whether what is there says what it should, whatever its generation."""
    return [_said(entry) for entry in shown] == [_said(entry) for entry in wanted]


def _said(entry: Obj) -> tuple[str, Obj, Any]:
    spec = entry["spec"]
    pool = {key: value for key, value in spec["pool"].items() if key != "generation"}
    devices = [{**device, "attributes": device.get("attributes") or {}} for device in spec.get("devices") or ()]
    return entry["metadata"]["name"], {**spec, "pool": pool, "devices": devices}, entry["metadata"].get("ownerReferences")
