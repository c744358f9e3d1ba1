"""System usage: what is left of the node when pods and host applications are taken away (KLO-COL-07)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.sensing.base import Collector, Round, Stamped
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


def numa_system_cpu(system: float, node_cpu: dict[int, float]) -> dict[int, float]:
    """System CPU apportioned by each NUMA node's share of the node's CPU; zeros when the node was idle."""
    total = sum(node_cpu.values())
    return {node: system * cpu / total if total > 0 else 0.0 for node, cpu in node_cpu.items()}


def numa_system_memory(node: dict[int, float], pods: dict[int, float]) -> dict[int, float]:
    """Node minus pods on each NUMA node, never negative."""
    return {number: max(value - pods.get(number, 0.0), 0.0) for number, value in node.items()}


class SystemCollector(Collector):
    """``max(node - pods - host applications, 0)``; any input missing or stale means no sample this round."""

    name: ClassVar[str] = "system"

    def collect(self, at: Round) -> None:
        shared = self.context.shared
        oldest = at.now - self.context.options.collect_sys_metric_outdated_interval
        inputs: list[Stamped] = []
        for name, value in (("node", shared.node), ("pods", shared.pods), ("host applications", shared.host_apps)):
            if value is None or value.time < oldest or value.time > at.now:
                raise HostError(f"no fresh usage of {name}")
            inputs.append(value)
        node, pods, apps = inputs
        cpu = max(node.cpu - pods.cpu - apps.cpu, 0.0)
        samples: list[Sample] = [(kinds.SYS_CPU, (), cpu)]
        if node.memory is not None and pods.memory is not None and apps.memory is not None:
            samples.append((kinds.SYS_MEMORY, (), max(node.memory - pods.memory - apps.memory, 0.0)))
        self.context.store.append(at.now, samples)
        numa = self._numa(cpu, oldest)
        if numa:
            self.context.store.append(at.now, numa)

    def _numa(self, system_cpu: float, oldest: float) -> list[Sample]:
        shared = self.context.shared
        if shared.node_numa_time < oldest:
            return []
        samples: list[Sample] = []
        if shared.pods_numa is not None and shared.pods_numa[0] >= oldest:
            memory = numa_system_memory(shared.node_numa_memory, shared.pods_numa[1])
            samples += [(kinds.SYS_NUMA_MEMORY, (str(n),), v) for n, v in memory.items()]
        samples += [(kinds.SYS_NUMA_CPU, (str(n),), v) for n, v in numa_system_cpu(system_cpu, shared.node_numa_cpu).items()]
        return samples
