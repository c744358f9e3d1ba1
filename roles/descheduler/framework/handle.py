"""What a plugin may ask and do in a round, and the record of everything that it did (DS-FW-02, DS-FW-03)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from koord.decisions.record import Record, Subject
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed
from roles.descheduler.plugins.lownodeload.select import Candidate

ROLE = "descheduler"


@dataclass(slots=True)
class Limits:
    """How many pods may leave in one round; None is unlimited, 0 is none."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


@dataclass(slots=True)
class Counts:
    """Evictions of the round so far; those of a dry run count too."""

    node: Counter[str] = field(default_factory=Counter)
    namespace: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def exceeded(self, limits: Limits, node: str, namespace: str) -> str:
        """Which limit one more eviction would pass, "" for none."""
        if limits.per_node is not None and node and self.node[node] + 1 > limits.per_node:
            return f"node {node} has had its {limits.per_node} evictions of this round"
        if limits.per_namespace is not None and self.namespace[namespace] + 1 > limits.per_namespace:
            return f"namespace {namespace} has had its {limits.per_namespace} evictions of this round"
        if limits.total is not None and self.total + 1 > limits.total:
            return f"the round has had its {limits.total} evictions"
        return ""

    def add(self, node: str, namespace: str) -> None:
        self.node[node] += 1
        self.namespace[namespace] += 1
        self.total += 1


@dataclass(slots=True)
class Handle:
    """One profile's round. `why_not` says why a pod may not leave; `records` is what the round is explained with."""

    profile: str
    now: float
    limits: Limits
    counts: Counts
    why_not: Callable[[PodView], str]
    records: list[Record] = field(default_factory=list)

    def refuse(self, view: PodView) -> str:
        return self.why_not(view)

    def evict(self, plugin: str, candidate: Candidate, *, dry_run: bool) -> bool:
        """Check the limits and decide on one eviction; refused pods are skipped. `dry_run` is the plugin's own switch."""
        view = candidate.pod
        pod = view.pod
        if why := self.counts.exceeded(self.limits, pod.spec.node_name, pod.metadata.namespace):
            self._pod(plugin, view, "NotEvicted", why, {})
            return False
        self.counts.add(pod.spec.node_name, pod.metadata.namespace)
        numbers: dict[str, Any] = {**candidate.numbers, **{f"pod.{name}.usage": value for name, value in (view.usage or {}).items()}}
        where = f"; it would fit {candidate.target}" if candidate.target else ""
        switch = f" by the arguments of {plugin}" if dry_run else " by the configuration"
        self._pod(plugin, view, "WouldEvict", f"{candidate.reason}; dry run{switch}{where}", {**numbers, "target": candidate.target})
        return True

    def note(self, plugin: str, pool: str, message: str) -> None:
        self._add(plugin, Subject("Profile", "", self.profile, ""), "Round", f"pool {pool}: {message}", {"pool": pool})

    def skipped(self, plugin: str, pool: str, view: NodeView, why: str) -> None:
        self._node(plugin, view, "Skipped", f"left out of pool {pool}: {why}", {"pool": pool})

    def classified(self, plugin: str, pool: Pool, placed: Placed) -> None:
        view = placed.view
        numbers: dict[str, Any] = {"pool": pool.name, "class": placed.node_class.value}
        parts = []
        for name in pool.resources:
            capacity = view.allocatable.get(name, 0)
            used = (view.usage or {}).get(name)
            if used is None:
                continue
            percent = 100.0 * used / capacity if capacity else 0.0
            numbers |= {f"{name}.usage": used, f"{name}.low": placed.bounds.low[name], f"{name}.high": placed.bounds.high[name]}
            parts.append(f"{name} {percent:.2f}%")
        self._node(plugin, view, "Classified", f"{placed.node_class.value}: {', '.join(parts)}", numbers)

    def relieved(self, plugin: str, pool: str, placed: Placed, outcome: str) -> None:
        self._node(plugin, placed.view, "Relieved", outcome, {"pool": pool})

    def _node(self, plugin: str, view: NodeView, verdict: str, message: str, numbers: dict[str, Any]) -> None:
        self._add(plugin, Subject("Node", "", view.name, view.node.metadata.uid), verdict, message, numbers)

    def _pod(self, plugin: str, view: PodView, verdict: str, message: str, numbers: dict[str, Any]) -> None:
        meta = view.pod.metadata
        self._add(
            plugin, Subject("Pod", meta.namespace, meta.name, meta.uid), verdict, message, {**numbers, "node": view.pod.spec.node_name}
        )

    def _add(self, plugin: str, subject: Subject, verdict: str, message: str, numbers: dict[str, Any]) -> None:
        self.records.append(
            Record(
                role=ROLE,
                subject=subject,
                time=self.now,
                verdict=verdict,
                rule=plugin,
                message=message,
                numbers={"profile": self.profile, **numbers},
            )
        )
