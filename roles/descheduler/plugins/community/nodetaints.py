"""RemovePodsViolatingNodeTaints: evict pods from nodes whose taints they do not tolerate any more (DS-K8S-04)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from koord.api.objects import Taint
from koord.config.errors import ConfigError
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.nodefit import untolerated
from roles.descheduler.plugins.community.common import ChoosingPlugin, CommunityArgs, candidates
from roles.descheduler.snapshot import NodeView


class RemovePodsViolatingNodeTaintsArgs(CommunityArgs):
    """RemovePodsViolatingNodeTaints; taints are given as `key` or `key=value`."""

    include_prefer_no_schedule: bool = False
    """Taints of effect PreferNoSchedule count too."""
    excluded_taints: list[str] = []
    """Taints that do not count, as `key` or `key=value`."""
    included_taints: list[str] = []
    """Taints that alone count, as `key` or `key=value`; empty: all."""

    @model_validator(mode="after")
    def _one(self) -> RemovePodsViolatingNodeTaintsArgs:
        if self.excluded_taints and self.included_taints:
            raise ConfigError("includedTaints", "only one of includedTaints and excludedTaints may be set")
        return self

    def relevant(self, taint: Taint) -> bool:
        """Whether a pod must tolerate the taint to stay. NoExecute is left to the node lifecycle controller."""
        if taint.effect != "NoSchedule" and not (self.include_prefer_no_schedule and taint.effect == "PreferNoSchedule"):
            return False
        spellings = {taint.key, f"{taint.key}={taint.value}"}
        if self.included_taints:
            return bool(spellings & set(self.included_taints))
        return not spellings & set(self.excluded_taints)


class RemovePodsViolatingNodeTaints(ChoosingPlugin[RemovePodsViolatingNodeTaintsArgs]):
    """A Deschedule plugin without memory."""

    name: ClassVar[str] = "RemovePodsViolatingNodeTaints"

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """Node by node, pods whose eviction costs less first."""
        for node in nodes:
            if not any(self.args.relevant(taint) for taint in node.node.spec.taints):
                continue
            if handle.pause(1 + len(node.everyone)):
                yield PAUSE
            for view in candidates(node, handle, self._chosen):
                taint = untolerated(view.pod, node.node, self.args.relevant)
                if taint is not None:
                    yield Evict(view.pod, f"pod does not tolerate taint {taint.key}:{taint.effect} of node {node.name}")
