"""What is to be released by evicting pods, and whom to take first (KA-EVX-01). Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord.decisions.record import Term
from roles.koordlet.states.model import PodState

#: What a victim counts towards a target: what it uses, or what it requests.
USED, REQUEST = "used", "request"

#: Resource → amount; CPU in milli-cores, memory in bytes.
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod, and what its eviction releases by accounting key (:data:`USED`, :data:`REQUEST`)."""

    pod: PodState
    releases: Mapping[str, Amounts]
    ending: bool = False
    """It was told to leave, and will be gone soon: it is taken again only where the need is critical."""
    lingering: bool = False
    """It was told to leave, and may stay for long, or stays longer than it may: it is evicted again only where that hastens it."""


@dataclass(frozen=True, slots=True)
class EvictionTask:
    """One reason to evict: release ``targets``, counted by ``key``, by walking ``victims`` in their order."""

    gate: str
    key: str
    targets: Amounts
    victims: tuple[Victim, ...]
    message: str
    """What the numbers say, one sentence."""
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    critical: bool = False
    """The node is beyond the second threshold (:func:`critical_percent`): containers may be stopped while the API server is silent."""


def critical_percent(threshold: float) -> float:
    """The second threshold, half way from the first one to 100 percent."""
    return threshold + (100 - threshold) / 2


class Ledger:
    """What a run has released, by (key, resource), shared by all its tasks so that nothing is counted twice.

    ``going`` are those whose resources come free in any case.
    """

    def __init__(self, tasks: tuple[EvictionTask, ...], going: Iterable[Victim] = ()) -> None:
        self._keys = {t.key for t in tasks if any(v > 0 for v in t.targets.values())}
        self._released: dict[tuple[str, str], int] = {}
        for victim in going:
            self.add(victim)

    def add(self, victim: Victim) -> None:
        """A victim's resources count for every key that a task uses."""
        for key in self._keys:
            for resource, amount in victim.releases.get(key, {}).items():
                self._released[key, resource] = self._released.get((key, resource), 0) + amount

    def covers(self, task: EvictionTask) -> bool:
        """Whether every target of the task is reached."""
        return all(self._released.get((task.key, r), 0) >= target for r, target in task.targets.items())

    def released(self, task: EvictionTask) -> dict[str, int]:
        """What counts towards the task's targets so far."""
        return {r: self._released.get((task.key, r), 0) for r in task.targets}
