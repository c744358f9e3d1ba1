"""Carrying the steps of a migration out: the only place where pods are evicted and reservations are made (DS-MC-03, 04, 08)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from koord.api import kinds, names
from koord.api.objects import Pod, PodMigrationJob, Reservation, convert
from koord.kube import errors
from koord.kube.ratelimit import TokenBucket
from roles.descheduler import background
from roles.descheduler.framework.evicting import Foresees
from roles.descheduler.metrics import Metrics
from roles.descheduler.migration import evictors, leaving, limits, machine, status, template
from roles.descheduler.migration.ledger import Ledger
from roles.descheduler.migration.pairing import made_for
from roles.descheduler.migration.policy import LOOK, Policy
from roles.descheduler.migration.reporting import Reporting
from roles.descheduler.migration.step import Act, Step, View, fail, set_condition
from roles.descheduler.migration.targets import Targets
from roles.descheduler.migration.together import Moves
from roles.descheduler.migration.turns import Turns
from roles.descheduler.migration.words import Kind, Mode, Reason
from roles.descheduler.migration.writing import MANAGER, Writing

log = logging.getLogger(__name__)

ANSWER = 15.0  # seconds that an eviction may wait for its answer


class Again(Exception):
    """The step could not be done now; the job is to be looked at in `seconds`, with growing pauses if None."""

    def __init__(self, seconds: float | None, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class _Token:
    """One eviction's token of the pace; taken once and given back once, whoever asks."""

    def __init__(self, pace: TokenBucket) -> None:
        self._pace, self._taken = pace, False

    def take(self) -> None:
        """Raises Again where there is none."""
        clock = asyncio.get_running_loop().time()
        if not self._taken and not self._pace.take(clock):
            raise Again(self._pace.wait(clock), "more evictions than evictQPS and evictBurst allow")
        self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._pace.give_back()
        self._taken = False


