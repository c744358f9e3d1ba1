"""From objects to what the page shows (pure). CPU in milli-cores, memory in bytes, times in Unix seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koord.api import names
from koord.api.gangs import gang_name
from koord.api.objects import Pod
from koord.decisions.record import Record
from roles.tools.facts import time_of
from roles.tools.headline import headline, short
from roles.tools.quota import amounts
from roles.tools.top.rows import Row

NODE_COLUMNS = (
    "name", "cpu", "used", "prod", "mid", "batch", "system", "offered", "requested", "allowance", "memory", "memoryUsed",
    "batchMemory", "batchMemoryRequested", "pods", "reported", "marks",
)  # fmt: skip
MOST_PENDING = 200
MOST_TEXT = 160
UNLIMITED = 1e15
"""What a quota without a limit has in place of one."""
_MOST_DEPTH = 16


def node(row: Row, pods: int, now: float) -> list[Any]:
    """A node in the order of NODE_COLUMNS. `reported` is when it last reported, None before the first time."""
    return [
        row.name,
        row.capacity.cpu,
        row.used.cpu,
        row.prod.cpu,
        row.mid.cpu,
        row.batch.cpu,
        row.system.cpu,
        row.batch_allocatable.cpu,
        row.batch_requested.cpu,
        row.allowance,
        row.capacity.memory,
        row.used.memory,
        row.batch_allocatable.memory,
        row.batch_requested.memory,
        pods,
        None if row.age is None else round(now - row.age),
        list(row.marks),
    ]


def pending(pods: Iterable[Pod]) -> dict[str, Any]:
    """Pods without a node: how many, by reason, and the oldest of them with what the scheduler says."""
    found = []
    reasons: Counter[str] = Counter()
    for pod in pods:
        if pod.spec.node_name or pod.status.phase not in ("", "Pending"):
            continue
        reason, message = _why_pending(pod)
        reasons[reason] += 1
        found.append(
            {
                "namespace": pod.metadata.namespace,
                "name": pod.metadata.name,
                "since": time_of(pod.metadata.creation_timestamp),
                "reason": reason,
                "message": message,
                "qos": pod.metadata.labels.get(names.LABEL_POD_QOS, ""),
                "gang": gang_name(pod.metadata.labels, pod.metadata.annotations),
            }
        )
    found.sort(key=lambda one: (one["since"] or 0.0, one["namespace"], one["name"]))
    return {"count": len(found), "reasons": dict(reasons.most_common()), "pods": found[:MOST_PENDING]}


def _why_pending(pod: Pod) -> tuple[str, str]:
    if pod.spec.scheduling_gates:
        return "SchedulingGated", "held back by " + ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason or "Unschedulable", condition.message
    return "NotTried", f"no scheduler has said anything yet (schedulerName {pod.spec.scheduler_name or 'default-scheduler'})"


def quotas(objects: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """ElasticQuotas as a list in the order of their tree, each with its depth; children that name nobody's child stand at the top."""
    found = {}
    for obj in objects:
        metadata, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
        labels = metadata.get("labels") or {}
        found[str(metadata.get("name", ""))] = {
            "name": str(metadata.get("name", "")),
            "namespace": str(metadata.get("namespace", "")),
            "parent": str(labels.get(names.LABEL_QUOTA_PARENT, "")),
            "min": resources(spec.get("min")),
            "max": resources(spec.get("max")),
            "used": resources(status.get("used")),
        }
    children: dict[str, list[str]] = {}
    for name, quota in found.items():
        parent = quota["parent"] if quota["parent"] in found and quota["parent"] != name else ""
        children.setdefault(parent, []).append(name)
    out: list[dict[str, Any]] = []
    seen: set[str] = set()

    def walk(name: str, depth: int) -> None:
        if name in seen or depth > _MOST_DEPTH:
            return
        seen.add(name)
        out.append({**found[name], "depth": depth})
        for child in sorted(children.get(name, ())):
            walk(child, depth + 1)

    for top in sorted(children.get("", ())):
        walk(top, 0)
    for name in sorted(set(found) - seen):  # a circle of parents hangs on nothing
        walk(name, 0)
    return out


def resources(listed: Any) -> dict[str, float]:
    """A ResourceList as numbers: CPU in cores, the rest in its unit. What cannot be read, or limits nothing, is left out."""
    read = amounts(listed if isinstance(listed, Mapping) else None)
    out = {name: value / 1000 if name == names.RESOURCE_CPU else value for name, value in read.items()}
    return {name: value for name, value in out.items() if value < UNLIMITED}


def decision(record: Record) -> dict[str, Any]:
    """A record as a line of the feed."""
    return {
        "time": record.time,
        "role": record.role,
        "kind": record.subject.kind,
        "namespace": record.subject.namespace,
        "name": record.subject.name,
        "verdict": record.verdict,
        "rule": record.rule,
        "message": short(headline(record) or record.message, MOST_TEXT),
    }


def totals(rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Sums over nodes in the order of NODE_COLUMNS."""
    summed = ("cpu", "used", "prod", "mid", "batch", "system", "offered", "requested", "memory", "memoryUsed", "pods")
    places = {name: NODE_COLUMNS.index(name) for name in summed}
    return {name: sum(row[place] for row in rows) for name, place in places.items()}
