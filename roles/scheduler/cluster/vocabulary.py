"""Names that pods and nodes share, numbered once so that columns and requests speak of the same things."""

from __future__ import annotations

from typing import NamedTuple

from koord.api import names
from roles.scheduler.cluster.interning import Counted, Interner

CPU = 0
MEMORY = 1

# Exact up to here in a float64 column: 8 PiB of bytes.
MAX_EXACT = float(1 << 53)


class TaintKey(NamedTuple):
    """One taint as far as scheduling looks at it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value}}}"


class Vocabulary:
    """Interners that a cluster, its forks and the parsed pods have in common."""

    __slots__ = ("resources", "taint_sets")

    def __init__(self) -> None:
        self.resources: Interner[str] = Interner((names.RESOURCE_CPU, names.RESOURCE_MEMORY, names.RESOURCE_EPHEMERAL_STORAGE))
        self.taint_sets: Counted[tuple[TaintKey, ...]] = Counted(())

    def vector(self, amounts: dict[str, int]) -> tuple[tuple[int, float], ...]:
        """(resource id, amount) of the positive amounts, in id order. Amounts beyond 2^53 are held at 2^53."""
        intern = self.resources.intern
        return tuple(sorted((intern(name), min(float(value), MAX_EXACT)) for name, value in amounts.items() if value > 0))