@dataclass(eq=False)
class Acting:
    """What the acts of a step do."""

    _writing: Writing
    _ledger: Ledger
    _reporting: Reporting
    _metrics: Metrics
    _policies: Callable[[], Iterable[Policy]]
    _targets: Targets
    _moves: Moves
    _turns: Turns
    _successors: Foresees | None
    _fresh: Callable[[], tuple[bool, str]]
    _lost: Callable[[Pod], Awaitable[str]]
    _no_claims: bool
    _in_background: bool
    _counted: dict[str, Callable[[], None]] = field(default_factory=dict)  # by job, before the answer is known: what uncounts its eviction

    async def carry_out(self, view: View, step: Step, policy: Policy) -> None:
        """Write the status, then act. Raises Again, ApiError (Conflict: the job has changed), NotLeading."""
        job = view.job
        if step.act is Act.BEGIN:
            job = await self._begin(view)
        if step.status is not None:
            job = await self._write(view, step, policy, job)
        if step.act is Act.GIVE_BACK:
            await self._give_back(view, job)
        elif step.act is Act.RESERVE:
            await self._reserve(view, policy)
        elif step.act is Act.STAMP:
            await self._stamp(view)
        elif step.act is Act.EVICT:
            await self._evict(view, policy)
        elif step.act is Act.RELEASE and view.reservation is not None:
            meta = view.reservation.metadata
            await self._writing.delete(kinds.RESERVATIONS, meta.name, meta.uid)
        elif step.act is Act.TAKE_OVER:
            await self._take_over(view, step)
        elif step.act is Act.RELEASE_SPARE and view.pairing.spare is not None:
            meta = view.pairing.spare.metadata
            await self._writing.delete(kinds.RESERVATIONS, meta.name, meta.uid)
        elif step.act is Act.TAKE_BACK and view.pod is not None:
            self._writing.check()
            await evictors.take_back(self._writing.client, view.pod)

    async def _write(self, view: View, step: Step, policy: Policy, job: PodMigrationJob) -> PodMigrationJob:
        if step.status is None:
            return job
        written = await self._writing.status(job, step.status, told=True)
        self._reporting.step(job, step, policy.events, view.now)
        return written

    async def _begin(self, view: View) -> PodMigrationJob:
        job, pod = view.job, view.pod
        spec: dict[str, Any] = {}
        if pod is not None and status.pod_uid(job) != pod.metadata.uid:
            spec["podRef"] = {"uid": pod.metadata.uid}
        if (
            pod is not None
            and job.spec.mode != Mode.EVICT_DIRECTLY
            and job.spec.reservation_options is None
            and limits.leaves_no_place(pod)
        ):
            spec["mode"] = str(Mode.EVICT_DIRECTLY)
        return await self._writing.job(job, {"spec": spec}) if spec else job

    # ---------------------------------------------------------------- reservations

    async def _reserve(self, view: View, policy: Policy) -> None:
        """Make the reservation, or adopt the one of that name, and name it in the job. Raises Again if the API server refuses."""
        job = view.job
        pod = await self._writing.plain_pod(status.pod_key(job))
        if pod is None or not _meant(job, pod["metadata"].get("uid", "")):
            raise Again(0.05, f"{view.about_pod} is going")  # the cache will say so in a moment
        self._writing.check()
        try:
            asked = template.reservation(job, pod, view.now, without_claims=self._no_claims, nodes=view.targets, spread=view.spread)
            made = await self._create(asked, job)
        except errors.Unreachable:
            raise
        except (errors.ApiError, template.TemplateError) as error:
            step = set_condition(
                view, Kind.RESERVATION_CREATED, "False", Reason.FAILED_CREATE_RESERVATION, str(error),
                event=Reason.FAILED_CREATE_RESERVATION, warning=True,
            )  # fmt: skip
            if step is not None:
                await self._write(view, step, policy, job)
            raise Again(None, f"the reservation cannot be made: {error}") from error
        await self._writing.job(job, {"spec": {"reservationOptions": {"reservationRef": template.reference(made)}}})

    async def _give_back(self, view: View, job: PodMigrationJob) -> None:
        """The job forgets its place first: killed in between, it finds the old one, and gives it back again."""
        if view.reservation is None:
            return
        meta, held = view.reservation.metadata, view.reservation.status
        lost = {held.node_name} if held.phase != "Failed" else set()  # one that expired says nothing about its node
        avoided = ",".join(sorted({*status.avoided(job), *lost}))
        annotations = {names.ANNOTATION_MIGRATION_AVOID: avoided}
        body = {"metadata": {"annotations": annotations}, "spec": {"reservationOptions": {"reservationRef": None}}}
        await self._writing.job(job, body)
        await self._writing.delete(kinds.RESERVATIONS, meta.name, meta.uid)

    async def _create(self, body: dict[str, Any], job: PodMigrationJob) -> dict[str, Any]:
        client, name = self._writing.client, body["metadata"]["name"]
        try:
            return await client.create(kinds.RESERVATIONS, body)
        except errors.AlreadyExists:
            found = await client.get(kinds.RESERVATIONS, name)
        if other := template.foreign(found, job):
            raise errors.AlreadyExists(409, "AlreadyExists", f'Reservation "{name}" belongs to PodMigrationJob "{other}"')
        return found

    async def _stamp(self, view: View) -> None:
        self._writing.check()
        name = view.reservation.metadata.name if view.reservation is not None else ""
        labels = {"labels": {names.LABEL_RESERVATION_ORDER: template.order(view.now)}}
        await self._writing.client.patch(kinds.RESERVATIONS, name, {"metadata": labels}, field_manager=MANAGER)

    async def _take_over(self, view: View, step: Step) -> None:
        """Exchange places with the job that asked for the one that is used. Raises Again.

        That job is told first, on the version that was decided on: if its pod has begun to leave meanwhile, nothing is exchanged.
        """
        taken, own, heir = view.pairing.taken, view.reservation, view.pairing.heir
        if taken is None or own is None:
            return
        try:
            if heir is not None:
                ref = status.reservation_ref(heir)
                if ref is None or ref.name != own.metadata.name:
                    self._reporting.record(await self._name(heir, own), "TakenOver", step.message, view.now)
                await self._hand_on(own, view.job, heir)
            await self._name(view.job, taken)
        except errors.Conflict as error:
            raise Again(0.05, "another job has changed") from error

    async def _name(self, job: PodMigrationJob, reservation: Reservation) -> PodMigrationJob:
        made = {"metadata": {"name": reservation.metadata.name, "uid": reservation.metadata.uid}}
        return await self._writing.job(job, {"spec": {"reservationOptions": {"reservationRef": template.reference(made)}}})

    async def _hand_on(self, reservation: Reservation, giver: PodMigrationJob, heir: PodMigrationJob) -> None:
        """Who answers for a reservation changes. One that was not made for the giver stays what it is."""
        meta = reservation.metadata
        if giver.metadata.uid not in made_for(reservation):
            return
        self._writing.check()
        kept = [msgspec.to_builtins(owner) for owner in meta.owner_references if owner.uid != giver.metadata.uid]
        body = {"metadata": {"resourceVersion": meta.resource_version, "ownerReferences": [*kept, template.owner_reference(heir)]}}
        await self._writing.client.patch(kinds.RESERVATIONS, meta.name, body, field_manager=MANAGER)

    # ---------------------------------------------------------------- evictions

    async def _evict(self, view: View, policy: Policy) -> None:
        """Let the pod leave, at most once: look at it as it is, write the intention, ask, write the answer. Not by old caches: another
        descheduler may have moved it meanwhile. The scheduler takes its time, so it is asked before anything is looked at."""
        token = _Token(policy.pace)
        if self._asks(view):  # which costs more than to wait: it would be asked again at each turn of others
            token.take()
        try:
            turn = await self._turn(view, policy, token)
        except BaseException:
            token.give_back()
            raise
        if turn is None:
            token.give_back()
        else:
            await self._ask(*turn)

    async def _turn(self, view: View, policy: Policy, token: _Token) -> tuple[View, Pod, Policy, Callable[[], None]] | None:
        """The eviction that is to be asked for now, and how it is not counted after all; None for none. Raises Again."""
        unforeseen = await self._foreseen(view)
        pod = await self._writing.pod(status.pod_key(view.job))
        if pod is None or not _meant(view.job, pod.metadata.uid):
            raise Again(0.05, f"{view.about_pod} is gone")  # the cache will say so in a moment
        if pod.metadata.deletion_timestamp or (status.eviction_begun(view.job) and evictors.asked_softly(pod)):
            await self._write(view, leaving.going(view), policy, view.job)
            return None
        self._require_young_caches()
        if why := await self._nobody_replaces(view, pod, policy):
            await self.carry_out(view, fail(view, Reason.FORBIDDEN, f"{view.about_pod} stays: {why}"), policy)
            return None
        held = await self._still_good(view, pod, policy)
        if held is not None and (why := unforeseen or await self._hot_by_now(view, pod, held)):
            await self.carry_out(view, machine.give_back(view, held, why), policy)
            return None
        undo = self._take_turn(view, pod, policy, token)
        try:
            if held is not None:
                await self._keep(view, pod, held, policy)
            job = await self._write(view, leaving.intention(replace(view, pod=pod)), policy, view.job)
        except BaseException:
            undo()
            raise
        return replace(view, job=job, pod=pod, hold=None), pod, policy, undo

    def _require_young_caches(self) -> None:
        """Raises Again."""
        young, old = self._fresh()
        if not young:
            raise Again(LOOK, old)

    async def _nobody_replaces(self, view: View, pod: Pod, policy: Policy) -> str:
        """Why the pod's controller would make no other one, "" where it would, or where that is no matter: the workload may have been
        made anew since arbitration, or before it, if its watch was late. The first of a gang that moves as one asks for all of it."""
        if status.eviction_begun(view.job) or (view.unit is not None and view.unit.begun):
            return ""
        others = (each for _, each in self._moves.others(view.job))
        needed = [each for each in (pod, *others) if policy.needs_successor(each)]
        controllers = {owner.uid: each for each in needed if (owner := each.metadata.controller) is not None}
        for each in controllers.values():
            if why := limits.nobody_replaces(await self._lost(each)):
                return why
        return ""

    def _asks(self, view: View) -> bool:
        """Whether the scheduler is asked before the pod of the job leaves."""
        job, pod = view.job, view.pod
        begun = status.eviction_begun(job) or (view.unit is not None and view.unit.begun)
        goes = pod is None or bool(pod.metadata.deletion_timestamp)
        return self._successors is not None and not begun and not goes and status.reservation_ref(job) is not None

    async def _foreseen(self, view: View) -> str:
        """Why the scheduler, asked with its whole profile, would not let the pod's successor come into the place; a turn for others
        meanwhile. For a gang that moves as one it is asked once, about all of it. Raises Again."""
        job, pod = view.job, view.pod
        if self._successors is None or pod is None or not self._asks(view):
            return ""
        self._require_young_caches()
        moving = [(job, pod), *self._moves.others(job)]
        held = [await self._place(each) for each, _ in moving]
        async with self._turns.away():
            return await self._successors.refuse([each for _, each in moving], held)

    async def _still_good(self, view: View, pod: Pod, policy: Policy) -> Reservation | None:
        """Look at the place and its node as they are, for the first of a gang that moves as one at those of all members; the place where
        the eviction has not begun yet. Raises Again."""
        if status.reservation_ref(view.job) is None:
            return None
        found = await self._place(view.job)
        begun = status.eviction_begun(view.job)
        if why := await self._unfit(view.job, pod, found):
            if begun:  # without an answer, and the pod is there: it is meant no more
                await self._write(view, leaving.refused(view, why), policy, view.job)
            raise Again(0.2, why)
        if begun:
            return None
        await self._others_still_good(view.job)
        return found

    async def _others_still_good(self, job: PodMigrationJob) -> None:
        """The same for the other members of a gang none of which has been told to leave. Raises Again: their jobs will see to it."""
        unit = self._moves.unit(job)
        if unit is None or unit.begun:
            return
        others = self._moves.others(job)
        why = unit.lost or unit.waits() or ("" if len(others) + 1 == unit.count else f"a member of gang {unit.gang} has gone")
        for each, pod in others:
            why = why or await self._unfit(each, pod, await self._place(each))
        if why:
            raise Again(LOOK, why)

    async def _place(self, job: PodMigrationJob) -> Reservation:
        """The place of a job as it is. Raises Again for one that is not free."""
        ref = status.reservation_ref(job)
        return _free(job, await self._writing.reservation(ref.name) if ref is not None else None)

    async def _unfit(self, job: PodMigrationJob, pod: Pod, place: Reservation) -> str:
        """Why the pod must not go to the node of its place, which is looked at as it is; "" when it may."""
        name = place.status.node_name
        node = await self._writing.node(name)
        spread = await self._targets.spread(job, pod)
        return self._targets.unfit(job, pod, name, spread, node) if node is not None else f'node "{name}" does not exist'

    async def _hot_by_now(self, view: View, pod: Pod, held: Reservation) -> str:
        """Why the pod must not go to its target by what that has reported last: a watch may say nothing for long."""
        relief = status.relief(view.job)
        if relief is None or not relief.for_load:
            return ""
        name = held.status.node_name
        return self._targets.unfit(view.job, pod, name, metric=await self._writing.report(name))

    async def _keep(self, view: View, pod: Pod, held: Reservation, policy: Policy) -> None:
        """Hold a place for longer that would expire before the pod has left and another one has come. Raises Again.

        Only when it is the pod's turn: each such write is an event for the job, which would look, and write, without a pause.
        """
        seconds = status.grace(pod, view.job.spec.delete_options or policy.args.delete_options) + status.MARGIN + ANSWER
        seconds += background.PATIENCE if self._in_background and background.wanted(pod) else 0.0
        if ttl := template.longer(held, view.now, seconds):
            self._writing.check()
            name, body = held.metadata.name, {"spec": {"ttl": ttl}}
            _free(view.job, convert(await self._writing.client.patch(kinds.RESERVATIONS, name, body, field_manager=MANAGER), Reservation))

    def _take_turn(self, view: View, pod: Pod, policy: Policy, token: _Token) -> Callable[[], None]:
        """Count the eviction at the pace and the object limiters, at once, so that no two pass on one token. Raises Again."""
        owner = pod.metadata.controller
        workload, namespace = owner.uid if owner is not None else "", pod.metadata.namespace
        exempt = names.ANNOTATION_DESCHEDULER_EVICT in view.job.metadata.annotations or status.eviction_begun(view.job) or limits.dead(pod)
        exempt |= view.unit is not None and not view.unit.first
        hold = policy.hold(pod, self._ledger, view.now, alone=view.unit is None)
        if hold is not None and not exempt:
            raise Again(hold.seconds, hold.message)
        token.take()
        uid = view.job.metadata.uid
        follows = view.unit is not None and not view.unit.first
        if uid in self._counted or limits.dead(pod) or follows:
            return token.give_back
        replicas = self._ledger.replicas(pod)
        counted = list(self._policies())
        for each in counted:
            each.limiters.take(workload, replicas, namespace, view.now)

        def uncount() -> None:
            while counted:
                counted.pop().limiters.give_back(workload, namespace)

        def undo() -> None:
            token.give_back()
            self._counted.pop(uid, None)
            uncount()  # though the job may be gone, and what was known of it

        self._counted[uid] = uncount
        return undo

    def forget(self, job: PodMigrationJob) -> None:
        """A job is gone. Its eviction stays counted, though perhaps nobody ever learnt what came of it."""
        self._counted.pop(job.metadata.uid, None)

    def _uncount(self, job: PodMigrationJob) -> None:
        if (uncount := self._counted.pop(job.metadata.uid, None)) is not None:
            uncount()

    async def _ask(self, view: View, pod: Pod, policy: Policy, undo: Callable[[], None]) -> None:
        job, meta = view.job, pod.metadata
        trigger = job.metadata.annotations.get(names.ANNOTATION_EVICT_TRIGGER, "")
        reason = job.metadata.annotations.get(names.ANNOTATION_EVICT_REASON) or trigger or "NotSet"
        options = job.spec.delete_options or policy.args.delete_options
        order = evictors.Order(pod, dict(options), trigger, reason, view.now)
        evict = evictors.EVICTORS_BY_NAME[policy.evictor(pod, job)]
        self._writing.check()
        try:
            async with self._turns.away():  # a webhook may take its time: other jobs go on meanwhile
                await evict(self._writing.client, order)
        except errors.ApiError as error:
            if self._in_background and background.triggered(pod, error):
                self._metrics.evicted("background", trigger, meta.namespace, pod.spec.node_name)
                self._counted.pop(job.metadata.uid, None)
                await self._write(view, leaving.in_background(view, str(error)), policy, job)
                return
            self._metrics.evicted("error", trigger, meta.namespace, pod.spec.node_name)
            await self._failed(view, policy, error, undo)
            return
        self._metrics.evicted("success", trigger, meta.namespace, pod.spec.node_name)
        self._counted.pop(job.metadata.uid, None)
        self._reporting.descheduled(pod, reason, policy.events)
        await self._write(view, leaving.evicted(view, pod, reason), policy, job)

    async def _failed(self, view: View, policy: Policy, error: errors.ApiError, undo: Callable[[], None]) -> None:
        """Nothing has happened, or nobody knows. Raises Again."""
        if isinstance(error, (errors.NotFound, errors.Conflict)):  # gone, or another pod by now: looked at again, the intention stands
            undo()
            raise Again(0.05, f"{view.about_pod} is gone") from error
        if evictors.ambiguous(error):
            step = leaving.unanswered(view, str(error))
        else:
            undo()
            self._uncount(view.job)  # nor has an earlier attempt taken place that had no answer
            step = leaving.refused(view, evictors.refusal(error))
        if step.status is not None:
            await self._write(view, step, policy, view.job)
        raise Again(error.retry_after or None, step.message) from error


def _free(job: PodMigrationJob, place: Reservation | None) -> Reservation:
    """A place that was read a moment ago. Raises Again for one that was taken, lost or has expired: the cache will say so in a moment."""
    if place is None or place.status.phase in ("Succeeded", "Failed"):
        ref = status.reservation_ref(job)
        raise Again(0.05, f'Reservation "{ref.name if ref is not None else ""}" is not free any more')
    return place


def _meant(job: PodMigrationJob, uid: str) -> bool:
    """Whether the pod with this uid is the one that the job is about."""
    return status.pod_uid(job) in ("", uid)
