"""The cluster of the scenario "hot spot": what is deployed where, and what relieves it (pure).

Two workloads ask for the same, but only one uses it: a scheduler that counts requests sees even nodes, and real usage tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koord.api.kinds import REPLICASETS
from roles.sandbox import profile
from roles.sandbox.builders import APP_LABEL, SCHEDULER, container, obj
from roles.sandbox.nodes import fleet
from roles.sandbox.scenario import Nodes, Scenario, Scheduler, Service

NAMESPACE = "shop"
DEFAULT_NODES = 6
CPUS = 16
MEMORY_GIB = 64
POD_CPU = "2"
POD_MEMORY = "4Gi"
LOW_PERCENT, HIGH_PERCENT = 30, 50
NODES_PER_HOT = 3  # one node in three is hot, so that the others have the room that its pods need


@dataclass(frozen=True, slots=True)
class Workload:
    """A ReplicaSet, and how much of its request each of its pods uses, in percent."""

    name: str
    usage_percent: int
    pods_per_node: int


QUIET = Workload("catalog", 15, 3)


def busy(node: int) -> Workload:
    """The workload of a hot node, one each, so that nodes are relieved side by side: 7 x 1.8 CPU of 16 is about 80 percent."""
    return Workload(f"checkout-{node:02d}", 90, 7)


def hot_nodes(count: int) -> int:
    """How many of `count` nodes start hot; they come first by name."""
    return max(1, count // NODES_PER_HOT)


def places(count: int) -> list[tuple[Workload, int]]:
    """Every pod at the start: its workload and the index of its node."""
    hot = hot_nodes(count)
    deployed = [(busy(node) if node < hot else QUIET, node) for node in range(count)]
    return [(workload, node) for workload, node in deployed for _ in range(workload.pods_per_node)]


def template(workload: Workload) -> dict[str, Any]:
    """The pod template: labels, how the pod's usage runs, and what it asks for."""
    return {
        "metadata": {
            "labels": {APP_LABEL: workload.name},
            "annotations": {fleet.CURVE_ANNOTATION: "steady", fleet.USAGE_PERCENT_ANNOTATION: str(workload.usage_percent)},
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "terminationGracePeriodSeconds": 1,
            "containers": [container("app", f"sandbox/{workload.name}", {"cpu": POD_CPU, "memory": POD_MEMORY})],
        },
    }


def replicaset(workload: Workload, replicas: int) -> dict[str, Any]:
    """The ReplicaSet of a workload."""
    labels = {APP_LABEL: workload.name}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template(workload)}
    return obj(REPLICASETS, workload.name, NAMESPACE, labels=labels, spec=spec)


def scenario(nodes: int) -> Scenario:
    """The sandbox that it runs in: quick reports, and a descheduler that acts on real usage after two hot rounds."""
    return Scenario(
        title="A hot spot goes away",
        nodes=Nodes(count=nodes, cpus=CPUS, memory_gib=MEMORY_GIB, pods_per_node=0, batch_pods=0),
        service=Service(namespace=NAMESPACE),
        slo_controller_config={
            "colocation-config": {"enable": True, "metricAggregateDurationSeconds": 10, "metricReportIntervalSeconds": 1},
        },
        scheduler=Scheduler(configuration=scheduler()),
        descheduler_configuration=descheduler(),
    )


def scheduler() -> dict[str, Any]:
    """What a reservation needs, and LoadAware, so that no pod moves to a loaded node."""
    enabled = {
        "preFilter": ("Reservation",),
        "filter": ("Reservation", "LoadAwareScheduling"),
        "postFilter": ("Reservation", "DefaultPreemption"),
        "preScore": ("Reservation",),
        "reserve": ("Reservation", "LoadAwareScheduling"),
        "preBind": ("Reservation", "DefaultPreBind"),
        "bind": ("Reservation", "DefaultBinder"),
    }
    return profile.component(plugins=profile.points(enabled, {"Reservation": 5000, "LoadAwareScheduling": 1}))


def descheduler() -> dict[str, Any]:
    """LowNodeLoad and MigrationController as an operator would write them, in a hurry."""
    load = {
        "lowThresholds": {"cpu": LOW_PERCENT},
        "highThresholds": {"cpu": HIGH_PERCENT},
        "anomalyCondition": {"consecutiveAbnormalities": 2},
        "evictableNamespaces": {"include": [NAMESPACE]},
    }
    migration = {
        "maxMigratingPerWorkload": "50%",
        "maxUnavailablePerWorkload": "50%",
        "objectLimiters": {"workload": {"duration": "0s"}},
        "defaultJobTTL": "60s",
    }
    return {
        "deschedulingInterval": "2s",
        "profiles": [
            {
                "name": "hot-spot",
                "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                "pluginConfig": [{"name": "LowNodeLoad", "args": load}, {"name": "MigrationController", "args": migration}],
            }
        ],
    }
