"""Reservation: resources held for pods to come."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import (
    AGE,
    AnyValue,
    Column,
    Duration,
    LabelSelector,
    Model,
    ObjectReference,
    Resource,
    ResourceList,
    SimpleCondition,
    Timestamp,
)

PHASE_PENDING = "Pending"
PHASE_AVAILABLE = "Available"
PHASE_SUCCEEDED = "Succeeded"
PHASE_WAITING = "Waiting"
PHASE_FAILED = "Failed"
CONDITION_SCHEDULED = "Scheduled"
CONDITION_READY = "Ready"
REASON_SCHEDULED = "Scheduled"
REASON_UNSCHEDULABLE = "Unschedulable"
REASON_AVAILABLE = "Available"
REASON_SUCCEEDED = "Succeeded"
REASON_EXPIRED = "Expired"


class ReservationControllerReference(Model):
    """A controller and where it is."""

    api_version: str = Field(description="API version of the controller.")
    kind: str = Field(description="Kind of the controller.")
    name: str = Field(description="Name of the controller.")
    uid: str = Field(description="UID of the controller.")
    controller: bool | None = Field(None, description="Whether the reference is the managing controller.")
    block_owner_deletion: bool | None = Field(None, description="Whether the owner's deletion waits for the object.")
    namespace: str | None = Field(None, description="Namespace of the controller; absent is any.")


class ReservationOwner(Model):
    """A matcher of pods that may use the reservation. The fields that are set must all match."""

    object: ObjectReference | None = Field(None, description="The pod itself, by namespace, name, uid, kind, apiVersion.")
    controller: ReservationControllerReference | None = Field(None, description="The pod's controller.")
    label_selector: LabelSelector | None = Field(None, description="The pod's labels.")


class PreAllocationPolicy(Model):
    """How running pods are picked whose place is taken over."""

    mode: Literal["Default", "Cluster"] | None = Field("Default", description="Default or Cluster.")
    enable_multiple: bool | None = Field(False, description="Whether several pods may be picked.")


class Taint(Model):
    """A taint of the reservation; NoExecute never evicts."""

    key: str = Field(description="Key of the taint.")
    value: str | None = Field(None, description="Value of the taint.")
    effect: str = Field(description="NoSchedule, PreferNoSchedule or NoExecute.")
    time_added: Timestamp | None = Field(None, description="When the taint was added.")


class ReservationSpec(Model):
    """What is held, for whom, how long."""

    template: AnyValue = Field(description="PodTemplateSpec of what is held; spec.nodeName pins it to a node.")
    owners: Annotated[list[ReservationOwner], Field(min_length=1)] = Field(description="Who may use it: one matcher must match.")
    ttl: Duration | None = Field("24h", description="How long it lives; 0 is for ever. Not looked at when expires is set.")
    expires: Timestamp | None = Field(None, description="When it expires.")
    pre_allocation: bool | None = Field(None, description="Whether it may be placed where its resources are still in use.")
    pre_allocation_policy: PreAllocationPolicy | None = Field(None, description="How pods are picked whose place is taken over.")
    allocate_once: bool | None = Field(True, description="Whether its first owner uses it up.")
    allocate_policy: Literal["Aligned", "Restricted"] | None = Field(
        None, description="Aligned: take from it first, then from the node. Restricted: what it holds may only come from it."
    )
    unschedulable: bool | None = Field(None, description="Whether new owners are kept out.")
    taints: list[Taint] | None = Field(None, description="Taints that owners must tolerate.")


class ReservationStatus(Model):
    """Where it is and who uses it."""

    phase: str | None = Field(PHASE_PENDING, description="Pending, Available, Succeeded, Waiting or Failed.")
    conditions: list[SimpleCondition] | None = Field(None, description="Scheduled and Ready.")
    current_owners: list[ObjectReference] | None = Field(None, description="The pods that use it.")
    node_name: str | None = Field(None, description="Name of the node that holds it.")
    allocatable: ResourceList | None = Field(None, description="What it holds.")
    allocated: ResourceList | None = Field(None, description="What its owners use of that.")


class Reservation(Resource):
    """Resources held on a node for pods to come."""

    resource: ClassVar[kinds.Kind] = kinds.RESERVATIONS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Phase", ".status.phase", description="Where the reservation stands"),
        AGE,
        Column("Node", ".status.nodeName"),
        Column("TTL", ".spec.ttl"),
        Column("Expires", ".spec.expires"),
    )

    spec: ReservationSpec | None = Field(None, description="What is held, for whom, how long.")
    status: ReservationStatus | None = Field(None, description="Where it is and who uses it.")
