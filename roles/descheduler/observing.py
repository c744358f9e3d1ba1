"""The picture of a round, made from the caches without keeping the event loop for long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from koord import seams
from koord.api.objects import Pod
from koord.api.quantity import QuantityError
from roles.descheduler.framework.evicting import KnowsLeaving
from roles.descheduler.framework.round import Profile
from roles.descheduler.picture import NodeView, Pictures
from roles.descheduler.world import World

log = logging.getLogger(__name__)

_AT_ONCE = 50  # nodes that are read before others get their turn


class Observer:
    """Makes node views; remembers what it read between rounds."""

    def __init__(self, world: World, profiles: Sequence[Profile]) -> None:
        self._world = world
        self._doors = [door for profile in profiles for door in profile.doors() if isinstance(door, KnowsLeaving)]
        self._pictures = Pictures(self._leaving)

    def _leaving(self, pod: Pod) -> bool:
        return any(door.leaving(pod) for door in self._doors)

    async def views(self, now: float) -> list[NodeView]:
        """All nodes in name order. `now` is in seconds since the epoch."""
        self._pictures.begin()
        views = []
        for number, node in enumerate(sorted(self._world.nodes.list(), key=lambda node: node.metadata.name)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await seams.sleep(0)
            name = node.metadata.name
            try:
                views.append(self._pictures.node(node, self._world.pods_on(name), self._world.node_metrics.get(name), now=now))
            except (QuantityError, ValueError) as error:
                log.error("node %s is left out of this round, a value cannot be read: %s", name, error)
        return views
