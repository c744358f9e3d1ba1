"""Which CPUs a pod gets: whole cores or spread threads, near one another, exclusive where asked (SCH-NUMA-03, SCH-NUMA-04). Pure.

Three phases, each working on what the ones before left over: whole cores in one NUMA node, one socket, or several; threads one a
core in one NUMA node or socket; and whatever is free, close to what the pod has already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koord.api import names
from roles.scheduler.plugins.numa.machine import Core, Machine
from roles.scheduler.plugins.topology_manager.hints import bits_of

FULL = "FullPCPUs"
SPREAD = "SpreadByPCPUs"
PCPU_LEVEL = "PCPULevel"
NUMA_NODE_LEVEL = "NUMANodeLevel"

NOT_ENOUGH = "not enough cpus available to satisfy request"
FAILED = "failed to allocate cpus"


class Held(NamedTuple):
    """CPUs of pods that want to be alone, as masks: on their cores, on their NUMA nodes."""

    pcpu: int = 0
    numa: int = 0


NOBODY = Held()


class Pick(NamedTuple):
    """The CPUs as a mask, or why there are none ("" where there are)."""

    cpus: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How to pick: bind policy, exclusive policy, and whether fuller NUMA nodes and sockets come first."""

    policy: str = FULL
    exclusive: str = ""
    most: bool = False


def take(machine: Machine, available: int, need: int, terms: Terms, held: Held = NOBODY, preferred: int = 0) -> Pick:
    """`need` of the available CPUs, preferred ones (of a reservation) before others."""
    if need > available.bit_count():
        return Pick(0, NOT_ENOUGH)
    chosen = 0
    for pool in (available & preferred, available & ~preferred):
        part = min(need - chosen.bit_count(), pool.bit_count())
        if part > 0:
            taken = _Picking(machine, pool, part, terms, _with(machine, held, chosen, terms.exclusive)).run()
            if taken.bit_count() != part:
                return Pick(0, FAILED)
            chosen |= taken
    return Pick(chosen)


def usable(machine: Machine, available: int, required: str) -> int:
    """Those of the available CPUs that a required policy can use at all (SCH-NUMA-03, 4.3)."""
    if required == FULL:
        return machine.whole_cores(available)
    return machine.one_per_core(available) if required == SPREAD else available


def satisfies(machine: Machine, cpus: int, required: str) -> bool:
    """Whether picked CPUs keep a required policy."""
    return usable(machine, cpus, required) == cpus


def _with(machine: Machine, held: Held, chosen: int, exclusive: str) -> Held:
    """What counts as held by others of the same exclusive policy, the pod's own picks among it."""
    if exclusive == PCPU_LEVEL:
        return Held(held.pcpu | chosen, 0)
    return Held(0, held.numa | chosen) if exclusive == NUMA_NODE_LEVEL else NOBODY


