"""Defects of the descheduler."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.mutants.planting import Mutants, replace, wrap
from roles.sandbox.world.spec import Chore, Workload

MUTANTS = Mutants(pods=16, koordlets=0, schedulers=1, managers=1, deschedulers=1, hostile=0)

HOT = Workload("hot", 4, 300, 256, usage=400, prefers="sim-000")
FULL = tuple(
    Workload(f"full-{node[-1]}", 1, cpu, 256, usage=1, prefers=node, at=3.0)
    for node, cpu in (("sim-000", 4800), ("sim-001", 5100), ("sim-002", 6000))
)
"""What leaves room for three pods of 300 milli-CPU on one of the nodes that are not hot, and nowhere else."""
MACHINE = "roles.descheduler.migration.machine"
CLASSIFY = "roles.descheduler.plugins.lownodeload.classify"


@MUTANTS.add(
    "evicted-before-a-place",
    "a migration evicts before its reservation is there",
    rule="MoveHasAPlace",
    workloads=(HOT,),
    plan=(Fault(15.0, "delay", "scheduler-a", 60.0, amount=2.0),),
)
def _no_place() -> None:
    def placed(old: Any) -> Any:
        def at_once(view: Any, reservation: Any) -> Any:
            from roles.descheduler.migration import leaving

            return leaving.leave(view) or old(view, reservation)

        return at_once

    async def still_good(self: Any, view: Any, pod: Any, policy: Any) -> None:
        return

    wrap(f"{MACHINE}:_placed", placed)
    replace("roles.descheduler.migration.acting:Acting._still_good", still_good)


@MUTANTS.add(
    "evictions-are-deletions",
    "pods are deleted where they should be evicted, so that nobody asks budgets",
    rule="BudgetsAreKept",
    workloads=(changed(HOT, min_available=HOT.replicas),),
)
def _deletions() -> None:
    from roles.descheduler.migration import evictors

    async def ask(client: Any, pod: Any, options: Any) -> None:
        return

    evictors.EVICTORS_BY_NAME["Eviction"] = evictors._delete
    replace("roles.descheduler.migration.budgets:Budgets.refuse", lambda self, pod, going: "")
    replace("roles.descheduler.migration.evictors:ask", ask)


@MUTANTS.add(
    "cool-nodes-are-relieved",
    "a node counts as hot as soon as it takes no more pods",
    rule="OnlyHotNodesAreRelieved",
    sorts=("service", "hot"),
)
def _eager() -> None:
    def class_of(old: Any) -> Any:
        def eager(usage: Any, prod_usage: Any, bounds: Any, *, cordoned: bool) -> Any:
            from roles.descheduler.plugins.lownodeload.classify import NodeClass, over

            found = old(usage, prod_usage, bounds, cordoned=cordoned)
            return NodeClass.HOT if over(usage, {n: v * 7 // 10 for n, v in bounds.low.items()}) else found

        return eager

    def over(old: Any) -> Any:
        return lambda usage, bounds: old(usage, {name: value // 3 for name, value in bounds.items()})

    wrap(f"{CLASSIFY}:class_of", class_of)
    wrap("roles.descheduler.plugins.lownodeload.select:over", over)


@MUTANTS.add("any-node-takes-the-pod", "where a pod goes that leaves a hot node is nobody's concern", sorts=("hot", "hot", "big"))
def _anywhere() -> None:
    replace("roles.descheduler.relief:Relief.refuse", lambda self, view: "")
    replace("roles.descheduler.migration.status:relief", lambda job: None)


@MUTANTS.add(
    "targets-forget-what-comes",
    "a target counts neither what came since its report nor what has a place there",
    rule="TargetsStayCool",
    workloads=(
        *(Workload(f"hot-{name}", 3, 300, 256, usage=400, prefers="sim-000", at=18.0) for name in "ab"),
        Workload("mild", 1, 1500, 256, usage=130, prefers="sim-001"),
        Workload("warm", 1, 5400, 256, usage=60, prefers="sim-002"),
    ),
)
def _forgetful() -> None:
    for module in ("roles.descheduler.observing", "roles.descheduler.migration.targets"):
        replace(f"{module}:expect", lambda view, places, brought, *, unheard=0.0: None)


@MUTANTS.add("hot-nodes-are-left-alone", "no node is ever hot", rule="HotIsRelieved", workloads=(HOT, Workload("web", 4, 250, 128)))
def _blind() -> None:
    def class_of(old: Any) -> Any:
        def never(usage: Any, prod_usage: Any, bounds: Any, *, cordoned: bool) -> Any:
            from roles.descheduler.plugins.lownodeload.classify import NodeClass

            found = old(usage, prod_usage, bounds, cordoned=cordoned)
            return NodeClass.NORMAL if found is NodeClass.HOT else found

        return never

    wrap(f"{CLASSIFY}:class_of", class_of)


@MUTANTS.add(
    "the-place-is-given-up",
    "a job ends with the eviction: its reservation is gone before the successor comes",
    rule="MovesLoseNothing",
    workloads=(HOT, *FULL, Workload("a-tide", 6, 300, 128, usage=1, at=26.8)),
)
def _given_up() -> None:
    def leave(old: Any) -> Any:
        def done(view: Any) -> Any:
            from roles.descheduler.migration import status
            from roles.descheduler.migration.words import Reason

            step = old(view)
            if status.eviction_begun(view.job) and view.pod is not None and view.pod.metadata.deletion_timestamp:
                from roles.descheduler.migration.step import fail

                return fail(view, Reason.TIMEOUT, "planted")
            return step

        return done

    wrap("roles.descheduler.migration.leaving:leave", leave)


@MUTANTS.add(
    "the-scheduler-has-counted",
    "where a pod's topology spread lets its successor come is left to the scheduler, which counts the pod itself and is not asked again",
    rule="MovesLoseNothing",
    workloads=(
        Workload("held", 2, 300, 256, usage=700, prefers="sim-002", min_available=2),
        Workload("even", 3, 300, 128, usage=200, spread=1),
    ),
    profiles="both",
    chores=(Chore(20.0, "taint", "sim-002"),),
    plan=(),
)
def _counted() -> None:
    async def domains(self: Any, job: Any, pod: Any) -> tuple[Any, ...]:
        return ()

    async def foreseen(self: Any, view: Any) -> str:
        return ""

    replace("roles.descheduler.migration.spread:SpreadCounts.domains", domains)
    replace("roles.descheduler.migration.acting:Acting._foreseen", foreseen)


TENDED: dict[str, Any] = {"profiles": "community", "plan": (), "chores": ()}
"""A world of the community's plugins in which nothing else goes wrong."""
TAINTED = (Chore(30.0, "taint", "sim-000"),)


