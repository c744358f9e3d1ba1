"""How a defect is planted: a function of the product gives way to another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from roles.sandbox.world.spec import Spec

USUAL = Spec(pods=26, faults=10)
"""The world that is lived when nothing else is asked for."""
Plant = Callable[[], None]
Make = Callable[[Any], Any]
"""From the function that is replaced to the one that takes its place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake with a name. `crash`: the mistake is that a process ends, so that its end betrays it; of others a crash proves nothing.

    `rule`: the rule for whose sake it is there, which betrays it in histories in which no other one speaks; "" for none.
    `world`: in what its worlds differ from the usual one (fields of Spec), so that it shows, and soon.
    """

    name: str
    text: str
    plant: Plant
    crash: bool = False
    rule: str = ""
    world: Mapping[str, Any] = field(default_factory=dict)


class Mutants(list[Mutant]):
    """The mutants of one part of the product. `world`: in what all their worlds differ from the usual one."""

    def __init__(self, **world: Any) -> None:
        super().__init__()
        self.world = world

    def add(self, name: str, text: str, *, crash: bool = False, rule: str = "", **world: Any) -> Callable[[Plant], Plant]:
        """A decorator of the function that plants one. Nothing goes wrong in its worlds unless it says of which `kinds`, or how often."""
        faults = {"faults": USUAL.faults if "kinds" in world else 0}

        def decorate(plant: Plant) -> Plant:
            self.append(Mutant(name, text, plant, crash, rule, {**self.world, **faults, **world}))
            return plant

        return decorate

    def wrap(self, name: str, text: str, path: str, make: Make, *, rule: str = "", **world: Any) -> None:
        """One that replaces a single function."""
        self.add(name, text, rule=rule, **world)(lambda: wrap(path, make))


def find(path: str) -> tuple[Any, str, Any]:
    """(owner, name, value) of "module:Class.function". Raises AttributeError for what is not there."""
    module, _, inside = path.partition(":")
    owner: Any = import_module(module)
    *parts, name = inside.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def replace(path: str, new: Any) -> None:
    """Put something else in the place of a function. Raises TypeError for one that cannot be called in the same way: its failure would be
    another defect than the one that is meant, or none."""
    wrap(path, lambda old: new)


def wrap(path: str, make: Make) -> None:
    """Put something that knows the old function in its place. Raises TypeError as `replace` does."""
    owner, name, old = find(path)
    new = make(old)
    if inspect.isfunction(old) and inspect.isfunction(new):
        _check(path, old, new)
    setattr(owner, name, new)


def _check(path: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Whether a function takes what the old one takes, at least and at most."""
    wanted = list(inspect.signature(old).parameters.values())
    for given in ([one for one in wanted if one.default is one.empty], wanted):
        places = [one for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        words = {one.name: None for one in given if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(new).bind(*[None] * len(places), **words)
        except TypeError as error:
            raise TypeError(f"{path}{inspect.signature(old)} is replaced by a function of {inspect.signature(new)}: {error}") from error


def nothing(value: Any = None) -> Make:
    """A function that does nothing and returns `value`."""
    return lambda old: lambda *args, **kwargs: value
