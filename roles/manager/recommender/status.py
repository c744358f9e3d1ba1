"""What is written on a Recommendation: containers, bounds, conditions, and when it is worth a write (MGR-REC-02). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from koord.api.objects import Condition, Recommendation, RecommendationStatus
from koord.api.objects_meta import find_condition
from koord.api.quantity import QuantityError, parse_milli
from koord.api.times import TimeError, format_time, parse_time
from koord.api.v1alpha1.recommendation import (
    CONDITION_CHECKPOINT_FAILED,
    CONDITION_CONFIG_UNSUPPORTED,
    CONDITION_FETCHING_HISTORY,
    CONDITION_LOW_CONFIDENCE,
    CONDITION_MEMORY_GROWING,
    CONDITION_NO_OBJECTS_MATCHED,
    CONDITION_RESIZE_PENDING,
)
from roles.manager.recommender.estimate import Estimate

ANNOTATION_BOUNDS = "analysis.koordinator.sh/bounds"
REFRESH = 600.0  # seconds after which a status that barely moved is written all the same
NOTICEABLE = 0.01


class Finding(NamedTuple):
    """A condition that is true, with the reason and message that users read."""

    type: str
    reason: str
    message: str


CONDITIONS = (
    CONDITION_CONFIG_UNSUPPORTED,
    CONDITION_NO_OBJECTS_MATCHED,
    CONDITION_FETCHING_HISTORY,
    CONDITION_CHECKPOINT_FAILED,
    CONDITION_MEMORY_GROWING,
    CONDITION_RESIZE_PENDING,
    CONDITION_LOW_CONFIDENCE,
)


def memory_growing(estimates: Mapping[str, Estimate]) -> Finding | None:
    """MemoryGrowing while a container's highest memory grows by more than a percent each day: a leak, or a workload that grows."""
    found = [f"container {name}: by {estimate.growth:.1%} a day" for name, estimate in sorted(estimates.items()) if estimate.growth]
    return Finding(CONDITION_MEMORY_GROWING, "GrowsEveryDay", "; ".join(found)) if found else None


def low_confidence(estimates: Mapping[str, Estimate], status: RecommendationStatus | None = None) -> Finding | None:
    """LowConfidence while a container has less than a day of samples.

    Where nothing is known, the values that stand in the `status` are as good as they were when they were written.
    """
    weakest = min(estimates.items(), key=lambda item: (item[1].confidence, item[0]), default=None)
    if weakest is None:
        before = find_condition(status.conditions, CONDITION_LOW_CONFIDENCE) if status is not None and status.pod_status else None
        if before is None:
            return Finding(CONDITION_LOW_CONFIDENCE, "NoSamples", "nothing was measured yet; 1 day of history is wanted")
        return Finding(before.type, before.reason, before.message) if before.status == "True" else None
    if weakest[1].confidence >= 1:
        return None
    name, estimate = weakest
    days = f"{estimate.confidence:.2f}"
    return Finding(
        CONDITION_LOW_CONFIDENCE, "ShortHistory", f"container {name}: {estimate.samples} samples, {days} days of history; 1 is wanted"
    )


def containers(estimates: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """`status.podStatus.containerStatuses`, sorted by name."""
    return [{"containerName": name, "resources": estimates[name].target.resources()} for name in sorted(estimates)]


def bounds(estimates: Mapping[str, Estimate]) -> str:
    """The value of the bounds annotation."""
    found = {n: {"lower": e.lower.resources(), "upper": e.upper.resources()} for n, e in sorted(estimates.items())}
    return json.dumps(found, separators=(",", ":"))


def conditions(present: Sequence[Condition], findings: Sequence[Finding], now: float) -> list[dict[str, Any]]:
    """Every condition, True for the findings. The transition time moves with the status only."""
    true = {finding.type: finding for finding in findings}
    before = {condition.type: condition for condition in present}
    result = []
    for kind in CONDITIONS:
        finding, old = true.get(kind), before.get(kind)
        status = "True" if finding else "False"
        changed = old is None or old.status != status
        stamp = format_time(now) if changed or old is None or not old.last_transition_time else old.last_transition_time
        reason, message = (finding.reason, finding.message) if finding else ("AsExpected", "")
        result.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp})
    return result


def patch(recommendation: Recommendation, estimates: Mapping[str, Estimate], findings: Sequence[Finding], now: float) -> dict[str, Any]:
    """The merge patch of the status, {} when nothing is worth a write. Without estimates the last values stay."""
    status = recommendation.status
    wanted = conditions(status.conditions, findings, now)
    old = {c.type: c.status for c in status.conditions}
    moved = {c["type"]: c["status"] for c in wanted} != {kind: old.get(kind) for kind in CONDITIONS}
    listed = containers(estimates)
    if listed and not moved:
        moved = _moved(recommendation, listed) or now - _last(recommendation) >= REFRESH
    if not moved:
        return {}
    body: dict[str, Any] = {"conditions": wanted}
    if listed:
        body |= {"podStatus": {"containerStatuses": listed}, "updateTime": format_time(now)}
    return {"status": body}


def _last(recommendation: Recommendation) -> float:
    try:
        return parse_time(recommendation.status.update_time or "")
    except TimeError:
        return float("-inf")


def _moved(recommendation: Recommendation, listed: list[dict[str, Any]]) -> bool:
    """Whether a container came or went, or a value moved by more than one percent."""
    status = recommendation.status.pod_status
    present = {c.container_name: c.resources for c in status.container_statuses} if status else {}
    if present.keys() != {entry["containerName"] for entry in listed}:
        return True
    for entry in listed:
        old = present[entry["containerName"]]
        if old.keys() != entry["resources"].keys():
            return True
        for resource, text in entry["resources"].items():
            try:
                before, after = parse_milli(old[resource]), parse_milli(text)
            except QuantityError:
                return True
            if abs(after - before) > NOTICEABLE * before:
                return True
    return False
