"""When kernel pressure calls for a tick out of turn (BEY-PSI-01). Pure.

A stall alone does not trigger anything, because best-effort pods that fill a node, or are held by a quota, always wait. What cannot wait is that
those who come first need more than the last tick knew of while somebody waits for CPU, or that they wait more than usual themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: A look is compared with the one about this long before it (seconds).
WINDOW = 0.2
#: Share of the window in which somebody waits from which on it counts as a stall.
CPU_STALL, MEMORY_STALL = 0.15, 0.10
#: How much more CPU than at the last tick those who come first must use, as a share of the node.
RISE = 0.05
#: Weight of the newest look in what is usual: half of it is forgotten in about three seconds of looks.
_LEARN = 0.025
#: Ticks out of turn in a row, and how many a second are earned again: steady pressure doubles the ticks and no more.
BURST, EARNED = 3.0, 1.0
#: Looks further apart than this tell nothing of the moment between them (seconds).
_STALE = 1.0

NODE_CPU, NODE_MEMORY = "cpu", "memory"
RISEN = "rise"


@dataclass(frozen=True, slots=True)
class Look:
    """Counters of one moment (monotonic seconds): stall time by source (µs), CPU time of all pods but best-effort ones (ns)."""

    mono: float
    stalls: Mapping[str, int] = field(default_factory=dict)
    """``cpu`` and ``memory`` are the node's; ``cpu <directory>`` and ``memory <directory>`` those of latency-sensitive groups."""
    others_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Urgency:
    """What is remembered between looks."""

    looks: tuple[Look, ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)
    tokens: float = BURST
    at_tick: Look | None = None
    known: float | None = None
    """CPU of the others in cores, as the last tick saw it."""
    now: float | None = None
    """The same over the last window."""


def looked(state: Urgency, look: Look, cpus: int) -> tuple[Urgency, str]:
    """Take a look in; the second is what cannot wait for the next tick, empty when nothing does."""
    last = state.looks[-1] if state.looks else None
    if last is None or not 0 < look.mono - last.mono <= _STALE:
        return replace(state, looks=(look,)), ""
    tokens = min(state.tokens + EARNED * (look.mono - last.mono), BURST)
    window = tuple(k for k in state.looks if look.mono - k.mono <= WINDOW + 0.01) or (last,)
    shares = _shares(window[0], look)
    state = replace(state, now=_cores(window[0], look))
    reason = _risen(state, shares, cpus) or _waiting(state, shares)
    usual = {source: _mean(state.usual.get(source), share) for source, share in shares.items()}
    state = replace(state, looks=(*window, look), usual=usual, tokens=tokens)
    if not reason or tokens < 1.0:
        return state, ""
    return replace(state, tokens=tokens - 1.0), reason


def ticked(state: Urgency, look: Look) -> Urgency:
    """A tick has just run: what it saw is no news any more."""
    known = _cores(state.at_tick, look)
    return replace(state, at_tick=look, known=state.known if known is None else known)


def _shares(old: Look, new: Look) -> dict[str, float]:
    """Share of the time between two looks in which somebody waited; sources that both have and that did not start over."""
    span = (new.mono - old.mono) * 1e6
    return {s: min((t - old.stalls[s]) / span, 1.0) for s, t in new.stalls.items() if s in old.stalls and t >= old.stalls[s]}


def _cores(old: Look | None, new: Look) -> float | None:
    """CPU of the others between two looks; None when it is not known."""
    if old is None or old.others_ns is None or new.others_ns is None or new.mono <= old.mono:
        return None
    return max(new.others_ns - old.others_ns, 0) / 1e9 / (new.mono - old.mono)


def _risen(state: Urgency, shares: Mapping[str, float], cpus: int) -> str:
    if state.known is None or state.now is None or shares.get(NODE_CPU, 0.0) < CPU_STALL:
        return ""
    return RISEN if state.now - state.known >= RISE * cpus else ""


def _waiting(state: Urgency, shares: Mapping[str, float]) -> str:
    """Memory, and latency-sensitive groups: more than usual. The node's CPU alone says nothing, see above."""
    for source, share in shares.items():
        memory = source.startswith(NODE_MEMORY)
        if source != NODE_CPU and share >= state.usual.get(source, 0.0) + (MEMORY_STALL if memory else CPU_STALL):
            return "memory" if memory else "group"
    return ""


def _mean(before: float | None, share: float) -> float:
    return share if before is None else before + _LEARN * (share - before)
