"""DefaultPreemption: which lower-priority pods would have to go so that a pod fits (SCH-KS-12, scheduler-job.md 5.9). Decides only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from koord.api import names
from koord.api.kinds import PODDISRUPTIONBUDGETS
from koord.api.objects import PodDisruptionBudget
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import Selector, label_selector, selects
from roles.scheduler.config.args import DefaultPreemptionArgs
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.events import ASSIGNED_POD, Action, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Candidate, Feed, PostFilter, PostFilterResult
from roles.scheduler.framework.status import SUCCESS, Status, unschedulable

_NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_PREEMPTED = "PreemptionByScheduler"


@dataclass(slots=True)
class Budget:
    """A PodDisruptionBudget as preemption reads it."""

    namespace: str
    selector: Selector | None
    allowed: int
    disrupted: frozenset[str]


class DefaultPreemption(PostFilter):
    """Tries nodes from a random offset on until enough candidates are found, then picks the one that hurts least."""

    name = "DefaultPreemption"
    for_reservations: ClassVar[bool] = False  # whether room is made for reserve pods too
    Args = DefaultPreemptionArgs

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._budgets: dict[str, Budget] = {}

    def feeds(self) -> Sequence[Feed]:
        return (Feed(PODDISRUPTIONBUDGETS, PodDisruptionBudget, self._budget),)

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(ASSIGNED_POD, Action.DELETE),)

    def _budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        present = new or old
        assert present is not None
        key = f"{present.metadata.namespace}/{present.metadata.name}"
        if new is None:
            self._budgets.pop(key, None)
            return
        self._budgets[key] = Budget(
            new.metadata.namespace, label_selector(new.spec.selector), new.status.disruptions_allowed, frozenset(new.status.disrupted_pods)
        )

    # ---------------------------------------------------------------- deciding

    def post_filter(self, ctx: CycleContext, failure: FitFailure) -> PostFilterResult:
        if ctx.pod.reservation and not self.for_reservations:
            return PostFilterResult(unschedulable())
        refusal = self._not_eligible(ctx)
        if refusal:
            return PostFilterResult(_message(refusal))
        slots = self.slots(ctx, failure)
        total = ctx.cluster.live
        reasons: Counter[str] = Counter()
        if total > len(slots):
            reasons[_NOT_HELPFUL] = total - len(slots)
        candidates = self._candidates(ctx, failure, slots, reasons)
        if not candidates:
            # The nomination, if there is one, is of no use any more.
            items = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
            return PostFilterResult(_message(f"0/{total} nodes are available: {items}."), "")
        candidates.sort(key=harm)
        return PostFilterResult(SUCCESS, candidates[0].node, candidates[0].victims, tuple(candidates))

    def slots(self, ctx: CycleContext, failure: FitFailure) -> list[int]:
        """Nodes on which removing pods may help."""
        return failure.resolvable()

    def removable(self, ctx: CycleContext, pod: PodInfo) -> bool:
        """Whether a pod of lower priority may be a victim."""
        return not _protected(pod)

    def obstacles(self, ctx: CycleContext, failure: FitFailure, slot: int) -> tuple[str, ...]:
        """Why the pod does not fit even without all the victims."""
        refusal = failure.evaluation.check_row(ctx, slot)
        return refusal[1].reasons if refusal is not None else ()

    def fits(self, ctx: CycleContext, failure: FitFailure, slot: int) -> bool:
        """Whether the pod fits with some of the victims back."""
        return failure.fits(slot)

    def _not_eligible(self, ctx: CycleContext) -> str:
        """Why the pod may not preempt now, "" when it may."""
        if ctx.pod.shape.preemption_policy == names.PREEMPTION_POLICY_NEVER:
            return "not eligible due to preemptionPolicy=Never."
        nominated = ctx.state.nominations.node_of(ctx.pod.uid)
        slot = ctx.cluster.slot_of(nominated) if nominated else -1
        if slot >= 0 and ctx.cluster.alive[slot]:
            for other in ctx.cluster.row(slot).pods.values():
                if other.priority < ctx.pod.priority and other.deleting and was_preempted(other):
                    return "not eligible due to a terminating pod on the nominated node."
        return ""

    def _candidates(self, ctx: CycleContext, failure: FitFailure, slots: Sequence[int], reasons: Counter[str]) -> list[Candidate]:
        if not slots:
            return []
        wanted = max(ctx.cluster.live * self.args.min_candidate_nodes_percentage // 100, self.args.min_candidate_nodes_absolute)
        offset = ctx.state.random.randrange(len(slots))
        found: list[Candidate] = []
        for slot in (*slots[offset:], *slots[:offset]):
            candidate = self._try(ctx, failure, slot, reasons)
            if candidate is not None:
                found.append(candidate)
                if len(found) >= wanted:
                    break
        return found

    def _try(self, ctx: CycleContext, failure: FitFailure, slot: int, reasons: Counter[str]) -> Candidate | None:
        """Without all lower-priority pods the pod must fit; then as many of them as possible come back, the important ones first."""
        row = ctx.cluster.row(slot)
        pods = (pod for pod in row.pods.values() if not pod.reservation)  # what is reserved stays reserved
        lower = [pod for pod in pods if pod.priority < ctx.pod.priority and self.removable(ctx, pod)]
        if not lower:
            reasons[_NO_VICTIMS] += 1
            return None
        lower.sort(key=_importance)
        violating, others = self.split_by_budget(lower)
        with ctx.state.suppose() as supposed:
            for other in ctx.state.nominations.ahead_of(ctx.pod, row.name):
                if ctx.cluster.slot_of_pod(other.uid) < 0:
                    supposed.add(other, slot)
            for pod in lower:
                supposed.remove(pod.uid)
            obstacles = self.obstacles(ctx, failure, slot)
            if obstacles:
                reasons.update(obstacles)
                return None
            victims: list[PodInfo] = []
            violations = 0
            for pod in (*violating, *others):
                supposed.add(pod, slot)
                if not self.fits(ctx, failure, slot):
                    supposed.remove(pod.uid)
                    victims.append(pod)
                    violations += pod in violating
        if not victims:
            return None
        return Candidate(row.name, tuple(sorted(victims, key=_importance)), violations)

    def split_by_budget(self, pods: Sequence[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """Pods whose removal breaks a budget, given that the ones before are removed too, and the rest; order is kept."""
        left = {key: budget.allowed for key, budget in self._budgets.items()}
        violating: list[PodInfo] = []
        others: list[PodInfo] = []
        for pod in pods:
            broken = False
            for key, budget in self._budgets.items():
                covers = budget.namespace == pod.namespace and bool(pod.labels) and selects(budget.selector, pod.labels)
                # A pod that is being disrupted already was counted off when that was decided; an empty selector covers nothing here.
                if not covers or not budget.selector or pod.name in budget.disrupted:
                    continue
                left[key] -= 1
                broken = broken or left[key] < 0
            (violating if broken else others).append(pod)
        return violating, others


def _message(text: str) -> Status:
    return unschedulable(f"preemption: {text}")


def _protected(pod: PodInfo) -> bool:
    return pod.shape.labels.get(names.LABEL_POD_DISABLE_PREEMPTIBLE) == "true"


def was_preempted(pod: PodInfo) -> bool:
    """Whether the scheduler is removing the pod to make room."""
    return any(c.type == "DisruptionTarget" and c.status == "True" and c.reason == _PREEMPTED for c in pod.pod.status.conditions)


def _start(pod: PodInfo) -> str:
    """Start time as text; RFC 3339 in UTC sorts as text. A pod that has not started counts as starting last."""
    return pod.pod.status.start_time or "9999"


def _importance(pod: PodInfo) -> tuple[int, str]:
    """Sorts the most important pod first: higher priority, then longer running."""
    return (-pod.priority, _start(pod))


def harm(candidate: Candidate) -> tuple[int, int, int, int, tuple[int, ...]]:
    """Less is better: budget violations, highest victim priority, sum of priorities, number of victims, and the earliest start among
    the highest-priority victims (the later, the better)."""
    victims = candidate.victims
    highest = victims[0].priority
    earliest = min(_start(pod) for pod in victims if pod.priority == highest)
    return (
        candidate.violations, highest, sum(pod.priority + 2**31 for pod in victims), len(victims), tuple(-ord(c) for c in earliest),
    )  # fmt: skip
