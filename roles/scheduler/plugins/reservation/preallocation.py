"""Reservations that take running pods over (SCH-RSV-11): the pods become owners, and their room the reservation's.

On a node the candidates are looked at like reservations that may be used: it is judged without them (framework/restoring.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import add_into
from koord.api.annotations import AnnotationError, to_float
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.restoring import RESTRICTED, TAKEN_OVER, RestoredReservation
from roles.scheduler.framework.status import SUCCESS, Status, unresolvable, unschedulable
from roles.scheduler.plugins.reservation.affinity import affinity_of
from roles.scheduler.plugins.reservation.args import PreAllocationConfig
from roles.scheduler.plugins.reservation.binding import Writer
from roles.scheduler.plugins.reservation.fit import by_node, lacking, share
from roles.scheduler.plugins.reservation.forms import as_held
from roles.scheduler.plugins.reservation.judging import Judge
from roles.scheduler.plugins.reservation.ledger import Held, Ledger, annotated
from roles.scheduler.plugins.reservation.matching import Matcher, Rows

UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
DISABLED = "reservation requires cluster mode pre-allocation which is disabled"
NO_POD = "node(s) no pod match reservation with pre allocation required"

_KEPT = 1024


class PreAllocation:
    """All questions are about the reserve pod of the cycle; those that do not pre-allocate pass."""

    def __init__(self, config: PreAllocationConfig, ledger: Ledger, judge: Judge, matcher: Matcher) -> None:
        self._config = config
        self._ledger = ledger
        self._judge = judge
        self._matcher = matcher
        self._views: dict[str, RestoredReservation] = {}  # of candidates, by pod UID

    def _held(self, ctx: CycleContext) -> Held | None:
        held = self._ledger.held.get(ctx.pod.uid)
        return held if held is not None and held.terms.pre_allocation else None

    def concerns(self, ctx: CycleContext) -> bool:
        """Whether it is a reservation that pre-allocates."""
        return self._held(ctx) is not None

    def refusal(self, ctx: CycleContext) -> Status | None:
        """What speaks against the reservation on whatever node."""
        held = self._held(ctx)
        if held is None:
            return None
        if held.terms.policy != RESTRICTED:
            return unresolvable(UNSUPPORTED)
        if held.terms.cluster_mode and not self._config.enable_cluster_mode:
            return unresolvable(DISABLED)
        return None

    def required(self, ctx: CycleContext) -> bool:
        """Whether only nodes with a candidate will do."""
        held = self._held(ctx)
        return held is not None and held.terms.pre_allocation_required

    # ---------------------------------------------------------------- candidates

    def rows(self, ctx: CycleContext) -> Rows | None:
        """Candidates by slot; None for a reservation that does not pre-allocate."""
        if self._held(ctx) is None:
            return None
        return {row.slot: found for row in ctx.cluster.rows() if (found := self.row(ctx, row.slot))}

    def row(self, ctx: CycleContext, slot: int) -> tuple[RestoredReservation, ...]:
        """Candidates of one slot, the best first."""
        held = self._held(ctx)
        if held is None or not ctx.cluster.alive[slot]:
            return ()
        pods = [pod for pod in ctx.cluster.row(slot).pods.values() if self._is_candidate(ctx, held, pod)]
        pods.sort(key=self._by_priority if held.terms.cluster_mode else lambda pod: (-share(pod.shape.amounts, held, {}), pod.uid))
        return tuple(self._view(pod) for pod in pods)

    def _is_candidate(self, ctx: CycleContext, held: Held, pod: PodInfo) -> bool:
        uses = {self._ledger.reservation_of(pod.uid), annotated(pod)}  # it may have been handed over by an attempt that went no further
        if pod.reservation or pod.deleting or not pod.node_name or not uses <= {"", held.terms.uid}:
            return False
        if held.terms.cluster_mode:
            return pod.labels.get(self._config.cluster_label_key) == "true"
        owners = held.owner_key
        by_label = (entry for entry in owners.entries if entry.selector is not None) if owners is not None else ()
        return any(entry.matches(pod) for entry in by_label) and not self._matcher.objection_on(
            ctx.cluster.slot_of_pod(pod.uid), affinity_of(pod.shape), pod.shape.amounts, held
        )

    def _by_priority(self, pod: PodInfo) -> tuple[float, str]:
        key = self._config.cluster_priority_annotation_key
        text = pod.pod.metadata.annotations.get(key, "")
        try:
            return (-to_float(key, text), pod.uid)
        except AnnotationError:
            return (0.0, pod.uid)

    def _view(self, pod: PodInfo) -> RestoredReservation:
        known = self._views.get(pod.uid)
        if known is None or known.pod is not pod:
            if len(self._views) > _KEPT:
                self._views.clear()
            amounts = pod.shape.amounts
            known = RestoredReservation(pod.key, pod.uid, pod, (), RESTRICTED, amounts, {}, frozenset(amounts))
            self._views[pod.uid] = known
        return known

    # ---------------------------------------------------------------- judging

    def forget(self, ctx: CycleContext, slots: NDArray[np.intp]) -> None:
        """These nodes are judged anew: nobody is taken over there until `verdict` says so."""
        known: dict[int, tuple[PodInfo, ...]] = ctx.data.get(TAKEN_OVER, {})
        for slot in known.keys() & slots.tolist():
            del known[slot]

    def verdict(self, ctx: CycleContext, slot: int) -> Status:
        """Whether the reservation fits a node, and with which pods; called without the candidates on the node."""
        held = self._held(ctx)
        if held is None:
            return SUCCESS
        candidates = [found.pod for found in ctx.restored.get(slot, ())]
        wanted = self._judge.wanted(ctx)
        free = self._judge.free(ctx, slot, wanted, ())
        for name in free:
            free[name] -= sum(pod.shape.amounts.get(name, 0) for pod in candidates)
        short = lacking(wanted, free)
        chosen = self._choose(held, candidates, wanted, free, fits=not short)
        ctx.data.setdefault(TAKEN_OVER, {})[slot] = chosen
        if chosen:
            return SUCCESS
        if held.terms.pre_allocation_required:
            return unschedulable(NO_POD)
        return unschedulable(*by_node(short)) if short else SUCCESS

    def _choose(
        self, held: Held, candidates: Sequence[PodInfo], wanted: Mapping[str, int], free: Mapping[str, float], *, fits: bool
    ) -> tuple[PodInfo, ...]:
        """The pods to take over: one, or with several allowed as few in order as make room. None if it cannot or need not be."""
        if fits and self._config.prefer_no_pre_allocated_pods and not held.terms.pre_allocation_required:
            return ()
        chosen: list[PodInfo] = []
        total: dict[str, int] = {}
        for pod in candidates:
            amounts = dict(total) if held.terms.multiple else {}
            add_into(amounts, pod.shape.amounts)
            if not _inside(amounts, held):
                continue
            room = {name: free.get(name, 0.0) + amounts.get(name, 0) for name in wanted}
            if not lacking(wanted, room):
                return (*chosen, pod)
            if held.terms.multiple:
                chosen.append(pod)
                total = amounts
        return ()

    def score(self, ctx: CycleContext, slot: int) -> float:
        """Fewer pods are better where several may be taken over, else a pod that fills the reservation."""
        held = self._held(ctx)
        if held is None:
            return 0.0
        taken: tuple[PodInfo, ...] = ctx.data.get(TAKEN_OVER, {}).get(slot, ())
        if held.terms.multiple:
            return float(100 // (1 + len(taken)))
        return float(share(taken[0].shape.amounts, held, {})) if taken else 0.0

    # ---------------------------------------------------------------- handing over

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        """The pods become owners."""
        held = self._held(ctx)
        if held is None:
            return SUCCESS
        taken: tuple[PodInfo, ...] = ctx.data.get(TAKEN_OVER, {}).get(slot, ())
        for pod in taken:
            if ctx.cluster.slot_of_pod(pod.uid) != slot or self._ledger.reservation_of(pod.uid) not in ("", ctx.pod.uid):
                return unschedulable(f"pod {pod.key} can not be taken over any more")
        for pod in taken:
            self._ledger.assume(pod, ctx.pod.uid)
        self._ledger.handed[ctx.pod.uid] = taken
        return SUCCESS

    def unreserve(self, ctx: CycleContext, writer: Writer) -> None:
        """They stay what they were."""
        for pod in self._ledger.handed.pop(ctx.pod.uid, ()):
            self._ledger.release(pod.uid)
            writer.take_back(pod, ctx.pod.uid, running=True)


def _inside(amounts: Mapping[str, int], held: Held) -> bool:
    """Whether what pods take fits in what the reservation, which has no other owners yet, gives of the names that it restricts."""
    terms = held.terms
    return all(
        amount <= terms.allocatable.get(name, 0) - terms.inner.get(name, 0)
        for name, amount in as_held(amounts, terms.allocatable).items()
        if name in terms.restricted
    )
