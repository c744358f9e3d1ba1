"""Scoring by what a placement strands: the mix of pods, its tables, and the answers for a cycle (SCH-DEV-18)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

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
from roles.scheduler.framework.context import ALL_ROWS, CycleContext, Rows
from roles.scheduler.plugins.device_share import fragmentation as frag
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, InvalidRequest, wanted_of
from roles.scheduler.plugins.device_share.args import TypicalPod
from roles.scheduler.plugins.device_share.columns import DeviceColumns
from roles.scheduler.plugins.device_share.groups import Groups, groups_of, why
from roles.scheduler.plugins.device_share.mix import Mix, PodClass, percent_of
from roles.scheduler.plugins.device_share.request import DeviceRequest
from roles.scheduler.plugins.node_affinity import selected_rows
from roles.scheduler.plugins.topology_manager.manager import TopologyManager

_DRIFT = 0.2
"""Weights of classes that differ by less in all are as good as the same."""
_TOLD = 3
_KEPT_GROUPS, _KEPT_IDLE = 1 << 10, 1 << 12

Slots = NDArray[np.intp]
Chosen = Callable[[int], frozenset[int] | None]


class Stranding:
    """What one profile knows of the mix. `version` moves when nodes are worth something else; answers depend on it, on the pod's shape and
    on the row."""

    def __init__(
        self, cluster: Cluster, columns: DeviceColumns, typical: Sequence[TypicalPod] = (), topology: TopologyManager | None = None
    ) -> None:
        self.cluster, self.columns, self._topology = cluster, columns, topology
        self.mix = Mix([(class_given(pod), float(pod.weight)) for pod in typical])
        self.tables: frag.Tables | None = None
        self.version = 0
        self._blind = True  # whether there were no GPUs when it was learnt
        self._allowed: NDArray[np.bool_] | None = None
        self._placed_at: tuple[int, int] = (-1, -1)
        self._kept: _Kept | None = None
        self._known: dict[Hashable, Groups | None] = {}
        self._idle: dict[Hashable, Vector] = {}

    def seen(self, pod: PodInfo) -> bool:
        """A pod appeared or changed; whether nodes are worth something else from now on."""
        self.mix.seen(pod)
        return (self.mix.due or (self._blind and self.known)) and self.learn()

    def learn(self) -> bool:
        """Look at the mix and at the cluster anew."""
        cards = self.columns.cards(GPU)
        self.columns.refresh()
        memory = max((float(column.max(initial=0.0)) for column in cards.memory), default=0.0)
        found = frag.tables(self.mix.counts(), memory)
        if found is None:
            return False
        before, blind = self.tables, self._blind
        self._blind = not cards.cards.any()
        self._use(found)
        rows = np.flatnonzero(self.cluster.alive)
        state = self._fresh(rows)
        weighed = frag.weighed(found, frag.usable(found, state).sum(axis=0), float(state.free.sum()))
        if before is not None and blind == self._blind and _distance(before, weighed) < _DRIFT:
            self._use(before)
            return False
        self._use(weighed)
        self.version += 1
        return True

    def _use(self, tables: frag.Tables) -> None:
        self.tables = tables
        self._placed_at = (-1, -1)
        self._idle.clear()

    @property
    def known(self) -> bool:
        """Whether it is known what nodes are worth, and there are GPUs."""
        return self.tables is not None and self._any()

    def losses(self, ctx: CycleContext, request: DeviceRequest | None, rows: Rows, chosen: Chosen) -> Vector:
        """By row what placing the pod of the cycle takes from the value of the node, which must be `known`.
        `chosen` says which cards the pod would get on a node that insists on groups of cards; None where it gets none."""
        found = self.tables
        assert found is not None
        asked = dict(ctx.pod.shape.requests)
        wanted = request.of(GPU) if request is not None else None
        slots = self.cluster.slots[rows]
        state = self._state(slots)
        grouped = self._taken(slots, state, chosen) if wanted is not None and state.idle is not None else None
        return frag.stranding(found, self.columns, state, wanted, asked.get(CPU, 0.0), asked.get(MEMORY, 0.0), rows, grouped)

    def _taken(self, slots: Slots, state: frag.NodeState, chosen: Chosen) -> frag.Grouped:
        """The cards that a pod would get on nodes that insist on groups."""
        at, taken, groups = [], [], []
        for index, (slot, found) in enumerate(zip(slots.tolist(), self._groups(slots), strict=True)):
            minors = chosen(slot) if found is not None else None
            if found is not None and minors is not None:
                inventory = self.columns.node(slot).inventory
                cards = inventory.cards.get(GPU, ()) if inventory is not None else ()
                at.append(index)
                taken.append([card.minor in minors for card in cards] + [False] * (state.free.shape[1] - len(cards)))
                groups.append(found)
        taken_cards = np.array(taken, dtype=np.bool_).reshape(len(at), state.free.shape[1])
        return frag.Grouped(np.array(at, dtype=np.intp), taken_cards, lambda free: self._idle_of(groups, free))

    def terms(self, slot: int) -> list[Term]:
        """What is free on a node, and for whom it is stranded there."""
        found = self.tables
        if found is None or not self._any():
            return []
        state = self._fresh(np.array((slot,)))
        free = float(state.free.sum())
        lost = free - frag.usable(found, state)[0]
        terms = [
            Term("gpu: free on the node", round(free / 100, 2), unit="cards"),
            Term("gpu: stranded there for what typically asks", round(float((lost * found.weights).sum()) / 100, 2), unit="cards"),
        ]
        if (groups := self._groups(np.array((slot,)))[0]) is not None:
            mask = sum(1 << position for position, percent in enumerate(state.free[0].tolist()) if percent == WHOLE)
            note = why(self.columns.node(slot).labels, groups)
            terms.append(Term("gpu: cards that one pod can still get", groups.largest(mask), note, "cards"))
        for index in np.argsort(-lost * found.weights, kind="stable")[:_TOLD].tolist():
            if lost[index] * found.weights[index] > 0:
                what, note = f"gpu: stranded for pods of {found.classes[index].told()}", f"weighs {found.weights[index]:.1%}"
                terms.append(Term(what, round(lost.item(index) / 100, 2), note, "cards"))
        return terms

    def _any(self) -> bool:
        self.columns.refresh()  # answers are kept: one that is given before a Device is looked at would outlive it on every row but its own
        return bool(self.columns.cards(GPU).cards.any())

    # ---------------------------------------------------------------- nodes as they stand

    def _state(self, slots: Slots) -> frag.NodeState:
        """Rows as they stand; worked out anew where something of them is other than it was."""
        self.columns.refresh()
        cpu, memory = self.cluster.free[CPU][slots], self.cluster.free[MEMORY][slots]
        content = self.columns.content[slots]
        insist = self._insisting(slots)
        kept = self._store()
        same = (kept.content[slots] == content) & (kept.cpu[slots] == cpu) & (kept.memory[slots] == memory)
        if insist is not None:
            same &= ~insist  # their policies are not looked at, and may be gone the next time
            content = np.where(insist, -1, content)
        stale = slots[~same]
        if len(stale):
            kept.write(stale, self._fresh(stale), content[~same], cpu[~same], memory[~same])
        idle = self._idle_of(self._groups(slots), kept.free[slots]) if insist is not None else None
        allowed = self._allowed[slots] if self._allowed is not None else None
        cpu, memory = np.maximum(cpu, 0.0), np.maximum(memory, 0.0)
        return frag.NodeState(kept.free[slots], cpu, memory, allowed, idle, kept.worth[slots], kept.whole[slots], kept.value[slots])

    def _fresh(self, slots: Slots) -> frag.NodeState:
        found = self.tables
        assert found is not None
        self._where(found)
        free = np.maximum(frag.percents(self.columns, slots), 0)
        idle = self._idle_of(self._groups(slots), free) if self._insisting(slots) is not None else None
        cpu, memory = np.maximum(self.cluster.free[CPU][slots], 0.0), np.maximum(self.cluster.free[MEMORY][slots], 0.0)
        return frag.state_of(found, free, cpu, memory, self._allowed[slots] if self._allowed is not None else None, idle)

    def _store(self) -> _Kept:
        found = self.tables
        assert found is not None
        self._where(found)
        kept, cards = self._kept, max(1, self.columns.cards(GPU).positions)
        if kept is None or kept.free.shape[1] != cards:
            kept = self._kept = _Kept.of(self.cluster.capacity, cards, len(found.classes))
        return kept

    def _where(self, found: frag.Tables) -> None:
        """Which class may run where, as nodes are labelled now. What was worked out for other labels is forgotten."""
        now = (self.cluster.node_version, self.cluster.capacity)
        if self._placed_at != now:
            self._placed_at = now
            self._kept = None
            everywhere = np.ones(self.cluster.capacity, dtype=np.bool_)
            chosen = (selected_rows(self.cluster, selector, terms, ALL_ROWS) for selector, terms in found.places)
            places = [everywhere if rows is None else rows for rows in chosen]
            self._allowed = np.stack(places, axis=1)[:, found.groups] if found.selective else None

    # ---------------------------------------------------------------- groups of cards

    def _insisting(self, slots: Slots) -> NDArray[np.bool_] | None:
        """Rows of nodes that insist on groups of cards; None where there is none."""
        strict = self._topology.strict_rows(slots) if self._topology is not None else None
        found = self.columns.honors[slots] if strict is None else self.columns.honors[slots] | (strict > 0)
        return found if found.any() else None

    def _groups(self, slots: Slots) -> list[Groups | None]:
        levels = self._topology.strict_rows(slots) if self._topology is not None else None
        strict = levels.tolist() if levels is not None else [0] * len(slots)
        honors = self.columns.honors[slots].tolist()
        return [
            self._groups_of(slot, level) if honored or level else None
            for slot, honored, level in zip(slots.tolist(), honors, strict, strict=True)
        ]

    def _groups_of(self, slot: int, level: int) -> Groups | None:
        node = self.columns.node(slot)
        if node.inventory is None:
            return None
        key = (node.inventory.shape, tuple(node.labels.items()), level)
        if key not in self._known:
            if len(self._known) >= _KEPT_GROUPS:
                self._known.clear()
            self._known[key] = groups_of(node.inventory, node.labels, strict=level > 0, single=level > 1)
        return self._known[key]

    def _idle_of(self, groups: Sequence[Groups | None], free: frag.Cards) -> frag.Matrix:
        found = self.tables
        assert found is not None
        result = np.zeros((len(groups), len(found.classes)))
        for row, each in enumerate(groups):
            if each is not None:
                whole = (each, tuple((free[row] == WHOLE).tolist()))
                known = self._idle.get(whole)
                if known is None:
                    if len(self._idle) >= _KEPT_IDLE:
                        self._idle.clear()
                    known = self._idle[whole] = frag.idle_of(found, each, free[row].tolist())
                result[row] = known
        return result


@dataclass(slots=True)
class _Kept:
    """By slot what was worked out, and for what: content of the devices, milli-CPU and bytes left."""

    content: NDArray[np.int64]
    cpu: Vector
    memory: Vector
    free: frag.Cards
    worth: frag.Matrix
    whole: Vector
    value: Vector

    @classmethod
    def of(cls, capacity: int, cards: int, classes: int) -> _Kept:
        content = np.full(capacity, -1, dtype=np.int64)
        free = np.zeros((capacity, cards), dtype=np.int64)
        vectors = [np.zeros(capacity) for _ in range(4)]
        return cls(content, vectors[0], vectors[1], free, np.zeros((capacity, classes)), vectors[2], vectors[3])

    def write(self, slots: Slots, state: frag.NodeState, content: NDArray[np.int64], cpu: Vector, memory: Vector) -> None:
        self.content[slots], self.cpu[slots], self.memory[slots] = content, cpu, memory
        self.free[slots], self.worth[slots], self.whole[slots], self.value[slots] = state.free, state.worth, state.whole, state.value


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
