"""Where a pod's topology spread lets its successor come once the pod has left (DS-MC-03).

The scheduler counts a pod where it is while it finds the reservation a node, and counts it no more when the successor comes: what was a
place for the one need be none for the other. So the descheduler counts itself, without the pod, before it asks for a place, and again
right before the pod leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from koord import seams
from koord.api.objects import Pod, PodMigrationJob
from koord.api.selectors import SelectorError
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import status
from roles.descheduler.migration.expectations import Expectations
from roles.descheduler.snapshot import FINISHED
from roles.descheduler.spreading import Domains, Spread, spreads

AT_ONCE = 1000  # nodes or pods that are looked at before others get their turn
KEPT = 1.0  # seconds for which the question whether a pod might leave is answered with the same counts


class SpreadCounts:
    """Counts pods by their domains, from the caches."""

    def __init__(self, cluster: ClusterState, expectations: Expectations) -> None:
        self._cluster = cluster
        self._expectations = expectations
        self._known: dict[object, tuple[float, dict[str, str], Counter[str]]] = {}

    async def domains(self, job: PodMigrationJob | None, pod: Pod) -> tuple[Domains, ...]:
        """For each constraint of the pod that must hold; empty for a pod without. `job` None: it is still to be made.

        A constraint that cannot be read closes all nodes, as the scheduler has it."""
        if not spreads(pod):
            return ()
        wanted = [each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule"]
        keys = tuple(each.topology_key for each in wanted)
        found = []
        for constraint in wanted:
            try:
                found.append(await self._counted(Spread(constraint, pod), keys, job, pod))
            except SelectorError:
                found.append(Domains(constraint.topology_key, frozenset(), frozenset()))
        return tuple(found)

    async def _counted(self, spread: Spread, keys: tuple[str, ...], job: PodMigrationJob | None, pod: Pod) -> Domains:
        namespace = pod.metadata.namespace
        values, there = await self._placed(spread, keys, namespace, fresh=job is not None)
        counts: Counter[str] = Counter(dict.fromkeys(values.values(), 0))
        for name, count in there.items():
            counts[values[name]] += count
        gone = {pod.metadata.uid: pod}
        for node, leaves in self._comings(spread, namespace, job):
            if node in values:
                counts[values[node]] += 1
            if leaves is not None:
                gone[leaves.metadata.uid] = leaves
        for each in gone.values():
            if each.spec.node_name in values and _counts(spread, each, namespace):
                counts[values[each.spec.node_name]] -= 1
        least = min(counts.values(), default=0) if len(counts) >= spread.min_domains else 0
        most = spread.max_skew + least - spread.counts_itself
        closed = frozenset(value for value, count in counts.items() if count > most)
        return Domains(spread.topology_key, frozenset(counts) - closed, closed)

    async def _placed(self, spread: Spread, keys: tuple[str, ...], namespace: str, *, fresh: bool) -> tuple[dict[str, str], Counter[str]]:
        """The values of the nodes that count by their names, and how many pods that count each has. Not `fresh`: perhaps a moment old, for
        a round asks about many pods alike."""
        key = namespace, keys, spread.nodes_rule, frozenset(spread.selector.requirements), spread.selector.nothing
        now = seams.monotonic()
        self._known = {each: found for each, found in self._known.items() if now - found[0] < KEPT}
        if not fresh and key in self._known:
            return self._known[key][1:]
        values: dict[str, str] = {}
        for number, node in enumerate(self._cluster.nodes.list(), 1):
            if all(name in node.metadata.labels for name in keys) and spread.counts(node):
                values[node.metadata.name] = node.metadata.labels[spread.topology_key]
            if number % AT_ONCE == 0:
                await seams.sleep(0)
        there: Counter[str] = Counter()
        for number, pod in enumerate(self._cluster.pods_in(namespace), 1):
            if pod.spec.node_name in values and _counts(spread, pod, namespace):
                there[pod.spec.node_name] += 1
            if number % AT_ONCE == 0:
                await seams.sleep(0)
        self._known[key] = now, values, there
        return values, there

    def _comings(self, spread: Spread, namespace: str, job: PodMigrationJob | None) -> Iterator[tuple[str, Pod | None]]:
        """Nodes where a place is held for a pod that counts, and the pod that leaves for it as long as it is there: of jobs that have the
        right of way only, for two that find the last place must not both give it up, nor both take it."""
        for node, comes, other in self._expectations.held_before(job):
            meta = comes.metadata
            if meta.namespace == namespace and spread.selector.matches(meta.labels):
                pod = self._cluster.pods.get(status.pod_key(other)) if other is not None else None
                yield node, pod if other is not None and pod is not None and pod.metadata.uid == status.pod_uid(other) else None


def _counts(spread: Spread, pod: Pod, namespace: str) -> bool:
    """Whether the scheduler counts a pod that has a node."""
    meta = pod.metadata
    ended = meta.deletion_timestamp is not None or pod.status.phase in FINISHED
    return meta.namespace == namespace and not ended and spread.selector.matches(meta.labels)
