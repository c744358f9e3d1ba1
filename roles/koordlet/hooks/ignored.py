"""Tells which annotations of a pod do not count on this node, once a pod and text (BEY-SEC-03)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koord.api import names, trust
from koord.api.annotations import AnnotationError
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.qos.outcome import Notice
from roles.koordlet.states.allocation import claimant, granted_devices, held
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.nodecpus import NodeCPUs

VERDICT = "Ignored"
RULE = "TrustedAnnotations"


def ignored(pod: PodState, node: NodeCPUs) -> Iterator[tuple[str, str]]:
    """(key, why) of a pod's annotations that do not count, or not as they stand there. Pure."""
    if names.ANNOTATION_RESOURCE_STATUS in pod.annotations:
        why = held(pod.annotations, claimant(pod), node).ignored
        if why:
            yield names.ANNOTATION_RESOURCE_STATUS, why
    if names.ANNOTATION_DEVICE_ALLOCATED in pod.annotations:
        try:
            why = granted_devices(pod.annotations, claimant(pod)).ignored
        except AnnotationError as error:
            why = str(error)
        if why:
            yield names.ANNOTATION_DEVICE_ALLOCATED, why
    for key in trust.OWNED:
        for why in trust.out_of_bounds(key, pod.annotations):
            yield key, why


class Ignored:
    """Remembers what was told about the pods that are here."""

    def __init__(self, executor: Executor, notify: Callable[[Notice], None]) -> None:
        self._executor = executor
        self._notify = notify
        self._seen: dict[str, tuple[PodState, NodeCPUs]] = {}
        self._told: dict[str, frozenset[tuple[str, str]]] = {}

    def tell(self, snapshot: Snapshot) -> None:
        """A record and an event for each annotation that is ignored anew."""
        node = snapshot.cpus
        before, self._seen = self._seen, {}
        told, self._told = self._told, {}
        for pod in snapshot.pods:
            if pod.terminated:
                continue
            seen = before.get(pod.uid)
            self._seen[pod.uid] = (pod, node)
            if seen is not None and seen[0] is pod and seen[1] == node:
                self._told[pod.uid] = told.get(pod.uid, frozenset())
                continue
            found = frozenset(ignored(pod, node))
            self._told[pod.uid] = found
            for key, why in sorted(found - told.get(pod.uid, frozenset())):
                self._record(snapshot, pod, key, why)

    def _record(self, snapshot: Snapshot, pod: PodState, key: str, why: str) -> None:
        text = f"annotation {key}: ignored: {why}"
        if self._executor.recorder is not None:
            subject = Subject("Pod", pod.namespace, pod.name, pod.uid)
            self._executor.recorder.record(
                Record("koordlet", subject, snapshot.time, VERDICT, rule=RULE, message=text, features=("BEY-SEC-03",))
            )
        self._notify(Notice("Warning", "AnnotationIgnored", text, pod.namespace, pod.name, pod.uid))
