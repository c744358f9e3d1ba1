"""One job after the other: look, decide, act, until it rests (DS-MC-03, 04). Wakes by events; only the end of a job's time is a timer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from koord import seams
from koord.api import names
from koord.api.objects import Pod, PodMigrationJob, Reservation
from koord.kube import errors
from koord.kube.informers import Informer
from koord.kube.workqueue import WorkQueue
from roles.descheduler.cluster import ClusterState
from roles.descheduler.migration import limits, machine, status, template
from roles.descheduler.migration.acting import Acting, Again
from roles.descheduler.migration.jobs import Jobs
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.outcomes import Outcomes
from roles.descheduler.migration.policy import Policy
from roles.descheduler.migration.pools import Pools
from roles.descheduler.migration.reporting import Reporting
from roles.descheduler.migration.step import Hold, Step, View
from roles.descheduler.migration.targets import Targets
from roles.descheduler.migration.together import Moves
from roles.descheduler.migration.turns import Turns
from roles.descheduler.migration.words import Kind
from roles.descheduler.migration.writing import NotLeading, Writing

log = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0  # seconds between tries of a job that meets errors
STEPS = 24  # more in one go are a defect: no job has so many


@dataclass(eq=False)
class Reconciler:
    """Works on the queue of job names."""

    _jobs: Jobs
    _ledger: Ledger
    _cluster: ClusterState
    _reservations: Informer[Reservation]
    _pools: Pools
    _writing: Writing
    _acting: Acting
    _targets: Targets
    _moves: Moves
    _turns: Turns
    _reporting: Reporting
    _outcomes: Outcomes
    _policy_of: Callable[[PodMigrationJob], Policy]
    _clock: Callable[[], float]
    queue: WorkQueue = field(default_factory=lambda: WorkQueue("migration", longest=LONGEST_PAUSE))

    async def work(self) -> None:
        """One worker, for as long as this process leads."""
        while True:
            name = await self.queue.get()
            pause: float | None
            try:
                async with self._turns.turn():
                    pause = await self.reconcile(name)
            except NotLeading:
                self.queue.done(name)
                return
            except Again as again:
                pause = again.seconds
                if pause is None:
                    log.info("PodMigrationJob %s: %s; again in %.3f s", name, again, self.queue.failed(name))
                    continue
            except errors.Conflict:
                await self._reread(name)
                pause = 0.0
            except Exception as error:  # one bad object must not stop the others
                delay = self.queue.failed(name)
                if isinstance(error, errors.ApiError):
                    log.warning("PodMigrationJob %s: %s; again in %.3f s", name, error, delay)
                else:
                    log.exception("PodMigrationJob %s failed; again in %.3f s", name, delay)
                continue
            self.queue.done(name)
            if pause is not None:
                self.queue.add_after(name, max(pause, 0.001))

    async def _reread(self, name: str) -> None:
        try:
            await self._writing.reread(name)
        except errors.ApiError as error:
            log.warning("PodMigrationJob %s cannot be read: %s", name, error)
            await seams.sleep(0.1)

    async def reconcile(self, name: str) -> float | None:
        """Take a job as far as it gets. Seconds after which to look again without an event, None for never."""
        for _ in range(STEPS):
            job = self._jobs.get(name)
            if job is None:
                return None
            job = await self._outcomes.write(job, self._clock())
            policy = self._policy_of(job)
            job = await self._keep_time(job)
            view = await self._look(job, policy)
            step = machine.decide(view)
            if step.status is None:  # what is written is told when it has been
                self._reporting.step(job, step, policy.events, view.now)
            if step.rests:
                return _next_look(view, step)
            self._writing.check()
            try:
                await self._acting.carry_out(view, step, policy)
            except Again as again:
                if again.seconds is not None:  # an answer may ask for a longer pause than the job has time
                    again.seconds = _no_later(again.seconds, view)
                raise
            except errors.NotFound:
                if await self._writing.reread(name) is None:
                    return None
                raise
            if status.finished(job):
                return None  # the going of what was released is an event
        raise RuntimeError(f"the job does not come to rest within {STEPS} steps")

    async def _keep_time(self, job: PodMigrationJob) -> PodMigrationJob:
        """A paused job does not age: note when a pause is seen to begin, and how long it was when it is over."""
        since = status.paused_since(job)
        if status.finished(job) or job.spec.paused == (since is not None):
            return job
        now, total = self._clock(), status.paused_for(job)
        note = status.paused_note(total, now) if since is None else status.paused_note(total + max(0.0, now - since))
        return await self._writing.job(job, {"metadata": {"annotations": {names.ANNOTATION_MIGRATION_PAUSED: note}}})

    # ---------------------------------------------------------------- looking

    async def _look(self, job: PodMigrationJob, policy: Policy) -> View:
        reservation = await self._reservation(job)
        pod = await self._pod(job)
        unit = self._moves.unit(job)
        hold: Hold | None = None
        if pod is not None and status.running(job) and not limits.dead(pod):
            hold = policy.hold(pod, self._ledger, self._clock(), alone=unit is None)
        node = reservation.status.node_name if reservation is not None else ""
        stays = pod is not None and status.running(job) and not status.eviction_begun(job)
        placeless = stays and status.reservation_ref(job) is None
        spread = await self._targets.spread(job, pod) if pod is not None and stays and (node or placeless) else ()
        return View(
            job=job,
            now=self._clock(),
            pod=pod,
            reservation=reservation,
            bound=await self._bound(job, reservation),
            target_gone=bool(node) and node not in self._cluster.nodes,
            hold=hold,
            default_mode=policy.args.default_job_mode,
            pairing=self._pools.pairing(job, reservation),
            unfit=self._targets.unfit(job, pod, node, spread) if pod is not None and stays and node else "",
            targets=self._targets.acceptable(job, pod, spread) if pod is not None and placeless else None,
            spread=spread,
            unit=unit,
        )

    async def _reservation(self, job: PodMigrationJob) -> Reservation | None:
        ref = status.reservation_ref(job)
        if ref is None and not status.finished(job):
            return None
        name = template.mine(job)
        found = self._reservations.get(name)
        if found is not None and ref is not None and ref.uid and found.metadata.uid != ref.uid:
            found = None
        if found is None and ref is not None:
            found = await self._writing.reservation(name)
            if found is not None and ref.uid and found.metadata.uid != ref.uid:
                return None  # another one of the same name: not what was promised
        if found is None or status.holds(job, Kind.EVICTION):
            return found
        return self._pools.shown(found)  # a place is lost as soon as a pod is bound to it

    async def _pod(self, job: PodMigrationJob) -> Pod | None:
        """The pod, from the cache; that it is missing or another one is believed only to the API server."""
        key, uid = status.pod_key(job), status.pod_uid(job)
        pod = self._cluster.pods.get(key)
        settled = status.finished(job) or status.holds(job, Kind.EVICTION) or not status.passed(job)
        if settled or (pod is not None and (not uid or pod.metadata.uid == uid)):
            return pod
        return await self._writing.pod(key)

    async def _bound(self, job: PodMigrationJob, reservation: Reservation | None) -> Pod | None:
        """The pod that uses the reservation; None if nobody does or if it has vanished."""
        if reservation is None or not reservation.status.current_owners or not status.holds(job, Kind.RESERVATION_BOUND):
            return None
        owner = reservation.status.current_owners[0]
        key = f"{owner.namespace}/{owner.name}"
        pod = self._cluster.pods.get(key)
        if pod is None or (owner.uid and pod.metadata.uid != owner.uid):
            pod = await self._writing.pod(key)
        return pod if pod is not None and (not owner.uid or pod.metadata.uid == owner.uid) else None


def _next_look(view: View, step: Step) -> float | None:
    """When a job that rests is to be looked at again though nothing happens."""
    if status.finished(view.job):
        return step.wait
    if view.job.spec.paused:
        return None
    return _no_later(step.wait, view)


def _no_later(seconds: float | None, view: View) -> float | None:
    """The pause, but no longer than until the job has had its time; None for never."""
    end = status.deadline(view.job, view.pod if not view.replaced else None)
    left = end - view.now if end is not None else None
    waits = [each for each in (seconds, left) if each is not None]
    return max(0.01, min(waits)) if waits else None
