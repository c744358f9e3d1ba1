"""What came of a replay, of whichever role (BEY-REPLAY-01)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koord.process.errors import ConfigurationError

Each = Callable[[dict[str, Any]], None]
"""Is told of a decision as it is made now (`-o decisions`)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that is another one now. `pod` is whom it is about (a node's name for the manager), `what` the kind of difference,
    `cause` a plugin or rule, `numbers` a sentence."""

    pod: str
    time: float
    what: str
    cause: str
    then: str
    now: str
    numbers: str


@dataclass(slots=True)
class Found:
    """What came of a replay. `same` decisions are as in the log, `alike` explained alike, too; `repeated` are the same with the
    configuration of then; `outside` were made with extenders.

    `seconds` is the CPU time of deciding, `first` and `last` the times of the first and the last decision; `config` whether another
    configuration was asked.
    """

    role: str = "scheduler"
    config: bool = False
    decisions: int = 0
    same: int = 0
    alike: int = 0
    repeated: int = 0
    outside: int = 0
    versions: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def count(self, time: float, *, repeated: bool, same: bool, alike: bool | None = None) -> None:
        """One more decision."""
        self.decisions += 1
        self.repeated += repeated
        self.same += same
        self.alike += same if alike is None else alike
        self.first = self.first or time
        self.last = time

    def ended(self, files: list[Path], seconds: float) -> Found:
        """Itself, when all files are read. Raises ConfigurationError where nothing was in them."""
        if not self.versions:
            raise ConfigurationError(f"{', '.join(map(str, files))}: nothing in it")
        self.seconds = seconds
        return self

    @property
    def thing(self) -> str:
        """What differences are counted in."""
        return {"scheduler": "pod", "manager": "decision", "descheduler": "decision"}[self.role]

    def groups(self) -> list[tuple[str, str, list[Difference]]]:
        """Differences by kind and cause, the most first."""
        found: dict[tuple[str, str], list[Difference]] = {}
        for each in self.differences:
            found.setdefault((each.what, each.cause), []).append(each)
        return [(what, cause, them) for (what, cause), them in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))]
