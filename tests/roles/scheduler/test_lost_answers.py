"""Bindings whose answer is lost, of pods that hold more than CPU and memory: nothing has two owners, whichever comes first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api.kinds import EVENTS, RESERVATIONS
from koord.kube.errors import ServerError, Unreachable
from tests.roles.scheduler.device.test_live_devices import CONFIG, ask, machine
from tests.roles.scheduler.reservation.test_live_reservations import Reservations, allocated, owner_meta, started
from tests.support.devices import ALLOCATED, CORE, RATIO, gpus


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-DEV-11")
@pytest.mark.parametrize(
    ("watch_first", "failure"), [(True, ServerError(504, "Timeout", "timed out")), (False, Unreachable("connection reset"))]
)
def test_a_card_has_one_owner_although_the_answer_to_its_binding_was_lost(scheduler: Any, watch_first: bool, failure: Exception) -> None:
    async def run() -> None:
        async with scheduler(CONFIG, crds=True, before=lambda objects: machine(objects, "n", gpus(1))) as live:
            bind, sent = live.app.client.bind, []

            async def lost(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                sent.append(pod)
                await bind(namespace, pod, node, uid=uid)
                while watch_first and live.app.cache.is_assumed(uid):
                    await asyncio.sleep(0.005)
                raise failure

            live.app.client.bind = lost
            for name in ("first", "second", "third"):
                await ask(live, name, {CORE: 40, RATIO: 40})
            for name in ("first", "second"):
                await live.bound(name)
            await live.refused("third")
            given = [json.loads((await live.get(name))["metadata"]["annotations"][ALLOCATED]) for name in ("first", "second")]
            assert [one["gpu"][0]["resources"][CORE] for one in given] == ["40", "40"]
            assert (await live.get("third"))["spec"].get("nodeName") is None
            told = {e["regarding"]["name"] for e in (await live.client.list(EVENTS, "default")).items if e["reason"] == "FailedScheduling"}
            assert told <= {"third"}
            assert sent == ["first", "second"]

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-RSV-01")
@pytest.mark.parametrize("committed", [True, False])
def test_a_reservation_whose_answer_was_lost_is_there_once_and_for_its_owner(scheduler: Any, committed: bool) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            reservations = Reservations(live)
            await live.node("n", cpu="4")
            patch, lost = live.app.client.patch, []

            async def answerless(kind: Any, name: str, content: Any, *args: Any, **more: Any) -> Any:
                if kind is RESERVATIONS and "nodeName" in (content.get("status") or {}) and not lost:
                    lost.append(name)
                    if committed:
                        await patch(kind, name, content, *args, **more)
                    raise Unreachable("connection reset")
                return await patch(kind, name, content, *args, **more)

            live.app.client.patch = answerless
            await reservations.make("kept", cpu="3")
            found = await reservations.phase("kept", "Available")
            assert lost == ["kept"]
            assert found["status"]["nodeName"] == "n"
            await live.pod("stranger", cpu="2")
            await live.refused("stranger")
            await live.pod("owner", cpu="3", meta=owner_meta())
            assert await live.bound("owner") == "n"
            assert allocated(await live.get("owner")) == "kept"
            assert len(live.app.scheduler.placements) == 0

    asyncio.run(run())
