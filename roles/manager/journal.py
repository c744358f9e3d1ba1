"""The manager's replay log: each amount that it calculated, with what it looked at (BEY-REPLAY-01).

    head {...}
    d t node change outcome     a decision about a node, and how its inputs differ from those of the decision before about it

The loop hands over the objects; differences are made by the thread that writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import msgspec
import orjson

from koord.api.objects import NodeMetric
from koord.config.colocation import ColocationStrategy
from koord.decisions.deltas import difference
from koord.decisions.replayfile import ReplayFile
from roles.manager.noderesource.inputs import NodePods, Totals
from roles.manager.noderesource.model import Inputs, PodInput
from roles.manager.noderesource.plan import Plan
from roles.manager.noderesource.reports import PodUsages

_STRATEGY = tuple(field.name for field in fields(ColocationStrategy) if field.name != "ignored")
Outcome = tuple[dict[str, int], list[str], int]


class Decided(NamedTuple):
    """One decision as it was made. `last` is when the node's status was last written (Unix time), None for never."""

    inputs: Inputs
    pods: tuple[PodInput, ...]
    cluster_enabled: bool
    last: float | None
    outcome: Outcome


def outcome_of(plan: Plan) -> Outcome:
    """What was decided: amounts, resources that are taken away, and a checksum of the patches and of what was said."""
    said = [f"{item.plugin}: {item.message}" for item in plan.contributions] + [f"{plugin}: {error}" for plugin, error in plan.errors]
    body = orjson.dumps([plan.enabled, plan.body, said], option=orjson.OPT_SORT_KEYS)
    return dict(plan.resources), sorted(plan.removed), zlib.crc32(body)


class ManagerFile(ReplayFile):
    """`manager.replay.jsonl`."""

    role = "manager"

    def __init__(self, path: str, **limits: Any) -> None:
        super().__init__(path, **limits)
        self.plugins: tuple[str, ...] = ()
        self._told: dict[str, tuple[dict[str, Any], PodUsages | None]] = {}

    def begin(self) -> dict[str, Any]:
        self._told = {}
        return {"plugins": self.plugins}

    def parts(self, item: Decided) -> list[Any]:
        name = item.inputs.node.metadata.name
        state, usages = state_of(item)
        before, earlier = self._told.get(name, ({}, None))
        self._told[name] = (state, usages)
        change = difference(before, state)
        if usages is not None:
            change["use"] = _usages(earlier, usages)
        elif "metric" in state:
            change["use"] = {}  # the pods stand in the report itself
        return [["d", item.inputs.now, name, change, item.outcome]]


class Journal:
    """Takes decisions down on the loop. The pods of a node are read once for as long as they stay."""

    def __init__(self, file: ManagerFile, plugins: tuple[str, ...] = ()) -> None:
        self._file, self._pods = file, dict[str, tuple[Totals, tuple[PodInput, ...]]]()
        file.plugins = plugins

    def decided(self, inputs: Inputs, plan: Plan, cluster_enabled: bool, last: float | None) -> None:
        """A decision was made."""
        pods, name = NodePods.of(inputs.pods), inputs.node.metadata.name
        known = self._pods.get(name)
        if known is None or known[0] is not pods.totals:
            known = self._pods[name] = (pods.totals, pods.pods)
        self._file.put(Decided(inputs, known[1], cluster_enabled, last, outcome_of(plan)))

    def gone(self, node: str) -> None:
        """A node went."""
        self._pods.pop(node, None)


def state_of(item: Decided) -> tuple[dict[str, Any], PodUsages | None]:
    """The inputs as JSON data and structs, and what pods use."""
    inputs, metric, usages = item.inputs, item.inputs.metric, None
    if metric is not None and isinstance(metric.status.pods_metric, PodUsages):
        usages = metric.status.pods_metric
        metric = _without_pods(metric)
    state: dict[str, Any] = {
        "node": inputs.node,
        "strategy": {name: getattr(inputs.strategy, name) for name in _STRATEGY},
        "pods": {pod.key: pod for pod in item.pods},
        "cluster": item.cluster_enabled,
        "last": item.last,
        "smoothing": inputs.smoothing,
        "gates": [inputs.count_pods_without_metric, inputs.sync_gpu_shared, inputs.lower_abnormal],
        "gone": inputs.device_gone,
        "rawIsKept": inputs.raw_is_kept,
        "normalization": dict(inputs.normalization),
        "amplification": dict(inputs.amplification),
        "metric": metric,
        "topology": inputs.topology,
        "device": inputs.device,
    }
    return {key: value for key, value in state.items() if value is not None}, usages


def _without_pods(metric: NodeMetric) -> NodeMetric:
    return msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, pods_metric=()))


def _usages(before: PodUsages | None, now: PodUsages) -> Mapping[str, Any]:
    """Columns: as differences while the pods are the same."""
    keys, kinds = now.pods
    if before is not None and before.pods == now.pods:
        cpu = [new - old for old, new in zip(before.cpu, now.cpu, strict=True)]
        return {"c": cpu, "m": [new - old for old, new in zip(before.memory, now.memory, strict=True)]}
    return {"keys": keys, "kinds": kinds, "cpu": list(now.cpu), "memory": list(now.memory)}
