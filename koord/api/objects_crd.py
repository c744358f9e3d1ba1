"""Projections of the custom resources. See ``koord.api.objects`` for the conventions."""

from __future__ import annotations

from typing import Any

from koord.api.objects_cluster import Taint
from koord.api.objects_meta import (
    Condition,
    IntOrString,
    LabelSelector,
    Object,
    ObjectReference,
    OwnerReference,
    Projection,
    ResourceList,
)
from koord.api.objects_pod import PodTemplateSpec

# ---------------------------------------------------------------- ClusterColocationProfile


class ClusterColocationProfileSpec(Projection):
    """What the pod webhook writes, and to which pods."""

    namespace_selector: LabelSelector | None = None
    selector: LabelSelector | None = None
    probability: IntOrString | None = None
    qos_class: str = ""
    priority_class_name: str = ""
    koordinator_priority: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    label_keys_mapping: dict[str, str] = {}
    annotation_keys_mapping: dict[str, str] = {}
    label_suffixes: dict[str, str] = {}
    scheduler_name: str = ""
    patch: Any = None


class ClusterColocationProfile(Object):
    """config.koordinator.sh ClusterColocationProfile."""

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()


# ---------------------------------------------------------------- Reservation


class ReservationControllerReference(OwnerReference):
    """A controller, with the namespace it is in ("" is any)."""

    namespace: str = ""


class ReservationOwner(Projection):
    """One owner matcher; the fields that are set are ANDed."""

    object: ObjectReference | None = None
    controller: ReservationControllerReference | None = None
    label_selector: LabelSelector | None = None


class PreAllocationPolicy(Projection):
    """How pods are picked whose place is pre-allocated."""

    mode: str = ""
    enable_multiple: bool = False


class ReservationSpec(Projection):
    """scheduling.koordinator.sh ReservationSpec. ``allocate_once`` None means true."""

    template: PodTemplateSpec | None = None
    owners: tuple[ReservationOwner, ...] = ()
    ttl: str | None = None
    expires: str | None = None
    pre_allocation: bool = False
    pre_allocation_policy: PreAllocationPolicy | None = None
    allocate_once: bool | None = None
    allocate_policy: str = ""
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ReservationStatus(Projection):
    """scheduling.koordinator.sh ReservationStatus."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    current_owners: tuple[ObjectReference, ...] = ()
    node_name: str = ""
    allocatable: ResourceList = {}
    allocated: ResourceList = {}


class Reservation(Object):
    """scheduling.koordinator.sh Reservation."""

    spec: ReservationSpec = ReservationSpec()
    status: ReservationStatus = ReservationStatus()


# ---------------------------------------------------------------- PodMigrationJob


class PodMigrateReservationOptions(Projection):
    """How the reservation of a migration is made or found; ``template`` is plain JSON of any type, as its schema accepts it."""

    reservation_ref: ObjectReference | None = None
    template: Any = None
    preemption_options: dict[str, Any] | None = None


class PodMigrationJobSpec(Projection):
    """scheduling.koordinator.sh PodMigrationJobSpec; an empty mode means ReservationFirst."""

    paused: bool = False
    ttl: str | None = None
    mode: str = ""
    pod_ref: ObjectReference | None = None
    reservation_options: PodMigrateReservationOptions | None = None
    delete_options: dict[str, Any] | None = None


class PreemptedPodReservation(Projection):
    """The reservation for a pod that the migration preempted."""

    namespace: str = ""
    name: str = ""
    node_name: str = ""
    phase: str = ""
    preempted_pod_ref: ObjectReference | None = None
    pods_ref: tuple[ObjectReference, ...] = ()


class PodMigrationJobStatus(Projection):
    """scheduling.koordinator.sh PodMigrationJobStatus."""

    phase: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    node_name: str = ""
    pod_ref: ObjectReference | None = None
    preempted_pods_ref: tuple[ObjectReference, ...] = ()
    preempted_pods_reservation: tuple[PreemptedPodReservation, ...] = ()


class PodMigrationJob(Object):
    """scheduling.koordinator.sh PodMigrationJob."""

    spec: PodMigrationJobSpec = PodMigrationJobSpec()
    status: PodMigrationJobStatus = PodMigrationJobStatus()


# ---------------------------------------------------------------- quotas and gangs


class ElasticQuotaSpec(Projection):
    """Guarantee and ceiling."""

    min: ResourceList = {}
    max: ResourceList = {}


class ElasticQuotaStatus(Projection):
    """What is used."""

    used: ResourceList = {}


class ElasticQuota(Object):
    """scheduling.sigs.k8s.io ElasticQuota."""

    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class ElasticQuotaProfileSpec(Projection):
    """A quota tree made from the nodes that a selector finds."""

    quota_name: str = ""
    quota_labels: dict[str, str] = {}
    resource_ratio: str | None = None
    node_selector: LabelSelector | None = None


class ElasticQuotaProfile(Object):
    """quota.koordinator.sh ElasticQuotaProfile."""

    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()


class PodGroupSpec(Projection):
    """All-or-nothing scheduling of a group."""

    min_member: int = 0
    min_resources: ResourceList | None = None
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(Projection):
    """scheduling.sigs.k8s.io PodGroupStatus."""

    phase: str = ""
    occupied_by: str = ""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    schedule_start_time: str | None = None


class PodGroup(Object):
    """scheduling.sigs.k8s.io PodGroup."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


