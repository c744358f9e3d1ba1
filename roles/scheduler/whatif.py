"""What would happen: a snapshot and pods in, placements with reasons out. Pure, and the only way to the scheduler for other roles.

It runs the very cycle that schedules live, with queue order, gang rules, nominations and permits (`rehearsal`), so there is never a second
opinion on placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from koord.accounting.resources import format as format_amounts
from koord.api.kinds import NODES, PODS, RESERVATIONS
from koord.api.objects import Namespace, Node, Pod, Reservation
from koord.api.v1alpha1.reservation import PHASE_AVAILABLE
from koord.config.gates import SCHEDULER, FeatureGates
from koord.config.scheduler import KubeSchedulerConfiguration, load
from koord.decisions.record import Record, Subject
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import UNSCHEDULABLE, Decision
from roles.scheduler.cycle.record import ROLE, record_of, subject_of
from roles.scheduler.engine import Engine, registry
from roles.scheduler.framework.framework import feeds_of, plugins_of
from roles.scheduler.framework.handle import ClusterPods
from roles.scheduler.framework.interfaces import Feed, PodObserver
from roles.scheduler.framework.registry import Registry
from roles.scheduler.rehearsal import Outcome, Rehearsal

T = TypeVar("T")


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
    `koord.api.objects`; those that no plugin of the configuration observes are ignored. A kind that is not given
    is not known, which is something else than that there is none: give an empty list for that (`Scheduler.kinds` names them)."""

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
    """A private copy of the world. `now` in seconds since the epoch; the same `seed` gives the same placements. With the configuration, the
    plugins and the feature gates of a live scheduler (`configured`) it answers as that one would.

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
        gates: Mapping[str, bool] | None = None,
    ) -> None:
        known = plugins if plugins is not None else registry(entry_points=False)
        self._make = partial(Engine, config, known, seed=seed, gates=dict(gates or {}))
        self._snapshot, self._now = snapshot, now
        self._kept: list[Callable[[], object]] = []  # what was placed and removed, in order
        self._build()

    def _build(self) -> None:
        """The world of the snapshot."""
        snapshot, self._engine = self._snapshot, self._make()
        self._spoiled = False
        engine = self._engine
        engine.state.now = self._now
        engine.cluster.reserve(len(snapshot.nodes))
        for namespace in snapshot.namespaces:
            engine.state.namespaces[namespace.metadata.name] = dict(namespace.metadata.labels)
        for node in snapshot.nodes:
            engine.cluster.set_node(NodeView(node))
        self._rehearsal = Rehearsal(engine)
        self._observers = _observers(engine, snapshot.objects)
        pods = [info for info in map(engine.parser.parse, snapshot.pods) if not info.terminated]
        for info in pods:
            if info.node_name:
                engine.cluster.add_pod(info, info.node_name)
        self._pods = _SimulatedPods(engine.cluster)
        for handle in engine.handles.values():
            handle.pods = self._pods
        self._feed(snapshot.objects)
        for info in pods:
            self._see(info)
            if not info.node_name:
                self._wait(info)

    def _wait(self, info: PodInfo) -> None:
        """A pod without a node: the room that is nominated to it is kept, and a plugin may name it. One on its way out is not placed."""
        if info.deleting:
            return
        engine = self._engine
        ours = info.shape.scheduler_name in engine.frameworks
        foreign = any(handle.gates.get("CrossSchedulerNomination", False) for handle in engine.handles.values())
        if info.nominated and (ours or foreign):
            engine.state.nominations.add(info, info.nominated, foreign=not ours)
        if ours:
            self._rehearsal.pending[info.uid] = info

    def _see(self, info: PodInfo) -> None:
        for plugin in self._observers:
            plugin.pod_seen(info)

    def _feed(self, objects: Mapping[str, Sequence[Any]]) -> None:
        for feed in feeds_of(self._engine.frameworks):
            for item in objects.get(feed.kind.key, ()):
                feed.observe(None, item)

    # ---------------------------------------------------------------- asking

    def place(self, pods: Iterable[Pod]) -> list[Placement]:
        """Schedule pods in the queue's order, each counted where it went; answers come in that order. Pods of a gang are placed together
        or not at all."""
        kept = tuple(pods)
        return self._keep(lambda: self._place(self._sorted(kept)))

    def _sorted(self, pods: Iterable[Pod]) -> list[PodInfo]:
        sort_key = next(iter(self._engine.frameworks.values())).queue_sort.sort_key
        return sorted((self._engine.parser.parse(pod) for pod in pods), key=lambda info: sort_key(info, 0.0))

    def fits(self, pod: Pod) -> Placement:
        """Where one pod would go now; nothing is kept."""
        return self.ask((pod,))[0]

    def ask(self, pods: Iterable[Pod], more: Sequence[Node] = (), described: Mapping[str, Sequence[Any]] | None = None) -> list[Placement]:
        """As `place`, with `more` empty nodes beside those that are there; nothing is kept. `described`: the objects of further kinds that
        tell of these nodes, as in a Snapshot."""
        self._refresh()
        engine, rehearsal = self._engine, self._rehearsal
        state, infos = engine.state, self._sorted(pods)
        drawn, start = state.random.getstate(), state.next_start
        before = {info.uid: (state.nominations.node_of(info.uid), info.uid in rehearsal.pending) for info in infos}
        for node in more:
            engine.cluster.set_node(NodeView(node))
        self._feed(described or {})
        placements = self._place(infos)
        jobs = any(engine.job_of(info) is not None for info in infos)
        self._spoiled = jobs or rehearsal.attempts > len(infos)  # what is kept of a job does not go back
        rehearsal.take_back()
        for kind, objects in (described or {}).items():
            for item in objects:
                self.tell(kind, item, None)
        for node in more:
            engine.cluster.remove_node(node.metadata.name)
        for info in infos:
            nominated, waits = before[info.uid]
            state.nominations.add(info, nominated)
            if not waits:
                rehearsal.pending.pop(info.uid, None)
                self._forget(info.uid)
        state.random.setstate(drawn)
        state.next_start = start
        return placements

    def instead(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        """Whether a pod would be placed if others left their nodes, and these after it; then all of that is kept, else nothing is. The
        others are given as they are to be placed again."""
        self._refresh()
        step = partial(self._instead, pod, tuple(leaving))
        if placed := step():
            self._kept.append(step)
        else:
            self._spoiled = True
        return placed

    def _instead(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        self._remove([each.metadata.uid for each in leaving])
        return all(self._place([self._engine.parser.parse(each)])[0].placed for each in (pod, *leaving))

    def again(self, pods: Sequence[tuple[Pod, Pod]]) -> list[Placement]:
        """Where the successors of pods (each with its own, which is the pod without its node) would go if all of them left now; nothing is
        kept."""
        self._refresh()
        cluster = self._engine.cluster
        left = [pod for pod, _ in pods if cluster.slot_of_pod(pod.metadata.uid) >= 0]
        self._remove([pod.metadata.uid for pod in left])
        found = self.ask([successor for _, successor in pods])
        for info in map(self._engine.parser.parse, left):
            cluster.add_pod(info, info.node_name)
            self._see(info)
        return found

    def knows(self, scheduler_name: str) -> bool:
        """Whether a profile is for pods of this scheduler name."""
        return scheduler_name in self._engine.frameworks

    # ---------------------------------------------------------------- following a cluster
    # What changes is not part of the snapshot: once an answer has left a trace (`sound`), a new simulation is to be made.

    @property
    def sound(self) -> bool:
        """Whether no question has left a trace."""
        return not self._spoiled

    def at(self, now: float) -> None:
        """It is so late now, in seconds since the epoch."""
        self._now = self._engine.state.now = now

    def set_pod(self, pod: Pod) -> None:
        """A pod as it is by now."""
        self.forget_pod(pod.metadata.uid)
        info = self._engine.parser.parse(pod)
        if info.terminated:
            return
        if info.node_name:
            self._engine.cluster.add_pod(info, info.node_name)
        self._see(info)
        if not info.node_name:
            self._wait(info)

    def forget_pod(self, uid: str) -> None:
        """A pod that is gone."""
        self._remove((uid,))

    def set_node(self, node: Node) -> None:
        """A node as it is by now."""
        self._engine.cluster.set_node(NodeView(node))

    def forget_node(self, name: str) -> None:
        """A node that is gone."""
        self._engine.cluster.remove_node(name)

    def tell(self, kind: str, old: Any, new: Any) -> None:
        """An object of a further kind that has changed; None for one that is not there."""
        for feed in feeds_of(self._engine.frameworks):
            if feed.kind.key == kind:
                feed.observe(old, new)

    def _keep(self, step: Callable[[], T]) -> T:
        """Do what every later question is to see."""
        self._refresh()
        self._kept.append(step)
        return step()

    def _refresh(self) -> None:
        """Before a question: the last one has left no trace."""
        if self._spoiled:
            self._build()
            for step in self._kept:
                step()

    def reserve(self, reservation: Reservation) -> Placement:
        """Schedule a Reservation; where it was placed it is there for its owners from then on. Its UID must not be known already.

        The configuration must have the Reservation plugin in a profile of the template's scheduler name.
        """
        return self._keep(partial(self._reserve, reservation))

    def _reserve(self, reservation: Reservation) -> Placement:
        name = reservation.metadata.name
        self._feed({RESERVATIONS.kind: (reservation,)})
        info = self._pods.waiting.pop(name, None)
        if info is None:
            message = (
                f"reservation {name} cannot be scheduled: it is not valid, has a node already, or no profile has the Reservation plugin"
            )
            record = Record(ROLE, Subject(RESERVATIONS.kind, "", name, reservation.metadata.uid), self._engine.state.now, UNSCHEDULABLE)
            return Placement(name, "", UNSCHEDULABLE, message, record)
        (placement,) = self._place([info])
        if placement.placed:
            status = msgspec.structs.replace(
                reservation.status, phase=PHASE_AVAILABLE, node_name=placement.node, allocatable=format_amounts(info.shape.amounts)
            )
            self._feed({RESERVATIONS.kind: (msgspec.structs.replace(reservation, status=status),)})
        return placement

    def remove(self, uids: Iterable[str]) -> int:
        """Take pods off their nodes; returns how many counted."""
        return self._keep(partial(self._remove, tuple(uids)))

    def _remove(self, uids: Sequence[str]) -> int:
        count = 0
        for uid in uids:
            self._rehearsal.pending.pop(uid, None)
            self._engine.state.nominations.remove(uid)
            count += self._engine.cluster.remove_pod(uid) is not None
            self._forget(uid)
        return count

    def _forget(self, uid: str) -> None:
        for plugin in self._observers:
            plugin.pod_gone(uid)

    def node_of(self, uid: str) -> str:
        """Where a pod counts now, "" when nowhere."""
        self._refresh()
        slot = self._engine.cluster.slot_of_pod(uid)
        return self._engine.cluster.name_of(slot) if slot >= 0 else ""

    def _place(self, infos: Sequence[PodInfo]) -> list[Placement]:
        engine = self._engine
        known = [info for info in infos if info.shape.scheduler_name in engine.frameworks]
        for info in known:
            self._see(info)
            if info.nominated:
                engine.state.nominations.add(info, info.nominated)
        found = {outcome.pod.uid: outcome for outcome in self._rehearsal.run(known)}
        return [self._told(info, found.get(info.uid)) for info in infos]

    def _told(self, info: PodInfo, outcome: Outcome | None) -> Placement:
        now = self._engine.state.now
        if outcome is None:
            known = ", ".join(sorted(self._engine.frameworks))
            return _refused(info, f"no profile has the scheduler name {info.shape.scheduler_name!r}; known: {known}", now)
        if outcome.decision is None:
            return _refused(info, outcome.refusal.message if outcome.refusal is not None else "", now)
        return _placement(outcome.decision, now)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How a scheduler is set up: its configuration, the plugins that there are, its feature gates."""

    config: KubeSchedulerConfiguration
    plugins: Registry
    gates: Mapping[str, bool] = field(default_factory=dict)

    def simulate(self, snapshot: Snapshot, *, now: float, seed: int = 0) -> Simulation:
        """What it would do. Raises as `Simulation`."""
        return Simulation(snapshot, config=self.config, now=now, seed=seed, plugins=self.plugins, gates=self.gates)

    def kinds(self) -> dict[str, Feed]:
        """What its plugins look at beside pods and nodes, by kind name: what a snapshot should hold."""
        engine = Engine(self.config, self.plugins, gates=dict(self.gates))
        return {feed.kind.key: feed for feed in feeds_of(engine.frameworks) if feed.kind not in (PODS, NODES)}


def configured(path: str, *, feature_gates: str = "", plugin_paths: Iterable[str] = ()) -> Scheduler:
    """The scheduler that `koord scheduler` with these flags is. Raises InvalidConfig, PluginError, or ValueError for unknown gates."""
    gates = FeatureGates(SCHEDULER)
    gates.set_from_flag(feature_gates)
    return Scheduler(load(path), registry(plugin_paths), gates.all())


def unknown(scheduler_names: Iterable[str]) -> Scheduler:
    """What can be said of schedulers of which only the names are known."""
    return Scheduler(with_reservations(sorted(scheduler_names)), registry(entry_points=False))


def _observers(engine: Engine, objects: Mapping[str, Sequence[Any]]) -> list[PodObserver]:
    """Plugins that follow pods. One whose objects the snapshot does not know (a gang cache without PodGroups) can judge none by them."""
    found = []
    for plugin in plugins_of(engine.frameworks):
        kinds = {feed.kind.key for feed in plugin.feeds() if feed.kind != PODS}
        if isinstance(plugin, PodObserver) and (not kinds or kinds & objects.keys()):
            found.append(plugin)
    return found


class _SimulatedPods(ClusterPods):
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
