"""GPUDeviceResource and RDMADeviceResource: node resources from the Device object (MGR-NR-GPU-01, MGR-NR-RDMA-01); pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from koord.accounting.resources import parse, sum_
from koord.api import names
from koord.api.objects import DeviceInfo, Node
from koord.decisions.record import Term
from roles.manager.noderesource.model import Contribution, Inputs, PluginError

GPU, RDMA = "GPUDeviceResource", "RDMADeviceResource"
GPU_NAMES = (
    names.RESOURCE_GPU,
    names.RESOURCE_GPU_CORE,
    names.RESOURCE_HUAWEI_NPU_CORE,
    names.RESOURCE_HUAWEI_NPU_CPU,
    names.RESOURCE_HUAWEI_NPU_DVPP,
    names.RESOURCE_GPU_MEMORY,
    names.RESOURCE_GPU_MEMORY_RATIO,
    names.RESOURCE_GPU_SHARED,
)
NAMES = frozenset((*GPU_NAMES, names.RESOURCE_RDMA))
GPU_LABELS = (names.LABEL_GPU_VENDOR, names.LABEL_GPU_MODEL, names.LABEL_GPU_DRIVER_VERSION)


def _healthy(inputs: Inputs, kind: str) -> list[DeviceInfo]:
    return [device for device in inputs.device.spec.devices if device.type == kind and device.health] if inputs.device else []


def gpu(inputs: Inputs) -> Contribution:
    """GPU and NPU resources and labels. Raises QuantityError, and PluginError for amounts that a node cannot have."""
    healthy = _healthy(inputs, names.DEVICE_TYPE_GPU)
    if not healthy or inputs.device is None:
        return Contribution(GPU, "no healthy gpu device", removed=frozenset(GPU_NAMES))
    total = sum_(parse(device.resources) for device in healthy)
    labels = inputs.device.metadata.labels
    if labels.get(names.LABEL_GPU_VENDOR, "") in ("", names.GPU_VENDOR_NVIDIA):
        total[names.RESOURCE_GPU] = total.get(names.RESOURCE_GPU_CORE, 0)
    if inputs.sync_gpu_shared:
        total[names.RESOURCE_GPU_SHARED] = 100 * len(healthy)
    resources = {name: total[name] for name in GPU_NAMES if name in total}
    wrong = {name: amount for name, amount in resources.items() if amount < 0}
    if wrong:
        # The API server would refuse the whole write, other resources of the node with it.
        raise PluginError(f"the healthy gpu devices of the Device sum up to less than 0: {wrong}")
    return Contribution(
        GPU,
        f"{len(healthy)} healthy gpu devices",
        resources=resources,
        labels={key: labels[key] for key in GPU_LABELS if labels.get(key)},
        reasons=lambda: tuple(Term(name, amount) for name, amount in resources.items()),
    )


def rdma(inputs: Inputs) -> Contribution:
    """RDMA: a hundred per healthy device."""
    healthy = _healthy(inputs, names.DEVICE_TYPE_RDMA)
    if not healthy:
        return Contribution(RDMA, "no healthy rdma device", removed=frozenset({names.RESOURCE_RDMA}))
    amount = 100 * len(healthy)
    return Contribution(
        RDMA, f"{len(healthy)} healthy rdma devices", {names.RESOURCE_RDMA: amount}, reasons=lambda: (Term(names.RESOURCE_RDMA, amount),)
    )


def offered(node: Node) -> bool:
    """Whether a node offers devices, whoever wrote that."""
    return not NAMES.isdisjoint(node.status.capacity) or not NAMES.isdisjoint(node.status.allocatable)


def written_by(node: Mapping[str, Any], manager: str) -> bool:
    """Whether a device resource of a node, as the API server has it, was written by this field manager."""
    return any(not NAMES.isdisjoint(fields) for fields in _fields(node, manager))


def _fields(node: Mapping[str, Any], manager: str) -> Iterator[Collection[str]]:
    for entry in (node.get("metadata") or {}).get("managedFields") or ():
        if entry.get("manager") == manager:
            status = (entry.get("fieldsV1") or {}).get("f:status") or {}
            for section in ("f:capacity", "f:allocatable"):
                yield [field.removeprefix("f:") for field in status.get(section) or ()]
