"""Making room for a whole job: enough for every member, or nobody is evicted (SCH-JP-01, scheduler-job.md 12). Decides only.

The job is tried on the columns with the victims taken away; then as many of them as possible come back, the most important first. Whom a
disruption budget protects is no victim. What a member is refused for by other means than room (its quota, say) is asked too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from koord.api import names
from roles.scheduler.cluster.hypothesis import Hypothesis
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.cycle import Cycle
from roles.scheduler.framework.context import State
from roles.scheduler.plugins.coscheduling.spec import gang_id
from roles.scheduler.plugins.default_preemption import DefaultPreemption

_ROUNDS = 5  # tries with ever more pods protected by disruption budgets
_SPARE = 100  # nodes looked at beyond one a member before all of them are


@dataclass(slots=True)
class JobPlan:
    """Nodes of the members by UID and the pods that have to go first, or why there is no such plan."""

    nodes: dict[str, str] = field(default_factory=dict)
    victims: tuple[PodInfo, ...] = ()
    refusal: str = ""


def job_key(pod: PodInfo) -> str:
    """The job that a pod belongs to, as far as one can tell."""
    owner = next((owner.uid for owner in pod.pod.metadata.owner_references if owner.uid), "")
    return pod.labels.get(names.LABEL_QUESTIONED_OBJECT_KEY) or gang_id(pod) or owner or pod.key


def preemptible(pod: PodInfo, below: int) -> bool:
    """Whether a pod may be a victim of a job of priority `below`."""
    labels = pod.labels
    return (
        pod.priority < below
        and not pod.reservation
        and labels.get(names.LABEL_POD_DISABLE_PREEMPTIBLE) != "true"
        and labels.get(names.LABEL_PREEMPTIBLE) != "false"
    )


class JobPreemption:
    """Plans for one cluster state. `cycle` is one that nobody decides with; `budgets` knows the PodDisruptionBudgets; `without` names the
    plugin whose own steps around preFilter are left out."""

    def __init__(self, cycle: Cycle, state: State, budgets: DefaultPreemption, without: str) -> None:
        self._cycle = cycle
        self._state = state
        self._budgets = budgets
        self._without = without

    def plan(self, pods: Sequence[PodInfo]) -> JobPlan:
        """Room for all the pods."""
        protected: set[str] = set()
        found = JobPlan()
        for _ in range(_ROUNDS):
            found = self._try(pods, protected)
            if found.refusal:
                return found
            violating, _ = self._budgets.split_by_budget(list(found.victims))
            if not violating:
                return found
            protected.update(pod.uid for pod in violating)
        return JobPlan(refusal=f"the victims would break disruption budgets: {', '.join(sorted(pod.key for pod in found.victims)[:5])}")

    def _try(self, pods: Sequence[PodInfo], protected: set[str]) -> JobPlan:
        with self._state.suppose() as supposed:
            nodes, rest = self.as_is(pods, supposed)
            if not rest:
                return JobPlan(nodes)
            below = min(pod.priority for pod in pods)
            victims = self._candidates(rest, below, protected)
            if not victims:
                return JobPlan(refusal="no pod may be preempted on a node where that could help")
            costs = _costs(victims)
            order = sorted(victims, key=lambda slot: (costs[slot], self._state.cluster.name_of(slot)))
            found = JobPlan(refusal="nothing was tried")
            for count in (len(rest) + _SPARE, len(order)):
                with self._state.suppose() as deeper:
                    found = self._make_room(rest, {slot: victims[slot] for slot in order[:count]}, order, deeper)
                if not found.refusal or count >= len(order):
                    break
            if not found.refusal:
                found.nodes.update(nodes)
            return found

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

    def _candidates(self, pods: Sequence[PodInfo], below: int, protected: set[str]) -> dict[int, list[PodInfo]]:
        """Pods that may have to go, by slot of the nodes where that could help."""
        cluster = self._state.cluster
        open_slots: set[int] = set()
        for pod in {pod.shape.digest: pod for pod in pods}.values():
            survey = self._cycle.survey(pod, without=self._without)
            open_slots.update(survey.failure().resolvable())
        return self.victims_on(sorted(open_slots), below, protected) if cluster.live else {}

    def victims_on(self, slots: Sequence[int], below: int, protected: set[str]) -> dict[int, list[PodInfo]]:
        """Pods of these slots that may go."""
        found: dict[int, list[PodInfo]] = {}
        for slot in slots:
            pods = [p for p in self._state.cluster.row(slot).pods.values() if preemptible(p, below) and p.uid not in protected]
            if pods:
                found[slot] = pods
        return found

    def protected(self, slots: Sequence[int], below: int) -> set[str]:
        """UIDs of pods that no disruption budget allows to go."""
        pods = [pod for others in self.victims_on(slots, below, set()).values() for pod in others]
        return {pod.uid for pod in pods if self._budgets.split_by_budget([pod])[0]}

    def _make_room(self, pods: Sequence[PodInfo], victims: dict[int, list[PodInfo]], order: Sequence[int], supposed: Hypothesis) -> JobPlan:
        """Without the victims every member gets the cheapest node that takes it."""
        cluster = self._state.cluster
        for others in victims.values():
            for pod in others:
                supposed.remove(pod.uid)
        rank = np.full(cluster.capacity, -1, dtype=np.intp)  # nodes where nobody has to go come first
        rank[list(order)] = np.arange(len(order))
        placed: dict[int, list[PodInfo]] = {}
        for pod in pods:
            survey = self._cycle.survey(pod, without=self._without)
            slots = np.flatnonzero(survey.mask)
            if not len(slots):
                return JobPlan(refusal=f"pod {pod.key} finds no node even without the victims: {survey.failure().message()}")
            slot = int(slots[np.argmin(rank[slots])])
            supposed.add(pod, slot)
            placed.setdefault(slot, []).append(pod)
        return self.settle(placed, victims, supposed)

    # ---------------------------------------------------------------- who may stay

    def settle(self, placed: dict[int, list[PodInfo]], victims: dict[int, list[PodInfo]], supposed: Hypothesis) -> JobPlan:
        """Everybody comes back who can: on nodes that were not taken all of them, on the others the important ones first."""
        cluster = self._state.cluster
        for slot, others in victims.items():
            if slot not in placed:
                for pod in others:
                    supposed.add(pod, slot)
        gone: list[PodInfo] = []
        for slot, members in placed.items():
            violating, others = self._budgets.split_by_budget(sorted(victims.get(slot, ()), key=_importance))
            for pod in (*violating, *others):
                if not self._stays(pod, slot, members, supposed):
                    gone.append(pod)
        for slot, members in placed.items():
            if not self._fit(members, slot, supposed):
                return JobPlan(refusal=f"the members do not fit together on node {cluster.name_of(slot)}")
        nodes = {pod.uid: cluster.name_of(slot) for slot, members in placed.items() for pod in members}
        return JobPlan(nodes, tuple(sorted(gone, key=_importance)))

    def _stays(self, victim: PodInfo, slot: int, members: Sequence[PodInfo], supposed: Hypothesis) -> bool:
        """Whether the members of a node still fit with a victim back; if so it is."""
        supposed.add(victim, slot)
        if self._fit(members, slot, supposed):
            return True
        supposed.remove(victim.uid)
        return False

    def _fit(self, members: Sequence[PodInfo], slot: int, supposed: Hypothesis) -> bool:
        """Whether the members, which are on the node, fit there one after another."""
        for pod in members:
            supposed.remove(pod.uid)
        fits = True
        for pod in members:
            fits = fits and bool(self._cycle.survey(pod, without=self._without).mask[slot])
            supposed.add(pod, slot)
        return fits


def _costs(victims: dict[int, list[PodInfo]]) -> dict[int, int]:
    """What taking a node costs: for each job with pods there, the place of its highest priority among all victims' priorities."""
    priorities = sorted({pod.priority for pods in victims.values() for pod in pods})
    rank = {priority: number for number, priority in enumerate(priorities)}
    result: dict[int, int] = {}
    for slot, pods in victims.items():
        jobs: dict[str, int] = {}
        for pod in pods:
            key = job_key(pod)
            jobs[key] = max(jobs.get(key, 0), rank[pod.priority])
        result[slot] = sum(jobs.values())
    return result


def _importance(pod: PodInfo) -> tuple[int, str, str]:
    """Sorts who may come back first: higher priority, then by job and name."""
    return (-pod.priority, job_key(pod), pod.name)
