"""CPU burst of latency-sensitive pods (KA-BST-01, KA-BST-02).

Two means: the kernel's burst buffer, and CFS quotas that are raised while containers are throttled and lowered again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from koord.api import trust
from koord.api.annotations import NO_RATIO, AnnotationError, parse_cpu_burst, parse_cpu_normalization_ratio
from koord.api.names import ANNOTATION_CPU_BURST
from koord.api.qos import QoSClass
from koord.decisions.record import Record, Subject
from roles.koordlet.actuation.writes import About, Batch, Write, sequence
from roles.koordlet.host.cgroup_files import milli_to_quota, normalized_quota
from roles.koordlet.qos import view
from roles.koordlet.qos.burst_limits import NodeState, Tokens, node_state, pod_limit_milli, spend
from roles.koordlet.qos.outcome import Outcome, Sample, Strategy
from roles.koordlet.qos.picker import allocated_cpus
from roles.koordlet.qos.restarts import awaited_milli, limit_milli
from roles.koordlet.states.model import ContainerState, PodState, Snapshot
from roles.koordlet.states.slo import SLO, CPUBurstStrategy
from roles.koordlet.store import kinds

BURST_POLICIES = frozenset({"cpuBurstOnly", "auto"})
QUOTA_POLICIES = frozenset({"cfsQuotaBurstOnly", "auto"})
POLICIES = frozenset(trust.BURST_POLICIES)
WITHOUT_BURST = frozenset({QoSClass.LSE, QoSClass.LSR, QoSClass.BE})
MAX_V1_BURST_US = 100_000_000
QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
UP, DOWN, REMAIN, RESET = "up", "down", "remain", "reset"


@dataclass(frozen=True, slots=True)
class Quiet:
    """A pod that has what it wants: deciding again gives the same while nothing that it was decided from changes."""

    pod: PodState
    node: CPUBurstStrategy
    ratio: float
    quotas: tuple[bytes | None, ...]
    """What the quota files hold, the pod's first."""
    since: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class BurstState:
    """Token buckets by container id, and quiet pods by uid."""

    tokens: dict[str, Tokens] = field(default_factory=dict)
    quiet: dict[str, Quiet] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    """Pods whose gauges stand."""


def effective(node: CPUBurstStrategy, pod: PodState, *, widened: bool = False) -> CPUBurstStrategy:
    """The node's strategy with the pod's annotation on top; an annotation that cannot be used leaves the node's.

    The burst buffer only brings back what the limit did not use, and a pod may have it by itself. Quota burst gives more than the
    limit: a pod has it where the node's policy does, or where the node lets pods switch it on (``widened``). Amounts are at most the
    node's.
    """
    try:
        own = parse_cpu_burst(pod.annotations)
    except AnnotationError:
        return node
    if not own:
        return node
    merged: dict[str, Any] = {**msgspec.to_builtins(node), **trust.bounded(ANNOTATION_CPU_BURST, own)}
    if merged["policy"] not in POLICIES:
        return node
    try:
        wanted = msgspec.convert(merged, CPUBurstStrategy)
    except msgspec.ValidationError:
        return node
    return _within(wanted, node, widened or node.policy in QUOTA_POLICIES)


def _within(wanted: CPUBurstStrategy, node: CPUBurstStrategy, quota_burst: bool) -> CPUBurstStrategy:
    policy = wanted.policy
    if policy in QUOTA_POLICIES and not quota_burst:
        policy = "cpuBurstOnly" if policy in BURST_POLICIES else "none"
    period, most = wanted.cfs_quota_burst_period_seconds, node.cfs_quota_burst_period_seconds
    if most >= 0 and not 0 <= period <= most:
        period = most  # -1 is a burst without end
    return CPUBurstStrategy(
        policy,
        min(wanted.cpu_burst_percent, node.cpu_burst_percent),
        min(wanted.cfs_quota_burst_percent, node.cfs_quota_burst_percent),
        period,
        node.share_pool_threshold_percent,
    )


def operation(config: CPUBurstStrategy, allowed: bool, throttled: float | None, node: NodeState) -> str:
    """What becomes of a container's quota."""
    if config.policy not in QUOTA_POLICIES:
        return RESET
    if not allowed:
        wanted = DOWN
    elif throttled is not None and throttled > 0:
        wanted = UP
    else:
        wanted = REMAIN
    if node is NodeState.OVERLOAD:
        return DOWN
    if node in (NodeState.COOLING, NodeState.UNKNOWN) and wanted == UP:
        return REMAIN
    return wanted


