"""Planted defects: each puts one mistake into the product of this process, to see whether a world betrays it.

They are made by replacing a function in a child process, never in a product that runs. What they replace is looked up by name, so that a
function that moved is an error here and not a mutant that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake with a name."""

    name: str
    text: str
    plant: Callable[[], None]


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, text: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[name] = Mutant(name, text, plant)
        return plant

    return add


def _find(path: str) -> tuple[Any, str, Any]:
    """(owner, name, value) of "module:Class.function". Raises AttributeError for what is not there."""
    module, _, inside = path.partition(":")
    owner: Any = import_module(module)
    *parts, name = inside.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def _replace(path: str, new: Any) -> None:
    owner, name, _ = _find(path)
    setattr(owner, name, new)


def _wrap(path: str, make: Callable[[Any], Any]) -> None:
    owner, name, old = _find(path)
    setattr(owner, name, make(old))


def _simple(name: str, text: str, path: str, make: Callable[[Any], Any]) -> None:
    _mutant(name, text)(lambda: _wrap(path, make))


def _nothing(value: Any = None) -> Callable[[Any], Any]:
    """A function that does nothing and returns `value`."""
    return lambda old: lambda *args, **kwargs: value


PLACEMENTS = "roles.scheduler.planner.placements:Placements"
EVICTIONS = "roles.scheduler.planner.evictions:Evictions"
QUEUE = "roles.scheduler.queue.queue:SchedulingQueue"
CARRIER = "roles.scheduler.binding.carrier:Carrier"

# -- the scheduler's acting half -----------------------------------------------------------------------------------------------


@_mutant("lost-answer-is-a-refusal", "a binding without an answer is taken back at once and tried elsewhere")
def _lost_answer() -> None:
    from roles.scheduler.planner.placements import Answer

    def make(old: Any) -> Any:
        return lambda self, p, answer: old(self, p, Answer.REFUSED if answer is not Answer.BOUND else answer)

    def blind(old: Any) -> Any:
        def answered(self: Any, p: Any, answer: Any) -> Any:
            p.seen, p.again = "", False
            return old(self, p, answer)

        return answered

    _wrap(f"{PLACEMENTS}.answered", make)
    _wrap(f"{PLACEMENTS}.answered", blind)


@_mutant("assume-nothing", "a decided pod is not counted on its node until the watch shows it")
def _assume_nothing() -> None:
    _replace(f"{CARRIER}._assume", lambda self, placement, task: ())


_simple("take-back-nothing", "what a failed placement took is never given back", f"{CARRIER}._take_back", _nothing())
_simple("failed-pods-are-forgotten", "a pod whose attempt failed does not return to the queue", f"{QUEUE}.requeue", _nothing(0))
_simple("deletions-wake-nobody", "pods that left free no room in the cache", "roles.scheduler.cluster.cache:Cache.remove_pod", _nothing())
_simple("events-wake-nobody", "no event brings a refused pod back", f"{QUEUE}.on_event", _nothing(0))


@_mutant("events-and-time-wake-nobody", "neither an event nor the flush of leftovers brings a refused pod back")
def _sleepers() -> None:
    _replace(f"{QUEUE}.on_event", lambda self, event, now: 0)
    _replace(f"{QUEUE}.flush_leftover", lambda self, now: 0)
    _replace(f"{QUEUE}.flush_backoff", lambda self, now: None)


@_mutant("victims-are-chosen-again", "a preemptor is decided again while its victims are leaving, on any node")
def _victims_again() -> None:
    _replace(f"{EVICTIONS}.awaited", lambda self, uid: ())
    _replace(f"{EVICTIONS}.asking", lambda self, uid: False)
    _replace(f"{EVICTIONS}.leaving", lambda self, uid: False)
    _replace(f"{EVICTIONS}.all_leaving", lambda self: [])


@_mutant("victims-without-a-reason", "a victim is removed without the condition that says why")
def _victims_silent() -> None:
    async def remove(self: Any, preemptor: Any, victim: Any) -> None:
        from koord.api.kinds import PODS

        meta = victim.pod.metadata
        await self._client.delete(PODS, meta.name, meta.namespace, preconditions={"uid": meta.uid})

    _replace("roles.scheduler.binding.preemption:Evictor._remove", remove)


