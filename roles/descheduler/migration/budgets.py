"""Disruption budgets as migrations look at them: a pod that the Eviction API would keep is not asked to move (DS-ARB-02)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koord.api import kinds
from koord.api.objects import Pod, PodDisruptionBudget
from koord.api.selectors import NOTHING, Selector, SelectorError, from_label_selector
from koord.kube.informers import InformerFactory
from roles.descheduler.migration.limits import ready


class Budgets:
    """Budgets by namespace, their selectors compiled once."""

    def __init__(self, informers: InformerFactory) -> None:
        self.informer = informers.informer(kinds.PODDISRUPTIONBUDGETS, PodDisruptionBudget, optional=True)
        self.informer.index("namespace", lambda budget: budget.metadata.namespace)
        self._selectors: dict[str, tuple[PodDisruptionBudget, Selector]] = {}
        self.informer.add_handler(on_delete=lambda budget: self._selectors.pop(budget.metadata.uid, None))

    def refuse(self, pod: Pod, going: Callable[[], Iterable[Pod]]) -> str:
        """Why the Eviction API would not let the pod go now, "" when it would.

        `going` gives the pods of the namespace whose migration is under way and that are still there: they will use the budget up."""
        budgets = self.informer.by_index("namespace", pod.metadata.namespace)
        if not budgets or not _counts(pod):
            return ""
        found = [budget for budget in budgets if self._selector(budget).matches(pod.metadata.labels)]
        if len(found) > 1:
            return "more than one disruption budget covers it, which the Eviction API refuses"
        for budget in found:
            allowed = budget.status.disruptions_allowed
            if not ready(pod) and _lets_unready_go(budget):
                continue
            if allowed > 0:
                allowed -= sum(1 for other in going() if other is not pod and self._selector(budget).matches(other.metadata.labels))
            if allowed <= 0:
                return f"disruption budget {budget.metadata.name} allows no disruption now"
        return ""

    def _selector(self, budget: PodDisruptionBudget) -> Selector:
        known = self._selectors.get(budget.metadata.uid)
        if known is None or known[0] is not budget:
            try:
                known = (budget, from_label_selector(budget.spec.selector))
            except SelectorError:
                known = (budget, NOTHING)
            self._selectors[budget.metadata.uid] = known
        return known[1]


def _counts(pod: Pod) -> bool:
    """Whether budgets are asked about the pod at all."""
    return pod.status.phase not in ("Succeeded", "Failed", "Pending") and pod.metadata.deletion_timestamp is None


def _lets_unready_go(budget: PodDisruptionBudget) -> bool:
    state = budget.status
    return budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow" or (state.current_healthy >= state.desired_healthy > 0)
