"""Who gets which CPU time on a modelled machine (pure): demand, weights, quotas and CPU sets against what there is.

Time is divided as the kernel does it: at each group among its children by their weights, none gets more than it wants or may have, and what
one leaves goes to the others. Best-effort groups have the least weight, and yet they hold services up: a task that wakes waits for the
end of somebody's slice. So when more is wanted than there is, services lose a part of what is missing, and only taking CPU from the
best-effort level gives it back to them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roles.sandbox.world.host.layout import BESTEFFORT, LEVELS

if TYPE_CHECKING:
    from roles.sandbox.world.host.kernel import Group, Kernel

LOST = 0.3
"""The part of a shortage that services bear although they weigh far more."""
_LEAST = 1e-9


@dataclass(slots=True)
class Use:
    """CPU of one group of tasks, in cores: what it wants, may have and gets. `memory`: bytes that it wants."""

    group: Group
    best_effort: bool
    wanted: float
    memory: int = 0
    allowed: float = 0.0
    got: float = 0.0

    @property
    def waits(self) -> float:
        """For what share of the time it waits for a CPU, or for its quota."""
        return max(1 - self.got / self.wanted, 0.0) if self.wanted > _LEAST else 0.0

    @property
    def held_up(self) -> float:
        """How many times as long its work takes as with all the CPU that its own limits leave it; 1 is best."""
        return self.allowed / self.got if self.got > _LEAST else (100.0 if self.allowed > _LEAST else 1.0)


def weight(group: Group) -> float:
    """A group's weight beside its siblings; that of an idle one is next to nothing."""
    return 1e-3 if group.idle else float(group.shares)


def limit(kernel: Kernel, group: Group) -> float:
    """Cores that quotas and CPU sets leave to a group, whatever others do."""
    most = float(len(kernel.effective(group)))
    at: Group | None = group
    while at is not None:
        if at.quota >= 0:
            most = min(most, at.quota / at.period)
        at = at.parent
    return most


def level(kernel: Kernel, groups: list[Group]) -> float:
    """Cores that these groups of best-effort pods may use together: those of their level, on CPUs that one of them has."""
    most = limit(kernel, kernel.groups[LEVELS[BESTEFFORT]])
    cpus = frozenset[int]().union(*(kernel.effective(group) for group in groups))
    return min(most, float(len(cpus))) if groups else most


def share(kernel: Kernel, uses: list[Use], system: float) -> None:
    """Fill in what each may have and gets."""
    room = max(len(kernel.online) - system, 0.0)
    below: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        use.allowed = min(use.wanted, limit(kernel, use.group))
        use.got = 0.0
        at: Group | None = use.group
        while at is not None:
            below[at.name].append(use)
            at = at.parent
    tier = [use for use in uses if use.best_effort]
    services = [use for use in uses if not use.best_effort]
    most = level(kernel, [use.group for use in tier])
    _divide(kernel.groups[""], room, below, most)
    wanted, low = sum(use.allowed for use in services), min(sum(use.allowed for use in tier), most)
    lost = min(LOST * (wanted + low - room), low, wanted)
    late = lost - sum(use.allowed - use.got for use in services)
    if late > 0:  # they wake, and wait for the end of a slice
        moved = 0.0
        for use in services:
            part = min(late * use.allowed / wanted, use.got)
            use.got -= part
            moved += part
        _hand_out(tier, moved)


def _hand_out(uses: list[Use], spare: float) -> None:
    short = sum(use.allowed - use.got for use in uses)
    if short > _LEAST:
        for use in uses:
            use.got += (use.allowed - use.got) * min(spare / short, 1.0)


def _most(group: Group, tier: float) -> float:
    """What a group may use by its own quota; the level of best-effort pods also by the CPUs that these have."""
    own = group.quota / group.period if group.quota >= 0 else math.inf
    return min(own, tier) if group.name == LEVELS[BESTEFFORT] else own


def _divide(group: Group, room: float, below: dict[str, list[Use]], tier: float) -> None:
    """So many cores among the tasks of a group and those below it: by weight, until nobody wants more or nothing is left."""
    room = min(room, _most(group, tier))
    sides: list[tuple[float, float, Group | Use]] = []
    for child in group.children.values():
        if child.name in below:
            sides.append((weight(child), min(sum(use.allowed for use in below[child.name]), _most(child, tier)), child))
    sides += [(1024.0, use.allowed, use) for use in below.get(group.name, ()) if use.group is group]
    sides.sort(key=lambda side: side[1] / side[0])
    total = sum(side[0] for side in sides)
    for heavy, wants, side in sides:  # who is content with least for its weight first
        given = min(wants, room * heavy / total) if total > 0 else 0.0
        room, total = room - given, total - heavy
        if isinstance(side, Use):
            side.got = given
        else:
            _divide(side, given, below, tier)
