"""What a manifest may ask for and this version does not offer: told at start, once and by name (KLO-CFG-01, KLO-CFG-02).

A gate that is accepted and does nothing would be taken for a feature at work. Whoever builds one of these takes its row out.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """A gate, and what is missing on this node although it is on; ``observing``: with ``--observe-only`` alone."""

    gate: str
    missing: str
    observing: bool = True


ROWS: tuple[Asked, ...] = (
    Asked("Libpfm4", "the CPI collector names its counters itself and always groups them", observing=False),
    Asked("PodResourcesProxy", "the proxy's socket is not made"),
    Asked("DRAPlugin", "no claims are prepared"),
    Asked("AuditEvents", "nothing is changed, so there is nothing to audit"),
)


def unavailable(options: Options, gate: Gate, root: HostRoot) -> list[str]:
    """One sentence for each thing that is asked for and not there."""
    asked = [row for row in ROWS if gate(row.gate) and (options.observe_only or not row.observing)]
    lacks = [(row.gate, "with --observe-only" if row.observing else "in this version", row.missing) for row in asked]
    lacks += [(name, "on this machine", why) for name, why in blocked(gate, root).items()]
    return [f"feature gate {name} is not available {where}: {why}" for name, where, why in lacks]


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
