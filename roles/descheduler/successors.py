"""Asked right before a pod leaves for a place that is held: would its successor come there? (DS-MC-03)

The answer is that of the scheduler's whole profile on the cluster as it is now. Making a copy of a large cluster takes seconds of CPU, so
there is one copy that follows the caches: what has changed since the last question is told to it before the next one. Objects that only
the scheduler's plugins look at are listed anew from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.kinds import NODEMETRICS, RESERVATIONS
from koord.api.objects import Node, NodeMetric, Pod, Reservation
from koord.kube.informers import Informer
from roles.descheduler.cluster import ClusterState
from roles.descheduler.placement import Simulations, unplaced

if TYPE_CHECKING:
    from roles.scheduler.whatif import Simulation

log = logging.getLogger(__name__)

ANEW = 30.0  # seconds after which a copy is made anew,
COST = 20.0  # but not before so many times what it took to make: a twentieth of a core at most
KEPT = 120.0  # seconds after the last question for which it is kept: a copy is as large as what the scheduler keeps

Change = Callable[["Simulation"], None]


class Successors:
    """The copy, and questions to it."""

    def __init__(self, simulations: Simulations, cluster: ClusterState, clock: Callable[[], float]) -> None:
        self._simulations = simulations
        self._clock = clock
        self._lock = asyncio.Lock()
        self._simulation: Simulation | None = None
        self._until = 0.0
        self._asked = 0.0
        self._follows = False
        self._changes: list[Change] = []
        cluster.pods.add_handler(on_add=self._pod, on_update=self._changed, on_delete=self._pod_gone)
        cluster.nodes.add_handler(on_add=self._node, on_update=lambda _, node: self._node(node), on_delete=self._node_gone)
        self._follow(cluster.node_metrics, NODEMETRICS.kind)
        self._follow(simulations.reservations, RESERVATIONS.kind)

    async def refuse(self, pods: Sequence[Pod], held: Sequence[Reservation]) -> str:
        """Why the successors of pods that leave together would not come into the places, "" when they would. "" also where the scheduler
        cannot be asked, which is logged: the node itself is looked at in any case."""
        async with self._lock:
            try:
                simulation = await self._current()
                return await seams.to_thread(self._ask, simulation, pods, held)
            except Exception:
                log.exception("the scheduler could not be asked whether the successor of pod %s would come into its place", pods[0].key)
                self._drop()
                return ""

    async def _current(self) -> Simulation:
        """The copy, as the caches are."""
        began = self._asked = seams.monotonic()
        if self._simulation is None or began >= self._until:
            self._drop()
            self._follows = True
            self._simulation = await self._simulations.make(self._clock())
            now = seams.monotonic()
            self._until = now + max(ANEW, COST * (now - began))
            asyncio.get_running_loop().call_later(KEPT, self._idle)
        changes, self._changes = self._changes, []
        await seams.to_thread(self._catch_up, self._simulation, changes)
        return self._simulation

    def _catch_up(self, simulation: Simulation, changes: list[Change]) -> None:
        for change in changes:
            change(simulation)
        simulation.at(self._clock())

    def _ask(self, simulation: Simulation, pods: Sequence[Pod], held: Sequence[Reservation]) -> str:
        if not all(simulation.knows(pod.spec.scheduler_name) for pod in pods):
            return ""
        for each in held:
            simulation.tell(RESERVATIONS.kind, None, each)  # it has just been read, and the cache may not have it yet
        owners = [each.spec.owners for each in held]
        alike = [each for each in (*self._simulations.reservations.list(), *held) if each.spec.owners in owners]
        places = {each.status.node_name for each in alike if each.status.phase == held[0].status.phase}
        answers = simulation.again([(pod, unplaced(pod)) for pod in pods])
        if not simulation.sound:
            self._until = 0.0
        for found in answers:
            if not found.placed:
                return f"the scheduler would find no node for the next pod: {found.message}"
            if found.node not in places:  # any of the workload's will do: its pods are alike, and jobs exchange their places
                return f'the scheduler would put the next pod on node "{found.node}" and not into the place'
        return ""

    def _idle(self) -> None:
        """Give the memory back."""
        if self._simulation is None:
            return
        left = self._asked + KEPT - seams.monotonic()
        if left <= 0:
            self._drop()
        else:
            asyncio.get_running_loop().call_later(left, self._idle)

    def _drop(self) -> None:
        self._simulation, self._follows, self._changes = None, False, []

    # ---------------------------------------------------------------- following the caches

    def _note(self, change: Change) -> None:
        if self._follows:
            self._changes.append(change)

    def _pod(self, pod: Pod) -> None:
        self._note(lambda simulation: simulation.set_pod(pod))

    def _changed(self, old: Pod, new: Pod) -> None:
        if old.metadata.uid != new.metadata.uid:
            self._pod_gone(old)
        self._pod(new)

    def _pod_gone(self, pod: Pod) -> None:
        self._note(lambda simulation: simulation.forget_pod(pod.metadata.uid))

    def _node(self, node: Node) -> None:
        self._note(lambda simulation: simulation.set_node(node))

    def _node_gone(self, node: Node) -> None:
        self._note(lambda simulation: simulation.forget_node(node.metadata.name))

    def _follow(self, informer: Informer[Any], kind: str) -> None:
        def told(old: NodeMetric | Reservation | None, new: NodeMetric | Reservation | None) -> None:
            self._note(lambda simulation: simulation.tell(kind, old, new))

        informer.add_handler(on_add=lambda new: told(None, new), on_update=told, on_delete=lambda old: told(old, None))
