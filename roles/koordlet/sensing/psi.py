"""Pressure of pods and containers (KLO-COL-11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from roles.koordlet.host.psi import Psi, parse_psi
from roles.koordlet.metrics.series import Gauge
from roles.koordlet.sensing.base import Collector, Round, SensingContext
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

_POD = (kinds.POD_PSI, kinds.POD_PSI_CPU_FULL_SUPPORTED)
_CONTAINER = (kinds.CONTAINER_PSI, kinds.CONTAINER_PSI_CPU_FULL_SUPPORTED)
_FILES = (("cpu", "cpu.pressure"), ("mem", "memory.pressure"), ("io", "io.pressure"))


class PsiCollector(Collector):
    """avg10 of cpu, memory and io go to the store, all averages to the gauges. Needs the files in the kubepods directory.

    Where interference is looked for, the share of the time since the last round is kept too: an average over ten seconds, which the kernel
    makes every two, tells of a rise too late.
    """

    name: ClassVar[str] = "psi"
    gate: ClassVar[str] = "PSICollector"

    def __init__(self, context: SensingContext, interval: float | None = None) -> None:
        super().__init__(context, interval)
        self._totals: dict[str, tuple[float, dict[str, int]]] = {}

    def collect(self, at: Round) -> None:
        metrics = self.context.metrics
        metrics.container_psi.clear()
        metrics.pod_psi.clear()
        if not all(self.context.host.cgroups.has_pressure(resource) for _, resource in _FILES):
            return
        samples: list[Sample] = []
        before, self._totals = self._totals, {}
        recent = self.context.gate("InterferenceDetection")
        for pod in self.context.sensed_pods():
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    inner = self.attempt(f"{pod.key}/{container.name}", self._read_all, container.cgroup_dir, quiet=True)
                    own = (container.id, container.name, pod.uid, pod.name, pod.namespace)
                    samples += _samples(_CONTAINER, (pod.uid, container.id), inner, metrics.container_psi, own)
            found = self.attempt(pod.key, self._read_all, pod.cgroup_dir, quiet=True)
            samples += _samples(_POD, (pod.uid,), found, metrics.pod_psi, (pod.uid, pod.name, pod.namespace))
            if recent and found is not None:
                samples += self._since(before.get(pod.uid), pod.uid, found, at.mono)
        self.context.store.append(at.now, samples)

    def _since(self, before: tuple[float, dict[str, int]] | None, uid: str, found: dict[str, Psi], mono: float) -> list[Sample]:
        """Percent of the time since the last round that some task of the pod waited."""
        totals = {resource: psi.some.total for resource, psi in found.items()}
        self._totals[uid] = mono, totals
        if before is None or mono <= before[0]:
            return []
        took = (mono - before[0]) * 1e6
        rows: list[Sample] = []
        for resource, total in totals.items():
            waited = total - before[1][resource]
            # a total that stands still says no more than the average
            share = min(100.0 * waited / took, 100.0) if waited > 0 else found[resource].some.avg10
            rows.append((kinds.POD_PSI, (uid, resource, kinds.PSI_RECENT, "some"), share))
        return rows

    def _read_all(self, directory: str) -> dict[str, Psi]:
        """The three files of one cgroup; one failure fails all."""
        host = self.context.host
        paths = {name: host.cgroups.pressure_file(resource, directory) for name, resource in _FILES}
        return {name: parse_psi(path, host.files.read(path)) for name, path in paths.items()}


def _samples(
    to: tuple[str, str], key: tuple[str, ...], found: dict[str, Psi] | None, gauge: Gauge, labels: tuple[str, ...]
) -> Iterator[Sample]:
    """Samples of a pod or a container, whose gauges are set on the way."""
    if found is None:
        return
    pressure, full_supported = to
    for resource, psi in found.items():
        yield pressure, (*key, resource, "10", "some"), psi.some.avg10
        yield pressure, (*key, resource, "10", "full"), psi.full.avg10
        for values, number in _gauge_rows(resource, psi):
            gauge.set(number, *labels, *values)
    yield full_supported, key, float(found["cpu"].full_supported)


def _gauge_rows(resource: str, psi: Psi) -> list[tuple[tuple[str, str, str, str], float]]:
    """(resource type, precision, degree, full supported) and value; full lines only where the kernel writes them."""
    supported = "true" if psi.full_supported else "false"
    degrees = [("some", psi.some), ("full", psi.full)] if psi.full_supported else [("some", psi.some)]
    return [
        ((resource, precision, degree, supported), value)
        for degree, line in degrees
        for precision, value in (("avg10", line.avg10), ("avg60", line.avg60), ("avg300", line.avg300))
    ]
