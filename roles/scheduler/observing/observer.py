"""Informer events into the scheduler's state: cache, queue, plugin feeds (SCH-FW-04, SCH-FW-05, SCH-FW-08)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from koord.api.kinds import NAMESPACES, NODEMETRICS, NODES, PODS, Kind
from koord.api.objects import Namespace, Node, NodeMetric, Pod
from koord.api.quantity import QuantityError
from koord.process.reporters import ReportTimes
from roles.scheduler.cluster.audit import comparing, recounting
from roles.scheduler.cluster.cache import Cache
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.cluster.podinfo import PodInfo, annotated_otherwise
from roles.scheduler.framework.context import State
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent
from roles.scheduler.framework.framework import Framework, feeds_of, plugins_of
from roles.scheduler.framework.interfaces import Feed, PodObserver
from roles.scheduler.framework.steps import Steps, at_once
from roles.scheduler.gate import Gate, Tell
from roles.scheduler.journal.journal import Journal
from roles.scheduler.queue.queue import SchedulingQueue

log = logging.getLogger(__name__)

# A pod that has ended takes nothing: it disappears for every plugin like a deleted one.
RUNNING_ONLY = "status.phase!=Succeeded,status.phase!=Failed"


class Acting:
    """Who has placements and evictions under way; this one only looks."""

    def pod_on_node(self, pod: PodInfo) -> None:
        """The API server shows a pod on a node for the first time."""

    def pod_leaving(self, uid: str) -> None:
        """It shows a pod on its way out."""

    def pod_gone(self, uid: str) -> None:
        """It shows a pod no more, or as ended. The pod still counts where it was assumed."""

    def node_gone(self, name: str) -> None:
        """It shows a node no more."""


class Observer:
    """Keeps the scheduler's state current. `clock` gives seconds since the epoch; `changed` is called after everything that may
    give the scheduler something to do; `gone(uid)` when a pod needs no more reporting.
    `acting` follows what it has set out to do."""

    def __init__(
        self,
        state: State,
        cache: Cache,
        queue: SchedulingQueue,
        frameworks: Mapping[str, Framework],
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        gone: Callable[[str], None],
        foreign_nominations: bool = False,
        watching: Iterable[Any] = (),
        gate: Gate | None = None,
        journal: Journal | None = None,
        report_times: ReportTimes | None = None,
    ) -> None:
        """`report_times`: how a live process takes times that nodes wrote; what a journal tells was taken so already."""
        self._state = state
        self._cache = cache
        self._queue = queue
        self._frameworks = frameworks
        self._clock = clock
        self._report_times = report_times
        self._changed = changed
        self._gone = gone
        self._gate = gate or Gate()
        self._journal = journal or Journal()
        self._journaled: dict[str, Any] = {}  # informers whose objects the journal is told of, by channel
        self.acting = Acting()
        self._foreign_nominations = foreign_nominations
        self._pods: Any = None
        self._nodes: Any = None
        self._reserve_pods: dict[str, PodInfo] = {}  # by the Reservation's name
        observers = [plugin for plugin in plugins_of(frameworks) if isinstance(plugin, PodObserver)]
        self._told_seen: list[Callable[[Any], None]] = [watcher.pod_seen for watcher in (*observers, *watching)]
        self._told_gone: list[Callable[[Any], None]] = [watcher.pod_gone for watcher in (*observers, *watching)]
        self.attached = False

    def attach(self, informers: Any) -> None:
        """Ask the factory for everything that is needed and listen. The factory is started by the caller."""
        self.attached = True
        for feed in feeds_of(self._frameworks):
            self._feed(informers, feed)
        self._nodes = informers.informer(NODES, Node)
        self._listen(self._nodes, channel_of(NODES), _each(self.node_added, self.node_updated, self.node_deleted))
        self._listen(informers.informer(NAMESPACES, Namespace), channel_of(NAMESPACES), self._namespace)
        # The store keeps PodInfos: parsed once, and a fraction of a decoded pod's size.
        self._pods = informers.informer(PODS, Pod, field_selector=RUNNING_ONLY, transform=self._cache.parser.parse)
        self._listen(self._pods, channel_of(PODS), _each(self.pod_added, self.pod_updated, self.pod_deleted))

    def _listen(self, informer: Any, channel: str, tell: Tell) -> None:
        """Tell of an informer's objects; the journal once, however many are told."""
        if channel in self._journaled or not self._journal.keeps:
            self._journaled.setdefault(channel, informer)
            informer.add_handler(*self._gate.handlers(tell))
            return
        self._journaled[channel] = informer

        def noted(old: Any, new: Any) -> None:
            self._journal.change(channel, old, new, self._clock())
            tell(old, new)

        informer.add_handler(*self._gate.handlers(noted))

    def standing(self) -> tuple[tuple[str, Any], ...]:
        """Every object that is there, by channel; in the order in which they came to be listened to."""
        return tuple((channel, obj) for channel, informer in self._journaled.items() for obj in informer.list())

    @property
    def pods(self) -> Any:
        """The informer of pods that have not ended, None before `attach`."""
        return self._pods

    def running(self) -> list[PodInfo]:
        """All pods that have not ended, with a node or without."""
        return [pod for pod in self._pods.list() if not pod.terminated] if self.attached else []

    def audit(self) -> list[str]:
        """`auditing`, at once."""
        return at_once(self.auditing())

    def auditing(self) -> Steps[list[str]]:
        """What is counted otherwise than the informers have it, or does not add up; empty when all is well (before `attach` too)."""
        if not self.attached:
            return []
        nodes = [node.metadata.name for node in self._nodes.list()]
        known = (*self._pods.list(), *self._reserve_pods.values())
        placed = {pod.uid: (pod.reservation or pod.key, pod.node_name) for pod in known if pod.node_name and not pod.terminated}
        found = yield from comparing(self._cache.cluster, nodes, placed, self._cache.is_assumed)
        return found + (yield from recounting(self._cache.cluster))

    def reread(self, pod: PodInfo) -> PodInfo | None:
        """A pod as the informer has it now, a reserve pod as its Reservation was last seen."""
        if pod.reservation:
            return self._reserve_pods.get(pod.reservation)
        found: PodInfo | None = self._pods.get(pod.key) if self._pods is not None else None
        return found

    # ---------------------------------------------------------------- feeds of plugins

    def _feed(self, informers: Any, feed: Feed) -> None:
        def tell(old: Any, new: Any) -> None:
            self._state.now = self._clock()
            try:
                if feed.observe(old, new) is False:
                    return
            except DEFECTS:  # others wait for the event, too
                log.exception("%s: a plugin failed to take a change over", feed.kind.kind)
            action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
            self._event(ClusterEvent(feed.kind.kind, action, old, new))

        narrowed: dict[str, Any] = {"field_selector": feed.field_selector} if feed.field_selector else {}
        if feed.transform is not None:
            narrowed["transform"] = feed.transform
        elif feed.kind == NODEMETRICS and feed.projection is NodeMetric and self._report_times is not None:
            narrowed["transform"] = self._report_times
        if feed.namespace is not None:
            narrowed["namespace"] = feed.namespace
        informer = informers.informer(feed.kind, feed.projection, optional=True, **narrowed)
        if feed.transform is not None:  # what a plugin makes of objects for itself cannot be told to another scheduler
            informer.add_handler(*self._gate.handlers(tell))
        else:
            self._listen(informer, channel_of(feed.kind, feed.namespace, feed.field_selector), tell)

    # ---------------------------------------------------------------- nodes and namespaces

    def node_added(self, node: Node) -> None:
        """A node appeared."""
        self._state.now = self._clock()
        try:
            view = self._cache.set_node(node)
        except QuantityError as error:
            log.error("node %s is left out: %s", node.metadata.name, error)
            return
        self._event(ClusterEvent(NODE, Action.ADD, None, view))

    def node_updated(self, old: Node, new: Node) -> None:
        """A node changed."""
        slot = self._cache.cluster.slot_of(new.metadata.name)
        before = self._cache.cluster.row(slot).view if slot >= 0 else None
        if before is None:
            self.node_added(new)
            return
        if not _node_matters(before.node, new):
            return
        self._state.now = self._clock()
        try:
            view = self._cache.set_node(new)
        except QuantityError as error:
            log.error("node %s keeps its last good state: %s", new.metadata.name, error)
            return
        action = node_action(before, view)
        if action:
            self._event(ClusterEvent(NODE, action, before, view))

    def node_deleted(self, node: Node) -> None:
        """A node went."""
        slot = self._cache.cluster.slot_of(node.metadata.name)
        view = self._cache.cluster.row(slot).view if slot >= 0 else None
        self._cache.remove_node(node.metadata.name)
        self._state.now = self._clock()
        self.acting.node_gone(node.metadata.name)
        if view is not None:
            self._event(ClusterEvent(NODE, Action.DELETE, view, None))
        self._changed()

    def _namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        shown = new or old
        assert shown is not None
        name, labels = shown.metadata.name, dict(new.metadata.labels) if new is not None else None
        known = self._state.namespaces
        before = known.pop(name, {})
        if labels is not None:
            known[name] = labels
        if before != (labels or {}):
            self._state.now = self._clock()
            self._cache.cluster.namespace_changed(name)
            self._event(ClusterEvent(NAMESPACES.kind, Action.UPDATE_LABELS))

    # ---------------------------------------------------------------- pods

    def pod_added(self, info: PodInfo) -> None:
        """A pod appeared."""
        if info.terminated:
            return
        self._state.now = self._clock()
        self._seen(info)
        if info.node_name:
            self._assigned(info)
        elif info.shape.scheduler_name not in self._frameworks:
            self._foreign(info)
        elif not self._cache.is_assumed(info.uid):
            if info.nominated and not info.deleting:
                self._state.nominations.add(info, info.nominated)
            self._queue.add(info, self._state.now)
            self._changed()

    def pod_updated(self, old: PodInfo, info: PodInfo) -> None:
        """A pod changed; one with another UID is another pod."""
        if old.uid != info.uid:
            self.pod_deleted(old)
            self.pod_added(info)
            return
        if info.terminated:
            self.pod_deleted(info)
            return
        self._state.now = self._clock()
        self._seen(info)
        if info.node_name:
            self._assigned(info)
        elif not self._cache.is_assumed(info.uid) or self._queue.get(info.uid) is not None:
            self._pending(old, info)
        if info.deleting:
            self.acting.pod_leaving(info.uid)

    def pod_deleted(self, pod: PodInfo) -> None:
        """A pod is gone or has ended."""
        uid = pod.uid
        if pod.reservation:
            self._reserve_pods.pop(pod.reservation, None)
        self._state.now = self._clock()
        self._tell(self._told_gone, uid)
        nominated = self._state.nominations.node_of(uid)
        self._state.nominations.remove(uid)
        self._queue.delete(uid)
        self.acting.pod_gone(uid)
        self._gone(uid)
        counted = self._cache.remove_pod(uid)
        if counted is not None or nominated:  # the room that was made for a pod is free as well
            self._event(ClusterEvent(ASSIGNED_POD, Action.DELETE, pod if counted is None else counted, None))

    def _foreign(self, info: PodInfo) -> None:
        """A pending pod of another scheduler: its nomination counts with the gate CrossSchedulerNomination (SCH-FW-11)."""
        nominations = self._state.nominations
        if self._foreign_nominations and info.nominated and not info.deleting:
            nominations.add(info, info.nominated, foreign=True)
        elif nominations.node_of(info.uid):
            nominations.remove(info.uid)
            self._changed()

    def _seen(self, info: PodInfo) -> None:
        if info.reservation:
            self._reserve_pods[info.reservation] = info
        self._tell(self._told_seen, info)

    def _tell(self, steps: Iterable[Callable[[Any], None]], about: PodInfo | str) -> None:
        """Tell everybody who watches pods. One who raises is logged: the pod is there, or gone, all the same."""
        for step in steps:
            try:
                step(about)
            except DEFECTS:
                whose, what = type(getattr(step, "__self__", step)).__name__, getattr(step, "__name__", "a step")
                log.exception("plugin %s: %s of pod %s failed", whose, what, about)

    def _assigned(self, info: PodInfo) -> None:
        before = self._cache.cluster.pod(info.uid)
        known = before is not None and bool(before.node_name)
        self._cache.set_pod(info)
        if not known:
            nominated = self._state.nominations.node_of(info.uid)
            self._state.nominations.remove(info.uid)
            self._queue.delete(info.uid)
            self.acting.pod_on_node(info)
            self._gone(info.uid)
            self._event(ClusterEvent(ASSIGNED_POD, Action.ADD, None, info))
            self._left_nomination(info, nominated)
            return
        assert before is not None
        action = pod_action(before, info)
        if action:
            self._event(ClusterEvent(ASSIGNED_POD, action, before, info))

    def _pending(self, old: PodInfo, info: PodInfo) -> None:
        now = self._state.now
        entry, nominated = self._queue.get(info.uid), self._state.nominations.node_of(info.uid)
        if info.nominated != old.nominated and (entry is None or not entry.attempts):
            # who led before made room for it there; of a pod that was tried here, this scheduler knows better than the echo of its writes
            self._state.nominations.add(info, info.nominated)
        if info.shape.scheduler_name not in self._frameworks:
            self._queue.delete(info.uid)
            self._foreign(info)
        elif entry is None:
            if not info.deleting:
                self._queue.add(info, now)
        else:
            action = pod_action(entry.pod, info)
            events = [
                ClusterEvent(UNSCHEDULED_POD, single, entry.pod, info) for single in Action if single is not Action.ALL and action & single
            ]
            self._queue.update(info, events, now)
        if info.deleting:  # nothing places it any more
            self._state.nominations.remove(info.uid)
        self._left_nomination(info, nominated)
        self._changed()

    def _left_nomination(self, info: PodInfo, before: str) -> None:
        """The room that was kept for a pod on the node of before is free, unless the pod is there or is to come."""
        if before and before not in (info.node_name, self._state.nominations.node_of(info.uid)):
            self._queue.room_given_up(info, self._state.now)

    def _event(self, event: ClusterEvent) -> None:
        if self._queue.on_event(event, self._state.now):
            self._changed()


