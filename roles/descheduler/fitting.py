"""Whether some other node could take a pod, asked of the caches just before an eviction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from koord import seams
from koord.api.objects import Node, Pod
from koord.api.quantity import QuantityError
from koord.api.selectors import Selector, parse_label_selector
from roles.descheduler.cluster import ClusterState
from roles.descheduler.columns import Columns
from roles.descheduler.snapshot import NodeView, PodView, Snapshots, is_ready, pod_view
from roles.descheduler.spreading import DomainMaps, admitted, spreads

log = logging.getLogger(__name__)


class OtherNodes:
    """Ready nodes that match a selector (text, "" for all), by the community's node fit.

    One table a round, of which every pod is asked."""

    def __init__(self, cluster: ClusterState, selector: str = "") -> None:
        """Raises SelectorError."""
        self._cluster = cluster
        self._selector: Selector = parse_label_selector(selector)
        self._snapshots = Snapshots()
        self._columns: Columns | None = None
        self._maps: DomainMaps | None = None

    def begin(self) -> None:
        """A new round: nodes are looked at anew, and what is remembered of pods that are gone may go too."""
        self._snapshots.begin()
        self._columns = self._maps = None

    async def see(self, nodes: Sequence[NodeView]) -> None:
        """The round's own snapshot of all nodes. Without one the nodes are looked at with the first question."""
        columns = Columns()
        for _ in columns.read([view for view in nodes if self._counts(view.node)]):
            await seams.sleep(0)
        for _ in columns.learn():
            await seams.sleep(0)
        self._columns = columns

    def refuse(self, pod: Pod) -> str:
        """Why the pod could run on no other node, "" when it could on one."""
        if self._columns is None:
            self._columns = Columns(list(self._views()))
        try:
            wanted = self._columns.view_of(pod) or pod_view(pod, None)
        except (QuantityError, ValueError) as error:
            return f"its requests cannot be read: {error}"
        if self._columns.fits_elsewhere(wanted):
            return self._uneven(self._columns, wanted)
        told = ", ".join(f"{count} x {problem}" for problem, count in sorted(self._columns.why_not(wanted).items()))
        return f"it fits no other node{f' ({told})' if told else ''}"

    def _uneven(self, columns: Columns, view: PodView) -> str:
        """Of the nodes that the pod fits one must be such that its topology spread lets it go there."""
        if not spreads(view.pod):
            return ""
        if self._maps is None or self._maps.columns is not columns:
            self._maps = DomainMaps(columns)
        if columns.elsewhere(view, community=True, among=admitted(self._maps, view)):
            return ""
        return "it fits no other node by its topology spread"

    def _counts(self, node: Node) -> bool:
        return is_ready(node) and self._selector.matches(node.metadata.labels)

    def _views(self) -> Iterator[NodeView]:
        for node in sorted(self._cluster.nodes.list(), key=lambda node: node.metadata.name):
            if not self._counts(node):
                continue
            try:
                yield self._snapshots.node(node, self._cluster.pods_on(node.metadata.name), None, now=0.0)
            except (QuantityError, ValueError) as error:
                log.warning("node %s is not asked, a value cannot be read: %s", node.metadata.name, error)
