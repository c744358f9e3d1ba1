"""Background work of the leader: status of Reservations, their end, garbage, metrics (SCH-RSV-05, 12, 16)."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from koord import seams
from koord.api.kinds import RESERVATIONS
from koord.api.objects import Reservation
from koord.kube.errors import ApiError, Conflict, NotFound
from koord.kube.servertime import clock_of
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.reservation import reserve_pod
from roles.scheduler.plugins.reservation.args import ReservationArgs
from roles.scheduler.plugins.reservation.ledger import Ledger
from roles.scheduler.plugins.reservation.metrics import ReservationMetrics
from roles.scheduler.plugins.reservation.observing import ReservationObserver
from roles.scheduler.plugins.reservation.status import ended_at, expired, used
from roles.scheduler.plugins.reservation.terms import Terms

log = logging.getLogger(__name__)

_ROUND = 0.1  # seconds in which changes are gathered
_LOOK = 1.0  # seconds between two looks at the clock and at whether the nodes are still there
_RETRY = 3.0
_METRICS_EVERY = 5.0  # seconds after which a change is shown at the latest
_SAMPLES = 256  # listed before others have the event loop

Obj = dict[str, Any]


def next_status(reservation: Reservation, terms: Terms, ledger: Ledger, now: float, *, node_there: bool) -> Obj | None:
    """What the status of a Reservation that is not over should say now; None when it does."""
    deadline = terms.deadline()
    if deadline is not None and now >= deadline:
        return expired(reservation, now)
    if terms.node and not node_there:
        return expired(reservation, now, f"node {terms.node} is gone")
    held = ledger.held.get(terms.uid)
    if held is None or not terms.available:
        return None
    owners = [pod for pod in held.owners.values() if pod.node_name]
    return used(reservation, owners, now, finished=terms.allocate_once and held.consumed, inner=terms.inner)


class Controller:
    """`clock` gives seconds since the epoch."""

    def __init__(
        self,
        args: ReservationArgs,
        handle: Handle,
        observer: ReservationObserver,
        metrics: ReservationMetrics,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._args = args
        self._handle = handle
        self._ledger = observer.ledger
        self._metrics = metrics
        self._clock = clock or clock_of(handle.client)
        self._due: list[tuple[float, str]] = []
        self._planned: dict[str, float] = {}  # the time of each one's entry there
        self._workers = asyncio.Semaphore(args.controller_workers)

    # ---------------------------------------------------------------- status

    async def sync(self) -> None:
        """Look at every Reservation that changed, got or lost an owner, or whose time is over."""
        self._ledger.touched.update(dict.fromkeys(self._ledger.objects))
        nodes = -1
        while True:
            now = self._clock()
            if self._handle.cluster.node_version != nodes:
                nodes = self._handle.cluster.node_version
                self._ledger.touched.update(dict.fromkeys(uid for uid, held in self._ledger.held.items() if held.terms.node))
            while self._due and self._due[0][0] <= now:
                _, uid = heapq.heappop(self._due)
                self._planned.pop(uid, None)
                self._ledger.touched[uid] = None
            if self._ledger.touched and self._handle.may_write():
                touched = list(self._ledger.touched)
                self._ledger.touched.clear()
                await asyncio.gather(*(self._one(uid, now) for uid in touched))
            await self._rest()

    async def _rest(self) -> None:
        """Wait until something is touched or due; a little longer, as changes come in groups."""
        stirred = self._ledger.stirred
        if not self._ledger.touched:
            stirred.clear()
            pause = min(_LOOK, self._due[0][0] - self._clock()) if self._due else _LOOK
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause)):
                    await stirred.wait()
        await seams.sleep(_ROUND)

    async def _one(self, uid: str, now: float) -> None:
        """Look at one of them; a defect that it shows holds up no other."""
        try:
            await self._look(uid, now)
        except DEFECTS as failure:
            if ends_us(failure):
                raise
            log.exception("Reservation %s could not be looked at", uid)

    async def _look(self, uid: str, now: float) -> None:
        await self._handle.gate.passed()
        found = self._ledger.objects.get(uid)
        if found is None:
            return
        held = self._ledger.held.get(uid)
        terms = held.terms if held is not None else reserve_pod.read(found, self._handle.parser)[0]
        if terms.terminal:
            return
        slot = self._handle.cluster.slot_of(terms.node) if terms.node else -1
        status = next_status(found, terms, self._ledger, now, node_there=slot >= 0 and bool(self._handle.cluster.alive[slot]))
        if status is None:
            deadline = terms.deadline()
            if deadline is not None:
                self._look_at(uid, deadline)
            return
        async with self._workers:
            await self._write(found, status)

    async def _write(self, reservation: Reservation, status: Obj) -> None:
        meta = reservation.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        try:
            await self._handle.api.patch(RESERVATIONS, meta.name, body, subresource="status")
        except (NotFound, Conflict):
            # It changed meanwhile; what changed it is on its way here and brings it back. In case it was seen already, look again.
            self._look_at(meta.uid, self._clock() + _RETRY)
        except ApiError as failure:
            log.warning("Reservation %s: its status could not be written: %s", meta.name, failure)
            self._look_at(meta.uid, self._clock() + _RETRY)

    def _look_at(self, uid: str, time: float) -> None:
        """Look at a Reservation then, unless it is looked at earlier anyway."""
        if self._planned.get(uid, time + 1.0) > time:
            self._planned[uid] = time
            heapq.heappush(self._due, (time, uid))

    # ---------------------------------------------------------------- garbage

    async def collect(self) -> None:
        """Delete Reservations that have been over for long enough, or whose node is gone."""
        while True:
            await seams.sleep(max(1.0, self._args.gc_interval_seconds))
            if self._handle.may_write():
                for reservation in self.garbage(self._clock()):
                    await self._delete(reservation)

    def garbage(self, now: float) -> list[Reservation]:
        """Those that are to be deleted."""
        found = []
        for reservation in self._ledger.objects.values():
            ended = ended_at(reservation)
            if ended is None:
                continue
            node = reservation.status.node_name
            slot = self._handle.cluster.slot_of(node) if node else -1
            gone = bool(node) and (slot < 0 or not self._handle.cluster.alive[slot])
            if gone or now - ended > self._args.gc_duration_seconds:
                found.append(reservation)
        return found

    async def _delete(self, reservation: Reservation) -> None:
        meta = reservation.metadata
        try:
            await self._handle.api.delete(RESERVATIONS, meta.name, preconditions={"uid": meta.uid})
            log.info("Reservation %s is deleted: it was over", meta.name)
        except NotFound:
            return
        except ApiError as failure:
            log.warning("Reservation %s could not be deleted: %s", meta.name, failure)

    # ---------------------------------------------------------------- metrics

    async def resync(self) -> None:
        """Show phases and amounts: each period, and soon after something changed."""
        period, shown, since = max(1.0, self._args.resync_interval_seconds), -1, 0.0
        while True:
            if since <= 0 or shown != self._ledger.shown:
                shown, since = self._ledger.shown, period
                for number, _ in enumerate(self._metrics.show([*self._ledger.objects.values()])):
                    if number % _SAMPLES == _SAMPLES - 1:
                        await seams.sleep(0)
            pause = min(_METRICS_EVERY, since)
            await seams.sleep(pause)
            since -= pause
