"""How a defect is planted: a function of the product gives way to another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Plant = Callable[[], None]
Make = Callable[[Any], Any]
"""From the function that is replaced to the one that takes its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake with a name. `crash`: the mistake is that a process ends, so that its end betrays it; of others a crash proves nothing.

    `kinds` are the faults and `sorts` the workloads with which it shows, as far as it takes certain ones.
    """

    name: str
    text: str
    plant: Plant
    crash: bool = False
    kinds: tuple[str, ...] = ()
    sorts: tuple[str, ...] = ()


class Mutants(list[Mutant]):
    """The mutants of one part of the product."""

    def add(
        self, name: str, text: str, *, crash: bool = False, kinds: tuple[str, ...] = (), sorts: tuple[str, ...] = ()
    ) -> Callable[[Plant], Plant]:
        """A decorator of the function that plants one."""

        def decorate(plant: Plant) -> Plant:
            self.append(Mutant(name, text, plant, crash, kinds, sorts))
            return plant

        return decorate

    def wrap(self, name: str, text: str, path: str, make: Make, *, kinds: tuple[str, ...] = ()) -> None:
        """One that replaces a single function."""
        self.append(Mutant(name, text, lambda: wrap(path, make), kinds=kinds))


def find(path: str) -> tuple[Any, str, Any]:
    """(owner, name, value) of "module:Class.function". Raises AttributeError for what is not there."""
    module, _, inside = path.partition(":")
    owner: Any = import_module(module)
    *parts, name = inside.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def replace(path: str, new: Any) -> None:
    """Put something else in the place of a function."""
    owner, name, _ = find(path)
    setattr(owner, name, new)


def wrap(path: str, make: Make) -> None:
    """Put something that knows the old function in its place."""
    owner, name, old = find(path)
    setattr(owner, name, make(old))


def nothing(value: Any = None) -> Make:
    """A function that does nothing and returns `value`."""
    return lambda old: lambda *args, **kwargs: value
