"""Scoring by what a placement strands: the mix of pods, its tables, and the answers for a cycle (SCH-DEV-18)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from koord.accounting.resources import parse
from koord.api import names
from koord.decisions.record import Term
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import IN, Requirement
from roles.scheduler.cluster.vocabulary import CPU, MEMORY
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.plugins.device_share import fragmentation as frag
from roles.scheduler.plugins.device_share.amounts import GPU, InvalidRequest, wanted_of
from roles.scheduler.plugins.device_share.args import TypicalPod
from roles.scheduler.plugins.device_share.columns import DeviceColumns
from roles.scheduler.plugins.device_share.mix import Mix, PodClass, percent_of
from roles.scheduler.plugins.device_share.request import DeviceRequest
from roles.scheduler.plugins.node_affinity import any_term

_DRIFT = 0.2
"""Weights of classes that differ by less in all are as good as the same."""
_TOLD = 3


class Stranding:
    """What one profile knows of the mix. `version` moves when nodes are worth something else; answers depend on it, on the pod's shape and
    on the row."""

    def __init__(self, cluster: Cluster, columns: DeviceColumns, typical: Sequence[TypicalPod] = ()) -> None:
        self.cluster, self.columns = cluster, columns
        self.mix = Mix([(class_given(pod), float(pod.weight)) for pod in typical])
        self.tables: frag.Tables | None = None
        self.version = 0
        self._places: list[NDArray[np.bool_]] = []
        self._placed_at: tuple[int, int] = (-1, -1)

    def seen(self, pod: PodInfo) -> bool:
        """A pod appeared or changed; whether nodes are worth something else from now on."""
        self.mix.seen(pod)
        return self.mix.due and self.learn()

    def learn(self) -> bool:
        """Look at the mix and at the cluster anew."""
        cards = self.columns.cards(GPU)
        self.columns.refresh()
        memory = max((float(column.max(initial=0.0)) for column in cards.memory), default=0.0)
        found = frag.tables(self.mix.counts(), memory)
        if found is None:
            return False
        before = self.tables
        self.tables = found
        self._placed_at = (-1, -1)
        self.tables = frag.weighed(found, *frag.everywhere(self.cluster, self.columns, found, self._where(found)))
        if before is not None and _distance(before, self.tables) < _DRIFT:
            self.tables = before
            self._placed_at = (-1, -1)
            return False
        self.version += 1
        return True

    def losses(self, ctx: CycleContext, request: DeviceRequest | None, rows: Rows) -> Vector | None:
        """By row what placing the pod of the cycle takes from the value of the node; None while nothing is known or there are no GPUs."""
        found = self.tables
        if found is None or not self._any():
            return None
        asked = dict(ctx.pod.shape.requests)
        wanted = request.of(GPU) if request is not None else None
        state = frag.states(self.cluster, self.columns, found, self._where(found), rows)
        return frag.stranding(found, self.columns, state, wanted, asked.get(CPU, 0.0), asked.get(MEMORY, 0.0), rows)

    def terms(self, slot: int) -> list[Term]:
        """What is free on a node, and for whom it is stranded there."""
        found = self.tables
        if found is None or not self._any():
            return []
        state = frag.states(self.cluster, self.columns, found, self._where(found), np.array((slot,)))
        free = float(state.free.sum())
        lost = free - frag.usable(found, state)[0]
        terms = [
            Term("gpu: free on the node", round(free / 100, 2), unit="cards"),
            Term("gpu: stranded there for what typically asks", round(float((lost * found.weights).sum()) / 100, 2), unit="cards"),
        ]
        for index in np.argsort(-lost * found.weights, kind="stable")[:_TOLD].tolist():
            if lost[index] * found.weights[index] > 0:
                what, note = f"gpu: stranded for pods of {found.classes[index].told()}", f"weighs {found.weights[index]:.1%}"
                terms.append(Term(what, round(lost.item(index) / 100, 2), note, "cards"))
        return terms

    def _any(self) -> bool:
        return bool(self.columns.cards(GPU).cards.any())

    def _where(self, found: frag.Tables) -> list[NDArray[np.bool_]]:
        """Rows that the selectors and terms of the classes mean, as nodes are labelled now."""
        now = (self.cluster.node_version, self.cluster.capacity)
        if self._placed_at != now:
            self._placed_at = now
            self._places = [_meant(self.cluster, selector, terms) for selector, terms in found.places]
        return self._places


def _meant(cluster: Cluster, selector: tuple[Requirement, ...], terms: object) -> NDArray[np.bool_]:
    rows = slice(None)
    fits = cluster.labels.match_all(selector, rows)
    found = np.ones(cluster.capacity, dtype=np.bool_) if fits is None else np.array(fits)
    return found if terms is None else np.logical_and(found, any_term(cluster, terms, rows))  # type: ignore[arg-type]


def _distance(one: frag.Tables, other: frag.Tables) -> float:
    before, now = dict(zip(one.classes, one.weights, strict=True)), dict(zip(other.classes, other.weights, strict=True))
    return float(sum(abs(before.get(key, 0.0) - now.get(key, 0.0)) for key in before.keys() | now.keys()))


def class_given(pod: TypicalPod) -> PodClass:
    """The class of a pod from the arguments. Raises ValueError for one that wants no GPUs."""
    amounts = parse(pod.requests)
    try:
        wanted = next((one for one in wanted_of(amounts) if one.type == GPU), None)
    except InvalidRequest as error:
        raise ValueError(f"scoringStrategy.typicalPods: {error}") from None
    if wanted is None:
        raise ValueError(f"scoringStrategy.typicalPods: requests {pod.requests} name no GPUs")
    memory = 0 if percent_of(wanted) else wanted.of(names.RESOURCE_GPU_MEMORY)
    selector = tuple(Requirement(key, IN, (value,)) for key, value in sorted(pod.node_selector.items()))
    return PodClass(wanted.count, percent_of(wanted), memory, float(amounts.get("cpu", 0)), float(amounts.get("memory", 0)), selector)
