"""Defects of the scheduler."""

from __future__ import annotations

from dataclasses import replace as replaced
from typing import Any

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.mutants.planting import Mutants, nothing, replace, wrap
from roles.sandbox.world.spec import Workload

MUTANTS = Mutants(minutes=0.5, pods=20, koordlets=0, schedulers=1, managers=1, deschedulers=0, hostile=0)

SLOW = Fault(0.5, "delay", "scheduler-a", 20.0, amount=1.5)
PLACEMENTS = "roles.scheduler.planner.placements:Placements"
EVICTIONS = "roles.scheduler.planner.evictions:Evictions"
QUEUE = "roles.scheduler.queue.queue:SchedulingQueue"
CARRIER = "roles.scheduler.binding.carrier:Carrier"

# -- the scheduler's acting half -----------------------------------------------------------------------------------------------


@MUTANTS.add(
    "lost-answer-is-a-refusal",
    "a binding without an answer is taken back at once and tried elsewhere",
    workloads=(Workload("web", 12, 2000, 256, at=2.0),),
    plan=(
        Fault(1.9, "reset", "scheduler-a", 0.6, method="POST"),  # bindings wait until its watches are away
        Fault(2.55, "resume", "scheduler-a", 24.0),
        Fault(2.6, "lose-answer", "scheduler-a", 15.0, method="POST"),
    ),
)
def _lost_answer() -> None:
    from roles.scheduler.planner.placements import Answer

    def make(old: Any) -> Any:
        return lambda self, p, answer: old(self, p, Answer.REFUSED if answer is not Answer.BOUND else answer)

    def blind(old: Any) -> Any:
        def answered(self: Any, p: Any, answer: Any) -> Any:
            p.seen, p.again = "", False
            return old(self, p, answer)

        return answered

    wrap(f"{PLACEMENTS}.answered", make)
    wrap(f"{PLACEMENTS}.answered", blind)


@MUTANTS.add(
    "assume-nothing",
    "a decided pod is not counted on its node until the watch shows it",
    rule="NodeNotOvercommitted",
    workloads=(Workload("web", 12, 2000, 256, at=2.0),),
    plan=(SLOW,),
)
def _assume_nothing() -> None:
    replace(f"{CARRIER}._assume", lambda self, placement, task: ())


def _refuse_some(every: int) -> None:
    """Let the API server refuse a binding now and then, which it may."""
    from roles.scheduler.binding.binder import Outcome
    from roles.scheduler.framework.status import error

    count = 0

    def carry_out(old: Any) -> Any:
        async def sometimes(self: Any, task: Any) -> Any:
            nonlocal count
            count += 1
            return await old(self, task) if count % every else (Outcome.RETRY, error("planted"))

        return sometimes

    wrap("roles.scheduler.binding.binder:Binder._carry_out", carry_out)


@MUTANTS.add("take-back-nothing", "what a failed placement took is never given back", rule="WhatFitsIsBound")
def _taken() -> None:
    _refuse_some(5)
    wrap(f"{CARRIER}._take_back", nothing())


MUTANTS.wrap(
    "failed-pods-are-forgotten",
    "a pod whose attempt failed does not return to the queue",
    f"{QUEUE}.requeue",
    nothing(0),
    kinds=("storm", "refuse"),
)
MUTANTS.wrap(
    "deletions-wake-nobody", "pods that left free no room in the cache", "roles.scheduler.cluster.cache:Cache.remove_pod", nothing()
)
MUTANTS.wrap("events-wake-nobody", "no event brings a refused pod back", f"{QUEUE}.on_event", nothing(0))


@MUTANTS.add("events-and-time-wake-nobody", "neither an event nor the flush of leftovers brings a refused pod back")
def _sleepers() -> None:
    replace(f"{QUEUE}.on_event", lambda self, event, now: 0)
    replace(f"{QUEUE}.flush_leftover", lambda self, now: 0)
    replace(f"{QUEUE}.flush_backoff", lambda self, now: None)


