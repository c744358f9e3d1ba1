"""The Device object: what it should say (KLO-DEV-04). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from koord.api import names
from koord.api.kinds import DEVICES
from koord.api.quantity import QuantityError, format_binary, parse_milli
from koord.api.times import format_time
from roles.koordlet.report.topology import merge_patch, owner_reference
from roles.koordlet.sensing.gpulibrary import GPUCard
from roles.koordlet.sensing.rdma import RDMADevice
from roles.koordlet.sensing.xpu import XPUDevice, XPUStatus, XPUTopology

if TYPE_CHECKING:
    from koord.api.objects import Node

Device = dict[str, Any]
Object = dict[str, Any]

LABELS = (
    names.LABEL_GPU_MODEL,
    names.LABEL_GPU_VENDOR,
    names.LABEL_GPU_DRIVER_VERSION,
    names.LABEL_NODE_GPU_PARTITION_POLICY,
)
#: What a label value may be; a model such as "A B" becomes "A-B".
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_MINOR = re.compile(r"[0-9]{1,9}")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_BARE = {"gpu-core": names.RESOURCE_GPU_CORE, "gpu-memory": names.RESOURCE_GPU_MEMORY}
_MAX_REASON, _MAX_MESSAGE = 1024, 32_768


def label_value(text: str) -> str:
    """A text as a label value: blanks and foreign characters become dashes; "" when nothing is left."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")
    return value if _LABEL.fullmatch(value) else ""


def reason_of(code: str) -> str:
    """A condition reason that the API accepts: ``chip error`` becomes ``ChipError``, ``-8001`` ``ErrCode_8001``."""
    if not code.strip():
        return "Unknown"
    if _REASON.fullmatch(code) and len(code) <= _MAX_REASON:
        return code
    words = re.findall(r"[A-Za-z0-9_]+", code)
    joined = "".join(w[:1].upper() + w[1:] for w in words)
    if not joined:
        return "Unknown"
    if not joined[0].isalpha() or not joined[0].isascii():
        joined = f"ErrCode_{joined.lstrip('_')}"
    return joined[:_MAX_REASON]


def _condition(status: XPUStatus) -> Object:
    if status.healthy:
        return {"type": "Healthy", "status": "True", "reason": "DeviceHealthy", "message": "device is healthy"}
    reason = reason_of(status.err_code)
    message = status.err_message or "device is unhealthy"
    if status.err_code.strip() and reason != status.err_code:
        message = f"{status.err_code}: {message}"
    return {"type": "Healthy", "status": "False", "reason": reason, "message": message[:_MAX_MESSAGE]}


def _resources(given: dict[str, str] | None) -> dict[str, str]:
    out = {names.RESOURCE_GPU_MEMORY_RATIO: "100"}
    for name, quantity in (given or {}).items():
        try:
            parse_milli(quantity)
        except QuantityError:
            continue
        out[_BARE.get(name, name)] = quantity
    return out


def _topology(topology: XPUTopology) -> Object:
    node = int(topology.node_id) if re.fullmatch(r"-?\d{1,9}", topology.node_id) else -1
    return {"socketID": -1, "nodeID": node, "pcieID": topology.pcie_id, "busID": topology.bus_id}


def xpu_device(entry: XPUDevice) -> Device:
    """One accelerator of a file in wire form."""
    device: Device = {
        "type": "gpu",
        "id": entry.uuid,
        "minor": _minor(entry),
        "health": entry.status.healthy if entry.status is not None else True,
        "resources": _resources(entry.resources),
    }
    if entry.topology is not None:
        device["topology"] = _topology(entry.topology)
    if entry.status is not None:
        device["conditions"] = [_condition(entry.status)]
    return device


def rdma_device(card: RDMADevice) -> Device:
    """One RDMA card in wire form."""
    device: Device = {
        "type": names.DEVICE_TYPE_RDMA,
        "id": card.bus_id,
        "minor": card.minor,
        "health": card.healthy,
        "resources": {names.RESOURCE_RDMA: "100"},
        "topology": {"socketID": -1, "nodeID": card.numa_node, "pcieID": card.pcie_root, "busID": card.bus_id},
    }
    if card.functions:
        device["vfGroups"] = [{"vfs": [{"minor": -1, "busID": function} for function in card.functions]}]
    return device


def gpu_device(card: GPUCard) -> Device:
    """One graphics card of a vendor's library in wire form. Only one that is not healthy has a condition."""
    device: Device = {
        "type": names.DEVICE_TYPE_GPU,
        "id": card.uuid,
        "minor": card.minor,
        "health": not card.problem,
        "resources": {
            names.RESOURCE_GPU_CORE: "100",
            names.RESOURCE_GPU_MEMORY: format_binary(card.memory_total),
            names.RESOURCE_GPU_MEMORY_RATIO: "100",
        },
    }
    if card.numa_node >= 0 and card.pcie_root and card.bus_id:
        device["topology"] = {"socketID": -1, "nodeID": card.numa_node, "pcieID": card.pcie_root, "busID": card.bus_id}
    if card.problem:
        device["conditions"] = [{"type": "Healthy", "status": "False", "reason": reason_of(card.problem), "message": "device is unhealthy"}]
    return device


