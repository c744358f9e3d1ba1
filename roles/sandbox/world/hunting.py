"""The hunt: each planted defect is lived until a rule betrays it, and each rule is held against the defects that it alone betrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from roles.sandbox.world import runner
from roles.sandbox.world.invariants.liveness import NobodyCrashes
from roles.sandbox.world.invariants.registry import INVARIANTS
from roles.sandbox.world.mutants.planting import USUAL, Mutant
from roles.sandbox.world.mutants.registry import MUTANTS
from roles.sandbox.world.runner import Result
from roles.sandbox.world.spec import Spec

GOAL = 0.95
BEGIN, END = "<!-- the hunt: written by --table -->", "<!-- end of the hunt -->"
"""Between which lines of a file the table stands."""
_TITLES = ("planted defect", "caught by", "first seed")


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one mutant. `by`: the rules that betrayed it, those that once did so without any other first."""

    name: str
    alone: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    seed: int | None = None

    def cells(self) -> tuple[str, str, str]:
        """The row of a table: a star marks rules that spoke alone."""
        rules = [f"`{name}`\\*" for name in self.alone] + [f"`{name}`" for name in self.by if name not in self.alone]
        return f"`{self.name}`", ", ".join(rules) or "-", "-" if self.seed is None else str(self.seed)


@dataclass(slots=True)
class Catch:
    """What became of one mutant. `by`: in how many histories each rule betrayed it; `alone`: in how many it did so without any other."""

    mutant: Mutant
    lived: int = 0
    first: int | None = None  # the first seed that caught it; with a rule of its own the first in which that spoke alone
    by: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    stopped: str = ""  # why a world could not go on

    def see(self, result: Result, sound: Result | None = None) -> None:
        """One more history, and the same one without the defect, if it was lived. What a rule says of both, and a crash that is not the
        defect itself, prove nothing."""
        self.lived += 1
        self.stopped = self.stopped or result.failure.partition("\n")[0]
        spoke = {name for _, name, _ in result.violations} - {name for _, name, _ in (sound.violations if sound else ())}
        if not self.mutant.crash:
            spoke.discard(NobodyCrashes.__name__)
        if not spoke:
            return
        own = spoke == {self.mutant.rule} and self.mutant.rule not in self.alone
        self.first = result.seed if self.first is None or own else self.first
        self.by.update(sorted(spoke))
        if len(spoke) == 1:
            self.alone.update(spoke)

    @property
    def settled(self) -> bool:
        """Whether another history would tell nothing new."""
        return self.mutant.rule in self.alone if self.mutant.rule else self.first is not None

    def row(self) -> Row:
        """What was found."""
        own = (self.mutant.rule,) if self.mutant.rule in self.alone else ()
        alone = (*own, *(name for name in sorted(self.alone) if name not in own))
        return Row(self.mutant.name, alone, tuple(sorted(self.by)), self.first)

    def line(self) -> str:
        """What is printed of it."""
        row = self.row()
        names = ", ".join([f"{name}*" for name in row.alone] + [name for name in row.by if name not in row.alone])
        if self.first is None:
            names = f"NOT CAUGHT{f' (the world stopped: {self.stopped})' if self.stopped else ''}"
        elif not self.settled:
            names += f" (never by {self.mutant.rule} alone)"
        return f"{self.mutant.name:40} {self.lived:5} {'-' if self.first is None else self.first:>5}  {names}"


def aim(spec: Spec, mutant: Mutant) -> Spec:
    """A world in which a mutant shows, if it can: its own, where nothing else than the usual is asked for."""
    return replace(spec, **{name: value for name, value in mutant.world.items() if getattr(spec, name) == getattr(USUAL, name)})


def hunt(mutants: Sequence[Mutant], specs: Callable[[], Iterator[Spec]], jobs: int, say: Callable[[str], None], table: str = "") -> bool:
    """Hunt for each mutant, and keep the rows of the table in the file of this name, if any.

    Whether the share of all that are known (of those that were hunted, without a table) reaches the goal.
    """
    say(f"{'planted defect':40} {'lived':>5} {'first':>5}  caught by (*: in a history in which no other rule spoke)")
    known = {row.name: row for row in read(Path(table).read_text())} if table else {}
    wanted = list(MUTANTS) if table else [mutant.name for mutant in mutants]
    for mutant in mutants:
        catch = Catch(mutant)
        worlds = {spec.seed: aim(spec, mutant) for spec in specs()}
        for result in runner.many(iter(worlds.values()), jobs, mutant.plant):
            catch.see(result, runner.run(worlds[result.seed]) if result.violations else None)
            if catch.settled:
                break
        say(catch.line())
        known[mutant.name] = catch.row()
        if table:
            rows = [known.get(name, Row(name)) for name in wanted]
            Path(table).write_text(written(Path(table).read_text(), rows))
    rows = [known.get(name, Row(name)) for name in wanted]
    for line in summary(rows):
        say(line)
    return share(rows) >= GOAL


def share(rows: Iterable[Row]) -> float:
    """Of how many a rule has spoken, 0 to 1."""
    caught = [row.seed is not None for row in rows]
    return sum(caught) / len(caught)


def lonely(rows: Iterable[Row]) -> list[str]:
    """Rules that betray no mutant alone."""
    own = {name for row in rows for name in row.alone}
    return [kind.__name__ for kind in INVARIANTS if kind.__name__ not in own]


def summary(rows: Sequence[Row]) -> list[str]:
    """The share that is caught, and the rules that betray nothing alone."""
    caught = sum(row.seed is not None for row in rows)
    lines = [f"{caught} of {len(rows)} planted defects are caught ({caught / len(rows):.0%})."]
    if len(rows) == len(MUTANTS):
        lines.append(f"Rules that betray none of them alone: {', '.join(lonely(rows)) or 'none'}.")
    return lines


def written(text: str, rows: Sequence[Row]) -> str:
    """A file with the table in its place. Raises ValueError when it has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no line {BEGIN!r} with a line {END!r} after it")
    lines = ["| " + " | ".join(cells) + " |" for cells in (_TITLES, ("---",) * len(_TITLES), *(row.cells() for row in rows))]
    return "\n".join([before + BEGIN, *lines, "", *summary(rows), end + after])


def read(text: str) -> list[Row]:
    """The rows of the table in a file; none where there is no table."""
    rows = []
    for line in text.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == len(_TITLES) and cells[0].startswith("`"):
            name, rules, seed = cells
            by = [rule.strip() for rule in rules.split(",") if rule.strip() != "-"]
            alone = tuple(rule.strip("`\\*") for rule in by if rule.endswith("*"))
            rows.append(Row(name.strip("`"), alone, tuple(rule.strip("`\\*") for rule in by), int(seed) if seed.isdigit() else None))
    return rows