# ---------------------------------------------------------------- topology


class TopologyCost(Projection):
    """Distance to another zone."""

    name: str = ""
    value: int = 0


class TopologyAttribute(Projection):
    """A name with a value."""

    name: str = ""
    value: str = ""


class TopologyZoneResource(Projection):
    """A resource of a zone."""

    name: str = ""
    capacity: str | int | float = 0
    allocatable: str | int | float = 0
    available: str | int | float = 0


class TopologyZone(Projection):
    """A zone; NUMA nodes are named ``node-<id>`` and have type ``Node``."""

    name: str = ""
    type: str = ""
    parent: str = ""
    costs: tuple[TopologyCost, ...] = ()
    attributes: tuple[TopologyAttribute, ...] = ()
    resources: tuple[TopologyZoneResource, ...] = ()


class NodeResourceTopology(Object):
    """topology.node.k8s.io NodeResourceTopology; its name is the node's."""

    topology_policies: tuple[str, ...] = ()
    attributes: tuple[TopologyAttribute, ...] = ()
    zones: tuple[TopologyZone, ...] = ()


class NetworkTopologySpec(Projection):
    """One layer of the network tree; any of the label keys counts."""

    topology_layer: str = ""
    parent_topology_layer: str = ""
    label_key: tuple[str, ...] = ()


class ClusterNetworkTopologySpec(Projection):
    """Layers of the network tree."""

    network_topology_spec: tuple[NetworkTopologySpec, ...] = ()


class ClusterNetworkTopology(Object):
    """scheduling.koordinator.sh ClusterNetworkTopology; ``status`` stays a dict."""

    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: dict[str, Any] = {}


# ---------------------------------------------------------------- explanation, recommendation


class ScheduleExplanationSpec(Projection):
    """Whom the question is about."""

    question_object_key: str = ""
    question_object_template: Any = None
    ttl: str | None = None


class ScheduleExplanation(Object):
    """scheduling.koordinator.sh ScheduleExplanation; ``status`` stays a dict."""

    spec: ScheduleExplanationSpec = ScheduleExplanationSpec()
    status: dict[str, Any] = {}


class CrossVersionObjectReference(Projection):
    """A workload by kind and name."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class RecommendationTarget(Projection):
    """A workload or a selector of pods."""

    type: str = ""
    workload: CrossVersionObjectReference | None = None
    pod_selector: LabelSelector | None = None


class RecommendationSpec(Projection):
    """analysis.koordinator.sh RecommendationSpec."""

    target: RecommendationTarget = RecommendationTarget()


class RecommendedContainerStatus(Projection):
    """What a container should ask for."""

    container_name: str = ""
    resources: ResourceList = {}


class RecommendedPodStatus(Projection):
    """Containers, by name."""

    container_statuses: tuple[RecommendedContainerStatus, ...] = ()


class RecommendationStatus(Projection):
    """analysis.koordinator.sh RecommendationStatus."""

    pod_status: RecommendedPodStatus | None = None
    update_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class Recommendation(Object):
    """analysis.koordinator.sh Recommendation."""

    spec: RecommendationSpec = RecommendationSpec()
    status: RecommendationStatus = RecommendationStatus()
