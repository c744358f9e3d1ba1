"""Whether some other node could take a pod, asked of the caches just before an eviction (descheduler.md 9.1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from koord.api.objects import Node, Pod
from koord.api.quantity import QuantityError
from koord.kube.selectors import Selector, parse_label_selector
from roles.descheduler.nodefit import Placeable
from roles.descheduler.picture import NodeView, Pictures, is_ready, pod_view
from roles.descheduler.world import World

log = logging.getLogger(__name__)


class OtherNodes:
    """Ready nodes that match a selector (text, "" for all), by the community's node fit."""

    def __init__(self, world: World, selector: str = "") -> None:
        """Raises SelectorError."""
        self._world = world
        self._selector: Selector = parse_label_selector(selector)
        self._pictures = Pictures()

    def begin(self) -> None:
        """A new round: what is remembered of pods that are gone may go too."""
        self._pictures.begin()

    def refuse(self, pod: Pod) -> str:
        """Why the pod could run on no other node, "" when it could on one."""
        try:
            wanted = Placeable(pod_view(pod, None))
        except (QuantityError, ValueError) as error:
            return f"its requests cannot be read: {error}"
        reasons: dict[str, int] = {}
        for view in self._views(pod.spec.node_name):
            problem = wanted.community_unfit(view)
            if not problem:
                return ""
            reasons[problem] = reasons.get(problem, 0) + 1
        told = ", ".join(f"{count} x {problem}" for problem, count in sorted(reasons.items()))
        return f"it fits no other node{f' ({told})' if told else ''}"

    def _views(self, own: str) -> Iterator[NodeView]:
        for node in sorted(self._world.nodes.list(), key=lambda node: node.metadata.name):
            if node.metadata.name != own and is_ready(node) and self._selector.matches(node.metadata.labels):
                view = self._view(node)
                if view is not None:
                    yield view

    def _view(self, node: Node) -> NodeView | None:
        try:
            return self._pictures.node(node, self._world.pods_on(node.metadata.name), None, now=0.0)
        except (QuantityError, ValueError) as error:
            log.warning("node %s is not asked, a value cannot be read: %s", node.metadata.name, error)
            return None
