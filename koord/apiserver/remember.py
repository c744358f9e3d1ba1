"""Caches of what is derived from requests: bounded by size, not by entries alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class short_ones:
    """As `lru_cache`, for a function of one argument; one beyond a size is not remembered: a body may have megabytes of it."""

    def __init__(self, entries: int, longest: int, size: Callable[[Any], int]) -> None:
        self._entries, self._longest, self._size = entries, longest, size

    def __call__(self, answer: Callable[[K], V]) -> Callable[[K], V]:
        remembered, longest, size = lru_cache(maxsize=self._entries)(answer), self._longest, self._size

        @wraps(answer)
        def ask(about: K) -> V:
            return remembered(about) if size(about) <= longest else answer(about)

        return ask
