"""RemovePodsHavingTooManyRestarts: evict pods whose containers keep failing (DS-K8S-03)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from koord.api.objects import Pod
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.community.common import ChoosingPlugin, CommunityArgs, candidates, one_of, statuses
from roles.descheduler.snapshot import NodeView

STATES = ("Running", "CrashLoopBackOff")


class RemovePodsHavingTooManyRestartsArgs(CommunityArgs):
    """RemovePodsHavingTooManyRestarts; the threshold is a sum over containers."""

    pod_restart_threshold: int = Field(ge=1)
    """Restarts of all containers from which a pod leaves."""
    including_init_containers: bool = False
    """Count init containers too."""
    states: list[str] = []
    """Phases of the pod, or reasons of its containers, that count; empty: any."""

    @model_validator(mode="after")
    def _accepted(self) -> RemovePodsHavingTooManyRestartsArgs:
        one_of("states", self.states, STATES)
        return self


class RemovePodsHavingTooManyRestarts(ChoosingPlugin[RemovePodsHavingTooManyRestartsArgs]):
    """A Deschedule plugin without memory."""

    name: ClassVar[str] = "RemovePodsHavingTooManyRestarts"
    minds_place: ClassVar[bool] = False

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node, the pod with the most restarts first."""
        for node in nodes:
            if handle.pause(1 + len(node.everyone)):
                yield PAUSE
            found = [(self._restarts(view.pod), view.pod) for view in candidates(node, handle, self._matches)]
            for restarts, pod in sorted(found, key=lambda entry: -entry[0]):
                reason = f"pod has {restarts} restarts, {self.args.pod_restart_threshold} are too many"
                yield Evict(pod, reason, numbers={"restarts": restarts})

    def _matches(self, pod: Pod) -> bool:
        return self._restarts(pod) >= self.args.pod_restart_threshold and self._chosen(pod) and self._in_state(pod)

    def _restarts(self, pod: Pod) -> int:
        return sum(status.restart_count for status in statuses(pod, init=self.args.including_init_containers))

    def _in_state(self, pod: Pod) -> bool:
        if not self.args.states:
            return True
        found = statuses(pod, init=self.args.including_init_containers)
        waiting = {status.state.waiting.reason for status in found if status.state.waiting is not None}
        return bool(set(self.args.states) & (waiting | {pod.status.phase}))
