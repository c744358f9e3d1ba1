"""Defects of who chooses places for pods: the scheduler, and the descheduler that moves them."""

from __future__ import annotations

from typing import Any

from koord import seams
from roles.sandbox.world.mutants.descheduler import FULL, HOT
from roles.sandbox.world.mutants.planting import Mutants, nothing, wrap
from roles.sandbox.world.spec import Chore, Workload

MUTANTS = Mutants(pods=16, koordlets=0, schedulers=1, managers=1, deschedulers=1, hostile=0, gpu_nodes=0, plan=())

MUTANTS.wrap(
    "taints-are-nobodys-concern",
    "the scheduler puts pods on nodes that are being maintained",
    "roles.scheduler.plugins.taint_toleration:TaintToleration.filter",
    nothing(),
    rule="BoundWhereItMay",
    profiles="both",
    workloads=(Workload("web", 2, 300, 256, prefers="sim-000", at=20.0),),
    chores=(Chore(10.0, "taint", "sim-000"), Chore(30.0, "clear", "sim-000")),
)


@MUTANTS.add(
    "places-are-everybodys",
    "what a reservation holds counts as free",
    rule="ReservedIsHeld",
    gpu_nodes=2,
    workloads=(HOT, *FULL, Workload("a-tide", 6, 300, 128, usage=1, at=26.8, until=40.0)),
)
def _everybodys() -> None:
    from msgspec.structs import replace as changed

    def spec(old: Any) -> Any:
        def bare(made: Any, reservation: Any, terms: Any) -> Any:
            found = old(made, reservation, terms)
            containers = tuple(changed(one, resources=type(one.resources)()) for one in found.containers)
            return changed(found, containers=containers) if terms.active else found

        return bare

    wrap("roles.scheduler.plugins.reservation.reserve_pod:_spec", spec)


@MUTANTS.add(
    "a-target-is-looked-at-once",
    "the node that a pod is to go to is looked at when the place on it is held, not when the pod is asked to leave",
    rule="TargetsAreOpen",
    nodes=2,
    workloads=(HOT,),
    chores=(Chore(30.0, "taint", "sim-001"),),
)
def _once() -> None:
    def by_now(old: Any) -> Any:
        async def early(self: Any, view: Any, pod: Any, held: Any) -> Any:
            why = await old(self, view, pod, held)
            await seams.sleep(12.0)
            return why

        return early

    wrap("roles.descheduler.migration.acting:Acting._hot_by_now", by_now)
