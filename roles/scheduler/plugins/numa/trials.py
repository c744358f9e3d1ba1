"""Allocations tried on a node: out of the reservations that a pod may use first, then out of what the node has left (SCH-NUMA-13,
scheduler-node.md 4.11). Nothing here changes any state."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from koord.api import names
from koord.api.annotations import AnnotationError, parse_scheduling_hint
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import Status, unschedulable
from roles.scheduler.plugins.numa.allocator import Binding, Pool, Share, allocate, pool_of, share_of, within
from roles.scheduler.plugins.numa.columns import NumaColumns
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.picks import NOT_ENOUGH
from roles.scheduler.plugins.numa.records import Record, holdings, read_record
from roles.scheduler.plugins.numa.request import Request

log = logging.getLogger(__name__)

NAME = "NodeNUMAResource"
NOMINATED_DOES_NOT_FIT = "pod has a nominated reservation but cannot be allocated within its NUMA scope"
_NO_RECORD = Record()


class Trial(NamedTuple):
    """A pool with the reservation it is for; None for what the node has left."""

    pool: Pool
    reservation: RestoredReservation | None


class Trials:
    """Tries a pod on nodes. `reserving`: only the nominated reservation counts, or none."""

    def __init__(self, columns: NumaColumns) -> None:
        self._columns = columns

    def attempt(
        self, ctx: CycleContext, slot: int, request: Request, binding: Binding | None, nodes: Sequence[int] | None, *,
        reserving: bool = False, pick: bool = True,
    ) -> Record | Status:  # fmt: skip
        """The allocation of the first pool that has it, or why none has."""
        facts = self._columns.at(slot).facts
        designated = designation(ctx.pod)
        if designated is not None:
            return self._designated(facts, request, binding, self._open_pool(ctx, slot, facts, request), designated, nodes)
        reasons: dict[str, None] = {}
        answer: Record | Status = unschedulable(NOT_ENOUGH)
        for trial in self._trials(ctx, slot, facts, request, reserving=reserving):
            answer = allocate(facts, request, binding, trial.pool, nodes, pick=pick)
            if isinstance(answer, Record):
                return answer
            if trial.reservation is not None:
                reasons.update(dict.fromkeys(f"Reservation(s) {reason}" for reason in answer.reasons))
        if reserving and ctx.reservation is not None:
            return unschedulable(NOMINATED_DOES_NOT_FIT)
        return unschedulable(*reasons) if reasons and requires_reservation(ctx.pod) else answer

    def attempt_in(
        self, ctx: CycleContext, slot: int, request: Request, binding: Binding | None, nodes: Sequence[int] | None, use: RestoredReservation
    ) -> Record | Status:
        """The allocation with the help of one reservation."""
        facts = self._columns.at(slot).facts
        return allocate(facts, request, binding, self._inside(ctx, slot, facts, request, use), nodes)

    def pool(self, ctx: CycleContext, slot: int, request: Request) -> Pool:
        """All that the pod might get on a node, whatever it is out of."""
        return self._open_pool(ctx, slot, self._columns.at(slot).facts, request)

    # ---------------------------------------------------------------- pools

    def _trials(self, ctx: CycleContext, slot: int, facts: Facts, request: Request, *, reserving: bool) -> Iterator[Trial]:
        restored = ctx.restored.get(slot, ())
        if not restored or all(found.ignored for found in restored):
            yield Trial(self._open_pool(ctx, slot, facts, request), None)
            return
        chosen = restored if not reserving else tuple(found for found in (ctx.reservation,) if found is not None)
        for reservation in chosen:
            yield Trial(self._inside(ctx, slot, facts, request, reservation), reservation)
        if not (reserving and chosen) and not requires_reservation(ctx.pod):
            kept = [self._share(slot, facts, found) for found in restored]
            yield Trial(pool_of(facts, self._columns.usage(slot), request.exclusive, kept), None)

    def _open_pool(self, ctx: CycleContext, slot: int, facts: Facts, request: Request) -> Pool:
        return pool_of(facts, self._columns.usage(slot), request.exclusive)

    def _inside(self, ctx: CycleContext, slot: int, facts: Facts, request: Request, use: RestoredReservation) -> Pool:
        """Node free and what one reservation has left, without what the others keep."""
        kept = [self._share(slot, facts, found) for found in ctx.restored.get(slot, ()) if found.uid != use.uid]
        pool = pool_of(facts, self._columns.usage(slot), request.exclusive, kept)
        return within(pool, self._share(slot, facts, use), facts)

    def _share(self, slot: int, facts: Facts, reservation: RestoredReservation) -> Share:
        records = self._columns.at(slot).records
        owners = [records[owner] for owner in reservation.owners if owner in records]
        return share_of(facts, reservation, self._held(reservation.pod), owners)

    def _held(self, reserve: PodInfo) -> Record:
        decided = self._columns.decided(reserve.uid)
        if decided is not None:
            return decided
        try:
            return read_record(reserve.key, reserve.pod.metadata.annotations or {}) or _NO_RECORD
        except ValueError as error:
            log.warning("reservation %s: %s; it counts as holding nothing", reserve.reservation, error)
            return _NO_RECORD

    # ---------------------------------------------------------------- designated allocation

    def _designated(
        self, facts: Facts, request: Request, binding: Binding | None, pool: Pool, wanted: Record, nodes: Sequence[int] | None
    ) -> Record | Status:
        """Exactly what the pod's resource-status says, if all of it is free."""
        missing = wanted.cpus & ~pool.free
        for node, amounts in holdings(facts.machine, wanted).items():
            if nodes is not None and node not in nodes:
                missing = 1
            free = pool.amounts.get(node)
            if free is not None and wanted.amounts and any(value > free.get(name, 0) for name, value in amounts.items()):
                missing = 1
        if missing or (binding is not None and wanted.cpus.bit_count() != binding.cpus):
            return unschedulable(NOT_ENOUGH)
        return Record("", wanted.cpus, wanted.amounts, request.exclusive)


def requires_reservation(pod: PodInfo) -> bool:
    """Whether the pod must use a reservation (annotation reservation-affinity, even empty)."""
    return names.ANNOTATION_RESERVATION_AFFINITY in pod.shape.annotations


def designation(pod: PodInfo) -> Record | None:
    """What a pod must get: its own resource-status, if its scheduling hint has something for this plugin."""
    annotations = pod.pod.metadata.annotations
    if not annotations or names.ANNOTATION_RESOURCE_STATUS not in annotations:
        return None
    try:
        hint = parse_scheduling_hint(annotations)
        return read_record(pod.key, annotations) if hint is not None and NAME in hint.extensions else None
    except (AnnotationError, ValueError):
        return None
