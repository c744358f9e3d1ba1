"""What came of a replay, as text and as JSON. Pure (BEY-REPLAY-01)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from koord.api.times import format_time
from roles.scheduler.replaying import Turn
from roles.tools.replay.found import Found

SHOWN = 3  # differences of a group; all with --diff, and in JSON


def tables(found: Sequence[Found], *, every: bool) -> str:
    """What a person reads, role by role where there are several."""
    texts = [table(each, every=every) for each in found]
    return texts[0] if len(texts) == 1 else "\n\n".join(f"{each.role}: {text}" for each, text in zip(found, texts, strict=True))


def table(found: Found, *, every: bool) -> str:
    """What a person reads first: how many decisions are as they were, then the others by what makes the difference."""
    out = [headline(found)]
    if found.config and found.repeated < found.decisions:
        out.append(
            f"As it was configured then, {found.repeated} are made as in the log: this koord decides otherwise, or the log has a gap."
        )
    if found.same > found.alike and not found.config:
        out.append(f"{found.same - found.alike} of them are made for another reason or score.")
    if found.outside:
        out.append(f"{found.outside} decisions were made with extenders and cannot be made again.")
    for what, cause, them in found.groups():
        out += ["", f"{len(them)} {found.thing if len(them) == 1 else f'{found.thing}s'}: {what}, by {cause}"]
        for each in them if every else them[:SHOWN]:
            numbers = f" ({each.numbers})" if each.numbers else ""
            out.append(f"  {format_time(each.time)}  {each.pod}: {each.then} -> {each.now}{numbers}")
        if not every and len(them) > SHOWN:
            out.append(f"  … and {len(them) - SHOWN} more (--diff)")
    return "\n".join(out)


def headline(found: Found) -> str:
    """The verdict in one line."""
    if not found.decisions:
        return "No decisions in this log."
    share = 100 * found.same / found.decisions
    shown = "100" if found.same == found.decisions else f"{min(share, 99.99):.2f}"
    return f"{found.same} of {found.decisions} decisions are as they were ({shown} %)."


def as_json(found: Found) -> dict[str, Any]:
    """The same with all differences."""
    return {
        "role": found.role,
        "decisions": found.decisions,
        "same": found.same,
        "alike": found.alike,
        "repeated": found.repeated,
        "withExtenders": found.outside,
        "versions": dict(found.versions),
        "from": format_time(found.first),
        "to": format_time(found.last),
        "cpuSeconds": round(found.seconds, 3),
        "groups": [
            {"what": what, "cause": cause, "count": len(them), "differences": [asdict(each) for each in them]}
            for what, cause, them in found.groups()
        ],
    }


def line(turn: Turn) -> dict[str, Any]:
    """One decision as it is made now (`-o decisions`)."""
    made = turn.today.made
    return {
        "pod": turn.pod,
        "time": turn.now,
        "verdict": made.verdict,
        "node": made.node,
        "nominated": made.nominated,
        "victims": made.victims,
        "rule": turn.today.rule,
        "score": turn.today.score,
        "same": turn.same,
        "then": turn.then.made.node or turn.then.made.verdict,
    }
