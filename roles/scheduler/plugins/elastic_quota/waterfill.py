"""Sharing one resource among siblings (SCH-EQ-04, SCH-EQ-05). Pure integers; nothing is lost to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """What one sibling asks of a resource, in base units.

    `base` is what it is sure of (scaled min, or its guarantee if larger), `request` what it wants, already limited to its max.
    `lends` False keeps the base even when less is wanted. `weight` decides how what is left over is split; ties go by name.
    """

    name: str
    weight: int
    base: int
    request: int
    lends: bool = True


def fill(total: int, claims: Sequence[Claim]) -> list[int]:
    """Each claim's share, in the order given.

    First everyone gets its base (or what it wants, if that is less and it lends the rest). What is left is split by weight among those
    who want more; who has all it wants leaves, and what it could not take is split again. The sum exceeds `total` only when the bases do.
    """
    shares: list[int] = []
    hungry: list[int] = []
    for index, claim in enumerate(claims):
        if claim.request > claim.base:
            shares.append(claim.base)
            hungry.append(index)
        else:
            shares.append(claim.request if claim.lends else claim.base)
    left = total - sum(shares)
    hungry = sorted((index for index in hungry if claims[index].weight > 0), key=lambda index: claims[index].name)
    while left > 0 and hungry:
        portions = _split(left, [claims[index].weight for index in hungry])
        left = 0
        still: list[int] = []
        for index, portion in zip(hungry, portions, strict=True):
            shares[index] += portion
            surplus = shares[index] - claims[index].request
            if surplus >= 0:
                shares[index] -= surplus
                left += surplus
            else:
                still.append(index)
        hungry = still
    return shares


def _split(amount: int, weights: Sequence[int]) -> list[int]:
    """An amount by weight: rounded down, then one unit each to the largest remainders, the earlier one on a tie."""
    whole = sum(weights)
    portions = [weight * amount // whole for weight in weights]
    residue = amount - sum(portions)
    if residue:
        order = sorted(range(len(weights)), key=lambda index: -(weights[index] * amount % whole))
        for index in order[:residue]:
            portions[index] += 1
    return portions


def scaled_mins(total: int, mins: Sequence[int]) -> list[int]:
    """The mins as they are when they fit into the total, else scaled down to it in proportion (rounded down, in double precision, which is
    what upstream's numbers come from)."""
    whole = sum(mins)
    if whole <= total:
        return list(mins)
    if total <= 0:
        return [0] * len(mins)
    return [int(float(total) * float(amount) / float(whole)) for amount in mins]
