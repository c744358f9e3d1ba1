"""Choosing CPUs as the kubelet's static policy does, "packed" and sockets before NUMA nodes (KLO-SI-05). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koord.accounting.cpuset import CPUSet
from roles.koordlet.host.topology import CPU, CPUTopology


class PackingError(ValueError):
    """There are not as many CPUs as were asked for."""


class _Packer:
    def __init__(self, topology: CPUTopology, available: CPUSet, wanted: int) -> None:
        self._topology = topology
        self.free: dict[int, CPU] = {i: cpu for i, cpu in topology.by_id.items() if i in available}
        self.taken: list[int] = []
        self.wanted = wanted

    @property
    def missing(self) -> int:
        return self.wanted - len(self.taken)

    def take(self, cpus: Iterable[int]) -> None:
        for cpu in cpus:
            self.taken.append(cpu)
            del self.free[cpu]

    def _groups(self, key: Callable[[CPU], int], cpus: Iterable[CPU]) -> list[tuple[int, list[int]]]:
        """Groups with free CPUs: fewest free first, then lowest id; CPUs ascending."""
        groups: dict[int, list[int]] = {}
        for cpu in cpus:
            groups.setdefault(key(cpu), []).append(cpu.id)
        return sorted(((g, sorted(ids)) for g, ids in groups.items()), key=lambda item: (len(item[1]), item[0]))

    def take_whole(self, key: Callable[[CPU], int], sizes: dict[int, tuple[int, ...]]) -> None:
        """Take groups of which every CPU is free, as long as they fit."""
        for group, cpus in self._groups(key, self.free.values()):
            if len(cpus) == len(sizes[group]) and len(cpus) <= self.missing:
                self.take(cpus)

    def cores_in_order(self) -> list[tuple[int, list[int]]]:
        """Cores with free CPUs, inside the visiting order of sockets and NUMA nodes."""
        out: list[tuple[int, list[int]]] = []
        for _, in_socket in self._groups(lambda c: c.socket, self.free.values()):
            for _, in_node in self._groups(lambda c: c.node, (self.free[i] for i in in_socket)):
                out += self._groups(lambda c: c.core, (self.free[i] for i in in_node))
        return out

    def take_cores(self) -> None:
        for core, cpus in self.cores_in_order():
            if len(cpus) == len(self._topology.cores[core]) and len(cpus) <= self.missing:
                self.take(cpus)

    def take_single(self) -> None:
        for cpu in [i for _, cpus in self.cores_in_order() for i in cpus][: self.missing]:
            self.take([cpu])


def take_packed(topology: CPUTopology, available: CPUSet, wanted: int) -> CPUSet:
    """``wanted`` CPUs of ``available``: whole sockets while they fit, then NUMA nodes, cores, single CPUs.

    Raises :class:`PackingError` when there are too few.
    """
    if wanted <= 0:
        return CPUSet()
    packer = _Packer(topology, available, wanted)
    if len(packer.free) < wanted:
        raise PackingError(f"{wanted} CPUs are wanted, {len(packer.free)} are there")
    packer.take_whole(lambda c: c.socket, topology.sockets)
    packer.take_whole(lambda c: c.node, topology.nodes)
    packer.take_cores()
    packer.take_single()
    return CPUSet(packer.taken)
