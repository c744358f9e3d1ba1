"""Projections of Device, NodeMetric and NodeSLO. See ``koord.api.objects`` for the conventions."""

from __future__ import annotations

from typing import Any

from msgspec import field

from koord.api.objects_meta import Condition, Object, Projection, ResourceList

# ---------------------------------------------------------------- Device


class DeviceTopology(Projection):
    """Where a device hangs. ``node_id`` is the NUMA node."""

    socket_id: int = field(default=0, name="socketID")
    node_id: int = field(default=0, name="nodeID")
    pcie_id: str = field(default="", name="pcieID")
    bus_id: str = field(default="", name="busID")


class VirtualFunction(Projection):
    """A virtual function of a device."""

    minor: int = 0
    bus_id: str = field(default="", name="busID")


class VirtualFunctionGroup(Projection):
    """Virtual functions with common labels."""

    labels: dict[str, str] = {}
    vfs: tuple[VirtualFunction, ...] = ()


class DeviceInfo(Projection):
    """One device of a node; in a NodeMetric its resources are what is used."""

    type: str = ""
    id: str = ""
    minor: int | None = None
    module_id: int | None = field(default=None, name="moduleID")
    health: bool = False
    labels: dict[str, str] = {}
    resources: ResourceList = {}
    topology: DeviceTopology | None = None
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()
    conditions: tuple[Condition, ...] = ()


class DeviceSpec(Projection):
    """Devices of a node."""

    devices: tuple[DeviceInfo, ...] = ()


class DeviceAllocationItem(Projection):
    """Who holds which minors."""

    name: str = ""
    namespace: str = ""
    uuid: str = ""
    minors: tuple[int, ...] = ()


class DeviceAllocation(Projection):
    """Allocations of one device type."""

    type: str = ""
    entries: tuple[DeviceAllocationItem, ...] = ()


class DeviceStatus(Projection):
    """Allocations of a node's devices."""

    allocations: tuple[DeviceAllocation, ...] = ()


class Device(Object):
    """scheduling.koordinator.sh Device; its name is the node's."""

    spec: DeviceSpec = DeviceSpec()
    status: DeviceStatus = DeviceStatus()


# ---------------------------------------------------------------- NodeMetric


class ResourceMap(Projection):
    """Usage: resources, and devices with theirs."""

    resources: ResourceList = {}
    devices: tuple[DeviceInfo, ...] = ()


class AggregatedUsage(Projection):
    """Percentiles over a window; keys of ``usage`` are avg, p50, p90, p95, p99."""

    duration: str = ""
    usage: dict[str, ResourceMap] = {}


class NodeMetricInfo(Projection):
    """Usage of the whole node and of its system part."""

    node_usage: ResourceMap = ResourceMap()
    aggregated_node_usages: tuple[AggregatedUsage, ...] = ()
    system_usage: ResourceMap = ResourceMap()


class PodMetricInfo(Projection):
    """Usage of a pod; ``priority`` is a class name."""

    name: str = ""
    namespace: str = ""
    pod_usage: ResourceMap = ResourceMap()
    priority: str = ""
    qos: str = ""
    extensions: dict[str, Any] | None = None


class HostApplicationMetricInfo(Projection):
    """Usage of a host application."""

    name: str = ""
    usage: ResourceMap = ResourceMap()
    priority: str = ""
    qos: str = ""


class ProdResourceMetric(Projection):
    """A prediction for Prod."""

    resource: ResourceMap = ResourceMap()


class NodeAggregatePolicy(Projection):
    """Windows to aggregate over, Go durations."""

    durations: tuple[str, ...] = ()


class NodeMetricCollectPolicy(Projection):
    """How the agent reports."""

    aggregate_duration_seconds: int | None = None
    report_interval_seconds: int | None = None
    node_aggregate_policy: NodeAggregatePolicy | None = None
    node_memory_collect_policy: str | None = None


class NodeMetricSpec(Projection):
    """What the manager asks of the agent."""

    metric_collect_policy: NodeMetricCollectPolicy | None = field(default=None, name="metricCollectPolicy")


class NodeMetricStatus(Projection):
    """What the agent reports. ``update_time`` None: it never has."""

    update_time: str | None = None
    node_metric: NodeMetricInfo | None = None
    pods_metric: tuple[PodMetricInfo, ...] = ()
    host_application_metric: tuple[HostApplicationMetricInfo, ...] = ()
    prod_reclaimable_metric: ProdResourceMetric | None = None


class NodeMetric(Object):
    """slo.koordinator.sh NodeMetric; its name is the node's."""

    spec: NodeMetricSpec = NodeMetricSpec()
    status: NodeMetricStatus = NodeMetricStatus()


class NodeSLO(Object):
    """slo.koordinator.sh NodeSLO. ``spec`` stays a dict: strategies are merged key by key and unset differs from zero."""

    spec: dict[str, Any] = {}
