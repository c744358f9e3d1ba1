"""The processors of a machine as masks: bit n of a mask is logical CPU n (SCH-NUMA-03). Pure and shared by equal machines."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from koord.api import names
from koord.api.annotations import AnnotationError, parse_cpu_topology
from koord.api.annotations_node import CPUInfo

_MAX_CPU = 65_535
MAX_NUMA_NODE = 1023  # NUMA nodes are bits of masks


class Core(NamedTuple):
    """A physical core. `key` is (socket, core id): core ids are unique in a socket only."""

    key: tuple[int, int]
    mask: int
    socket: int
    node: int


class Machine:
    """Cores, NUMA nodes and sockets. `per_core`, `per_node`, `per_socket` are the machine's averages, rounded down."""

    __slots__ = ("all", "by_node", "cores", "nodes", "per_core", "per_node", "per_socket", "socket_of", "sockets", "uniform")

    def __init__(self, cpus: Iterable[CPUInfo]) -> None:
        masks: dict[tuple[int, int], int] = {}
        places: dict[tuple[int, int], tuple[int, int]] = {}
        self.nodes: dict[int, int] = {}
        self.sockets: dict[int, int] = {}
        self.socket_of: dict[int, int] = {}
        self.all = 0
        for cpu in cpus:
            bit = 1 << cpu.id
            key = (cpu.socket, cpu.core)
            masks[key] = masks.get(key, 0) | bit
            places[key] = (cpu.socket, cpu.node)
            self.nodes[cpu.node] = self.nodes.get(cpu.node, 0) | bit
            self.sockets[cpu.socket] = self.sockets.get(cpu.socket, 0) | bit
            self.socket_of[cpu.node] = cpu.socket
            self.all |= bit
        self.cores = tuple(Core(key, masks[key], *places[key]) for key in sorted(masks))
        self.by_node = {node: tuple(core for core in self.cores if core.node == node) for node in sorted(self.nodes)}
        count = self.all.bit_count()
        self.per_core = count // len(self.cores) if self.cores else 0
        self.per_node = count // len(self.nodes) if self.nodes else 0
        self.per_socket = count // len(self.sockets) if self.sockets else 0
        self.uniform = all(core.mask.bit_count() == self.per_core for core in self.cores)

    @property
    def valid(self) -> bool:
        """Whether there is anything to hand out."""
        return bool(self.all)

    def whole_cores(self, cpus: int) -> int:
        """Those of the CPUs whose siblings are all among them."""
        found = 0
        for core in self.cores:
            if cpus & core.mask == core.mask:
                found |= core.mask
        return found

    def one_per_core(self, cpus: int) -> int:
        """The lowest of the CPUs on each core."""
        found = 0
        for core in self.cores:
            on_core = cpus & core.mask
            found |= on_core & -on_core
        return found

    def nodes_with(self, cpus: int) -> list[int]:
        """NUMA nodes that have any of the CPUs, ascending."""
        return [node for node in sorted(self.nodes) if self.nodes[node] & cpus]


NO_MACHINE = Machine(())


@lru_cache(maxsize=4096)
def machine_of(annotation: str) -> Machine:
    """The machine that a cpu-topology annotation describes; equal texts share one. Raises AnnotationError."""
    topology = parse_cpu_topology({names.ANNOTATION_NRT_CPU_TOPOLOGY: annotation})
    detail = topology.detail if topology is not None else ()
    for cpu in detail:
        if not 0 <= cpu.id <= _MAX_CPU or min(cpu.core, cpu.socket, cpu.node) < 0:
            raise AnnotationError(names.ANNOTATION_NRT_CPU_TOPOLOGY, f"CPU {cpu.id}: ids must be whole numbers from 0 to {_MAX_CPU}")
        if cpu.node > MAX_NUMA_NODE:
            raise AnnotationError(names.ANNOTATION_NRT_CPU_TOPOLOGY, f"CPU {cpu.id}: NUMA node {cpu.node} is above {MAX_NUMA_NODE}")
    return Machine(detail) if detail else NO_MACHINE
