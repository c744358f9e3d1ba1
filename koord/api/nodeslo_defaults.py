"""Defaults of the NodeSLO strategies as plain data in wire form (API-NSLO-01).

Manager and koordlet merge JSON objects; neither needs models for that. Every function returns a fresh copy that the caller may change.
"""

from __future__ import annotations

import copy
from typing import Any, Final

# What the manager writes when the ConfigMap has no such key.
_THRESHOLD: Final[dict[str, Any]] = {
    "enable": False,
    "cpuSuppressThresholdPercent": 65,
    "cpuSuppressPolicy": "cpuset",
    "memoryEvictThresholdPercent": 70,
    "cpuEvictPolicy": "evictByRealLimit",
}
_CPU_BURST: Final[dict[str, Any]] = {
    "policy": "none",
    "cpuBurstPercent": 1000,
    "cfsQuotaBurstPercent": 300,
    "cfsQuotaBurstPeriodSeconds": -1,
    "sharePoolThresholdPercent": 50,
}
_SYSTEM: Final[dict[str, Any]] = {"totalNetworkBandwidth": "0"}

# Key in resourceQOSStrategy by class; NONE holds the values that switch a class off.
QOS_CLASS_KEYS: Final[dict[str, str]] = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass", "SYSTEM": "systemClass"}

# groupIdentity, coreExpeller, end of the CAT range, wmarkRatio, wmarkScalePermill, wmarkMinAdj
_BY_CLASS: Final[dict[str, tuple[int, bool, int, int, int, int]]] = {
    "LSR": (2, True, 100, 95, 20, -25),
    "LS": (2, True, 100, 95, 20, -25),
    "BE": (-1, False, 30, 95, 20, 50),
    "SYSTEM": (0, False, 100, 0, 50, 0),
    "NONE": (0, False, 100, 0, 50, 0),
}


def resource_threshold_strategy() -> dict[str, Any]:
    """resourceUsedThresholdWithBE."""
    return copy.deepcopy(_THRESHOLD)


def cpu_burst_strategy() -> dict[str, Any]:
    """cpuBurstStrategy."""
    return copy.deepcopy(_CPU_BURST)


def system_strategy() -> dict[str, Any]:
    """systemStrategy."""
    return copy.deepcopy(_SYSTEM)


def network_qos() -> dict[str, Any]:
    """networkQOS of every class."""
    return {"enable": False, "ingressRequest": 0, "ingressLimit": 0, "egressRequest": 0, "egressLimit": 0}


def resource_qos(qos_class: str) -> dict[str, Any]:
    """The recommended quality of a class: LSR, LS, BE, SYSTEM, or NONE (switched off). Every ``enable`` is false."""
    identity, expeller, cat_end, wmark_ratio, wmark_scale, wmark_min_adj = _BY_CLASS[qos_class]
    return {
        "cpuQOS": {"enable": False, "groupIdentity": identity, "schedIdle": 0, "coreExpeller": expeller},
        "memoryQOS": {
            "enable": False,
            "minLimitPercent": 0,
            "lowLimitPercent": 0,
            "throttlingPercent": 0,
            "wmarkRatio": wmark_ratio,
            "wmarkScalePermill": wmark_scale,
            "wmarkMinAdj": wmark_min_adj,
            "priorityEnable": 0,
            "priority": 0,
            "oomKillGroup": 0,
        },
        "resctrlQOS": {"enable": False, "catRangeStartPercent": 0, "catRangeEndPercent": cat_end, "mbaPercent": 100},
        "networkQOS": network_qos(),
        "blkioQOS": {"enable": False},
    }


def recommended_resource_qos_strategy() -> dict[str, Any]:
    """resourceQOSStrategy with the recommended values of every class; the root cgroup has disks only."""
    return {
        "policies": {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"},
        **{key: resource_qos(qos_class) for qos_class, key in QOS_CLASS_KEYS.items()},
        "cgroupRoot": {"blkioQOS": {"enable": False}},
    }
