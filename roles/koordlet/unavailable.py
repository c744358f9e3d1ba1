"""What a manifest may ask for and this version does not offer: told at start, once and by name (KLO-CFG-01, KLO-CFG-02).

A gate that is accepted and does nothing would be taken for a feature at work. Whoever builds one of these takes its row out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from roles.koordlet.hooks.cookies import Prctl
from roles.koordlet.host.namespaces import NETWORK, PROCESSES, foreign
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.tools import lacking
from roles.koordlet.options import Options
from roles.koordlet.sensing.nvml import driver_addresses, driver_library

Gate = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing: how it is switched on, by which gate or flag, and what is therefore missing on this node."""

    by: str
    missing: str
    when: Callable[[Options, Gate, HostRoot], bool]
    where: str = "in this version"


@dataclass(frozen=True, slots=True)
class Blocked:
    """A gate that needs something of the machine: what lacks, "" for nothing. Asked at start; the hook says so again when it is used."""

    gate: str
    why: Callable[[HostRoot], str]


def _gate(name: str, missing: str) -> Asked:
    return Asked(f"feature gate {name}", missing, lambda _, gate, __: gate(name))


ROWS: tuple[Asked, ...] = (
    _gate("Libpfm4", "the CPI collector names its counters itself and always groups them"),
    Asked(
        "feature gate PodResourcesProxy",
        "the proxy's socket is not made",
        lambda options, gate, _: options.observe_only and gate("PodResourcesProxy"),
        "with --observe-only",
    ),
    Asked(
        "feature gate AuditEvents",
        "nothing is changed, so there is nothing to audit",
        lambda options, gate, _: options.observe_only and gate("AuditEvents"),
        "with --observe-only",
    ),
)


def _without_tools(names: tuple[str, ...], root: HostRoot) -> str:
    gone = lacking(names, root)
    return f"{', '.join(gone)} found neither on PATH nor in the machine's root" if gone else ""


def _core_scheduling(root: HostRoot) -> str:
    if why := foreign(root, PROCESSES):
        return f"no cookies: {why}"
    try:
        Prctl().get(0)
    except OSError as error:
        return f"the kernel has no core scheduling: {error.strerror or error}"
    return ""


def _shaping(root: HostRoot) -> str:
    why = foreign(root, NETWORK) or _without_tools(("tc", "ipset", "iptables"), root)
    return f"nothing is shaped: {why}" if why else ""


def _nvidia(root: HostRoot) -> str:
    if not driver_addresses(root):
        return ""
    try:
        importlib.import_module("pynvml")
    except ImportError:
        return "there are NVIDIA cards, but nvidia-ml-py is not part of this build"
    if root.root != "/" and driver_library(root) is None:
        return f"there are NVIDIA cards, but no libnvidia-ml.so.1 below {root.root}"
    return ""


BLOCKED: tuple[Blocked, ...] = (
    Blocked("CoreSched", _core_scheduling),
    Blocked("TCNetworkQoS", _shaping),
    Blocked("BlkIOReconcile", lambda root: _without_tools(("lsblk", "findmnt"), root)),
    Blocked("Accelerators", _nvidia),
)


def blocked(gate: Gate, root: HostRoot) -> dict[str, str]:
    """Gates that are on and cannot work on this machine, with what they lack."""
    return {row.gate: why for row in BLOCKED if gate(row.gate) and (why := row.why(root))}


def unavailable(options: Options, gate: Gate, root: HostRoot) -> list[str]:
    """One sentence for each thing that is asked for and not there."""
    told = [f"{row.by} is not available {row.where}: {row.missing}" for row in ROWS if row.when(options, gate, root)]
    return told + [f"feature gate {name} is not available on this machine: {why}" for name, why in blocked(gate, root).items()]