@MUTANTS.add(
    "victims-are-chosen-again",
    "a preemptor is decided again at once, and who leaves for it counts as staying",
    rule="OneNodeMakesRoom",
    sorts=("crowd", "service", "big"),
)
def _victims_again() -> None:
    preemption = "roles.scheduler.plugins.default_preemption:DefaultPreemption"

    def make_room(self: Any, decision: Any, how: Any, now: float) -> None:
        pod = decision.pod
        self._evictor.evict(pod, decision.victims, decision.nominate or "")
        self._queue.requeue(pod.uid, now, error=True)

    replace("roles.scheduler.outcomes:Outcomes._make_room", make_room)
    replace(f"{EVICTIONS}.awaited", lambda self, uid: ())
    replace(f"{EVICTIONS}.asking", lambda self, uid: False)
    replace(f"{EVICTIONS}.leaving", lambda self, uid: False)
    replace(f"{EVICTIONS}.begun", lambda self, uid: False)
    replace(f"{EVICTIONS}.all_leaving", lambda self: [])
    replace(f"{preemption}._not_eligible", lambda self, ctx, failure: "")
    wrap("roles.scheduler.framework.context:Nominations.add", nothing())


@MUTANTS.add(
    "victims-without-a-reason",
    "a victim is removed without the condition that says why",
    rule="EvictedOnce",
    sorts=("crowd", "service", "big", "gang"),
)
def _victims_silent() -> None:
    async def remove(self: Any, preemptor: Any, victim: Any) -> None:
        from koord.api.kinds import PODS

        meta = victim.pod.metadata
        await self._client.delete(PODS, meta.name, meta.namespace, preconditions={"uid": meta.uid})

    replace("roles.scheduler.binding.preemption:Evictor._remove", remove)


# -- the scheduler's deciding half ---------------------------------------------------------------------------------------------


@MUTANTS.add(
    "requests-are-not-checked",
    "NodeResourcesFit lets every pod onto every node",
    rule="NodeNotOvercommitted",
    sorts=("crowd", "service", "big"),
)
def _no_fit() -> None:
    import numpy as np

    fit = "roles.scheduler.plugins.node_resources:NodeResourcesFit"

    def filter_all(old: Any) -> Any:
        def filter_(self: Any, ctx: Any, rows: Any) -> Any:
            return np.zeros_like(old(self, ctx, rows))

        return filter_

    wrap(f"{fit}.filter", filter_all)
    replace(f"{fit}.refine", lambda self, ctx, slots, codes: codes)


@MUTANTS.add("answers-outlive-pods", "NodeResourcesFit is not asked again about nodes whose pods changed")
def _stale_fit() -> None:
    from roles.scheduler.cluster.changes import NODE

    replace("roles.scheduler.plugins.node_resources:NodeResourcesFit.reads", NODE)


@MUTANTS.add(
    "devices-are-not-taken",
    "a card that was given away stays free until the watch shows it",
    rule="DeviceOnce",
    workloads=(Workload("cards", 6, 250, 128, gpu=100, at=2.0),),
    plan=(SLOW,),
)
def _cards_stay_free() -> None:
    columns = "roles.scheduler.plugins.device_share.columns:DeviceColumns"
    wrap(f"{columns}._holding", lambda old: lambda self, node, pod: old(self, node, pod) if pod.node_name else None)
    replace(f"{columns}.take", lambda self, slot, uid, holding: self._taken.update({uid: holding}))


@MUTANTS.add("quotas-are-not-asked", "ElasticQuota refuses nobody", rule="QuotaWithinMax", sorts=("quota",))
def _no_quota() -> None:
    replace("roles.scheduler.plugins.elastic_quota.plugin:ElasticQuota._refuses", lambda self, ctx, quota: "")