def scaled(what: str, current: int, base: int, config: CPUBurstStrategy) -> int:
    """The new quota in µs, between the base and its ceiling."""
    percent = config.cfs_quota_burst_percent
    ceiling = base * percent // 100 if percent > 100 else base
    # integers: 1.2 and 0.8 are not exact as floats
    target = {UP: current * 12 // 10, DOWN: current * 8 // 10, RESET: base, REMAIN: current}[what]
    return min(max(target, base), ceiling)


class CPUBurst(Strategy[BurstState]):
    """See the module."""

    name: ClassVar[str] = "CPUBurst"
    features: ClassVar[tuple[str, ...]] = ("KA-BST-01", "KA-BST-02")

    def initial(self) -> BurstState:
        return BurstState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: BurstState, now: float) -> Outcome[BurstState]:
        cpus = snapshot.cpus
        node = node_state(snapshot, slo.cpu_burst, self.options.reconcile_interval_seconds)
        ratio = self._ratio(snapshot)
        tokens: dict[str, Tokens] = {}
        quiet: dict[str, Quiet] = {}
        batches: list[Batch] = []
        samples: list[Sample] = []
        records: list[Record] = []
        shown: list[str] = []
        for pod in snapshot.pods:
            if not pod.active or pod.qos_label in WITHOUT_BURST:
                continue
            shown.append(pod.uid)
            known = state.quiet.get(pod.uid)
            if known is not None and self._still(known, snapshot, pod, slo.cpu_burst, ratio, now):
                quiet[pod.uid] = known
                continue
            config = effective(slo.cpu_burst, pod, widened=self.options.allow_pod_quota_burst)
            round_ = _Pod(self, snapshot, pod, config, node, ratio, now, bool(allocated_cpus(pod, cpus)))
            round_.decide(state.tokens, tokens)
            if round_.settled:
                found = _quotas(snapshot, pod)
                quiet[pod.uid] = Quiet(pod, slo.cpu_burst, ratio, found, now, tuple(round_.samples))
            batches += round_.batches
            samples += round_.samples
            records += round_.records
        # a bucket outlives a short absence of its container
        for container_id, bucket in state.tokens.items():
            if container_id not in tokens and not bucket.expired(now):
                tokens[container_id] = bucket
        after = BurstState(tokens, quiet, frozenset(shown))
        if not samples and after.shown == state.shown:
            return Outcome(after, batches=tuple(batches), records=tuple(records))
        kept = [sample for known in quiet.values() if state.quiet.get(known.pod.uid) is known for sample in known.samples]
        return Outcome(
            after,
            batches=tuple(batches),
            samples=(*kept, *samples),
            records=tuple(records),
            cleared=("scaled_burst", "scaled_quota"),
        )

    def _still(self, known: Quiet, snapshot: Snapshot, pod: PodState, node: CPUBurstStrategy, ratio: float, now: float) -> bool:
        """Whether a quiet pod needs no new decision. Now and then it gets one, so that the executor can renew what was written."""
        if known.pod is not pod or known.node != node or known.ratio != ratio:
            return False
        if not 0 <= now - known.since < self.options.resource_force_update_seconds:
            return False
        return _quotas(snapshot, pod) == known.quotas

    def _ratio(self, snapshot: Snapshot) -> float:
        """CPU normalization of this node, so that burst and normalization agree on one base; -1 when it does not matter."""
        if not self.gate("CPUNormalization") or snapshot.node is None:
            return NO_RATIO
        try:
            return parse_cpu_normalization_ratio(snapshot.node.metadata.annotations)
        except AnnotationError:
            return NO_RATIO

    def unset_quota(self, bound: bool) -> bool:
        """Whether the CPU set allocator owns the quota of a pod with CPUs of its own (it takes it off)."""
        return bound and self.gate("CPUSetAllocator") and not self.options.disable_unset_cpu_quota


