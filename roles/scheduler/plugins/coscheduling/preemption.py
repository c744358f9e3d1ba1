"""Making room for a whole job: enough for every member, or nobody is evicted (SCH-JP-01). Decides only.

The job is tried on the columns with the victims taken away; then as many of them as possible come back, the most important first. Jobs that
run are victim groups: what they have above their minimum, or all of them. Whom a disruption budget protects is no victim. What a member
is refused for by other means than room (its quota, say) is asked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from koord.api import names
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.context import State
from roles.scheduler.framework.gangs import Rule, VictimGroup, VictimGroups
from roles.scheduler.framework.steps import Steps, sorted_in_steps
from roles.scheduler.plugins.budgets import DisruptionBudgets
from roles.scheduler.plugins.coscheduling.nodecosts import NodeCosts
from roles.scheduler.plugins.coscheduling.spec import gang_id

T = TypeVar("T")

_ROUNDS = 5  # tries with ever more pods protected by disruption budgets
_MANY = 100  # pods a step where little is done about each
_SPARE = 100  # nodes looked at beyond one a member before all of them are


@dataclass(slots=True)
class JobPlan:
    """Nodes of the members by UID and the pods that have to go first, or why there is no such plan. `awaited` leave these nodes anyway."""

    nodes: dict[str, str] = field(default_factory=dict)
    victims: tuple[PodInfo, ...] = ()
    awaited: tuple[PodInfo, ...] = ()
    refusal: str = ""


def supposing(state: State, work: Callable[[Hypothesis], Steps[T]]) -> Steps[T]:
    """What some work comes to in a what-if, which is taken back in steps as well."""
    with state.suppose() as supposed:
        found = yield from work(supposed)
        yield from supposed.undo()
        return found


def job_key(pod: PodInfo) -> str:
    """The job that a pod belongs to, as far as one can tell; pods that belong to nothing are taken for one job, ""."""
    owner = next((owner.uid for owner in pod.pod.metadata.owner_references if owner.uid), "")
    return pod.labels.get(names.LABEL_QUESTIONED_OBJECT_KEY) or gang_id(pod) or owner


def preemptible(pod: PodInfo, below: int, priority: int | None = None) -> bool:
    """Whether a pod may be a victim of a job of priority `below`; `priority` is what counts instead of its own."""
    labels = pod.labels
    return (
        (pod.priority if priority is None else priority) < below
        and not pod.reservation
        and labels.get(names.LABEL_POD_DISABLE_PREEMPTIBLE) != "true"
        and labels.get(names.LABEL_PREEMPTIBLE) != "false"
    )


def job_rule(
    plugin: str, pods: Iterable[PodInfo], priority: int | None = None, priority_of: Callable[[PodInfo], int] | None = None
) -> Rule:
    """The terms of Coscheduling for a job of these pods; `priority` is that of the job, None for its pods' own."""
    below = min(pod.priority for pod in pods) if priority is None else priority
    return Rule(plugin, lambda pod: preemptible(pod, below, priority_of(pod) if priority_of is not None else None))


