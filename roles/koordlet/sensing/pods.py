"""CPU and memory of pods and containers (KLO-COL-03, page cache KLO-COL-08)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.errors import CgroupGoneError, HostFileError
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, Rate, Round, SensingContext, Stamped
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

_POD_KINDS = (kinds.POD_CPU, kinds.POD_MEMORY, kinds.POD_MEMORY_WITH_PAGE_CACHE)
#: Series that end with their pod or container.
_OF_A_POD = tuple(kind for kind, schema in kinds.SCHEMAS.items() if "pod_uid" in schema and "container_id" not in schema)
_OF_A_CONTAINER = tuple(kind for kind, schema in kinds.SCHEMAS.items() if "container_id" in schema)
#: Hierarchies of cgroup v1 whose files are kept open; the unified one of a hybrid machine has the pressure.
_SUBSYSTEMS = ("cpu", "cpuset", "cpuacct", "memory", "blkio", "unified")
#: Memory of a group that uses no CPU is read every so many rounds: it can only be reclaimed, and its memory.stat is the dearest file.
_ASLEEP = 5
_CONTAINER_KINDS = (kinds.CONTAINER_CPU, kinds.CONTAINER_MEMORY, kinds.CONTAINER_MEMORY_WITH_PAGE_CACHE)


class _Cgroup:
    """One pod or container: where its numbers stand and under which keys they go, found out once."""

    __slots__ = (
        "asleep", "counter", "cpu_label", "cpu_path", "cpu_unknown", "key", "kinds", "memory", "memory_label", "memory_path",
        "memory_unknown", "quiet", "rate", "seen",
    )  # fmt: skip

    def __init__(
        self, cgroups: Cgroups, key: str, directory: str, label: str, to: tuple[str, str, str], rate: Rate, *, quiet: bool
    ) -> None:
        self.key = (key,)
        self.kinds = to
        self.rate = rate
        self.quiet = quiet
        self.seen = False
        self.counter: int | None = None
        self.asleep = 0  # rounds without any use of CPU, in which memory was not read
        self.memory: tuple[int, int] | None = None
        self.cpu_unknown = self.memory_unknown = False  # there is something to read, and it could not be read
        self.memory_path = cgroups.file("memory.stat", directory)
        self.cpu_path = cgroups.file("cpuacct.usage", directory)
        self.memory_label = f"{label} memory"
        self.cpu_label = f"{label} CPU"


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod as the kubelet last listed it, and its cgroups; another object in the list makes another one of these."""

    state: PodState
    own: _Cgroup
    containers: tuple[_Cgroup, ...]
    numa_path: str


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
        self._pods: dict[str, _Pod] = {}
        self._idle: set[tuple[str, ...]] = set()

    def collect(self, at: Round) -> None:
        pods = self.context.sensed_pods()
        self._forget_gone(pods)
        samples: list[Sample] = []
        page_cache = self.context.page_cache
        cpu_sum = memory_sum = 0.0
        seeded = measured = 0
        cpu_known = memory_known = True
        numa_sum: dict[int, float] = {}
        only_node = self._only_numa_node()
        for state in pods:
            pod = self._pod(state)
            if pod is None:
                continue
            cpu, memory, first = self._read(at, pod.own, samples, page_cache)
            cpu_known, memory_known = cpu_known and not pod.own.cpu_unknown, memory_known and not pod.own.memory_unknown
            if memory is not None:
                # memory needs no second reading: without it in the sums a new pod would count as system for a round
                memory_sum += memory
                if only_node is not None:
                    numa_sum[only_node] = numa_sum.get(only_node, 0.0) + memory
                else:
                    self._add_numa(pod, numa_sum)
            if cpu is not None:
                measured += 1
                cpu_sum += cpu
            elif memory is None and not first:
                continue
            seeded += first
            for container in pod.containers:
                self._read(at, container, samples, page_cache)
        self.context.store.append(at.now, samples)
        shared = self.context.shared
        shared.idle, self._idle = frozenset(self._idle), set()
        if not self.context.pods_known() or not cpu_known or (seeded and not measured):
            # what they use would be taken for the system's, and be counted twice by whoever adds the two
            shared.pods = shared.pods_numa = None
            return
        shared.pods = Stamped(at.now, cpu_sum, memory_sum if memory_known else None)
        shared.pods_numa = (at.now, numa_sum) if numa_sum and memory_known else None

    def _only_numa_node(self) -> int | None:
        """The machine's NUMA node if there is just one: all memory is there, no pod's numa_stat needs to be read."""
        nodes = self.context.shared.node_numa_memory
        return next(iter(nodes)) if len(nodes) == 1 else None

    def _pod(self, state: PodState) -> _Pod | None:
        """Where a pod's numbers stand; None when its directory cannot be used."""
        known = self._pods.get(state.uid)
        if known is not None and known.state is state:
            return known
        cgroups = self.context.host.cgroups
        try:
            own = _Cgroup(cgroups, state.uid, state.cgroup_dir, state.key, _POD_KINDS, self._rate(state.uid), quiet=not state.active)
            containers = tuple(
                _Cgroup(cgroups, c.id, c.cgroup_dir, f"{state.key}/{c.name}", _CONTAINER_KINDS, self._rate(c.id), quiet=not c.running)
                for c in state.containers
                if c.cgroup_dir
            )
            pod = _Pod(state, own, containers, cgroups.file("memory.numa_stat", state.cgroup_dir))
        except ValueError as error:
            self.troubles.failed(f"{state.key} CPU", error)
            return None
        self._pods[state.uid] = pod
        return pod

    def _rate(self, key: str) -> Rate:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate(FORGET_AFTER_INTERVALS * self.context.interval)
        return rate

    def _read(self, at: Round, cgroup: _Cgroup, samples: list[Sample], page_cache: bool) -> tuple[float | None, float | None, bool]:
        """One reading with its samples: cores, bytes without page cache, and whether CPU has only been seeded.

        CPU and memory stand each for itself and are None when they cannot be told.
        """
        host, troubles = self.context.host, self.troubles
        v2 = host.cgroups.v2
        memory = with_cache = counter = None
        cgroup.cpu_unknown = cgroup.memory_unknown = False
        try:
            counter = parse.cpu_usage_ns(cgroup.cpu_path, host.files.read(cgroup.cpu_path), v2=v2)
            troubles.ok(cgroup.cpu_label)
        except (HostFileError, ValueError) as error:
            troubles.failed(cgroup.cpu_label, error, quiet=cgroup.quiet or _just_ended(cgroup, error))
            cgroup.cpu_unknown = not cgroup.quiet and not isinstance(error, CgroupGoneError)
        idle = counter is not None and counter == cgroup.counter and host.files.of_kernel(cgroup.cpu_path)
        cgroup.counter = counter
        if idle:
            self._idle.add(cgroup.key)
        if idle and cgroup.memory is not None and cgroup.asleep < _ASLEEP - 1:
            cgroup.asleep += 1
            memory, with_cache = cgroup.memory
        else:
            cgroup.asleep, cgroup.memory = 0, None
            try:
                memory, with_cache = cgroup.memory = parse.memory_usage(cgroup.memory_path, host.files.read(cgroup.memory_path), v2=v2)
                troubles.ok(cgroup.memory_label)
            except (HostFileError, ValueError) as error:
                troubles.failed(cgroup.memory_label, error, quiet=cgroup.quiet or _just_ended(cgroup, error))
                cgroup.memory_unknown = not cgroup.quiet and not isinstance(error, CgroupGoneError)
        cgroup.seen = cgroup.seen or counter is not None
        per_second = cgroup.rate.update(at.mono, counter) if counter is not None else None
        first = counter is not None and per_second is None
        cpu_kind, memory_kind, cache_kind = cgroup.kinds
        cpu = None
        if per_second is not None:
            cpu = per_second / 1e9
            samples.append((cpu_kind, cgroup.key, cpu))
        if memory is not None and with_cache is not None:
            if not first:
                samples.append((memory_kind, cgroup.key, float(memory)))
            if page_cache:
                # a gauge that needs no second reading
                samples.append((cache_kind, cgroup.key, float(with_cache)))
        return cpu, memory, first

    def _add_numa(self, pod: _Pod, sums: dict[int, float]) -> None:
        host, label = self.context.host, f"{pod.state.key} NUMA memory"
        try:
            data = host.files.read(pod.numa_path)
            found = parse.numa_memory(pod.numa_path, data, v2=host.cgroups.v2, page_size=self.context.page_size)
            self.troubles.ok(label)
        except (HostFileError, ValueError) as error:
            # kernels without NUMA have no such file at all: the pod is only missing in the NUMA sums
            self.troubles.failed(label, error, quiet=True)
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
                self._pods.pop(uid, None)
                for kind in _OF_A_POD:
                    store.drop(kind, pod_uid=uid)
            for container in pod.all_containers():
                if container.id and container.id not in alive:
                    self._rates.pop(container.id, None)
                    for kind in _OF_A_CONTAINER:
                        store.drop(kind, container_id=container.id)
        gone = {d for p in self._known.values() for d in _dirs(p)} - {d for p in pods for d in _dirs(p)}
        if gone:
            subsystems = ("",) if host.cgroups.v2 else _SUBSYSTEMS
            host.files.forget_dir(*(host.cgroups.subsystem_dir(s, d) for d in gone for s in subsystems))
            host.cgroups.forget(gone)
        self._known = now
        names = {p.key for p in pods} | {f"{p.key}/{c.name}" for p in pods for c in p.containers}
        self.troubles.keep({name + suffix for name in names for suffix in (" CPU", " memory", " NUMA memory")})


def _dirs(pod: PodState) -> list[str]:
    return [pod.cgroup_dir, *(c.cgroup_dir for c in pod.all_containers() if c.cgroup_dir)]


def _just_ended(cgroup: _Cgroup, error: Exception) -> bool:
    """Whether a group that could be read is gone: its pod ended, and the kubelet has not said so yet."""
    return cgroup.seen and isinstance(error, CgroupGoneError)
