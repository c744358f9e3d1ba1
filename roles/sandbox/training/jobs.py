"""The objects of the training jobs: gangs, their workers, quotas and priorities (pure)."""

from __future__ import annotations

from typing import Any

import orjson

from koord.api.kinds import ELASTICQUOTAS, PODGROUPS, PODS
from koord.api.names import LABEL_POD_GROUP, LABEL_QUOTA_NAME
from roles.sandbox.builders import APP_LABEL, SCHEDULER, container, obj
from roles.sandbox.training.setup import WORKER_CPUS, WORKER_GIB

Obj = dict[str, Any]

NAMESPACE = "training"
LOW, MIDDLE, HIGH = "sweep", "research", "production"
PRIORITIES = ((LOW, 9100), (MIDDLE, 9200), (HIGH, 9900))
GATHER = "gang.scheduling.koordinator.sh/network-topology-spec"


def gang(name: str, members: int, *, gather: str = "") -> Obj:
    """A PodGroup that needs all of its members; with `gather` all below one node of that layer."""
    notes = {}
    if gather:
        notes[GATHER] = orjson.dumps({"gatherStrategy": [{"layer": gather, "strategy": "MustGather"}]}).decode()
    return obj(PODGROUPS, name, NAMESPACE, annotations=notes, spec={"minMember": members})


def workers(name: str, count: int, *, priority: str, in_gang: bool = True, quota: str = "", node: str = "") -> list[Obj]:
    """The workers of a job, in its gang or each by itself; with `node` all are bound to it from the start."""
    labels = {APP_LABEL: name}
    if in_gang:
        labels[LABEL_POD_GROUP] = name
    if quota:
        labels[LABEL_QUOTA_NAME] = quota
    amounts = _amounts(1)
    spec: Obj = {
        "schedulerName": SCHEDULER,
        "priorityClassName": priority,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container("worker", "sandbox/worker", amounts, amounts)],
    }
    if node:
        spec["nodeName"] = node
    return [obj(PODS, f"{name}-{number:02d}", NAMESPACE, labels=dict(labels), spec=spec) for number in range(count)]


def quota(name: str, *, least: int, most: int) -> Obj:
    """A quota in workers: `least` are guaranteed, up to `most` may be borrowed from others."""
    return obj(ELASTICQUOTAS, name, NAMESPACE, spec={"min": _amounts(least), "max": _amounts(most)})


def _amounts(count: int) -> dict[str, str]:
    """What so many workers ask for."""
    return {"cpu": str(count * WORKER_CPUS), "memory": f"{count * WORKER_GIB}Gi"}
