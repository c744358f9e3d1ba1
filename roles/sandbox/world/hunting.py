"""The hunt: each planted defect is lived until a rule betrays it, and each rule is held against the defects that it alone betrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from roles.sandbox.world import runner
from roles.sandbox.world.invariants.liveness import NobodyCrashes
from roles.sandbox.world.invariants.registry import INVARIANTS
from roles.sandbox.world.mutants.planting import Mutant
from roles.sandbox.world.runner import Result
from roles.sandbox.world.world import Spec

GOAL = 0.95
ENOUGH = 3
"""Histories in which a mutant was caught, after which none is looked for any more in which one rule alone catches it."""


@dataclass(slots=True)
class Catch:
    """What became of one mutant. `by`: in how many histories each rule betrayed it; `alone`: rules that once did so without any other."""

    mutant: Mutant
    lived: int = 0
    first: int | None = None  # the first seed that caught it
    by: Counter[str] = field(default_factory=Counter)
    alone: set[str] = field(default_factory=set)
    stopped: str = ""  # why a world could not go on

    @property
    def caught(self) -> bool:
        """Whether a rule has spoken. A crash that is not the defect itself proves nothing."""
        return self.first is not None

    def see(self, result: Result) -> None:
        """One more history."""
        self.lived += 1
        self.stopped = self.stopped or result.failure.partition("\n")[0]
        spoke = {name for _, name, _ in result.violations}
        if not self.mutant.crash:
            spoke.discard(NobodyCrashes.__name__)
        if not spoke:
            return
        self.first = result.seed if self.first is None else self.first
        self.by.update(sorted(spoke))
        if len(spoke) == 1:
            self.alone |= spoke

    @property
    def settled(self) -> bool:
        """Whether another history would tell nothing new."""
        return bool(self.alone) or max(self.by.values(), default=0) >= ENOUGH

    def line(self) -> str:
        """A row of the table."""
        names = ", ".join(
            f"{name}*" if name in self.alone else name for name, _ in sorted(self.by.items(), key=lambda one: (-one[1], one[0]))
        )
        if not self.caught:
            names = f"NOT CAUGHT{f' (the world stopped: {self.stopped})' if self.stopped else ''}"
        return f"{self.mutant.name:40} {self.lived:5}  {names}"


def aim(spec: Spec, mutant: Mutant) -> Spec:
    """A world in which a mutant shows, if it can: one that takes certain workloads and no certain faults shows best without any."""
    faults = 0 if mutant.sorts and not mutant.kinds else spec.faults
    return replace(spec, kinds=spec.kinds or mutant.kinds, sorts=spec.sorts or mutant.sorts, faults=faults)


def hunt(mutants: Iterable[Mutant], specs: Callable[[], Iterator[Spec]], jobs: int, say: Callable[[str], None] = print) -> bool:
    """Hunt for each mutant and print the table. Whether the share that is caught reaches the goal."""
    say(f"{'mutant':40} {'seeds':>5}  caught by (*: in a history in which no other rule spoke)")
    catches = []
    for mutant in mutants:
        catch = Catch(mutant)
        for result in runner.many((aim(spec, mutant) for spec in specs()), jobs, mutant.plant):
            catch.see(result)
            if catch.settled:
                break
        catches.append(catch)
        say(catch.line())
    return _sum_up(catches, say)


def _sum_up(catches: list[Catch], say: Callable[[str], None]) -> bool:
    caught = sum(catch.caught for catch in catches)
    own = {name for catch in catches for name in catch.alone}
    without = [kind.__name__ for kind in INVARIANTS if kind.__name__ not in own]
    if len(catches) > 1:
        say(f"rules without a mutant that they alone betray: {', '.join(without) or 'none'}")
    say(f"{caught} of {len(catches)} planted defects are caught ({caught / len(catches):.0%})")
    return caught >= GOAL * len(catches)