def _each(added: Callable[[Any], None], updated: Callable[[Any, Any], None], deleted: Callable[[Any], None]) -> Tell:
    """Tells one of three of what became of an object."""

    def tell(old: Any, new: Any) -> None:
        if new is None:
            deleted(old)
        elif old is None:
            added(new)
        else:
            updated(old, new)

    return tell


def channel_of(kind: Kind, namespace: str | None = None, field_selector: str = "") -> str:
    """What a journal calls a watch."""
    return "|".join((kind.key, namespace or "", field_selector)) if namespace or field_selector else kind.key


_placing = attrgetter(
    "metadata.labels", "metadata.annotations", "spec.unschedulable", "spec.taints", "status.allocatable", "status.images",
    "status.declared_features",
)  # fmt: skip


def _node_matters(old: Node, new: Node) -> bool:
    """Whether anything changed that scheduling looks at: most node updates are heartbeats, with new times in the conditions."""
    if _placing(old) != _placing(new):
        return True
    return _conditions(old) != _conditions(new)


def _conditions(node: Node) -> list[tuple[str, str]]:
    return [(condition.type, condition.status) for condition in node.status.conditions]


def node_action(old: NodeView, new: NodeView) -> Action:
    """What changed between two views of a node; Action(0) when nothing did that a plugin can subscribe to."""
    action = Action(0)
    if old.allocatable != new.allocatable:
        action |= Action.UPDATE_ALLOCATABLE
    if old.labels != new.labels:
        action |= Action.UPDATE_LABELS
    if old.taints != new.taints or old.unschedulable != new.unschedulable:
        action |= Action.UPDATE_TAINTS
    if old.annotations != new.annotations:
        action |= Action.UPDATE_ANNOTATIONS
    if _conditions(old.node) != _conditions(new.node):
        action |= Action.UPDATE_CONDITIONS
    if old.declared_features != new.declared_features:
        action |= Action.UPDATE_DECLARED_FEATURES
    return action


def pod_action(old: PodInfo, new: PodInfo) -> Action:
    """What changed between two versions of a pod; Action(0) for its status only, but for the claims that were made for it, and for what
    schedulers write."""
    action = Action(0)
    if old.pod.status.resource_claim_statuses != new.pod.status.resource_claim_statuses:
        action |= Action.UPDATE_GENERATED_CLAIMS
    annotated = Action.UPDATE_ANNOTATIONS if annotated_otherwise(old.pod, new.pod) else Action(0)
    if old.shape is new.shape and old.labels == new.labels:
        return action | annotated
    a, b = old.shape, new.shape
    if old.labels != new.labels:
        action |= Action.UPDATE_LABELS
    if a.tolerations != b.tolerations:
        action |= Action.UPDATE_TOLERATIONS
    if a.gates != b.gates:
        action |= Action.UPDATE_GATES
    if any(b.amounts.get(name, 0) < amount for name, amount in a.amounts.items()):
        action |= Action.SCALE_DOWN
    return (action or Action.UPDATE) | annotated