@dataclass(eq=False)
class _Pod:
    """The decision for one pod."""

    strategy: CPUBurst
    snapshot: Snapshot
    pod: PodState
    config: CPUBurstStrategy
    node: NodeState
    ratio: float
    now: float
    bound: bool

    def __post_init__(self) -> None:
        self.bursting = self.config.policy in QUOTA_POLICIES
        self.ratio = self.ratio if self.ratio > 1 and not self.bound else 1.0
        self.pod_quota = view.cpu_quota(self.snapshot.host, self.pod.cgroup_dir)
        self.quotas: dict[str, int | None] = {}
        self.batches: list[Batch] = []
        self.samples: list[Sample] = []
        self.records: list[Record] = []
        self.settled = False
        """Whether there is nothing to write, and will not be before something else changes."""

    def decide(self, before: dict[str, Tokens], after: dict[str, Tokens]) -> None:
        containers = [c for c in self.pod.containers if c.cgroup_dir]
        growing: list[Batch] = []
        for container in containers:
            self.quotas[container.id] = view.cpu_quota(self.snapshot.host, container.cgroup_dir)
            if not container.running or limit_milli(container) <= 0:
                continue
            bucket, allowed = spend(self.snapshot, container, limit_milli(container), self.config, before.get(container.id), self.now)
            if bucket is not None:
                after[container.id] = bucket
            pair = self._quota(container, allowed)
            if pair is not None:
                growing.append(pair)
        rest = self._rest(containers)
        if rest is not None:
            growing.append(rest)
        # a burst above the quota is refused, and so is a quota below the burst: what shrinks comes first
        bursts = self._bursts(containers)
        shrinks = [b for b in growing if _shrinks(b)]
        self.batches = [*bursts, *shrinks, *(b for b in growing if not _shrinks(b))] if shrinks else [*growing, *bursts]
        steady = not self.bursting and self.config.cfs_quota_burst_period_seconds < 0
        self.settled = steady and not growing and all(self._written(write) for batch in bursts for write in batch)

    # -- kernel burst --------------------------------------------------------------------------------------------------------

    def _bursts(self, containers: list[ContainerState]) -> list[Batch]:
        total = total_limit = 0
        writes: list[Write] = []
        on = self.config.policy in BURST_POLICIES
        for container in containers:
            period = view.cpu_period(self.snapshot.host, container.cgroup_dir)
            value = limit_milli(container) * self.config.cpu_burst_percent * period // 100_000 if on else 0
            quota = self.quotas.get(container.id)
            limit = self._base(limit_milli(container), container.cgroup_dir)
            total, total_limit = total + value, total_limit + max(limit, 0)
            if on or self._ours(BURST, container.cgroup_dir):
                writes.append(self._burst(container.cgroup_dir, value, _lesser(quota, limit), container.name))
            self._sample("scaled_burst", value, container)
        if on or self._ours(BURST, self.pod.cgroup_dir):
            writes.append(self._burst(self.pod.cgroup_dir, total, _lesser(self.pod_quota, total_limit), ""))
        return [sequence(*writes)] if writes else []

    def _ours(self, resource: str, directory: str) -> bool:
        """Whether there is something to take back: what others set stays, whatever it is."""
        return self.snapshot.holds_ours(resource, directory)

    def _keeps_pod(self) -> bool:
        """Whether koordlet keeps the pod's quota at its limit: while there is quota burst whatever it holds, if it was ever changed;
        afterwards only what koordlet gave is taken back."""
        own = self.snapshot.changed if self.bursting else self.snapshot.holds_ours
        return own(QUOTA, self.pod.cgroup_dir)

    def _burst(self, directory: str, value: int, quota: int | None, container: str) -> Write:
        fallback = ""
        if not self.snapshot.host.cgroups.v2:
            value = min(value, MAX_V1_BURST_US)
        if quota is not None and 0 < quota < value:
            if self.snapshot.host.cgroups.v2:
                value = quota
            else:
                # some v1 kernels take more than the quota, others refuse it
                fallback = str(quota)
        return Write(BURST, directory, str(value), about=About.of(self.pod, container), reason="CPUBurst", fallback=fallback)

    def _written(self, write: Write) -> bool:
        """Whether the burst file says so already, or there is none."""
        raw = view.raw(self.snapshot.host, write.resource, write.target)
        return raw is None or raw.strip().decode("ascii", "replace") in (write.value, write.fallback)

    # -- quota burst ---------------------------------------------------------------------------------------------------------

    def _quota(self, container: ContainerState, allowed: bool) -> Batch | None:
        current = self.quotas[container.id]
        if current is None or self.strategy.unset_quota(self.bound) or self.snapshot.holder(QUOTA, container.cgroup_dir):
            return None
        directory = container.cgroup_dir
        if container.asked is not None and current == milli_to_quota(
            limit_milli(container, asked=True), view.cpu_period(self.snapshot.host, directory)
        ):
            return None  # the kubelet has resized it, and has not told the API server yet
        base = self._base(limit_milli(container), directory)
        throttled = self.snapshot.metrics.last(kinds.CONTAINER_CPU_THROTTLED, container_id=container.id)
        what = operation(self.config, allowed, throttled, self.node)
        # a container without a quota, as of a kubelet that sets none, has none to raise
        untouched = (what == RESET or current <= 0) and scaled(RESET, current, base, self.config) != current
        if untouched and not self._ours(QUOTA, directory):
            self._sample("scaled_quota", current, container)
            return None
        target = scaled(what, current, base, self.config)
        self._sample("scaled_quota", target, container)
        if target == current:
            return None
        delta = target - current
        self.quotas[container.id] = target
        about = About.of(self.pod, container.name)
        writes = [Write(QUOTA, directory, str(target), cached=False, about=about, reason="CPUBurst")]
        keeps = self._keeps_pod()
        if self.pod_quota is not None and self.pod_quota > 0 and current > 0 and (keeps or self.bursting):
            own = self._pod_own() if keeps else None
            # a pod's quota that was changed before may since be the kubelet's again, or hold the burst of a container that is gone
            self.pod_quota = max(self.pod_quota + delta, self._awaited()) if own is None else own
            pod = Write(QUOTA, self.pod.cgroup_dir, str(self.pod_quota), cached=False, about=About.of(self.pod), reason="CPUBurst")
            writes = [pod, *writes] if delta > 0 else [*writes, pod]
        self._record(container, what, current, target, base, throttled)
        return sequence(*writes, stop_on_error=True)

    def _pod_own(self) -> int | None:
        """The pod's quota by its limit and what its containers have beyond theirs, and no less than one that starts is given; None where
        that cannot be told."""
        limit = pod_limit_milli(self.pod)
        if limit <= 0:
            return None
        total = self._base(limit, self.pod.cgroup_dir)
        for container in self.pod.containers:
            quota = self.quotas.get(container.id) if container.cgroup_dir else None
            if quota is not None and quota > 0:
                total += max(quota - self._base(limit_milli(container), container.cgroup_dir), 0)
        return max(total, self._awaited())

    def _awaited(self) -> int:
        """The least quota of the pod in which what is to start finds room."""
        if self.snapshot.host.cgroups.v2:
            return 0
        return milli_to_quota(awaited_milli(self.pod), view.cpu_period(self.snapshot.host, self.pod.cgroup_dir))

    def _base(self, milli: int, directory: str) -> int:
        return normalized_quota(milli_to_quota(milli, view.cpu_period(self.snapshot.host, directory)), self.ratio)

    def _rest(self, containers: list[ContainerState]) -> Batch | None:
        """The pod's quota where it is not what its containers add up to: a container that restarts begins with its limit, and a pod that is
        resized gets the sum of the limits, whatever was added for a burst. Only of a quota that koordlet keeps."""
        directory, current = self.pod.cgroup_dir, self.pod_quota
        if current is None or current <= 0 or self.strategy.unset_quota(self.bound) or not self._keeps_pod():
            return None
        if self.ratio > 1 and not self.bursting:
            return None  # normalization sets it
        if any(self.snapshot.holder(QUOTA, d) for d in (directory, *(c.cgroup_dir for c in containers))):
            return None
        wanted = self._pod_own()
        if wanted is None or wanted == current:
            return None
        self.pod_quota = wanted
        self._record(None, RESET, current, wanted, wanted, None)
        return sequence(Write(QUOTA, directory, str(wanted), cached=False, about=About.of(self.pod), reason="CPUBurst"))

    # -- records -------------------------------------------------------------------------------------------------------------

    def _sample(self, family: str, value: int, container: ContainerState) -> None:
        self.samples.append(Sample(family, value, (self.pod.namespace, self.pod.name, container.id, container.name)))

    def _record(self, container: ContainerState | None, what: str, current: int, target: int, base: int, throttled: float | None) -> None:
        """``container`` None: the pod's own quota."""
        verdict = "QuotaRaised" if target > current else "QuotaLowered"
        who = f"container {container.name}" if container is not None else "pod"
        numbers: dict[str, float | int | str] = {
            "container": container.name if container is not None else "",
            "quota_us": target,
            "old_quota_us": current,
            "base_us": base,
            "operation": what,
            "node_state": str(self.node),
        }
        if throttled is not None:
            numbers["throttled_ratio"] = round(throttled, 4)
        self.records.append(
            Record(
                "koordlet",
                Subject("Pod", self.pod.namespace, self.pod.name, self.pod.uid),
                self.now,
                verdict,
                rule=CPUBurst.name,
                message=f"{who}: CFS quota {current} → {target} µs ({what}; node {self.node})",
                numbers=numbers,
                features=("KA-BST-02",),
            )
        )


def _lesser(quota: int | None, limit: int) -> int | None:
    """The quota that a burst may not exceed: the one that stands there, or that of the limit if that is less.

    A kernel that refuses more burst than quota refuses less quota than burst as well. A kubelet that makes a pod smaller in place could
    not, and one that has made a limit of its own smaller has said so in the spec first.
    """
    return min(quota, limit) if quota is not None and quota > 0 and limit > 0 else quota


def _quotas(snapshot: Snapshot, pod: PodState) -> tuple[bytes | None, ...]:
    """The quota files of the pod and of each of its containers, as they stand there."""
    directories = [pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers if c.cgroup_dir)]
    return tuple([view.raw(snapshot.host, QUOTA, directory) for directory in directories])


def _shrinks(batch: Batch) -> bool:
    """The container's write comes first exactly when its quota shrinks (a lone one may be either)."""
    writes = list(batch)
    return len(writes) > 1 and writes[0].about.container != ""
