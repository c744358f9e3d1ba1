"""Room for resizes that wait for it: pods of lower priority leave the node of a pod whose kubelet has deferred its growth (SCH-RSZ-04).

Only with the gate InPlacePodVerticalScalingSchedulerPreemption, which kube-scheduler has since 1.37. Who goes is decided without I/O; the
eviction machine carries it out, as for pods that have no node yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from koord import seams
from koord.api import names
from koord.decisions.record import Record, Term
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.record import ROLE, subject_of
from roles.scheduler.framework.context import State
from roles.scheduler.framework.framework import Framework
from roles.scheduler.framework.gangs import VictimGroup, VictimGroups
from roles.scheduler.plugins.coscheduling.preemption import preemptible
from roles.scheduler.plugins.default_preemption import DefaultPreemption
from roles.scheduler.plugins.preemption_cost import importance

GATE = "InPlacePodVerticalScalingSchedulerPreemption"
PLUGIN = "DefaultPreemption"
_PERIOD = 1.0  # seconds between two looks at the resizes that wait
_FEATURES = ("SCH-RSZ-04",)


def lacking(state: State, slot: int, pod: PodInfo) -> dict[int, float]:
    """By resource id, how much of what a pod wants to grow by is missing on its node, once those that are leaving are gone. Others of
    lower or the same priority that want to grow, too, come after it: what they ask for is not held against it."""
    cluster = state.cluster
    resources = cluster.vocabulary.resources
    others = [other for other in cluster.row(slot).pods.values() if other.uid != pod.uid]
    missing: dict[int, float] = {}
    for name in pod.growth or ():
        resource = resources.intern(name)
        cluster.ensure(resource)
        free = cluster.free[resource].item(slot)
        for other in others:
            if state.leaving(other):
                free += other.shape.amounts.get(name, 0)
            elif other.growth and other.priority <= pod.priority:
                free += other.growth.get(name, 0)
        if free < 0:
            missing[resource] = -free
    return missing


def victims(state: State, slot: int, pod: PodInfo, missing: Mapping[int, float], budgets: DefaultPreemption) -> list[PodInfo]:
    """Who has to leave the node so that nothing is missing, the most important first; () when that helps nobody.

    Pods of lower priority that hold some of what is missing, the least important first; of those the important ones stay where they can.
    Whose leaving breaks a disruption budget goes last, and jobs go by their own rules (`framework/gangs.py`).
    """
    victim_groups = VictimGroups(state.gangs, lambda other: preemptible(other, pod.priority), importance, state.leaving)
    row = state.cluster.row(slot).pods
    names_of = state.cluster.vocabulary.resources

    def gives(group: VictimGroup) -> dict[int, float]:
        found = dict.fromkeys(missing, 0.0)
        for member in group.pods:
            for resource, amount in member.shape.requests if member.uid in row else ():
                if resource in found:
                    growth = (member.growth or {}).get(names_of[resource], 0)
                    found[resource] += amount - growth  # what it asks for beyond what it holds was not held against the pod
        return found

    candidates = victim_groups.groups(
        other
        for other in row.values()
        if victim_groups.may_go(other) and not state.leaving(other) and not state.evictions.overdue(other.uid)
    )
    order, _ = budgets.budgets.ordered(candidates)
    left = dict(missing)
    taken: list[VictimGroup] = []
    for group in reversed(order):
        given = gives(group)
        if any(left[resource] > 0 < amount for resource, amount in given.items()):
            taken.append(group)
            left = {resource: amount - given[resource] for resource, amount in left.items()}
        if all(amount <= 0 for amount in left.values()):
            break
    if any(amount > 0 for amount in left.values()):
        return []
    gone: dict[VictimGroup, None] = {}
    for group in reversed(taken):
        given = gives(group)
        if group.minimum not in gone and all(left[resource] + amount <= 0 for resource, amount in given.items()):
            left = {resource: left[resource] + amount for resource, amount in given.items()}
        else:
            gone[group] = None
    return sorted((member for group in gone for member in group.pods), key=importance)


class Resizes:
    """Follows the pods whose resizes wait, and has room made for them. `evict` is told of a pod, its victims and its node, `looks` before
    each look."""

    def __init__(
        self,
        state: State,
        frameworks: Mapping[str, Framework],
        *,
        evict: Callable[[PodInfo, Sequence[PodInfo], str], None],
        record: Callable[[Record], None],
        may_act: Callable[[], bool],
        looks: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._frameworks = frameworks
        self._evict = evict
        self._record = record
        self._may_act = may_act
        self._looks = looks
        self._waiting: dict[str, PodInfo] = {}
        self._told: dict[str, str] = {}

    def pod_seen(self, pod: PodInfo) -> None:
        """A pod appeared or changed."""
        if pod.growth and pod.node_name and not pod.deleting:
            self._waiting[pod.uid] = pod
        else:
            self.pod_gone(pod.uid)

    def pod_gone(self, uid: str) -> None:
        """It is gone, or waits for no room."""
        self._waiting.pop(uid, None)
        self._told.pop(uid, None)

    async def run(self) -> None:
        """Look at what waits, until cancelled."""
        while True:
            await seams.sleep(_PERIOD)
            if self._waiting and self._may_act():
                self._looks()
                self.look()

    def look(self) -> None:
        """Make room for everybody who can have it, the most important first."""
        for pod in sorted(self._waiting.values(), key=importance):
            self._look_at(pod)

    def _look_at(self, pod: PodInfo) -> None:
        framework = self._frameworks.get(pod.shape.scheduler_name)
        budgets = framework.plugins.get(PLUGIN) if framework is not None else None
        if not isinstance(budgets, DefaultPreemption) or pod.shape.preemption_policy == names.PREEMPTION_POLICY_NEVER:
            return
        state = self._state
        slot = state.cluster.slot_of_pod(pod.uid)
        if slot < 0 or not state.cluster.alive[slot] or state.evictions.awaited(pod.uid):
            return
        missing = lacking(state, slot, pod)
        if not missing:
            return
        chosen = victims(state, slot, pod, missing, budgets)
        node = state.cluster.name_of(slot)
        if chosen:
            self._tell(pod, missing, "Preempting", f"{len(chosen)} pods leave {node} so that its resize can go on", chosen)
            self._evict(pod, chosen, node)
        else:
            text = f"its resize waits for room on {node}, and no pods of lower priority could make it"
            self._tell(pod, missing, "ResizeWaits", text, ())

    def _tell(self, pod: PodInfo, missing: Mapping[int, float], verdict: str, text: str, chosen: Iterable[PodInfo]) -> None:
        """A record, where it does not say what the last one said."""
        resources = self._state.cluster.vocabulary.resources
        terms = [Term(f"missing {resources[resource]}", amount, unit="base units") for resource, amount in sorted(missing.items())]
        terms += [Term("victim", other.key) for other in chosen]
        told = f"{verdict} {text} {terms}"
        if self._told.get(pod.uid) != told:
            self._told[pod.uid] = told
            self._record(Record(ROLE, subject_of(pod), self._state.now, verdict, PLUGIN, text, {}, tuple(terms), _FEATURES))
