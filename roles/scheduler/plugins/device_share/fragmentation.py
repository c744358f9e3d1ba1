"""How much of the GPUs is of use to what typically asks, for all nodes at once (SCH-DEV-18). Pure. Amounts of GPU are percent of a card.

For a class of pods, a card with `f` percent free is worth what one more pod takes of it and what others are expected to take of the rest.
A node is worth the sum over its cards, but no more than its CPU and memory suffice for if nothing but this class came; nothing to a class
that may not run there, or that wants more whole cards than are free. Where the node insists on partitions, or on NUMA nodes, whole cards
count that such a group has. The node's value is the mean over the classes, each weighed by how
many pods come and by how scarce what they can use is. A placement strands what the value falls by beyond what the pod takes.

The idea is that of fragmentation gradient descent (Weng et al., USENIX ATC 2023); the worth of what is left, the limit by CPU and
memory, and scarcity are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api import names
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.context import Rows
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, Wanted
from roles.scheduler.plugins.device_share.columns import DeviceColumns
from roles.scheduler.plugins.device_share.groups import Groups
from roles.scheduler.plugins.device_share.mix import PodClass

Matrix = NDArray[np.float64]
Cards = NDArray[np.int64]

_TRIES = 10
"""How many further pods are expected to come by while a rest of a card is left."""
_SCARCEST = 20.0
"""No class counts more than so many times, however little there is that it can use."""
_NO_LIMIT, _LEAST = 1e15, 1e-6  # their product is more GPU than any node has
STEPS = 1000.0
"""Values are whole multiples of 1/STEPS percent: sums come out alike in whatever order they are taken."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A mix made ready: by class (last axis) the worth of a card by the percent free on it, and the limits. `weights` add up to 1."""

    classes: tuple[PodClass, ...]
    weights: Vector
    worth: Matrix  # [percent free, class]
    cards: Vector  # least number of whole cards; 0 for classes of one card
    per_cpu: Vector  # percent of GPU that one milli-CPU suffices for
    per_memory: Vector  # the same of a byte
    groups: NDArray[np.intp]  # which of `places` each class may run on
    places: tuple[tuple[Any, Any], ...]  # (selector, terms)
    card: Vector  # worth of a card by the percent free on it, over all classes

    @property
    def selective(self) -> bool:
        """Whether some class may not run everywhere."""
        return self.places != (((), None),)


def expected(singles: Vector) -> Vector:
    """What pods are expected to take of a rest, by its percent. `singles` are probabilities of shares by percent."""
    rest = np.zeros(WHOLE + 1)
    sizes = np.flatnonzero(singles[1:]) + 1
    for free in range(1, WHOLE + 1):
        fit = sizes[sizes <= free]
        chance = float(singles[fit].sum())
        if chance > 0:
            taken = float((singles[fit] * (fit + rest[free - fit])).sum()) / chance
            rest[free] = min(free, taken * (1.0 - max(0.0, 1.0 - chance) ** _TRIES))
    return rest


def tables(counts: Sequence[tuple[PodClass, float]], card_memory: float) -> Tables | None:
    """Tables of a mix, scarcity left out; None without any. `card_memory` is the memory of a usual card, in bytes."""
    if not counts:
        return None
    classes = tuple(one for one, _ in counts)
    percent = np.array([_percent(one, card_memory) for one in classes], dtype=np.int64)
    weights = np.array([count for _, count in counts])
    weights = weights / weights.sum()
    number = np.array([one.cards for one in classes], dtype=np.float64)
    singles = np.bincount(percent[number == 1], weights[number == 1], WHOLE + 1)
    rest = expected(singles / max(singles.sum(), 1e-9))
    free = np.arange(WHOLE + 1)[:, None]
    worth = np.where(free >= percent, percent + rest[np.maximum(free - percent, 0)], rest[free])
    places = tuple(dict.fromkeys((one.selector, one.terms) for one in classes))
    return Tables(
        classes, weights, worth, np.where(number > 1, number, 0.0),
        _per(percent * number, [one.cpu for one in classes]), _per(percent * number, [one.memory for one in classes]),
        np.array([places.index((one.selector, one.terms)) for one in classes], dtype=np.intp), places, worth @ weights,
    )  # fmt: skip


