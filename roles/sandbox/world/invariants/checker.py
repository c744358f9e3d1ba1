"""All invariants held against one history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import Invariant, Violation
from roles.sandbox.world.invariants.registry import INVARIANTS

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class Checker:
    """Holds all invariants against a history while it happens. `about` an author: what is to be known of him where a rule was broken."""

    def __init__(self, history: History, about: Callable[[str], str] = lambda author: "") -> None:
        self.history = history
        self._about = about
        self.invariants = [kind(history) for kind in INVARIANTS]
        self._seeing = [one for one in self.invariants if type(one).see is not Invariant.see]
        self._by_bucket: dict[str, list[tuple[str, Callable[[Entry], Iterator[str]]]]] = {}
        self._ending = [one for one in self.invariants if type(one).end is not Invariant.end]
        self.violations: list[Violation] = []
        history.watchers.append(self.see)

    def see(self, entry: Entry) -> None:
        """One entry."""
        seeing = self._by_bucket.get(entry.bucket)
        if seeing is None:
            seeing = [(one.name, one.see) for one in self._seeing if one.hears is None or entry.bucket in one.hears]
            self._by_bucket[entry.bucket] = seeing
        for name, see in seeing:
            for text in see(entry):
                self.violations.append(Violation(entry.time, entry.number, name, text + self._about(entry.author)))

    def accuse(self, name: str, text: str) -> None:
        """A program found something wrong with itself."""
        self.violations.append(Violation(self.history.clock(), self.history.count, name, text))

    def open(self) -> bool:
        """Whether the world has to go on before all rules can be judged."""
        return any(one.open() for one in self._ending)

    def end(self) -> None:
        """The world is calm: everything must be well."""
        for invariant in self.invariants:
            for text in invariant.end():
                self.violations.append(Violation(self.history.clock(), self.history.count, invariant.name, text))
