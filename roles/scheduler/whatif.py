"""What would happen: a snapshot and pods in, placements with reasons out. Pure, and the only door to the scheduler for other roles.

It runs the very cycle that schedules live, with a planner that only keeps books, so there is never a second opinion on placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koord.accounting.resources import format as format_amounts
from koord.api.kinds import RESERVATIONS
from koord.api.objects import Namespace, Node, Pod, Reservation
from koord.api.v1alpha1.reservation import PHASE_AVAILABLE
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.record import Record, Subject
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import ERROR, UNSCHEDULABLE, Decision
from roles.scheduler.cycle.record import ROLE, record_of, subject_of
from roles.scheduler.engine import Engine, registry
from roles.scheduler.framework.handle import ClusterDoor
from roles.scheduler.framework.registry import Registry


def with_reservations(scheduler_names: Iterable[str]) -> KubeSchedulerConfiguration:
    """A profile for each name: kube-scheduler's plugins, and Reservation where the shipped profile has it."""
    here = {"enabled": [{"name": "Reservation"}]}
    plugins = {
        **dict.fromkeys(("preFilter", "filter", "postFilter", "preScore", "reserve", "preBind", "bind"), here),
        "score": {"enabled": [{"name": "Reservation", "weight": 5000}]},
    }
    profiles = [{"schedulerName": name, "plugins": plugins} for name in scheduler_names]
    return KubeSchedulerConfiguration.model_validate({"profiles": profiles})


@dataclass(slots=True)
class Snapshot:
    """The world to start from. `objects` are further API objects by kind name ("NodeMetric", "Reservation", …), as the projections of
    `koord.api.objects`; those that no plugin of the configuration observes are ignored."""

    nodes: Sequence[Node] = ()
    pods: Sequence[Pod] = ()
    namespaces: Sequence[Namespace] = ()
    objects: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Placement:
    """The outcome for one pod. `node` is "" when there is none; `victims` are the pods ("namespace/name") that preemption would remove
    from `nominated` to make room; `record` tells all the rest."""

    pod: str
    node: str
    verdict: str
    message: str
    record: Record
    nominated: str = ""
    victims: tuple[str, ...] = ()

    @property
    def placed(self) -> bool:
        """Whether the pod found a node."""
        return bool(self.node)


