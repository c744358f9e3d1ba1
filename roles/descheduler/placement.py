"""Where a pod would go if it left: the scheduler's own cycle on what the caches hold (a second opinion would be a wrong one).

Asked in dry runs only, where nothing else answers: a real eviction is followed by real scheduling.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from koord import seams
from koord.api import kinds
from koord.api.objects import Namespace, Pod, Reservation
from koord.kube.informers import InformerFactory
from roles.descheduler.world import World

if TYPE_CHECKING:  # the scheduler is only loaded when it is asked
    from roles.scheduler.whatif import Simulation

log = logging.getLogger(__name__)


class Placements:
    """One simulated cluster a round, made at the first question, off the event loop. Pods stay where the answers put them."""

    def __init__(self, informers: InformerFactory, world: World) -> None:
        self._world = world
        self._namespaces = informers.informer(kinds.NAMESPACES, Namespace)
        self._reservations = informers.informer(kinds.RESERVATIONS, Reservation, optional=True)
        self._simulation: Simulation | None = None
        self._broken = False

    def forget(self) -> None:
        """A new round starts from what the caches hold."""
        self._simulation, self._broken = None, False

    async def where(self, pod: Pod, now: float) -> str:
        """The answer in words; "" where the scheduler cannot be asked, which is logged once a round."""
        if self._broken:
            return ""
        try:
            if self._simulation is None:
                await self._namespaces.wait_synced()
                await self._reservations.wait_synced()
                self._simulation = await seams.to_thread(self._make, now)
            return self._ask(self._simulation, pod)
        except Exception:  # an explanation is not worth a round
            log.exception("the scheduler could not be asked where pods would go")
            self._broken = True
            return ""

    def _make(self, now: float) -> Simulation:
        from roles.scheduler.whatif import Simulation, Snapshot, with_reservations

        pods = self._world.pods.list()
        names = sorted({pod.spec.scheduler_name for pod in pods if pod.spec.scheduler_name} | {"koord-scheduler", "default-scheduler"})
        objects: dict[str, Sequence[Any]] = {
            kinds.NODEMETRICS.kind: self._world.node_metrics.list(),
            kinds.RESERVATIONS.kind: self._reservations.list(),
        }
        snapshot = Snapshot(self._world.nodes.list(), pods, self._namespaces.list(), objects)
        return Simulation(snapshot, config=with_reservations(names), now=now)

    @staticmethod
    def _ask(simulation: Simulation, pod: Pod) -> str:
        simulation.remove([pod.metadata.uid])
        fresh = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
        (found,) = simulation.place([fresh])
        if found.placed:
            again = ", where it is now" if found.node == pod.spec.node_name else ""
            return f"the scheduler would put it on {found.node}{again}"
        return f"the scheduler would find no place for it: {found.message}"