@MUTANTS.add(
    "gangs-do-not-wait",
    "members of a gang are bound as they come",
    rule="GangWhole",
    workloads=(Workload("half", 6, 2000, 256), Workload("gang", 5, 2000, 256, gang=5, at=5.0)),
)
def _no_gang() -> None:
    from roles.scheduler.framework.status import SKIP, SUCCESS

    plugin = "roles.scheduler.plugins.coscheduling.plugin:Coscheduling"
    replace(f"{plugin}.permit", lambda self, ctx, slot: SUCCESS)
    replace(f"{plugin}.pre_enqueue", lambda self, pod: SUCCESS)
    replace(f"{plugin}.before_pre_filter", lambda self, ctx: (SUCCESS, None))
    replace(f"{plugin}.find_one_node", lambda self, ctx, candidates: (SKIP, ""))


@MUTANTS.add("batch-is-not-counted", "NodeResourcesFit looks at plain CPU and memory only", rule="BatchWithinPromise", sorts=("batch",))
def _no_batch() -> None:
    path = "roles.scheduler.plugins.node_resources:NodeResourcesFit._ignores"
    wrap(path, lambda old: lambda self, resource: "batch" in resource or old(self, resource))


@MUTANTS.add(
    "cpus-are-not-taken",
    "exclusive CPUs that were given away are free until the watch shows them, and after it",
    rule="ExclusiveCpuOnce",
    sorts=("cores",),
)
def _cpus_stay_free() -> None:
    columns = "roles.scheduler.plugins.numa.columns:NumaColumns"

    def reserve(self: Any, slot: int, pod: Any, record: Any) -> None:
        self._decided[pod.uid] = record

    replace(f"{columns}.reserve", reserve)
    wrap(f"{columns}._record", nothing())


@MUTANTS.add("quotas-are-not-revoked", "nobody takes back what a quota has lent", rule="MinimumIsReturned", sorts=("quota",))
def _nothing_back() -> None:
    replace("roles.scheduler.plugins.elastic_quota.revoke:Revoker.due", lambda self, cache, now, gangs: [])


@MUTANTS.add(
    "equals-are-victims", "pods make room for others of the same priority", rule="VictimsAreLower", sorts=("crowd", "service", "gang")
)
def _equals() -> None:
    def equals(pod: Any, below: int, priority: int | None = None) -> bool:
        return (pod.priority if priority is None else priority) <= below and not pod.reservation

    replace("roles.scheduler.plugins.coscheduling.preemption:preemptible", equals)


@MUTANTS.add(
    "nominations-are-forgotten",
    "a pod for which room was made goes wherever it likes best, and so does everybody else",
    rule="RoomIsUsed",
    workloads=(
        Workload("low", 3, 1900, 256, priority="koord-mid", prefers="sim-000"),
        *(Workload(f"hold-{node}", 3, 1900, 256, prefers=node, run_seconds=9) for node in ("sim-001", "sim-002")),
        Workload("high", 1, 3000, 256, at=6.0),
    ),
    plan=(Fault(6.5, "freeze", "scheduler-a", 8.0),),  # it comes back when there is room elsewhere, too
)
def _wander() -> None:
    cycle = "roles.scheduler.cycle.cycle:Cycle"
    replace(f"{cycle}._preferred", lambda self, ctx, framework, totals, restriction: -1)
    wrap("roles.scheduler.framework.context:Nominations.add", nothing())


@MUTANTS.add(
    "what-was-told-is-told-again",
    "a pod that is being bound is still told that it was not scheduled",
    rule="BoundIsScheduled",
    workloads=(Workload("hold", 9, 2000, 256, run_seconds=8), Workload("late", 2, 2000, 256, at=8.5)),
    plan=(Fault(6.0, "delay", "scheduler-a", 30.0, amount=3.0, method="PATCH"),),
)
def _not_quiet() -> None:
    async def quiet(self: Any, uid: str) -> None:
        return

    async def tell(self: Any, pod: Any, status: dict[str, Any]) -> bool:
        """As before this was repaired: whatever the pod has become meanwhile."""
        from koord.api.kinds import PODS

        body = {"metadata": {"uid": pod.pod.metadata.uid}, "status": status}
        await self._client.patch(PODS, pod.name, body, pod.namespace, type="strategic", subresource="status")
        return True

    replace("roles.scheduler.binding.reporter:Reporter.quiet", quiet)
    replace("roles.scheduler.binding.reporter:Reporter._tell", tell)


