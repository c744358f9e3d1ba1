"""The scheduler's profile that koord is installed with, as the sandbox runs it (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roles.sandbox.builders import SCHEDULER

Obj = dict[str, Any]

_ENABLED: dict[str, tuple[str, ...]] = {
    "preEnqueue": ("Coscheduling",),
    "preFilter": ("SchedulingHint", "Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota"),
    "filter": ("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"),
    "postFilter": ("DynamicResources", "Reservation", "Coscheduling", "ElasticQuota"),
    "preScore": ("Reservation", "Coscheduling"),
    "reserve": ("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"),
    "permit": ("Coscheduling",),
    "preBind": ("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    "bind": ("Reservation", "DefaultBinder"),
    "postBind": ("Coscheduling",),
}
_INSTEAD = ("postFilter", "bind")
_WEIGHTS = {
    "LoadAwareScheduling": 1, "NodeNUMAResource": 1, "DeviceShare": 20, "ScarceResourceAvoidance": 20, "Reservation": 5000,
    "Coscheduling": 1,
}  # fmt: skip
_SCARCE = (
    "nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
)  # fmt: skip


def plugins() -> Obj:
    """The `plugins` of the shipped profile (configs/install/30-config.yaml; a test holds the two together)."""
    return points(_ENABLED, _WEIGHTS)


def points(enabled: Mapping[str, Sequence[str]], weights: Mapping[str, int]) -> Obj:
    """The `plugins` of a profile: what is enabled by extension point, and the weights of what scores."""
    made: Obj = {}
    for point, listed in enabled.items():
        made[point] = {"enabled": [{"name": name} for name in listed]}
        if point in _INSTEAD:
            made[point]["disabled"] = [{"name": "*"}]
    made["score"] = {"enabled": [{"name": name, "weight": weight} for name, weight in weights.items()]}
    return made


def plugin_config() -> Obj:
    """Arguments by plugin, as shipped."""
    resources = ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
    fit = {"type": "LeastAllocated", "resources": [{"name": name, "weight": 1} for name in resources]}
    return {
        "NodeResourcesFit": {"scoringStrategy": fit},
        "LoadAwareScheduling": {
            "filterExpiredNodeMetrics": False,
            "nodeMetricExpirationSeconds": 300,
            "resourceWeights": {"cpu": 1, "memory": 1},
            "usageThresholds": {"cpu": 0, "memory": 0},
            "estimatedScalingFactors": {"cpu": 85, "memory": 70},
        },
        "DeviceShare": {"scoringStrategy": {"type": "LeastStranded"}},
        "ScarceResourceAvoidance": {"resources": list(_SCARCE)},
        "ElasticQuota": {"quotaGroupNamespace": "koordinator-system"},
        "Coscheduling": {"awareNetworkTopology": True, "enablePreemption": True},
    }


def configuration(arguments: Obj) -> Obj:
    """A KubeSchedulerConfiguration of that profile with these arguments by plugin."""
    return component(plugins=plugins(), pluginConfig=[{"name": name, "args": args} for name, args in arguments.items()])


def component(**profile: Any) -> Obj:
    """A KubeSchedulerConfiguration of this one profile."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": SCHEDULER, **profile}],
    }
