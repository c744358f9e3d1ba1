"""Recommendation: what containers should request (API-REC-01)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, Column, Condition, LabelSelector, Model, Resource, ResourceList, Timestamp

CONDITION_LOW_CONFIDENCE = "LowConfidence"
CONDITION_NO_OBJECTS_MATCHED = "NoObjectsMatched"
CONDITION_FETCHING_HISTORY = "FetchingHistory"
CONDITION_CONFIG_UNSUPPORTED = "ConfigUnsupported"
CONDITION_CHECKPOINT_FAILED = "CheckpointFailed"
CONDITION_MEMORY_GROWING = "MemoryGrowing"
CONDITION_RESIZE_PENDING = "ResizePending"


class CrossVersionObjectReference(Model):
    """A workload."""

    kind: str = Field(description="Kind of the workload.")
    name: str = Field(description="Name of the workload.")
    api_version: str | None = Field(None, description="API version of the workload.")


class RecommendationTarget(Model):
    """Whose containers are looked at."""

    type: str = Field(description="workload or podSelector.")
    workload: CrossVersionObjectReference | None = Field(None, description="The workload, when the type is workload.")
    pod_selector: LabelSelector | None = Field(None, description="Labels of the pods, when the type is podSelector.")


class RecommendationSpec(Model):
    """Whose containers are looked at."""

    target: RecommendationTarget = Field(description="Whose containers are looked at.")


class RecommendedContainerStatus(Model):
    """What a container should request."""

    container_name: str | None = Field(None, description="Name of the container.")
    resources: ResourceList | None = Field(None, description="What it should request.")


class RecommendedPodStatus(Model):
    """What the containers should request."""

    container_statuses: list[RecommendedContainerStatus] | None = Field(None, description="The containers, sorted by name.")


class RecommendationStatus(Model):
    """The recommendation."""

    pod_status: RecommendedPodStatus | None = Field(None, description="What the containers should request.")
    update_time: Timestamp | None = Field(None, description="When the recommendation was last written.")
    conditions: list[Condition] | None = Field(
        None,
        description="LowConfidence, NoObjectsMatched, FetchingHistory, CheckpointFailed, MemoryGrowing, ResizePending, ConfigDeprecated, "
        "ConfigUnsupported.",
    )


class Recommendation(Resource):
    """What the containers of a workload should request, learnt from their usage."""

    resource: ClassVar[kinds.Kind] = kinds.RECOMMENDATIONS
    columns: ClassVar[tuple[Column, ...]] = (
        AGE,
        Column("Type", ".spec.target.type"),
        Column("Kind", ".spec.target.workload.kind"),
        Column("Name", ".spec.target.workload.name"),
        Column("LastUpdateTime", ".status.updateTime", "date"),
    )

    spec: RecommendationSpec | None = Field(None, description="Whose containers are looked at.")
    status: RecommendationStatus | None = Field(None, description="The recommendation.")
