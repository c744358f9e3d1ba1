"""The arguments of one profile at work: which pods it lets go, its limiters, its pace, its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from koord.api import names
from koord.api.objects import Pod, PodMigrationJob
from koord.kube.events import EventRecorder
from koord.kube.ratelimit import TokenBucket
from roles.descheduler.cluster import ClusterState
from roles.descheduler.evictability import evictability, forced
from roles.descheduler.migration import limits
from roles.descheduler.migration.args import EVICTORS, MigrationControllerArgs
from roles.descheduler.migration.backoff import Backoff
from roles.descheduler.migration.budgets import Budgets
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.limits import Migrating, Refusal
from roles.descheduler.migration.objectlimiter import ObjectLimiters
from roles.descheduler.migration.step import Hold
from roles.descheduler.migration.words import Mode
from roles.descheduler.workloads import WorkloadError

UNKNOWN_WORKLOAD = "WorkloadUnknown"  # no gate: what is not known is not evicted
BUDGET, BACK_OFF, GANG = "DisruptionBudget", "BackOff", "Gang"  # no gates either
EVICTION = EVICTORS[0]
LOOK = 1.0  # seconds until a job looks again whether its pod may leave, or the caches are young enough


class Policy:
    """What holds for the jobs of a profile. A job that no profile made follows the first profile."""

    def __init__(
        self,
        profile: str,
        args: MigrationControllerArgs,
        cluster: ClusterState,
        events: EventRecorder,
        budgets: Budgets,
        backoff: Backoff,
        clock: Callable[[], float],
    ) -> None:
        self._budgets = budgets
        self._gangs = cluster.gangs
        self._backoff = backoff
        self._clock = clock
        self.profile = profile
        self.args = args.effective()
        self.events = events
        self.limiters = ObjectLimiters(self.args)
        self.pace = TokenBucket(self.args.evictions_a_second, self.args.evict_burst)
        self._evictable: Callable[[Pod], str] = evictability(self.args, cluster.priority_of)

    def unit(self, pod: Pod, migrating: Migrating) -> list[Pod]:
        """The gang of the pod, when it may only leave as a whole and may do that; else nobody."""
        if not self.args.migrate_whole_gangs or self.mode(pod) != Mode.RESERVATION_FIRST or not self._gangs.refuse(pod, migrating.takes):
            return []
        members = self._gangs.whole(pod)
        return [] if forced(pod) or any(migrating.has(each) for each in members) else members

    def forbidden(self, pod: Pod, ledger: Ledger, *, together: int = 1) -> Refusal | None:
        """Why the pod may not migrate at all (what it is, and how many replicas are expected); time does not change that. `together`: so
        many go as one gang, of which no number of replicas need stay, but which must come back."""
        if forced(pod):
            return None
        if why := self._evictable(pod):
            return Refusal("Evictable", why, 0, 0)
        if limits.dead(pod) or not limits.asks_about_workloads(self.args):
            return None
        try:
            owner = ledger.owner(pod)
        except WorkloadError:
            return None  # not known now: `reached` makes it wait, and a gang is asked about again before it leaves
        return limits.unreplaced(self.args, owner) if together > 1 else limits.expected_replicas(self.args, owner)

    def reached(self, pod: Pod, ledger: Ledger, migrating: Migrating, *, asked: bool = True, together: int = 1) -> Refusal | None:
        """Which limit does not let the pod migrate now. `asked` False: a workload that was not asked about yet stands in nobody's way.
        `together`: so many go as one gang, to which the limits of a workload do not apply."""
        if forced(pod) or limits.dead(pod):
            return None
        if together > 1:
            return limits.reached(self.args, migrating, pod, None, together=together)
        try:
            owner = ledger.owner(pod) if limits.asks_about_workloads(self.args) else None
            if (found := limits.reached(self.args, migrating, pod, owner)) is not None:
                return found
        except WorkloadError as error:
            return None if error.unasked and not asked else Refusal(UNKNOWN_WORKLOAD, str(error), 0, 0)
        why = self._gangs.refuse(pod, migrating.takes)
        whole = "" if self.args.migrate_whole_gangs else "; migrateWholeGangs, by which it could move as one, is off"
        return Refusal(GANG, why + whole, 0, 0) if why else None

    def hold(self, pod: Pod, ledger: Ledger, now: float, *, alone: bool) -> Hold | None:
        """What the eviction of a pod waits for that arbitration has let through: object limiters, and, for one that leaves alone, others
        of its workload or gang that have become unavailable since."""
        owner = pod.metadata.controller
        held = self.limiters.hold(owner.uid if owner is not None else "", pod.metadata.namespace, now)
        if held is not None or not alone or forced(pod) or not limits.available(pod):
            return held
        if (refused := self._short(pod, ledger)) is not None:
            return Hold(refused.message, LOOK, refused.gate)
        return None

    def _short(self, pod: Pod, ledger: Ledger) -> Refusal | None:
        """Why the pod's workload or gang cannot do without it now. Of what migrates only what has begun to leave counts."""
        try:
            owner = ledger.owner(pod) if limits.asks_about_workloads(self.args) else None
        except WorkloadError:
            owner = None  # right before the pod leaves it is asked for
        if owner is not None and (found := limits.too_many_unavailable(self.args, owner, ledger.others_leaving(pod))) is not None:
            return found
        why = self._gangs.refuse(pod, ledger.is_leaving)
        return Refusal(GANG, why, 0, 0) if why else None

    def needs_successor(self, pod: Pod) -> bool:
        """Whether the pod may only leave if a controller replaces it."""
        return not forced(pod) and not limits.dead(pod) and limits.asks_for_successors(self.args)

    def refuse(self, pod: Pod, ledger: Ledger) -> Refusal | None:
        """Why no job may be made for the pod (DS-ARB-02). Workloads are asked about only for pods that a plugin wants to leave."""
        migrating = ledger.unfinished()
        if migrating.has(pod):
            return Refusal("Migrating", "a PodMigrationJob for it has not ended yet", 1, 1)
        if self.mode(pod) == Mode.RESERVATION_FIRST and pod.spec.scheduler_name not in self.args.scheduler_names:
            schedulers = ", ".join(self.args.scheduler_names)
            return Refusal(
                "SchedulerName", f"its scheduler {pod.spec.scheduler_name!r} makes no reservations; accepted: {schedulers}", 0, 0
            )
        unit = self.unit(pod, migrating)
        count = max(len(unit), 1)
        refused = self.forbidden(pod, ledger, together=count) or self.reached(pod, ledger, migrating, asked=False, together=count)
        return refused or next(self._in_vain(pod, ledger, unit), None)

    def reasons(self, pod: Pod, ledger: Ledger) -> list[str]:
        """Everything that keeps the pod, what `refuse` tells in front."""
        first = self.refuse(pod, ledger)
        if first is None:
            return []
        others = (self.forbidden(pod, ledger), self.reached(pod, ledger, ledger.unfinished(), asked=False), *self._in_vain(pod, ledger))
        return list(dict.fromkeys([first.message, *(each.message for each in others if each is not None)]))

    def mode(self, pod: Pod) -> str:
        """How a job that a plugin asks for moves the pod: a place is only reserved where somebody will come into it."""
        return Mode.EVICT_DIRECTLY if limits.leaves_no_place(pod) else self.args.default_job_mode

    def _in_vain(self, pod: Pod, ledger: Ledger, unit: Sequence[Pod] = ()) -> Iterator[Refusal]:
        """Why a job would probably be refused, or fail as the last one did."""
        if forced(pod):
            return
        if self.evictor(pod) == EVICTION and (why := self._budgets.refuse(pod, lambda: [*ledger.going(pod.metadata.namespace), *unit])):
            yield Refusal(BUDGET, why, 0, 0)
        if why := self._backoff.refuse(ledger.keys(pod), self._clock()):
            yield Refusal(BACK_OFF, why, 0, 0)

    def evictor(self, pod: Pod, job: PodMigrationJob | None = None) -> str:
        """By which way the pod leaves: the pod's label, the job's, the arguments'; a word that is none of them is not looked at."""
        for labels in (pod.metadata.labels, job.metadata.labels if job is not None else {}):
            found = labels.get(names.LABEL_EVICT_POLICY)
            if found is not None:
                return found if found in EVICTORS else self.args.eviction_policy
        return self.args.eviction_policy
