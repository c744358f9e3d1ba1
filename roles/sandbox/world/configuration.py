"""How the roles of a world are configured: as they are installed, with shorter times, so that minutes show what takes hours."""

from __future__ import annotations

from typing import Any

import orjson

from koord.api.deviceslices import DRIVER
from koord.api.kinds import DEVICECLASSES, RESOURCECLAIMTEMPLATES, Kind
from roles.sandbox import objects, profile

REPORT = 20
"""Seconds between two reports of a node, in a world of the usual size."""
LOW, HIGH = 50, 65
"""Percent of a node's CPU below which it takes pods, and above which it is hot."""
ROUND = 10.0  # seconds between two rounds of the descheduler
REVOKED_AFTER = 10.0  # seconds for which a quota may use what others want back
PROFILES = ("load", "both", "community")
"""What deschedulers run: LowNodeLoad through MigrationController, the community's plugins through DefaultEvictor, or both."""
MOST, MOST_OF_NODE = 6, 3
"""Pods that a round takes away at most where the community's plugins run, in all and of a node."""
OLD = 75  # seconds after which a pod of AGED leaves
TAINT, POOL, LOUD = "world/maintenance", "world/pool", "world/loud"
"""A taint of nodes, a label of nodes and one of pods."""
HERE, THERE = "here", "there"
"""The pools of nodes."""
AGED = "aged"  # the workload whose pods are not to get old
QUOTAS = {"team-a": (4, 14), "team-b": (6, 14)}
"""CPUs that each quota is guaranteed, and that it may use at most: more than there is, so that one lends to the other."""


def claims(namespace: str) -> list[tuple[Kind, dict[str, Any]]]:
    """What claims of cards need beside slices: a class, and templates for one card and for two."""
    device_class = {"metadata": {"name": "cards"}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
    made: list[tuple[Kind, dict[str, Any]]] = [(DEVICECLASSES, device_class)]
    for count in (1, 2):
        request = {"name": "cards", "exactly": {"deviceClassName": "cards", "count": count}}
        meta = {"name": f"cards-{count}", "namespace": namespace}
        made.append((RESOURCECLAIMTEMPLATES, {"metadata": meta, "spec": {"spec": {"devices": {"requests": [request]}}}}))
    return made


def colocation(report: int) -> str:
    """What the cluster asks of its agents, with a report each `report` seconds. A node that misses three offers nothing."""
    strategy = {
        "enable": True,
        "degradeTimeMinutes": report * 3 // 60,
        "metricReportIntervalSeconds": report,
        "metricAggregateDurationSeconds": 60,
        "updateTimeThresholdSeconds": 60,
    }
    return orjson.dumps(strategy).decode()


def scheduler(retry: float, report: int) -> dict[str, Any]:
    """The scheduler's configuration; a look at the lease each `retry` seconds."""
    arguments = profile.plugin_config()
    aware = arguments["LoadAwareScheduling"]
    arguments["LoadAwareScheduling"] = {**aware, "nodeMetricExpirationSeconds": max(aware["nodeMetricExpirationSeconds"], report * 3)}
    revoking = {"monitorAllQuotas": True, "delayEvictTime": f"{REVOKED_AFTER:g}s", "revokePodInterval": "2s"}
    arguments["ElasticQuota"] = {**arguments["ElasticQuota"], **revoking}
    made = profile.configuration(arguments)
    made["leaderElection"] = _election("koord-scheduler", retry)
    return made


def descheduler(retry: float, report: int, profiles: str = "load") -> dict[str, Any]:
    """The descheduler's, with these of PROFILES; a look at the lease each `retry` seconds."""
    made: dict[str, Any] = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "leaderElection": _election("koord-descheduler", retry),
        "deschedulingInterval": f"{ROUND * report / REPORT:g}s",
        "profiles": [profile for name, profile in (("community", _community()), ("load", _load(report))) if profiles in (name, "both")],
    }
    if profiles != "load":
        made |= {"maxNoOfPodsToEvictTotal": MOST, "maxNoOfPodsToEvictPerNode": MOST_OF_NODE}
    return made


def _load(report: int) -> dict[str, Any]:
    """LowNodeLoad through MigrationController, reservation first."""
    relief = {
        "nodeMetricExpirationSeconds": max(180, report * 3),
        "lowThresholds": {"cpu": LOW, "memory": 70},
        "highThresholds": {"cpu": HIGH, "memory": 90},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
    }
    migration = {"defaultJobTTL": "60s", "objectLimiters": {"workload": {"duration": "30s"}}}
    return {
        "name": "koord-descheduler",
        "pluginConfig": [{"name": "LowNodeLoad", "args": relief}, {"name": "MigrationController", "args": migration}],
        "plugins": {
            "deschedule": {"disabled": [{"name": "*"}]},
            "balance": {"enabled": [{"name": "LowNodeLoad"}]},
            "evict": {"disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}]},
        },
    }


def _community() -> dict[str, Any]:
    """Plugins adapted from the community through DefaultEvictor, where another node would take the pod."""
    deschedule: dict[str, dict[str, Any]] = {
        "RemovePodsViolatingNodeTaints": {},
        "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
        "RemovePodsViolatingInterPodAntiAffinity": {},
        "RemoveFailedPods": {"minPodLifetimeSeconds": 10},
        "PodLifeTime": {"maxPodLifeTimeSeconds": OLD, "labelSelector": {"matchLabels": {"app": AGED}}},
    }
    balance: dict[str, dict[str, Any]] = {"RemoveDuplicates": {}, "RemovePodsViolatingTopologySpreadConstraint": {}}
    only = [{"name": "*"}]
    evictor = {"disabled": only, "enabled": [{"name": "DefaultEvictor"}]}
    given = {**deschedule, **balance, "DefaultEvictor": {"nodeFit": True}}
    return {
        "name": "community",
        "pluginConfig": [{"name": name, "args": args} for name, args in given.items()],
        "plugins": {
            "deschedule": {"disabled": only, "enabled": [{"name": name} for name in deschedule]},
            "balance": {"disabled": only, "enabled": [{"name": name} for name in balance]},
            "evict": evictor,
            "filter": evictor,
        },
    }


def _election(name: str, retry: float) -> dict[str, Any]:
    namespace = objects.SYSTEM_NAMESPACE
    return {"leaderElect": True, "resourceName": name, "resourceNamespace": namespace, "retryPeriod": f"{retry:g}s"}
