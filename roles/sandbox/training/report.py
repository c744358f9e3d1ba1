"""The report of the training scenario as Markdown (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from roles.sandbox.report.text import table
from roles.sandbox.training.stage import Outcome


def render(outcomes: Sequence[Outcome], racks: dict[str, str], errors: Sequence[str]) -> str:
    """What each step has shown; `racks` gives the rack of each node."""
    parts = ["# Training jobs", ""]
    for number, outcome in enumerate(outcomes, 1):
        parts += [f"## {number}. {outcome.title}: {'happened' if outcome.happened else 'DID NOT HAPPEN'}", ""]
        for line in outcome.lines:
            parts += [line, ""]
        for who, reasons in outcome.reasons.items():
            parts += [f"Why did {who} wait?", "", *(f"    {reason}" for reason in reasons), ""]
        parts += _table(outcome, racks)
    for error in errors:
        parts += [f"**{error}**", ""]
    return "\n".join(parts)


def _table(outcome: Outcome, racks: dict[str, str]) -> list[str]:
    if not outcome.placed:
        return []
    by_node: dict[str, list[str]] = {}
    for pod, node in sorted(outcome.placed.items()):
        by_node.setdefault(node, []).append(pod)
    rows = [(racks.get(node, ""), node, ", ".join(pods)) for node, pods in sorted(by_node.items())]
    return [table(("rack", "node", "pods"), rows, words=3), ""]
