"""What a manifest may ask for and this version does not offer: told at start, once and by name (KLO-CFG-01, KLO-CFG-02).

A gate that is accepted and does nothing would be taken for a feature at work. Whoever builds one of these takes its row out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from koord.api.times import format_time
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options
from roles.koordlet.selftest import Gate, blocked

#: Of the NodeMetric's status.
CONDITION = "FeaturesWork"
_LONGEST = 32_768


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing: how it is switched on, by which gate or flag, and what is therefore missing on this node."""

    by: str
    missing: str
    when: Callable[[Options, Gate, HostRoot], bool]
    where: str = "in this version"


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
        "feature gate DRAPlugin",
        "no claims are prepared",
        lambda options, gate, _: options.observe_only and gate("DRAPlugin"),
        "with --observe-only",
    ),
    Asked(
        "feature gate AuditEvents",
        "nothing is changed, so there is nothing to audit",
        lambda options, gate, _: options.observe_only and gate("AuditEvents"),
        "with --observe-only",
    ),
)


def unavailable(options: Options, gate: Gate, root: HostRoot) -> list[str]:
    """One sentence for each thing that is asked for and not there."""
    told = [f"{row.by} is not available {row.where}: {row.missing}" for row in ROWS if row.when(options, gate, root)]
    return told + [f"feature gate {name} is not available on this machine: {why}" for name, why in blocked(gate, root).items()]


def condition(lacks: Mapping[str, str], now: float) -> dict[str, str]:
    """The condition of a NodeMetric that says what was asked for and cannot work on the node. ``now`` in Unix seconds."""
    told = "; ".join(f"feature gate {name} is enabled but cannot work here: {why}" for name, why in lacks.items())
    return {
        "type": CONDITION,
        "status": "False",
        "reason": "CannotWorkHere",
        "message": told[:_LONGEST],
        "lastTransitionTime": format_time(now),
    }
