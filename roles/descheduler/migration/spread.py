"""Where a pod's topology spread lets its successor come once the pod has left (DS-MC-03).

The scheduler counts a pod where it is while it finds the reservation a node, and counts it no more when the successor comes: what was a
place for the one need be none for the other. So the descheduler counts itself, without the pod, before it asks for a place, and again
right before the pod leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from koord import seams
from koord.api.objects import Pod, PodMigrationJob
from koord.api.selectors import SelectorError
from roles.descheduler.migration import status
from roles.descheduler.migration.expectations import Expectations
from roles.descheduler.picture import FINISHED
from roles.descheduler.spreading import Domains, Spread, spreads
from roles.descheduler.world import World

AT_ONCE = 1000  # nodes or pods that are looked at before others get their turn


class SpreadCounts:
    """Counts pods by their domains, from the caches."""

    def __init__(self, world: World, expectations: Expectations) -> None:
        self._world = world
        self._expectations = expectations

    async def domains(self, job: PodMigrationJob | None, pod: Pod) -> tuple[Domains, ...]:
        """For each constraint of the pod that must hold; empty for a pod without. `job` None: it is still to be made.

        A constraint that cannot be read closes all nodes, as the scheduler has it."""
        if not spreads(pod):
            return ()
        wanted = [each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule"]
        keys = [each.topology_key for each in wanted]
        found = []
        for constraint in wanted:
            try:
                found.append(await self._counted(Spread(constraint, pod), keys, job, pod))
            except SelectorError:
                found.append(Domains(constraint.topology_key, frozenset(), frozenset()))
        return tuple(found)

    async def _counted(self, spread: Spread, keys: Sequence[str], job: PodMigrationJob | None, pod: Pod) -> Domains:
        values: dict[str, str] = {}  # by the names of the nodes that count
        for number, node in enumerate(self._world.nodes.list(), 1):
            if all(key in node.metadata.labels for key in keys) and spread.counts(node):
                values[node.metadata.name] = node.metadata.labels[spread.topology_key]
            if number % AT_ONCE == 0:
                await seams.sleep(0)
        counts: Counter[str] = Counter(dict.fromkeys(values.values(), 0))
        namespace, gone = pod.metadata.namespace, {pod.metadata.uid}
        for node_name, uid in self._comings(spread, namespace, job):
            if node_name in values:
                counts[values[node_name]] += 1
            gone.add(uid)
        for number, other in enumerate(self._world.pods_in(namespace), 1):
            if number % AT_ONCE == 0:
                await seams.sleep(0)
            meta, where = other.metadata, other.spec.node_name
            if where not in values or meta.uid in gone or meta.deletion_timestamp or other.status.phase in FINISHED:
                continue
            if spread.selector.matches(meta.labels):
                counts[values[where]] += 1
        least = min(counts.values(), default=0) if len(counts) >= spread.min_domains else 0
        most = spread.max_skew + least - spread.counts_itself
        closed = frozenset(value for value, count in counts.items() if count > most)
        return Domains(spread.topology_key, frozenset(counts) - closed, closed)

    def _comings(self, spread: Spread, namespace: str, job: PodMigrationJob | None) -> Iterator[tuple[str, str]]:
        """Nodes where a place is held for a pod that counts, and the uid of the pod that leaves for it, "" for none: of jobs that have the
        right of way only, for two that find the last place must not both give it up, nor both take it."""
        for node, comes, other in self._expectations.held_before(job):
            meta = comes.metadata
            if meta.namespace == namespace and spread.selector.matches(meta.labels):
                yield node, status.pod_uid(other) if other is not None else ""
