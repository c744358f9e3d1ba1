"""What users read about a pod that was not placed: the PodScheduled condition and the FailedScheduling event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from koord.api.kinds import PODS, RESERVATIONS
from koord.api.times import format_time
from koord.kube.client import Client
from koord.kube.errors import ApiError, Conflict, NotFound
from koord.kube.events import EventRecorder
from koord.kube.references import ObjectRef
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.tasks import Tasks

log = logging.getLogger(__name__)

NOTE_LIMIT = 1024  # bytes of an event's note
_CUT = " ..."
_TRIES = 5  # of a condition whose pod changes all the time
REASON_UNSCHEDULABLE = "Unschedulable"
REASON_ERROR = "SchedulerError"


def pod_ref(pod: PodInfo) -> ObjectRef:
    """The pod as events name it; a reserve pod is told of as its Reservation."""
    if pod.reservation:
        return ObjectRef(RESERVATIONS.kind, pod.reservation, "", pod.uid, RESERVATIONS.api_version)
    return ObjectRef("Pod", pod.name, pod.namespace, pod.pod.metadata.uid, "v1")


def cut(note: str) -> str:
    """A note of at most 1024 bytes; a longer one ends in " ..."."""
    if len(note) <= NOTE_LIMIT // 4:  # no character takes more than four bytes
        return note
    data = note.encode()
    if len(data) <= NOTE_LIMIT:
        return note
    return data[: NOTE_LIMIT - len(_CUT)].decode(errors="ignore") + _CUT


def _unknown(pod: PodInfo, message: str, now: float) -> dict[str, Any] | None:
    """No plugin knows Reservations."""
    return None


class Reporter:
    """Writes conditions and events. Conditions are written by `workers` tasks, the newest one of a pod only; equal ones are left out.

    For a reserve pod `reservation(pod, message, now)` is the patch of its Reservation's status, None for nothing new.
    """

    def __init__(
        self,
        client: Client,
        events: Mapping[str, EventRecorder],
        *,
        may_write: Callable[[], bool],
        reservation: Callable[[PodInfo, str, float], dict[str, Any] | None] = _unknown,
        workers: int = 8,
    ) -> None:
        self._client = client
        self._events = events
        self._may_write = may_write
        self._reservation = reservation
        self._count = workers
        self._pending: dict[str, tuple[PodInfo, dict[str, Any]]] = {}
        self._written: dict[str, tuple[str, str, str]] = {}
        self._places: dict[str, str] = {}  # nominations of pods that show no condition yet, as they were told
        self._writing: dict[str, asyncio.Event] = {}
        self._ready = asyncio.Event()
        self._tasks = Tasks()

    def start(self) -> None:
        """Start writing on the running loop."""
        for number in range(self._count):
            self._tasks.start(self._work(), f"conditions {number}")

    async def stop(self) -> None:
        """Stop; what is not written yet is dropped."""
        await self._tasks.stop()

    def event(self, pod: PodInfo, kind: str, reason: str, note: str, action: str) -> None:
        """An event about a pod, reported by the pod's scheduler."""
        recorder = self._events.get(pod.shape.scheduler_name)
        if recorder is not None and self._may_write():
            recorder.event(pod_ref(pod), kind, reason, cut(note), action=action)

    def scheduled(self, pod: PodInfo, node: str) -> None:
        """The pod was bound."""
        self.forget(pod.uid)
        self.event(pod, "Normal", "Scheduled", f"Successfully assigned {pod.reservation or pod.key} to {node}", "Binding")

    def failed(self, pod: PodInfo, message: str, *, error: bool, nominate: str | None, now: float) -> None:
        """The pod was not placed: event and condition, and the nomination when it changes (None leaves it)."""
        self.event(pod, "Warning", "FailedScheduling", message, "Scheduling")
        self._show(pod, message, error=error, nominate=nominate, now=now)

    def waits(self, pod: PodInfo, message: str, now: float) -> None:
        """The pod is not tried now: the condition alone tells why."""
        self._show(pod, message, error=False, nominate=None, now=now)

    def nominated(self, pod: PodInfo, node: str) -> None:
        """A nomination alone, "" for none any more."""
        if pod.reservation:
            return  # a Reservation shows no nominations
        known = self._written.get(pod.uid) or _condition_of(pod)
        if self._place(pod, known) == node:
            return
        status: dict[str, Any] = {"nominatedNodeName": node or None}
        if known is not None:
            self._written[pod.uid] = (known[0], known[1], node)
        else:
            self._places[pod.uid] = node
        before = self._pending.get(pod.uid)
        if before is not None:
            status = {**before[1], **status}
        self._pending[pod.uid] = (pod, status)
        self._ready.set()

    def _place(self, pod: PodInfo, known: tuple[str, str, str] | None) -> str:
        """The nomination that the pod shows, or is about to."""
        return known[2] if known is not None else self._places.get(pod.uid, pod.nominated)

    def _show(self, pod: PodInfo, message: str, *, error: bool, nominate: str | None, now: float) -> None:
        if pod.reservation:
            shown = self._reservation(pod, cut(message), now)
            if shown is not None:
                self._pending[pod.uid] = (pod, shown)
                self._ready.set()
            return
        reason = REASON_ERROR if error else REASON_UNSCHEDULABLE
        known = self._written.get(pod.uid) or _condition_of(pod)
        place = self._place(pod, known)
        nominated = nominate if nominate is not None else place
        if known == (reason, message, nominated):
            return
        self._written[pod.uid] = (reason, message, nominated)
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastProbeTime": None}
        if known is None:
            condition["lastTransitionTime"] = format_time(now)
        status: dict[str, Any] = {"conditions": [condition]}
        if nominated not in (pod.nominated, place) or pod.nominated != place:
            status["nominatedNodeName"] = nominated or None
        self._places.pop(pod.uid, None)
        self._pending[pod.uid] = (pod, status)
        self._ready.set()

    def forget(self, uid: str) -> None:
        """The pod is placed or gone."""
        self._lost(uid)
        self._pending.pop(uid, None)

    def _lost(self, uid: str) -> None:
        """What the pod shows is as the informer has it."""
        self._written.pop(uid, None)
        self._places.pop(uid, None)

    async def _work(self) -> None:
        while True:
            while not self._pending:
                self._ready.clear()
                await self._ready.wait()
            uid = next((uid for uid in self._pending if uid not in self._writing), "")
            if not uid:  # what is left is about pods that are being written
                self._ready.clear()
                await self._ready.wait()
                continue
            pod, status = self._pending.pop(uid)
            if not self._may_write():
                continue
            done = self._writing[uid] = asyncio.Event()
            try:
                await self._write(uid, pod, status)
            finally:
                del self._writing[uid]
                done.set()
                if uid in self._pending:
                    self._ready.set()

    async def quiet(self, uid: str) -> None:
        """Nothing of what was to be told about a pod is told any more, and nothing is on its way: the pod is about to be bound, and one
        that is bound is not told that it was not scheduled."""
        self._hush(uid)
        writing = self._writing.get(uid)
        if writing is not None:
            await writing.wait()
            self._hush(uid)

    def _hush(self, uid: str) -> None:
        self._written.pop(uid, None)
        self._pending.pop(uid, None)

    async def _write(self, uid: str, pod: PodInfo, status: dict[str, Any]) -> None:
        try:
            if pod.reservation:
                await self._client.patch(RESERVATIONS, pod.reservation, status, subresource="status")
            elif not await self._tell(pod, status):
                self._lost(uid)
        except NotFound:
            self._lost(uid)
        except ApiError as failure:
            self._lost(uid)
            log.warning("%s: the condition of a failed attempt could not be written: %s", pod.reservation or pod.key, failure)
        except Exception:
            self._lost(uid)
            log.exception("%s: the condition of a failed attempt could not be written", pod.reservation or pod.key)

    async def _tell(self, pod: PodInfo, status: dict[str, Any]) -> bool:
        """Write a pod's status, unless it has a node: the cache on which the attempt was made may be older than the binding of another
        replica. So the write holds for the version that was seen, and one that was overtaken is looked at. False: nothing is to be told."""
        uid, version = pod.pod.metadata.uid, pod.pod.metadata.resource_version
        for left in reversed(range(_TRIES)):
            if not self._may_write():
                break
            body = {"metadata": {"uid": uid, "resourceVersion": version}, "status": status}
            try:
                await self._client.patch(PODS, pod.name, body, pod.namespace, type="strategic", subresource="status")
            except Conflict:
                if not left:
                    raise
                there = await self._client.get(PODS, pod.name, pod.namespace)
                if there["metadata"]["uid"] != uid or there["spec"].get("nodeName"):
                    return False
                version = there["metadata"]["resourceVersion"]
            else:
                return True
        return False


def _condition_of(pod: PodInfo) -> tuple[str, str, str] | None:
    """(reason, message, nominated node) that the pod shows as not scheduled; None when it does not."""
    for condition in pod.pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason, condition.message, pod.nominated
    return None
