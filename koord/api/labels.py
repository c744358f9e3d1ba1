"""Labels whose value needs reading (API-LBL-01). Bad text is never an error here: the contract says what it counts as."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from koord.api import names
from koord.api.quantity import multiply_base

Labels = Mapping[str, str] | None

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def is_plain_number(text: str) -> bool:
    """Whether text that Python reads as a number is one for everybody: no blanks, underscores or foreign digits."""
    return text.isascii() and "_" not in text and text == text.strip()


def parse_go_bool(text: str | None) -> bool | None:
    """1, t, T, TRUE, true, True and 0, f, F, FALSE, false, False; None for anything else."""
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def is_true(labels: Labels, key: str) -> bool:
    """Whether the label is there with the text ``true``."""
    return labels is not None and labels.get(key) == "true"


def ratio_percent(labels: Labels, key: str) -> int | None:
    """A node's ratio label as whole percents: trunc(v × 100) in doubles. None when missing, bad, negative or too large for a double."""
    text = labels.get(key) if labels else None
    if text is None:
        return None
    try:
        ratio = float(text)
    except ValueError:
        return None
    if not math.isfinite(ratio * 100) or ratio < 0 or not is_plain_number(text):
        return None
    return multiply_base(100, ratio)


def effective_cpu_bind_policy(labels: Labels, kubelet_policy: str, kubelet_options: Mapping[str, str] | None) -> str:
    """A node's CPU bind policy: None, FullPCPUsOnly or SpreadByPCPUs.

    FullPCPUsOnly if the label says so or the kubelet's policy is ``static`` with option full-pcpus-only=true.
    """
    label = labels.get(names.LABEL_NODE_CPU_BIND_POLICY, "") if labels else ""
    kubelet_full = kubelet_policy == "static" and (kubelet_options or {}).get("full-pcpus-only") == "true"
    if label == names.NODE_CPU_BIND_FULL_PCPUS_ONLY or kubelet_full:
        return names.NODE_CPU_BIND_FULL_PCPUS_ONLY
    if label == names.NODE_CPU_BIND_SPREAD_BY_PCPUS:
        return names.NODE_CPU_BIND_SPREAD_BY_PCPUS
    return names.NODE_CPU_BIND_NONE


def numa_topology_policy(labels: Labels) -> str:
    """``node.koordinator.sh/numa-topology-policy``; unknown text is no policy."""
    text = labels.get(names.LABEL_NODE_NUMA_TOPOLOGY_POLICY, "") if labels else ""
    known = (names.NUMA_POLICY_BEST_EFFORT, names.NUMA_POLICY_RESTRICTED, names.NUMA_POLICY_SINGLE_NUMA_NODE)
    return text if text in known else names.NUMA_POLICY_NONE


def reservation_order(labels: Labels) -> int:
    """``scheduling.koordinator.sh/reservation-order``: lower is used first; 0 (absent or bad) means by score."""
    text = labels.get(names.LABEL_RESERVATION_ORDER, "") if labels else ""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return 0
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else 0
