"""CPU topology of a machine, read from sysfs and numbered as lscpu numbers it (KLO-SYS-05).

SOCKET and CORE are logical: counted 0, 1, 2, … in order of first appearance when CPUs are visited by ascending id, cores
unique across sockets. NODE is the real NUMA node id. Reading sysfs instead of running lscpu works in minimal images, on
virtual machines without cache columns, and below any host root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from roles.koordlet.host.errors import HostError, ParseError
from roles.koordlet.host.root import HostRoot, PathEscapeError

#: Digits of a CPU's number: a list is a set in memory, and a typing error must not fill it.
MAX_DIGITS = 6
#: Directories as the kernel names them; ``cpu07`` would be a second CPU 7.
_CPU = re.compile(r"cpu(0|[1-9][0-9]{0,5})")
NODE = re.compile(r"node(0|[1-9][0-9]{0,5})")


def parse_cpu_list(path: str, text: str) -> list[int]:
    """``0-3,8`` -> [0, 1, 2, 3, 8]; an empty text is the empty list."""
    out: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ParseError(path, f"{text.strip()[:60]!r} is not a CPU list such as 0-3,8")
        if len(first) > MAX_DIGITS or len(last) > MAX_DIGITS:
            raise ParseError(path, f"{part.strip()[:60]!r} names CPUs that no machine has")
        out.update(range(int(first), int(last or first) + 1))
    return sorted(out)


@dataclass(frozen=True, slots=True)
class CPU:
    """One logical CPU. ``core`` and ``socket`` are logical ids, ``node`` the NUMA node, ``l3`` a logical cache group."""

    id: int
    core: int
    socket: int
    node: int
    l3: int = 0


@dataclass(frozen=True)
class CPUTopology:
    """All usable CPUs, ordered by node, socket, core, id."""

    cpus: tuple[CPU, ...]

    def __iter__(self) -> Iterator[CPU]:
        return iter(self.cpus)

    def __len__(self) -> int:
        return len(self.cpus)

    @cached_property
    def by_id(self) -> dict[int, CPU]:
        return {c.id: c for c in sorted(self.cpus, key=lambda c: c.id)}

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.by_id)

    @cached_property
    def node_of(self) -> dict[int, int]:
        """NUMA node of each CPU id."""
        return {c.id: c.node for c in self.cpus}

    @cached_property
    def nodes(self) -> dict[int, tuple[int, ...]]:
        """CPU ids of each NUMA node, both ascending."""
        return self._group(lambda c: c.node)

    @cached_property
    def sockets(self) -> dict[int, tuple[int, ...]]:
        return self._group(lambda c: c.socket)

    @cached_property
    def cores(self) -> dict[int, tuple[int, ...]]:
        return self._group(lambda c: c.core)

    @property
    def threads_per_core(self) -> int:
        return max((len(c) for c in self.cores.values()), default=1)

    def _group(self, key: Callable[[CPU], int]) -> dict[int, tuple[int, ...]]:
        out: dict[int, list[int]] = {}
        for cpu in sorted(self.cpus, key=lambda c: c.id):
            out.setdefault(key(cpu), []).append(cpu.id)
        return {k: tuple(out[k]) for k in sorted(out)}


def make_topology(cpus: Iterable[CPU]) -> CPUTopology:
    """A topology in its canonical order. No CPU at all is a :class:`HostError`."""
    ordered = tuple(sorted(cpus, key=lambda c: (c.node, c.socket, c.core, c.id)))
    if not ordered:
        raise HostError("no usable CPU found: neither sysfs topology nor cpuinfo describes one")
    return CPUTopology(ordered)


def _read(path: str) -> str | None:
    """Content, or None when the file is not there or cannot be read: the caller has another source or a default."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _read_in(directory: Callable[[str], str], name: str) -> str | None:
    """As :func:`_read`, of a file that must not lie outside of the machine's directory."""
    try:
        return _read(directory(name))
    except PathEscapeError:
        return None


def _logical(keys: dict[str, int], key: str) -> int:
    return keys.setdefault(key, len(keys))


def numa_of_cpus(root: HostRoot) -> dict[int, int]:
    """CPU id -> NUMA node from the nodes' cpulist files; CPUs that no node lists are missing."""
    out: dict[int, int] = {}
    for base in (root.sys_path("devices/system/node"), root.sys_path("bus/node/devices")):
        try:
            names = sorted(os.listdir(base))
        except OSError:
            continue
        for name in names:
            if NODE.fullmatch(name) is None:
                continue
            path = os.path.join(base, name, "cpulist")
            for cpu in parse_cpu_list(path, _read(path) or ""):
                out[cpu] = int(name[4:])
        if out:
            break
    return out


