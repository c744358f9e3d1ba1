"""Long work in steps: a generator that yields where the event loop may have a turn, and returns its result.

Whoever has no loop runs it to its end with `at_once`. The live scheduler takes it in slices (turns.py); between two slices nobody else sees
or changes the scheduler's state, so all of the work sees one state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")

Steps = Generator[None, None, T]
_CHUNK = 256


def at_once(work: Steps[T]) -> T:
    """The result of work that comes in steps."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)


def begun(work: Steps[T]) -> T | Steps[T]:
    """The result of work that ends before its first step, else the work with that step done."""
    try:
        next(work)
    except StopIteration as end:
        return cast(T, end.value)
    return work


def in_steps(work: T | Steps[T]) -> Steps[T]:
    """Work that may come in steps, as steps."""
    if isinstance(work, Generator):
        return cast(T, (yield from work))
    return work
    yield


def sorted_in_steps(items: Iterable[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """As `sorted`."""
    runs: list[list[tuple[Any, int, T]]] = [[]]
    for number, item in enumerate(items):
        runs[-1].append((key(item), number, item))  # the number keeps the order of equal ones
        if len(runs[-1]) >= _CHUNK:
            runs[-1].sort()
            runs.append([])
            yield
    runs[-1].sort()
    found: list[T] = []
    for _, _, item in heapq.merge(*runs):
        found.append(item)
        if not len(found) % _CHUNK:
            yield
    return found
