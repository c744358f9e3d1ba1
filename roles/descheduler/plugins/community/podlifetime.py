"""PodLifeTime: evict pods that are old, in a certain state, or both (DS-K8S-01)."""

from __future__ import annotations

from math import floor
from typing import ClassVar

from pydantic import Field, model_validator

from koord.api.objects import Pod
from koord.api.times import parse_time
from koord.config.errors import ConfigError
from roles.descheduler.cost import eviction_cost
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import Runs
from roles.descheduler.plugins.community.common import (
    ChoosingPlugin,
    CommunityArgs,
    LenientModel,
    age,
    candidates_of_all_phases,
    container_reasons,
    exit_codes,
    one_of,
    owner_kinds,
    statuses,
)
from roles.descheduler.snapshot import NodeView

STATES = (
    "Running", "Pending", "Succeeded", "Failed", "Unknown",
    "NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError",
    "PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError", "ErrImagePull",
    "CreateContainerError", "InvalidImageName",
    "OOMKilled", "Error", "Completed", "DeadlineExceeded", "Evicted", "ContainerCannotRun", "StartError",
)  # fmt: skip


class OwnerKinds(LenientModel):
    """Kinds of owners that a pod must have one of, or must have none of."""

    include: list[str] = []
    """Kinds of owners that a pod must have one of."""
    exclude: list[str] = []
    """Kinds of owners that a pod must not have. Not together with include."""

    @model_validator(mode="after")
    def _one(self) -> OwnerKinds:
        if self.include and self.exclude:
            raise ConfigError("", "only one of include and exclude may be set")
        return self

    def allow(self, kinds: set[str]) -> bool:
        """Whether a pod with owners of these kinds counts."""
        return (not self.include or bool(kinds & set(self.include))) and not kinds & set(self.exclude)


class ConditionFilter(LenientModel):
    """A pod condition; every field that is set must match, at least one is."""

    type: str = ""
    """Type of the condition."""
    status: str = ""
    """Its status."""
    reason: str = ""
    """Its reason."""
    min_time_since_last_transition_seconds: int | None = Field(None, ge=0)
    """Seconds since it last changed, at least."""

    @model_validator(mode="after")
    def _something(self) -> ConditionFilter:
        if not (self.type or self.status or self.reason or self.min_time_since_last_transition_seconds is not None):
            raise ConfigError("", "needs at least one of type, status, reason, minTimeSinceLastTransitionSeconds")
        return self

    def holds(self, pod: Pod, now: float) -> bool:
        """Whether one of the pod's conditions matches."""
        for condition in pod.status.conditions:
            if any(wanted and wanted != found for wanted, found in (
                (self.type, condition.type), (self.status, condition.status), (self.reason, condition.reason),
            )):  # fmt: skip
                continue
            least, since = self.min_time_since_last_transition_seconds, condition.last_transition_time
            if least is None or (since and now - parse_time(since) >= least):
                return True
        return False


class PodLifeTimeArgs(CommunityArgs):
    """PodLifeTime: everything that is given must hold."""

    owner_kinds: OwnerKinds | None = None
    """Owners that a pod must or must not have."""
    max_pod_life_time_seconds: int | None = Field(None, ge=0)
    """Pods older than this leave, in seconds."""
    states: list[str] = []
    """Phases of the pod, reasons of it or of its containers, that count."""
    conditions: list[ConditionFilter] = []
    """Conditions of the pod that count; one match is enough."""
    exit_codes: list[int] = []
    """Exit codes of containers that count."""
    including_init_containers: bool = False
    """Look at init containers too."""
    including_ephemeral_containers: bool = False
    """Look at ephemeral containers too."""

    @model_validator(mode="after")
    def _accepted(self) -> PodLifeTimeArgs:
        one_of("states", self.states, STATES)
        if self.max_pod_life_time_seconds is None and not (self.states or self.conditions or self.exit_codes):
            raise ConfigError("", "needs at least one of maxPodLifeTimeSeconds, states, conditions, exitCodes")
        return self


class PodLifeTime(ChoosingPlugin[PodLifeTimeArgs]):
    """A Deschedule plugin without memory."""

    name: ClassVar[str] = "PodLifeTime"
    minds_place: ClassVar[bool] = False

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """The oldest pod first, over all nodes; of equally old ones those whose eviction costs less."""

        def matches(pod: Pod) -> bool:
            return self._chosen(pod) and self._matches(pod, handle.now)

        found = Runs[Pod]()
        for node in nodes:
            if handle.pause(1 + len(node.everyone)):
                yield PAUSE
            for pod in candidates_of_all_phases(node, handle, matches):
                found.add((-age(pod, handle.now), eviction_cost(pod)), pod)
        for (younger, _), pod in found.in_order():
            seconds = floor(-younger)
            yield Evict(pod, f"pod is {seconds} s old and matches PodLifeTime", numbers={"age.seconds": seconds})

    def _matches(self, pod: Pod, now: float) -> bool:
        args = self.args
        limit = args.max_pod_life_time_seconds
        if limit is not None and floor(age(pod, now)) <= limit:
            return False
        if args.owner_kinds is not None and not args.owner_kinds.allow(owner_kinds(pod)):
            return False
        if args.conditions and not any(entry.holds(pod, now) for entry in args.conditions):
            return False
        if not args.states and not args.exit_codes:
            return True
        found = list(statuses(pod, init=args.including_init_containers, ephemeral=args.including_ephemeral_containers))
        if args.states and not set(args.states) & ({pod.status.phase, pod.status.reason} | container_reasons(found)):
            return False
        return not args.exit_codes or bool(set(args.exit_codes) & exit_codes(found))
