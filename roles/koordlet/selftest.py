"""What each gate needs of the machine, tried where koordlet runs: files, rights, kernel, tools (KLO-CFG-01).

A check looks for exactly what its feature uses and says what lacks, "" for nothing. Nothing is changed; a counter is opened and closed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from roles.koordlet.actuation.systemfiles import MIN_FREE_KBYTES, SCHED_GROUP_IDENTITY
from roles.koordlet.hooks.cookies import Prctl
from roles.koordlet.host.cgroup import BESTEFFORT, Cgroups
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.namespaces import NETWORK, PROCESSES, foreign
from roles.koordlet.host.perf import CYCLES, CgroupCounters
from roles.koordlet.host.root import HostRoot, PathEscapeError
from roles.koordlet.host.tools import lacking
from roles.koordlet.sensing.nvml import driver_addresses, driver_library

Gate = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it is tried; ``cgroups`` None where no hierarchy is mounted."""

    root: HostRoot
    gate: Gate
    cgroups: Cgroups | None

    @classmethod
    def at(cls, root: HostRoot, gate: Gate) -> Machine:
        try:
            return cls(root, gate, Cgroups.detect(root))
        except HostError:
            return cls(root, gate, None)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A gate that needs something of the machine: what lacks, "" for nothing. Asked at start; who uses it says so again."""

    gate: str
    why: Callable[[Machine], str]
    general: bool = False
    """Worth telling of any machine, whether or not the gate is on (``koord doctor``)."""


def _files(*resources: str, enough: int = 0) -> Callable[[Machine], str]:
    """All of the files, or ``enough`` of them, are offered by the kernel and may be written."""

    def check(machine: Machine) -> str:
        if machine.cgroups is None:
            return f"no cgroups at {machine.root.cgroup}"
        found = {resource: _file(machine.cgroups, resource) for resource in resources}
        bad = [f"{resource} {why}" for resource, why in found.items() if why]
        return "" if len(resources) - len(bad) >= (enough or len(resources)) else "; ".join(bad)

    return check


def _file(cgroups: Cgroups, resource: str) -> str:
    """What stands against writing a cgroup file. Nothing is known before the kubelet has made its groups."""
    try:
        cgroups.spec(resource)
        directory = next((d for d in (cgroups.qos_dir(BESTEFFORT), cgroups.kubepods) if _holds(cgroups, d)), "")
        if not directory:
            return ""
        if not cgroups.supported(resource, directory):
            return "is not offered by this kernel"
        path = cgroups.file(resource, directory)
    except (HostError, ValueError) as error:
        return str(error)
    return "" if not os.path.exists(path) or os.access(path, os.W_OK) else f"may not be written: {path}"


def _holds(cgroups: Cgroups, directory: str) -> bool:
    return os.path.isdir(cgroups.subsystem_dir("cpu", directory))


def _without_tools(*names: str) -> Callable[[Machine], str]:
    def check(machine: Machine) -> str:
        gone = lacking(names, machine.root)
        return f"{', '.join(gone)} found neither on PATH nor in the machine's root" if gone else ""

    return check


def _core_scheduling(machine: Machine) -> str:
    if why := foreign(machine.root, PROCESSES):
        return f"no cookies: {why}"
    try:
        Prctl().get(0)
    except OSError as error:
        return f"the kernel has no core scheduling: {error.strerror or error}"
    return ""


def _shaping(machine: Machine) -> str:
    why = foreign(machine.root, NETWORK) or _without_tools("tc", "ipset", "iptables")(machine)
    return f"no traffic is shaped: {why}" if why else ""


def _nvidia(machine: Machine) -> str:
    root = machine.root
    if not driver_addresses(root):
        return ""
    try:
        importlib.import_module("pynvml")
    except ImportError:
        return "there are NVIDIA cards, but nvidia-ml-py is not part of this build"
    if root.root != "/" and driver_library(root) is None:
        return f"there are NVIDIA cards, but no libnvidia-ml.so.1 below {root.root}"
    return ""


def _group_identity(machine: Machine) -> str:
    if os.path.exists(SCHED_GROUP_IDENTITY.locate(machine.root)):
        return ""
    return _files("cpu.bvt_warp_ns")(machine)


def _resctrl(machine: Machine) -> str:
    try:
        if os.path.exists(machine.root.resctrl_path("schemata")):
            return ""
        with open(machine.root.proc_path("filesystems"), encoding="ascii", errors="replace") as file:
            known = "resctrl" in file.read().split()
    except (OSError, PathEscapeError):
        known = False
    return "" if known else "neither is resctrl mounted nor does this kernel know it: the CPUs offer no such control, or it is switched off"


def _offloading(machine: Machine) -> str:
    if machine.cgroups is not None and not machine.cgroups.v2:
        return "cgroup v1 has no memory.reclaim"
    return _files("memory.reclaim")(machine)


def _counters(machine: Machine) -> str:
    if machine.cgroups is None:
        return f"no cgroups at {machine.root.cgroup}"
    try:
        CgroupCounters(machine.cgroups.subsystem_dir("perf_event", ""), [0], (CYCLES,)).close()
    except (HostError, ValueError) as error:
        return str(error)
    return ""


def _pressure(machine: Machine) -> str:
    if machine.cgroups is None:
        return f"no cgroups at {machine.root.cgroup}"
    if not _holds(machine.cgroups, machine.cgroups.kubepods) or machine.cgroups.has_pressure("cpu.pressure"):
        return ""
    return "the kernel tells no pressure of single groups: cgroup v2, a unified hierarchy beside v1, or psi=1 on its command line"


def _kidled(machine: Machine) -> str:
    if machine.cgroups is not None and machine.cgroups.v2:
        return "kidled does not count by cgroup v2"
    path = machine.root.sys_path("kernel/mm/kidled/scan_period_in_seconds")
    return "" if os.path.exists(path) else f"this kernel has no kidled: {path} does not exist"


def _knobs(machine: Machine) -> str:
    path = MIN_FREE_KBYTES.locate(machine.root)
    return "" if os.access(path, os.W_OK) else f"may not be written: {path}"


def _processes(machine: Machine) -> str:
    return foreign(machine.root, PROCESSES)


def _pod_resources(machine: Machine) -> str:
    path = machine.root.kubelet_path("pod-resources/kubelet.sock")
    return "" if os.path.exists(path) else f"the kubelet's socket is not there: {path}"


def _claims(machine: Machine) -> str:
    path = machine.root.kubelet_path("plugins_registry")
    if not os.path.isdir(path):
        return f"the kubelet's directory of plugins is not there: {path}"
    return "" if os.access(path, os.W_OK) else f"may not be written: {path}"


def _signals(machine: Machine) -> str:
    """Signals of interference that have no data, because the gate that collects them is off or cannot work."""
    rows = (("cpu, memory and io", "PSICollector", _pressure), ("cpi", "CPICollector", _counters))
    lacks = [
        f"signal {signal} has no data: " + (check(machine) if machine.gate(gate) else f"feature gate {gate} is off")
        for signal, gate, check in rows
        if not machine.gate(gate) or check(machine)
    ]
    return "; ".join(lacks)


_QUOTA, _SHARES, _CPUS, _LIMIT = "cpu.cfs_quota_us", "cpu.shares", "cpuset.cpus", "memory.limit_in_bytes"

BLOCKED: tuple[Blocked, ...] = (
    Blocked("BECPUSuppress", _files(_QUOTA, _CPUS)),
    Blocked("CPUBurst", _files(_QUOTA)),
    Blocked("BatchResource", _files(_SHARES, _QUOTA, _LIMIT)),
    Blocked("CPUSetAllocator", _files(_CPUS)),
    Blocked("CPUNormalization", _files(_QUOTA)),
    Blocked("ResourceTuning", _files(_QUOTA)),
    Blocked("CgroupReconcile", _files("memory.min", "memory.low", "memory.high", enough=1)),
    Blocked("GroupIdentity", _group_identity),
    Blocked("RdtResctrl", _resctrl),
    Blocked("Resctrl", _resctrl),
    Blocked("ResctrlCollector", _resctrl),
    Blocked("CPICollector", _counters),
    Blocked("PSICollector", _pressure),
    Blocked("ColdPageCollector", _kidled),
    Blocked("InterferenceDetection", _signals),
    Blocked("MemoryOffloading", _offloading),
    Blocked("SystemConfig", _knobs),
    Blocked("OOMScoreAdj", _processes),
    Blocked("CoreSched", _core_scheduling),
    Blocked("TCNetworkQoS", _shaping, general=True),
    Blocked("BlkIOReconcile", _without_tools("lsblk", "findmnt"), general=True),
    Blocked("PodResourcesProxy", _pod_resources),
    Blocked("DRAPlugin", _claims),
    Blocked("Accelerators", _nvidia, general=True),
)


def blocked(gate: Gate, root: HostRoot) -> dict[str, str]:
    """Gates that are on and cannot work on this machine, with what they lack."""
    machine = Machine.at(root, gate)
    return {row.gate: why for row in BLOCKED if gate(row.gate) and (why := row.why(machine))}


def general(name: str) -> bool:
    """Whether what a gate lacks is worth telling where nobody knows which gates are on."""
    return any(row.general for row in BLOCKED if row.gate == name)
