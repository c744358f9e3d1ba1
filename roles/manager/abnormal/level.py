"""From signs to a steady judgement: trouble must last before it counts, and passes by itself (BEY-ABN-01). Pure."""

from __future__ import annotations

from dataclasses import dataclass

RISE, FALL = 120.0, 600.0  # seconds after which half of the way up, or down, is gone
ABNORMAL, RECOVERED = 0.3, 0.1
STEP = 10  # penalties are multiples of it: a node is not written for every small change
MAX_PENALTY = 80  # percent; a node is never switched off by a guess


@dataclass(frozen=True, slots=True)
class Level:
    """How abnormal a node is, 0..1, and whether it counts as abnormal now."""

    value: float = 0.0
    abnormal: bool = False

    @property
    def penalty(self) -> int:
        """Percent by which overcommit and load-aware score of the node are lowered."""
        if not self.abnormal:
            return 0
        return min(max(round(self.value * 100 / STEP), 1) * STEP, MAX_PENALTY)


def moved(level: Level, score: float, seconds: float) -> Level:
    """The level after `seconds` in which the signs scored `score`."""
    half = RISE if score > level.value else FALL
    value = score + (level.value - score) * 0.5 ** (max(seconds, 0.0) / half)
    return Level(value, value >= (RECOVERED if level.abnormal else ABNORMAL))
