"""Who gets which CPU time on a modelled machine (pure): demand, quotas and CPU sets against what there is.

Best-effort groups have the least weight, and yet they hold services up: a task that waits for a CPU waits for the end of somebody's
slice. So when more is wanted than there is, services lose a part of what is missing, and only taking CPU from the best-effort level
gives it back to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roles.sandbox.world.host.layout import BESTEFFORT, LEVELS

if TYPE_CHECKING:
    from roles.sandbox.world.host.kernel import Group, Kernel

LOST = 0.3
"""The part of a shortage that services bear although they weigh far more."""


@dataclass(slots=True)
class Use:
    """CPU of one group of tasks, in cores: what it wants, may have and gets."""

    group: Group
    best_effort: bool
    wanted: float
    allowed: float = 0.0
    got: float = 0.0


def limit(kernel: Kernel, group: Group) -> float:
    """Cores that quotas and CPU sets leave to a group, whatever others do."""
    most = float(len(kernel.effective(group)))
    at: Group | None = group
    while at is not None:
        if at.quota >= 0:
            most = min(most, at.quota / at.period)
        at = at.parent
    return most


def share(kernel: Kernel, uses: list[Use], system: float) -> None:
    """Fill in what each may have and gets."""
    capacity = float(len(kernel.online))
    for use in uses:
        use.allowed = min(use.wanted, limit(kernel, use.group))
    tier = [use for use in uses if use.best_effort]
    services = [use for use in uses if not use.best_effort]
    if tier:
        _scale(tier, limit(kernel, kernel.groups[LEVELS[BESTEFFORT]]))
    for use in uses:
        use.got = use.allowed
    wanted, low = sum(use.allowed for use in services), sum(use.allowed for use in tier)
    room = max(capacity - system, 0.0)
    short = wanted + low - room
    if short <= 0:
        return
    lost = min(LOST * short, low, wanted)
    kept = max(min(wanted - lost, room), 0.0)
    for use in services:
        use.got = use.allowed * kept / wanted if wanted else 0.0
    rest = max(room - kept, 0.0)
    for use in tier:
        use.got = use.allowed * min(rest / low, 1.0) if low else 0.0


def _scale(tier: list[Use], most: float) -> None:
    total = sum(use.allowed for use in tier)
    if total > most:
        for use in tier:
            use.allowed *= most / total
