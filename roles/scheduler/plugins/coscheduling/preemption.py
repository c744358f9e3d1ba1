"""Making room for a whole job: enough for every member, or nobody is evicted (SCH-JP-01, scheduler-job.md 12). Decides only.

The job is tried on the columns with the victims taken away; then as many of them as possible come back, the most important first. Jobs that
run are taken as units: what they have above their minimum, or all of them. Whom a disruption budget protects is no victim. What a member is
refused for by other means than room (its quota, say) is asked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from koord.api import names
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.bonds import Breaking, Rule, Unit
from roles.scheduler.framework.context import State
from roles.scheduler.plugins.coscheduling.prices import Prices
from roles.scheduler.plugins.coscheduling.spec import gang_id
from roles.scheduler.plugins.default_preemption import DefaultPreemption

_ROUNDS = 5  # tries with ever more pods protected by disruption budgets
_SPARE = 100  # nodes looked at beyond one a member before all of them are


@dataclass(slots=True)
class JobPlan:
    """Nodes of the members by UID and the pods that have to go first, or why there is no such plan. `awaited` leave these nodes anyway."""

    nodes: dict[str, str] = field(default_factory=dict)
    victims: tuple[PodInfo, ...] = ()
    awaited: tuple[PodInfo, ...] = ()
    refusal: str = ""


def job_key(pod: PodInfo) -> str:
    """The job that a pod belongs to, as far as one can tell; pods that belong to nothing are taken for one job, ""."""
    owner = next((owner.uid for owner in pod.pod.metadata.owner_references if owner.uid), "")
    return pod.labels.get(names.LABEL_QUESTIONED_OBJECT_KEY) or gang_id(pod) or owner


def preemptible(pod: PodInfo, below: int) -> bool:
    """Whether a pod may be a victim of a job of priority `below`."""
    labels = pod.labels
    return (
        pod.priority < below
        and not pod.reservation
        and labels.get(names.LABEL_POD_DISABLE_PREEMPTIBLE) != "true"
        and labels.get(names.LABEL_PREEMPTIBLE) != "false"
    )


def job_rule(plugin: str, pods: Iterable[PodInfo]) -> Rule:
    """The terms of Coscheduling for a job of these pods."""
    below = min(pod.priority for pod in pods)
    return Rule(plugin, lambda pod: preemptible(pod, below))


class JobPreemption:
    """Plans for one cluster state. `cycle` is one that nobody decides with; `budgets` knows the PodDisruptionBudgets; `without` names the
    plugin whose own steps around preFilter are left out."""

    def __init__(self, cycle: Cycle, state: State, budgets: DefaultPreemption, without: str) -> None:
        self._cycle = cycle
        self._state = state
        self._budgets = budgets
        self._without = without

    def plan(self, pods: Sequence[PodInfo], rule: Rule) -> JobPlan:
        """Room for all the pods."""
        return self.within_budgets(lambda protected: self._try(pods, rule, protected))

    def within_budgets(self, attempt: Callable[[set[str]], JobPlan]) -> JobPlan:
        """A plan that breaks no disruption budget: each attempt is told whom the one before should have spared (UIDs)."""
        protected: set[str] = set()
        found = JobPlan()
        for _ in range(_ROUNDS):
            found = attempt(protected)
            if found.refusal:
                return found
            violating, _ = self._budgets.split_by_budget(list(found.victims))
            if not violating:
                return found
            protected.update(pod.uid for pod in violating)
        return JobPlan(refusal=f"the victims would break disruption budgets: {', '.join(sorted(pod.key for pod in found.victims)[:5])}")

    def _try(self, pods: Sequence[PodInfo], rule: Rule, protected: set[str]) -> JobPlan:
        with self._state.suppose() as supposed:
            leaving = self.without_leaving(rule, supposed)
            nodes, rest = self.as_is(pods, supposed)
            if not rest:
                return JobPlan(nodes, awaited=self.awaited(nodes, leaving))
            units = self.units_on(self._slots(rest, rule), rule, protected)
            if not units:
                return JobPlan(refusal="no pod may be preempted on a node where that could help")
            prices = Prices(self._state.cluster, units, job_key)
            found = JobPlan(refusal="nothing was tried")
            for count in (len(rest) + _SPARE, len(prices.slots)) if rule.slots is None else (len(prices.slots),):
                with self._state.suppose() as deeper:
                    found = self._make_room(rest, prices.cheapest(count), prices, rule, deeper)
                if not found.refusal or count >= len(prices.slots):
                    break
            if not found.refusal:
                found.nodes.update(nodes)
                found.awaited = self.awaited(found.nodes, leaving)
            return found

    def without_leaving(self, rule: Rule, supposed: Hypothesis) -> list[tuple[PodInfo, int]]:
        """As if those were gone already who were chosen to leave, for whomever; returns them with their slots."""
        cluster, found = self._state.cluster, []
        for uid in self._state.evictions.all_leaving():
            pod = cluster.pod(uid)
            if pod is not None and rule.may_go(pod):
                found.append((pod, cluster.slot_of_pod(uid)))
                supposed.remove(uid)
        return found

    def awaited(self, nodes: Mapping[str, str], leaving: Iterable[tuple[PodInfo, int]]) -> tuple[PodInfo, ...]:
        """Those of the leaving pods who leave nodes of the plan."""
        slots = {self._state.cluster.slot_of(name) for name in nodes.values()}
        return tuple(pod for pod, slot in leaving if slot in slots)

    # ---------------------------------------------------------------- placing

    def as_is(self, pods: Sequence[PodInfo], supposed: Hypothesis) -> tuple[dict[str, str], list[PodInfo]]:
        """Members that fit without anybody's leaving are put there; the others are left."""
        nodes: dict[str, str] = {}
        rest: list[PodInfo] = []
        hopeless: set[bytes] = set()
        for pod in pods:
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

    def units_on(self, slots: Sequence[int], rule: Rule, protected: set[str]) -> list[Unit]:
        """Who may go from these slots, the most important first."""
        cluster = self._state.cluster
        spared = self._budgets.untouchable
        overdue = self._state.evictions.overdue
        breaking = Breaking(
            self._state.bonds,
            lambda pod: pod.uid not in protected and rule.may_go(pod) and not spared(pod) and not overdue(pod.uid),
            _importance,
            self._state.leaving,
        )
        return breaking.units(pod for slot in slots for pod in cluster.row(slot).pods.values() if breaking.may_go(pod))

    def _make_room(
        self, pods: Sequence[PodInfo], units: Sequence[Unit], prices: Prices, rule: Rule, supposed: Hypothesis
    ) -> JobPlan:  # fmt: skip
        """Without the victims every member gets the cheapest node that takes it."""
        where = self.take_away(units, supposed)
        keys = prices.keys(units)
        placed: dict[int, list[PodInfo]] = {}
        for pod in pods:
            survey = self._cycle.survey(pod, without=self._without)
            slots = np.flatnonzero(survey.mask)
            if not len(slots):
                return JobPlan(refusal=f"pod {pod.key} finds no node even without the victims: {survey.failure().message()}")
            slot = int(slots[np.argmin(keys[slots])])
            supposed.add(pod, slot)
            if slot not in placed:
                prices.taken(slot, keys)
            placed.setdefault(slot, []).append(pod)
        return self.settle(placed, units, where, rule, supposed)

    # ---------------------------------------------------------------- who may stay

    def take_away(self, units: Iterable[Unit], supposed: Hypothesis) -> dict[str, int]:
        """As if the units were gone; returns the slots of their pods by UID."""
        cluster = self._state.cluster
        where = {pod.uid: cluster.slot_of_pod(pod.uid) for unit in units for pod in unit.pods}
        for uid in where:
            supposed.remove(uid)
        return where

    def settle(
        self, placed: dict[int, list[PodInfo]], units: Sequence[Unit], where: dict[str, int], rule: Rule, supposed: Hypothesis
    ) -> JobPlan:
        """Everybody comes back who can, the important ones first; those whom a budget protects before all others."""
        cluster = self._state.cluster
        if rule.admits is not None and not rule.admits():
            return JobPlan(refusal="even without the victims there would be too little for all of them")
        gone: set[Unit] = set()
        for unit in self._budgets.by_budget(units)[0]:
            if unit.core in gone or not self._stays(unit, placed, where, rule, supposed):
                gone.add(unit)
        for slot, members in placed.items():
            if not self._fit(members, slot, supposed):
                return JobPlan(refusal=f"the members do not fit together on node {cluster.name_of(slot)}")
        nodes = {pod.uid: cluster.name_of(slot) for slot, members in placed.items() for pod in members}
        return JobPlan(nodes, tuple(sorted((pod for unit in gone for pod in unit.pods), key=_importance)))

    def _stays(
        self, unit: Unit, placed: dict[int, list[PodInfo]], where: dict[str, int], rule: Rule, supposed: Hypothesis
    ) -> bool:  # fmt: skip
        """Whether the members still fit with a unit back; if so it is."""
        shared = {where[pod.uid] for pod in unit.pods} & placed.keys()
        if any(self._too_much(unit, where, placed[slot], slot) for slot in shared):
            return False
        for pod in unit.pods:
            supposed.add(pod, where[pod.uid])
        if (rule.admits is None or rule.admits()) and all(self._fit(placed[slot], slot, supposed) for slot in sorted(shared)):
            return True
        for pod in unit.pods:
            supposed.remove(pod.uid)
        return False

    def _too_much(self, unit: Unit, where: Mapping[str, int], members: Sequence[PodInfo], slot: int) -> bool:
        """Whether a unit takes more than the members, which are on the node, leave of what the last of them asks for: told without asking
        all filters. What reservations would give is not known here."""
        if self._state.holdings.on(slot):
            return False
        free = self._state.cluster.free
        wanted = self._cycle.must_fit(members[-1])
        returning = [pod.shape for pod in unit.pods if where[pod.uid] == slot]
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
