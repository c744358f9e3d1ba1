"""Where a pod would go if it left: the scheduler's own cycle on what the caches hold (a second opinion would be a wrong one).

Asked in dry runs, where nothing else answers, before pods move to make room, and right before a pod leaves for the place that is held.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from koord import seams
from koord.api import kinds, trust
from koord.api.objects import Namespace, Pod, PodStatus, Reservation
from koord.config.errors import InvalidConfig
from koord.kube.informers import InformerFactory
from roles.descheduler.cluster import ClusterState

if TYPE_CHECKING:  # the scheduler is only loaded when it is asked
    from koord.kube.client import Client
    from roles.scheduler.whatif import Scheduler, Simulation

T = TypeVar("T")
log = logging.getLogger(__name__)


class SchedulerFlags(NamedTuple):
    """What `koord scheduler` of this cluster is started with: --config, --feature-gates, --plugin-path."""

    config: str
    feature_gates: str = ""
    plugin_paths: tuple[str, ...] = ()


class Simulations:
    """Makes private copies of the cluster with the scheduler that is asked, from what the caches hold.

    With `flags` that is the cluster's own scheduler, on all objects that its plugins look at; without, kube-scheduler's plugins and
    reservations.
    """

    def __init__(
        self, informers: InformerFactory, cluster: ClusterState, client: Client | None = None, flags: SchedulerFlags | None = None
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._flags = flags
        self._namespaces = informers.informer(kinds.NAMESPACES, Namespace)
        self.reservations = informers.informer(kinds.RESERVATIONS, Reservation, optional=True)
        self._read: tuple[object, Scheduler] | None = None  # the scheduler, and the version of its configuration
        self._told: dict[str, str] = {}  # what is missing, and why: told once, and not with each copy

    async def make(self, now: float) -> Simulation:
        """A cluster as it is now, made beside the event loop."""
        await self._namespaces.wait_synced()
        await self.reservations.wait_synced()
        scheduler = await seams.to_thread(self._scheduler)
        objects = await self._objects(scheduler)
        return await seams.to_thread(self._make, scheduler, objects, now)

    def _scheduler(self) -> Scheduler:
        """The configuration to ask, read anew when its file has changed."""
        from roles.scheduler.whatif import configured, unknown

        if self._flags is not None:
            try:
                version = _version(self._flags.config)
                if self._read is None or self._read[0] != version:
                    found = configured(self._flags.config, feature_gates=self._flags.feature_gates, plugin_paths=self._flags.plugin_paths)
                    self._read = version, found
                self._told.pop("configuration", None)
                return self._read[1]
            except InvalidConfig as error:  # it may stay so: the scheduler need not be koord's
                self._tell("configuration", f"kube-scheduler's plugins are asked where pods would go: {error}", logging.ERROR)
        pods = self._cluster.pods.list()
        return unknown({pod.spec.scheduler_name for pod in pods if pod.spec.scheduler_name} | {"koord-scheduler", "default-scheduler"})

    async def _objects(self, scheduler: Scheduler) -> dict[str, Sequence[Any]]:
        """Objects beside pods and nodes, by kind. What may not be read is not known, which is logged."""
        from koord.kube.errors import ApiError

        objects: dict[str, Sequence[Any]] = {
            kinds.NODEMETRICS.kind: self._cluster.node_metrics.list(),
            kinds.RESERVATIONS.kind: self.reservations.list(),
        }
        client = self._client
        if self._flags is None or client is None:
            return objects
        for name, feed in scheduler.kinds().items():
            if name not in objects:
                try:
                    listed = await client.list(feed.kind, feed.namespace, field_selector=feed.field_selector)
                except ApiError as error:
                    self._tell(name, f"what-ifs do without {feed.kind.plural}: {error}", logging.WARNING)
                else:
                    self._told.pop(name, None)
                    objects[name] = feed.read(listed.items)
        return objects

    def _tell(self, what: str, why: str, level: int) -> None:
        if self._told.get(what) != why:
            log.log(level, "%s", why)
        self._told[what] = why

    def _make(self, scheduler: Scheduler, objects: dict[str, Sequence[Any]], now: float) -> Simulation:
        from roles.scheduler.whatif import Snapshot

        return scheduler.simulate(
            Snapshot(self._cluster.nodes.list(), self._cluster.pods.list(), self._namespaces.list(), objects), now=now
        )


def _version(path: str) -> object:
    """What changes with a file; a file that is not there has a version, too."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return path, found.st_mtime_ns, found.st_ino, found.st_size


class Placements:
    """One simulated cluster a round, made at the first question, off the event loop. Pods stay where the answers put them.

    Without `simulations` nobody is asked."""

    def __init__(self, simulations: Simulations | None, clock: Callable[[], float]) -> None:
        self._simulations, self._clock = simulations, clock
        self._simulation: Simulation | None = None
        self._broken = False

    def forget(self) -> None:
        """A new round starts from what the caches hold."""
        self._simulation, self._broken = None, False

    async def where(self, pod: Pod) -> str:
        """The answer in words; "" where the scheduler cannot be asked, which is logged once a round."""
        return await self._asked("where pods would go", lambda simulation: _where(simulation, pod)) or ""

    async def makes_room(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        """Whether a waiting pod would be placed if the others left, and they after it; if so it is kept for later questions. False where
        the scheduler cannot be asked, which is logged once a round."""

        def ask(simulation: Simulation) -> Awaitable[bool]:
            return seams.to_thread(simulation.instead, pod, [unplaced(each) for each in leaving])

        return bool(await self._asked("whether pods that move make room", ask))

    async def _asked(self, question: str, ask: Callable[[Simulation], Awaitable[T]]) -> T | None:
        """The answer; None where the scheduler cannot be asked: an explanation is not worth a round, and who cannot be asked has not
        agreed."""
        if self._broken or self._simulations is None:
            return None
        try:
            if self._simulation is None:
                self._simulation = await self._simulations.make(self._clock())
            return await ask(self._simulation)
        except Exception:
            log.exception("the scheduler could not be asked %s", question)
            self._broken = True
            return None


async def _where(simulation: Simulation, pod: Pod) -> str:
    simulation.remove([pod.metadata.uid])
    (found,) = simulation.place([unplaced(pod)])
    if found.placed:
        again = ", where it is now" if found.node == pod.spec.node_name else ""
        return f"the scheduler would put it on {found.node}{again}"
    return f"the scheduler would find no place for it: {found.message}"


def unplaced(pod: Pod) -> Pod:
    """The pod as its successor will be: without a node, and without what was given to it there."""
    meta = msgspec.structs.replace(pod.metadata, annotations=trust.unplaced(pod.metadata.annotations))
    spec = msgspec.structs.replace(pod.spec, node_name="")
    return msgspec.structs.replace(pod, metadata=meta, spec=spec, status=PodStatus())
