"""The snapshot of a round, made from the caches without keeping the event loop for long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from koord import seams
from koord.api.objects import Pod
from koord.api.quantity import QuantityError
from roles.descheduler.arrivals import Expected, expect
from roles.descheduler.cluster import ClusterState
from roles.descheduler.framework.evicting import KnowsArriving, KnowsLeaving
from roles.descheduler.framework.round import Profile
from roles.descheduler.snapshot import NodeView, Snapshots, Vector

log = logging.getLogger(__name__)

_AT_ONCE = 20  # nodes that are read before others get their turn


class Observer:
    """Makes node views; remembers what it read between rounds."""

    def __init__(self, cluster: ClusterState, profiles: Sequence[Profile]) -> None:
        self._cluster = cluster
        evictors = [evictor for profile in profiles for evictor in profile.evictors()]
        self._leave = [evictor for evictor in evictors if isinstance(evictor, KnowsLeaving)]
        self._arrive = [evictor for evictor in evictors if isinstance(evictor, KnowsArriving)][:1]  # migrations are one for all profiles
        self._snapshots = Snapshots(self._leaving, self._accepted)

    def _leaving(self, pod: Pod) -> bool:
        return any(evictor.leaving(pod) for evictor in self._leave)

    def _accepted(self, pod: Pod) -> bool:
        return any(evictor.accepted(pod) for evictor in self._leave)

    def _brought(self, pod: Pod) -> Vector | None:
        return next((usage for evictor in self._arrive if (usage := evictor.brought(pod)) is not None), None)

    async def views(self, now: float) -> list[NodeView]:
        """All nodes in name order. `now` is in seconds since the epoch."""
        self._snapshots.begin()
        expected: dict[str, list[Expected]] = {}
        for evictor in self._arrive:
            for place in evictor.expected():
                expected.setdefault(place.node, []).append(place)
        views, unheard = [], self._cluster.unheard()
        for number, node in enumerate(sorted(self._cluster.nodes.list(), key=lambda node: node.metadata.name), 1):
            if number % _AT_ONCE == 0:
                await seams.sleep(0)
            name = node.metadata.name
            try:
                view = self._snapshots.node(node, self._cluster.pods_on(name), self._cluster.node_metrics.get(name), now=now)
            except (QuantityError, ValueError) as error:
                log.error("node %s is left out of this round, a value cannot be read: %s", name, error)
                continue
            expect(view, expected.get(name, ()), self._brought, unheard=unheard)
            views.append(view)
        return views
