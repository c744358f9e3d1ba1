"""CPU topology and NUMA inventory for all who need them (KLO-COL-13)."""

from __future__ import annotations

from typing import ClassVar

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.numa import NumaReader
from roles.koordlet.host.root import PathEscapeError
from roles.koordlet.host.topology import read_basic_info, read_topology
from roles.koordlet.sensing.base import Collector, Round, SensingContext

#: Names in the store's snapshots (KLO-TSDB-02).
CPU_INFO = "node_cpu_info"
CPU_BASIC_INFO = "node_cpu_basic_info"
NUMA_INFO = "node_numa_info"


class NodeInfoCollector(Collector):
    """Every minute: topology, then NUMA nodes; a CPU failure skips NUMA."""

    name: ClassVar[str] = "node info"

    def __init__(self, context: SensingContext, interval: float = 60.0) -> None:
        super().__init__(context, interval)
        self._numa = NumaReader(context.host.root, context.host.files)

    def collect(self, at: Round) -> None:
        metrics, store = self.context.metrics, self.context.store
        root = self.context.host.root
        try:
            topology = read_topology(root)
            # equal topologies keep their identity, so that consumers can see a change by "is not"
            if topology != store.snapshot(CPU_INFO):
                store.put_snapshot(CPU_INFO, topology)
            store.put_snapshot(CPU_BASIC_INFO, read_basic_info(root, topology))
        except (HostError, PathEscapeError):
            metrics.collect_cpu_info.inc("failed")
            raise
        metrics.collect_cpu_info.inc("succeeded")
        self._numa.rescan()
        try:
            store.put_snapshot(NUMA_INFO, self._numa.read(hugepages=self.context.gate("HugePageReport")))
        except (HostError, PathEscapeError):
            metrics.collect_numa_info.inc("failed")
            raise
        metrics.collect_numa_info.inc("succeeded")
