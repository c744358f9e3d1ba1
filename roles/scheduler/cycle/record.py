"""Decisions as decision records: what was looked at, what refused how many nodes, which scores won (design: explain)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from koord.decisions.record import Number, Record, Subject, Term
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import SCHEDULED, Decision
from roles.scheduler.cycle.judgement import INFEASIBLE
from roles.scheduler.framework.gangs import ALONE, what_goes

ROLE = "scheduler"
FEATURES = ("SCH-FW-06",)
PREEMPTION = ("SCH-KS-12", "SCH-JP-01")
_SHOWN = 20  # victims that the preemptor's record names


def subject_of(pod: PodInfo) -> Subject:
    """The pod as a record's subject; a reserve pod is told of as its Reservation."""
    if pod.reservation:
        return Subject("Reservation", "", pod.reservation, pod.uid)
    return Subject("Pod", pod.namespace, pod.name, pod.pod.metadata.uid)


def record_of(decision: Decision, *, now: float, attempt: int = 1) -> Record:
    """The record of a decision. Terms of a Scheduled one are weighted scores by plugin and what plugins gave the pod, of any other the
    reasons with node counts and the numbers behind them."""
    numbers: dict[str, Number] = {"evaluated": decision.evaluated, "feasible": decision.feasible, "attempt": attempt}
    rule = ",".join(sorted(decision.rejected_by))
    if decision.verdict == SCHEDULED:
        evaluation = decision.evaluation
        numbers["score"] = decision.total
        numbers["ties"] = decision.ties
        numbers["node"] = decision.node
        node, scores = decision.node, evaluation.terms(decision.slot) if evaluation is not None else ()
        rule = evaluation.leading(scores) if evaluation is not None else ""
        if decision.advised:
            scores += (("extenders", decision.advised),)
        found = [Term(name, value, node, "points") for name, value in scores]
        for plugin in decision.framework.givers:
            found += plugin.placed(decision.ctx, decision.slot)
        terms = tuple(found)
        message = f"placed on {node}"
        if not rule:
            rule = max(scores, key=lambda item: item[1])[0] if scores else "only node"
    else:
        message = decision.message()
        counts = decision.failure.histogram() if decision.failure is not None else {}
        terms = tuple(Term(reason, count, unit="nodes") for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        plugins = decision.framework.plugins
        terms += tuple(term for name in sorted(decision.rejected_by & plugins.keys()) for term in plugins[name].explain(decision.ctx))
        if decision.nominate:
            numbers["nominated"] = decision.nominate
            numbers["victims"] = len(decision.victims)
            what = what_goes(decision.victims, decision.ctx.state.gangs)
            terms += tuple(Term(f"victim {pod.key}", pod.priority, what[pod.uid], "priority") for pod in decision.victims[:_SHOWN])
    return Record(ROLE, subject_of(decision.pod), now, decision.verdict, rule, message, numbers, terms, FEATURES)


def victim_records(decision: Decision, victims: Sequence[PodInfo] | None = None, *, now: float) -> Iterator[Record]:
    """For each of the victims (by default all of the decision's), for whom it has to go, and whether it goes by itself, because its job can
    spare it, or with all of its job."""
    victims = decision.victims if victims is None else victims
    what = what_goes(victims, decision.ctx.state.gangs)
    rule, numbers = "preemption", {"priority": decision.pod.priority, "victims": len(victims)}
    for pod in victims:
        part = "" if what[pod.uid] == ALONE else f"; {what[pod.uid]}"
        yield Record(
            ROLE, subject_of(pod), now, "Preempted", rule, f"makes room for {decision.pod.key}{part}",
            {**numbers, "node": pod.node_name or decision.nominate or ""}, (), PREEMPTION,
        )  # fmt: skip


def score_table(decision: Decision, top: int) -> str:
    """The weighted scores of the best nodes, one line a node (`--debug-scores`)."""
    evaluation = decision.evaluation
    if evaluation is None or not len(evaluation.totals):
        return f"{decision.pod.key}: no scores"
    totals = evaluation.totals
    order = [slot for slot in np.argsort(-totals, kind="stable")[:top].tolist() if totals[slot] != INFEASIBLE]
    lines = [f"{decision.pod.key}: {decision.feasible} feasible of {decision.evaluated} nodes, chosen {decision.node}"]
    for slot in order:
        scores = " ".join(f"{name}={value:g}" for name, value in evaluation.terms(slot))
        lines.append(f"  {decision.framework.handle.cluster.name_of(slot)} {totals[slot]:g} {scores}")
    return "\n".join(lines)
