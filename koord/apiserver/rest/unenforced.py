"""What is stored here and not enforced: said with every object of such a kind that is made, so that nobody relies on it."""

from __future__ import annotations

_KINDS = {
    ("", "LimitRange"): "this API server does not apply LimitRanges",
    ("networking.k8s.io", "NetworkPolicy"): "this API server has no network that could enforce NetworkPolicies",
}


def warning(group: str, kind: str) -> list[str]:
    """The line for a kind; none for one that is enforced."""
    known = _KINDS.get((group, kind))
    return [known] if known else []
