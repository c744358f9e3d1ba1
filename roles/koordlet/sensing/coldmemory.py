"""Cold memory of node, pods, containers and host applications by kidled (KLO-COL-09)."""

from __future__ import annotations

import os
from typing import ClassVar

from roles.koordlet.host import parse, proc
from roles.koordlet.host.coldpages import cold_bytes
from roles.koordlet.host.errors import HostError, HostFileError
from roles.koordlet.sensing.base import Collector, Round, SensingContext
from roles.koordlet.sensing.hostapps import app_dir
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

#: Files below /sys/kernel/mm/kidled and what they are set to: scan every 5 s, a group counts its children.
SWITCHES = (("scan_period_in_seconds", "5"), ("use_hierarchy", "1"))
_FILE = "memory.idle_page_stats"


class ColdMemoryCollector(Collector):
    """Cold bytes, and use with page cache but without cold pages. Node, pods and applications fail each for themselves.

    Enabled by the gate on kernels with kidled, which the first round switches on; a kernel that refuses that turns the collector
    into one that does nothing. ``context.shared.cold_memory`` tells the report that there are hot-page series.
    """

    name: ClassVar[str] = "cold memory"

    def __init__(self, context: SensingContext, interval: float = 5.0) -> None:
        super().__init__(context, interval)
        self._refused = False
        self._base = context.host.root.sys_path("kernel/mm/kidled")

    @property
    def enabled(self) -> bool:
        if not self.context.gate("ColdPageCollector"):
            return False
        lacking = [name for name, _ in SWITCHES if not os.path.exists(os.path.join(self._base, name))]
        if lacking:
            self.troubles.failed("the node", HostError(f"this kernel has no kidled: {os.path.join(self._base, lacking[0])} does not exist"))
        elif self.context.host.cgroups.v2:
            self.troubles.failed("the node", HostError("kidled does not count by cgroup v2"))
        else:
            return True
        return False

    def collect(self, at: Round) -> None:
        shared = self.context.shared
        if not shared.cold_memory and not self._refused:
            self._refused = not self._switch_on()
            shared.cold_memory = not self._refused
        if self._refused:
            return
        samples: list[Sample] = []
        self._node(samples)
        for pod in self.context.sensed_pods():
            own = (kinds.POD_MEMORY_COLD_PAGE, kinds.POD_MEMORY_WITH_HOT_PAGE)
            inner = (kinds.CONTAINER_MEMORY_COLD_PAGE, kinds.CONTAINER_MEMORY_WITH_HOT_PAGE)
            self._cgroup(samples, own, pod.uid, pod.cgroup_dir, pod.key)
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    self._cgroup(samples, inner, container.id, container.cgroup_dir, f"{pod.key}/{container.name}")
        self._applications(samples)
        self.context.store.append(at.now, samples)

    def _switch_on(self) -> bool:
        """Let kidled scan; whether the kernel took it."""
        for name, value in SWITCHES:
            path = os.path.join(self._base, name)
            refusal = self.context.change(name, path, value)
            if refusal:
                self.troubles.failed("the node", HostFileError(path, f"is not set to {value}: {refusal}; cold memory stays off"))
                return False
        return True

    def _node(self, samples: list[Sample]) -> None:
        to = (kinds.NODE_MEMORY_COLD_PAGE, kinds.NODE_MEMORY_WITH_HOT_PAGE)
        if (found := self.attempt("the node", self._of_node)) is not None:
            _add(samples, to, (), *found)

    def _of_node(self) -> tuple[int, int]:
        """Cold bytes, and all that are in use."""
        host = self.context.host
        path = host.root.proc_path("meminfo")
        memory = proc.meminfo(path, host.files.read(path))
        return cold_bytes(*self.read(_FILE, "")), memory.used_with_page_cache

    def _applications(self, samples: list[Sample]) -> None:
        slo = self.context.slo()
        to = (kinds.HOST_APP_MEMORY_COLD_PAGE, kinds.HOST_APP_MEMORY_WITH_HOT_PAGE)
        for app in slo.host_applications if slo is not None else ():
            try:
                directory = app_dir(self.context.host.cgroups, app)
            except (HostError, ValueError) as error:
                self.troubles.failed(app.name, error)
            else:
                self._cgroup(samples, to, app.name, directory, app.name)

    def _cgroup(self, samples: list[Sample], to: tuple[str, str], key: str, directory: str, label: str) -> None:
        if (found := self.attempt(label, self._of_cgroup, directory, quiet=True)) is not None:
            _add(samples, to, (key,), *found)

    def _of_cgroup(self, directory: str) -> tuple[int, int]:
        _, used = parse.memory_usage(*self.read("memory.stat", directory), v2=False)
        return cold_bytes(*self.read(_FILE, directory)), used


def _add(samples: list[Sample], to: tuple[str, str], key: tuple[str, ...], cold: int, used: int) -> None:
    samples.append((to[0], key, float(cold)))
    samples.append((to[1], key, float(max(used - cold, 0))))
