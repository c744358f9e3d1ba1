"""Node CPU and memory, whole and per NUMA node (KLO-COL-01, KLO-COL-02)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host import proc
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.numa import NumaReader
from roles.koordlet.host.topology import CPUTopology
from roles.koordlet.sensing.base import Collector, Rate, Round, SensingContext, Stamped
from roles.koordlet.store import kinds
from roles.koordlet.store.store import Sample


class NodeCollector(Collector):
    """Used ticks of /proc/stat and MemTotal - MemAvailable. The first round only seeds, memory included."""

    name: ClassVar[str] = "node"

    def __init__(self, context: SensingContext) -> None:
        super().__init__(context)
        self._rate = Rate()
        self._numa = NumaReader(context.host.root, context.host.files)
        self._listed: object = None
        """The machine's NUMA nodes when they were looked for last."""
        self._cpu_before: tuple[float, dict[int, int]] | None = None
        self._stat = context.host.root.proc_path("stat")
        self._meminfo = context.host.root.proc_path("meminfo")

    def collect(self, at: Round) -> None:
        store, metrics = self.context.store, self.context.metrics
        # without it CPU is still sensed, so that CPU strategies go on
        memory = self.attempt("memory", self._memory)
        try:
            stat = self.context.host.files.read(self._stat)
            rate = self._rate.update(at.mono, proc.cpu_ticks(self._stat, stat))
        except HostError:
            # memory strategies go on without CPU, as CPU strategies do without memory
            if memory is not None:
                self._store_memory(at, memory)
            raise
        numa = self._numa_samples(at, stat)
        if rate is None:
            return
        cpu = rate / self.context.ticks_per_second
        samples: list[Sample] = [(kinds.NODE_CPU, (), cpu)]
        if memory is not None:
            self._store_memory(at, memory)
        store.append(at.now, samples + numa)
        self.context.shared.node = Stamped(at.now, cpu, float(memory.used) if memory is not None else None)
        metrics.node_used_cpu.set(cpu)

    def _memory(self) -> proc.MemInfo:
        return proc.meminfo(self._meminfo, self.context.host.files.read(self._meminfo))

    def _store_memory(self, at: Round, memory: proc.MemInfo) -> None:
        samples: list[Sample] = [(kinds.NODE_MEMORY, (), float(memory.used))]
        if self.context.page_cache:
            samples.append((kinds.NODE_MEMORY_WITH_PAGE_CACHE, (), float(memory.used_with_page_cache)))
        self.context.store.append(at.now, samples)
        self.context.metrics.node_used_memory.set(memory.used)

    def _numa_samples(self, at: Round, stat: bytes) -> list[Sample]:
        """NUMA part; its failure never blocks the node part."""
        if (found := self.context.store.snapshot("node_numa_info")) is not self._listed:
            self._listed = found
            self._numa.rescan()
        memory = {node.id: float(node.memory.numa_used) for node in self.attempt("NUMA memory", self._numa.read) or ()}
        ticks = self.attempt("NUMA CPU", proc.per_cpu_ticks, self._stat, stat)
        cpu = {} if ticks is None else self._numa_cpu(at, ticks)
        if memory or cpu:
            shared = self.context.shared
            shared.node_numa_time, shared.node_numa_memory, shared.node_numa_cpu = at.now, memory, cpu
        samples: list[Sample] = [(kinds.NODE_NUMA_MEMORY, (str(n),), v) for n, v in memory.items()]
        samples += [(kinds.NODE_NUMA_CPU, (str(n),), v) for n, v in cpu.items()]
        return samples

    def _numa_cpu(self, at: Round, ticks: dict[int, int]) -> dict[int, float]:
        before, self._cpu_before = self._cpu_before, (at.mono, ticks)
        topology = self.context.store.snapshot("node_cpu_info")
        if before is None or not isinstance(topology, CPUTopology) or at.mono <= before[0]:
            return {}
        elapsed = (at.mono - before[0]) * self.context.ticks_per_second
        out: dict[int, float] = {}
        for cpu, node in topology.node_of.items():
            if cpu in ticks and cpu in before[1] and ticks[cpu] >= before[1][cpu]:
                out[node] = out.get(node, 0.0) + (ticks[cpu] - before[1][cpu]) / elapsed
        return out
