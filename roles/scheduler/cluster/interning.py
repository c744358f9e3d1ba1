"""Small integers for values that columns hold: label values, taint sets, resource names, images."""

from __future__ import annotations

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