class JobPreemption:
    """Plans for one cluster state. `cycle` is one that nobody decides with; `budgets` knows the PodDisruptionBudgets; `without` names the
    plugin whose own steps around preFilter are left out."""

    def __init__(self, cycle: Cycle, state: State, budgets: DisruptionBudgets, without: str) -> None:
        self._cycle = cycle
        self._state = state
        self._budgets = budgets
        self._without = without

    def planning(self, pods: Sequence[PodInfo], rule: Rule) -> Steps[JobPlan]:
        """Room for all the pods."""
        return self.within_budgets(lambda protected: supposing(self._state, partial(self._tried, pods, rule, protected)))

    def within_budgets(self, attempt: Callable[[set[str]], Steps[JobPlan]]) -> Steps[JobPlan]:
        """A plan that breaks no disruption budget: each attempt is told whom the one before should have spared (UIDs)."""
        protected: set[str] = set()
        found = JobPlan()
        for _ in range(_ROUNDS):
            found = yield from attempt(protected)
            if found.refusal:
                return found
            violating = yield from self._budgets.violating_in_steps(found.victims)
            if not violating:
                return found
            protected |= violating
        return JobPlan(refusal=f"the victims would break disruption budgets: {', '.join(sorted(pod.key for pod in found.victims)[:5])}")

    def _tried(self, pods: Sequence[PodInfo], rule: Rule, protected: set[str], supposed: Hypothesis) -> Steps[JobPlan]:
        leaving = yield from self.without_leaving(rule, supposed)
        nodes, rest = yield from self.as_is(pods, supposed)
        if not rest:
            return JobPlan(nodes, awaited=self.awaited(nodes, leaving))
        yield
        slots = self._slots(rest, rule)
        yield
        groups = yield from self.groups_on(slots, rule, protected)
        if not groups:
            return JobPlan(refusal="no pod may be preempted on a node where that could help")
        costs = yield from NodeCosts.worked_out(self._state.cluster, groups, job_key)
        found = JobPlan(refusal="nothing was tried")
        for count in (len(rest) + _SPARE, len(costs.slots)) if rule.slots is None else (len(costs.slots),):
            chosen = costs.cheapest(count)
            yield
            found = yield from supposing(self._state, partial(self._make_room, rest, chosen, costs, rule))
            if not found.refusal or count >= len(costs.slots):
                break
        if not found.refusal:
            found.nodes.update(nodes)
            found.awaited = self.awaited(found.nodes, leaving)
        return found

    def recheck(self, plan: JobPlan, pods: Sequence[PodInfo], rule: Rule, changed: frozenset[int]) -> Steps[bool]:
        """Whether a plan still holds now that some nodes have changed: everybody who is to leave may still go, and the members fit on the
        changed nodes without them. What no node decides (`rule.admits`) is asked with everybody in place."""
        cluster = self._state.cluster
        planned: dict[int, list[PodInfo]] = {}
        for pod in pods:
            planned.setdefault(cluster.slot_of(plan.nodes.get(pod.uid, "")), []).append(pod)
        if -1 in planned or any(not cluster.alive[slot] for slot in planned):
            return False
        for number, victim in enumerate(plan.victims):
            now = cluster.pod(victim.uid)
            if now is not None and not rule.may_go(now):
                return False
            if not number % _MANY:
                yield
        if (yield from self._budgets.violating_in_steps(plan.victims)):
            return False
        return (yield from supposing(self._state, partial(self._rechecked, plan, planned, rule, changed)))

    def _rechecked(
        self, plan: JobPlan, planned: Mapping[int, list[PodInfo]], rule: Rule, changed: frozenset[int], supposed: Hypothesis
    ) -> Steps[bool]:  # fmt: skip
        cluster = self._state.cluster
        slots = planned.keys() if rule.admits is not None else planned.keys() & changed
        for pod in (*plan.victims, *plan.awaited):
            if rule.admits is not None or cluster.slot_of_pod(pod.uid) in slots:
                supposed.remove(pod.uid)
                yield
        for slot in sorted(slots):
            for pod in planned[slot]:
                if not self._cycle.survey(pod, without=self._without).mask[slot]:
                    return False
                supposed.add(pod, slot)
                yield
        return rule.admits is None or rule.admits()

    def without_leaving(self, rule: Rule, supposed: Hypothesis) -> Steps[list[tuple[PodInfo, int]]]:
        """As if those were gone already who were chosen to leave, for whomever; returns them with their slots."""
        cluster = self._state.cluster
        found: list[tuple[PodInfo, int]] = []
        for uid in self._state.evictions.all_leaving():
            pod = cluster.pod(uid)
            if pod is not None and rule.may_go(pod):
                found.append((pod, cluster.slot_of_pod(uid)))
                supposed.remove(uid)
            yield
        return found

    def awaited(self, nodes: Mapping[str, str], leaving: Iterable[tuple[PodInfo, int]]) -> tuple[PodInfo, ...]:
        """Those of the leaving pods who leave nodes of the plan."""
        slots = {self._state.cluster.slot_of(name) for name in nodes.values()}
        return tuple(pod for pod, slot in leaving if slot in slots)

    # ---------------------------------------------------------------- placing

    def as_is(self, pods: Sequence[PodInfo], supposed: Hypothesis) -> Steps[tuple[dict[str, str], list[PodInfo]]]:
        """Members that fit without anybody's leaving are put there; the others are left."""
        nodes: dict[str, str] = {}
        rest: list[PodInfo] = []
        hopeless: set[bytes] = set()
        for pod in pods:
            yield
            if pod.shape.digest in hopeless:
                rest.append(pod)
                continue
            survey = self._cycle.survey(pod, without=self._without)
            slots = np.flatnonzero(survey.mask)
            if not len(slots):
                hopeless.add(pod.shape.digest)
                rest.append(pod)
                continue
            slot = int(slots[np.argmax(survey.evaluation.totals[slots])])
            supposed.add(pod, slot)
            nodes[pod.uid] = self._state.cluster.name_of(slot)
        return nodes, rest

    def _slots(self, pods: Sequence[PodInfo], rule: Rule) -> list[int]:
        """Nodes on which somebody's leaving could help, in slot order."""
        cluster = self._state.cluster
        if rule.slots is not None:
            return list(rule.slots)
        open_slots: set[int] = set()
        for pod in {pod.shape.digest: pod for pod in pods}.values():
            open_slots.update(self._cycle.survey(pod, without=self._without).failure().resolvable())
        return sorted(open_slots) if cluster.live else []

    def groups_on(self, slots: Sequence[int], rule: Rule, protected: set[str]) -> Steps[list[VictimGroup]]:
        """Who may go from these slots, the most important first."""
        cluster = self._state.cluster
        spared = self._budgets.untouchable
        overdue = self._state.evictions.overdue
        victim_groups = VictimGroups(
            self._state.gangs,
            lambda pod: pod.uid not in protected and rule.may_go(pod) and not spared(pod) and not overdue(pod.uid),
            _importance,
            self._state.leaving,
        )
        candidates: list[PodInfo] = []
        for slot in slots:
            candidates.extend(pod for pod in cluster.row(slot).pods.values() if victim_groups.may_go(pod))
            yield
        return (yield from victim_groups.groups_in_steps(candidates))

    def _make_room(
        self, pods: Sequence[PodInfo], groups: Sequence[VictimGroup], costs: NodeCosts, rule: Rule, supposed: Hypothesis
    ) -> Steps[JobPlan]:  # fmt: skip
        """Without the victims every member gets the cheapest node that takes it."""
        where = yield from self.take_away(groups, supposed)
        keys = costs.keys(groups)
        yield
        placed: dict[int, list[PodInfo]] = {}
        for pod in pods:
            survey = self._cycle.survey(pod, without=self._without)
            slots = np.flatnonzero(survey.mask)
            if not len(slots):
                return JobPlan(refusal=f"pod {pod.key} finds no node even without the victims: {survey.failure().message()}")
            slot = int(slots[np.argmin(keys[slots])])
            supposed.add(pod, slot)
            if slot not in placed:
                costs.taken(slot, keys)
            placed.setdefault(slot, []).append(pod)
            yield
        return (yield from self.settle(placed, groups, where, rule, supposed))

    # ---------------------------------------------------------------- who may stay

    def take_away(self, groups: Iterable[VictimGroup], supposed: Hypothesis) -> Steps[dict[str, int]]:
        """As if the groups were gone; returns the slots of their pods by UID."""
        cluster = self._state.cluster
        where: dict[str, int] = {}
        for uid in (pod.uid for group in groups for pod in group.pods):
            if uid not in where:
                where[uid] = cluster.slot_of_pod(uid)
                supposed.remove(uid)
                yield
        return where

    def settle(
        self, placed: dict[int, list[PodInfo]], groups: Sequence[VictimGroup], where: dict[str, int], rule: Rule, supposed: Hypothesis
    ) -> Steps[JobPlan]:
        """Everybody comes back who can, the important ones first; those whom a budget protects before all others."""
        cluster = self._state.cluster
        if rule.admits is not None and not rule.admits():
            return JobPlan(refusal="even without the victims there would be too little for all of them")
        gone: dict[VictimGroup, None] = {}
        order, _ = yield from self._budgets.ordering(groups)
        for group in order:
            if group.minimum in gone or not self._stays(group, placed, where, rule, supposed):
                gone[group] = None
            yield
        for slot, members in placed.items():
            yield
            if not self._fit(members, slot, supposed):
                return JobPlan(refusal=f"the members do not fit together on node {cluster.name_of(slot)}")
        nodes = {pod.uid: cluster.name_of(slot) for slot, members in placed.items() for pod in members}
        victims = yield from sorted_in_steps((pod for group in gone for pod in group.pods), _importance)
        return JobPlan(nodes, tuple(victims))

    def _stays(
        self, group: VictimGroup, placed: dict[int, list[PodInfo]], where: dict[str, int], rule: Rule, supposed: Hypothesis
    ) -> bool:  # fmt: skip
        """Whether the members still fit with a group back; if so it is."""
        shared = {where[pod.uid] for pod in group.pods} & placed.keys()
        if any(self._too_much(group, where, placed[slot], slot) for slot in shared):
            return False
        for pod in group.pods:
            supposed.add(pod, where[pod.uid])
        if (rule.admits is None or rule.admits()) and all(self._fit(placed[slot], slot, supposed) for slot in sorted(shared)):
            return True
        for pod in group.pods:
            supposed.remove(pod.uid)
        return False

    def _too_much(self, group: VictimGroup, where: Mapping[str, int], members: Sequence[PodInfo], slot: int) -> bool:
        """Whether a group takes more than the members, which are on the node, leave of what the last of them asks for: told without asking
        all filters. What reservations would give is not known here."""
        if self._state.holdings.on(slot):
            return False
        free = self._state.cluster.free
        wanted = self._cycle.must_fit(members[-1])
        returning = [pod.shape for pod in group.pods if where[pod.uid] == slot]
        return any(
            free[resource].item(slot) < sum(amount for shape in returning for other, amount in shape.requests if other == resource)
            for resource in wanted
        )

    def _fit(self, members: Sequence[PodInfo], slot: int, supposed: Hypothesis) -> bool:
        """Whether the members, which are on the node, fit there one after another."""
        for pod in members:
            supposed.remove(pod.uid)
        fits = True
        for pod in members:
            fits = fits and bool(self._cycle.survey(pod, without=self._without).mask[slot])
            supposed.add(pod, slot)
        return fits


def _importance(pod: PodInfo) -> tuple[int, str, str]:
    """Sorts who may come back first: higher priority, then by job and name."""
    return (-pod.priority, job_key(pod), pod.name)