def _l3_key(cpu_dir: str) -> str:
    cache = os.path.join(cpu_dir, "cache")
    try:
        indexes = sorted(n for n in os.listdir(cache) if n.startswith("index"))
    except OSError:
        return ""
    for name in indexes:
        if _read(os.path.join(cache, name, "level")) == "3":
            return _read(os.path.join(cache, name, "shared_cpu_list")) or _read(os.path.join(cache, name, "id")) or ""
    return ""


def read_topology(root: HostRoot) -> CPUTopology:
    """Topology from sysfs; CPUs without topology files (offline ones) are dropped, missing cache data is tolerated.

    Where sysfs describes no CPU at all, ``<proc>/cpuinfo`` is the source. Raises :class:`HostError` when neither does.
    """
    base = root.sys_path("devices/system/cpu")
    try:
        present = sorted(int(n[3:]) for n in os.listdir(base) if _CPU.fullmatch(n))
    except OSError:
        present = []
    online_text = _read(os.path.join(base, "online"))
    online = set(parse_cpu_list(os.path.join(base, "online"), online_text)) if online_text else None
    numa = numa_of_cpus(root)
    cores: dict[str, int] = {}
    sockets: dict[str, int] = {}
    l3s: dict[str, int] = {}
    cpus: list[CPU] = []
    for number in present:
        if online is not None and number not in online:
            continue
        cpu_dir = os.path.join(base, f"cpu{number}")
        if _read(os.path.join(cpu_dir, "online")) == "0":
            continue
        keys = _core_and_socket(os.path.join(cpu_dir, "topology"))
        if keys is None:
            continue
        l3 = _l3_key(cpu_dir)
        cpus.append(CPU(number, _logical(cores, keys[0]), _logical(sockets, keys[1]), numa.get(number, 0), _logical(l3s, l3) if l3 else 0))
    if cpus:
        return make_topology(cpus)
    return make_topology(_from_cpuinfo(root, numa))


def _core_and_socket(topology: str) -> tuple[str, str] | None:
    """Keys that tell cores and sockets apart, or None for a CPU that sysfs says nothing about."""
    package = _read(os.path.join(topology, "physical_package_id"))
    core = _read(os.path.join(topology, "core_id"))
    siblings = _read(os.path.join(topology, "core_cpus_list")) or _read(os.path.join(topology, "thread_siblings_list"))
    neighbours = _read(os.path.join(topology, "package_cpus_list")) or _read(os.path.join(topology, "core_siblings_list"))
    socket_key = neighbours or package
    core_key = siblings or (f"{package}/{core}" if core is not None else None)
    if socket_key is None or core_key is None:
        return None
    return core_key, socket_key


def _from_cpuinfo(root: HostRoot, numa: dict[int, int]) -> list[CPU]:
    text = _read_in(root.proc_path, "cpuinfo") or ""
    cores: dict[str, int] = {}
    sockets: dict[str, int] = {}
    cpus: list[CPU] = []
    for block in re.split(r"\n\s*\n", text):
        values = {k.strip(): v.strip() for k, colon, v in (line.partition(":") for line in block.splitlines()) if colon}
        if not values.get("processor", "").isdecimal():
            continue
        number = int(values["processor"])
        package = values.get("physical id", "0")
        core = f"{package}/{values.get('core id', number)}"
        cpus.append(CPU(number, _logical(cores, core), _logical(sockets, package), numa.get(number, 0)))
    return cpus


@dataclass(frozen=True, slots=True)
class BasicInfo:
    """CPU facts of the ``cpu-basic-info`` annotation."""

    model: str
    vendor: str
    hyper_threading: bool
    turbo: bool
    l3_mask: str

    def wire(self) -> dict[str, object]:
        """JSON form; empty strings and false are left out."""
        values: dict[str, object] = {
            "cpuModel": self.model,
            "hyperThreadEnabled": self.hyper_threading,
            "turboEnabled": self.turbo,
            "catL3CbmMask": self.l3_mask,
            "vendorID": self.vendor,
        }
        return {k: v for k, v in values.items() if v}


def read_basic_info(root: HostRoot, topology: CPUTopology) -> BasicInfo:
    """Single items that cannot be read take their neutral value."""
    from roles.koordlet.host.proc import cpuinfo

    model = cpuinfo((_read_in(root.proc_path, "cpuinfo") or "").encode())
    smt = _read_in(root.sys_path, "devices/system/cpu/smt/active")
    return BasicInfo(
        model=model.model,
        vendor=model.vendor,
        hyper_threading=smt == "1" if smt is not None else topology.threads_per_core > 1,
        turbo=_read_in(root.sys_path, "devices/system/cpu/intel_pstate/no_turbo") == "0",
        l3_mask=_read_in(root.resctrl_path, "info/L3/cbm_mask") or "",
    )
