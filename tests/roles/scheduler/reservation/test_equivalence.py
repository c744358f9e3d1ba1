"""Deciding with reservations: kept vectors equal fresh ones, and both equal a plain reference that follows the specification's words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.pods import pod_requests
from koord.api.objects import Pod, Reservation
from roles.scheduler import testing
from roles.scheduler.cycle.evaluation import Evaluation
from roles.scheduler.framework.context import CycleContext
from tests.roles.scheduler.reservation.worlds import AFFINITY, BY_LABEL, OWNER, World, placed
from tests.support.examples import examples

HOST = "kubernetes.io/hostname"
NODES = 5
OTHERS = [{"labelSelector": {"matchLabels": {"app": "other"}}}]


def shapes() -> list[dict[str, Any]]:
    """Owners and strangers, with everything that looks at pods of other nodes or at ports."""
    about = {"labelSelector": {"matchLabels": OWNER}, "topologyKey": HOST}
    spread = {**about, "maxSkew": 1}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [about]}}
    return [
        {"labels": OWNER, "cpu": "1"},
        {"labels": OWNER, "cpu": "3", "annotations": {AFFINITY: "{}"}},
        {"labels": OWNER, "cpu": "2", "topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "DoNotSchedule"}]},
        {"labels": OWNER, "cpu": "500m", "topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"labels": OWNER, "cpu": "1", "affinity": anti},
        {"labels": {"app": "other"}, "cpu": "2", "ports": [{"containerPort": 80, "hostPort": 80}]},
        {"labels": {"app": "other"}, "cpu": "1", "annotations": {AFFINITY: json.dumps({"reservationSelector": {"tier": "gold"}})}},
        {"labels": {"app": "stranger"}, "cpu": "2"},
        {"labels": {"scheduling.koordinator.sh/reservation-ignored": "true"}, "cpu": "3"},
    ]


def reservation(name: str, node: str, kind: int, *, phase: str = "Available") -> Reservation:
    made = placed(
        name, node, phase=phase, cpu=str(1 + kind % 4), memory="1Gi", once=kind % 3 == 0, owners=BY_LABEL if kind % 2 else OTHERS,
        policy=("Aligned", "Restricted")[kind // 2 % 2], labels={"tier": ("gold", "silver")[kind % 2]}, unschedulable=kind == 7,
        ports=[{"containerPort": 80, "hostPort": 80}] if kind == 4 else [],
    )  # fmt: skip
    if made.spec.template is not None and kind in (1, 3):
        made.spec.template.metadata.labels.update(OWNER)
    return made


STEP = st.tuples(
    st.sampled_from(["pod", "pod", "pod", "pod", "assigned", "delete", "hold", "hold", "drop", "change", "node", "remove"]),
    st.integers(0, 8),
    st.integers(0, 7),
)


@pytest.mark.feature("SCH-RSV-06")
@pytest.mark.feature("SCH-RSV-07")
@examples(32)
@given(plan=st.lists(STEP, min_size=1, max_size=30))
def test_kept_vectors_equal_fresh_ones_and_the_reference(plan: list[tuple[str, int, int]]) -> None:
    check(plan)


def check(plan: list[tuple[str, int, int]]) -> None:
    world = World()
    world.add_nodes(*(testing.node(f"n{number}", cpu=str(4 + number)) for number in range(NODES)))
    there: list[str] = []
    held: dict[str, tuple[str, int]] = {}
    templates = shapes()
    for step, (kind, number, value) in enumerate(plan):
        node = f"n{value % NODES}"
        if kind == "pod":
            decision = world.schedule(testing.pod(**templates[number]))
            if decision.scheduled:
                there.append(decision.pod.uid)
        elif kind == "assigned":
            there += [info.uid for info in world.add_pods(testing.pod(node=node, **templates[number]))]
        elif kind == "delete" and there:
            world.cluster.remove_pod(there.pop(value % len(there)))
        elif kind == "hold":
            held[f"r{step}"] = (node, number)
            world.feed("Reservation", reservation(f"r{step}", node, number))
        elif kind == "drop" and held:
            name = sorted(held)[value % len(held)]
            where, what = held.pop(name)
            world.feed("Reservation", reservation(name, where, what, phase="Succeeded"))
        elif kind == "change" and held:
            name = sorted(held)[value % len(held)]
            where, what = held[name]
            held[name] = (where, number)
            world.feed("Reservation", reservation(name, where, number), old=reservation(name, where, what))
        elif kind == "node":
            world.add_nodes(testing.node(node, cpu=str(2 + number)))
        elif kind == "remove":
            world.cluster.remove_node(node)
        elif kind == "report":
            report(world, node, number)
        for template in templates:
            compare(world, testing.pod(**template))


def report(world: World, node: str, number: int) -> None:
    """Agents tell of a node: of what this profile does not look at."""


def compare(world: World, pod: Pod) -> None:
    info = world.parser.parse(pod)
    kept_ctx, ctx = CycleContext(world.state, info), CycleContext(world.state, info)
    kept = world.cycle.evaluation(world.framework, kept_ctx)
    fresh = Evaluation(world.framework, world.cluster)
    fresh.update(ctx)
    np.testing.assert_array_equal(kept.feasible, fresh.feasible)
    assert dict(kept.restored) == dict(fresh.restored)
    if fresh.count:
        np.testing.assert_array_equal(kept.totals, fresh.totals)
    for slot in np.flatnonzero(world.cluster.alive).tolist():
        expected = reference(world, pod, slot)
        mine = next(vector.code(slot) for vector in kept.filters if vector.plugin.name == "Reservation")
        if expected is not None:
            usable, fits = expected
            assert {found.name for found in kept.restored.get(slot, ())} == usable
            first = all(not v.code(slot) for v in kept.filters if v.plugin.name != "Reservation")
            if first:
                assert (not mine) == fits, (pod.metadata.labels, world.cluster.name_of(slot))
            nominated = world.plugin.nominate(kept_ctx, slot) if kept.feasible[slot] else None
            assert nominated is None or nominated.name in usable


def reference(world: World, pod: Pod, slot: int) -> tuple[set[str], bool] | None:
    """(names of usable reservations on a node, whether the pod fits there) with plain integers; None for pods that ignore them all."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if "scheduling.koordinator.sh/reservation-ignored" in labels:
        return None
    row = world.cluster.row(slot)
    ledger = world.plugin.ledger
    request = {name: amount for name, amount in pod_requests(pod).items() if amount}
    free = dict(row.view.allocatable) if row.view is not None else {}
    here = [held for held in ledger.held.values() if held.slot == slot]
    owners = {uid for held in here for uid in held.owners}
    for uid, other in row.pods.items():
        if not other.reservation and uid not in owners:
            free = {name: amount - other.shape.amounts.get(name, 0) for name, amount in free.items()}
    rest: dict[str, dict[str, int]] = {}
    for held in here:
        terms, taken = held.terms, dict.fromkeys(free, 0)
        for owner in held.owners.values():
            taken = {name: taken[name] + owner.shape.amounts.get(name, 0) for name in taken}
        # The full amount is off the node whether it is used or not, and what owners take beyond it too.
        free = {name: amount - max(terms.allocatable.get(name, 0), taken[name]) for name, amount in free.items()}
        rest[terms.name] = {name: max(0, terms.allocatable.get(name, 0) - taken[name]) for name in free}
    required, gold = AFFINITY in annotations, "gold" in annotations.get(AFFINITY, "")
    usable, fitting = set(), False
    for held in here:
        terms = held.terms
        wanted = {"app": "owner"} if terms.owners[0].label_selector.match_labels == OWNER else {"app": "other"}  # type: ignore[union-attr]
        spent = terms.allocate_once and bool(held.owners or held.consumed)
        if labels.get("app") != wanted["app"] or terms.unschedulable or spent or (gold and terms.labels["tier"] != "gold"):
            continue
        usable.add(terms.name)
        fits = all(amount <= free.get(name, 0) + rest[terms.name].get(name, 0) for name, amount in request.items())
        if terms.policy == "Restricted":
            fits = fits and all(amount <= rest[terms.name][name] for name, amount in request.items() if name in terms.allocatable)
        others = [other for other in here if other is not held and other.matchable and other.terms.name != terms.name]
        fitting = fitting or (fits and not clashes(pod, others, labels))
    if not usable:
        return usable, not required or True
    alone = all(amount <= free.get(name, 0) for name, amount in request.items()) and not clashes(pod, here, labels)
    return usable, fitting or (not required and alone)


def clashes(pod: Pod, others: list[Any], labels: dict[str, str]) -> bool:
    """Whether a reservation that the pod would not use holds the port that it wants."""
    wants = any(port.host_port for container in pod.spec.containers for port in container.ports)
    return wants and any(held.pod.shape.ports for held in others)
