"""Projections of Kubernetes' own pod groups: scheduling.k8s.io in the versions of 1.35 (v1alpha1), 1.36 (v1alpha2) and 1.37 (v1beta1)."""

from __future__ import annotations

from typing import Any

from koord.api.objects_meta import Condition, Object, Projection


class GangPolicy(Projection):
    """All or nothing: so many pods have to be placed together at least."""

    min_count: int = 0


class GroupPolicy(Projection):
    """Exactly one of the two is set."""

    basic: dict[str, Any] | None = None
    gang: GangPolicy | None = None


class GroupTopology(Projection):
    """The label of nodes whose value all pods of a group share."""

    key: str = ""


class GroupConstraints(Projection):
    """What the places of a group's pods have in common."""

    topology: tuple[GroupTopology, ...] = ()


class SchedulingGroupSpec(Projection):
    """PodGroupSpec. `disruption_mode` is "Pod" or "PodGroup" in v1alpha2, {"single": {}} or {"all": {}} in v1beta1."""

    scheduling_policy: GroupPolicy = GroupPolicy()
    scheduling_constraints: GroupConstraints | None = None
    disruption_mode: str | dict[str, Any] | None = None
    priority: int | None = None

    @property
    def disrupted_as_one(self) -> bool:
        """Whether its pods are preempted together or not at all."""
        mode = self.disruption_mode
        return mode == "PodGroup" or (isinstance(mode, dict) and mode.get("all") is not None)


class SchedulingGroupStatus(Projection):
    """PodGroupStatus."""

    conditions: tuple[Condition, ...] = ()


class SchedulingPodGroup(Object):
    """PodGroup of scheduling.k8s.io (not that of scheduling.sigs.k8s.io)."""

    spec: SchedulingGroupSpec = SchedulingGroupSpec()
    status: SchedulingGroupStatus = SchedulingGroupStatus()


class WorkloadGroup(Projection):
    """A pod group of a Workload of v1alpha1."""

    name: str = ""
    policy: GroupPolicy = GroupPolicy()


class SchedulingWorkloadSpec(Projection):
    """WorkloadSpec of v1alpha1. Later versions have templates instead, from which PodGroups are made."""

    pod_groups: tuple[WorkloadGroup, ...] = ()


class SchedulingWorkload(Object):
    """Workload of scheduling.k8s.io/v1alpha1."""

    spec: SchedulingWorkloadSpec = SchedulingWorkloadSpec()
