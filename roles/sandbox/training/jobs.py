"""The objects of the training jobs: gangs, their workers, quotas and priorities (pure)."""

from __future__ import annotations

from typing import Any

import orjson

from koord.api.kinds import ELASTICQUOTAS, PODGROUPS
from koord.api.names import LABEL_POD_GROUP, LABEL_QUOTA_NAME
from roles.sandbox.objects import APP_LABEL, SCHEDULER
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
    return {
        "apiVersion": PODGROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": notes},
        "spec": {"minMember": members},
    }


def workers(name: str, count: int, *, priority: str, in_gang: bool = True, quota: str = "", node: str = "") -> list[Obj]:
    """The workers of a job, in its gang or each by itself; with `node` all are bound to it from the start."""
    labels = {APP_LABEL: name}
    if in_gang:
        labels[LABEL_POD_GROUP] = name
    if quota:
        labels[LABEL_QUOTA_NAME] = quota
    amounts = {"cpu": str(WORKER_CPUS), "memory": f"{WORKER_GIB}Gi"}
    spec: Obj = {
        "schedulerName": SCHEDULER,
        "priorityClassName": priority,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "worker", "image": "sandbox/worker", "resources": {"requests": amounts, "limits": amounts}}],
    }
    if node:
        spec["nodeName"] = node
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number:02d}", "namespace": NAMESPACE, "labels": dict(labels)},
            "spec": spec,
        }
        for number in range(count)
    ]


def quota(name: str, *, least: int, most: int) -> Obj:
    """A quota in workers: `least` are guaranteed, up to `most` may be borrowed from others."""

    def amounts(count: int) -> dict[str, str]:
        return {"cpu": str(count * WORKER_CPUS), "memory": f"{count * WORKER_GIB}Gi"}

    return {
        "apiVersion": ELASTICQUOTAS.api_version,
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"min": amounts(least), "max": amounts(most)},
    }
