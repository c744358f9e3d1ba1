"""RemoveFailedPods: evict pods that have failed, so that their owners make new ones (DS-K8S-02)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api.objects import Pod
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.community.common import (
    ChoosingPlugin,
    CommunityArgs,
    age,
    candidates_of_all_phases,
    container_reasons,
    exit_codes,
    owner_kinds,
    statuses,
)
from roles.descheduler.snapshot import NodeView


class RemoveFailedPodsArgs(CommunityArgs):
    """RemoveFailedPods; ages in seconds. Without reasons or exit codes every failed pod matches."""

    exclude_owner_kinds: list[str] = []
    """Kinds of owners whose pods stay."""
    min_pod_lifetime_seconds: int = Field(3600, ge=0)
    """Younger pods stay, in seconds."""
    reasons: list[str] = []
    """Reasons of the pod or its containers that count; empty: any."""
    exit_codes: list[int] = []
    """Exit codes that count; empty: any."""
    including_init_containers: bool = False
    """Look at init containers too."""


class RemoveFailedPods(ChoosingPlugin[RemoveFailedPodsArgs]):
    """A Deschedule plugin without memory."""

    name: ClassVar[str] = "RemoveFailedPods"
    minds_place: ClassVar[bool] = False

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node."""

        def matches(pod: Pod) -> bool:
            return pod.status.phase == "Failed" and self._chosen(pod) and self._matches(pod, handle.now)

        for node in nodes:
            if handle.pause(1 + len(node.everyone)):
                yield PAUSE
            for pod in candidates_of_all_phases(node, handle, matches):
                yield Evict(pod, f"pod has failed{f': {pod.status.reason}' if pod.status.reason else ''}")

    def _matches(self, pod: Pod, now: float) -> bool:
        args = self.args
        if age(pod, now) < args.min_pod_lifetime_seconds or owner_kinds(pod) & set(args.exclude_owner_kinds):
            return False
        found = list(statuses(pod, init=args.including_init_containers))
        if args.reasons and not set(args.reasons) & ({pod.status.reason} | container_reasons(found)):
            return False
        return not args.exit_codes or bool(set(args.exit_codes) & exit_codes(found))
