"""Why a pod got none of the reservations of its owners (SCH-RSV-15)."""

from __future__ import annotations

from collections import Counter

from koord.decisions.record import Term
from koord.kube.references import ObjectRef
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.reservation.affinity import AFFINITY, EXACT, NAME, TAINT, UNSCHEDULABLE, ReservationAffinity, affinity_of
from roles.scheduler.plugins.reservation.judging import Judge
from roles.scheduler.plugins.reservation.ledger import Held, Ledger
from roles.scheduler.plugins.reservation.matching import Matcher, owned_by

EVENT = "FailedScheduling-Reservation"
_OWN = "Reservation(s) "
_EXPLAINED = 16  # reservations whose numbers go into a decision record
_TEXTS = {
    AFFINITY: "Reservation(s) didn't match affinity rules",
    UNSCHEDULABLE: "Reservation(s) is unschedulable",
    EXACT: "Reservation(s) is not exact matched",
}


class Diagnosis:
    """What is told to users, and the numbers for the decision record."""

    def __init__(self, ledger: Ledger, matcher: Matcher, handle: Handle) -> None:
        self._ledger = ledger
        self._matcher = matcher
        self._handle = handle

    def lines(self, ctx: CycleContext, failure: FitFailure) -> list[str]:
        """What is added to the message of the failed pod, the total last."""
        if ctx.pod.reservation:
            return []
        affinity = affinity_of(ctx.pod.shape)
        matched = list(owned_by(self._ledger, ctx.pod))
        if not matched and not affinity.required:
            return []
        return [*self._items(ctx, failure, affinity, matched), f"{len(matched)} Reservation(s) matched owner total"]

    def tell(self, ctx: CycleContext, failure: FitFailure) -> None:
        """The event of a pod that must have a reservation."""
        affinity = affinity_of(ctx.pod.shape)
        if ctx.pod.reservation or not affinity.required:
            return
        matched = list(owned_by(self._ledger, ctx.pod))
        items = self._items(ctx, failure, affinity, matched, own=True)
        note = f"0/{len(matched)} reservations are available{': ' if items else ''}{', '.join(items)}."
        pod = ctx.pod
        self._handle.event(ObjectRef("Pod", pod.name, pod.namespace, pod.pod.metadata.uid), "Warning", EVENT, note, action="Scheduling")

    def _items(
        self, ctx: CycleContext, failure: FitFailure, affinity: ReservationAffinity, matched: list[Held], *, own: bool = False
    ) -> list[str]:
        """How many reservations for which reason: the name, then the pod's affinity, then the nodes. `own`: also what the reservations
        themselves hold too little of, which the message of the pod says by node."""
        objections = [(held, self._matcher.objection(ctx, affinity, held)) for held in matched]
        counts = Counter(objection for _, objection in objections)
        items: list[str] = []
        if affinity.name:
            named = len(matched) - counts[NAME]
            if named:
                items.append(f"{named} Reservation(s) exactly matches the requested reservation name")
            if counts[NAME]:
                items.append(f"{counts[NAME]} Reservation(s) didn't match the requested reservation name")
        items.extend(f"{counts[word]} {text}" for word, text in _TEXTS.items() if counts[word])
        for objection, count in sorted(counts.items()):
            if objection.startswith(TAINT):
                items.append(f"{count} Reservation(s) had untolerated taint {objection.removeprefix(TAINT)}")
        slots = Counter(held.slot for held, objection in objections if not objection)
        reasons = self._node_reasons(ctx, failure, slots)
        if own:
            items.extend(f"{count} {reason}" for reason, count in sorted(reasons.items()) if reason.startswith(_OWN))
        others = sorted((reason, count) for reason, count in reasons.items() if not reason.startswith(_OWN))
        items.extend(f"{count} Reservation(s) for node reason that {reason}" for reason, count in others)
        return items

    def _node_reasons(self, ctx: CycleContext, failure: FitFailure, slots: Counter[int]) -> Counter[str]:
        """Why nodes with reservations that the pod might have used were refused, with how many of these each concerns."""
        found: Counter[str] = Counter()
        if failure.pre_filter is not None or not slots:
            return found
        for plugin, rows, codes in failure.evaluation.first_codes(ctx):
            for slot, code in zip(rows.tolist(), codes.tolist(), strict=True):
                if slot in slots:
                    for reason in plugin.rejection(ctx, int(code)).reasons:
                        found[reason] += slots[slot]
        for slot, (_, rejection) in failure.blocked.items():
            for reason in rejection.reasons if slot in slots else ():
                found[reason] += slots[slot]
        return found

    def terms(self, ctx: CycleContext, judge: Judge) -> list[Term]:
        """For the decision record: what spoke against each reservation of the pod's owners, with what was left in it."""
        if ctx.pod.reservation:
            return []
        affinity = affinity_of(ctx.pod.shape)
        found: list[Term] = []
        for held in list(owned_by(self._ledger, ctx.pod))[:_EXPLAINED]:
            reasons: tuple[str, ...] = (self._matcher.objection(ctx, affinity, held),)
            slot = held.slot  # it has none while it is taken off
            if not reasons[0] and slot in ctx.restored:
                with ctx.restoring(slot):
                    reasons = judge.verdict(ctx, slot).told.get(held.terms.name, ())
            found.extend(Term(f"reservation {held.terms.name}: {reason}", 1, unit="reservations") for reason in reasons if reason)
            for name in judge.wanted(ctx) if reasons and reasons[0] else ():
                if name in held.terms.allocatable:
                    found.append(Term(f"reservation {held.terms.name}: {name} left", held.left(name), held.terms.name, "base units"))
        return found
