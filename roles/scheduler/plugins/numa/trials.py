"""Allocations tried on a node: out of the reservations that a pod may use first, then out of what the node has left (SCH-NUMA-13).
Nothing here changes any state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from koord.api import names
from koord.api.annotations import AnnotationError, parse_scheduling_hint
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.restoring import TAKEN_OVER, RestoredReservation
from roles.scheduler.framework.status import Status, unschedulable
from roles.scheduler.plugins.numa.allocator import Binding, Pool, Share, allocate, enough_on, masks_to_try, pool_of, share_of, within
from roles.scheduler.plugins.numa.columns import NumaColumns
from roles.scheduler.plugins.numa.facts import Facts
from roles.scheduler.plugins.numa.picks import NOT_ENOUGH
from roles.scheduler.plugins.numa.records import Record, holdings, read_record
from roles.scheduler.plugins.numa.request import Request
from roles.scheduler.plugins.topology_manager.hints import Policy, bits_of, mask_of, violates_exclusivity

log = logging.getLogger(__name__)

NAME = "NodeNUMAResource"
NOMINATED_DOES_NOT_FIT = "pod has a nominated reservation but cannot be allocated within its NUMA scope"
_NO_RECORD = Record()


class Trial(NamedTuple):
    """A pool with the reservation it is for, None for what the node has left. `must` are CPUs that have to be among those picked; `home` is
    the mask of NUMA nodes on which the reservation has something left."""

    pool: Pool
    reservation: RestoredReservation | None
    must: int = 0
    home: int = 0


class Attempts:
    """The pools of a pod on a node, ready to be tried on any of its NUMA nodes."""

    def __init__(
        self, facts: Facts, request: Request, binding: Binding | None, trials: Sequence[Trial], pool: Pool, *,
        designated: Record | None, nominated: bool, required: bool,
    ) -> None:  # fmt: skip
        self.facts, self.request, self.binding = facts, request, binding
        self.pool = pool  # all that the pod might get, whatever it is out of
        self.home = 0  # NUMA nodes of reservations that the pod may use
        for trial in trials:
            self.home |= trial.home
        self._trials = trials
        self._designated = designated
        self._nominated = nominated
        self._required = required

    def on(self, nodes: Sequence[int] | None, *, pick: bool = True) -> Record | Status:
        """The allocation of the first pool that has it on these NUMA nodes, or why none has."""
        reasons: dict[str, None] = {}
        answer: Record | Status = unschedulable(NOT_ENOUGH)
        for trial in self._trials:
            picks = pick or bool(trial.must)
            answer = _allocate(self.facts, self.request, self.binding, trial.pool, nodes, self._designated, pick=picks)
            if isinstance(answer, Record):
                if not (self.binding is not None and trial.must & ~answer.cpus):
                    return answer
                answer = unschedulable(NOT_ENOUGH)
            if trial.reservation is not None:
                reasons.update(dict.fromkeys(f"Reservation(s) {reason}" for reason in answer.reasons))
        if self._nominated:
            return unschedulable(NOMINATED_DOES_NOT_FIT)
        return unschedulable(*reasons) if reasons and self._required else answer


class Trials:
    """Tries pods on nodes."""

    def __init__(self, columns: NumaColumns) -> None:
        self._columns = columns

    def attempts(self, ctx: CycleContext, slot: int, request: Request, binding: Binding | None, *, reserving: bool = False) -> Attempts:
        """What can be tried. `reserving`: only the nominated reservation counts, or none."""
        facts = self._columns.at(slot).facts
        pool = self._columns.pool(slot, request.exclusive)
        return Attempts(
            facts, request, binding, self._trials(ctx, slot, facts, request, pool, reserving=reserving), pool,
            designated=designation(ctx.pod), nominated=reserving and ctx.reservation is not None, required=requires_reservation(ctx.pod),
        )  # fmt: skip

    def attempt_in(
        self, ctx: CycleContext, slot: int, request: Request, binding: Binding | None, nodes: Sequence[int] | None, use: RestoredReservation
    ) -> Record | Status:
        """The allocation with the help of one reservation."""
        facts = self._columns.at(slot).facts
        return _allocate(facts, request, binding, self._inside(ctx, slot, facts, request, use), nodes, designation(ctx.pod))

    def attempt_alone(
        self, ctx: CycleContext, slot: int, request: Request, binding: Binding | None, choices: Sequence[Sequence[int] | None]
    ) -> Record | Status:
        """The allocation without any of the reservations that the pod may use, on the first of these sets of NUMA nodes that has it; or why
        the last one has not."""
        facts, designated = self._columns.at(slot).facts, designation(ctx.pod)
        pool = self._beside(ctx, slot, facts, request)
        enough = enough_on(facts, request.amounts, pool.amounts)
        tried: Record | Status = _NO_RECORD
        for number, nodes in enumerate(choices, 1):
            if nodes is None or designated is not None or number == len(choices) or enough(nodes):
                tried = _allocate(facts, request, binding, pool, nodes, designated, pick=False)
                if isinstance(tried, Record):
                    break
        return tried

    def expected(self, slot: int, pod: PodInfo, request: Request, binding: Binding | None, policy: Policy) -> Record | None:
        """What a pod will get of a node that it waits for, whatever reservations there are: of what is free or, where that is not enough,
        once those have left who are on their way out. None where it gets nothing of its own."""
        facts = self._columns.at(slot).facts
        if not request.amounts or (binding is None and not policy):
            return None
        for usage in (self._columns.usage(slot), self._columns.later(slot)):
            if usage is None:
                continue
            pool = pool_of(facts, usage, request.exclusive)
            use = usage.use if request.exclusive_of_all else usage.bound_use
            for mask in masks_to_try(facts, policy, pool.amounts) if policy else (None,):
                if mask is None or not (request.exclusive_use and violates_exclusivity(mask, use)):
                    found = allocate(facts, request, binding, pool, None if mask is None else bits_of(mask))
                    if isinstance(found, Record):
                        return replace(found, key=pod.key)
        return None

    # ---------------------------------------------------------------- pools

    def _trials(self, ctx: CycleContext, slot: int, facts: Facts, request: Request, pool: Pool, *, reserving: bool) -> list[Trial]:
        restored = ctx.restored.get(slot, ())
        if not restored or all(found.ignored for found in restored):
            return [Trial(pool, None)]
        if ctx.pod.reservation:
            return [self._taking_over(ctx, slot, facts, request, pool, reserving=reserving)]
        chosen = restored if not reserving else tuple(found for found in (ctx.reservation,) if found is not None)
        trials = []
        for reservation in chosen:
            pool = self._inside(ctx, slot, facts, request, reservation)
            trials.append(Trial(pool, reservation, home=self._home(slot, facts, reservation)))
        if not (reserving and chosen) and not requires_reservation(ctx.pod):
            trials.append(Trial(self._beside(ctx, slot, facts, request), None))
        return trials

    def _taking_over(self, ctx: CycleContext, slot: int, facts: Facts, request: Request, pool: Pool, *, reserving: bool) -> Trial:
        """A reserve pod that takes running pods over gets their CPUs among its own. Which ones is known when it is reserved."""
        if not reserving:
            return Trial(pool, None)
        taken = {pod.uid for pod in ctx.data.get(TAKEN_OVER, {}).get(slot, ())}
        kept, must = [], 0
        for candidate in ctx.restored.get(slot, ()):
            share = self._share(slot, facts, candidate)
            if candidate.uid in taken:
                must |= share.cpus
            else:
                kept.append(share)
        rest = pool_of(facts, self._columns.usage(slot), request.exclusive, kept)
        return Trial(replace(rest, preferred=must), None, must)

    def _beside(self, ctx: CycleContext, slot: int, facts: Facts, request: Request) -> Pool:
        """What is left beside all that the reservations keep."""
        kept = [self._share(slot, facts, found) for found in ctx.restored.get(slot, ())]
        return pool_of(facts, self._columns.usage(slot), request.exclusive, kept)

    def _inside(self, ctx: CycleContext, slot: int, facts: Facts, request: Request, use: RestoredReservation) -> Pool:
        """Node free and what one reservation has left, without what the others keep."""
        kept = [self._share(slot, facts, found) for found in ctx.restored.get(slot, ()) if found.uid != use.uid]
        pool = pool_of(facts, self._columns.usage(slot), request.exclusive, kept)
        return within(pool, self._share(slot, facts, use), facts)

    def _home(self, slot: int, facts: Facts, reservation: RestoredReservation) -> int:
        share = self._share(slot, facts, reservation)
        return mask_of({*facts.machine.nodes_with(share.cpus), *(node for node, left in share.amounts.items() if any(left.values()))})

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


def _allocate(
    facts: Facts, request: Request, binding: Binding | None, pool: Pool, nodes: Sequence[int] | None, designated: Record | None, *,
    pick: bool = True,
) -> Record | Status:  # fmt: skip
    """What a pod gets of a pool: what its resource-status says, if it says that and all of it is free."""
    if designated is None:
        return allocate(facts, request, binding, pool, nodes, pick=pick)
    missing = bool(designated.cpus & ~pool.free)
    for node, amounts in holdings(facts.machine, designated).items():
        free = pool.amounts.get(node)
        short = free is not None and any(value > free.get(name, 0) for name, value in amounts.items())
        missing = missing or (nodes is not None and node not in nodes) or (bool(designated.amounts) and short)
    if missing or (binding is not None and designated.cpus.bit_count() != binding.cpus):
        return unschedulable(NOT_ENOUGH)
    return Record("", designated.cpus, designated.amounts, request.exclusive)


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
