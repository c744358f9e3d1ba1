"""What a kubelet writes into a cgroup for given requests and limits: pure arithmetic, no file is touched here.

Units: CPU in milli-CPU, memory in bytes, quota and period in microseconds. The formulas are the kubelet's published ones
(`cpu.shares` = milli * 1024 / 1000, quota = milli * period / 1000), so that a koordlet beside this node agent finds what it
would find on any other node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MIN_SHARES = 2
MAX_SHARES = 262_144
CFS_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000

OOM_GUARANTEED = -997
OOM_BEST_EFFORT = 1000

Resources = Mapping[str, int]
"""`cpu` in milli-CPU and `memory` in bytes; names that are missing are not set."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The settings of one cgroup. `cpu_quota_us` and `memory_bytes` are -1 when there is no limit."""

    cpu_shares: int
    cpu_quota_us: int
    memory_bytes: int


def shares_of(milli: int) -> int:
    """`cpu.shares` of a CPU request in milli-CPU, clamped to what the kernel accepts (2..262144)."""
    if milli <= 0:
        return MIN_SHARES
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_of(milli: int) -> int:
    """`cpu.cfs_quota_us` of a CPU limit in milli-CPU over the default period; -1 without a limit, never below 1 ms."""
    if milli <= 0:
        return -1
    return max(milli * CFS_PERIOD_US // 1000, MIN_QUOTA_US)


def weight_of(shares: int) -> int:
    """cgroup v2 `cpu.weight` of v1 shares: the linear map of 2..262144 onto 1..10000."""
    return 1 + ((min(max(shares, MIN_SHARES), MAX_SHARES) - 2) * 9999) // 262_142


def container_limits(requests: Resources, limits: Resources) -> CgroupLimits:
    """Settings of a container. A CPU limit without a request counts as the request, as API defaulting would have made it."""
    request = requests.get("cpu", limits.get("cpu", 0))
    return CgroupLimits(shares_of(request), quota_of(limits.get("cpu", 0)), limits.get("memory", 0) or -1)


def pod_limits(kubernetes_qos: str, requests: Resources, container_limit_lists: Iterable[Resources]) -> CgroupLimits:
    """Settings of a pod's group: the sum of requests as shares, and a limit only where every container has one.

    `requests` is the pod's aggregated request; a BestEffort pod gets the smallest share and no limit.
    """
    if kubernetes_qos == "BestEffort":
        return CgroupLimits(MIN_SHARES, -1, -1)
    lists = list(container_limit_lists)

    def total(name: str) -> int:
        values = [one.get(name, 0) for one in lists]
        return sum(values) if values and all(v > 0 for v in values) else 0

    cpu, memory = total("cpu"), total("memory")
    return CgroupLimits(shares_of(requests.get("cpu", 0)), quota_of(cpu), memory or -1)


def oom_score_adj(kubernetes_qos: str, memory_request: int, memory_capacity: int) -> int:
    """`oom_score_adj` by Kubernetes class: Burstable between 2 and 999, the higher the smaller its share of memory."""
    if kubernetes_qos == "Guaranteed":
        return OOM_GUARANTEED
    if kubernetes_qos == "BestEffort":
        return OOM_BEST_EFFORT
    if memory_capacity <= 0:
        return 999
    return min(max(1000 - 1000 * memory_request // memory_capacity, 2), 999)


def node_capacity(cpus: int, memory_bytes: int, max_pods: int) -> dict[str, Any]:
    """The `status.capacity` of a node with so many CPUs and so much memory."""
    return {"cpu": str(cpus), "memory": f"{memory_bytes // 1024}Ki", "pods": str(max_pods), "ephemeral-storage": "0"}
