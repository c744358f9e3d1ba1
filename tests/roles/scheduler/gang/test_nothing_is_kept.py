"""Whatever comes and goes, a scheduler that lives for months keeps nothing of what is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest

from koord.api.kinds import DEVICES, ELASTICQUOTAS, NODEMETRICS, NODES, PODGROUPS, PODS, RESERVATIONS
from koord.api.times import format_time
from koord.kube.errors import NotFound
from tests.roles.scheduler.reservation.test_live_reservations import body as reservation

from .test_shipped_profile import shipped

_OURS = ("roles.scheduler.", "koord.kube.informers", "koord.kube.store")
BOUNDED = {"AssignTimes._left", "ChangeLog._kinds", "ChangeLog._slots", "CountColumns._groups", "CountColumns._empty",
    "Cycle._evaluations", "DefaultSelectors._known", "GangMetrics._told", "GroupIndex._in", "GroupIndex._with",
    "GroupIndex.groups"}  # fmt: skip
"""Caches that drop what was not used for longest beyond a number of entries."""


def sizes(root: Any) -> Counter[str]:
    """How many things the containers behind an object hold, by the way that leads there."""
    found, seen, todo = Counter[str](), {id(root)}, deque([(root, "app")])
    while todo:
        here, path = todo.popleft()
        if isinstance(here, dict | list | set | deque):
            found[path] += len(here)
            inside = [(value, path + "[]") for value in (here.values() if isinstance(here, dict) else here)]
        elif type(here).__module__.startswith(_OURS):
            names = [*getattr(here, "__dict__", ()), *(name for kind in type(here).__mro__ for name in getattr(kind, "__slots__", ()))]
            inside = [(getattr(here, name, None), f"{type(here).__name__}.{name}") for name in names]
        elif isinstance(here, tuple):
            inside = [(value, path) for value in here]
        elif callable(here) and getattr(here, "__self__", None) is not None:
            inside = [(here.__self__, path)]
        else:
            continue
        for value, way in inside:
            if way not in BOUNDED and id(value) not in seen and not isinstance(value, str | bytes | int | float | np.ndarray):
                seen.add(id(value))
                todo.append((value, way))
    return found


async def generation(g: Any, number: int) -> None:
    """Objects of every kind that the scheduler watches, with names of their own, come and go."""
    client, name = g.client, f"x{number}"
    await g.live.node(name, cpu="4", labels={"kubernetes.io/hostname": name, "own": name}, taints=[])
    quota = "quota.scheduling.koordinator.sh/"
    body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": name}}
    await client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": "6"}, "min": {"cpu": "2"}}}, "default")
    metric = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": name}}
    await client.create(NODEMETRICS, metric)
    used = {"updateTime": format_time(time.time()), "nodeMetric": {"nodeUsage": {"resources": {"cpu": "0", "memory": "0"}}}}
    await client.patch(NODEMETRICS, name, {"status": used}, subresource="status")
    await client.create(
        DEVICES, {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": {"name": name}, "spec": {"devices": []}}
    )
    await client.create(RESERVATIONS, reservation(name, cpu="1"))
    await g.live.pod(f"{name}-fits", cpu="1", meta={"labels": {quota + "name": name, "app": name}})
    await g.live.pod(f"{name}-does-not", cpu="900", meta={"labels": {"app": name}})
    for gang, cpu in ((f"{name}-good", "100m"), (f"{name}-bad", "3")):
        await g.group(gang, 3)
        for member in range(3):
            await g.member(f"{gang}-{member}", gang, cpu=cpu)
    await g.live.bound(f"{name}-fits")
    await g.bound(*(f"{name}-good-{member}" for member in range(3)))
    await g.said(f"{name}-does-not", "Insufficient cpu")
    for member in range(3):
        await g.said(f"{name}-bad-{member}", "Insufficient cpu")
    for pod in (await client.list(PODS, "default")).items:
        await client.delete(PODS, pod["metadata"]["name"], "default", grace_period_seconds=0)
    for kind, one, namespace in (
        *((PODGROUPS, f"{name}-{gang}", "default") for gang in ("good", "bad")),
        (ELASTICQUOTAS, name, "default"), (NODEMETRICS, name, None), (DEVICES, name, None), (RESERVATIONS, name, None), (NODES, name, None),
    ):  # fmt: skip
        with contextlib.suppress(NotFound):
            await client.delete(kind, one, namespace)
    while len(g.live.app.queue) or g.live.app.engine.cluster.slot_of(name) >= 0:
        await asyncio.sleep(0.01)


@pytest.mark.feature("SCH-FW-04")
def test_a_scheduler_keeps_nothing_of_what_is_gone(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(profiles=[shipped()], nodes=("1",)) as g:
            measured = []
            for number in range(7):
                await generation(g, number)
                if number in (2, 4, 6):
                    await asyncio.sleep(0.5)
                    gc.collect()
                    measured.append(sizes(g.live.app))
            first, second, third = measured
            grown = {path: (first[path], second[path], third[path]) for path in third if first[path] < second[path] < third[path]}
            assert grown == {}

    asyncio.run(run())
