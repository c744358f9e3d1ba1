"""RemovePodsViolatingNodeAffinity: evict pods whose node is not, or not best, what their node affinity asks for (DS-K8S-05)."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import ClassVar

import msgspec
from pydantic import model_validator

from koord.api.objects import Node, Pod
from koord.api.selectors import SelectorError, node_selector_term
from koord.config.errors import ConfigError
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.nodefit import affinity_matches
from roles.descheduler.plugins.community.common import ChoosingPlugin, CommunityArgs, cheapest_first, may_leave
from roles.descheduler.snapshot import NodeView

log = logging.getLogger(__name__)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class RemovePodsViolatingNodeAffinityArgs(CommunityArgs):
    """RemovePodsViolatingNodeAffinity; types are looked at in their order."""

    node_affinity_type: list[str] = []
    """`requiredDuringSchedulingIgnoredDuringExecution`, `preferredDuringSchedulingIgnoredDuringExecution`, or both."""

    @model_validator(mode="after")
    def _some(self) -> RemovePodsViolatingNodeAffinityArgs:
        if not self.node_affinity_type:
            raise ConfigError("nodeAffinityType", f"must name at least one of {REQUIRED}, {PREFERRED}")
        return self


class RemovePodsViolatingNodeAffinity(ChoosingPlugin[RemovePodsViolatingNodeAffinityArgs]):
    """A Deschedule plugin without memory."""

    name: ClassVar[str] = "RemovePodsViolatingNodeAffinity"

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """One pass over the nodes for each type."""
        for kind in self.args.node_affinity_type:
            if kind == REQUIRED:
                yield from self._required(nodes, handle)
            elif kind == PREFERRED:
                yield from self._preferred(nodes, handle)
            else:
                log.error("nodeAffinityType %r is not known; accepted: %s, %s", kind, REQUIRED, PREFERRED)

    def _required(self, nodes: list[NodeView], handle: Handle) -> Turn:
        columns = yield from Columns.paced(nodes)
        for node in nodes:
            for view in cheapest_first(node.pods):
                if handle.pause():
                    yield PAUSE
                if not _requires(view.pod) or not may_leave(view, handle, self._chosen) or affinity_matches(view.pod, node.node):
                    continue
                for _ in columns.learn():
                    yield PAUSE
                if target := columns.anywhere(view):
                    yield Evict(view.pod, f"node {node.name} does not match the pod's required node affinity", target)

    def _preferred(self, nodes: list[NodeView], handle: Handle) -> Turn:
        columns = yield from Columns.paced(nodes)
        best_of: dict[bytes, int] = {}  # the preferences of pods of one workload are the same
        for node in nodes:
            for view in cheapest_first(node.pods):
                if handle.pause():
                    yield PAUSE
                if not _prefers(view.pod) or not may_leave(view, handle, self._chosen):
                    continue
                key = msgspec.json.encode(view.pod.spec.affinity)
                if key not in best_of:
                    best_of[key] = yield from _best(view.pod, nodes, handle)
                for _ in columns.learn():
                    yield PAUSE
                own, best = weight(view.pod, node.node), best_of[key]
                if best > own and (target := columns.anywhere(view)):
                    reason = f"node {node.name} matches the pod's preferred node affinity by {own}, the best node by {best}"
                    yield Evict(view.pod, reason, target, {"weight": own, "best": best})


def _best(pod: Pod, nodes: list[NodeView], handle: Handle) -> Generator[Effect, bool, int]:
    """The largest weight that any node has for the pod."""
    best = 0
    for node in nodes:
        if handle.pause():
            yield PAUSE
        best = max(best, weight(pod, node.node))
    return best


def _requires(pod: Pod) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return affinity is not None and affinity.required is not None


def _prefers(pod: Pod) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return affinity is not None and bool(affinity.preferred)


def weight(pod: Pod, node: Node) -> int:
    """Σ weights of the preferred terms that the node matches; a term that cannot be read matches nothing."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    total = 0
    for term in affinity.preferred if affinity is not None else ():
        try:
            if node_selector_term(term.preference).matches(node.metadata.labels, node.metadata.name):
                total += term.weight
        except SelectorError:
            continue
    return total
