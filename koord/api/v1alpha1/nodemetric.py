"""NodeMetric: usage of a node as the agent reports it (API-NM-01)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import (
    AGE,
    AnyObject,
    Column,
    Condition,
    DeviceInfo,
    Duration,
    Int32,
    Int64,
    Model,
    Resource,
    ResourceList,
    Timestamp,
)


class ResourceMap(Model):
    """Usage, of resources and of devices."""

    resources: ResourceList | None = Field(None, description="Usage by resource name.")
    devices: list[DeviceInfo] | None = Field(None, description="Usage of devices.")


class AggregatedUsage(Model):
    """Percentiles over a window."""

    duration: Duration | None = Field(None, description="Length of the window.")
    usage: dict[str, ResourceMap] | None = Field(None, description="Usage by aggregation: avg, p50, p90, p95, p99.")


class NumaUsage(Model):
    """Usage of a NUMA node."""

    numa_node_id: Int32 = Field(description="Number of the NUMA node.")
    node_usage: ResourceMap | None = Field(None, description="Usage of the NUMA node.")
    system_usage: ResourceMap | None = Field(None, description="The part of it that is no pod's and no host application's.")


class NodeMetricInfo(Model):
    """Usage of a node."""

    node_usage: ResourceMap | None = Field(None, description="Usage of the whole node.")
    aggregated_node_usages: list[AggregatedUsage] | None = Field(
        None, description="Percentiles of the node's usage; only when there are enough samples."
    )
    system_usage: ResourceMap | None = Field(None, description="Usage of the node less its pods and host applications.")
    aggregated_system_usages: list[AggregatedUsage] | None = Field(
        None, description="Percentiles of the system's usage; deleted pods are left out."
    )
    numa_usages: list[NumaUsage] | None = Field(None, description="Usage by NUMA node.")


class PodMetricInfo(Model):
    """Usage of a pod."""

    name: str | None = Field(None, description="Name of the pod.")
    namespace: str | None = Field(None, description="Namespace of the pod.")
    pod_usage: ResourceMap | None = Field(None, description="Usage of the pod.")
    priority: str | None = Field(None, description="Priority class of the pod, such as koord-batch.")
    qos: str | None = Field(None, description="QoS class of the pod.")
    extensions: AnyObject | None = Field(None, description="Further metrics, free in form.")


class HostApplicationMetricInfo(Model):
    """Usage of an application that runs outside of pods."""

    name: str | None = Field(None, description="Name of the application.")
    usage: ResourceMap | None = Field(None, description="Usage of the application.")
    priority: str | None = Field(None, description="Priority class of the application.")
    qos: str | None = Field(None, description="QoS class of the application.")


class ReclaimableMetric(Model):
    """What Prod asked for and will not use."""

    resource: ResourceMap | None = Field(None, description="Predicted reclaimable resources of Prod.")


class PeakMetric(Model):
    """What Prod will need at most."""

    resource: ResourceMap | None = Field(
        None,
        description="Predicted peak of Prod, system usage and safety margin included; pods without a prediction count by request.",
    )


class NodeAggregatePolicy(Model):
    """Windows of aggregation."""

    durations: list[Duration] | None = Field(None, description="Windows to aggregate usage over.")


class NodeMetricCollectPolicy(Model):
    """How usage is collected."""

    aggregate_duration_seconds: Int64 | None = Field(None, description="Window in seconds over which a report averages.")
    report_interval_seconds: Int64 | None = Field(None, description="Seconds between two reports.")
    node_aggregate_policy: NodeAggregatePolicy | None = Field(None, description="Aggregation of the node's usage.")
    node_memory_collect_policy: Literal["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"] | None = Field(
        None, description="Which page cache counts as used memory."
    )


class NodeMetricSpec(Model):
    """What the agent is asked to report."""

    metric_collect_policy: NodeMetricCollectPolicy | None = Field(None, description="How usage is collected.")


class NodeMetricStatus(Model):
    """What the agent reports."""

    update_time: Timestamp | None = Field(None, description="Time of the last report; absent when there was none.")
    node_metric: NodeMetricInfo | None = Field(None, description="Usage of the node.")
    pods_metric: list[PodMetricInfo] | None = Field(None, description="Usage of the pods on this node.")
    host_application_metric: list[HostApplicationMetricInfo] | None = Field(None, description="Usage of its host applications.")
    prod_reclaimable_metric: ReclaimableMetric | None = Field(None, description="What Prod asked for and will not use.")
    prod_peak_metric: PeakMetric | None = Field(None, description="What Prod will need at most.")
    conditions: list[Condition] | None = Field(
        None, description="FeaturesWork, while a feature of the agent that was asked for lacks what it needs on this node: what, and why."
    )


class NodeMetric(Resource):
    """Usage of a node and its pods, reported by the node agent."""

    resource: ClassVar[kinds.Kind] = kinds.NODEMETRICS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("CPU", ".status.nodeMetric.nodeUsage.resources.cpu"),
        Column("Memory", ".status.nodeMetric.nodeUsage.resources.memory"),
        Column("Updated", ".status.updateTime", "date"),
        AGE,
    )

    spec: NodeMetricSpec | None = Field(None, description="What the agent is asked to report.")
    status: NodeMetricStatus | None = Field(None, description="What the agent reports.")
