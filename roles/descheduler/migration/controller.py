"""The migration controller of the process: events in, jobs worked on, as long as this process leads (DS-MC-01..06, DS-ARB-01)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Node, Pod, PodDisruptionBudget, PodMigrationJob, Reservation, find_condition
from koord.kube import errors
from koord.kube.leases import Leadership
from koord.kube.workqueue import WorkQueue
from roles.descheduler import background
from roles.descheduler.framework.evicting import Setup
from roles.descheduler.migration import evictors, status, template
from roles.descheduler.migration.acting import Acting
from roles.descheduler.migration.arbiter import Arbiter
from roles.descheduler.migration.args import MigrationControllerArgs
from roles.descheduler.migration.backoff import Backoff
from roles.descheduler.migration.budgets import Budgets
from roles.descheduler.migration.expectations import Expectations
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.outcomes import Outcomes
from roles.descheduler.migration.pairing import allocated
from roles.descheduler.migration.policy import Policy
from roles.descheduler.migration.pools import Pools
from roles.descheduler.migration.reconciler import Reconciler
from roles.descheduler.migration.reporting import MigrationMetrics, Reporting
from roles.descheduler.migration.scavenger import Scavenger
from roles.descheduler.migration.targets import Targets
from roles.descheduler.migration.together import Moves, move_of
from roles.descheduler.migration.turns import Turns
from roles.descheduler.migration.words import Kind, Phase, Reason
from roles.descheduler.migration.writing import NotLeading, Writing
from roles.descheduler.snapshot import is_ready, time_of

log = logging.getLogger(__name__)


class Migrations:
    """One for the whole process: jobs of all profiles share the limits, whoever made them."""

    def __init__(self, setup: Setup) -> None:
        self._client = setup.client
        self._clock = setup.clock
        self._cluster = setup.cluster
        self._workloads = setup.workloads
        self._leadership: Leadership | None = None
        self._leading = False
        self.policies: dict[str, Policy] = {}
        self.jobs = Jobs(setup.informers, setup.clock)
        self.reservations = setup.informers.informer(kinds.RESERVATIONS, Reservation, optional=True)
        self.budgets = Budgets(setup.informers)
        self.backoff = Backoff()
        self._open: set[str] = set()  # uids of jobs that were seen before their end
        self._judged: set[str] = set()  # and of those whose end is remembered
        self.ledger = Ledger(self.jobs, setup.cluster, setup.workloads)
        self.writing = Writing(setup.client, self.jobs, self._held)
        self.reporting = Reporting(setup.recorder, MigrationMetrics(setup.metrics.registry))
        self.pools = Pools(self.jobs, self.reservations, setup.cluster, self.ledger)
        self.expectations = Expectations(self.jobs, self.reservations, self.pools, setup.cluster, setup.clock)
        self.targets = targets = Targets(setup.cluster, self.expectations, self.accepted, setup.clock)
        self._turns = turns = Turns()
        moves = Moves(self.jobs, setup.cluster, setup.clock)
        self._acting = acting = Acting(
            self.writing,
            self.ledger,
            self.reporting,
            setup.metrics,
            self.policies.values,
            targets,
            moves,
            turns,
            setup.successors,
            setup.informers.fresh,
            setup.workloads.lost,
            setup.gates.enabled("DisablePVCReservation"),
            setup.gates.enabled(background.GATE),
        )
        self.outcomes = Outcomes(self.jobs, self.writing)
        self.reconciler = Reconciler(
            self.jobs,
            self.ledger,
            setup.cluster,
            self.reservations,
            self.pools,
            self.writing,
            acting,
            targets,
            moves,
            turns,
            self.reporting,
            self.outcomes,
            self.policy_of,
            setup.clock,
        )
        self.arbiter = Arbiter(
            self.jobs, setup.cluster, setup.workloads, self.ledger, self.writing, self.reporting, self.policy_of, setup.clock
        )
        self.scavenger = Scavenger(self.jobs, self.reservations, self.ledger.its_pod, self.writing, setup.clock)
        self._left: dict[str, str] = {}  # reservations of deleted jobs: name -> uid, "" if the job did not say
        self._releases = WorkQueue("releases", longest=60.0)

    def join(self, profile: str, args: MigrationControllerArgs, setup: Setup) -> Policy:
        """Add a profile's arguments."""
        policy = self.policies[profile] = Policy(profile, args, setup.cluster, setup.events, self.budgets, self.backoff, setup.clock)
        return policy

    def accepted(self, pod: Pod) -> bool:
        """Whether a job has told the pod to leave. The one that came in its place stays, and is counted where it is, and so is one that
        somebody else takes away in background, or was asked softly: nobody can tell when."""
        if (background.wanted(pod) or evictors.asked_softly(pod)) and not pod.metadata.deletion_timestamp:
            return False
        return any(status.accepted(job) and not _came(job, pod) for job in self.ledger.of_pod(pod))

    def _judge(self, job: PodMigrationJob) -> None:
        """Remember how a job ended that a plugin asked for; once, also after a restart."""
        uid = job.metadata.uid
        if not status.finished(job):
            self._open.add(uid)
        if not status.finished(job) or not status.by_a_plugin(job) or uid in self._judged:
            return
        self._judged.add(uid)
        keys = [status.pod_uid(job), self.ledger.migration(job).workload]
        if job.status.phase == Phase.SUCCEEDED:
            self.backoff.succeeded(keys)
        elif job.status.reason not in (Reason.MISSING_POD, Reason.INVALID_POD_REF, Reason.INVALID_SPEC):
            self.backoff.failed(keys, job.status.reason, self._clock() if uid in self._open else status.last_change(job))
        self._open.discard(uid)
        self.backoff.forget(self._clock())

    def policy_of(self, job: PodMigrationJob) -> Policy:
        """Whose arguments a job follows: those of the profile that made it, else of the first one."""
        found = self.policies.get(job.metadata.annotations.get(names.ANNOTATION_MIGRATION_PROFILE, ""))
        return found if found is not None else next(iter(self.policies.values()))

    def _held(self) -> bool:
        return self._leading and (self._leadership is None or self._leadership.held)

    async def wait_synced(self) -> None:
        """Wait for the first lists; until then nothing is decided."""
        for informer in (self.jobs.informer, self.reservations, self.budgets.informer):
            await informer.wait_synced()
        await self._cluster.wait_synced()
        await self._workloads.wait_synced()

    # ---------------------------------------------------------------- life

    async def run(self, leadership: Leadership | None) -> None:
        """Work until cancelled, or until the lease is lost. Raises FatalError if the server offers no evictions."""
        self._leadership = leadership
        await self.wait_synced()
        await self._require_evictions()
        await self._learn_replicas()
        self.replay()
        self._leading = True
        removals = self._listen()
        try:
            await self._work()
        finally:
            self._leading = False
            for remove in removals:
                remove()
            self.reconciler.queue.close()
            self._releases.close()

    async def _require_evictions(self) -> None:
        while True:
            try:
                await evictors.require_evictions(self._client)
                return
            except errors.ApiError as error:
                log.warning("the API server cannot be asked whether it offers evictions: %s", error)
                await seams.sleep(1.0)

    async def _work(self) -> None:
        policies = self.policies.values()
        self._turns.count = max(policy.args.max_concurrent_reconciles for policy in policies)
        interval = max(0.01, min(policy.args.arbitration_args.interval for policy in policies))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._turns.workers):
                group.create_task(self.reconciler.work())
            group.create_task(self.arbiter.run(interval))
            group.create_task(self.scavenger.run())
            group.create_task(self._release_all())

    async def _learn_replicas(self) -> None:
        """Ask how many replicas the workloads want whose pods earlier lives have asked to leave: `replay` counts by that."""
        begun = [job for job in self.jobs.list() if status.eviction_begun(job)]
        owners = [(owner, status.pod_key(job).partition("/")[0]) for job in begun if (owner := status.workload_reference(job)) is not None]
        try:
            await self._workloads.look_up(owners)
        except Exception:  # one bad job must not end the process
            log.exception("the workloads of pods that have left cannot be looked up")

    def replay(self) -> None:
        """Count for the object limiters what earlier lives of this process have evicted, as far as jobs tell of it: a gang that moved as
        one once, pods that had ended or that others had told to leave not at all."""
        told = []
        for job in self.jobs.list():
            condition = status.condition(job, Kind.EVICTION)
            if condition is None or not status.accepted(job) or status.uncounted(job):
                continue
            if (at := time_of(condition.last_transition_time)) is not None:
                told.append((at, job))
        moves: set[str] = set()
        for at, job in sorted(told, key=lambda pair: pair[0]):
            if (move := move_of(job)) is not None:
                if move.uid in moves:
                    continue
                moves.add(move.uid)
            reference, workload = status.workload_reference(job), self.ledger.behind(job)
            namespace = status.pod_key(job).partition("/")[0]
            for policy in self.policies.values():
                replicas = workload.replicas if workload is not None else None
                policy.limiters.take(reference.uid if reference is not None else "", replicas, namespace, at)

    # ---------------------------------------------------------------- events

    def _listen(self) -> list[Callable[[], None]]:
        queue, jobs = self.reconciler.queue, self.jobs

        def job_seen(job: PodMigrationJob) -> None:
            self._judge(job)
            ended = status.finished(job)
            if self._may_hold(job) if ended else not jobs.is_told(job):  # its own refusal is no reason to ask again at once
                queue.add(job.metadata.name)
            if ended and (held := self.reservations.get(template.mine(job))) is not None:
                queue.add_all(self.pools.concerned(held) - {job.metadata.name})

        def job_gone(job: PodMigrationJob) -> None:
            queue.forget(job.metadata.name)
            self.reporting.forget(job)
            self.outcomes.forget(job)
            self._acting.forget(job)
            self._judged.discard(job.metadata.uid)
            self._open.discard(job.metadata.uid)
            self._leave(job)

        def reservation_changed(reservation: Reservation) -> None:
            queue.add_all(self.pools.concerned(reservation))

        def pod_changed(pod: Pod) -> None:
            queue.add_all(jobs.concerned(pod.key))
            if (uid := allocated(pod)) is not None:
                for used in self.reservations.by_index("uid", uid):
                    reservation_changed(used)

        def node_gone(_: object) -> None:
            queue.add_all(job.metadata.name for job in jobs.list() if status.running(job))

        def node_changed(old: Node, node: Node) -> None:
            if (old.spec.unschedulable, old.spec.taints, is_ready(old)) != (node.spec.unschedulable, node.spec.taints, is_ready(node)):
                queue.add_all(
                    name
                    for held in self.reservations.by_index("node", node.metadata.name)
                    for name in jobs.of_reservation(held.metadata.name)
                )

        def budget_changed(budget: PodDisruptionBudget) -> None:
            if budget.status.disruptions_allowed > 0:
                queue.add_all(job.metadata.name for job in jobs.list() if _refused_in(job, budget.metadata.namespace))

        return [
            jobs.informer.add_handler(job_seen, lambda _, job: job_seen(job), job_gone),
            self.reservations.add_handler(
                reservation_changed, lambda _, reservation: reservation_changed(reservation), reservation_changed
            ),
            self._cluster.pods.add_handler(pod_changed, lambda _, pod: pod_changed(pod), pod_changed),
            self._cluster.nodes.add_handler(on_update=node_changed, on_delete=node_gone),
            self.budgets.informer.add_handler(on_update=lambda _, budget: budget_changed(budget)),
        ]

    def _may_hold(self, job: PodMigrationJob) -> bool:
        """Whether a job that has ended may have something to release still."""
        softly = self._cluster.pods.get(status.pod_key(job))
        held = template.mine(job) in self.reservations or bool(self.pools.made_for(job.metadata.uid))
        return held or (softly is not None and evictors.asked_softly(softly))

    # ---------------------------------------------------------------- reservations of deleted jobs

    def _leave(self, job: PodMigrationJob) -> None:
        left = {made.metadata.name: made.metadata.uid for made in self.pools.made_for(job.metadata.uid)}
        left = {name: uid for name, uid in left.items() if not self.jobs.of_reservation(name) - {job.metadata.name}}
        if (ref := status.reservation_ref(job)) is not None:
            left[ref.name] = ref.uid
        self._left |= left
        self._releases.add_all(left)

    async def _release_all(self) -> None:
        while True:
            name = await self._releases.get()
            try:
                await self.writing.delete(kinds.RESERVATIONS, name, self._left.get(name, ""))
            except NotLeading:
                return
            except errors.ApiError as error:
                log.warning("Reservation %s of a deleted job cannot be deleted: %s", name, error)
                self._releases.failed(name)
                continue
            self._left.pop(name, None)
            self._releases.done(name)


def _refused_in(job: PodMigrationJob, namespace: str) -> bool:
    condition = find_condition(job.status.conditions, Kind.EVICTION)
    mine = status.pod_key(job).partition("/")[0] == namespace
    return mine and status.running(job) and condition is not None and condition.reason == Reason.FAILED_EVICT


def _came(job: PodMigrationJob, pod: Pod) -> bool:
    """Whether a pod is the one that came in the place of a job's own."""
    return job.status.pod_ref is not None and job.status.pod_ref.uid == pod.metadata.uid
