"""Work on many things in slices, so that nothing else in the process waits for it: sorting, and freeing what was collected. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, Generic, TypeVar

from roles.descheduler.framework.effects import PAUSE, Turn
from roles.descheduler.framework.handle import Handle

T = TypeVar("T")
RUN = 2048  # things that are sorted in one go
FREED = 32  # things that are let go of at once, as much work as looking at one pod


class Runs(Generic[T]):
    """Things that are added one by one and read once in the order of their keys: sorted, merged and freed bit by bit.

    Keys stand beside the things, for a pair of each would be one more thing for the garbage collector to look at."""

    def __init__(self) -> None:
        self._runs: list[tuple[list[Any], list[T]]] = []
        self._keys: list[Any] = []
        self._things: list[T] = []

    def add(self, key: Any, thing: T) -> None:
        """One more."""
        self._keys.append(key)
        self._things.append(thing)
        if len(self._keys) >= RUN:
            self._close()

    def in_order(self) -> Iterator[tuple[Any, T]]:
        """All of them with their keys; among equals those that were added first come first."""
        self._close()
        runs, self._runs = self._runs, []
        return merge(*(_emptied(*run) for run in runs), key=itemgetter(0))

    def _close(self) -> None:
        keys, things = self._keys, self._things
        order = sorted(range(len(keys)), key=keys.__getitem__)
        order.reverse()  # read from its end, so that what was read is freed
        self._runs.append(([keys[each] for each in order], [things[each] for each in order]))
        self._keys, self._things = [], []


def _emptied(keys: list[Any], things: list[T]) -> Iterator[tuple[Any, T]]:
    while keys:
        yield keys.pop(), things.pop()


def free(handle: Handle, *large: dict[Any, Any] | list[Any]) -> Turn:
    """Empty what nobody reads any more: letting go of hundreds of thousands at once takes as long as a search."""
    for each in large:
        take = each.pop if isinstance(each, list) else each.popitem
        while each:
            for _ in range(min(FREED, len(each))):
                take()
            if handle.pause():
                yield PAUSE
