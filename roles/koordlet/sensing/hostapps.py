"""Host applications: processes of the node that the NodeSLO names (KLO-COL-06)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.host.cgroup import Cgroups
from roles.koordlet.host.errors import HostError
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, Rate, Round, SensingContext, Stamped
from roles.koordlet.states.slo import HostApp
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


def app_dir(cgroups: Cgroups, app: HostApp) -> str:
    """The application's cgroup directory; :class:`HostError` when its ``cgroupPath.base`` is unknown."""
    path = app.cgroup_path
    if path is None:
        return cgroups.host_app_dir(app.name, app.qos, None)
    return cgroups.host_app_dir(app.name, app.qos, path.base, path.parent_dir, path.relative_path)


class HostAppsCollector(Collector):
    """CPU, memory, and memory with page cache of each application, and their sums for the system collector.

    Sums always use memory without page cache, as node and pods do, so that the subtraction stays within one definition.
    """

    name: ClassVar[str] = "host applications"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._rates: dict[str, Rate] = {}

    def collect(self, at: Round) -> None:
        slo = self.context.slo()
        gauge = self.context.metrics.host_app_usage
        gauge.clear()
        if slo is None:
            raise HostError("no NodeSLO of this node yet, so its host applications are unknown")
        samples: list[Sample] = []
        cpu_sum = memory_sum = 0.0
        seeded = False
        for app in slo.host_applications:
            usage = self._usage(at, app)
            if usage is None:
                continue
            cpu, memory, with_cache = usage
            memory_sum += memory
            if cpu is None:
                seeded = True
                continue
            samples.append((kinds.HOST_APP_CPU, (app.name,), cpu))
            samples.append((kinds.HOST_APP_MEMORY, (app.name,), memory))
            samples.append((kinds.HOST_APP_MEMORY_WITH_PAGE_CACHE, (app.name,), with_cache))
            cpu_sum += cpu
            gauge.set(cpu, app.name, "cpu", app.priority, app.qos)
            gauge.set(memory, app.name, "memory", app.priority, app.qos)
        names = {a.name for a in slo.host_applications}
        for gone in [n for n in self._rates if n not in names]:
            del self._rates[gone]
        self.context.store.append(at.now, samples)
        # an application whose CPU is not known yet would be taken for the system
        self.context.shared.host_apps = Stamped(at.now, cpu_sum, memory_sum) if samples or not seeded else None

    def _usage(self, at: Round, app: HostApp) -> tuple[float | None, float, float] | None:
        """Cores (None on a first reading), memory without and with page cache; None when something cannot be read."""
        found = self.attempt(app.name, self._counters, app)
        if found is None:
            return None
        counter, memory, with_cache = found
        rate = self._rates.setdefault(app.name, Rate(FORGET_AFTER_INTERVALS * self.context.interval))
        per_second = rate.update(at.mono, counter)
        return (None if per_second is None else per_second / 1e9), float(memory), float(with_cache)

    def _counters(self, app: HostApp) -> tuple[int, int, int]:
        """CPU time in ns, and memory."""
        v2, directory = self.context.host.cgroups.v2, app_dir(self.context.host.cgroups, app)
        counter = parse.cpu_usage_ns(*self.read("cpuacct.usage", directory), v2=v2)
        memory = parse.memory_stat(*self.read("memory.stat", directory), v2=v2)
        return counter, memory.without_page_cache, parse.signed(*self.read("memory.usage_in_bytes", directory))
