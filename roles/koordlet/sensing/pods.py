"""CPU and memory of pods and containers (KLO-COL-03, page cache KLO-COL-08)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, HostFileError, Rate, Round, SensingContext, Stamped
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

_POD_KINDS = (kinds.POD_CPU, kinds.POD_MEMORY, kinds.POD_MEMORY_WITH_PAGE_CACHE)
_CONTAINER_KINDS = (kinds.CONTAINER_CPU, kinds.CONTAINER_MEMORY, kinds.CONTAINER_MEMORY_WITH_PAGE_CACHE)


@dataclass(frozen=True, slots=True)
class _Usage:
    """One reading: cores (None without, or on a first reading, then ``seeded``) and memory (None when unreadable)."""

    cpu: float | None
    memory: parse.MemoryStat | None
    seeded: bool

    @property
    def missing(self) -> bool:
        return self.cpu is None and self.memory is None and not self.seeded


def _append(samples: list[Sample], usage: _Usage, key: tuple[str, ...], to: tuple[str, str, str], page_cache: bool) -> None:
    """Samples of a reading: CPU, memory, memory with page cache (a gauge that needs no second reading)."""
    cpu_kind, memory_kind, cache_kind = to
    if usage.cpu is not None:
        samples.append((cpu_kind, key, usage.cpu))
    if usage.memory is None:
        return
    if not usage.seeded:
        samples.append((memory_kind, key, float(usage.memory.without_page_cache)))
    if page_cache:
        samples.append((cache_kind, key, float(usage.memory.with_page_cache)))


class PodsCollector(Collector):
    """Usage of all pods and their containers, their sums, and their memory per NUMA node.

    CPU and memory are independent: who throttles CPU must not stop for want of a memory figure, nor the other way round. Of a pod
    of which neither can be read the containers are not read either. A first reading gives no sample.
    """

    name: ClassVar[str] = "pods"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._rates: dict[str, Rate] = {}
        self._known: dict[str, PodState] = {}

    def collect(self, at: Round) -> None:
        pods = self.context.sensed_pods()
        self._forget_gone(pods)
        samples: list[Sample] = []
        page_cache = self.context.page_cache
        cpu_sum = memory_sum = 0.0
        seeded = measured = 0
        numa_sum: dict[int, float] = {}
        for pod in pods:
            usage = self._usage(at, pod.uid, pod.cgroup_dir, pod.key, quiet=not pod.active)
            if usage.memory is not None:
                # memory needs no second reading: without it in the sums a new pod would count as system for a round
                memory_sum += usage.memory.without_page_cache
                self._add_numa(pod, numa_sum)
            if not usage.missing:
                self._containers(at, pod, samples, page_cache)
            seeded += usage.seeded
            if usage.cpu is not None:
                measured += 1
                cpu_sum += usage.cpu
            _append(samples, usage, (pod.uid,), _POD_KINDS, page_cache)
        self.context.store.append(at.now, samples)
        shared = self.context.shared
        if not self.context.pods_known() or (seeded and not measured):
            # all of their CPU would be taken for the system's
            shared.pods = shared.pods_numa = None
            return
        shared.pods = Stamped(at.now, cpu_sum, memory_sum)
        shared.pods_numa = (at.now, numa_sum) if numa_sum else None

    def _containers(self, at: Round, pod: PodState, samples: list[Sample], page_cache: bool) -> None:
        for container in pod.containers:
            if container.cgroup_dir:
                label = f"{pod.key}/{container.name}"
                usage = self._usage(at, container.id, container.cgroup_dir, label, quiet=not container.running)
                _append(samples, usage, (container.id,), _CONTAINER_KINDS, page_cache)

    def _usage(self, at: Round, key: str, directory: str, label: str, *, quiet: bool) -> _Usage:
        """CPU and memory of one cgroup, each for itself."""
        v2 = self.context.host.cgroups.v2
        cpu: float | None = None
        memory: parse.MemoryStat | None = None
        seeded = False
        try:
            path, data = self.read("memory.stat", directory)
            memory = parse.memory_stat(path, data, v2=v2)
            self.troubles.ok(f"{label} memory")
        except (HostFileError, ValueError) as error:
            self.troubles.failed(f"{label} memory", error, quiet=quiet)
        try:
            path, data = self.read("cpuacct.usage", directory)
            counter = parse.cpu_usage_ns(path, data, v2=v2)
        except (HostFileError, ValueError) as error:
            self.troubles.failed(f"{label} CPU", error, quiet=quiet)
            return _Usage(None, memory, seeded=False)
        self.troubles.ok(f"{label} CPU")
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate(FORGET_AFTER_INTERVALS * self.context.interval)
        per_second = rate.update(at.mono, counter)
        if per_second is None:
            seeded = True
        else:
            cpu = per_second / 1e9
        return _Usage(cpu, memory, seeded=seeded)

    def _memory(self, directory: str, label: str, *, quiet: bool) -> parse.MemoryStat | None:
        try:
            path, data = self.read("memory.stat", directory)
            memory = parse.memory_stat(path, data, v2=self.context.host.cgroups.v2)
        except (HostFileError, ValueError) as error:
            self.troubles.failed(f"{label} memory", error, quiet=quiet)
            return None
        self.troubles.ok(f"{label} memory")
        return memory

    def _add_numa(self, pod: PodState, sums: dict[int, float]) -> None:
        try:
            path, data = self.read("memory.numa_stat", pod.cgroup_dir)
            found = parse.numa_memory(path, data, v2=self.context.host.cgroups.v2, page_size=self.context.page_size)
        except (HostFileError, ValueError) as error:
            # kernels without NUMA have no such file at all: the pod is only missing in the NUMA sums
            self.troubles.failed(f"{pod.key} NUMA memory", error, quiet=True)
            return
        for node, value in found.items():
            sums[node] = sums.get(node, 0.0) + value

    def _forget_gone(self, pods: tuple[PodState, ...]) -> None:
        """Close files and drop series of pods and containers that the kubelet lists no more."""
        now = {p.uid: p for p in pods}
        if now == self._known or (all(self._known.get(uid) is pod for uid, pod in now.items()) and len(now) == len(self._known)):
            return
        host, store = self.context.host, self.context.store
        alive = {c.id for p in pods for c in p.all_containers() if c.id}
        for uid, pod in self._known.items():
            if uid not in now:
                self._rates.pop(uid, None)
                for kind in (kinds.POD_CPU, kinds.POD_MEMORY, kinds.POD_MEMORY_WITH_PAGE_CACHE, kinds.POD_CPU_THROTTLED):
                    store.drop(kind, pod_uid=uid)
            for container in pod.all_containers():
                if container.id and container.id not in alive:
                    self._rates.pop(container.id, None)
                    for kind in (
                        kinds.CONTAINER_CPU,
                        kinds.CONTAINER_MEMORY,
                        kinds.CONTAINER_MEMORY_WITH_PAGE_CACHE,
                        kinds.CONTAINER_CPU_THROTTLED,
                    ):
                        store.drop(kind, container_id=container.id)
        gone = {d for p in self._known.values() for d in _dirs(p)} - {d for p in pods for d in _dirs(p)}
        if gone:
            subsystems = ("",) if host.cgroups.v2 else ("cpu", "cpuset", "cpuacct", "memory", "blkio")
            host.files.forget_dir(*(host.cgroups.subsystem_dir(s, d) for d in gone for s in subsystems))
            for directory in gone:
                host.cgroups.forget_dir(directory)
        self._known = now
        names = {p.key for p in pods} | {f"{p.key}/{c.name}" for p in pods for c in p.containers}
        self.troubles.keep({name + suffix for name in names for suffix in (" CPU", " memory", " NUMA memory")})


def _dirs(pod: PodState) -> list[str]:
    return [pod.cgroup_dir, *(c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir)]
