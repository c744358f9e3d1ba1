"""What bounds quota burst: the token bucket of a container and the state of the node's share pool (KA-BST-02). Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from enum import StrEnum

from koord.accounting.pods import pod_limits
from koord.api.names import RESOURCE_CPU
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError
from roles.koordlet.states.allocation import requested
from roles.koordlet.states.model import ContainerState, PodState, Snapshot
from roles.koordlet.states.slo import CPUBurstStrategy
from roles.koordlet.store import kinds

MAX_WINDOW = 10.0
COOLING = 0.9
_PINNED = frozenset({QoSClass.LSE, QoSClass.LSR})


def pod_limit_milli(pod: PodState) -> int:
    """CPU limit of a pod as its kubelet counts it, in milli-cores; 0 where a container has none, or while a resize waits."""
    for container in pod.containers:
        if container.asked is not None or (container.spec is not None and RESOURCE_CPU not in container.spec.resources.limits):
            return 0
    try:
        return max(pod_limits(pod.pod).get(RESOURCE_CPU, 0), 0)
    except QuantityError:
        return 0


class NodeState(StrEnum):
    """How busy the CPUs are that latency-sensitive pods share."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"


def node_state(snapshot: Snapshot, config: CPUBurstStrategy, reconcile_interval: float) -> NodeState:
    """Use of the share pool (without LSE, LSR and BE pods) over its size (without CPUs that LSE and LSR pods request)."""
    window = min(5 * reconcile_interval, MAX_WINDOW)
    used = snapshot.metrics.avg(kinds.NODE_CPU, window)
    if used is None or snapshot.topology is None:
        return NodeState.UNKNOWN
    total = float(len(snapshot.topology))
    for pod in snapshot.pods:
        if not pod.active:
            continue
        if pod.qos_label in _PINNED:
            total -= requested(pod, RESOURCE_CPU) / 1000
        if pod.qos_label in _PINNED or pod.qos_label is QoSClass.BE:
            used -= snapshot.metrics.avg(kinds.POD_CPU, window, pod_uid=pod.uid) or 0.0
    ratio = used / total if total > 0 else 1.0
    threshold = config.share_pool_threshold_percent / 100
    if ratio >= threshold:
        return NodeState.OVERLOAD
    return NodeState.COOLING if ratio >= COOLING * threshold else NodeState.IDLE


@dataclass(frozen=True, slots=True)
class Tokens:
    """A bucket: ``tokens`` in percent·seconds within ±``capacity``; ``at`` is up to when they are counted (Unix seconds)."""

    capacity: int
    tokens: int
    at: float
    period: int

    def expired(self, now: float) -> bool:
        return not 0 <= now - self.at <= 2 * self.period

    def counted(self, usage_percent: int, now: float) -> Tokens:
        """After the whole seconds that have passed at this use (percent of the limit)."""
        seconds = int(now - self.at)
        if seconds <= 0:
            return self
        tokens = self.tokens
        if usage_percent >= 100:
            tokens -= (usage_percent - 100) * seconds
        elif usage_percent < 60:
            tokens += (100 - usage_percent) * seconds
        return replace(self, tokens=max(-self.capacity, min(self.capacity, tokens)), at=self.at + seconds)


def new_tokens(container_id: str, capacity: int, period: int, now: float) -> Tokens:
    """A bucket that starts below half full; where exactly is told by the container's id, so that containers spread and tests repeat."""
    start = zlib.crc32(container_id.encode()) % max(capacity // 2, 1)
    return Tokens(capacity, start, now, period)


def spend(
    snapshot: Snapshot, container: ContainerState, limit_milli: int, config: CPUBurstStrategy, bucket: Tokens | None, now: float
) -> tuple[Tokens | None, bool]:
    """The container's bucket after this evaluation (None: none is needed), and whether it may burst."""
    period, percent = config.cfs_quota_burst_period_seconds, config.cfs_quota_burst_percent
    if period < 0:
        return None, True
    if percent < 100:
        return None, False
    capacity = period * (percent - 100)
    if bucket is None or bucket.capacity != capacity or bucket.expired(now):
        bucket = new_tokens(container.id, capacity, period, now)
    used = snapshot.metrics.last(kinds.CONTAINER_CPU, container_id=container.id)
    usage = 100 if used is None else int(used * 1000 / limit_milli * 100)
    bucket = bucket.counted(usage, now)
    return bucket, bucket.tokens > 0
