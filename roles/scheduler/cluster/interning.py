"""Small integers for values that columns hold: label values, taint sets, resource names."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Interner(Generic[T]):
    """Values numbered in the order they are first seen, from 0. Never forgets: ids stay valid for the life of the process."""

    __slots__ = ("_ids", "values")

    def __init__(self, first: tuple[T, ...] = ()) -> None:
        self._ids: dict[T, int] = {}
        self.values: list[T] = []
        for value in first:
            self.intern(value)

    def intern(self, value: T) -> int:
        """The id of a value, given now if it has none."""
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: T) -> int:
        """The id of a value, -1 if it was never seen."""
        return self._ids.get(value, -1)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> T:
        return self.values[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.values)


class Counted(Interner[T]):
    """Numbers only while somebody holds them: the lowest free ones are given out first, so that there are no more than there were holders
    at a time, and fewer again when they go. `first` is never given up; it also stands where a number is free."""

    __slots__ = ("_free", "_holders", "_nothing")

    def __init__(self, first: T) -> None:
        super().__init__((first,))
        self._nothing = first
        self._holders: list[int] = [1]
        self._free: list[int] = []

    def hold(self, value: T) -> int:
        """The id of a value, which stays valid until as many holders have let it go."""
        found = self._ids.get(value)
        if found is None:
            found = self._lowest()
            self._ids[value] = found
            self.values[found] = value
        self._holders[found] += 1
        return found

    def _lowest(self) -> int:
        while self._free:
            number = heapq.heappop(self._free)
            if number < len(self.values) and not self._holders[number]:  # else it was cut off, and perhaps given out again
                return number
        self.values.append(self._nothing)
        self._holders.append(0)
        return len(self.values) - 1

    def let_go(self, number: int) -> None:
        """One holder less."""
        if not number:
            return
        self._holders[number] -= 1
        if self._holders[number]:
            return
        del self._ids[self.values[number]]
        self.values[number] = self._nothing
        heapq.heappush(self._free, number)
        while len(self.values) > 1 and not self._holders[-1]:
            self.values.pop()
            self._holders.pop()
