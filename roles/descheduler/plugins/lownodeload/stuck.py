"""Why a hot node stays hot, and the smallest change that would help (DS-LNL-06). Pure: which pods stay and why in, words and terms out.

A pod may be kept by several things at once. Only what alone keeps enough pods is a change that helps: if it were lifted, those pods could
go, find a place, and the node would not be hot any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord.accounting.resources import sum_
from koord.decisions.record import Term
from roles.descheduler.snapshot import Vector

NAMED = 3  # pods of a reason that are named; of the others only the number is told
REASONS = 8  # reasons that are told, those that keep most pods first


@dataclass(frozen=True, slots=True)
class Kept:
    """A pod that stays on a hot node. `usage` is in base units; `reasons` are all that keep it, the one that was met first in front.

    `nearest` says of a pod that fits no node that may take it what is missing there."""

    pod: str
    usage: Vector
    reasons: tuple[str, ...]
    fits: bool
    nearest: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One reason which, if it did not hold for these pods, would let enough of them go."""

    reason: str
    pods: tuple[str, ...]
    nearest: str = ""

    def __str__(self) -> str:
        which = ", ".join(self.pods[:NAMED]) + (f" and {len(self.pods) - NAMED} more" if len(self.pods) > NAMED else "")
        return f"without this for {which} it would be hot no more: {self.reason}" + (f" ({self.nearest})" if self.nearest else "")


NO_PLACE = "it fits no low node"


def smallest_change(kept: Sequence[Kept], excess: Mapping[str, int]) -> Change | None:
    """The change that moves the fewest pods and relieves the node of its excess (base units); None where no single one would.

    What keeps a pod from leaving is lifted only for pods that have a place; for one that has none, the place is what is missing."""
    changes = []
    for reason in dict.fromkeys(each.reasons[0] for each in kept):
        free = [each for each in kept if _only(each, reason)]
        if chosen := _cover(free, excess):
            changes.append(Change(reason, tuple(each.pod for each in chosen), chosen[0].nearest if reason == NO_PLACE else ""))
    return min(changes, key=lambda change: (len(change.pods), change.reason == NO_PLACE), default=None)


def _only(kept: Kept, reason: str) -> bool:
    others = set(kept.reasons) - {reason}
    return reason in kept.reasons and not others and (kept.fits or reason == NO_PLACE)


def _cover(free: Sequence[Kept], excess: Mapping[str, int]) -> list[Kept]:
    """As few of the pods as cover the excess, taken from the one that helps most; none if all of them do not."""
    left = {name: over for name, over in excess.items() if over > 0}
    chosen: list[Kept] = []
    rest = list(free)
    while any(over > 0 for over in left.values()):
        best = max(
            rest, key=lambda each: sum(min(_use(each, name) / excess[name], 1.0) for name, over in left.items() if over > 0), default=None
        )
        if best is None or not any(_use(best, name) > 0 for name, over in left.items() if over > 0):
            return []
        rest.remove(best)
        chosen.append(best)
        left = {name: over - _use(best, name) for name, over in left.items()}
    return chosen


def _use(kept: Kept, name: str) -> int:
    return 1 if name == "pods" else kept.usage.get(name, 0)


def terms(kept: Sequence[Kept], waiting: Mapping[str, str], excess: Mapping[str, int], outside: Mapping[str, int]) -> tuple[Term, ...]:
    """The answer as terms: by how much the node is too hot, what keeps how many pods, what migrations wait for, and what would help.

    `waiting` are pods whose migration is under way and what it waits for; `outside` is by how much what no pod uses alone is too much."""
    found = [Term(f"{name} above its threshold", over, unit=_unit(name)) for name, over in sorted(excess.items()) if over > 0]
    by_reason: dict[str, list[Kept]] = {}
    for each in kept:
        by_reason.setdefault(each.reasons[0], []).append(each)
    for reason, pods in sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0]))[:REASONS]:
        found.append(Term(reason, len(pods), _note(pods), "pods"))
    found += [Term(f"migration of {pod} waits", 1, why, "pods") for pod, why in sorted(waiting.items())]
    return (*found, Term("smallest change that would help", "", advice(kept, waiting, excess, outside)))


def advice(kept: Sequence[Kept], waiting: Mapping[str, str], excess: Mapping[str, int], outside: Mapping[str, int]) -> str:
    """One sentence: what would have to change."""
    if too_much := sorted(name for name, over in outside.items() if over > 0):
        return f"no pod's leaving would help: what is not used by pods is above the threshold of {', '.join(too_much)} alone"
    if (change := smallest_change(kept, excess)) is not None:
        return str(change)
    if waiting:
        return "migrations that are under way have to be let through"
    total = sum_({**each.usage, "pods": 1} for each in kept)
    if short := sorted(name for name, over in excess.items() if total.get(name, 0) < over):
        return f"no change of what keeps its pods would do: all of them together use too little {', '.join(short)}"
    several = [each for each in kept if len(set(each.reasons)) > 1]
    return (
        f"no single change would do: {len(several)} of {len(kept)} pods are kept by several things at once"
        if several
        else ("no single change would do: each reason keeps too few pods")
    )


def _note(pods: Sequence[Kept]) -> str:
    named = ", ".join(each.pod for each in pods[:NAMED]) + (f" and {len(pods) - NAMED} more" if len(pods) > NAMED else "")
    nearest = next((each.nearest for each in pods if each.nearest), "")
    also = sorted({reason for each in pods for reason in each.reasons[1:]})
    parts = [named, f"nearest: {nearest}" if nearest else "", f"also: {'; '.join(also[:2])}" if also else ""]
    return "; ".join(filter(None, parts))


def _unit(name: str) -> str:
    return {"cpu": "milli", "memory": "bytes"}.get(name, "")
