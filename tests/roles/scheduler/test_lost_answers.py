"""Bindings whose answer is lost, of pods that hold more than CPU and memory: nothing has two owners, whichever comes first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord.api import names
from koord.api.kinds import EVENTS, NODES, PODS, RESERVATIONS
from koord.kube.errors import Forbidden, ServerError, Unreachable
from tests.roles.scheduler.device.test_live_devices import CONFIG, ask, machine
from tests.roles.scheduler.numa.test_live_numa import Numa, config
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


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-RSV-01")
def test_a_reservation_that_others_have_placed_stays_where_it_is(scheduler: Any) -> None:
    async def run() -> None:
        async with started(scheduler) as live:
            reservations = Reservations(live)
            await live.node("n", cpu="4")
            patch, others = live.app.client.patch, []

            async def overtaken(kind: Any, name: str, content: Any, *args: Any, **more: Any) -> Any:
                if kind is RESERVATIONS and "nodeName" in (content.get("status") or {}) and not others:
                    others.append(name)
                    theirs = {"status": {**content["status"], "nodeName": "m"}}
                    await patch(kind, name, theirs, *args, **more)
                return await patch(kind, name, content, *args, **more)

            live.app.client.patch = overtaken
            await reservations.make("kept", cpu="3")
            assert (await reservations.phase("kept", "Available"))["status"]["nodeName"] == "m"
            await live.pod("stranger", cpu="4")
            assert await live.bound("stranger") == "n"
            assert (await live.client.get(RESERVATIONS, "kept"))["status"]["nodeName"] == "m"

    asyncio.run(run())


RACES = ("before it is written", "before it is bound", "between two tries", "on our node between two tries", "with a word of its own")


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.feature("SCH-PB-01")
@pytest.mark.parametrize("race", RACES)
def test_a_pod_that_others_bind_does_not_keep_what_was_written_for_our_binding(scheduler: Any, race: str) -> None:
    """Its CPUs are those of a node that it is not on, or were given to another pod since: nobody says for which node they were."""

    async def run() -> None:
        async with scheduler(config(), crds=True) as live:
            numa = Numa(live)
            await numa.machine("n")
            client, where = live.app.client, "n" if "on our node" in race else "m"
            bind, patch, tries = client.bind, client.patch, []
            status = names.ANNOTATION_RESOURCE_STATUS

            async def patches(kind: Any, name: str, body: Any, *args: Any, **more: Any) -> Any:
                if race == RACES[0] and status in str(body) and not tries:
                    tries.append(name)
                    await bind("default", name, where)
                return await patch(kind, name, body, *args, **more)

            async def binds(namespace: str, pod: str, node: str, uid: str | None = None) -> None:
                tries.append(node)
                if race == RACES[4]:
                    await live.client.patch(PODS, pod, {"metadata": {"annotations": {status: '{"cpuset": "7"}'}}}, namespace)
                if "between" in race:
                    raise Forbidden(403, "Forbidden", "not now")
                await bind(namespace, pod, where)
                await bind(namespace, pod, node, uid=uid)

            client.patch, client.bind = patches, binds
            await numa.pod("p")
            if "between" in race:
                await live.refused("p")
                assert status in (await live.get("p"))["metadata"]["annotations"]
                client.bind = bind
                await live.client.delete(NODES, "n") if where == "m" else await live.client.patch(
                    NODES, "n", {"spec": {"unschedulable": True}}
                )
                await bind("default", "p", where)
            assert await live.bound("p") == where
            assert tries
            gone = await live.until("p", lambda pod: (status in pod["metadata"].get("annotations", {})) is (race == RACES[4]))
            assert gone["metadata"].get("annotations", {}).get(status) == ('{"cpuset": "7"}' if race == RACES[4] else None)

    asyncio.run(run())
