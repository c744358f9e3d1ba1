"""NodeSLO controller: one NodeSLO a Node, with the strategies that hold for it (MGR-NSLO-01)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koord.api import names
from koord.api.kinds import NODESLOS
from koord.api.objects import Node, NodeSLO
from koord.api.quantity import Quantity, QuantityError
from koord.config import slo_schema as s
from koord.config.slo import SLOConfig
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.patch import copy_json, diff_merge_patch
from roles.manager.controllers.base import EVERYTHING, Controller
from roles.manager.controllers.nodemetric import node_is_gone
from roles.manager.controllers.world import World
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics

KEYS = frozenset({s.THRESHOLD, s.QOS, s.BURST, s.SYS, s.HOSTS, *s.EXTENSIONS})
_SERVER_DEFAULTS = {"ingressRequest": 0, "egressRequest": 0, "ingressLimit": 100, "egressLimit": 100, "ioWeightPercent": 100}


def build(config: SLOConfig, node: Node, present: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a node's NodeSLO; `present` is the one that stands, for foreign extensions and what the API server fills in; pure."""
    wanted: dict[str, Any] = {
        "resourceUsedThresholdWithBE": config.threshold_for(node),
        "resourceQOSStrategy": config.qos_for(node),
        "cpuBurstStrategy": config.cpu_burst_for(node),
        "systemStrategy": system_strategy(config, node),
        "extensions": {**(present.get("extensions") or {}), **config.extensions_for(node)},
    }
    applications = config.host_applications_for(node)
    if applications:
        wanted["hostApplications"] = applications
    spec: dict[str, Any] = copy_json(wanted)
    _adopt_defaults(spec, present)
    return spec


def system_strategy(config: SLOConfig, node: Node) -> dict[str, Any]:
    """The system strategy with the bandwidth that the node's annotation gives; an unreadable annotation leaves it empty."""
    strategy = dict(config.system_for(node))
    text = node.metadata.annotations.get(names.ANNOTATION_NODE_NETWORK_BANDWIDTH)
    if text is None:
        return strategy
    try:
        return {**strategy, "totalNetworkBandwidth": str(Quantity(text))}
    except QuantityError:
        return {}


def _adopt_defaults(wanted: Any, present: Any) -> None:
    """Take over what the API server filled in from the CRD's defaults: it is no difference that a write could remove."""
    if isinstance(wanted, dict) and isinstance(present, Mapping):
        for key, default in _SERVER_DEFAULTS.items():
            if key not in wanted and present.get(key) == default:
                wanted[key] = default
        for key, value in wanted.items():
            _adopt_defaults(value, present.get(key))
    elif isinstance(wanted, list) and isinstance(present, list):
        for value, other in zip(wanted, present, strict=False):
            _adopt_defaults(value, other)


class NodeSLOController(Controller):
    """Keys are node names."""

    name = "nodeslo"

    def __init__(self, world: World, writer: Writer, metrics: Metrics) -> None:
        super().__init__()
        self.world, self.writer, self.metrics = world, writer, metrics

    def attach(self) -> None:
        """Listen."""
        self.world.nodes.add_handler(
            on_add=lambda node: self.queue.add(node.metadata.name),
            on_update=self._on_node,
            on_delete=lambda node: self.queue.add(node.metadata.name),
        )
        self.world.node_slos.add_handler(
            on_add=lambda slo: self.queue.add(slo.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name) if old.spec != new.spec else None,
            on_delete=lambda slo: self.queue.add(slo.metadata.name),
        )
        self.world.on_config(self._on_config)
        self.world.on_release(self.queue.add)

    def _on_node(self, old: Node, new: Node) -> None:
        key = names.ANNOTATION_NODE_NETWORK_BANDWIDTH
        same_bandwidth = old.metadata.annotations.get(key) == new.metadata.annotations.get(key)
        if not same_bandwidth or old.metadata.labels != new.metadata.labels or old.status.allocatable != new.status.allocatable:
            self.queue.add(new.metadata.name)

    def _on_config(self, changed: frozenset[str]) -> None:
        if KEYS & changed:
            self.queue.add(EVERYTHING)

    def keys(self) -> Iterable[str]:
        """All nodes."""
        return (name for name, _ in self.world.nodes.items())

    async def reconcile(self, key: str) -> float | None:
        """Create, correct or delete the node's NodeSLO."""
        node: Node | None = self.world.nodes.get(key)
        slo: NodeSLO | None = self.world.node_slos.get(key)
        reason = "deleteNodeSLO" if node is None else "createNodeSLO" if slo is None else "updateNodeSLO"
        try:
            if node is None:
                done = slo is not None and await self._delete(key)
            elif slo is None:
                done = await self._create(key, build(self.world.config_of(key), node, {}))
            else:
                patch = diff_merge_patch(slo.spec, build(self.world.config_of(key), node, slo.spec))
                done = bool(patch)
                if patch:
                    await self.writer.patch(NODESLOS, key, {"spec": patch})
        except ApiError:
            self.metrics.node_slo_reconciled(False, reason)
            raise
        if done:
            self.metrics.node_slo_reconciled(True, reason)
        return None

    async def _create(self, name: str, spec: dict[str, Any]) -> bool:
        body = {"apiVersion": NODESLOS.api_version, "kind": NODESLOS.kind, "metadata": {"name": name}, "spec": spec}
        try:
            await self.writer.create(NODESLOS, body)
        except AlreadyExists:
            return False
        return True

    async def _delete(self, name: str) -> bool:
        if not await node_is_gone(self.writer, name):
            return False
        try:
            await self.writer.delete(NODESLOS, name)
        except NotFound:
            return False
        return True
