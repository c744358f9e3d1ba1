"""Costs from a scheduler's decision log: nodes, pods and reports as they came and went (BEY-COST-01)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from koord.accounting.pods import pod_requests
from koord.accounting.resources import ResourceVector, parse
from koord.api import kinds, names
from koord.api.objects import Node as NodeObject
from koord.api.objects import NodeMetric, convert
from koord.api.objects import Pod as PodObject
from koord.api.qos import pod_qos
from roles.scheduler.journal.lines import Happening, Told
from roles.tools.cost.ledger import Ledger, Node, Owner, Pod
from roles.tools.cost.prices import Prices

STALE = 900.0
"""Seconds after which a report says nothing any more."""


def owner_of(pod: PodObject) -> Owner:
    """Who pays for a pod."""
    return Owner(pod.metadata.namespace, pod.metadata.labels.get(names.LABEL_QUOTA_NAME, ""), str(pod_qos(pod).value))


def node_of(node: NodeObject, prices: Prices) -> Node:
    """A node with what it costs."""
    amounts = parse(node.status.capacity or node.status.allocatable)
    cores, gibibytes = amounts.get("cpu", 0) / 1000, amounts.get("memory", 0) / 2**30
    return Node(prices.of_node(node.metadata.labels, cores, gibibytes), amounts)


@dataclass(slots=True)
class Reported:
    """What a node reported last."""

    at: float
    pods: dict[tuple[str, str], ResourceVector]

    @classmethod
    def of(cls, metric: NodeMetric, at: float) -> Reported:
        """From a report that was seen at a time."""
        found = {(each.namespace, each.name): parse(_basic(each.pod_usage.resources)) for each in metric.status.pods_metric}
        return cls(at, found)


def _basic(amounts: Any) -> Any:
    return {name: amounts[name] for name in ("cpu", "memory") if name in amounts}


class Recorded:
    """Reads a journal's items into a ledger; only what is between `since` and `until` (Unix time) counts. `gaps` are seconds of which
    there is no log."""

    def __init__(self, prices: Prices, since: float = 0.0, until: float = float("inf")) -> None:
        self.ledger = Ledger(prices)
        self.first = self.last = 0.0
        self.gaps = 0.0
        self._prices, self._since, self._until = prices, since, until
        self._reset()

    def _reset(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._settled: dict[str, float] = {}
        self._on: dict[str, dict[tuple[str, str], Pod]] = {}
        self._where: dict[tuple[str, str], str] = {}
        self._reports: dict[str, Reported] = {}

    def read(self, items: Iterable[Any]) -> Ledger:
        """All of a journal."""
        skipping, seen = False, False
        for item in items:
            if isinstance(item, dict):
                skipping = bool(item.get("continues")) and seen
                if not skipping:
                    self._begin(float(item["time"]))
                seen = True
            elif skipping:
                skipping = item is not None
            elif isinstance(item, (Told, Happening)):
                self._at(item.now)
                if isinstance(item, Told):
                    self._told(item)
        self._settle_all()
        return self.ledger

    def _begin(self, now: float) -> None:
        if self.last:
            self._settle_all()
            self.gaps += max(0.0, min(now, self._until) - max(self.last, self._since))
        self._reset()
        self._at(now)

    def _at(self, now: float) -> None:
        self.first = self.first or max(now, self._since)
        self.last = max(self.last, now)

    def _told(self, item: Told) -> None:
        if item.channel == kinds.NODES.kind:
            self._settle(item.key[1])
            self._nodes.pop(item.key[1], None)
            if item.obj is not None:
                self._nodes[item.key[1]] = node_of(convert(item.obj, NodeObject), self._prices)
                self._settled.setdefault(item.key[1], self.last)
            else:
                self._settled.pop(item.key[1], None)
        elif item.channel == kinds.NODEMETRICS.kind:
            self._settle(item.key[1])
            self._reported(item.key[1], item)
        elif item.channel == kinds.PODS.kind:
            self._pod(item)

    def _reported(self, name: str, item: Told) -> None:
        self._reports.pop(name, None)
        if item.obj is not None:
            self._reports[name] = Reported.of(convert(item.obj, NodeMetric), item.now)

    def _pod(self, item: Told) -> None:
        pod = convert(item.obj, PodObject) if item.obj is not None else None
        node = pod.spec.node_name if pod is not None and pod.status.phase not in ("Succeeded", "Failed") else ""
        before = self._where.pop(item.key, "")
        for name in {before, node} - {""}:
            self._settle(name)
        if before:
            del self._on[before][item.key]
        if pod is not None and node:
            self._where[item.key] = node
            self._on.setdefault(node, {})[item.key] = Pod(owner_of(pod), pod_requests(pod))

    def _settle_all(self) -> None:
        for name in [*self._nodes]:
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Count a node up to now as it has been."""
        node, now = self._nodes.get(name), self.last
        if node is None:
            return
        begin = self._settled[name]
        self._settled[name] = now
        begin, end = max(begin, self._since), min(now, self._until)
        if end <= begin:
            return
        report, pods = self._reports.get(name), self._on.get(name, {})
        fresh = min(end, report.at + STALE) if report is not None else begin
        for known, seconds in ((report, fresh - begin), (None, end - max(begin, fresh))):
            for key, pod in pods.items():
                pod.used = known.pods.get(key) if known is not None else None
            self.ledger.spend(seconds, name, node, pods.values())
