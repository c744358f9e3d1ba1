"""What the API server says about this node: Node, NodeSLO, NodeMetric policy, NodeResourceTopology (KLO-SI-01, SI-03, SI-04, SI-05)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from koord.api.kinds import NODEMETRICS, NODERESOURCETOPOLOGIES, NODES, NODESLOS, Kind
from koord.api.names import RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY, RESOURCE_MID_CPU, RESOURCE_MID_MEMORY
from koord.api.objects import Node
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.report.policy import DEFAULT_POLICY, CollectPolicy, PolicyError, effective_policy
from roles.koordlet.states.callbacks import Callbacks, StateKind
from roles.koordlet.states.model import TopologyState
from roles.koordlet.states.slo import SLO, effective_slo

if TYPE_CHECKING:
    from koord.kube.informers import InformerFactory
    from koord.kube.store import Informer

log = logging.getLogger(__name__)

#: extended resource -> unit label of the gauges
EXTENDED_UNITS = {
    RESOURCE_BATCH_CPU: "integer",
    RESOURCE_BATCH_MEMORY: "byte",
    RESOURCE_MID_CPU: "integer",
    RESOURCE_MID_MEMORY: "byte",
}


class NodeState:
    """Follows the objects that carry this node's name. Attributes are None until the object was seen.

    A NodeSLO or NodeMetric spec that cannot be used leaves the last good one in force.
    """

    def __init__(
        self,
        node_name: str,
        informers: InformerFactory,
        metrics: Metrics,
        callbacks: Callbacks,
        *,
        publishes: bool = True,
        slo_extensions: Mapping[str, Any] | None = None,
    ) -> None:
        """``publishes``: whether this agent writes NodeResourceTopology; ``slo_extensions``: defaults of extensions by key."""
        self.node_name = node_name
        self._slo_extensions = dict(slo_extensions or {})
        self._publishes = publishes
        self._metrics = metrics
        self._callbacks = callbacks
        self.node: Node | None = None
        self.slo: SLO | None = None
        self.policy: CollectPolicy = DEFAULT_POLICY
        self.has_node_metric = False
        self.nrt: dict[str, Any] | None = None
        self.gone_nrt = ""  # UID of the one that was deleted last
        self.local_topology: TopologyState | None = None
        """What this agent last computed, published or not."""
        self._merged: tuple[dict[str, Any], TopologyState | None, TopologyState] | None = None
        self._slo_spec: dict[str, Any] | None = None
        self._metric_spec: dict[str, Any] | None = None
        self._nodes = self._follow(informers, NODES, Node, self._on_node, optional=False)
        self._slos = self._follow(informers, NODESLOS, dict, self._on_slo)
        self._node_metrics = self._follow(informers, NODEMETRICS, dict, self._on_node_metric, self._on_node_metric_gone)
        self._topologies = self._follow(informers, NODERESOURCETOPOLOGIES, dict, self._on_topology, self._on_topology_gone)

    def _follow(
        self,
        informers: InformerFactory,
        kind: Kind,
        model: type[Any],
        seen: Callable[[Any], None],
        gone: Callable[[Any], None] = lambda obj: None,
        *,
        optional: bool = True,
    ) -> Informer[Any]:
        """Follow the one object of a kind that has this node's name."""

        def mine(handle: Callable[[Any], None], obj: Any) -> None:
            # a server that does not know the field selector sends all objects; only ours may count
            name = obj["metadata"].get("name") if isinstance(obj, dict) else obj.metadata.name
            if name == self.node_name:
                handle(obj)

        informer = informers.informer(kind, model, field_selector=f"metadata.name={self.node_name}", optional=optional)
        informer.add_handler(on_add=partial(mine, seen), on_update=lambda _, new: mine(seen, new), on_delete=partial(mine, gone))
        return informer

    @property
    def lists_synced(self) -> bool:
        """Whether every list is in; the objects themselves may not exist."""
        return self._nodes.synced and self._slos.synced and self._node_metrics.synced and self._topologies.synced

    @property
    def synced(self) -> bool:
        """Lists are in and the Node was seen."""
        return self.lists_synced and self.node is not None

    @property
    def topology_synced(self) -> bool:
        return self._topologies.synced

    @property
    def topology(self) -> TopologyState | None:
        """What this agent publishes, once it is computed. An agent that does not publish only fills in what the object lacks."""
        local = self.local_topology
        if self.nrt is None or (self._publishes and local is not None):
            return local
        if self._merged is None or self._merged[0] is not self.nrt or self._merged[1] is not local:
            metadata = self.nrt.get("metadata") or {}
            own = local or TopologyState({}, {})
            annotations = {**own.annotations, **(metadata.get("annotations") or {})}
            self._merged = (self.nrt, local, TopologyState(annotations, {**own.labels, **(metadata.get("labels") or {})}))
        return self._merged[2]

    def _on_node(self, node: Node) -> None:
        before, self.node = self.node, node
        self._metrics.node_known = True
        self._allocatable_gauges(node)
        if before is None or before.metadata.labels != node.metadata.labels or before.metadata.annotations != node.metadata.annotations:
            self._callbacks.emit(StateKind.NODE_METADATA)

    def _allocatable_gauges(self, node: Node) -> None:
        allocatable = node.status.allocatable
        if not allocatable:
            return
        for name, unit in EXTENDED_UNITS.items():
            try:
                value = parse_value(allocatable[name]) if name in allocatable else 0
            except QuantityError as error:
                log.warning("node allocatable %s is not exported: %s", name, error)
                continue
            self._metrics.node_allocatable.set(value, name, unit)

    def _on_slo(self, obj: dict[str, Any]) -> None:
        spec = obj.get("spec") or {}
        if self.slo is not None and spec == self._slo_spec:
            return
        self._slo_spec = spec
        self.slo, errors = effective_slo(spec, self.slo, self._slo_extensions)
        for error in errors:
            log.error("%s; %s", error, error.outcome)
        self._callbacks.emit(StateKind.NODE_SLO)

    def _on_node_metric(self, obj: dict[str, Any]) -> None:
        self.has_node_metric = True
        spec = obj.get("spec") or {}
        if spec == self._metric_spec:
            return
        self._metric_spec = spec
        try:
            self.policy = effective_policy(spec)
        except PolicyError as error:
            log.error("%s; the last good policy stays", error)

    def _on_node_metric_gone(self, obj: dict[str, Any]) -> None:
        self.has_node_metric = False
        self._metric_spec = None

    def _on_topology(self, obj: dict[str, Any]) -> None:
        self.nrt = obj
        if self.local_topology is None or not self._publishes:
            self._callbacks.emit(StateKind.NODE_TOPOLOGY)

    def _on_topology_gone(self, obj: dict[str, Any]) -> None:
        self.nrt, self.gone_nrt = None, obj["metadata"]["uid"]

    def publish_topology(self, state: TopologyState) -> None:
        """Keep what was computed for local consumers, and tell them when it changed."""
        if state != self.local_topology:
            self.local_topology = state
            self._callbacks.emit(StateKind.NODE_TOPOLOGY)
