"""A model checker for machines without I/O: all orders of what may happen in a small world, each state looked at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

Step = tuple[str, Callable[[], None]]


class World(Protocol):
    """A machine and what is around it. `copy.deepcopy` must make an independent one."""

    def steps(self) -> Iterable[Step]:
        """What may happen next, by name."""

    def key(self) -> Hashable:
        """Equal for states that cannot be told apart from now on."""

    def check(self) -> None:
        """Raises AssertionError where an invariant is broken."""

    def check_end(self) -> None:
        """The same for a state in which nothing can happen any more."""


W = TypeVar("W", bound=World)


def explore(first: W, *, most: int = 200_000) -> int:
    """Visit every state that can be reached; returns how many there are. A broken invariant is raised with the story that leads there."""
    seen = {first.key()}
    pending: list[tuple[W, tuple[str, ...]]] = [(first, ())]
    while pending:
        world, story = pending.pop()
        names = [name for name, _ in world.steps()]
        if not names:
            _checked(world.check_end, story)
        for index, name in enumerate(names):
            after = copy.deepcopy(world)
            told = (*story, name)
            _checked(list(after.steps())[index][1], told)
            _checked(after.check, told)
            key = after.key()
            if key not in seen:
                seen.add(key)
                pending.append((after, told))
        assert len(seen) <= most, f"more than {most} states: make the world smaller"
    return len(seen)


def _checked(step: Callable[[], None], story: tuple[str, ...]) -> None:
    try:
        step()
    except Exception as failure:
        raise AssertionError(f"{failure!r} after: " + " > ".join(story)) from failure
