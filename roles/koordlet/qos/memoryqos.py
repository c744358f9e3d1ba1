"""Memory QoS: protection, throttling, watermarks, OOM priority and page cache limits (KA-MEM-01, KA-MEM-02)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from koord.api.annotations import raw_allocatable
from koord.api.names import RESOURCE_MEMORY
from koord.api.objects import Node
from koord.api.quantity import value_or
from roles.koordlet.actuation.writes import NODE, About, Batch, Merge, Write
from roles.koordlet.host.cgroup import BESTEFFORT, BURSTABLE, KUBE_QOS
from roles.koordlet.host.cgroup_files import MAX_INT64
from roles.koordlet.qos import memoryqos_config as config
from roles.koordlet.qos.outcome import Outcome, Strategy
from roles.koordlet.states.model import PodState, Snapshot
from roles.koordlet.states.slo import SLO, MemoryQOS

#: Decided anew at least this often (seconds), and at once when a pod, the node or the NodeSLO changes.
REFRESH = 10.0
_MERGED = frozenset({"memory.min", "memory.low", "memory.high"})
#: What files hold of which nothing is asked.
_NEUTRAL = {
    "memory.min": 0, "memory.low": 0, "memory.high": MAX_INT64, "memory.wmark_ratio": 0, "memory.wmark_scale_factor": 50,
    "memory.wmark_min_adj": 0, "memory.priority": 0, "memory.use_priority_oom": 0, "memory.oom.group": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MemoryState:
    """What the last decision was made of."""

    pods: tuple[PodState, ...] = ()
    node: Node | None = None
    slo: SLO | None = None
    at: float = 0.0

    def holds(self, snapshot: Snapshot, slo: SLO, now: float, refresh: float) -> bool:
        """Whether deciding again would give the same, and is not due for the executor to renew what was written."""
        return (
            0 <= now - self.at < refresh
            and self.node is snapshot.node
            and self.slo is slo
            and len(self.pods) == len(snapshot.pods)
            and all(a is b for a, b in zip(self.pods, snapshot.pods, strict=True))
        )


@dataclass(slots=True)
class _Sums:
    """Protection of a QoS directory: the sums over its pods."""

    least: int = 0
    low: int = 0
    asked: bool = False
    """Whether anything was asked for any of them."""


@dataclass(slots=True)
class _Levels:
    """Writes by cgroup level, outermost first."""

    root: list[Write] = field(default_factory=list)
    tiers: list[Write] = field(default_factory=list)
    pods: list[Write] = field(default_factory=list)
    containers: list[Write] = field(default_factory=list)

    def batch(self) -> Batch:
        return Batch((tuple(self.root), tuple(self.tiers), tuple(self.pods), tuple(self.containers)))


def _write(resource: str, directory: str, value: int, about: About) -> Write:
    merge = Merge.LARGER if resource in _MERGED else Merge.NONE
    return Write(resource, directory, str(value), merge=merge, about=about)


def _writes(
    snapshot: Snapshot, directory: str, values: Iterable[tuple[str, int | None]], about: About = NODE, *, asked: bool = False
) -> list[Write]:
    """Unless ``asked`` for, a neutral value on cgroup v2 only takes back what was written: the kubelet protects memory there as well."""
    return [
        _write(resource, directory, value, about)
        for resource, value in values
        if value is not None and (asked or value != _NEUTRAL.get(resource) or snapshot.holds_ours(resource, directory))
    ]


def _said(snapshot: Snapshot, slo: SLO) -> bool:
    """Whether the NodeSLO speaks of classes where nobody but an agent like this one writes these files."""
    return not snapshot.host.cgroups.v2 and "resourceQOSStrategy" in slo.received_sections


def _oom(body: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        ("memory.priority", body.priority),
        ("memory.use_priority_oom", body.priority_enable),
        ("memory.oom.group", body.oom_kill_group),
    ]


def _watermarks(body: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        ("memory.wmark_ratio", body.wmark_ratio),
        ("memory.wmark_scale_factor", body.wmark_scale_permill),
        ("memory.wmark_min_adj", body.wmark_min_adj),
    ]


def _page_cache(snapshot: Snapshot, pod: PodState, body: MemoryQOS) -> list[tuple[str, int | None]]:
    """What is asked for, and 0 where a limit stands that was asked for once."""
    asked = config.page_cache(config.pod_limit(pod), body)
    files = [(name, f"memory.pagecache_limit.{name}") for name in ("enable", "size", "sync")]
    return [(file, asked.get(name, 0)) for name, file in files if name in asked or snapshot.holds_ours(file, pod.cgroup_dir)]


def allocatable_memory(node: Node) -> int:
    """Bytes, before amplification; 0 when it is not known."""
    return value_or(raw_allocatable(node.status.allocatable, node.metadata.annotations).get(RESOURCE_MEMORY))


class MemoryQoS(Strategy[MemoryState]):
    """See the module."""

    name: ClassVar[str] = "CgroupReconcile"
    features: ClassVar[tuple[str, ...]] = ("KA-MEM-01", "KA-MEM-02")

    def initial(self) -> MemoryState:
        return MemoryState()

    def decide(self, snapshot: Snapshot, slo: SLO, state: MemoryState, now: float) -> Outcome[MemoryState]:
        if snapshot.node is None or state.holds(snapshot, slo, now, min(REFRESH, self.options.resource_force_update_seconds)):
            return Outcome(state)
        allocatable = allocatable_memory(snapshot.node)
        if allocatable <= 0:
            return Outcome(state)
        sums = {kube_qos: _Sums() for kube_qos in KUBE_QOS}
        levels = _Levels()
        for pod in snapshot.pods:
            if pod.active:
                self._pod(snapshot, slo, pod, allocatable, sums[pod.kube_qos], levels)
        self._tiers(snapshot, slo, sums, levels)
        return Outcome(MemoryState(snapshot.pods, snapshot.node, slo, now), batches=(levels.batch(),))

    def _pod(self, snapshot: Snapshot, slo: SLO, pod: PodState, allocatable: int, tier: _Sums, levels: _Levels) -> None:
        body, asked = config.effective(slo.qos, pod), config.asked(slo.qos, pod) or _said(snapshot, slo)
        tier.asked = tier.asked or asked
        request = config.pod_request(pod)
        least, low = config.protection(request, body)
        tier.least += least or 0
        # as configured: a low that is raised to min adds nothing to what the sum of min protects
        tier.low += config.percent_of(request, body.low_limit_percent) or 0
        about = About.of(pod)
        values = [("memory.min", least), ("memory.low", low), *_watermarks(body), *_oom(body)]
        if snapshot.host.cgroups.v2:
            values += _page_cache(snapshot, pod, body)
        levels.pods += _writes(snapshot, pod.cgroup_dir, values, about, asked=asked)
        for container in pod.containers:
            if not container.cgroup_dir:
                continue
            request = config.container_request(pod, container)
            least, low = config.protection(request, body)
            throttle = config.high(request, config.container_limit(pod, container, allocatable), body, least)
            levels.containers += _writes(
                snapshot,
                container.cgroup_dir,
                [("memory.min", least), ("memory.low", low), ("memory.high", throttle), *_watermarks(body), *_oom(body)],
                About.of(pod, container.name),
                asked=asked,
            )

    def _tiers(self, snapshot: Snapshot, slo: SLO, sums: dict[str, _Sums], levels: _Levels) -> None:
        cgroups, qos = snapshot.host.cgroups, slo.qos
        total = _Sums(sum(s.least for s in sums.values()), sum(s.low for s in sums.values()), any(s.asked for s in sums.values()))
        rows = (
            (levels.root, cgroups.kubepods, total, qos.lsr.memory),
            (levels.tiers, cgroups.qos_dir(BURSTABLE), sums[BURSTABLE], qos.ls.memory),
            (levels.tiers, cgroups.qos_dir(BESTEFFORT), sums[BESTEFFORT], qos.be.memory),
        )
        for level, directory, tier, body in rows:
            values = [("memory.min", tier.least), ("memory.low", tier.low), *_oom(body)]
            level += _writes(snapshot, directory, values, asked=tier.asked or body.enable or _said(snapshot, slo))