class _Picking:
    """One run over one pool of CPUs."""

    def __init__(self, machine: Machine, pool: int, need: int, terms: Terms, held: Held) -> None:
        self.machine = machine
        self.pool = pool
        self.need = need
        self.terms = terms
        self.chosen = 0
        self.held = held
        self._mark()

    def _mark(self) -> None:
        """Note which cores and NUMA nodes are to be avoided from now on."""
        self.held = _with(self.machine, self.held, self.chosen, self.terms.exclusive)
        self.lonely_nodes = frozenset(self.machine.nodes_with(self.held.numa)) if self.held.numa else frozenset()

    def run(self) -> int:
        full = self.terms.policy == FULL
        if full or self.machine.per_core == 1:
            self._whole_cores()
            self._mark()
        if not full and self.need:
            self._threads()
            self._mark()
        for honour in (True, False):
            if self.need:
                self._rest(honour)
        return self.chosen

    def _take(self, cpus: Sequence[int]) -> None:
        for cpu in cpus[: self.need]:
            self.chosen |= 1 << cpu
        self.need -= min(self.need, len(cpus))

    def _free(self) -> int:
        return self.pool & ~self.chosen

    def _by_amount(self, count: int) -> int:
        """Sort key of a free count: few first to fill up, many first to spread."""
        return count if self.terms.most else -count

    # ---------------------------------------------------------------- whole cores

    def _whole_cores(self) -> None:
        machine = self.machine
        if self.need <= machine.per_node:
            for honour in (True, False):
                if self._first_fit(self._node_lists(self._fully_free, honour)):
                    return
        sockets = self._socket_lists(self._fully_free, honour=False)
        if self.need <= machine.per_socket and self._first_fit(sockets):
            return
        self._several_sockets(sockets)

    def _several_sockets(self, sockets: Sequence[list[int]]) -> None:
        """Whole sockets, the largest first, where they fit; then single cores of the others. Never more than asked for."""
        skipped = []
        for cpus in sorted(sockets, key=len, reverse=True):
            if 0 < len(cpus) <= self.need:
                self._take(cpus)
            else:
                skipped.append(cpus)
        core_of = {cpu: core for core in self.machine.cores for cpu in bits_of(core.mask)}
        for cpus in sorted(skipped, key=len):
            index = 0
            while index < len(cpus):
                size = core_of[cpus[index]].mask.bit_count()
                if size > self.need:
                    break
                self._take(cpus[index : index + size])
                index += size

    def _fully_free(self, cores: Sequence[Core], honour: bool) -> list[int]:
        """CPUs of cores nobody uses: wider cores first, then by core id. Avoiding cores of others is no matter here."""
        free = self._free()
        whole = [core for core in cores if free & core.mask == core.mask]
        whole.sort(key=lambda core: (-core.mask.bit_count(), core.key))
        return [cpu for core in whole for cpu in bits_of(core.mask)]

    # ---------------------------------------------------------------- threads

    def _threads(self) -> None:
        machine = self.machine
        for limit, lists in ((machine.per_node, self._node_lists), (machine.per_socket, self._socket_lists)):
            if self.need <= limit:
                for honour in (True, False):
                    if self._first_fit(lists(self._single, honour), spread=True):
                        return

    def _single(self, cores: Sequence[Core], honour: bool) -> list[int]:
        """Free CPUs by id; while others are honoured one a core, and none of cores that are to be avoided."""
        free, found = self._free(), 0
        for core in cores:
            on_core = free & core.mask
            if honour:
                on_core = 0 if core.mask & self.held.pcpu else on_core & -on_core
            found |= on_core
        return bits_of(found)

    # ---------------------------------------------------------------- groups

    def _first_fit(self, lists: Sequence[list[int]], *, spread: bool = False) -> bool:
        """Take from the first group that has enough."""
        for cpus in lists:
            if len(cpus) >= self.need:
                self._take(self._round_robin(cpus) if spread else cpus)
                return True
        return False

    def _node_lists(self, collect: Callable[[Sequence[Core], bool], list[int]], honour: bool) -> list[list[int]]:
        """Free CPUs by NUMA node, in the order in which NUMA nodes are tried: free count, free count of the socket, id."""
        machine = self.machine
        lists = {n: collect(c, honour) for n, c in machine.by_node.items() if not (honour and n in self.lonely_nodes)}
        counts = {node: self._counted(collect, machine.by_node[node], cpus, honour) for node, cpus in lists.items()}
        of_socket: dict[int, int] = {}
        for node, count in counts.items():
            of_socket[machine.socket_of[node]] = of_socket.get(machine.socket_of[node], 0) + count
        order = sorted(
            (node for node in lists if lists[node]),
            key=lambda n: (self._by_amount(counts[n]), self._by_amount(of_socket[machine.socket_of[n]]), n),
        )
        return [lists[node] for node in order]

    def _counted(self, collect: Callable[[Sequence[Core], bool], list[int]], cores: Sequence[Core], cpus: list[int], honour: bool) -> int:
        """How much a NUMA node counts in the order: threads that may be used, not only the one a core that is listed."""
        if collect == self._single and honour:
            free = self._free()
            return sum((free & core.mask).bit_count() for core in cores if not core.mask & self.held.pcpu)
        return len(cpus)

    def _socket_lists(self, collect: Callable[[Sequence[Core], bool], list[int]], honour: bool) -> list[list[int]]:
        """Free CPUs by socket, in the order in which sockets are tried: free count, id. NUMA nodes of others are no matter here."""
        lists = {s: collect([core for core in self.machine.cores if core.socket == s], honour) for s in self.machine.sockets}
        return [lists[s] for s in sorted(lists, key=lambda s: (self._by_amount(len(lists[s])), s)) if lists[s]]

    def _round_robin(self, cpus: list[int]) -> list[int]:
        """The first CPU of every core, then the second of every core, and so on; order is kept within a round."""
        if len(cpus) <= self.machine.per_core:
            return cpus
        core_of = {cpu: core.key for core in self.machine.cores for cpu in bits_of(core.mask)}
        rounds: dict[tuple[int, int], int] = {}
        numbered = []
        for index, cpu in enumerate(cpus):
            turn = rounds[core_of[cpu]] = rounds.get(core_of[cpu], -1) + 1
            numbered.append((turn, index, cpu))
        return [cpu for _, _, cpu in sorted(numbered)]

    # ---------------------------------------------------------------- what is left

    def _rest(self, honour: bool) -> None:
        """Free CPUs anywhere, near what the pod has: its sockets first, odd threads before whole cores."""
        machine, free = self.machine, self._free()
        cores = [core for core in machine.cores if free & core.mask]
        if honour:
            cores = [core for core in cores if not core.mask & self.held.pcpu and core.node not in self.lonely_nodes]
        counted = 0
        for core in cores:
            counted |= free & core.mask

        def key(core: Core) -> tuple[int, int, int, int, tuple[int, int]]:
            socket, node = machine.sockets[core.socket], machine.nodes[core.node]
            return (
                -(self.chosen & socket).bit_count(),
                self._by_amount((counted & socket).bit_count()),
                self._by_amount((counted & node).bit_count()),
                (counted & core.mask).bit_count(),
                core.key,
            )

        cores.sort(key=key)
        self._take(self._round_robin([cpu for core in cores for cpu in bits_of(free & core.mask)]))


NODE_POLICIES = {names.NODE_CPU_BIND_FULL_PCPUS_ONLY: FULL, names.NODE_CPU_BIND_SPREAD_BY_PCPUS: SPREAD}
"""The policy that a node's label or kubelet requires of every pod that binds CPUs there."""
