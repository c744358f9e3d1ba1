"""What plugins are handed: the cycle's context, the view of the world, and the draft of what is written at binding."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.gangs import Gangs, NoGangs, Rule
from roles.scheduler.framework.restoring import NOTHING, Holdings, NoHoldings, Restored, RestoredNode, RestoredReservation
from roles.scheduler.framework.status import PostFilterResult
from roles.scheduler.framework.steps import Steps
from roles.scheduler.planner.evictions import Evictions

Rows = slice | NDArray[np.intp]
ALL_ROWS = slice(None)
_NOTED = 1 << 13  # changes of nominations that are remembered at least
_PRIORITIES = 64  # for which nominations are kept sorted out
_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


class Nominations:
    """Pods that have a node picked for them (by preemption) but are not on it yet, by node name."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}
        self._foreign: set[str] = set()
        self._changed: list[str] = []  # nodes, in the order in which their nominations changed
        self._base = 0
        self._ahead: dict[int, list[tuple[str, PodInfo]]] = {}  # by priority, as of a position
        self._ahead_at = -1

    @property
    def position(self) -> int:
        """How many changes there were."""
        return self._base + len(self._changed)

    def since(self, position: int) -> set[str] | None:
        """Nodes whose nominations changed since a position; None if that is further back than is known."""
        start = position - self._base
        return set(self._changed[start:]) if start >= 0 else None

    def _note(self, node: str) -> None:
        self._changed.append(node)
        if len(self._changed) > 2 * _NOTED:
            del self._changed[:_NOTED]
            self._base += _NOTED

    def add(self, pod: PodInfo, node: str, *, foreign: bool = False) -> None:
        """Record a nomination, replacing the pod's former one. `foreign` is a pod that another scheduler places."""
        self.remove(pod.uid)
        if node:
            if foreign:
                self._foreign.add(pod.uid)
            self._by_node.setdefault(node, {})[pod.uid] = pod
            self._node_of[pod.uid] = node
            self._note(node)

    def remove(self, uid: str) -> None:
        """Drop a pod's nomination."""
        node = self._node_of.pop(uid, None)
        self._foreign.discard(uid)
        if node is not None:
            self._note(node)
            pods = self._by_node[node]
            del pods[uid]
            if not pods:
                del self._by_node[node]

    def node_of(self, uid: str) -> str:
        """The node nominated for a pod, "" when none is."""
        return self._node_of.get(uid, "")

    def on(self, node: str) -> Iterable[PodInfo]:
        """Pods nominated to a node."""
        return self._by_node.get(node, {}).values()

    def any_on(self, node: str) -> bool:
        """Whether any pod is nominated to a node."""
        return node in self._by_node

    def ahead_of(self, pod: PodInfo, node: str, *, besides: str | None = None) -> list[PodInfo]:
        """Pods nominated to a node that count before this one: of its priority or higher, foreign ones of higher priority only. `besides`
        is the UID of the one that is left out, by default the pod itself."""
        least = {True: pod.priority + 1, False: pod.priority}
        left_out = pod.uid if besides is None else besides
        return [other for other in self.on(node) if other.uid != left_out and other.priority >= least[other.uid in self._foreign]]

    def nodes(self) -> Iterable[str]:
        """Nodes to which pods are nominated."""
        return self._by_node.keys()

    def all_ahead_of(self, pod: PodInfo) -> list[tuple[str, PodInfo]]:
        """Pods nominated to any node that count before one, itself among them, with their nodes. Not to be changed."""
        if self._ahead_at != self.position or len(self._ahead) > _PRIORITIES:
            self._ahead, self._ahead_at = {}, self.position
        found = self._ahead.get(pod.priority)
        if found is None:
            found = [(node, other) for node in self._by_node for other in self.ahead_of(pod, node, besides="")]
            self._ahead[pod.priority] = found
        return found

    def __len__(self) -> int:
        return len(self._node_of)


