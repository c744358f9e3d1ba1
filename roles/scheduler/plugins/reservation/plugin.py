"""Reservation: holds resources for pods to come and gives them to their owners (SCH-RSV-01..17)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from koord.api import names
from koord.api.kinds import RESERVATIONS
from koord.api.objects import Reservation as ReservationObject
from koord.decisions.record import Term
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.framework import interfaces as api
from roles.scheduler.framework.codes import StatusCodes
from roles.scheduler.framework.context import ALL_ROWS, BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, UNSCHEDULED_POD, Action, ClusterEvent, Subscription
from roles.scheduler.framework.events import NODE as NODE_EVENTS
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.normalize import Normalizer
from roles.scheduler.framework.restoring import DEFAULT, RestoredReservation
from roles.scheduler.framework.status import SUCCESS, PostFilterResult, Status, unresolvable, unschedulable
from roles.scheduler.framework.steps import Steps, in_steps
from roles.scheduler.framework.tally import FIXED, Tally
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.node_affinity import selected_rows
from roles.scheduler.plugins.reservation.affinity import affinity_of
from roles.scheduler.plugins.reservation.args import ReservationArgs
from roles.scheduler.plugins.reservation.binding import Writer
from roles.scheduler.plugins.reservation.diagnosis import Diagnosis
from roles.scheduler.plugins.reservation.endpoints import node_reservations
from roles.scheduler.plugins.reservation.fit import BY_ORDER, pick, raw
from roles.scheduler.plugins.reservation.judging import NONE_FITS, Judge
from roles.scheduler.plugins.reservation.ledger import Held, Ledger
from roles.scheduler.plugins.reservation.matching import Matcher
from roles.scheduler.plugins.reservation.observing import ReservationObserver, offers_anew
from roles.scheduler.plugins.reservation.preallocation import NO_POD, PreAllocation
from roles.scheduler.plugins.reservation.selector_index import SelectorIndex

log = logging.getLogger(__name__)

NO_MATCH = "node(s) no reservations match reservation affinity"

_PINNED, _CONFLICT, _OTHER = 1, 2, 3
_OWN_REJECTIONS = {
    _PINNED: api.Rejection(("node(s) didn't match the nodeName specified by reservation",), resolvable=False),
    _CONFLICT: api.Rejection(("node(s) reservation allocate policy conflict",), resolvable=False),
}
_CODES = "Reservation/codes"
_FITTING = "Reservation/fitting"
_MASK = "Reservation/mask"


class Reservation(
    api.Restorer, api.PodObserver, api.PreFilter, api.Filter, api.PostFilter, api.PreScore, api.Score, api.Reserve, api.PreBind, api.Bind,
    api.ReserveFailure, api.Controllers,
):  # fmt: skip
    """The plugins of all profiles share one ledger, kept by the first one's arguments."""

    name = "Reservation"
    Args = ReservationArgs
    per_pod = True

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        fresh = Ledger(SelectorIndex(args.reservation_selector_index))
        self.ledger = handle.cluster.register(self.name, fresh)
        self._keeper = self.ledger is fresh
        if self._keeper:
            handle.state.holdings = self.ledger
        gates = handle.gates
        self.matcher = Matcher(self.ledger, handle.cluster, omit_node_labels=gates.get("OmitNodeLabelsForReservation", False))
        handle.parser.also.add(args.pre_allocation_config.cluster_priority_annotation_key)
        self.judge = Judge(args, self.ledger, skip_node=gates.get("SkipReservationFitsNode", False), extended=handle.extended)
        self.observer = ReservationObserver(self.ledger, handle)
        self.writer = Writer(self.ledger, handle)
        self.pre_allocation = PreAllocation(args.pre_allocation_config, self.ledger, self.judge, self.matcher)
        self.diagnosis = Diagnosis(self.ledger, self.matcher, handle)
        self.preemption = _Preemption(args, handle) if args.enable_preemption else None
        self.reads = self.score_reads = NODE | PODS | self.ledger.kind
        self.restore_reads = NODE | PODS | self.ledger.kind  # running pods are what pre-allocation looks at

    def connect(self, filters: Sequence[api.ReservationFilter]) -> None:
        self.judge.others = tuple(filters)
        for plugin in filters:
            self.reads |= plugin.reads
        self.score_reads = self.reads  # the reservation that counts is one of those that fit

    def feeds(self) -> Sequence[api.Feed]:
        own = (api.Feed(RESERVATIONS, ReservationObject, self.observer.observe),) if self._keeper else ()
        return (*own, *(self.preemption.feeds() if self.preemption is not None else ()))

    def subscriptions(self) -> Sequence[Subscription]:
        return (
            Subscription(ASSIGNED_POD, Action.DELETE | Action.UPDATE_LABELS | Action.SCALE_DOWN),
            Subscription(ASSIGNED_POD, Action.ADD | Action.UPDATE, _may_take_over),
            Subscription(NODE_EVENTS, Action.ADD | Action.UPDATE_ALLOCATABLE | Action.UPDATE_LABELS | Action.UPDATE_TAINTS),
            Subscription(RESERVATIONS.kind, Action.ADD | Action.UPDATE | Action.DELETE, offers_anew),
            Subscription(UNSCHEDULED_POD, Action.ALL),  # another affinity, or an owner of others by now
            *(each for plugin in self.judge.others for each in plugin.subscriptions()),
        )

    def endpoints(self) -> Sequence[api.Endpoint]:
        return (
            api.Endpoint("nodeReservations/{name}", lambda query: node_reservations(self.ledger, query["name"])),
            api.Endpoint("reservationSelectorIndex", lambda query: self.ledger.index.view(query.get("detail") == "true")),
        )

    of_binding = frozenset({"annotations"})

    def controllers(self) -> Iterable[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        if not self._keeper:
            return (("annotations", self.writer.run),)
        from roles.scheduler.plugins.reservation.controller import Controller
        from roles.scheduler.plugins.reservation.metrics import ReservationMetrics

        metrics = ReservationMetrics(self.handle.metrics)
        self.ledger.index.counted = metrics.query
        controller = Controller(self.args, self.handle, self.observer, metrics)
        work: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
            ("annotations", self.writer.run), ("status", controller.sync), ("metrics", controller.resync)
        ]  # fmt: skip
        if not self.args.disable_garbage_collection:
            work.append(("garbage collection", controller.collect))
        return work

    def pod_seen(self, pod: PodInfo) -> None:
        """The ledger follows the pods that count on nodes."""

    def pod_gone(self, uid: str) -> None:
        self.ledger.gone(uid)
        self.writer.forget(uid)

    # ---------------------------------------------------------------- what may be used

    def shape_key(self, pod: PodInfo) -> Hashable:
        if not pod.reservation:
            return self.matcher.key(pod)
        held = self.ledger.held.get(pod.uid)
        if held is None:
            return None
        return held.terms if held.terms.pre_allocation else held.terms.policy  # new terms stand for every edit

    def restored_rows(self, ctx: CycleContext) -> dict[int, tuple[RestoredReservation, ...]] | None:
        return self.pre_allocation.rows(ctx) if ctx.pod.reservation else self.matcher.rows(ctx)

    def restored_row(self, ctx: CycleContext, slot: int) -> tuple[RestoredReservation, ...]:
        return self.pre_allocation.row(ctx, slot) if ctx.pod.reservation else self.matcher.row(ctx, slot)

    def may_open(self, ctx: CycleContext) -> bool:
        return self.pre_allocation.concerns(ctx)

    # ---------------------------------------------------------------- filters

    def pre_filter(self, ctx: CycleContext) -> Status | api.NodeMask:
        if ctx.pod.reservation:
            refusal = self.pre_allocation.refusal(ctx)
            if refusal is not None:
                return refusal
            if not self.pre_allocation.required(ctx):
                return SUCCESS
            usable = self._mask(ctx)
            return usable if usable.mask.any() else unresolvable(NO_POD)
        affinity = affinity_of(ctx.pod.shape)
        if affinity.error:
            return unresolvable(affinity.error)
        if not affinity.required or affinity.ignored:
            return SUCCESS
        usable = self._mask(ctx)
        return usable if usable.mask.any() else unresolvable(NO_MATCH)

    def _mask(self, ctx: CycleContext) -> api.NodeMask:
        """Nodes with something usable, of those that the pod's own selector and required affinity allow."""
        known = ctx.data.get(_MASK)
        version = ctx.cluster.node_version
        if known is None or known[0] is not ctx.restored or known[1] != version:
            mask = np.zeros(ctx.cluster.capacity, dtype=np.bool_)
            mask[list(ctx.restored)] = True
            np.logical_and(mask, ctx.cluster.alive, out=mask)
            shape = ctx.pod.shape
            selected = selected_rows(ctx.cluster, shape.node_selector, shape.required_nodes, ALL_ROWS)
            if selected is not None:
                np.logical_and(mask, selected, out=mask)
            known = ctx.data[_MASK] = (ctx.restored, version, api.NodeMask(mask))
        found: api.NodeMask = known[2]
        return found

    def filter(self, ctx: CycleContext, rows: Rows) -> api.Codes | None:
        """Reserve pods are judged everywhere, others where they may use something."""
        if not ctx.pod.reservation and not ctx.restored:
            return None
        slots = ctx.cluster.slots[rows]
        usable = np.flatnonzero(ctx.may_use(slots)).tolist()
        if not ctx.pod.reservation:
            if not usable:
                return None
            codes = np.zeros(len(slots), dtype=np.int32)
            for index in usable:
                slot = slots.item(index)
                verdict = self.judge.verdict(ctx, slot)
                ctx.data.setdefault(_FITTING, {})[slot] = verdict.fitting
                codes[index] = self._codes(ctx).code(verdict.status)
            return codes
        codes = np.zeros(len(slots), dtype=np.int32)
        self.pre_allocation.forget(ctx, slots)
        for index in usable:
            codes[index] = self._codes(ctx).code(self.pre_allocation.verdict(ctx, slots.item(index)))
        for index in np.flatnonzero(np.isin(slots, list(self.ledger.slots()))).tolist():
            if self._conflicts(ctx, slots.item(index)):
                codes[index] = _CONFLICT
        pinned = ctx.pod.shape.annotations.get(names.ANNOTATION_RESERVATION_NODE, "")
        if pinned:
            codes[slots != ctx.cluster.slot_of(pinned)] = _PINNED
        return codes

    def tally(self, ctx: CycleContext) -> Tally | None:
        return None if ctx.pod.reservation else FIXED  # rows that the pod may use are tried anyway

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return bool(ctx.pod.reservation)

    def _conflicts(self, ctx: CycleContext, slot: int) -> bool:
        """Whether the reservation's policy does not go with one that is on the node."""
        own = self.ledger.held.get(ctx.pod.uid)
        if own is None:
            return False
        default = own.terms.policy == DEFAULT
        return any(held.matchable and held is not own and (held.terms.policy == DEFAULT) != default for held in self.ledger.here(slot))

    @staticmethod
    def _codes(ctx: CycleContext) -> StatusCodes:
        codes: StatusCodes | None = ctx.data.get(_CODES)
        if codes is None:
            codes = ctx.data[_CODES] = StatusCodes(_OTHER)
        return codes

    def rejection(self, ctx: CycleContext, code: int) -> api.Rejection:
        return _OWN_REJECTIONS.get(code) or self._codes(ctx).rejection(code)

    # ---------------------------------------------------------------- scores

    def pre_score(self, ctx: CycleContext) -> Status:
        return SUCCESS

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        if not ctx.restored:
            return 0.0
        slots = ctx.cluster.slots[rows]
        usable = np.flatnonzero(ctx.may_use(slots)).tolist()
        scores = np.zeros(len(slots))
        for index in usable:
            slot = slots.item(index)
            if ctx.pod.reservation:
                scores[index] = self.pre_allocation.score(ctx, slot)
            else:
                held = self._nominated(ctx, slot)
                scores[index] = raw(ctx.pod.shape.amounts, held) if held is not None else 0.0
        return scores

    def normalizer_of(self, ctx: CycleContext) -> Normalizer | None:
        return None if ctx.pod.reservation else BY_ORDER

    def _nominated(self, ctx: CycleContext, slot: int) -> Held | None:
        """The reservation that the pod would use on a slot."""
        if slot not in ctx.restored:
            return None
        fitting = ctx.data.setdefault(_FITTING, {}).get(slot)
        if fitting is None:  # the profile does not have this plugin's filter
            with ctx.restoring(slot):
                fitting = self.judge.verdict(ctx, slot).fitting
        return pick(ctx.pod.shape.amounts, fitting) if fitting else None

    def nominate(self, ctx: CycleContext, slot: int) -> RestoredReservation | None:
        if ctx.pod.reservation:
            return None
        held = self._nominated(ctx, slot)
        return held.shown() if held is not None else None

    # ---------------------------------------------------------------- failures

    def post_filter(self, ctx: CycleContext, failure: Any) -> Steps[PostFilterResult]:
        lines = self.diagnosis.lines(ctx, failure)
        if self.preemption is not None:
            result = yield from in_steps(self.preemption.post_filter(ctx, failure))
            if result.status.ok:
                return result
            return PostFilterResult(unschedulable(*lines, *result.status.reasons), result.node, result.victims)
        return PostFilterResult(unschedulable(*lines))

    def after_post_filter(self, ctx: CycleContext, failure: Any, result: PostFilterResult) -> None:
        ctx.effects.append(lambda: self.diagnosis.tell(ctx, failure))

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        return self.diagnosis.terms(ctx, self.judge)

    def failure_status(self, pod: PodInfo, message: str, now: float) -> dict[str, Any] | None:
        return self.observer.failure_status(pod, message, now)

    # ---------------------------------------------------------------- taking and giving back

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        pod = ctx.pod
        if pod.reservation:
            return self.pre_allocation.reserve(ctx, slot)
        affinity = affinity_of(pod.shape)
        if affinity.ignored:
            return SUCCESS
        if ctx.reservation is None:  # the node was chosen without scoring
            ctx.reservation = self.nominate(ctx, slot)
        nominated = ctx.reservation
        if nominated is None:
            return unschedulable(NONE_FITS) if affinity.required else SUCCESS
        held = self.ledger.held.get(nominated.uid)
        if held is None or held.slot != slot or not held.matchable or held.terms.deleting:
            return unschedulable(f"reservation {nominated.name} cannot be used any more")
        self.ledger.assume(pod, nominated.uid)
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        if ctx.pod.reservation:
            self.pre_allocation.unreserve(ctx, self.writer)
            return
        uid = self.ledger.release(ctx.pod.uid)
        if uid:
            self.writer.take_back(ctx.pod, uid)

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        if ctx.pod.reservation:
            return await self.writer.hand_over(ctx)
        if ctx.reservation is not None and ctx.reservation.uid not in self.ledger.held:
            return unschedulable(f"reservation {ctx.reservation.name} is over")
        self.writer.draft(ctx.pod, ctx.reservation, draft)
        return SUCCESS

    async def bind(self, ctx: CycleContext, node: str) -> Status:
        return await self.writer.bind(ctx, node)


def _may_take_over(pod: PodInfo, event: ClusterEvent) -> bool:
    """A pod on a node is a candidate for those that pre-allocate; for others it only takes room."""
    return names.ANNOTATION_IS_PRE_ALLOCATION in pod.shape.annotations


class _Preemption(DefaultPreemption):
    """The default preemption, for reserve pods too. Reservations themselves are never victims. A victim that uses a reservation gives
    its share back to that reservation: the ledger follows the pods of the what-if."""

    name = "Reservation"
    for_reservations: ClassVar[bool] = True

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        limits = DefaultPreemptionArgs(
            min_candidate_nodes_percentage=args.min_candidate_nodes_percentage,
            min_candidate_nodes_absolute=args.min_candidate_nodes_absolute,
        )
        super().__init__(limits, handle)
