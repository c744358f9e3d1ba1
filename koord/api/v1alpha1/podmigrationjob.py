"""PodMigrationJob: move a pod to another node, with a reservation first if wanted."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import (
    AGE,
    AnyValue,
    Column,
    Duration,
    Empty,
    Int64,
    Model,
    ObjectReference,
    Resource,
    Timestamp,
)


class Preconditions(Model):
    """What must be true of the pod when it is deleted."""

    uid: str | None = Field(None, description="UID that the pod must have.")
    resource_version: str | None = Field(None, description="Version that the pod must have.")


class DeleteOptions(Model):
    """metav1.DeleteOptions."""

    api_version: str | None = Field(None, description="API version of the options.")
    kind: str | None = Field(None, description="Kind of the options.")
    dry_run: list[str] | None = Field(None, description="All: nothing is changed.")
    grace_period_seconds: Int64 | None = Field(None, description="Seconds that the pod gets to end; 0 is at once.")
    preconditions: Preconditions | None = Field(None, description="What must be true of the pod.")
    propagation_policy: str | None = Field(None, description="Orphan, Background or Foreground.")
    orphan_dependents: bool | None = Field(None, description="Deprecated: use propagationPolicy.")
    ignore_store_read_error_with_cluster_breaking_potential: bool | None = Field(
        None, description="Delete also what cannot be read from the store."
    )


class PodMigrateReservationOptions(Model):
    """The reservation that the pod moves into."""

    reservation_ref: ObjectReference | None = Field(None, description="The reservation, once there is one.")
    template: AnyValue | None = Field(None, description="Metadata and spec of the Reservation to be made.")
    preemption_options: Empty | None = Field(None, description="How the reservation may preempt.")


class PodMigrationJobSpec(Model):
    """Which pod moves and how."""

    paused: bool | None = Field(None, description="Whether the job waits.")
    ttl: Duration | None = Field(None, description="How long the job may take; 0 or absent is without a limit.")
    mode: str | None = Field(None, description="ReservationFirst (default) or EvictDirectly.")
    pod_ref: ObjectReference = Field(description="The pod.")
    reservation_options: PodMigrateReservationOptions | None = Field(None, description="The reservation that the pod moves into.")
    delete_options: DeleteOptions | None = Field(None, description="How the pod is deleted.")


class PodMigrationJobCondition(Model):
    """A step of the migration."""

    type: str = Field(description="Type of the condition.")
    status: str = Field(description="True, False or Unknown.")
    reason: str | None = Field(None, description="A word that says why.")
    message: str | None = Field(None, description="A sentence for people.")
    last_probe_time: Timestamp | None = Field(None, description="When it was last looked at.", json_schema_extra={"wireNullable": True})
    last_transition_time: Timestamp | None = Field(
        None, description="When the status last changed.", json_schema_extra={"wireNullable": True}
    )


class PreemptedReservation(Model):
    """The reservation made for a preempted pod."""

    namespace: str | None = Field(None, description="Namespace of the reservation.")
    name: str | None = Field(None, description="Name of the reservation.")
    node_name: str | None = Field(None, description="Node of the reservation.")
    phase: str | None = Field(None, description="Phase of the reservation.")
    preempted_pod_ref: ObjectReference | None = Field(None, description="The preempted pod.")
    pods_ref: list[ObjectReference] | None = Field(None, description="The pods that use the reservation.")


class PodMigrationJobStatus(Model):
    """Progress of the migration."""

    phase: str | None = Field(None, description="Pending, Running, Succeeded, Failed or Aborted.")
    status: str | None = Field(None, description="A short word for the current step.")
    reason: str | None = Field(None, description="A word that says why.")
    message: str | None = Field(None, description="A sentence for people.")
    conditions: list[PodMigrationJobCondition] | None = Field(None, description="The steps.")
    node_name: str | None = Field(None, description="Node of the pod that moves.")
    pod_ref: ObjectReference | None = Field(None, description="The new pod.")
    preempted_pods_ref: list[ObjectReference] | None = Field(None, description="Pods that were preempted.")
    preempted_pods_reservation: list[PreemptedReservation] | None = Field(None, description="Reservations for those.")


class PodMigrationJob(Resource):
    """The move of a pod to another node."""

    resource: ClassVar[kinds.Kind] = kinds.PODMIGRATIONJOBS
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Phase", ".status.phase", description="Where the migration stands"),
        Column("Status", ".status.status", description="The current step"),
        AGE,
        Column("Node", ".status.nodeName"),
        Column("Reservation", ".spec.reservationOptions.reservationRef.name"),
        Column("PodNamespace", ".spec.podRef.namespace"),
        Column("Pod", ".spec.podRef.name"),
        Column("NewPod", ".status.podRef.name"),
        Column("TTL", ".spec.ttl"),
    )

    spec: PodMigrationJobSpec | None = Field(None, description="Which pod moves and how.")
    status: PodMigrationJobStatus | None = Field(None, description="Progress of the migration.")
