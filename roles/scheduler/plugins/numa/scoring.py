"""Scores of nodes and NUMA nodes by what is used or stays free (SCH-NUMA-12). Whole numbers 0..100. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koord.accounting.resources import ResourceVector, add_into, amplify_value
from koord.api.names import RESOURCE_CPU
from roles.scheduler.cluster.arithmetic import AnyRows, at, floored
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.plugins.node_resources import Scored, is_scalar, mean_percent, scored_of
from roles.scheduler.plugins.numa.args import NumaScoringStrategy
from roles.scheduler.plugins.numa.facts import Facts


def percent(requested: int, capacity: int, *, most: bool) -> int:
    """The score of one resource; `requested` and `capacity` in one unit, capacity above 0."""
    if most:
        return 100 * min(requested, capacity) // capacity
    return 100 * (capacity - requested) // capacity if requested <= capacity else 0


class Scorer:
    """One scoring strategy. Resources that the pod does not ask for count only if every pod uses them (cpu, memory, ...)."""

    def __init__(self, strategy: NumaScoringStrategy) -> None:
        self.most = strategy.type == "MostAllocated"
        self._resources = tuple((entry.name, entry.weight) for entry in strategy.resources)

    def resources(self, wanted: Mapping[str, int]) -> list[tuple[str, int]]:
        """(name, weight) of what counts for a pod with these requests."""
        return [(name, weight) for name, weight in self._resources if name in wanted or not is_scalar(name)]

    def score(self, wanted: Mapping[str, int], capacity: Mapping[str, int], requested: Mapping[str, int]) -> int:
        """Weighted mean of the resources of which there is any, rounded down."""
        total = weights = 0
        for name, weight in self.resources(wanted):
            there = capacity.get(name, 0)
            if there > 0:
                total += weight * percent(max(0, requested.get(name, 0)), there, most=self.most)
                weights += weight
        return total // weights if weights else 0

    def scored(self, cluster: Cluster, wanted: Mapping[str, int]) -> Scored:
        """What counts on whole nodes for a pod with these requests."""
        found = [(cluster.vocabulary.resources.intern(name), float(wanted.get(name, 0)), float(w)) for name, w in self.resources(wanted)]
        for resource, _, _ in found:
            cluster.ensure(resource)
        return scored_of(found)

    def nodes(self, cluster: Cluster, scored: Scored, rows: AnyRows, more_cpu: Any) -> Any:
        """Scores of whole nodes with the pod on them. `more_cpu` is milli-CPU that amplification adds, by row; None for none."""
        if not scored.lines:
            return at(cluster.zeros, rows) + 0.0
        return floored(mean_percent(cluster, scored, rows, most=self.most, more_cpu=more_cpu))

    def numa(
        self, facts: Facts, wanted: Mapping[str, int], shares: Mapping[int, ResourceVector], allocated: Mapping[int, ResourceVector], *,
        bound: bool,
    ) -> int:  # fmt: skip
        """The score of the NUMA nodes on which a pod gets shares, with them; CPUs of `bound` pods count amplified."""
        nodes = list(shares)
        used = summed(nodes, allocated)
        for amounts in shares.values():
            for name, value in amounts.items():
                amplified = bound and name == RESOURCE_CPU
                used[name] = used.get(name, 0) + (amplify_value(value, facts.ratio or 1.0) if amplified else value)
        return self.score(wanted, summed(nodes, facts.zones), used)


def summed(nodes: Sequence[int], amounts: Mapping[int, Mapping[str, int]]) -> ResourceVector:
    """Amounts of some NUMA nodes together."""
    total: ResourceVector = {}
    for node in nodes:
        add_into(total, amounts.get(node, {}))
    return total
