"""Writes of the binding cycle: the Reservation's status instead of a Binding, and the owners' annotation (SCH-RSV-01, 08, 11)."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from koord import seams
from koord.api import names
from koord.api.annotations import parse_reservation_allocated
from koord.api.kinds import PODS, RESERVATIONS
from koord.api.v1alpha1.reservation import PHASE_FAILED, PHASE_SUCCEEDED
from koord.kube.errors import ApiError, Conflict, NotFound
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SKIP, SUCCESS, Status, error
from roles.scheduler.plugins.reservation.ledger import Ledger, Orphan
from roles.scheduler.plugins.reservation.status import bound
from roles.scheduler.plugins.reservation.terms import resized

log = logging.getLogger(__name__)

_ATTEMPTS = 5
_KEY = names.ANNOTATION_RESERVATION_ALLOCATED
_POLL = 1.0  # seconds between looks at annotations that are to be taken off


class Writer:
    """`draft`, `take_back` and the queue behind it belong to owners, `bind` and `hand_over` to reserve pods."""

    def __init__(self, ledger: Ledger, handle: Handle) -> None:
        self._ledger = ledger
        self._handle = handle
        self._written: set[str] = set()  # UIDs of pods on which the annotation was or is being written

    def draft(self, pod: PodInfo, reservation: RestoredReservation | None, draft: BindDraft) -> None:
        """Have the annotation written with what the other plugins want on the pod; one of a former attempt goes if it uses none now."""
        if reservation is None:
            if pod.uid in self._written or _KEY in pod.pod.metadata.annotations:
                draft.annotations[_KEY] = None
            return
        self._written.add(pod.uid)
        draft.annotations[_KEY] = allocated_by(reservation.name, reservation.uid)

    def forget(self, uid: str) -> None:
        """The pod is no more, and with it what was written on it."""
        self._written.discard(uid)

    def take_back(self, pod: PodInfo, uid: str, *, running: bool = False) -> None:
        """The pod does not use the reservation after all."""
        if pod.uid in self._written:
            self._ledger.orphans.append(Orphan(pod, uid, running))

    # ---------------------------------------------------------------- reserve pods

    async def bind(self, ctx: CycleContext, node: str) -> Status:
        """Write node, amounts, phase and conditions into the Reservation's status."""
        pod, client = ctx.pod, self._handle.client
        if not pod.reservation:
            return SKIP
        if client is None:
            return error("no API server to bind at")
        for attempt in range(1, _ATTEMPTS + 1):
            current = await client.get(RESERVATIONS, pod.reservation)
            meta, status = current["metadata"], current.get("status") or {}
            if meta["uid"] != pod.uid:
                return error(f"reservation {pod.reservation} was created again")
            if status.get("phase") in (PHASE_FAILED, PHASE_SUCCEEDED):
                return error("reservation is not active")
            there = status.get("nodeName") or ""
            if there:
                return SUCCESS if there == node else error(f"reservation is on node {there}")
            body = {
                "metadata": {"uid": pod.uid, "resourceVersion": meta["resourceVersion"]},
                "status": bound(list(status.get("conditions") or ()), self._amounts(pod, meta), node, seams.now()),
            }
            try:
                await client.patch(RESERVATIONS, pod.reservation, body, subresource="status")
                return SUCCESS
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise
        return SUCCESS

    def _amounts(self, pod: PodInfo, meta: dict[str, Any]) -> dict[str, int]:
        held = self._ledger.held.get(pod.uid)
        requested = held.terms.allocatable if held is not None else pod.shape.amounts
        problems: list[str] = []
        amounts = resized(meta.get("annotations") or {}, requested, problems)
        for problem in problems:
            log.warning("Reservation %s: %s; it is ignored", pod.reservation, problem)
        return amounts

    async def hand_over(self, ctx: CycleContext) -> Status:
        """Make running pods owners of a Reservation before it becomes available (pre-allocation), and those of former attempts no more."""
        uid, ledger = ctx.pod.uid, self._ledger
        pods = ledger.handed.get(uid)
        if pods is None:
            return SUCCESS
        value = allocated_by(ctx.pod.reservation, uid)
        taken = {pod.uid for pod in pods}
        ledger.orphans.extend(Orphan(pod, uid, running=True) for pod in ledger.owners_of(uid).values() if pod.uid not in taken)
        if pods and not self._handle.may_write():
            return error("the lease is lost: no more writes")
        for pod in pods:
            body = {"metadata": {"uid": pod.pod.metadata.uid, "annotations": {_KEY: value}}}
            self._written.add(pod.uid)
            await self._handle.api.patch(PODS, pod.name, body, pod.namespace, type="strategic")
        return SUCCESS

    # ---------------------------------------------------------------- annotations that are to go

    async def run(self) -> None:
        """Take annotations off, one after the other, trying again what fails."""
        orphans = self._ledger.orphans
        while True:
            while orphans and self._handle.may_write():
                orphan = orphans.pop(0)
                try:
                    await self._remove(orphan)
                except NotFound:
                    continue
                except DEFECTS as failure:
                    orphans.append(orphan)
                    if ends_us(failure):
                        raise
                    trace = None if isinstance(failure, ApiError) else failure
                    log.warning("pod %s: annotation %s could not be removed: %s", orphan.pod.key, _KEY, failure, exc_info=trace)
                    await seams.sleep(1.0)
            await seams.sleep(_POLL)

    async def _remove(self, orphan: Orphan) -> None:
        """Only the pod itself, only an annotation that names this reservation, and not one that is in use after all, or again."""
        pod, uid, running = orphan
        current = await self._handle.api.get(PODS, pod.name, pod.namespace)
        meta = current["metadata"]
        if meta["uid"] != pod.pod.metadata.uid:
            return
        if not running and (current["spec"].get("nodeName") or self._ledger.reservation_of(pod.uid) == uid):
            return
        if any(each.uid == pod.uid for each in self._ledger.handed.get(uid, ())):
            return
        try:
            allocated = parse_reservation_allocated(meta.get("annotations") or {})
        except ValueError:
            return
        if allocated is None or allocated.uid != uid:
            return
        body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "annotations": {_KEY: None}}}
        await self._handle.api.patch(PODS, pod.name, body, pod.namespace)


def allocated_by(name: str, uid: str) -> str:
    """The annotation `reservation-allocated` of an owner."""
    return orjson.dumps({"name": name, "uid": uid}).decode()
