"""DeviceShare's answers for all nodes at once, where the columns suffice (design: columns, not rows)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import format_value
from koord.api import names
from koord.decisions.record import Term
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.context import ALL_ROWS, Rows
from roles.scheduler.framework.interfaces import ASK
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, Wanted
from roles.scheduler.plugins.device_share.columns import ABSENT, CardColumns, DeviceColumns
from roles.scheduler.plugins.device_share.request import DeviceRequest
from roles.scheduler.plugins.device_share.scoring import Scorer

REFUSED = 1

_MEMORY, _RATIO = names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_MEMORY_RATIO


def coarse(columns: DeviceColumns, request: DeviceRequest, rows: Rows, *, decisive: bool) -> NDArray[np.int32]:
    """0 for nodes without a Device object, REFUSED where too few devices have enough left, and elsewhere 0 if counting decides
    (`decisive`, and the node hands out single cards to anybody), else ASK."""
    columns.refresh()
    enough: Any = True
    for wanted in request.wanted:
        if not request.hint(wanted.type).for_all:
            enough = np.logical_and(enough, fitting(columns.cards(wanted.type), wanted, rows) >= wanted.count)
    known = columns.known[rows]
    left: Any = ASK
    if decisive:
        whole_gpus = any(wanted.type == GPU and not wanted.shared for wanted in request.wanted)
        intricate = columns.held[rows] | columns.honors[rows] if whole_gpus else columns.held[rows]
        left = np.where(intricate, ASK, 0)
    codes = np.where(known, np.where(enough, left, REFUSED), 0)
    return np.asarray(codes, dtype=np.int32)


def fitting(cards: CardColumns, wanted: Wanted, rows: Rows) -> NDArray[np.int64]:
    """How many cards of each node have one unit left. Agrees with `Unit.has`."""
    unit = dict(wanted.unit)
    fits: Any = _filled(cards, unit, rows) if wanted.type == GPU else True
    for name, amount in unit.items():
        free = cards.of(name)[:, rows]
        here = free >= amount
        if name in wanted.implied:
            here |= free == ABSENT
        fits = np.logical_and(fits, here)
    return np.asarray(np.count_nonzero(fits, axis=0))


def _filled(cards: CardColumns, unit: dict[str, int], rows: Rows) -> Any:
    """Whether what follows from the request (memory from ratio, ratio from memory) is left too."""
    if _RATIO in unit and _MEMORY not in unit:
        name, needed = _MEMORY, np.floor(unit[_RATIO] * cards.memory[:, rows] / WHOLE)
    elif _MEMORY in unit and _RATIO not in unit:
        memory = cards.memory[:, rows]
        name, needed = _RATIO, np.floor(np.divide(float(WHOLE * unit[_MEMORY]), memory, out=np.zeros_like(memory), where=memory > 0))
    else:
        return True
    free = cards.of(name)[:, rows]
    return (free >= needed) | (free == ABSENT)


def node_scores(columns: DeviceColumns, request: DeviceRequest, scorer: Scorer, rows: Rows) -> Vector:
    """Sum over the requested types of how good the nodes' devices are together."""
    columns.refresh()
    score: Any = np.zeros(len(columns.known[rows]))
    for wanted in request.wanted:
        cards = columns.cards(wanted.type)
        sums = []
        for name, weight in scorer.weights:
            if name in cards.sums:
                total, free = cards.sums[name]
                sums.append((weight, total[rows], free[rows], float(wanted.of(name) * wanted.count)))
        if sums:
            score = score + scorer.vector(sums)
    return np.asarray(score)


def nearest(columns: DeviceColumns, request: DeviceRequest) -> list[Term]:
    """How near the nodes are to what is wanted of each type: on how many there are such devices, and the most with enough left."""
    columns.refresh()
    terms = []
    for wanted in request.wanted:
        cards = columns.cards(wanted.type)
        unit = " ".join(f"{name}={format_value(name, amount)}" for name, amount in wanted.unit)
        most = int(fitting(cards, wanted, ALL_ROWS).max(initial=0))
        terms.append(Term(f"{wanted.type}: nodes with devices", int(np.count_nonzero(cards.cards)), unit="nodes"))
        terms.append(Term(f"{wanted.type}: most devices of a node with enough left", most, f"wanted={wanted.count} each {unit}", "devices"))
    return terms
