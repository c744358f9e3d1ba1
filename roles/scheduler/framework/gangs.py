"""Jobs as preemption has to see them: pods that are of use only together (SCH-JP-01, SCH-KS-12, SCH-EQ-08, SCH-EQ-09).

A gang below its minimum is of no use to anybody. So of a running job either pods above the minimum go, or all of it; and for a pod that is
placed together with others room is made for all of them, or for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.steps import Steps, at_once, sorted_in_steps

_MANY = 100  # pods a step


class Part(NamedTuple):
    """A gang of a job: its pods that are on nodes and not on their way out, and how many it needs at least."""

    name: str
    pods: tuple[PodInfo, ...]
    minimum: int

    @property
    def spare(self) -> int:
        """How many of them may go while the others stay of use."""
        return max(0, len(self.pods) - self.minimum)


class GangGroup(NamedTuple):
    """A job: gangs that came about together and go together."""

    name: str
    parts: tuple[Part, ...]


class Rule(NamedTuple):
    """On which terms room is made. `may_go` says who may be a victim; `slots` are the nodes whose pods may help wherever the members go
    (None: those where filters say that it helps); `admits` asks, in the what-if, what no node decides (None: nothing); `plugin` is on whose
    account."""

    plugin: str
    may_go: Callable[[PodInfo], bool]
    slots: tuple[int, ...] | None = None
    admits: Callable[[], bool] | None = None


class Gangs(Protocol):
    """Who knows the jobs."""

    def of(self, pod: PodInfo) -> str:
        """The job of a pod, "" for a pod by itself."""

    def group(self, job: str) -> GangGroup:
        """A job as it is on the nodes now."""

    def pending_members(self, pod: PodInfo) -> Sequence[PodInfo]:
        """The pending pods that a pending pod has to be placed together with, itself among them; () for one by itself."""


class NoGangs:
    """A scheduler without gangs."""

    def of(self, pod: PodInfo) -> str:
        """Every pod is by itself."""
        return ""

    def group(self, job: str) -> GangGroup:
        """There is none."""
        return GangGroup(job, ())

    def pending_members(self, pod: PodInfo) -> Sequence[PodInfo]:
        """Nobody is placed together."""
        return ()

    def make_room(self, ctx: object, failure: object, rule: Rule) -> Steps[Any]:
        """Never asked, because nobody is placed together."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that go together or stay together. `minimum` is set on a pod above its gang's minimum: when that rest of the job goes, it goes
    too. `job` is "" for a pod by itself."""

    pods: tuple[PodInfo, ...]
    job: str = ""
    minimum: VictimGroup | None = None

    @property
    def whole(self) -> bool:
        """Whether a job comes to its end with this group."""
        return bool(self.job) and self.minimum is None

    @property
    def size(self) -> int:
        """How many pods."""
        return len(self.pods)


@dataclass(slots=True)
class VictimGroups:
    """Turns pods that may go into groups. `importance` sorts pods, the most important first; `leaving` says who goes in any case. Gangs are
    looked up once: use a new one for each decision, and before the what-if takes pods away."""

    gangs: Gangs
    may_go: Callable[[PodInfo], bool]
    importance: Callable[[PodInfo], Any]
    leaving: Callable[[PodInfo], bool] = lambda pod: pod.deleting
    _groups: dict[str, tuple[GangGroup, bool]] = field(default_factory=dict)

    def groups(self, pods: Iterable[PodInfo]) -> list[VictimGroup]:
        """Groups of pods of which each may go, the most important first, what is left of a job before those above its minimum. Pods of a
        job that may not go as a whole and that it cannot spare are left out."""
        if type(self.gangs) is NoGangs:
            return [VictimGroup((pod,)) for pod in sorted(pods, key=lambda pod: (-pod.priority, self.importance(pod)))]
        return at_once(self.groups_in_steps(pods))

    def groups_in_steps(self, pods: Iterable[PodInfo]) -> Steps[list[VictimGroup]]:
        """As `groups`, a step every few pods."""
        alone: list[VictimGroup] = []
        jobs: dict[str, list[PodInfo]] = {}
        for number, pod in enumerate(pods):
            if number % _MANY == _MANY - 1:
                yield
            job = "" if self.leaving(pod) else self.gangs.of(pod)
            if job:
                jobs.setdefault(job, []).append(pod)
            else:
                alone.append(VictimGroup((pod,)))
        if not jobs:
            return (yield from sorted_in_steps(alone, lambda group: (-group.pods[0].priority, self.importance(group.pods[0]))))
        entries = [(self._key(group, group.pods), group) for group in alone]
        for job, members in jobs.items():
            entries.extend(self._of_job(job, members))
            yield
        return [group for _, group in (yield from sorted_in_steps(entries, lambda entry: entry[0]))]

    def _of_job(self, job: str, members: Sequence[PodInfo]) -> list[tuple[Any, VictimGroup]]:
        gang, whole = self._look_up(job)
        mine = {pod.uid: pod for pod in members}
        spares: list[PodInfo] = []
        for part in gang.parts:
            if part.spare:
                here = sorted((mine[pod.uid] for pod in part.pods if pod.uid in mine), key=self.importance)
                spares += here[max(0, len(here) - part.spare) :]
        apart = {pod.uid for pod in spares}
        rest = tuple(sorted((p for part in gang.parts for p in part.pods if p.uid not in apart), key=self.importance)) if whole else ()
        if not rest:
            return [(self._key(group, group.pods), group) for group in (VictimGroup((pod,), job, _STAYS) for pod in spares)]
        minimum = VictimGroup(rest, job)
        entries = [(self._key(minimum, (*rest, *spares)), minimum)]
        for pod in spares:
            group = VictimGroup((pod,), job, minimum)
            entries.append((self._key(group, group.pods), group))
        return entries

    def _look_up(self, job: str) -> tuple[GangGroup, bool]:
        found = self._groups.get(job)
        if found is None:
            gang = self.gangs.group(job)
            found = self._groups[job] = gang, all(self.may_go(pod) for part in gang.parts for pod in part.pods)
        return found

    def _key(self, group: VictimGroup, pods: Sequence[PodInfo]) -> tuple[int, int, bool, Any]:
        """Higher priorities are more important; then larger jobs; then pods by themselves before those that a job can spare."""
        return (-max(pod.priority for pod in pods), -group.size, group.minimum is not None, min(self.importance(pod) for pod in group.pods))


_STAYS = VictimGroup(())  # the rest of a job that must not go


ALONE = "by itself"


def what_goes(victims: Sequence[PodInfo], gangs: Gangs) -> dict[str, str]:
    """By UID, what each victim is: by itself, above its gang's minimum, or part of a job that goes as a whole."""
    gone = {pod.uid for pod in victims}
    jobs: dict[str, str] = {}
    told: dict[str, str] = {}
    for pod in victims:
        job = gangs.of(pod)
        if not job:
            told[pod.uid] = ALONE
            continue
        if job not in jobs:
            parts = gangs.group(job).parts
            ends = all(member.uid in gone for part in parts for member in part.pods)
            jobs[job] = f"the whole of job {job}" if ends else f"above the minimum of job {job}"
        told[pod.uid] = jobs[job]
    return told
