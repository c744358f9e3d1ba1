"""Gang groups as preemption has to see them: whom it breaks up, and who needs room at once (SCH-JP-01)."""

from __future__ import annotations

from collections.abc import Sequence

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import FitFailure
from roles.scheduler.framework.context import CycleContext, State
from roles.scheduler.framework.gangs import GangGroup, Part, Rule
from roles.scheduler.framework.status import PostFilterResult
from roles.scheduler.framework.steps import Steps
from roles.scheduler.plugins.coscheduling.cache import GangCache
from roles.scheduler.plugins.coscheduling.jobs import Jobs
from roles.scheduler.plugins.coscheduling.spec import Whole


class CachedGangs:
    """What the cache says of pods on nodes, and of those that wait to be placed together."""

    def __init__(self, state: State, cache: GangCache, jobs: Jobs) -> None:
        self._state = state
        self._cache = cache
        self._jobs = jobs

    def of(self, pod: PodInfo) -> str:
        """The gang group of a pod."""
        gang = self._cache.gang_of(pod)
        return gang.group.id if gang is not None and gang.spec is not None and gang.spec.whole is not Whole.NEVER else ""

    def group(self, job: str) -> GangGroup:
        """The gangs of a group with their pods on nodes."""
        parts: list[Part] = []
        for gang in self._cache.gangs_of_group(job):
            placed = (
                pod for pod in gang.children.values() if not self._state.leaving(pod) and self._state.cluster.slot_of_pod(pod.uid) >= 0
            )
            pods, spec = tuple(placed), gang.spec
            minimum = 0 if spec is None else len(pods) if spec.whole is Whole.ALWAYS else spec.min_number
            parts.append(Part(gang.id, pods, minimum))
        return GangGroup(job, tuple(parts))

    def pending_members(self, pod: PodInfo) -> Sequence[PodInfo]:
        """Pending members of the pod's group, unless its pods are scheduled each by itself."""
        gang = self._cache.gang_of(pod)
        if gang is None or gang.spec is None or self._cache.satisfied(gang):
            return ()
        return self._jobs.pending(gang)

    def make_room(self, ctx: CycleContext, failure: FitFailure, rule: Rule) -> Steps[PostFilterResult]:
        """Room for the whole group on another plugin's terms."""
        return self._jobs.on_terms_of(ctx, failure, rule)
