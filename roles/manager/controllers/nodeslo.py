"""NodeSLO controller: one NodeSLO a Node, with the strategies that hold for it (MGR-NSLO-01)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api import names
from koord.api.kinds import NODESLOS
from koord.api.objects import Node, NodeSLO
from koord.api.quantity import Quantity, QuantityError
from koord.config import slo_schema as s
from koord.config.slo import SLOConfig
from koord.kube.patch import copy_json, diff_merge_patch
from roles.manager.controllers.pernode import PerNodeController
from roles.manager.controllers.state import ClusterState
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


class NodeSLOController(PerNodeController[NodeSLO]):
    """Keys are node names."""

    name = "nodeslo"
    kind = NODESLOS
    config_keys = KEYS

    def __init__(self, state: ClusterState, writer: Writer, metrics: Metrics) -> None:
        super().__init__(state, writer, state.node_slos, metrics.node_slo_reconciled)

    def concerns(self, old: Node, new: Node) -> bool:
        """Strategies are chosen by labels; the bandwidth is an annotation."""
        key = names.ANNOTATION_NODE_NETWORK_BANDWIDTH
        same_bandwidth = old.metadata.annotations.get(key) == new.metadata.annotations.get(key)
        return not same_bandwidth or old.metadata.labels != new.metadata.labels or old.status.allocatable != new.status.allocatable

    def change(self, node: Node, found: NodeSLO | None) -> dict[str, Any]:
        """The spec, or the difference to the one that is there."""
        config = self.state.config_of(node.metadata.name)
        return build(config, node, {}) if found is None else diff_merge_patch(found.spec, build(config, node, found.spec))
