"""The best-effort tier's CPU: real limit, request and use (KLO-COL-05)."""

from __future__ import annotations

from typing import ClassVar

from koord.api.names import RESOURCE_BATCH_CPU
from koord.api.qos import QoSClass
from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.host import parse
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.topology import parse_cpu_list
from roles.koordlet.qos import view
from roles.koordlet.sensing.base import Collector, Round, SensingContext
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds

#: Container directories below the BestEffort level are listed again after this many seconds; they change with pods only.
_LIST_EVERY = 5.0


def batch_cpu_request(pod: PodState) -> int:
    """Milli batch-cpu that a pod's containers and sidecars request; negative and unreadable values count as 0."""
    total = 0
    containers = (*pod.pod.spec.containers, *(c for c in pod.pod.spec.init_containers if c.is_sidecar))
    for container in containers:
        quantity = container.resources.requests.get(RESOURCE_BATCH_CPU)
        if quantity is None:
            continue
        try:
            total += max(parse_value(quantity), 0)
        except QuantityError:
            continue
    return total


class BECollector(Collector):
    """All three values in milli-cores, or none of them."""

    name: ClassVar[str] = "be"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._before: tuple[float, int] | None = None
        self._dirs: tuple[float, list[str]] | None = None

    def collect(self, at: Round) -> None:
        cgroups = self.context.host.cgroups
        directory = cgroups.qos_dir(BESTEFFORT)
        limit = self._real_limit(at, directory)
        usage = self._usage(at, parse.cpu_usage_ns(*self.read("cpuacct.usage", directory), v2=cgroups.v2))
        # a pod that has ended stays in the kubelet's list for long, and asks for nothing any more
        request = sum(batch_cpu_request(p) for p in self.context.pods() if p.qos_label is QoSClass.BE and not p.terminated)
        if usage is None:
            return
        self.context.store.append(
            at.now,
            [
                (kinds.NODE_BE, ("cpu", "usage"), float(usage)),
                (kinds.NODE_BE, ("cpu", "real-limit"), float(limit)),
                (kinds.NODE_BE, ("cpu", "request"), float(request)),
            ],
        )
        self.context.metrics.be_used_cpu.set(usage / 1000)

    def _usage(self, at: Round, counter: int) -> int | None:
        """Milli-cores since the last reading; 0 on the first one, None when the counter went back."""
        before, self._before = self._before, (at.mono, counter)
        if before is None:
            return 0
        elapsed_ms = round((at.mono - before[0]) * 1000)
        grown_ms = (counter - before[1]) // 1_000_000
        if elapsed_ms <= 0 or counter < before[1]:
            return None
        return 1000 * grown_ms // elapsed_ms

    def _real_limit(self, at: Round, directory: str) -> int:
        cgroups = self.context.host.cgroups
        quota = parse.cpu_quota(*self.read("cpu.cfs_quota_us", directory), v2=cgroups.v2)
        path, data = self.read("cpu.cfs_period_us", directory)
        period = parse.cpu_period(path, data, v2=cgroups.v2)
        cpuset = self._smallest_cpuset(at, directory) * 1000
        if quota == -1:
            return cpuset
        if period <= 0:
            raise HostError(f"{path}: period {period} is not positive")
        return min(cpuset, quota * 1000 // period)

    def _smallest_cpuset(self, at: Round, directory: str) -> int:
        """Size of the smallest cpuset of the level and of all directories exactly two levels below it."""
        resource = "cpuset.cpus.effective" if self.context.host.cgroups.v2 else "cpuset.cpus"
        sizes: list[int] = []
        for candidate in (directory, *self._containers(at, directory)):
            try:
                path, data = self.read(resource, candidate)
                size = len(parse_cpu_list(path, data.decode("ascii", "replace")))
            except HostError:
                if candidate == directory:
                    raise
                continue  # a container that has just gone
            if size or candidate == directory:
                sizes.append(size)
        return min(sizes)

    def _containers(self, at: Round, directory: str) -> list[str]:
        if self._dirs is not None and at.mono - self._dirs[0] < _LIST_EVERY:
            return self._dirs[1]
        _, _, found = view.tree(self.context.host, "cpuset", directory, 2)
        self._dirs = (at.mono, found)
        return found
