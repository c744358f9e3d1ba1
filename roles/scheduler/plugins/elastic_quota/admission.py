"""Whether a quota has room for a pod, and what is said when it has not (SCH-EQ-07). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.accounting.resources import ResourceVector, add, format_value, is_bytes, only
from koord.decisions.record import Term
from roles.scheduler.plugins.elastic_quota.model import OUTSIDE, ROOT
from roles.scheduler.plugins.elastic_quota.tree import Quota


def show(amounts: Mapping[str, int]) -> str:
    """A ResourceList for people: `cpu:4,memory:8Gi`."""
    return ",".join(f"{name}:{format_value(name, amounts[name])}" for name in sorted(amounts)) or "<empty>"


def exceeded(wanted: Mapping[str, int], limit: Mapping[str, int]) -> list[str]:
    """Resources of which more is wanted than the limit, which does not concern those it does not name."""
    return sorted(name for name, amount in wanted.items() if name in limit and amount > limit[name])


def limit_of(quota: Quota, *, runtime: bool) -> ResourceVector:
    """What admission holds a quota to: its runtime, or its max where runtimes are switched off."""
    return quota.limit() if runtime else quota.spec.max


def refusal(quota: Quota, request: ResourceVector, *, preemptible: bool, runtime: bool) -> str:
    """Why a pod that requests so much (of the resources in the quota's max) is not let in, "" when it is."""
    limit = limit_of(quota, runtime=runtime)
    over = exceeded(add(quota.used, request), limit) if limit else []
    if over:
        return _text("Insufficient quotas", f"quotaName: {quota.name}", "runtime", limit, quota.used, request, over)
    if not preemptible:
        over = exceeded(add(quota.non_preemptible_used, request), quota.spec.min)
        if over:
            what, used = "Insufficient non-preemptible quotas", quota.non_preemptible_used
            return _text(what, f"quotaName: {quota.name}", "min", quota.spec.min, used, request, over, used_name="nonPreemptibleUsed")
    return ""


def parent_refusal(quota: Quota, request: ResourceVector, *, runtime: bool) -> str:
    """The same for the ancestors below the root, looking at what the pod requests only (enableCheckParentQuota)."""
    names = [quota.name]
    for ancestor in quota.path()[1:]:
        if ancestor.name == ROOT:
            break
        names.append(ancestor.name)
        limit = limit_of(ancestor, runtime=runtime)
        over = exceeded(only(add(ancestor.used, request), request), limit)
        if over:
            where = f"quotaNameTopo: [{' '.join(reversed(names))}], quotaName: {ancestor.name}"
            return _text("Insufficient quotas", where, "runtime", limit, ancestor.used, request, over)
    return ""


def _text(
    what: str, where: str, limit_name: str, limit: ResourceVector, used: ResourceVector, request: ResourceVector, over: Sequence[str],
    *, used_name: str = "used",
) -> str:  # fmt: skip
    return (
        f"{what}, {where}, {limit_name}: {show(limit)}, {used_name}: {show(used)}, "
        f"pod's request: {show(request)}, exceedDimensions: [{' '.join(over)}]"
    )


def chain(quota: Quota, request: ResourceVector) -> list[Term]:
    """The quotas from the root to the pod's, each with its numbers for what the pod requests; `value` is what would be left."""
    terms: list[Term] = []
    for member in reversed(quota.path()):
        for name in sorted(request):
            runtime = None if member.name in OUTSIDE else member.runtime.get(name)
            numbers = (
                ("used", member.used.get(name, 0)),
                ("request", member.request.get(name, 0)),
                ("runtime", runtime),
                ("min", member.spec.min.get(name)),
                ("max", member.spec.max.get(name)),
                ("pod", request[name]),
            )
            note = " ".join(f"{key}={'unlimited' if value is None else format_value(name, value)}" for key, value in numbers)
            left = 0 if runtime is None else runtime - member.used.get(name, 0) - request[name]
            unit = "milli" if name == "cpu" else "bytes" if is_bytes(name) else "units"
            terms.append(Term(f"quota {member.name}: {name}", left, note, unit))
    return terms