@MUTANTS.add(
    "pods-are-older-than-they-are",
    "PodLifeTime takes pods away half a minute too early",
    rule="EvictedForWhatIsWrong",
    **(TENDED | {"workloads": (Workload("aged", 1, 300, 128),)}),
)
def _older() -> None:
    wrap("roles.descheduler.plugins.community.podlifetime:age", lambda old: lambda pod, now: old(pod, now) + 30.0)


@MUTANTS.add(
    "topology-spread-is-nobodys-concern",
    "nodeFit does not ask where the pod's topology spread lets it go",
    rule="EvictedWithAPlace",
    **(TENDED | {"workloads": (Workload("even", 3, 300, 128, spread=1),), "chores": TAINTED}),
)
def _uneven() -> None:
    replace("roles.descheduler.fitting:OtherNodes._uneven", lambda self, columns, view: "")


@MUTANTS.add(
    "who-comes-back-leaves-again",
    "pods that the scheduler puts back are taken away again in each round",
    rule="NotEvictedInVain",
    **(TENDED | {"workloads": (Workload("likes", 3, 300, 128, prefers="sim-000"),)}),
)
def _again() -> None:
    replace("roles.descheduler.framework.recurrence:Recurrence.refuse", lambda self, key, uid, now: "")


@MUTANTS.add(
    "taints-are-not-minded",
    "no pod leaves a node for its taints",
    rule="WhatIsWrongLeaves",
    **(TENDED | {"workloads": (Workload("web", 1, 300, 128, prefers="sim-000"),), "chores": TAINTED, "gpu_nodes": 0}),
)
def _unminded() -> None:
    replace(
        "roles.descheduler.plugins.community.nodetaints:RemovePodsViolatingNodeTaints.turn", lambda self, nodes, handle: (_ for _ in ())
    )


@MUTANTS.add(
    "rounds-have-no-limits",
    "a round takes away as many pods as plugins ask for",
    rule="RoundsKeepLimits",
    **(TENDED | {"workloads": (Workload("web", 8, 200, 128, prefers="sim-000"),), "chores": TAINTED}),
)
def _unlimited() -> None:
    replace("roles.descheduler.framework.limits:Counts.exceeded", lambda self, limits, node, namespace: "")
