"""How many pods may leave in one round (DS-FW-03). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from koord.api.objects import Pod


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one round; None is unlimited, 0 is none."""

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
        """Which limit one more eviction would pass, "" for none. A pod without a node does not count for any node."""
        if limits.per_node is not None and node and self.node[node] + 1 > limits.per_node:
            return f"node {node} has had its {limits.per_node} evictions of this round"
        if limits.per_namespace is not None and self.namespace[namespace] + 1 > limits.per_namespace:
            return f"namespace {namespace} has had its {limits.per_namespace} evictions of this round"
        if limits.total is not None and self.total + 1 > limits.total:
            return f"the round has had its {limits.total} evictions"
        return ""

    def all_exceeded(self, limits: Limits, pods: Sequence[Pod]) -> str:
        """Which limit the evictions of all these pods would pass, "" for none."""
        if len(pods) == 1:
            return self.exceeded(limits, pods[0].spec.node_name, pods[0].metadata.namespace)
        trial = self.copy()
        for pod in pods:
            if why := trial.exceeded(limits, pod.spec.node_name, pod.metadata.namespace):
                return f"{why}, and {len(pods)} pods go together"
            trial.add(pod.spec.node_name, pod.metadata.namespace)
        return ""

    def add(self, node: str, namespace: str, by: int = 1) -> None:
        """Count an eviction, before it is carried out: what is under way counts. `by` -1: it was refused."""
        if node:
            self.node[node] += by
        self.namespace[namespace] += by
        self.total += by

    def copy(self) -> Counts:
        """Counts that go on from here on their own."""
        return Counts(Counter(self.node), Counter(self.namespace), self.total)
