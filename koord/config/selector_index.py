"""Many label selectors at once: which of them match some labels, and which of them meet on one node; pure.

Selectors are found by one value that each of them demands, so that the cost follows those that are concerned, not all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord.api.selectors import Selector


@dataclass(frozen=True, slots=True)
class Bound:
    """What a selector demands of one key. `allowed` None: any value."""

    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    present: bool = False
    absent: bool = False

    def joined(self, other: Bound) -> Bound:
        """Both demands together."""
        both = None if self.allowed is None or other.allowed is None else self.allowed & other.allowed
        allowed = both if both is not None else self.allowed if self.allowed is not None else other.allowed
        return Bound(allowed, self.excluded | other.excluded, self.present or other.present, self.absent or other.absent)

    def value(self) -> str | None:
        """A value that a label of this key may have. Raises Impossible when the demands contradict."""
        if not self.present:
            return None
        if self.absent:
            raise Impossible
        if self.allowed is None:
            return next(text for text in ("", *map(str, range(len(self.excluded) + 1))) if text not in self.excluded)
        left = self.allowed - self.excluded
        if not left:
            raise Impossible
        return min(left)


class Impossible(Exception):
    """No label can meet the demands."""


_NOTHING = Bound()


def bounds_of(selector: Selector) -> dict[str, Bound]:
    """What a selector demands, by key."""
    found: dict[str, Bound] = {}
    for requirement in selector.requirements:
        key, values = requirement.key, requirement.values
        bound = {
            "In": Bound(allowed=values, present=True),
            "NotIn": Bound(excluded=values),
            "Exists": Bound(present=True),
            "DoesNotExist": Bound(absent=True),
        }[requirement.operator]
        found[key] = found.get(key, _NOTHING).joined(bound)
    return found


def meeting(one: Mapping[str, Bound], other: Mapping[str, Bound]) -> dict[str, str] | None:
    """Labels that both match, if one of them names every key that such a node needs; else None.

    Selectors over different keys may meet on some node too, but nothing says that there is such a node.
    """
    mine, others = ({key for key, bound in bounds.items() if bound.present} for bounds in (one, other))
    if not (mine <= others or others <= mine):
        return None
    try:
        values = {key: one.get(key, _NOTHING).joined(other.get(key, _NOTHING)).value() for key in sorted({*one, *other})}
    except Impossible:
        return None
    return {key: value for key, value in values.items() if value is not None}


class SelectorIndex:
    """Selectors by their number; None matches nothing."""

    def __init__(self, selectors: Sequence[Selector | None]) -> None:
        self._selectors = selectors
        self._bounds = [bounds_of(selector) if selector is not None else {} for selector in selectors]
        self._pinned: dict[str, dict[str, list[int]]] = {}
        self._keyed: dict[str, list[int]] = {}
        self._loose: list[int] = []
        for number, selector in enumerate(selectors):
            if selector is not None:
                self._place(number, self._bounds[number])

    def _place(self, number: int, bounds: Mapping[str, Bound]) -> None:
        finite = [(len(bound.allowed), key, bound.allowed) for key, bound in bounds.items() if bound.present and bound.allowed is not None]
        if finite:
            _, key, values = min(finite, key=lambda item: item[:2])
            for value in values:
                self._pinned.setdefault(key, {}).setdefault(value, []).append(number)
            return
        demanded = min((key for key, bound in bounds.items() if bound.present), default=None)
        (self._loose if demanded is None else self._keyed.setdefault(demanded, [])).append(number)

    def matching(self, labels: Mapping[str, str]) -> list[int]:
        """Numbers of the selectors that match."""
        found = set(self._loose)
        for key, value in labels.items():
            found.update(self._pinned.get(key, {}).get(value, ()), self._keyed.get(key, ()))
        selectors = self._selectors
        return [number for number in sorted(found) if (selector := selectors[number]) is not None and selector.matches(labels)]

    def overlaps(self) -> Iterator[tuple[int, int, dict[str, str]]]:
        """Pairs of selectors that meet on one node, and the labels of such a node."""
        told: set[tuple[int, int]] = set()
        for number, bounds in enumerate(self._bounds):
            if self._selectors[number] is None:
                continue
            for other in sorted(self._near(bounds)):
                pair = (min(number, other), max(number, other))
                if number == other or pair in told:
                    continue
                told.add(pair)
                labels = meeting(bounds, self._bounds[other])
                if labels is not None:
                    yield (*pair, labels)

    def _near(self, bounds: Mapping[str, Bound]) -> set[int]:
        """Selectors all of whose demanded keys this one may have."""
        found = set(self._loose)
        for key, bound in bounds.items():
            if not bound.present:
                continue
            found.update(self._keyed.get(key, ()))
            by_value = self._pinned.get(key, {})
            for value in by_value if bound.allowed is None else bound.allowed:
                found.update(by_value.get(value, ()))
        return found