def weighed(found: Tables, usable: Vector, all_of_it: float) -> Tables:
    """The tables with classes weighed by how scarce what they can use is: `usable` by class, of so much in all."""
    scarcity = np.minimum(_SCARCEST, all_of_it / np.maximum(usable, all_of_it / _SCARCEST + 1e-9)) if all_of_it > 0 else 1.0
    weights = found.weights * scarcity
    weights = weights / weights.sum()
    return replace(found, weights=weights, card=found.worth @ weights)


def _percent(one: PodClass, card_memory: float) -> int:
    if one.percent or card_memory <= 0:
        return max(1, one.percent)
    return int(min(WHOLE, max(1.0, WHOLE * one.memory_each // card_memory)))


def _per(gpu: Vector, amounts: Sequence[float]) -> Vector:
    asked = np.array(amounts)
    return np.asarray(np.divide(gpu, asked, out=np.full(len(asked), _NO_LIMIT), where=asked > 0))


@dataclass(slots=True)
class NodeState:
    """Rows as they stand: percent free of each card (0 where there is none), CPU and memory left, and which classes may use them.

    `idle`: percent of whole cards that no group of cards has for a class, infinite where it has none at all; None where nodes insist on
    no groups. `worth`, `whole` and `value` follow from these."""

    free: Cards  # [row, card]
    cpu: Vector
    memory: Vector
    allowed: NDArray[np.bool_] | None  # [row, class]; None for all
    idle: Matrix | None  # [row, class]
    worth: Matrix  # [row, class]: of the cards alone
    whole: Vector  # cards that are free
    value: Vector  # over all classes, with all limits


def state_of(found: Tables, free: Cards, cpu: Vector, memory: Vector, allowed: NDArray[np.bool_] | None, idle: Matrix | None) -> NodeState:
    """Rows with so much left."""
    state = NodeState(free, cpu, memory, allowed, idle, found.worth[free].sum(axis=1), (free == WHOLE).sum(axis=1), cpu)
    state.value = usable(found, state) @ found.weights
    return state


def percents(columns: DeviceColumns, rows: Rows) -> Cards:
    """[row, card]: percent free, the lesser one of cores and memory; negative where there is no such card."""
    ratio = _stacked(columns, names.RESOURCE_GPU_MEMORY_RATIO, rows)
    core = _stacked(columns, names.RESOURCE_GPU_CORE, rows)
    return np.asarray(np.where(core < 0, ratio, np.where(ratio < 0, core, np.minimum(core, ratio)))).astype(np.int64)


def _stacked(columns: DeviceColumns, name: str, rows: Rows) -> Matrix:
    return _by_row(columns.cards(GPU).of(name)[:, rows])


def _by_row(lines: Matrix) -> Matrix:
    """[row, card] of [card, row], with one card at least."""
    return np.ascontiguousarray(lines.T) if len(lines) else np.full((lines.shape[1], 1), -1.0)


def usable(found: Tables, state: NodeState) -> Matrix:
    """[row, class]: percent of GPU on each node that each class can use, with what others make of the rests."""
    return _limited(found, state, state.worth, state.whole, state.idle, state.cpu, state.memory)


def _limited(
    found: Tables, state: NodeState, worth: Matrix, whole: NDArray[Any], idle: Matrix | None, cpu: Vector, memory: Vector
) -> Matrix:
    limit = np.maximum(cpu, _LEAST)[:, None] * found.per_cpu
    np.minimum(limit, np.maximum(memory, _LEAST)[:, None] * found.per_memory, out=limit)
    np.minimum(limit, worth if idle is None else np.maximum(worth - idle, 0.0), out=limit)
    limit *= whole[:, None] >= found.cards
    if state.allowed is not None:
        limit *= state.allowed
    return limit


def stranding(
    found: Tables, columns: DeviceColumns, state: NodeState, wanted: Wanted | None, cpu: float, memory: float, rows: Rows,
    grouped: Grouped | None = None,
) -> Vector:  # fmt: skip
    """By row, by how much the value of the node falls if a pod is placed there, in 1/STEPS percent of a card. Rows that the pod does not
    fit on may hold anything. `wanted` None is a pod without GPUs. On `grouped` rows the cards are known that it gets."""
    worth, whole, idle = state.worth, state.whole, state.idle
    if wanted is not None and percent_of_whole(wanted):
        worth = worth - wanted.count * found.worth[WHOLE]
        whole = whole - wanted.count
    elif wanted is not None:
        rest = left(columns, state.free, wanted, rows)
        cost = np.where(rest >= 0, found.card[state.free] - found.card[np.maximum(rest, 0)], np.inf)
        line = np.arange(len(rest))
        order = np.argsort(np.rint(np.minimum(cost, 1e6) * STEPS), axis=1, kind="stable")
        worth, whole = worth.copy(), whole.copy()
        for chosen in order.T[: wanted.count]:
            was, now = state.free[line, chosen], np.maximum(rest[line, chosen], 0)
            worth += found.worth[now] - found.worth[was]
            whole -= was == WHOLE
    if wanted is not None and grouped is not None and len(grouped.at):
        rest = left(columns, state.free, wanted, rows)[grouped.at]
        free = np.where(grouped.taken, np.maximum(rest, 0), state.free[grouped.at])
        idle = np.array(state.idle)
        worth[grouped.at], whole[grouped.at], idle[grouped.at] = (
            found.worth[free].sum(axis=1),
            (free == WHOLE).sum(axis=1),
            grouped.idle(free),
        )
    after = _limited(found, state, worth, whole, idle, np.maximum(state.cpu - cpu, 0.0), np.maximum(state.memory - memory, 0.0))
    return np.asarray(np.rint((state.value - after @ found.weights) * STEPS))


@dataclass(slots=True)
class Grouped:
    """Rows of nodes that insist on groups of cards: which of the rows (`at`), the cards that the pod gets there, and what is idle for whom
    once so much is free."""

    at: NDArray[np.intp]
    taken: NDArray[np.bool_]  # [row of `at`, card]
    idle: Callable[[Cards], Matrix]


def idle_of(found: Tables, groups: Groups, free: Sequence[int]) -> Vector:
    """By class the percent of whole cards, of those of a node, that no group has for it; infinite where it gets none."""
    mask = sum(1 << position for position, percent in enumerate(free) if percent == WHOLE)
    count = mask.bit_count()
    result = np.zeros(len(found.classes))
    for index, one in enumerate(found.classes):
        if one.percent >= WHOLE:
            pods = groups.most(mask, one.cards)
            result[index] = np.inf if one.cards > 1 and not pods else WHOLE * (count - one.cards * pods)
    return result


def percent_of_whole(wanted: Wanted) -> bool:
    """Whether whole cards are wanted."""
    return wanted.of(names.RESOURCE_GPU_MEMORY_RATIO) >= WHOLE


def left(columns: DeviceColumns, free: Cards, wanted: Wanted, rows: Rows) -> Cards:
    """[row, card]: percent free after one unit of what is wanted; negative where it does not fit."""
    taken: Any = np.full(free.shape, wanted.of(names.RESOURCE_GPU_CORE), dtype=np.int64)
    ratio, memory = wanted.of(names.RESOURCE_GPU_MEMORY_RATIO), wanted.of(names.RESOURCE_GPU_MEMORY)
    if ratio or not memory:
        taken = np.maximum(taken, ratio)
    else:
        each = _by_row(columns.cards(GPU).memory[:, rows])
        share = np.divide(float(WHOLE * memory), each, out=np.zeros_like(each), where=each > 0)
        taken = np.maximum(taken, np.floor(share).astype(np.int64))
    return np.asarray(free - taken)
