"""Pressure of pods and containers (KLO-COL-11)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.psi import Psi, parse_psi
from roles.koordlet.sensing.base import Collector, Round
from roles.koordlet.states.model import ContainerState, PodState
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample

_FILES = (("cpu", "cpu.pressure"), ("mem", "memory.pressure"), ("io", "io.pressure"))


class PsiCollector(Collector):
    """avg10 of cpu, memory and io go to the store, all averages to the gauges. Needs the files in the kubepods directory."""

    name: ClassVar[str] = "psi"
    gate: ClassVar[str] = "PSICollector"

    def collect(self, at: Round) -> None:
        metrics = self.context.metrics
        metrics.container_psi.clear()
        metrics.pod_psi.clear()
        if not all(self.context.host.cgroups.has_pressure(resource) for _, resource in _FILES):
            return
        samples: list[Sample] = []
        for pod in self.context.sensed_pods():
            for container in pod.containers:
                if container.cgroup_dir and container.running:
                    self._container(pod, container, samples)
            found = self._read_all(pod.cgroup_dir, pod.key)
            if found is None:
                continue
            labels = (pod.uid, pod.name, pod.namespace)
            for resource, psi in found.items():
                self._samples(samples, kinds.POD_PSI, (pod.uid,), resource, psi)
                for values, number in _gauge_rows(resource, psi):
                    metrics.pod_psi.set(number, *labels, *values)
            samples.append((kinds.POD_PSI_CPU_FULL_SUPPORTED, (pod.uid,), float(found["cpu"].full_supported)))
        self.context.store.append(at.now, samples)

    def _container(self, pod: PodState, container: ContainerState, samples: list[Sample]) -> None:
        found = self._read_all(container.cgroup_dir, f"{pod.key}/{container.name}")
        if found is None:
            return
        key = (pod.uid, container.id)
        labels = (container.id, container.name, pod.uid, pod.name, pod.namespace)
        for resource, psi in found.items():
            self._samples(samples, kinds.CONTAINER_PSI, key, resource, psi)
            for values, number in _gauge_rows(resource, psi):
                self.context.metrics.container_psi.set(number, *labels, *values)
        samples.append((kinds.CONTAINER_PSI_CPU_FULL_SUPPORTED, key, float(found["cpu"].full_supported)))

    def _read_all(self, directory: str, label: str) -> dict[str, Psi] | None:
        """The three files of one cgroup; one failure fails all."""
        host = self.context.host
        try:
            out = {}
            for name, resource in _FILES:
                path = host.cgroups.pressure_file(resource, directory)
                out[name] = parse_psi(path, host.files.read(path))
        except (HostError, ValueError) as error:
            self.troubles.failed(label, error, quiet=True)
            return None
        self.troubles.ok(label)
        return out

    @staticmethod
    def _samples(samples: list[Sample], kind: str, key: tuple[str, ...], resource: str, psi: Psi) -> None:
        samples.append((kind, (*key, resource, "10", "some"), psi.some.avg10))
        samples.append((kind, (*key, resource, "10", "full"), psi.full.avg10))


def _gauge_rows(resource: str, psi: Psi) -> list[tuple[tuple[str, str, str, str], float]]:
    """(resource type, precision, degree, full supported) and value; full lines only where the kernel writes them."""
    supported = "true" if psi.full_supported else "false"
    degrees = [("some", psi.some), ("full", psi.full)] if psi.full_supported else [("some", psi.some)]
    return [
        ((resource, precision, degree, supported), value)
        for degree, line in degrees
        for precision, value in (("avg10", line.avg10), ("avg60", line.avg60), ("avg300", line.avg300))
    ]