@MUTANTS.add(
    "old-caches-are-trusted",
    "a scheduler acts on whatever it was told last, however long ago",
    rule="OldCachesAreNotActedOn",
    workloads=(Workload("web", 3, 500, 256, at=2.0),),
    minutes=1.6,
    plan=(Fault(1.9, "storm", "scheduler-a", 85.0, status=503, method="POST"), Fault(2.6, "resume", "scheduler-a", 95.0)),
)
def _trusting() -> None:
    async def went_back(self: Any) -> bool:
        return False

    replace("roles.scheduler.app:App._outdated", lambda self: "")
    replace("koord.kube.reflector:QUIET", (1e9, 1e9))
    replace("koord.kube.reflector:Reflector._went_back", went_back)


@MUTANTS.add("binders-die", "a worker that sends bindings dies of the first one that is refused", rule="NothingIsDeadInside")
def _binders_die() -> None:
    from roles.scheduler.binding.binder import Outcome

    async def run(self: Any, task: Any) -> None:
        self._busy += 1
        outcome, status = await self._carry_out(task)
        self._busy -= 1
        self._finished(task, outcome, status)
        if outcome is not Outcome.BOUND:
            raise IndexError("planted")

    _refuse_some(6)
    replace("roles.scheduler.binding.binder:Binder._run", run)


@MUTANTS.add(
    "a-raising-plugin-ends-the-scheduler",
    "an exception in Reserve is nobody's, and there is one now and then",
    rule="NobodyCrashes",
    crash=True,
)
def _reserve_raises() -> None:
    count = 0

    def reserve(old: Any) -> Any:
        def raising(self: Any, ctx: Any, slot: int) -> Any:
            nonlocal count
            count += 1
            if count % 10 == 0:
                raise KeyError("planted")
            return old(self, ctx, slot)

        return raising

    def unguarded(self: Any, do: Any, placement: Any, failure: Exception) -> Any:
        raise SystemError(repr(failure))

    wrap("roles.scheduler.framework.framework:Framework.run_reserve", reserve)
    replace(f"{CARRIER}._raised", unguarded)
    replace("roles.scheduler.live:Scheduler._crashed", lambda self, entry, placement, failure: unguarded(self, None, placement, failure))


@MUTANTS.add(
    "nobody-rests",
    "a refused pod is tried again at once, whatever happens",
    rule="NobodySpins",
    workloads=(Workload("huge", 1, 9000, 128),),
)
def _no_backoff() -> None:
    from roles.scheduler.queue.entry import UNSCHEDULABLE

    def flush(self: Any, now: float) -> None:
        for members in list(self._parked.values()):
            for entry in [entry for entry in members.values() if entry.state == UNSCHEDULABLE and now - entry.stopped >= 0.2]:
                self._return(entry, now, "planted")

    replace(f"{QUEUE}.backoff", lambda self, entry: 0.0)
    replace(f"{QUEUE}.flush_backoff", flush)
    wrap(f"{QUEUE}.next_wake", lambda old: lambda self: 0.0 if self._parked else None)


@MUTANTS.add("half-an-evaluation-is-kept", "what a filter that raised had not looked at stays refused for all pods of the shape")
def _half() -> None:
    count = 0

    def update(old: Any) -> Any:
        def marking(self: Any, ctx: Any) -> None:
            try:
                old(self, ctx)
            finally:
                self._current = True

        return marking

    def filter_(old: Any) -> Any:
        def raising(self: Any, ctx: Any, rows: Any) -> Any:
            nonlocal count
            count += 1
            if count in (5, 25, 60):
                raise KeyError("planted")
            return old(self, ctx, rows)

        return raising

    wrap("roles.scheduler.cycle.evaluation:Evaluation.update", update)
    wrap("roles.scheduler.plugins.node_resources:NodeResourcesFit.filter", filter_)