class Simulation:
    """A private copy of the world. `now` in seconds since the epoch; the same `seed` gives the same placements.

    Raises PluginError or InvalidConfig for a configuration that cannot run, QuantityError for a malformed quantity.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        config: KubeSchedulerConfiguration,
        now: float,
        seed: int = 0,
        plugins: Registry | None = None,
    ) -> None:
        self._engine = Engine(config, plugins if plugins is not None else registry(entry_points=False), seed=seed)
        engine = self._engine
        engine.state.now = now
        engine.cluster.reserve(len(snapshot.nodes))
        for namespace in snapshot.namespaces:
            engine.state.namespaces[namespace.metadata.name] = dict(namespace.metadata.labels)
        for node in snapshot.nodes:
            engine.cluster.set_node(NodeView(node))
        for pod in snapshot.pods:
            info = engine.parser.parse(pod)
            if info.node_name and not info.terminated:
                engine.cluster.add_pod(info, info.node_name)
        self._door = _Door(engine.cluster)
        for handle in engine.handles.values():
            handle.pods = self._door
        self._feed(snapshot.objects)

    def _feed(self, objects: Mapping[str, Sequence[Any]]) -> None:
        told: set[Any] = set()
        for framework in self._engine.frameworks.values():
            for plugin in framework.plugins.values():
                for feed in plugin.feeds():
                    if (feed.kind, feed.observe) not in told:
                        told.add((feed.kind, feed.observe))
                        for item in objects.get(feed.kind.kind, ()):
                            feed.observe(None, item)

    # ---------------------------------------------------------------- asking

    def place(self, pods: Iterable[Pod]) -> list[Placement]:
        """Schedule pods one after the other in the queue's order, each counted where it went; answers come in that order."""
        infos = [self._engine.parser.parse(pod) for pod in pods]
        sort_key = next(iter(self._engine.frameworks.values())).queue_sort.sort_key
        infos.sort(key=lambda info: sort_key(info, 0.0))
        return [self._place(info, keep=True) for info in infos]

    def fits(self, pod: Pod) -> Placement:
        """Where one pod would go now; nothing is kept."""
        return self._place(self._engine.parser.parse(pod), keep=False)

    def reserve(self, reservation: Reservation) -> Placement:
        """Schedule a Reservation; where it was placed it is there for its owners from then on. Its UID must not be known already.

        The configuration must have the Reservation plugin in a profile of the template's scheduler name.
        """
        name = reservation.metadata.name
        self._feed({RESERVATIONS.kind: (reservation,)})
        info = self._door.waiting.pop(name, None)
        if info is None:
            message = (
                f"reservation {name} cannot be scheduled: it is not valid, has a node already, or no profile has the Reservation plugin"
            )
            record = Record(ROLE, Subject(RESERVATIONS.kind, "", name, reservation.metadata.uid), self._engine.state.now, UNSCHEDULABLE)
            return Placement(name, "", UNSCHEDULABLE, message, record)
        placement = self._place(info, keep=True)
        if placement.placed:
            status = msgspec.structs.replace(
                reservation.status, phase=PHASE_AVAILABLE, node_name=placement.node, allocatable=format_amounts(info.shape.amounts)
            )
            self._feed({RESERVATIONS.kind: (msgspec.structs.replace(reservation, status=status),)})
        return placement

    def remove(self, uids: Iterable[str]) -> int:
        """Take pods off their nodes; returns how many counted."""
        return sum(1 for uid in uids if self._engine.cluster.remove_pod(uid) is not None)

    def node_of(self, uid: str) -> str:
        """Where a pod counts now, "" when nowhere."""
        slot = self._engine.cluster.slot_of_pod(uid)
        return self._engine.cluster.name_of(slot) if slot >= 0 else ""

    def _place(self, info: PodInfo, *, keep: bool) -> Placement:
        engine = self._engine
        if info.shape.scheduler_name not in engine.frameworks:
            known = ", ".join(sorted(engine.frameworks))
            return _refused(info, f"no profile has the scheduler name {info.shape.scheduler_name!r}; known: {known}", engine.state.now)
        gate = engine.pre_enqueue(info)
        if not gate.ok:
            return _refused(info, gate.message, engine.state.now)
        decision = engine.cycle.decide(info)
        if decision.scheduled:
            self._reserve(decision, keep=keep)
        return _placement(decision, engine.state.now)

    def _reserve(self, decision: Decision, *, keep: bool) -> None:
        """Count the pod and let the plugins reserve, as live scheduling does; take it back unless it is to stay."""
        cluster = self._engine.cluster
        decision.framework.run_resize(decision.ctx, decision.slot)
        cluster.place(decision.pod, decision.slot)
        status = decision.framework.run_reserve(decision.ctx, decision.slot)
        if status.ok and keep:
            return
        decision.framework.run_unreserve(decision.ctx, decision.slot)
        if not status.ok:
            decision.verdict = UNSCHEDULABLE if status.rejected else ERROR
            decision.status = status
        cluster.remove_pod(decision.pod.uid)


class _Door(ClusterDoor):
    """Reserve pods with a node count on it; the others wait here, by the Reservation's name."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.waiting: dict[str, PodInfo] = {}

    def pod_added(self, info: PodInfo) -> None:
        """Count it, or let it wait."""
        super().pod_added(info)
        if not info.node_name:
            self.waiting[info.reservation] = info

    def pod_deleted(self, pod: PodInfo) -> None:
        """It is gone."""
        super().pod_deleted(pod)
        self.waiting.pop(pod.reservation, None)


def _placement(decision: Decision, now: float) -> Placement:
    record = record_of(decision, now=now)
    return Placement(
        decision.pod.key,
        decision.node if decision.scheduled else "",
        decision.verdict,
        record.message,
        record,
        decision.nominate or "",
        tuple(victim.key for victim in decision.victims),
    )


def _refused(info: PodInfo, message: str, now: float) -> Placement:

    return Placement(info.key, "", UNSCHEDULABLE, message, Record(ROLE, subject_of(info), now, UNSCHEDULABLE, message=message))
