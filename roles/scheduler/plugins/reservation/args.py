"""Arguments of Reservation (SCH-CFG-01)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from koord.accounting.resources import is_extended
from koord.api import names
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel
from roles.scheduler.config.args import Percent, PluginArgs

_DAY = 86400

Count = Annotated[int, Field(ge=0)]


class PreAllocationConfig(ConfigModel):
    """Which running pods a pre-allocating Reservation may take over in mode Cluster, and in what order."""

    enable_cluster_mode: bool = False
    """Whether any labelled pod of the node may be taken over, not only the Reservation's own owners."""
    cluster_label_key: str = Field(default=names.LABEL_POD_IS_PRE_ALLOCATABLE, min_length=1)
    """Label of pods that may be taken over."""
    cluster_priority_annotation_key: str = Field(default=names.ANNOTATION_PRE_ALLOCATABLE_PRIORITY, min_length=1)
    """Annotation with their order."""
    prefer_no_pre_allocated_pods: bool = False
    """Prefer nodes where no pod has to be taken over."""


class ReservationSelectorIndex(ConfigModel):
    """Labels of Reservations by which they are found for pods with a reservationSelector. Without keys it stays off."""

    enabled: bool = False
    """Keep the index."""
    key_prefixes: list[str] = Field(default_factory=list)
    """Prefixes of label keys that are indexed."""
    keys: list[str] = Field(default_factory=list)
    """Label keys that are indexed."""

    @field_validator("key_prefixes", "keys")
    @classmethod
    def _clean(cls, values: list[str]) -> list[str]:
        return list(dict.fromkeys(value.strip() for value in values if value.strip()))

    @property
    def active(self) -> bool:
        """Whether there is anything to index by."""
        return self.enabled and bool(self.key_prefixes or self.keys)


class ReservationArgs(PluginArgs):
    """Reservation. Durations in seconds."""

    enable_preemption: bool = False
    """Whether a Reservation may displace pods of lower priority."""
    min_candidate_nodes_percentage: Percent = 10
    """Share of nodes that preemption tries at least, 0 to 100 percent."""
    min_candidate_nodes_absolute: Count = 100
    """Number of nodes that preemption tries at least."""
    controller_workers: int = Field(default=1, ge=1)
    """Workers of the Reservation controller."""
    gc_duration_seconds: Count = _DAY
    """Seconds after which a Reservation that has ended is deleted; 0 means 86400."""
    gc_interval_seconds: Count = 60
    """How often that is looked at, in seconds."""
    resync_interval_seconds: Count = 60
    """How often the metrics of reservations are written, in seconds."""
    disable_garbage_collection: bool = False
    """Keep Reservations that have ended."""
    pre_allocation_config: PreAllocationConfig = Field(default_factory=PreAllocationConfig)
    """Which running pods a Reservation may take over."""
    ignored_resources: list[str] = Field(default_factory=list)
    """Extended resources that Reservations do not hold."""
    ignored_resource_groups: list[str] = Field(default_factory=list)
    """Domains of extended resources that Reservations do not hold."""
    reservation_selector_index: ReservationSelectorIndex = Field(default_factory=ReservationSelectorIndex)
    """Labels by which Reservations are found quickly."""

    @model_validator(mode="after")
    def _resources(self) -> ReservationArgs:
        self.gc_duration_seconds = self.gc_duration_seconds or _DAY
        for index, name in enumerate(self.ignored_resources):
            if not is_extended(name):
                raise ConfigError(f"ignoredResources[{index}]", f"{name!r} is no extended resource such as example.com/widget")
        for index, group in enumerate(self.ignored_resource_groups):
            if not group or "/" in group or not is_extended(f"{group}/x"):
                raise ConfigError(f"ignoredResourceGroups[{index}]", f"{group!r} must be the part of an extended resource before the slash")
        if self.enable_preemption and not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise ConfigError("minCandidateNodesPercentage", "must not be zero together with minCandidateNodesAbsolute")
        return self
