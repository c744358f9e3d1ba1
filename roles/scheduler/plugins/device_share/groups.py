"""Which whole cards of a node can be had together, where the node insists: partitions, and NUMA nodes under a strict policy (SCH-DEV-18).
Pure. Cards are bits by their position in the inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from koord.api import names
from roles.scheduler.plugins.device_share.amounts import GPU
from roles.scheduler.plugins.device_share.inventory import UNKNOWN_NUMA, Inventory
from roles.scheduler.plugins.device_share.partitions import honored, table_of

Sets = tuple[int, ...]


class Groups(NamedTuple):
    """`partitions` by number of cards, None where any cards will do; `numas` the cards of each NUMA node, none where pods may span them.
    More cards than a NUMA node has may span them too, unless the policy is that of a `single` one."""

    partitions: tuple[tuple[int, Sets], ...] | None
    numas: Sets = ()
    single: bool = False

    def most(self, free: int, cards: int) -> int:
        """How many pods of so many whole cards each the free cards suffice for at once."""
        return _most(self, free, cards)

    def largest(self, free: int) -> int:
        """How many whole cards one pod can get."""
        return max((cards for cards in range(1, free.bit_count() + 1) if self.most(free, cards)), default=0)


def groups_of(inventory: Inventory, labels: Mapping[str, str], *, strict: bool, single: bool) -> Groups | None:
    """The groups of a node, None where it insists on none. `strict`: its policy keeps pods to as few NUMA nodes as can be; `single`: to
    one."""
    cards = inventory.cards.get(GPU, ())
    position = {card.minor: number for number, card in enumerate(cards)}
    partitions: tuple[tuple[int, Sets], ...] | None = None
    if honored(inventory, labels):
        table = table_of(inventory, labels) or {}
        partitions = tuple(
            (
                size,
                tuple(sum(1 << position[minor] for minor in row.minors) for row in rows if all(minor in position for minor in row.minors)),
            )
            for size, rows in sorted(table.items())
        )
    numas: dict[int, int] = {}
    for number, card in enumerate(cards):
        if card.numa is not None and card.numa != UNKNOWN_NUMA:
            numas[card.numa] = numas.get(card.numa, 0) | 1 << number
    apart = tuple(numas[numa] for numa in sorted(numas)) if strict and len(numas) > 1 else ()
    return Groups(partitions, apart, single and bool(apart)) if partitions is not None or apart else None


@lru_cache(maxsize=1 << 14)
def _most(groups: Groups, free: int, cards: int) -> int:
    within = groups.numas if any(numa.bit_count() >= cards for numa in groups.numas) else ()
    if groups.single and not within:
        return 0
    if groups.partitions is None:
        return sum((free & numa).bit_count() // cards for numa in within) if within else free.bit_count() // cards
    rows = dict(groups.partitions).get(cards, ())
    return _packed(tuple(row for row in rows if row & free == row and (not within or any(row & numa == row for numa in within))))


def _packed(rows: Sequence[int]) -> int:
    """How many of the sets can be taken that share no card; exact."""
    if not rows:
        return 0
    lowest = min(row & -row for row in rows)
    rest = tuple(row for row in rows if not row & lowest)
    best = 0 if len(rest) == 0 else _packed(rest)
    for row in rows:
        if row & lowest:
            best = max(best, 1 + _packed(tuple(other for other in rows if not other & row)))
    return best


def why(labels: Mapping[str, str], groups: Groups) -> str:
    """What keeps cards apart, for people."""
    parts = []
    if groups.partitions is not None:
        parts.append("by its partitions")
    if groups.numas:
        parts.append(
            f"by policy {labels.get(names.LABEL_NODE_NUMA_TOPOLOGY_POLICY, 'of one NUMA node' if groups.single else 'of few NUMA nodes')}"
        )
    return " and ".join(parts)
