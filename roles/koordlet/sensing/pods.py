"""CPU and memory of pods and containers (KLO-COL-03, page cache KLO-COL-08)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, HostFileError, Rate, Round, SensingContext, Stamped
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


class PodsCollector(Collector):
    """Usage of all pods and their containers, their sums, and their memory per NUMA node.

    Of a pod without a readable CPU counter the containers are not read either, so that a container never shows use that the sums
    do not hold. Memory that cannot be read leaves CPU alone: who throttles CPU must not stop for want of a memory figure.
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
            if usage is None:
                continue
            cpu, memory = usage
            if memory is not None:
                # memory needs no second reading: without it in the sums a new pod would count as system for a round
                memory_sum += memory.without_page_cache
                self._add_numa(pod, numa_sum)
                if page_cache:
                    samples.append((kinds.POD_MEMORY_WITH_PAGE_CACHE, (pod.uid,), float(memory.with_page_cache)))
            self._containers(at, pod, samples, page_cache)
            if cpu is None:
                seeded += 1
                continue
            measured += 1
            cpu_sum += cpu
            samples.append((kinds.POD_CPU, (pod.uid,), cpu))
            if memory is not None:
                samples.append((kinds.POD_MEMORY, (pod.uid,), float(memory.without_page_cache)))
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
            if not container.cgroup_dir:
                continue
            usage = self._usage(at, container.id, container.cgroup_dir, f"{pod.key}/{container.name}", quiet=not container.running)
            if usage is None:
                continue
            cpu, memory = usage
            if memory is not None and page_cache:
                samples.append((kinds.CONTAINER_MEMORY_WITH_PAGE_CACHE, (container.id,), float(memory.with_page_cache)))
            if cpu is not None:
                samples.append((kinds.CONTAINER_CPU, (container.id,), cpu))
                if memory is not None:
                    samples.append((kinds.CONTAINER_MEMORY, (container.id,), float(memory.without_page_cache)))

    def _usage(
        self, at: Round, key: str, directory: str, label: str, *, quiet: bool
    ) -> tuple[float | None, parse.MemoryStat | None] | None:
        """Cores (None on a first reading) and memory (None when it cannot be read) of one cgroup; None without CPU time."""
        v2 = self.context.host.cgroups.v2
        try:
            path, data = self.read("cpuacct.usage", directory)
            counter = parse.cpu_usage_ns(path, data, v2=v2)
        except (HostFileError, ValueError) as error:
            self.troubles.failed(label, error, quiet=quiet)
            return None
        self.troubles.ok(label)
        memory: parse.MemoryStat | None = None
        try:
            path, data = self.read("memory.stat", directory)
            memory = parse.memory_stat(path, data, v2=v2)
            self.troubles.ok(f"{label} memory")
        except (HostFileError, ValueError) as error:
            self.troubles.failed(f"{label} memory", error, quiet=quiet)
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate(FORGET_AFTER_INTERVALS * self.context.interval)
        per_second = rate.update(at.mono, counter)
        return (None if per_second is None else per_second / 1e9), memory

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
        self.troubles.keep({name + suffix for name in names for suffix in ("", " memory", " NUMA memory")})


def _dirs(pod: PodState) -> list[str]:
    return [pod.cgroup_dir, *(c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir)]
