"""A Reservation that holds devices: its owner gets them, whatever the order of plugins at Reserve."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api.kinds import DEVICES, NODES, PODS
from tests.roles.scheduler.reservation.test_live_reservations import Reservations, allocated
from tests.roles.scheduler.reservation.worlds import AFFINITY, OWNER, enabled, profile
from tests.support.devices import ALLOCATED, CORE, EVERYTHING, MEMORY, RATIO, device, gpus

Obj = dict[str, Any]
CARD = {CORE: "100", RATIO: "100"}


def config(*order: str) -> Obj:
    made = profile()
    plugins = made["plugins"]
    plugins["preFilter"], plugins["filter"] = enabled("Reservation", "DeviceShare"), enabled("DeviceShare", "Reservation")
    plugins["reserve"], plugins["preBind"] = enabled(*order), enabled("DeviceShare", "Reservation", "DefaultPreBind")
    return {"profiles": [made]}


async def machine(live: Any) -> None:
    await live.node("n", cpu="100", memory="1Ti")
    amounts = {**EVERYTHING, MEMORY: "10Ti"}
    await live.client.patch(NODES, "n", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
    body = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", **device("n", gpus(2))}
    await live.client.create(DEVICES, body)


async def ask(live: Any, name: str, **meta: Any) -> None:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1", **CARD}, "limits": {"cpu": "1", **CARD}}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}}
    await live.client.create(PODS, {**body, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}, "default")


def minors(thing: Obj) -> list[int]:
    return [item["minor"] for item in json.loads(thing["metadata"]["annotations"][ALLOCATED])["gpu"]]


@pytest.mark.feature("SCH-RSV-08")
@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.parametrize("order", [("DeviceShare", "Reservation"), ("Reservation", "DeviceShare")])
@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
def test_the_card_that_is_reserved_goes_to_the_owner(scheduler: Any, order: tuple[str, str], policy: str) -> None:
    async def run() -> None:
        async with scheduler(config(*order), crds=True) as live:
            await machine(live)
            found = Reservations(live)
            await found.make("r", cpu="1", memory="1Gi", requests=CARD, policy=policy)
            held = minors(await found.phase("r", "Available"))
            await ask(live, "stranger")
            await live.bound("stranger")
            (other,) = minors(await live.get("stranger"))
            assert [other] != held
            await ask(live, "second")
            await live.refused("second")
            for name in ("p", "q"):
                await ask(live, name, labels=OWNER, annotations={AFFINITY: "{}"})
                await live.bound(name)
                pod = await live.get(name)
                assert allocated(pod) == "r"
                assert minors(pod) == held
                used = await found.until("r", lambda r: r["status"].get("currentOwners"))
                assert used["status"]["allocated"][CORE] == "100"
                await live.client.delete(PODS, name, "default", grace_period_seconds=0)
                await found.until("r", lambda r: not r["status"].get("currentOwners"))
            assert live.app.observer.audit() == []

    asyncio.run(run())
