"""What typically asks for GPUs: the classes of pods that are given, or those of the pods that came last (SCH-DEV-18). Pure.

A pod counts once, when it is first seen, whether it waits or runs; so the queue and what the cluster runs are in it after a restart, too.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from koord.api import names
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.cluster.terms import NodeTerm, Selector
from roles.scheduler.cluster.vocabulary import CPU, MEMORY
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, Wanted
from roles.scheduler.plugins.device_share.request import DeviceRequest, request_for

REMEMBERED = 4096
"""How many pods that came last count."""

CLASSES = 48
"""How many classes are looked at: those that ask for most."""

_OFTEN = 64
_MEMO = "DeviceShare.class"


class PodClass(NamedTuple):
    """Pods that ask alike: `cards` with `percent` of each, or `memory_each` bytes where that alone is said; milli-CPU, bytes, and where
    they may run."""

    cards: int
    percent: int
    memory_each: int
    cpu: float
    memory: float
    selector: Selector = ()
    terms: tuple[NodeTerm, ...] | None = None

    @property
    def gpu(self) -> int:
        """Percent of a card in all."""
        return self.cards * self.percent

    def distance(self, other: PodClass) -> tuple[int, float, float]:
        """How far another class with as many cards is."""
        return abs(self.percent - other.percent), abs(self.cpu - other.cpu), abs(self.memory - other.memory)

    def told(self) -> str:
        """For people."""
        cards = f"{self.cards} x {self.percent}%" if self.percent else f"{self.cards} x {self.memory_each >> 20} MiB"
        where = " on nodes that it selects" if self.selector or self.terms is not None else ""
        return f"{cards} of a GPU, {self.cpu:g}m CPU, {self.memory / (1 << 30):.3g} GiB{where}"


def percent_of(wanted: Wanted) -> int:
    """Percent of each card, the larger one of cores and memory; 0 where only bytes of memory are asked for."""
    return min(WHOLE, max(wanted.of(names.RESOURCE_GPU_CORE), wanted.of(names.RESOURCE_GPU_MEMORY_RATIO)))


def class_of(shape: PodShape) -> PodClass | None:
    """The class of a shape's pods; None for those that want no GPUs."""
    found: Any = shape.memo.get(_MEMO, _MEMO)
    if found is _MEMO:
        found = shape.memo[_MEMO] = _class_of(shape)
    answer: PodClass | None = found
    return answer


def _class_of(shape: PodShape) -> PodClass | None:
    request = request_for(shape)
    wanted = request.of(GPU) if isinstance(request, DeviceRequest) else None
    if wanted is None:
        return None
    asked = dict(shape.requests)
    memory = 0 if percent_of(wanted) else wanted.of(names.RESOURCE_GPU_MEMORY)
    return PodClass(
        wanted.count, percent_of(wanted), memory, asked.get(CPU, 0.0), asked.get(MEMORY, 0.0), shape.node_selector, shape.required_nodes
    )


class Mix:
    """Counts pods by class. `due` says when enough have come since `counts` was last asked for that it is worth looking again."""

    def __init__(self, given: Sequence[tuple[PodClass, float]] = ()) -> None:
        self._given = tuple(given)
        self._known: set[str] = set()
        self._last: deque[PodClass] = deque()
        self._counts: Counter[PodClass] = Counter()
        self._new = _OFTEN + 1 if given else 0

    def seen(self, pod: PodInfo) -> None:
        """A pod appeared or changed."""
        found = class_of(pod.shape) if not pod.reservation and pod.uid not in self._known else None
        if found is None:
            return
        self._known.add(pod.uid)
        self._new += 1
        if self._given:
            return
        self._last.append(found)
        self._counts[found] += 1
        if len(self._last) > REMEMBERED:
            oldest = self._last.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def gone(self, uid: str) -> None:
        """A pod is no more. What it asked for is remembered for a while."""
        self._known.discard(uid)

    @property
    def due(self) -> bool:
        """Whether the counts may be others by a sixteenth, or by 64 pods: it is also when what is free is looked at again."""
        return self._new > (_OFTEN if self._given else min(_OFTEN, len(self._last) // 16))

    def counts(self) -> list[tuple[PodClass, float]]:
        """The classes that ask for most, with the number of pods of each; others count as the nearest of these with as many cards on the
        same nodes, if there is one."""
        self._new = 0
        if self._given:
            return list(self._given)
        found: list[tuple[PodClass, float]] = [(one, float(count)) for one, count in self._counts.items()]
        found.sort(key=lambda item: -item[1] * math.sqrt(max(item[0].gpu, 1)))
        if len(found) <= CLASSES:
            return found
        kept = dict(found[:CLASSES])
        alike: dict[Any, list[PodClass]] = {}
        for one in kept:
            alike.setdefault((one.cards, one.selector, one.terms), []).append(one)
        for one, count in found[CLASSES:]:
            near = alike.get((one.cards, one.selector, one.terms))
            if near:
                kept[min(near, key=one.distance)] += count
        return list(kept.items())
