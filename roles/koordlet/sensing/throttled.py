"""CFS throttling of pods and containers (KLO-COL-04)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.host.errors import HostFileError
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, Round, SensingContext
from roles.koordlet.states.model import PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


class _Cgroup:
    """One pod or container: its file, and what was read of it last."""

    __slots__ = ("data", "key", "kind", "label", "mono", "path", "periods", "still", "throttled")

    def __init__(self, kind: str, key: str, path: str, label: str) -> None:
        self.kind, self.key, self.path, self.label = kind, (key,), path, label
        self.mono: float | None = None
        self.periods = self.throttled = 0
        self.data = b""
        self.still = False  # no period passed between the last two readings


class ThrottledCollector(Collector):
    """Throttled share of CFS periods between two readings; a container does not depend on its pod being readable.

    A group that used no CPU since the last round, and had no periods in the round before, has none now: it is not read.
    """

    name: ClassVar[str] = "throttled"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._listed: tuple[PodState, ...] = ()
        self._cgroups: dict[str, _Cgroup] = {}

    def collect(self, at: Round) -> None:
        pods = self.context.pods()
        if pods is not self._listed:
            self._cgroups = self._list()
            self._listed = pods
        samples: list[Sample] = []
        shared = self.context.shared
        idle, shared.idle = shared.idle, frozenset()
        for cgroup in self._cgroups.values():
            self._read(at, cgroup, samples, idle=cgroup.key in idle)
        self.context.store.append(at.now, samples)

    def _list(self) -> dict[str, _Cgroup]:
        """What there is to read now; what was there before keeps its last reading."""
        found: dict[str, _Cgroup] = {}
        for pod in self.context.sensed_pods():
            self._add(found, kinds.POD_CPU_THROTTLED, pod.uid, pod.cgroup_dir, pod.key)
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    self._add(found, kinds.CONTAINER_CPU_THROTTLED, container.id, container.cgroup_dir, f"{pod.key}/{container.name}")
        return found

    def _add(self, found: dict[str, _Cgroup], kind: str, key: str, directory: str, label: str) -> None:
        try:
            path = self.context.host.cgroups.file("cpu.stat", directory)
        except ValueError as error:
            self.troubles.failed(label, error, quiet=True)
            return
        known = self._cgroups.get(key)
        found[key] = known if known is not None and known.path == path else _Cgroup(kind, key, path, label)

    def _read(self, at: Round, cgroup: _Cgroup, samples: list[Sample], *, idle: bool) -> None:
        host = self.context.host
        recent = cgroup.mono is not None and at.mono - cgroup.mono <= FORGET_AFTER_INTERVALS * self.context.interval
        if idle and cgroup.still and recent:
            samples.append((cgroup.kind, cgroup.key, 0.0))
            cgroup.mono = at.mono
            return
        try:
            data = host.files.read(cgroup.path)
            if data == cgroup.data:
                periods, throttled = cgroup.periods, cgroup.throttled
            else:
                periods, throttled = parse.throttled_periods(cgroup.path, data, v2=host.cgroups.v2)
        except HostFileError as error:
            self.troubles.failed(cgroup.label, error, quiet=True)
            return
        self.troubles.ok(cgroup.label)
        cgroup.still = False
        if recent:
            passed, lost = periods - cgroup.periods, throttled - cgroup.throttled
            samples.append((cgroup.kind, cgroup.key, lost / passed if passed > 0 and lost >= 0 else 0.0))
            cgroup.still = passed == 0
        cgroup.mono, cgroup.data, cgroup.periods, cgroup.throttled = at.mono, data, periods, throttled
