"""Jobs under the profile that is shipped: beside reservations, NUMA, devices, load and quotas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .test_live_topology import MUST, gather, racks, topology

Obj = dict[str, Any]

POINTS = {
    "preEnqueue": ["Coscheduling"],
    "preFilter": ["SchedulingHint", "Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota"],
    "filter": ["Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"],
    "preScore": ["Reservation", "Coscheduling"],
    "score": ["LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling"],
    "reserve": ["Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"],
    "permit": ["Coscheduling"],
    "preBind": ["NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"],
    "postBind": ["Coscheduling"],
}


def shipped() -> Obj:
    plugins: Obj = {point: {"enabled": [{"name": name} for name in listed]} for point, listed in POINTS.items()}
    everything = [{"name": "*"}]
    plugins["postFilter"] = {"disabled": everything, "enabled": [{"name": n} for n in ("Reservation", "Coscheduling", "ElasticQuota")]}
    plugins["bind"] = {"disabled": everything, "enabled": [{"name": "Reservation"}, {"name": "DefaultBinder"}]}
    plugins["queueSort"] = {"disabled": everything, "enabled": [{"name": "PrioritySort"}]}
    return {
        "schedulerName": "koord-scheduler",
        "plugins": plugins,
        "pluginConfig": [{"name": "Coscheduling", "args": {"awareNetworkTopology": True, "enablePreemption": True}}],
    }


@pytest.mark.feature("SCH-NT-02")
@pytest.mark.feature("SCH-JP-01")
def test_a_gang_is_planned_and_room_is_made_beside_all_other_plugins(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(profiles=[shipped()], options={"network_topology": True}) as g:
            await g.priority("high", 1000)
            await racks(g, a=("r1", "8"), b=("r2", "8"), c=("r2", "8"))
            await topology(g)
            await g.group("first", 3, annotations=gather(MUST))
            for number in range(3):
                await g.member(f"p{number}", "first", cpu="4")
            assert await g.bound("p0", "p1", "p2") == {"p0": "b", "p1": "b", "p2": "c"}
            await g.live.pod("low", cpu="4", terminationGracePeriodSeconds=0, nodeSelector={"kubernetes.io/hostname": "a"})
            await g.live.bound("low")
            await g.group("second", 2)
            for number in range(2):
                await g.member(f"q{number}", "second", cpu="6", priorityClassName="high")
            await g.bound("q0", "q1")
            left = await g.nodes_of()
            assert "low" not in left
            assert all(left.values())

    asyncio.run(run())
