"""Many reservations and pods at once through the API server: in the end the books, the statuses and the annotations say the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from koord.accounting.resources import parse
from koord.api.kinds import PODS, RESERVATIONS
from koord.kube.errors import ApiError
from tests.roles.scheduler.reservation.test_live_reservations import started
from tests.roles.scheduler.reservation.worlds import AFFINITY, ALLOCATED, body
from tests.support import patience

NODES = 4


async def churn(live: Any, draw: random.Random) -> None:
    for step in range(90):
        app = f"app-{draw.randrange(4)}"
        action = draw.random()
        with contextlib.suppress(ApiError):
            if action < 0.25:
                owners = [{"labelSelector": {"matchLabels": {"app": app}}}]
                policy = draw.choice(("Aligned", "Restricted"))
                made = body(f"r{step}", cpu=draw.choice(("1", "2")), memory="256Mi", owners=owners, policy=policy, once=draw.random() < 0.4)
                await live.client.create(RESERVATIONS, made)
            elif action < 0.7:
                annotations = {AFFINITY: "{}"} if draw.random() < 0.3 else {}
                await live.pod(f"p{step}", cpu=draw.choice(("500m", "1")), meta={"labels": {"app": app}, "annotations": annotations})
            elif action < 0.85:
                pods = (await live.client.list(PODS, "default")).items
                if pods:
                    await live.client.delete(PODS, draw.choice(pods)["metadata"]["name"], "default", grace_period_seconds=0)
            else:
                known = (await live.client.list(RESERVATIONS)).items
                if known:
                    await live.client.delete(RESERVATIONS, draw.choice(known)["metadata"]["name"])
        if draw.random() < 0.5:
            await asyncio.sleep(0.01)


def problems(live: Any, pods: list[Any], reservations: list[Any]) -> list[str]:
    """What does not go together."""
    found: list[str] = list(live.app.observer.audit())
    owners: dict[str, set[str]] = {}
    for pod in pods:
        text = pod["metadata"].get("annotations", {}).get(ALLOCATED)
        if text and pod["spec"].get("nodeName"):
            owners.setdefault(json.loads(text)["uid"], set()).add(pod["metadata"]["uid"])
    used = dict.fromkeys((f"n{number}" for number in range(NODES)), 0)
    for pod in pods:
        if pod["spec"].get("nodeName"):
            used[pod["spec"]["nodeName"]] += parse(pod["spec"]["containers"][0]["resources"]["requests"])["cpu"]
    for reservation in reservations:
        name, uid, status = reservation["metadata"]["name"], reservation["metadata"]["uid"], reservation.get("status", {})
        if status.get("phase") != "Available":
            continue
        mine = owners.get(uid, set())
        shown = {owner["uid"] for owner in status.get("currentOwners", ())}
        if shown != mine:
            found.append(f"{name} shows owners {shown}, pods say {mine}")
        if reservation["spec"]["allocateOnce"] and mine:
            found.append(f"{name} was used and is still there")
        taken = sum(parse(p["spec"]["containers"][0]["resources"]["requests"])["cpu"] for p in pods if p["metadata"]["uid"] in mine)
        used[status["nodeName"]] += max(0, parse(status["allocatable"])["cpu"] - taken)
    return found + [f"{node} is oversold: {amount}" for node, amount in used.items() if amount > 4000]


@pytest.mark.feature("SCH-RSV-05")
@pytest.mark.feature("SCH-RSV-08")
@pytest.mark.parametrize("seed", [1, 2])
def test_in_the_end_all_say_the_same(scheduler: Any, seed: int) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            for number in range(NODES):
                await live.node(f"n{number}", cpu="4")
            await churn(live, random.Random(seed))
            left = ["not looked at"]
            for _ in patience.tries(300):
                pods, reservations = (await live.client.list(PODS, "default")).items, (await live.client.list(RESERVATIONS)).items
                left = problems(live, pods, reservations)
                if not left:
                    break
                await asyncio.sleep(0.05)
            assert left == []
            assert not live.running.done()
            assert any(pod["metadata"].get("annotations", {}).get(ALLOCATED) for pod in pods)

    asyncio.run(run())
