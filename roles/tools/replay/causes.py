"""Which plugin makes the difference between two decisions about one pod, with the numbers. Pure (BEY-REPLAY-01)."""

from __future__ import annotations

from roles.scheduler.cycle.decision import SCHEDULED, Decision, FitFailure
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.replaying import NOT_ASKED, Turn
from roles.tools.replay.found import Difference

MOVED, LOST, GAINED, KEPT_OUT, OTHER = "another node", "no node any more", "a node now", "kept out of the queue", "preempts otherwise"


def difference(turn: Turn, then: Turn | None) -> Difference:
    """Of a turn that is decided otherwise; `then` is the same turn, decided once more as it was configured then."""
    before, after = turn.then.made, turn.today.made
    if after.verdict == NOT_ASKED:
        cause = turn.refusal.plugin if turn.refusal is not None else ""
        numbers = turn.refusal.message if turn.refusal is not None else "the pod does not wait for a node"
        return _told(turn, KEPT_OUT, cause, numbers)
    if before.node and after.node:
        return _moved(turn, then)
    if before.node:
        cause, why = _refuser(turn.decision, before.node)
        return _told(turn, LOST, cause or turn.today.rule, f"{before.node}: {why}" if why else _message(turn.decision))
    if after.node:
        cause, why = _refuser(then.decision if then is not None else None, after.node)
        return _told(
            turn, GAINED, cause or turn.then.rule, f"then {after.node}: {why}" if why else _message(then.decision if then else None)
        )
    numbers = f"victims then {len(before.victims)}, now {len(after.victims)}"
    return _told(turn, OTHER, turn.today.rule or turn.then.rule, numbers)


def _told(turn: Turn, what: str, cause: str, numbers: str) -> Difference:
    before, after = turn.then.made, turn.today.made
    told = [made.node or (f"nominated to {made.nominated}" if made.nominated else made.verdict) for made in (before, after)]
    return Difference(turn.pod, turn.now, what, cause or "unknown", told[0], told[1], numbers)


def _moved(turn: Turn, then: Turn | None) -> Difference:
    before, after = turn.then.made.node, turn.today.made.node
    cause, why = _refuser(turn.decision, before)
    if cause:
        return _told(turn, MOVED, cause, f"{before}: {why}")
    now, earlier = _margins(turn.decision, before, after), _margins(then.decision if then is not None else None, before, after)
    if not now:
        return _told(turn, MOVED, turn.today.rule, "")
    shift = {name: margin - earlier.get(name, (0.0, 0.0, 0.0))[0] for name, (margin, _, _) in now.items()}
    for name, (margin, _, _) in earlier.items():
        shift.setdefault(name, -margin)
    cause = max(shift, key=lambda name: shift[name])
    margin, at_before, at_after = now.get(cause, (0.0, 0.0, 0.0))
    was = earlier.get(cause)
    numbers = f"{cause} gives {after} {at_after:g} and {before} {at_before:g} points"
    if was is not None:
        numbers += f"; then {was[2]:g} and {was[1]:g}"
    elif earlier:
        numbers += "; then it gave none"
    return _told(turn, MOVED, cause, numbers)


def _margins(decision: Decision | None, before: str, after: str) -> dict[str, tuple[float, float, float]]:
    """By plugin: how many more weighted points one node gets than another, and the points of both."""
    if decision is None or decision.evaluation is None:
        return {}
    evaluation, cluster = decision.evaluation, decision.ctx.cluster
    slots = cluster.slot_of(before), cluster.slot_of(after)
    if min(slots) < 0 or any(evaluation.totals[slot] == INFEASIBLE for slot in slots):
        return {}
    first, second = (dict(evaluation.terms(slot)) for slot in slots)
    return {
        name: (second.get(name, 0.0) - first.get(name, 0.0), first.get(name, 0.0), second.get(name, 0.0))
        for name in dict.fromkeys((*first, *second))
    }


def _refuser(decision: Decision | None, node: str) -> tuple[str, str]:
    """The first plugin that refuses a node to the decision's pod, and why; "" for none."""
    if decision is None or decision.evaluation is None:
        return "", ""
    failure = decision.failure
    if failure is not None and failure.pre_filter is not None:
        return failure.pre_filter.plugin, failure.pre_filter.message
    slot = decision.ctx.cluster.slot_of(node)
    if slot < 0:
        return "", f"{node} is not there"
    if failure is None:
        failure = FitFailure(decision.ctx, decision.evaluation)
    elif failure.candidates is not None and not failure.candidates[slot]:
        return ", ".join(sorted(failure.pre_filter_plugins)), failure.excluded_reason
    for plugin, slots, codes in failure.first_codes():
        found = codes[slots == slot]
        if len(found):
            return plugin.name, ", ".join(plugin.rejection(decision.ctx, int(found[0])).reasons)
    name, rejection = failure.blocked.get(slot, ("", None))
    return name, ", ".join(rejection.reasons) if rejection is not None else ""


def _message(decision: Decision | None) -> str:
    return decision.message() if decision is not None and decision.verdict != SCHEDULED else ""
