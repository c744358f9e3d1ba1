"""CFS throttling of pods and containers (KLO-COL-04)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import parse
from roles.koordlet.sensing.base import FORGET_AFTER_INTERVALS, Collector, HostFileError, Round, SensingContext
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


class ThrottledCollector(Collector):
    """Throttled share of CFS periods between two readings; a container does not depend on its pod being readable."""

    name: ClassVar[str] = "throttled"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._before: dict[str, tuple[float, parse.Throttling]] = {}

    def collect(self, at: Round) -> None:
        samples: list[Sample] = []
        seen: dict[str, tuple[float, parse.Throttling]] = {}
        for pod in self.context.sensed_pods():
            self._sample(at, seen, samples, kinds.POD_CPU_THROTTLED, pod.uid, self._read(pod.cgroup_dir, pod.key))
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    current = self._read(container.cgroup_dir, f"{pod.key}/{container.name}")
                    self._sample(at, seen, samples, kinds.CONTAINER_CPU_THROTTLED, container.id, current)
        limit = FORGET_AFTER_INTERVALS * self.context.interval
        seen.update({k: v for k, v in self._before.items() if k not in seen and at.mono - v[0] <= limit})
        self._before = seen
        self.context.store.append(at.now, samples)

    def _read(self, directory: str, label: str) -> parse.Throttling | None:
        try:
            path, data = self.read("cpu.stat", directory)
            current = parse.throttling(path, data, v2=self.context.host.cgroups.v2)
        except HostFileError as error:
            self.troubles.failed(label, error, quiet=True)
            return None
        self.troubles.ok(label)
        return current

    def _sample(
        self,
        at: Round,
        seen: dict[str, tuple[float, parse.Throttling]],
        samples: list[Sample],
        kind: str,
        key: str,
        current: parse.Throttling | None,
    ) -> None:
        if current is None:
            return
        before = self._before.get(key)
        seen[key] = (at.mono, current)
        if before is not None and at.mono - before[0] <= FORGET_AFTER_INTERVALS * self.context.interval:
            samples.append((kind, (key,), current.ratio_since(before[1])))