@_mutant("reporter-raises", "writing the condition of a refused pod raises")
def _reporter_raises() -> None:
    def raises(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    _replace("roles.scheduler.binding.reporter:Reporter._show", raises)


@_mutant("standby-binds", "a scheduler that lost its lease goes on")
def _standby_binds() -> None:
    _replace("roles.scheduler.app:App.may_write", lambda self: True)
    _replace("koord.kube.leases:Leadership.held", property(lambda self: True))
    _replace("koord.kube.leases:Leadership.remaining", property(lambda self: 1e9))
    _wrap("koord.kube.leases:LeaderElector._renew", lambda old: _renew_for_ever)


async def _renew_for_ever(self: Any, leadership: Any) -> None:
    import asyncio

    await asyncio.Event().wait()


# -- the scheduler's deciding half ---------------------------------------------------------------------------------------------


@_mutant("requests-are-not-checked", "NodeResourcesFit lets every pod onto every node")
def _no_fit() -> None:
    import numpy as np

    fit = "roles.scheduler.plugins.node_resources:NodeResourcesFit"

    def filter_all(old: Any) -> Any:
        def filter_(self: Any, ctx: Any, rows: Any) -> Any:
            return np.zeros_like(old(self, ctx, rows))

        return filter_

    _wrap(f"{fit}.filter", filter_all)
    _replace(f"{fit}.filter_row", lambda self, ctx, slot: 0)
    _replace(f"{fit}.refine", lambda self, ctx, slots, codes: codes)


@_mutant("devices-are-not-taken", "a card that was given away stays free until the watch shows it")
def _cards_stay_free() -> None:
    _replace("roles.scheduler.plugins.device_share.columns:DeviceColumns.take", lambda self, slot, uid, holding: None)


@_mutant("quotas-are-not-asked", "ElasticQuota refuses nobody")
def _no_quota() -> None:
    _replace("roles.scheduler.plugins.elastic_quota.plugin:ElasticQuota._refuses", lambda self, ctx, quota: "")


@_mutant("gangs-do-not-wait", "members of a gang are bound as they come")
def _no_gang() -> None:
    from roles.scheduler.framework.status import Status

    plugin = "roles.scheduler.plugins.coscheduling.plugin:Coscheduling"
    _replace(f"{plugin}.permit", lambda self, ctx, slot: Status())
    _replace(f"{plugin}.pre_enqueue", lambda self, pod: Status())
    _replace(f"{plugin}.before_pre_filter", lambda self, ctx: (Status(), None))
    _replace(f"{plugin}.find_one_node", lambda self, ctx, candidates: (Status(), ""))


# -- the shared library --------------------------------------------------------------------------------------------------------


@_mutant("deletions-are-missed", "an informer does not hear of deletions")
def _no_deletions() -> None:
    _wrap("koord.kube.store:Informer.forget", _nothing())


@_mutant("a-stalled-watch-is-believed", "nobody looks whether a silent watch is alive")
def _stalled() -> None:
    _replace("koord.kube.reflector:QUIET", (1e9, 1e9))


@_mutant("expired-versions-are-kept", "410 Gone does not lead to a new list")
def _no_relist() -> None:
    _replace("koord.kube.reflector:must_list", lambda error: False)


def _observed_at(moment: float) -> Callable[[Any], Any]:
    def make(old: Any) -> Any:
        def observe(self: Any, lease: Any) -> None:
            old(self, lease)
            if self._holder(lease) != self.who.name:
                self._observed_at = self._clock() + moment

        return observe

    return make


_simple(
    "a-lease-is-taken-at-once", "a standby does not wait for the lease to run out", "koord.kube.leases:_Lease._observe", _observed_at(-1e9)
)
_simple("a-lease-is-never-taken-over", "a standby waits for ever", "koord.kube.leases:_Lease._observe", _observed_at(1e9))

# -- manager and descheduler ---------------------------------------------------------------------------------------------------


@_mutant("silence-is-trusted", "a node whose agent is silent keeps its batch resources")
def _silence() -> None:
    for part in ("batch", "mid"):
        _replace(f"roles.manager.noderesource.{part}:degraded", lambda inputs: "")


@_mutant("batch-of-the-whole-node", "batch resources are the whole node's, whatever its services use")
def _whole_node() -> None:
    _wrap(
        "roles.manager.noderesource.plan:format_amount",
        lambda old: lambda name, amount: old(name, amount * 4 if "batch" in name else amount),
    )


@_mutant("controllers-write-without-a-reason", "the manager writes every node at each look")
def _chatty() -> None:
    _replace("roles.manager.noderesource.plan:_needs", lambda present, name, amount, threshold: amount is not None)


@_mutant("evicted-before-a-place", "a migration evicts before its reservation is there")
def _no_place() -> None:
    machine = "roles.descheduler.migration.machine"
    _replace(f"{machine}:_exempt", lambda view: True)
