"""Sets of CPU numbers in the kernel's list format, such as ``0-3,8``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_MAX_CPU = 65_535  # far above any kernel's NR_CPUS; keeps "0-999999999" from filling the memory


class CPUSetError(ValueError):
    """Text that is no CPU list; the message quotes it."""


class CPUSet:
    """An immutable, hashable set of CPU numbers that iterates in ascending order."""

    __slots__ = ("_bits",)
    _bits: int  # bit n is CPU n

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        """From CPU numbers. Raises CPUSetError for a number below 0 or above 65535."""
        bits = 0
        for cpu in cpus:
            if not 0 <= cpu <= _MAX_CPU:
                raise CPUSetError(f"CPU {cpu} is not in 0..{_MAX_CPU}")
            bits |= 1 << cpu
        self._bits = bits

    @classmethod
    def _of(cls, bits: int) -> CPUSet:
        made = object.__new__(cls)
        made._bits = bits
        return made

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """Read ``0-3,8``; blank text is the empty set, blanks around parts are allowed. Raises CPUSetError."""
        bits = 0
        if not text.strip():
            return cls._of(0)
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                raise CPUSetError(f"{text[:80]!r} is not a CPU list; accepted are numbers and ranges such as 0-3,8")
            first = int(match.group(1))
            last = int(match.group(2)) if match.group(2) is not None else first
            if last < first or last > _MAX_CPU:
                raise CPUSetError(f"{text[:80]!r} is not a CPU list: {part.strip()} is no range within 0..{_MAX_CPU}")
            bits |= ((1 << (last - first + 1)) - 1) << first
        return cls._of(bits)

    @classmethod
    def from_mask(cls, bits: int) -> CPUSet:
        """From a bit mask, CPU 0 the lowest bit. Raises CPUSetError for a negative one or one too wide."""
        if bits < 0 or bits.bit_length() > _MAX_CPU + 1:
            raise CPUSetError("a CPU mask must be non-negative and at most 65536 bits wide")
        return cls._of(bits)

    @property
    def mask(self) -> int:
        """The set as a bit mask."""
        return self._bits

    def __str__(self) -> str:
        parts = []
        bits, base = self._bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            base += skip
            run = (~bits & (bits + 1)).bit_length() - 1
            parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            bits >>= run
            base += run
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        bits = self._bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and (self._bits >> cpu) & 1 == 1

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, CPUSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bits)

    def __or__(self, other: CPUSet) -> CPUSet:
        return CPUSet._of(self._bits | other._bits)

    def __and__(self, other: CPUSet) -> CPUSet:
        return CPUSet._of(self._bits & other._bits)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return CPUSet._of(self._bits & ~other._bits)

    def __xor__(self, other: CPUSet) -> CPUSet:
        return CPUSet._of(self._bits ^ other._bits)

    def __le__(self, other: CPUSet) -> bool:
        return self._bits & ~other._bits == 0

    def __lt__(self, other: CPUSet) -> bool:
        return self <= other and self._bits != other._bits

    def __ge__(self, other: CPUSet) -> bool:
        return other <= self

    def __gt__(self, other: CPUSet) -> bool:
        return other < self

    def isdisjoint(self, other: CPUSet) -> bool:
        """Whether they share no CPU."""
        return self._bits & other._bits == 0


EMPTY = CPUSet()
