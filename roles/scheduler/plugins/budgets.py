"""PodDisruptionBudgets as preemption reads them (SCH-KS-12): whose leaving would break one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koord.api.kinds import PODDISRUPTIONBUDGETS
from koord.api.objects import PodDisruptionBudget
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import Selector, label_selector, selects
from roles.scheduler.framework.gangs import VictimGroup
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Feed
from roles.scheduler.framework.steps import Steps, at_once

_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Budget:
    """One budget. An empty selector covers nothing here."""

    selector: Selector | None
    allowed: int
    disrupted: frozenset[str]

    def selects(self, pod: PodInfo) -> bool:
        """Whether a pod of the budget's namespace is one of its."""
        return bool(self.selector) and bool(pod.labels) and selects(self.selector, pod.labels)


class DisruptionBudgets:
    """All budgets, by namespace. Which of them select a pod is kept with its shape until a budget changes."""

    def __init__(self, handle: Handle) -> None:
        self._gates = handle.gates
        self._budgets: dict[str, dict[str, Budget]] = {}
        self._version = 0

    def feeds(self) -> Sequence[Feed]:
        """What is to be observed."""
        if self._gates.get("DisablePodDisruptionBudgetInformer") or not self._gates.get("PodDisruptionBudget", True):
            return ()  # then no budget is known, and none respected
        return (Feed(PODDISRUPTIONBUDGETS, PodDisruptionBudget, self.observe),)

    def observe(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        """A budget appeared, changed or went."""
        present = new or old
        assert present is not None
        self._version += 1
        meta = present.metadata
        mine = self._budgets.setdefault(meta.namespace, {})
        if new is None:
            mine.pop(meta.name, None)
        else:
            mine[meta.name] = Budget(
                label_selector(new.spec.selector), new.status.disruptions_allowed, frozenset(new.status.disrupted_pods)
            )
        if not mine:
            del self._budgets[meta.namespace]

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def covering(self, pod: PodInfo) -> Sequence[Budget]:
        """Budgets for which the pod's leaving counts. One that is being disrupted already was counted off when that was decided."""
        mine = self._budgets.get(pod.namespace)
        if not mine:
            return ()
        if pod.labels is pod.shape.labels:
            version, found = pod.shape.memo.get(self, (-1, ()))
            if version != self._version:
                found = tuple(budget for budget in mine.values() if budget.selects(pod))
                pod.shape.memo[self] = (self._version, found)
        else:
            found = tuple(budget for budget in mine.values() if budget.selects(pod))
        return [budget for budget in found if pod.name not in budget.disrupted] if found else ()

    def untouchable(self, pod: PodInfo) -> bool:
        """Whether a budget allows no pod to go and the pod is one of its."""
        return any(budget.allowed <= 0 for budget in self.covering(pod))

    def violating(self, pods: Sequence[PodInfo]) -> frozenset[str]:
        """UIDs of pods whose removal breaks a budget, given that the ones before are removed too."""
        return at_once(self.violating_in_steps(pods)) if self._budgets else _NOBODY

    def violating_in_steps(self, pods: Sequence[PodInfo]) -> Steps[frozenset[str]]:
        """As `violating`, a pod a step."""
        left: dict[Budget, int] = {}
        found: list[str] = []
        for pod in pods if self._budgets else ():
            broken = False
            for budget in self.covering(pod):
                left[budget] = left.get(budget, budget.allowed) - 1
                broken = broken or left[budget] < 0
            if broken:
                found.append(pod.uid)
            yield
        return frozenset(found)

    def ordered(self, groups: Sequence[VictimGroup]) -> tuple[list[VictimGroup], frozenset[str]]:
        """As `ordering`, at once."""
        return at_once(self.ordering(groups)) if self._budgets else (list(groups), _NOBODY)

    def ordering(self, groups: Sequence[VictimGroup]) -> Steps[tuple[list[VictimGroup], frozenset[str]]]:
        """Groups in the order in which they come back: first those whose leaving breaks budgets, all of a job alike; and the UIDs of those
        pods."""
        violating = yield from self.violating_in_steps([pod for group in groups for pod in group.pods])
        if not violating:
            return list(groups), violating
        jobs = {group.job for group in groups if group.job and any(pod.uid in violating for pod in group.pods)}
        hurts = [group.job in jobs or any(pod.uid in violating for pod in group.pods) for group in groups]
        first = [group for group, does in zip(groups, hurts, strict=True) if does]
        return first + [group for group, does in zip(groups, hurts, strict=True) if not does], violating
