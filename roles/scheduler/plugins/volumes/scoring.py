"""How well nodes' storage suits what a pod's claims would take of it: the score of VolumeBinding (SCH-KS-14). Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from koord.api.names import RESOURCE_STORAGE
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.plugins.volumes.matching import Choices, amount, requested, roomy
from roles.scheduler.plugins.volumes.store import VolumeColumns

Bytes = NDArray[np.float64]


class _Classes:
    """What is asked of each storage class, and what there is, by row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: dict[str, tuple[Bytes, Bytes]] = {}

    def of(self, name: str) -> tuple[Bytes, Bytes]:
        return self._found.setdefault(name, (np.zeros(self._rows), np.zeros(self._rows)))

    def mean(self, table: Vector) -> Vector:
        """The mean of the classes that count on a row, 0 where none does; `table` is the score by percent of use."""
        total, count = np.zeros(self._rows), np.zeros(self._rows)
        for asked, there in self._found.values():
            counts = asked > 0
            percent = np.full(self._rows, 100.0)
            fits = counts & (there > 0) & (asked <= there)
            percent[fits] = np.floor(asked[fits] * 100.0 / there[fits])
            total += np.where(counts, table[percent.astype(np.intp)], 0.0)
            count += counts
        return np.floor(np.divide(total, count, out=np.zeros(self._rows), where=count > 0) + 0.5)


def scores(ctx: CycleContext, store: VolumeColumns, choices: Choices, table: Vector) -> Vector:
    """All rows, 0 to 100. Where a claim would get a volume that is there, only such volumes count; else what would be provisioned, of
    classes whose free capacity is known."""
    rows = ctx.cluster.capacity
    bound, made = _Classes(rows), _Classes(rows)
    any_bound = np.zeros(rows, dtype=np.bool_)
    for key, candidates, chosen in zip(choices.claims, choices.candidates, choices.chosen, strict=True):
        claim = store.claims[key]
        size = requested(claim)
        for index, volume in enumerate(candidates):
            here = chosen == index
            if here.any():
                asked, there = bound.of(volume.spec.storage_class_name)
                asked[here] += size
                there[here] += amount(volume.spec.capacity.get(RESOURCE_STORAGE, 0))
                any_bound |= here
        name = store.class_of(claim)
        free = _free(ctx, store, name, size)
        counts = (chosen == -1) & (free > 0)
        if counts.any():
            asked, there = made.of(name)
            asked[counts] += size
            there[counts] = free[counts]  # one pool, however many volumes are taken of it
    return np.where(any_bound, bound.mean(table), made.mean(table))


def _free(ctx: CycleContext, store: VolumeColumns, class_name: str, size: int) -> Bytes:
    """By row the free capacity of a class that its driver tells, 0 where none or not enough is told; of several the largest."""
    free = np.zeros(ctx.cluster.capacity)
    found = store.classes.get(class_name)
    driver = store.drivers.get(found.provisioner) if found is not None else None
    if driver is None or not driver.spec.storage_capacity:
        return free
    for capacity, rows in roomy(ctx, store, class_name, size):
        there = float(amount(capacity.capacity or 0))
        np.maximum(free, there if rows is None else np.where(rows, there, 0.0), out=free)
    return free
