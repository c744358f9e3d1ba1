"""Kept vectors against fresh ones: which plugin says something else when it is asked anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.cycle.vectors import FilterVector
from roles.scheduler.framework.interfaces import NodeMask, Plugin


def differences(kept: Evaluation, fresh: Evaluation) -> Iterator[tuple[Plugin, str]]:
    """Plugins whose kept answers about the same pod and nodes differ from fresh ones, with the first node and both answers."""
    plugins = kept.framework.plugins
    for name in sorted(kept.skipped ^ fresh.skipped):
        yield plugins[name], f"its preFilter {'skipped' if name in kept.skipped else 'did not skip'} the pod when it was asked before"
    for name in sorted(kept.pre_filter.keys() | fresh.pre_filter.keys()):
        if not _same(kept.pre_filter.get(name), fresh.pre_filter.get(name)):
            yield plugins[name], f"its preFilter said {kept.pre_filter.get(name)}, asked anew {fresh.pre_filter.get(name)}"
    if kept.restored != fresh.restored and kept.framework.restorer is not None:
        yield kept.framework.restorer, "the pod may use other reservations than were kept"
    yield from _of_filters(kept, fresh)
    yield from _of_scores(kept, fresh)


def _of_filters(kept: Evaluation, fresh: Evaluation) -> Iterator[tuple[Plugin, str]]:
    mine = {vector.plugin.name: vector for vector in (*kept.filters, *kept.row_filters)}
    for vector in (*fresh.filters, *fresh.row_filters):
        before = mine.get(vector.plugin.name)
        if before is None:
            continue
        rows = fresh.cluster.alive.copy()
        for side in (before, vector):
            if side.asked is not None:
                np.logical_and(rows, side.asked, out=rows)
        old, new = _refused(before, len(rows)), _refused(vector, len(rows))
        slot = _first(rows & (old != new))
        if slot >= 0:
            words = ("refuses", "passes") if new[slot] else ("passes", "refuses")
            yield vector.plugin, f"it {words[0]} node {fresh.cluster.name_of(slot)}, kept was that it {words[1]} it"


def _of_scores(kept: Evaluation, fresh: Evaluation) -> Iterator[tuple[Plugin, str]]:
    rows = kept.feasible & fresh.feasible
    mine = {vector.plugin.name: vector for vector in kept.scores}
    for vector in fresh.scores if rows.any() else ():
        before = mine.get(vector.plugin.name)
        if before is None:
            if kept.scores:
                yield vector.plugin, "its preScore skipped the pod when it was asked before"
            continue
        old, new = _values(before.raw, len(rows)), _values(vector.raw, len(rows))
        slot = _first(rows & (old != new))
        if slot >= 0:
            yield vector.plugin, f"it scores node {fresh.cluster.name_of(slot)} {new[slot]:g}, kept was {old[slot]:g}"


def _first(rows: NDArray[np.bool_]) -> int:
    return int(rows.argmax()) if rows.any() else -1


def _refused(vector: FilterVector, length: int) -> NDArray[np.bool_]:
    return np.zeros(length, dtype=np.bool_) if vector.codes is None else np.asarray(vector.codes != 0)


def _values(raw: Any, length: int) -> NDArray[np.float64]:
    return raw if isinstance(raw, np.ndarray) else np.full(length, raw or 0.0)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, NodeMask) and isinstance(new, NodeMask):
        return bool(np.array_equal(old.mask, new.mask))
    return bool(old == new)
