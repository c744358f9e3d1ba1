"""Reservations whose template is of a gang are members of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import RESERVATIONS
from koord.api.names import ANNOTATION_BIND_GANG_MEMBER_COUNT, LABEL_POD_GROUP
from tests.support import patience

from .conftest import profile

Obj = dict[str, Any]


def with_reservations() -> Obj:
    found = profile(post_filter=("Reservation", "Coscheduling"))
    for point in ("preFilter", "filter", "preScore", "score", "reserve", "preBind", "bind"):
        held = found["plugins"].setdefault(point, {"enabled": []})
        held["enabled"] = [{"name": "Reservation"}, *held["enabled"]]
    found["plugins"]["bind"] = {"disabled": [{"name": "*"}], "enabled": [{"name": "Reservation"}, {"name": "DefaultBinder"}]}
    return found


async def reservation(g: Any, name: str, gang: str, cpu: str) -> None:
    container = {"name": "main", "image": "registry.k8s.io/pause:3.9", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    template = {
        "metadata": {"namespace": "default", "labels": {LABEL_POD_GROUP: gang}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
    }
    body = {
        "apiVersion": RESERVATIONS.api_version, "kind": "Reservation", "metadata": {"name": name},
        "spec": {"template": template, "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}], "ttl": "1h"},
    }  # fmt: skip
    await g.client.create(RESERVATIONS, body)


@pytest.mark.feature("SCH-GANG-01")
@pytest.mark.feature("SCH-GANG-08")
def test_a_pod_and_a_reservation_of_one_gang_wait_for_each_other(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations()]) as g:
            await g.group("mixed", 2)
            await g.member("p0", "mixed", cpu="2")
            await g.said("p0", "default/mixed has 1 of 2 pods")
            await reservation(g, "r0", "mixed", "2")
            assert await g.live.bound("p0") == "n0"
            found: Obj = {}
            for _ in patience.tries(400):
                found = await g.client.get(RESERVATIONS, "r0")
                if (found.get("status") or {}).get("nodeName"):
                    break
                await asyncio.sleep(0.02)
            assert found["status"]["nodeName"] == "n0"
            assert found["metadata"]["annotations"][ANNOTATION_BIND_GANG_MEMBER_COUNT] == "2"

    asyncio.run(run())


@pytest.mark.feature("SCH-GANG-07")
def test_a_reservation_that_does_not_fit_holds_its_gang_back(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",), profiles=[with_reservations()]) as g:
            await g.group("mixed", 2)
            await reservation(g, "r0", "mixed", "8")
            await g.member("p0", "mixed", cpu="2")
            await g.said("p0", "Insufficient cpu")
            await g.quiet()
            assert not (await g.nodes_of())["p0"]
            assert not ((await g.client.get(RESERVATIONS, "r0")).get("status") or {}).get("nodeName")

    asyncio.run(run())
