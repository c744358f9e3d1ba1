"""Defects of the scheduler."""

from __future__ import annotations

from typing import Any

from roles.sandbox.world.mutants.planting import Mutants, nothing, replace, wrap

MUTANTS = Mutants()

PLACEMENTS = "roles.scheduler.planner.placements:Placements"
EVICTIONS = "roles.scheduler.planner.evictions:Evictions"
QUEUE = "roles.scheduler.queue.queue:SchedulingQueue"
CARRIER = "roles.scheduler.binding.carrier:Carrier"

# -- the scheduler's acting half -----------------------------------------------------------------------------------------------


@MUTANTS.add("lost-answer-is-a-refusal", "a binding without an answer is taken back at once and tried elsewhere")
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


@MUTANTS.add("assume-nothing", "a decided pod is not counted on its node until the watch shows it")
def _assume_nothing() -> None:
    replace(f"{CARRIER}._assume", lambda self, placement, task: ())


MUTANTS.wrap("take-back-nothing", "what a failed placement took is never given back", f"{CARRIER}._take_back", nothing())
MUTANTS.wrap("failed-pods-are-forgotten", "a pod whose attempt failed does not return to the queue", f"{QUEUE}.requeue", nothing(0))
MUTANTS.wrap(
    "deletions-wake-nobody", "pods that left free no room in the cache", "roles.scheduler.cluster.cache:Cache.remove_pod", nothing()
)
MUTANTS.wrap("events-wake-nobody", "no event brings a refused pod back", f"{QUEUE}.on_event", nothing(0))


@MUTANTS.add("events-and-time-wake-nobody", "neither an event nor the flush of leftovers brings a refused pod back")
def _sleepers() -> None:
    replace(f"{QUEUE}.on_event", lambda self, event, now: 0)
    replace(f"{QUEUE}.flush_leftover", lambda self, now: 0)
    replace(f"{QUEUE}.flush_backoff", lambda self, now: None)


@MUTANTS.add("victims-are-chosen-again", "a preemptor is decided again while its victims are leaving, on any node")
def _victims_again() -> None:
    replace(f"{EVICTIONS}.awaited", lambda self, uid: ())
    replace(f"{EVICTIONS}.asking", lambda self, uid: False)
    replace(f"{EVICTIONS}.leaving", lambda self, uid: False)
    replace(f"{EVICTIONS}.all_leaving", lambda self: [])


@MUTANTS.add("victims-without-a-reason", "a victim is removed without the condition that says why")
def _victims_silent() -> None:
    async def remove(self: Any, preemptor: Any, victim: Any) -> None:
        from koord.api.kinds import PODS

        meta = victim.pod.metadata
        await self._client.delete(PODS, meta.name, meta.namespace, preconditions={"uid": meta.uid})

    replace("roles.scheduler.binding.preemption:Evictor._remove", remove)


@MUTANTS.add("reporter-raises", "writing the condition of a refused pod raises")
def _reporter_raises() -> None:
    def raises(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    replace("roles.scheduler.binding.reporter:Reporter._show", raises)


# -- the scheduler's deciding half ---------------------------------------------------------------------------------------------


@MUTANTS.add("requests-are-not-checked", "NodeResourcesFit lets every pod onto every node")
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


@MUTANTS.add("devices-are-not-taken", "a card that was given away stays free until the watch shows it")
def _cards_stay_free() -> None:
    replace("roles.scheduler.plugins.device_share.columns:DeviceColumns.take", lambda self, slot, uid, holding: None)


@MUTANTS.add("quotas-are-not-asked", "ElasticQuota refuses nobody")
def _no_quota() -> None:
    replace("roles.scheduler.plugins.elastic_quota.plugin:ElasticQuota._refuses", lambda self, ctx, quota: "")


@MUTANTS.add("gangs-do-not-wait", "members of a gang are bound as they come")
def _no_gang() -> None:
    from roles.scheduler.framework.status import Status

    plugin = "roles.scheduler.plugins.coscheduling.plugin:Coscheduling"
    replace(f"{plugin}.permit", lambda self, ctx, slot: Status())
    replace(f"{plugin}.pre_enqueue", lambda self, pod: Status())
    replace(f"{plugin}.before_pre_filter", lambda self, ctx: (Status(), None))
    replace(f"{plugin}.find_one_node", lambda self, ctx, candidates: (Status(), ""))
