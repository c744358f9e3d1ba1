"""Hooks through the whole agent: objects and kubelet in, cgroup files and metrics out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.kinds import NODERESOURCETOPOLOGIES
from tests.support.koordlet import Cluster, agent, exposed, run, until

SHARED = "node.koordinator.sh/cpu-shared-pools"


def pools(cpus: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {SHARED: json.dumps([{"socket": 0, "node": 0, "cpuset": cpus}])}}}


@pytest.mark.feature("KLO-SI-05")
@pytest.mark.feature("KA-HK-02")
def test_an_agent_that_does_not_publish_topology_follows_the_object(tmp_path) -> None:
    """Gate NodeTopologyReport off: what the object says counts, what it lacks is computed here."""

    async def story(c: Cluster) -> None:
        await c.node({})
        ls = await c.pod("ls", qos="LS", kube_qos="Burstable")
        async with agent(c, "CPUSetAllocator", node_topology_sync_interval=0.2) as app:

            def cpus() -> str:
                return c.read("cpuset", c.dirs(ls)[1], "cpuset.cpus")

            await until(lambda: app.state.local_topology is not None, "the topology computed here")
            await until(lambda: "cpuset_share_pool_cpu_cores" in exposed(app.metrics.internal), "the pool's metric")
            await c.client.patch(NODERESOURCETOPOLOGIES, "n1", pools("0-5"))
            await until(lambda: cpus() == "0-5", "the object's pool")
            await c.client.patch(NODERESOURCETOPOLOGIES, "n1", pools("4-9"))
            await until(lambda: cpus() == "4-9", "the object's new pool")
            found = await c.client.get(NODERESOURCETOPOLOGIES, "n1")
            assert set(found["metadata"]["annotations"]) == {SHARED}, "nothing is published"

    run(tmp_path, story)
