"""How the roles of a world are configured: as they are installed, with shorter times, so that minutes show what takes hours."""

from __future__ import annotations

from typing import Any

import orjson

from roles.sandbox import objects, profile

REPORT = 20
"""Seconds between two reports of a node, in a world of the usual size."""
LOW, HIGH = 50, 65
"""Percent of a node's CPU below which it takes pods, and above which it is hot."""
ROUND = 10.0  # seconds between two rounds of the descheduler
REVOKED_AFTER = 10.0  # seconds for which a quota may use what others want back
QUOTAS = {"team-a": (4, 14), "team-b": (6, 14)}
"""CPUs that each quota is guaranteed, and that it may use at most: more than there is, so that one lends to the other."""


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


def descheduler(retry: float, report: int) -> dict[str, Any]:
    """The descheduler's: LowNodeLoad through MigrationController, reservation first; a look at the lease each `retry` seconds."""
    relief = {
        "nodeMetricExpirationSeconds": max(180, report * 3),
        "lowThresholds": {"cpu": LOW, "memory": 70},
        "highThresholds": {"cpu": HIGH, "memory": 90},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
    }
    migration = {"defaultJobTTL": "60s", "objectLimiters": {"workload": {"duration": "30s"}}}
    return {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "leaderElection": _election("koord-descheduler", retry),
        "deschedulingInterval": f"{ROUND * report / REPORT:g}s",
        "profiles": [
            {
                "name": "koord-descheduler",
                "pluginConfig": [{"name": "LowNodeLoad", "args": relief}, {"name": "MigrationController", "args": migration}],
                "plugins": {
                    "deschedule": {"disabled": [{"name": "*"}]},
                    "balance": {"enabled": [{"name": "LowNodeLoad"}]},
                    "evict": {"disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}]},
                },
            }
        ],
    }


def _election(name: str, retry: float) -> dict[str, Any]:
    namespace = objects.SYSTEM_NAMESPACE
    return {"leaderElect": True, "resourceName": name, "resourceNamespace": namespace, "retryPeriod": f"{retry:g}s"}