@MUTANTS.add(
    "victims-are-asked-twice",
    "a victim that did not answer is asked again without a look, by whatever name",
    sorts=("crowd", "service", "big"),
    kinds=("lose-answer", "delay"),
)
def _twice() -> None:
    from roles.scheduler.planner.evictions import Answer

    def forget(old: Any) -> Any:
        return lambda self, uid, answer, now: old(self, uid, Answer.FAILED if answer is Answer.DONE else answer, now)

    async def remove(self: Any, preemptor: Any, victim: Any) -> None:
        from koord.api.kinds import PODS

        await self._client.delete(PODS, victim.name, victim.namespace, grace_period_seconds=1)

    wrap(f"{EVICTIONS}.answered", forget)
    replace(f"{EVICTIONS}.seen_leaving", lambda self, uid, now: [])
    replace("roles.scheduler.binding.preemption:Evictor._remove", remove)


@MUTANTS.add(
    "room-is-made-without-need",
    "a pod is refused once although it fits, has another removed, and goes where there was room",
    rule="RoomIsUsed",
    workloads=(Workload("low", 3, 1900, 256, priority="koord-mid", prefers="sim-000"), Workload("high", 1, 3000, 256, at=8.0)),
)
def _needless() -> None:
    import numpy as np

    from roles.scheduler.framework.status import SUCCESS, PostFilterResult, unschedulable

    seen: set[str] = set()

    def before(old: Any) -> Any:
        def refusing(self: Any, ctx: Any) -> Any:
            refused = ctx.pod.uid not in seen and ctx.pod.priority >= 9000 and not ctx.pod.reservation
            return (unschedulable("planted"), None) if refused else old(self, ctx)

        return refusing

    def post_filter(old: Any) -> Any:
        def anybody(self: Any, ctx: Any, failure: Any) -> Any:
            seen.add(ctx.pod.uid)
            for slot in np.flatnonzero(ctx.cluster.alive):
                for other in ctx.cluster.row(int(slot)).pods.values():
                    if other.priority < ctx.pod.priority:
                        return PostFilterResult(SUCCESS, other.node_name, (other,))
            return old(self, ctx, failure)

        return anybody

    replace("roles.scheduler.cycle.cycle:Cycle._preferred", lambda self, ctx, framework, totals, restriction: -1)
    wrap("roles.scheduler.plugins.coscheduling.plugin:Coscheduling.before_pre_filter", before)
    wrap("roles.scheduler.plugins.coscheduling.plugin:Coscheduling.post_filter", post_filter)


@MUTANTS.add(
    "what-authors-wrote-is-bound",
    "allocations that the author of a pod wrote are left on it",
    rule="AllocatedByScheduler",
    hostile=20,
    workloads=(Workload("web", 2, 250, 128),),
    plan=(Fault(0.01, "kill", "manager-a", 25.0),),
)
def _left_over() -> None:
    replace("roles.scheduler.binding.binder:_leave_nothing", lambda pod, unsure, draft: None)


# -- devices by claims and by amounts ------------------------------------------------------------------------------------------

CLAIMING = (Workload("claiming", 4, 250, 128, claim=1, usage=10, at=2.0), Workload("gpu", 4, 250, 128, gpu=60, at=12.0))
"""Four cards on two nodes, and more who want one than there are."""

MUTANTS.wrap(
    "claims-take-nothing",
    "a device that a claim has is given to the next one",
    "roles.scheduler.plugins.dynamic_resources.inventory:DeviceColumns.use",
    nothing(),
    rule="ClaimedOnce",
    claims=True,
    workloads=CLAIMING,
)
MUTANTS.wrap(
    "claims-are-not-heard-of",
    "a card that a claim has is given to pods that ask for a part of one",
    "roles.scheduler.plugins.device_share.columns:DeviceColumns._claim_has",
    nothing(),
    rule="ClaimedOnce",
    claims=True,
    workloads=CLAIMING,
)
MUTANTS.wrap(
    "amounts-are-not-heard-of",
    "a card of which a pod has a part is given to a claim",
    "roles.scheduler.plugins.device_share.columns:DeviceColumns._tell",
    nothing(),
    rule="ClaimedOnce",
    claims=True,
    workloads=tuple(replaced(work, at=14.0 - work.at) for work in CLAIMING),
)