class State:
    """The read-only world of one cycle. Plugins read `cluster`; only the planner changes it, after the cycle.

    `now` is the time of the cycle in seconds since the epoch; `random` decides ties and where preemption begins to look. `holdings` are
    what reservations hold, `gangs` which pods are of use only together, `evictions` who was chosen to leave.
    """

    __slots__ = ("cluster", "evictions", "gangs", "holdings", "namespaces", "next_start", "nominations", "now", "random")

    def __init__(self, cluster: Cluster, *, now: float = 0.0, seed: int = 0) -> None:
        self.cluster = cluster
        self.nominations = Nominations()
        self.holdings: Holdings = NoHoldings()
        self.gangs: PreemptingGangs = NoGangs()
        self.evictions = Evictions()
        self.namespaces: dict[str, dict[str, str]] = {}
        self.now = now
        self.random = random.Random(seed)
        self.next_start = 0

    def go_on_at(self, slot: int) -> None:
        """Where the next pod begins to look when only a part of the nodes is scored."""
        self.next_start = slot

    def leaving(self, pod: PodInfo) -> bool:
        """Whether a pod is on its way out, or was chosen to leave: its room is counted on already. False for one that is overdue."""
        return (pod.deleting or self.evictions.leaving(pod.uid)) and not self.evictions.overdue(pod.uid)

    def suppose(self) -> Hypothesis:
        """A what-if: pods removed or added inside the `with` block only."""
        return Hypothesis(self.cluster)


class CycleContext:
    """One pod's cycle. `data` is for plugins, keyed by plugin name; what a plugin with `per_pod = False` keeps there is shared by
    all pods of the shape, so it must depend on the shape and the columns only.

    `restored` are the reservations that the pod may use, by slot, before the first plugin is asked. Filters and scores of such a row are
    asked inside `restoring(slot)`. `reservation` is the one it will use on the node that was chosen, set before Reserve; None for none.
    `node` is the name of that node, set before Reserve: it may be gone by the time of a later step, and its slot another node's.

    Deciding changes nothing. What a plugin wants to happen if the decision is carried out it puts into `effects`; what it changes for the
    time of the decision it takes back in `undo`. `drafts` are for plugins, by name, this pod's own.
    """

    __slots__ = (
        "cluster", "data", "drafts", "effects", "feasible", "node", "now", "pod", "reservation", "restored", "state", "undo",
    )  # fmt: skip

    def __init__(self, state: State, pod: PodInfo, data: dict[str, Any] | None = None) -> None:
        self.state = state
        self.cluster = state.cluster
        self.pod = pod
        self.now = state.now
        # Rows that passed all filters; for scores with `uses_feasible`.
        self.feasible: NDArray[np.bool_] = state.cluster.alive
        self.data: dict[str, Any] = {} if data is None else data
        self.restored: Restored = NOTHING
        self.reservation: RestoredReservation | None = None
        self.node = ""
        self.drafts: dict[str, Any] = {}
        self.effects: list[Callable[[], None]] = []
        self.undo: list[Callable[[], None]] = []

    def end(self) -> None:
        """Take back what was changed for the time of the decision."""
        while self.undo:
            self.undo.pop()()

    def may_use(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of some slots have reservations that the pod may use."""
        if not self.restored:
            return np.zeros(len(slots), dtype=np.bool_)
        return np.isin(slots, np.fromiter(self.restored, np.intp, len(self.restored)))

    def restoring(self, slot: int) -> AbstractContextManager[Any]:
        """A what-if in which the reservations of the slot that the pod may use are taken off; Reserve plugins open it themselves."""
        usable = self.restored.get(slot)
        return RestoredNode(self.cluster, usable) if usable else _AS_IT_IS


class PreemptingGangs(Gangs, Protocol):
    """Gangs that can make room for pods that are placed together."""

    def make_room(self, ctx: CycleContext, failure: Any, rule: Rule) -> Steps[PostFilterResult]:
        """Room for the pod and all that it is placed together with, or for nobody."""


@dataclass(slots=True)
class BindDraft:
    """What the preBind plugins want written on the pod (or reservation) in one patch before it is bound; None removes a key.

    `present`: the pod's annotations as they are by now; None: those with which it was decided.
    """

    annotations: dict[str, str | None] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)
    present: Mapping[str, str] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.annotations and not self.labels