def gpu_labels(cards: Sequence[GPUCard]) -> dict[str, str]:
    """Labels by all cards; models that differ give no model."""
    if not cards:
        return {}
    models = {card.model for card in cards}
    model = models.pop().removeprefix("NVIDIA ") if len(models) == 1 else ""
    out = {
        names.LABEL_GPU_MODEL: label_value(model),
        names.LABEL_GPU_VENDOR: label_value(cards[0].vendor),
        names.LABEL_GPU_DRIVER_VERSION: label_value(cards[0].driver),
    }
    return {k: v for k, v in out.items() if v}


def _minor(entry: XPUDevice) -> int:
    return int(entry.minor) if _MINOR.fullmatch(entry.minor) else 0


def partitions(entries: Sequence[XPUDevice]) -> dict[str, list[Object]]:
    """Groups of linked devices by size; a group is a device with its peers, equal groups count once."""
    out: dict[str, list[Object]] = {}
    seen: set[tuple[int, ...]] = set()
    for entry in entries:
        for link in (entry.topology.p2p_links or ()) if entry.topology is not None else ():
            if not link.peer_minor or not link.type:
                continue
            peers = {int(p) for p in (t.strip() for t in link.peer_minor.split(",")) if _MINOR.fullmatch(p)}
            minors = tuple(sorted(peers | {_minor(entry)}))
            if minors in seen:
                continue
            seen.add(minors)
            out.setdefault(str(len(minors)), []).append({"minors": list(minors), "gpuLinkType": link.type, "allocationScore": 1})
    return out


def labels_of(entries: Sequence[XPUDevice]) -> dict[str, str]:
    """Labels by the first entry."""
    if not entries:
        return {}
    first = entries[0]
    out = {names.LABEL_GPU_MODEL: label_value(first.model), names.LABEL_GPU_VENDOR: label_value(first.vendor)}
    if first.topology is not None and first.topology.p2p_links:
        out[names.LABEL_NODE_GPU_PARTITION_POLICY] = "Honor" if first.topology.must_honor_partition else "Prefer"
    return {k: v for k, v in out.items() if v}


def wanted_object(node: Node, entries: Sequence[XPUDevice], others: Sequence[Device] = (), cards: Sequence[GPUCard] = ()) -> Object:
    """The whole object: accelerators of files or of a library, and ``others`` (RDMA), by type and minor; labels and partitions."""
    devices = sorted([*map(xpu_device, entries), *map(gpu_device, cards), *others], key=lambda d: (d["type"], d["minor"]))
    groups = partitions(entries)
    annotations = {names.ANNOTATION_DEVICE_GPU_PARTITIONS: orjson.dumps(groups).decode()} if groups else {}
    return {
        "apiVersion": DEVICES.api_version,
        "kind": DEVICES.kind,
        "metadata": {
            "name": node.metadata.name,
            "labels": labels_of(entries) or gpu_labels(cards),
            "annotations": annotations,
            "ownerReferences": [owner_reference(node)],
        },
        "spec": {"devices": devices},
    }


def stamp(devices: list[Device], existing: Sequence[Device], now: float) -> list[Device]:
    """Devices with ``lastTransitionTime``: kept while the status of a device's condition stays, else now."""
    before = {(d.get("type"), d.get("id"), c.get("type")): c for d in existing for c in d.get("conditions") or [] if isinstance(c, dict)}
    out: list[Device] = []
    for device in devices:
        if "conditions" not in device:
            out.append(device)
            continue
        conditions = []
        for condition in device["conditions"]:
            old = before.get((device["type"], device["id"], condition["type"]))
            same = old is not None and old.get("status") == condition["status"] and old.get("lastTransitionTime")
            conditions.append({**condition, "lastTransitionTime": old["lastTransitionTime"] if same and old else format_time(now)})
        out.append({**device, "conditions": conditions})
    return out


def difference(existing: Object, wanted: Object, now: float) -> Object | None:
    """The merge patch from an existing object, or None. Labels and annotations of others stay."""
    metadata = existing.get("metadata") or {}
    labels = _changes(metadata.get("labels") or {}, wanted["metadata"]["labels"], LABELS)
    annotations = _changes(metadata.get("annotations") or {}, wanted["metadata"]["annotations"], (names.ANNOTATION_DEVICE_GPU_PARTITIONS,))
    old = (existing.get("spec") or {}).get("devices") or []
    devices = stamp(wanted["spec"]["devices"], old, now)
    return merge_patch(metadata, labels, annotations, {"spec": {"devices": devices}} if devices != old else {})


def _changes(existing: dict[str, str], wanted: dict[str, str], managed: tuple[str, ...]) -> Object:
    out: Object = {k: v for k, v in wanted.items() if existing.get(k) != v}
    out.update({k: None for k in managed if k in existing and k not in wanted})
    return out
