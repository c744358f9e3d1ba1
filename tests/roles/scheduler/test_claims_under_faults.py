"""Pods with claims come and go while answers are lost: in the end nobody has another's device, and nobody runs without one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from koord.api.kinds import PODS, RESOURCECLAIMS, RESOURCESLICES
from koord.kube.errors import ServerError, Unreachable
from tests.roles.scheduler.test_live_claims import Obj, make
from tests.support import patience
from tests.support.claims import device, device_class, of_template, slice_of, template

NODES, DEVICES, PODS_IN_ALL = 3, 2, 14


class Faults:
    """Of the requests that bind pods and write claims some are refused, and of some the answer is lost."""

    def __init__(self, client: Any, draw: random.Random) -> None:
        self._draw, self._send = draw, client._request
        self.on, self.count = True, 0
        client._request = self.send

    async def send(self, method: str, path: str, **options: Any) -> Any:
        hurt = self.on and method in ("PATCH", "POST") and ("/resourceclaims" in path or path.endswith("/binding"))
        kind = self._draw.random() if hurt else 1.0
        if kind < 0.3:
            self.count += 1
        if kind < 0.1:
            raise ServerError(500, "InternalError", "not now")
        if kind < 0.2:
            raise Unreachable("it did not get there")
        answer = await self._send(method, path, **options)
        if kind < 0.3:
            raise Unreachable("the answer is lost")
        return answer


def problems(pods: list[Obj], claims: dict[str, Obj]) -> list[str]:
    """What is wrong: bound pods without their device, devices with two owners, claims that are allocated for nobody."""
    found: list[str] = []
    owners: dict[tuple[str, str], str] = {}
    for pod in pods:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        made = pod.get("status", {}).get("resourceClaimStatuses") or []
        status = (claims.get(made[0]["resourceClaimName"], {}).get("status") or {}) if made else {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        if node and [one["pool"] for one in results] != [node]:
            found.append(f"{name} runs on {node} with {results}")
        if node and [consumer["uid"] for consumer in status.get("reservedFor") or ()] != [pod["metadata"]["uid"]]:
            found.append(f"{name} runs, and its claim is reserved for {status.get('reservedFor')}")
        if results and not node:
            found.append(f"{name} waits, and has {results}")
        for one in results:
            other = owners.setdefault((one["pool"], one["device"]), name)
            if other != name:
                found.append(f"{name} and {other} have {one['pool']}/{one['device']}")
    return found


@pytest.mark.feature("SCH-DRA-08")
@pytest.mark.parametrize("seed", range(3))
def test_devices_have_one_owner_whatever_is_lost(scheduler: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)

    async def look(live: Any) -> tuple[list[Obj], list[str]]:
        pods = (await live.client.list(PODS)).items
        claims = {item["metadata"]["name"]: item for item in (await live.client.list(RESOURCECLAIMS)).items}
        return pods, problems(pods, claims)

    async def run() -> None:
        async with scheduler() as live:
            monkeypatch.setattr(live.app.queue, "_initial_backoff", 0.02)
            monkeypatch.setattr(live.app.queue, "_max_backoff", 0.1)
            monkeypatch.setattr("roles.scheduler.plugins.dynamic_resources.writing._PAUSES", (0.05,))
            await make(live, device_class(), template("one"))
            for number in range(NODES):
                await live.node(f"n{number}", cpu="16")
                await make(live, slice_of(f"n{number}", *(device(f"d{at}") for at in range(DEVICES))))
            faults = Faults(live.client, draw)
            names: list[str] = []
            for number in range(PODS_IN_ALL):
                name = f"p{number}"
                await live.pod(name, cpu="100m", resourceClaims=of_template(), terminationGracePeriodSeconds=0)
                names.append(name)
                await asyncio.sleep(draw.uniform(0, 0.1))
                if len(names) > 4 and draw.random() < 0.6:
                    await live.client.delete(PODS, names.pop(draw.randrange(len(names))), "default", grace_period_seconds=0)
                if number == PODS_IN_ALL // 2:  # a new generation of what is the same
                    again = slice_of("n0", *(device(f"d{at}") for at in range(DEVICES)), generation=2, name="again")
                    await make(live, again)
                    await live.client.delete(RESOURCESLICES, slice_of("n0")["metadata"]["name"])
            faults.on = False
            while len(names) > NODES * DEVICES:
                await live.client.delete(PODS, names.pop(0), "default", grace_period_seconds=0)
            pods, wrong = await look(live)
            for _ in patience.tries(300):
                if not wrong and all(pod["spec"].get("nodeName") for pod in pods):
                    break
                await asyncio.sleep(0.05)
                pods, wrong = await look(live)
            assert not wrong
            assert {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods if not pod["spec"].get("nodeName")} == {}
            assert faults.count > 0
            plugin = live.app.engine.frameworks["koord-scheduler"].plugins["DynamicResources"]
            assert sorted(plugin.cache.taken.values()) == [1] * len(pods)

    asyncio.run(run())
