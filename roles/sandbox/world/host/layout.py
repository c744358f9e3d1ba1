"""Where a modelled machine has its cgroups and what a group's files are called, by cgroup version."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

CGROUP = "sys/fs/cgroup"
GUARANTEED, BURSTABLE, BESTEFFORT = "Guaranteed", "Burstable", "BestEffort"
KUBEPODS = "kubepods.slice"
LEVELS = {
    GUARANTEED: KUBEPODS,
    BURSTABLE: f"{KUBEPODS}/kubepods-burstable.slice",
    BESTEFFORT: f"{KUBEPODS}/kubepods-besteffort.slice",
}
PERIOD_US = 100_000
UNLIMITED = 0x7FFFFFFFFFFFF000
"""What cgroup v1 shows as no memory limit."""

SHARES, QUOTA, PERIOD, BURST, IDLE, BVT = "shares", "quota", "period", "burst", "idle", "bvt"
CPUS, LIMIT, MEMSW = "cpus", "limit", "memsw"
MIN, LOW, HIGH = "min", "low", "high"
PSI = "psi"
"""Not a knob: whether the kernel tells pressure. With cgroup v1 it tells that of groups in the unified hierarchy of a hybrid machine."""

# what may be set: knob -> (hierarchy, file); quota and period share one file in v2
V1 = {
    SHARES: ("cpu,cpuacct", "cpu.shares"),
    QUOTA: ("cpu,cpuacct", "cpu.cfs_quota_us"),
    PERIOD: ("cpu,cpuacct", "cpu.cfs_period_us"),
    BURST: ("cpu,cpuacct", "cpu.cfs_burst_us"),
    IDLE: ("cpu,cpuacct", "cpu.idle"),
    BVT: ("cpu,cpuacct", "cpu.bvt_warp_ns"),
    CPUS: ("cpuset", "cpuset.cpus"),
    LIMIT: ("memory", "memory.limit_in_bytes"),
    MEMSW: ("memory", "memory.memsw.limit_in_bytes"),
}
V2 = {
    SHARES: ("", "cpu.weight"),
    QUOTA: ("", "cpu.max"),
    BURST: ("", "cpu.max.burst"),
    IDLE: ("", "cpu.idle"),
    BVT: ("", "cpu.bvt_warp_ns"),
    CPUS: ("", "cpuset.cpus"),
    LIMIT: ("", "memory.max"),
    MIN: ("", "memory.min"),
    LOW: ("", "memory.low"),
    HIGH: ("", "memory.high"),
}
HIERARCHIES = ("cpu,cpuacct", "cpuset", "memory", "blkio")
UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a seed need not draw of its machines and of what agents are asked for; None: it draws it."""

    version: int | None = None  # of cgroups
    knobs: frozenset[str] | None = None  # those that only some kernels have, and PSI
    static: bool | None = None  # whether the kubelet gives out CPUs itself
    suppress: str | None = None  # cpuset, cfsQuota
    burst: str | None = None  # none, auto
    memory: int | None = None  # percent of memory from which on best-effort pods are evicted
    evicts: bool | None = None  # whether agents evict at all


ALL = Drawn()


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one machine, relative to its root. `extras`: knobs that only some kernels have."""

    version: int
    extras: frozenset[str] = frozenset((BURST, IDLE))

    @property
    def knobs(self) -> dict[str, tuple[str, str]]:
        """What may be set in a group."""
        table = V1 if self.version == 1 else V2
        optional = {BURST, IDLE, BVT, MEMSW}
        return {name: place for name, place in table.items() if name not in optional or name in self.extras}

    def directory(self, hierarchy: str, group: str) -> str:
        """A group's directory; "" is the root group."""
        parts = [CGROUP] if self.version == 2 else [CGROUP, hierarchy]
        return "/".join([*parts, group] if group else parts)

    def directories(self, group: str) -> list[str]:
        """All directories of a group."""
        if self.version == 2:
            return [self.directory("", group)]
        return [self.directory(h, group) for h in (*HIERARCHIES, *((UNIFIED,) if self.pressure else ()))]

    @property
    def pressure(self) -> bool:
        """Whether the kernel tells who waits."""
        return PSI in self.extras

    def pressure_file(self, resource: str, group: str) -> str:
        """Where the pressure of a group is told; "" is the whole machine."""
        return f"{self.directory(UNIFIED, group)}/{resource}.pressure" if group else f"proc/pressure/{resource}"

    def file(self, knob: str, group: str) -> str:
        """The file of a knob."""
        hierarchy, name = (V1 if self.version == 1 else V2)[knob]
        return f"{self.directory(hierarchy, group)}/{name}"


def pod_group(kube_qos: str, uid: str) -> str:
    """The group of a pod, as the kubelet with the systemd driver names it."""
    stem = "kubepods" if kube_qos == GUARANTEED else f"kubepods-{kube_qos.lower()}"
    return f"{LEVELS[kube_qos]}/{stem}-pod{uid.replace('-', '_')}.slice"


def container_group(pod: str, container_id: str) -> str:
    """The group of a container of containerd."""
    return f"{pod}/cri-containerd-{container_id.rpartition('/')[2]}.scope"


def cpu_list(text: str) -> frozenset[int]:
    """CPUs of a list such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < 4096:
            raise ValueError(text)
        found.update(range(low, high + 1))
    return frozenset(found)


def allocated_cpus(status: str) -> frozenset[int]:
    """The CPUs of a `resource-status` annotation; none where it cannot be read: whoever made the pod may have written it."""
    try:
        found = orjson.loads(status)
        return cpu_list(str(found.get("cpuset", ""))) if isinstance(found, dict) else frozenset()
    except ValueError:
        return frozenset()


def cpu_text(cpus: frozenset[int]) -> str:
    """As the kernel shows a list of CPUs."""
    out: list[str] = []
    ordered = sorted(cpus)
    while ordered:
        run = 1
        while run < len(ordered) and ordered[run] == ordered[0] + run:
            run += 1
        out.append(str(ordered[0]) if run == 1 else f"{ordered[0]}-{ordered[run - 1]}")
        ordered = ordered[run:]
    return ",".join(out)
