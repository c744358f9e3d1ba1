"""What a cycle decides about one pod, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.interfaces import Codes, Filter, Rejection
from roles.scheduler.framework.status import Candidate, Code, Status
from roles.scheduler.framework.steps import Steps

SCHEDULED = "Scheduled"
UNSCHEDULABLE = "Unschedulable"
ERROR = "Error"

NO_NODES = "no nodes available to schedule pods"


@dataclass(slots=True)
class FitFailure:
    """Why no node was left for a pod. `pre_filter` is set when a preFilter plugin refused the pod before any node was looked at.

    `excluded` are slots that preFilter restrictions left out; `blocked` are slots that only pods nominated to them make too full.
    """

    ctx: CycleContext
    evaluation: Evaluation
    pre_filter: Status | None = None
    pre_filter_plugins: tuple[str, ...] = ()
    candidates: NDArray[np.bool_] | None = None
    blocked: dict[int, tuple[str, Rejection]] = field(default_factory=dict)
    _codes: list[tuple[Filter, NDArray[np.intp], Codes]] | None = None
    _counts: Counter[str] | None = None

    def first_codes(self) -> list[tuple[Filter, NDArray[np.intp], Codes]]:
        """Per filter the rows that it was the first to refuse, with their codes, as they were when first asked for."""
        if self._codes is None:
            self._codes = self.evaluation.first_codes(self.ctx)
        return self._codes

    @property
    def excluded_reason(self) -> str:
        """Reason of the nodes that the preFilter plugins left out."""
        return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(self.pre_filter_plugins))}]"

    def histogram(self) -> Counter[str]:
        """How many nodes were refused for which reason; a node with several reasons counts for each."""
        if self._counts is None:
            self._counts = self._count()
        return self._counts

    def _count(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self.pre_filter is not None:
            return counts
        kept = self.candidates
        if kept is not None:
            left_out = int(np.count_nonzero(self.evaluation.cluster.alive & ~kept))
            if left_out:
                counts[self.excluded_reason] += left_out
        for plugin, slots, codes in self.first_codes():
            if kept is not None:
                codes = codes[kept[slots]]
            values, numbers = np.unique(codes, return_counts=True)
            for code, number in zip(values.tolist(), numbers.tolist(), strict=True):
                for reason in plugin.rejection(self.ctx, int(code)).reasons:
                    counts[reason] += number
        for _, rejection in self.blocked.values():
            for reason in rejection.reasons:
                counts[reason] += 1
        return counts

    def plugins(self) -> frozenset[str]:
        """Plugins that refused at least one node, or the pod, and who may open a node that others refused."""
        if self.pre_filter is not None:
            return frozenset((self.pre_filter.plugin,) if self.pre_filter.plugin else ()) | self.pre_filter.also
        found = {plugin.name for plugin, slots, _ in self.first_codes() if self.candidates is None or self.candidates[slots].any()}
        found.update(name for name, _ in self.blocked.values())
        found.update(self.pre_filter_plugins)
        restorer = self.evaluation.framework.restorer
        if restorer is not None and restorer.may_open(self.ctx):
            found.add(restorer.name)
        return frozenset(found)

    def resolvable(self) -> list[int]:
        """Slots of nodes that removing pods may open, in slot order."""
        if self.pre_filter is not None:
            return []
        found: list[NDArray[np.intp]] = []
        for plugin, rows, codes in self.first_codes():
            values = np.unique(codes)
            helpful = [code for code in values.tolist() if plugin.rejection(self.ctx, int(code)).resolvable]
            if helpful:
                found.append(rows if len(helpful) == len(values) else rows[np.isin(codes, helpful)])
        found.append(np.array([slot for slot, (_, rejection) in self.blocked.items() if rejection.resolvable], dtype=np.intp))
        slots = np.sort(np.concatenate(found))
        result: list[int] = (slots if self.candidates is None else slots[self.candidates[slots]]).tolist()
        return result

    def message(self) -> str:
        """How many nodes were refused for which reason, as users read it."""
        text = f"0/{self.evaluation.cluster.live} nodes are available:"
        if self.pre_filter is not None:
            return f"{text} {self.pre_filter.message}." if self.pre_filter.message else text
        items = sorted(f"{number} {reason}" for reason, number in self.histogram().items())
        return f"{text} {', '.join(items)}." if items else text

    def fits(self, slot: int) -> bool:
        """Whether the pod passes all filters on a node as things are now; for use inside `state.suppose()`."""
        return self.evaluation.passes(self.ctx, slot)


@dataclass(slots=True)
class Decision:
    """The outcome of one cycle. `slot` is -1 when there is no node. `nominate` None leaves the pod's nomination, "" clears it."""

    verdict: str
    ctx: CycleContext
    framework: Framework
    slot: int = -1
    node: str = ""
    status: Status = field(default_factory=Status)
    evaluated: int = 0
    feasible: int = 0
    total: float = 0.0
    advised: float = 0.0  # the part of the total that extenders gave
    ties: int = 0
    evaluation: Evaluation | None = None
    failure: FitFailure | None = None
    post_filter_message: str = ""
    nominate: str | None = None
    victims: tuple[PodInfo, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # where preemption may take place, what hurts least first
    others: tuple[tuple[PodInfo, str], ...] = ()  # nominations of further pods of its job
    rejected_by: frozenset[str] = frozenset()
    recheck: Callable[[frozenset[int]], Steps[bool]] | None = None  # as PostFilterResult.recheck

    def take_effect(self) -> None:
        """The decision is carried out: what plugins made depend on that happens now, once."""
        effects, self.ctx.effects = self.ctx.effects, []
        for effect in effects:
            effect()

    @property
    def pod(self) -> PodInfo:
        """The pod that was decided about."""
        return self.ctx.pod

    @property
    def scheduled(self) -> bool:
        """Whether a node was found."""
        return self.verdict == SCHEDULED

    @property
    def pending(self) -> bool:
        """Whether the pod waits for something outside, so that backoff makes no sense."""
        return self.status.code is Code.PENDING

    def message(self) -> str:
        """The text users read in the PodScheduled condition and the FailedScheduling event."""
        if self.verdict == ERROR or self.failure is None:
            return self.status.message
        text = self.failure.message()
        return f"{text} {self.post_filter_message}" if self.post_filter_message else text
