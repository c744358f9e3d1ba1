"""PodGroup: pods that are scheduled all or not at all."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, Column, Int32, Model, Resource, ResourceList, Timestamp
from koord.api.v1alpha1.elasticquota import APPROVED


class PodGroupSpec(Model):
    """Size of the group."""

    min_member: Int32 | None = Field(None, description="Pods that must be placed together.")
    min_resources: ResourceList | None = Field(None, description="Resources that the group needs at least.")
    schedule_timeout_seconds: Int32 | None = Field(None, description="Seconds that a placed pod waits for the others.")


class PodGroupStatus(Model):
    """Progress of the group."""

    phase: str | None = Field(None, description="Pending, PreScheduling, Scheduling, Scheduled, Running, Unknown, Finished or Failed.")
    occupied_by: str | None = Field(None, description="The workload that the group belongs to: namespace/name.")
    scheduled: Int32 | None = Field(None, description="Pods that are placed.")
    running: Int32 | None = Field(None, description="Pods that run.")
    succeeded: Int32 | None = Field(None, description="Pods that succeeded.")
    failed: Int32 | None = Field(None, description="Pods that failed.")
    schedule_start_time: Timestamp | None = Field(None, description="When scheduling of the group began.")


class PodGroup(Resource):
    """Pods that are scheduled all or not at all; they join by the label pod-group.scheduling.sigs.k8s.io."""

    resource: ClassVar[kinds.Kind] = kinds.PODGROUPS
    crd_annotations: ClassVar[dict[str, str]] = APPROVED
    columns: ClassVar[tuple[Column, ...]] = (
        Column("Phase", ".status.phase", description="Where the group stands"),
        Column("MinMember", ".spec.minMember", "integer", "Pods that must be placed together"),
        Column("Scheduled", ".status.scheduled", "integer", "Pods that are placed"),
        Column("Running", ".status.running", "integer", "Pods that run"),
        AGE,
    )

    spec: PodGroupSpec | None = Field(None, description="Size of the group.")
    status: PodGroupStatus | None = Field(None, description="Progress of the group.")
