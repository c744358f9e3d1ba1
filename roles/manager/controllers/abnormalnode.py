"""Abnormal nodes: found, told of, and trusted with less until they recover (BEY-ABN-01)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import orjson

from koord.api.annotations import node_penalty
from koord.api.kinds import NODES
from koord.api.names import ANNOTATION_NODE_ABNORMAL
from koord.api.objects import Node, Pod
from koord.decisions.record import Number, Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.errors import ApiError, NotFound
from koord.kube.events import EventRecorder
from koord.kube.references import reference
from roles.manager.abnormal.signs import WINDOW, Families, Level, Signs, judge, moved
from roles.manager.controllers.base import ROLE, Controller, log
from roles.manager.controllers.state import ClusterState, node_of
from roles.manager.controllers.writer import Writer
from roles.manager.noderesource.brake import ALWAYS, SHARE

INTERVAL = 15.0
_ALL = "all nodes"
_DISRUPTED = "DisruptionTarget"


def _evicted(pod: Pod) -> bool:
    return pod.status.reason == "Evicted" or any(c.type == _DISRUPTED and c.status == "True" for c in pod.status.conditions)


class AbnormalNodeController(Controller):
    """One key: all nodes are judged together, for replicas of a workload are compared across nodes."""

    name = "abnormalnode"

    def __init__(
        self,
        state: ClusterState,
        writer: Writer,
        recorder: Recorder,
        events: EventRecorder,
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self.state, self.writer, self.recorder, self.events = state, writer, recorder, events
        self.interval, self.clock = interval, clock or state.clock
        self._levels: dict[str, Level] = {}
        self._judged: float | None = None
        self._evictions: dict[str, deque[float]] = {}
        self._shown: set[str] = set()  # pods that are known to be evicted: what the kubelet evicts may stay for days

    def attach(self) -> None:
        """Listen."""
        self.state.pods.add_handler(self._on_pod, lambda old, new: self._on_pod_change(new), self._on_pod_gone)
        self.state.nodes.add_handler(on_add=lambda node: self.queue.add(_ALL), on_delete=self._on_node_gone)

    def keys(self) -> Iterable[str]:
        """All nodes are judged together."""
        return (_ALL,)

    def _on_pod(self, pod: Pod) -> None:
        if _evicted(pod):  # nobody knows when that was
            self._shown.add(pod.key)

    def _on_pod_change(self, pod: Pod) -> None:
        if not _evicted(pod) or pod.key in self._shown:
            return
        self._shown.add(pod.key)
        node = node_of(pod) or ""
        if self.state.nodes.get(node) is not None:
            now = self.clock()
            self._evicted_lately(node, now)  # where this replica does not lead, nobody else lets go of what is long ago
            self._evictions.setdefault(node, deque()).append(now)

    def _on_pod_gone(self, pod: Pod) -> None:
        self._on_pod_change(pod)  # its last state may be the first to show it
        self._shown.discard(pod.key)

    def _on_node_gone(self, node: Node) -> None:
        self._levels.pop(node.metadata.name, None)
        self._evictions.pop(node.metadata.name, None)

    async def reconcile(self, key: str) -> float | None:
        """Judge every node, and write where the judgement changed."""
        now = self.clock()
        seconds = 0.0 if self._judged is None else now - self._judged
        self._judged = now
        families = Families(self._workload_of)
        for metric in self.state.node_metrics.list():
            families.add(metric)
            await self.turns.pause()
        outliers = families.outliers()
        judged: list[tuple[Node, Signs]] = []
        for node in self.state.nodes.list():
            await self.turns.pause()
            name = node.metadata.name
            evicted = self._evicted_lately(name, now)
            judged.append((node, judge(self.state.node_metrics.get(name), now=now, outliers=outliers.get(name, ()), evictions=evicted)))
        # Reports that stop on many nodes at once say nothing about each of them.
        many = sum(signs.stale > 0 for _, signs in judged) > max(float(ALWAYS), SHARE * len(judged))
        for node, found in judged:
            await self.turns.pause()
            name, signs = node.metadata.name, replace(found, stale=0.0) if many else found
            stands = node_penalty(node.metadata.annotations)
            before = self._levels.get(name) or Level(stands / 100, stands > 0)
            level = self._levels[name] = moved(before, signs.score, seconds)
            if level.penalty != stands:
                await self._write(node, before, level, signs, now)
        return self.interval

    def _workload_of(self, key: str) -> str | None:
        pod = self.state.pods.get(key)
        if pod is None or not pod.spec.node_name:
            return None
        return owner.uid if (owner := pod.metadata.controller) is not None else None

    def _evicted_lately(self, node: str, now: float) -> int:
        times = self._evictions.get(node)
        while times and times[0] < now - WINDOW:
            times.popleft()
        return len(times or ())

    async def _write(self, node: Node, before: Level, level: Level, signs: Signs, now: float) -> None:
        name = node.metadata.name
        reasons = [f"{term.name} {term.value}: {term.note}" for term in signs.terms]
        body = {"penalty": level.penalty, "reasons": reasons} if level.penalty else None
        value = orjson.dumps(body).decode() if body else None
        try:
            metadata = {"uid": node.metadata.uid, "annotations": {ANNOTATION_NODE_ABNORMAL: value}}
            await self.writer.patch(NODES, name, {"metadata": metadata})
        except NotFound:
            return
        except ApiError as error:  # the next judgement tries again, and the other nodes do not wait for it
            log.warning("%s: node %s: %s", self.name, name, error)
            return
        text = f"overcommit and load-aware score are lowered by {level.penalty}%: {'; '.join(reasons) or 'it recovers'}"
        about = reference(node, NODES)
        if level.penalty and not node_penalty(node.metadata.annotations):
            self.events.event(about, "Warning", "NodeAbnormal", text)
        elif not level.penalty:
            self.events.event(about, "Normal", "NodeRecovered", "the signs have passed; overcommit and score are whole again")
        subject, verdict = Subject("Node", "", name, node.metadata.uid), "Abnormal" if level.penalty else "Recovered"
        told = text if level.penalty else "the signs have passed"
        numbers: dict[str, Number] = {"level": round(level.value, 3), "before": round(before.value, 3), "penalty": level.penalty}
        self.recorder.record(Record(ROLE, subject, now, verdict, self.name, told, numbers, signs.terms, ("BEY-ABN-01",)))


class AbnormalNodeRemoval(Controller):
    """With the gate off nobody judges: a judgement that is left would lower the node's score for good."""

    name = "abnormalnode"

    def __init__(self, state: ClusterState, writer: Writer) -> None:
        super().__init__()
        self.state, self.writer = state, writer

    def attach(self) -> None:
        """Listen."""
        self.state.nodes.add_handler(on_add=lambda node: self.queue.add(node.metadata.name) if _marked(node) else None)

    def keys(self) -> Iterable[str]:
        """Nodes with a judgement."""
        return (node.metadata.name for node in self.state.nodes.list() if _marked(node))

    async def reconcile(self, key: str) -> float | None:
        """Take the judgement back."""
        try:
            await self.writer.patch(NODES, key, {"metadata": {"annotations": {ANNOTATION_NODE_ABNORMAL: None}}})
        except NotFound:
            return None
        log.info("gate AbnormalNodes is off: the penalty of node %s is taken back", key)
        return None


def _marked(node: Node) -> bool:
    return ANNOTATION_NODE_ABNORMAL in node.metadata.annotations
