"""Hints and how they are merged (SCH-NUMA-07). Pure.

A mask has bit k set for NUMA node k. Merging looks at every mask that some combination of hints can meet on, instead of at every
combination: the answer is the same (a property test says so) and the cost grows with the masks, not with their product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, combinations
from typing import NamedTuple

_MAX_SUBSET_NODES = 8  # 255 subsets


class Policy(StrEnum):
    """NUMA topology policies of nodes and pods; NONE is no policy."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class Hint(NamedTuple):
    """A set of NUMA nodes on which a resource can be had. `affinity` None is "do not care"; `score` is 0 or more."""

    affinity: int | None
    preferred: bool
    score: int = 0


DONT_CARE = Hint(None, True)

Hints = Mapping[str, Sequence[Hint] | None]
"""By resource: None is "do not care", an empty list "cannot be had"; a list has masks only."""


class NodeUse(StrEnum):
    """How CPU-bound pods use a NUMA node."""

    IDLE = "idle"
    SINGLE = "single"  # every one of them stays inside it
    SHARED = "shared"  # some of them use other NUMA nodes too


class Merged(NamedTuple):
    """What the hints agree on. `reasons` tells why the pod is refused, nothing when it is admitted; `affinity` None restricts nothing."""

    affinity: int | None
    preferred: bool
    score: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        """Whether the policy lets the pod in."""
        return not self.reasons


def mask_of(nodes: Iterable[int]) -> int:
    """The mask of some NUMA nodes."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def bits_of(mask: int) -> list[int]:
    """The numbers of the bits of a mask, ascending: NUMA nodes, or CPUs."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def subsets(nodes: Sequence[int]) -> Iterator[int]:
    """All non-empty subsets as masks: small ones first, then in the order of their members."""
    for size in range(1, len(nodes) + 1):
        for members in combinations(nodes, size):
            yield mask_of(members)


def subsets_to_try(nodes: Sequence[int], wider: Iterable[Sequence[int]]) -> list[int]:
    """Subsets worth a hint, small ones first; of very many nodes not every one, but single ones, pairs and some `wider` ones."""
    if len(nodes) <= _MAX_SUBSET_NODES:
        return list(subsets(nodes))
    return [*map(mask_of, chain(combinations(nodes, 1), combinations(nodes, 2), wider))]


def violates_exclusivity(affinity: int, use: Mapping[int, NodeUse]) -> bool:
    """Several NUMA nodes must not contain one that others have for themselves; a single one must not be shared."""
    nodes = bits_of(affinity)
    unwanted = NodeUse.SINGLE if len(nodes) > 1 else NodeUse.SHARED
    return any(use.get(node, NodeUse.IDLE) is unwanted for node in nodes)


def merge(policy: Policy, nodes: int, providers: Sequence[Hints], use: Mapping[int, NodeUse] | None = None) -> Merged:
    """Agree on an affinity within the mask `nodes`. `use` is given where exclusive use is required."""
    lists, unsatisfied = _lists(providers)
    strict = policy is not Policy.BEST_EFFORT
    if strict and unsatisfied:
        return Merged(None, False, 0, tuple(f"Unsatisfied NUMA {name}" for name in unsatisfied))
    considered = lists
    if policy is Policy.SINGLE_NUMA_NODE:
        considered = [(name, [hint for hint in hints if _single(hint)]) for name, hints in lists]
    best, satisfied = _best(nodes, [hints for _, hints in considered], use)
    if not strict:
        return best if satisfied and not unsatisfied else Merged(nodes, False, best.score)
    if not best.preferred:
        return Merged(None, False, 0, (f"Unaligned NUMA Hint cause {_summary(lists)}",))
    if policy is Policy.SINGLE_NUMA_NODE and best.affinity == nodes:
        return Merged(None, True)
    return best


def _lists(providers: Sequence[Hints]) -> tuple[list[tuple[str, list[Hint]]], list[str]]:
    """(resource, hints) of all providers, and the resources that cannot be had at all."""
    lists: list[tuple[str, list[Hint]]] = []
    unsatisfied: list[str] = []
    for hints in providers:
        for name in sorted(hints):
            found = hints[name]
            if found is None:
                lists.append((name, [DONT_CARE]))
            elif found:
                lists.append((name, list(found)))
            else:
                unsatisfied.append(name)
                lists.append((name, [Hint(None, False)]))
    return lists, sorted(unsatisfied)


def _single(hint: Hint) -> bool:
    return hint.preferred and (hint.affinity is None or hint.affinity.bit_count() == 1)


def _best(nodes: int, lists: Sequence[Sequence[Hint]], use: Mapping[int, NodeUse] | None) -> tuple[Merged, bool]:
    """The best meeting point and whether every resource can be had on it alone: preferred ones first, then the narrowest,
    then the highest score, then the lowest node ids."""
    best = Merged(nodes, False)
    rank: tuple[bool, int, int, int] = (False, -nodes.bit_count(), 0, -nodes)
    satisfied = False
    by_affinity = [_by_affinity(hints) for hints in lists]
    for affinity in _meeting_points(nodes, lists):
        agreed = [known.get(affinity) or known.get(None) for known in by_affinity]
        complete = all(found is not None for found in agreed)
        preferred = complete and all(found is not None and found.preferred for found in agreed)
        if preferred and use is not None and violates_exclusivity(affinity, use):
            preferred = False
        score = sum(found.score for found in agreed if found is not None and found.affinity is not None)
        candidate = (preferred, -affinity.bit_count(), score, -affinity)
        if candidate >= rank:
            best, rank, satisfied = Merged(affinity, preferred, score), candidate, complete
    return best, satisfied


def _meeting_points(nodes: int, lists: Sequence[Sequence[Hint]]) -> set[int]:
    """Every non-empty mask that some combination of one hint of each list has in common."""
    reached = {nodes}
    for hints in lists:
        masks = {nodes if hint.affinity is None else hint.affinity for hint in hints}
        reached = {mask & other for mask in reached for other in masks}
        reached.discard(0)
    return reached


def _by_affinity(hints: Sequence[Hint]) -> dict[int | None, Hint]:
    """The best hint of a list for each affinity; one that does not care is the only one of its list."""
    found: dict[int | None, Hint] = {}
    for hint in hints:
        known = found.get(hint.affinity)
        if known is None or (hint.preferred, hint.score) > (known.preferred, known.score):
            found[hint.affinity] = hint
    return found


def _summary(lists: Sequence[tuple[str, Sequence[Hint]]]) -> str:
    """Per resource the preferred sets of NUMA nodes and all possible ones, in the words that alert rules know."""
    parts = []
    for name, hints in lists:
        preferred = [_text(hint) for hint in hints if hint.preferred]
        parts.append(f"{name} prefer [{' '.join(preferred)}] among [{' '.join(map(_text, hints))}]")
    return " & ".join(parts)


def _text(hint: Hint) -> str:
    """A set as bits, node 0 last, in twos as the kubelet writes them."""
    if hint.affinity is None:
        return "<nil>"
    digits = hint.affinity.bit_length()
    return f"{hint.affinity:0{digits + digits % 2}b}"
