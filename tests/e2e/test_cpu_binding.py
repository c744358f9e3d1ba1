"""From the machine's topology to the container's CPUs: koordlet reports, the scheduler picks, koordlet binds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord.accounting.cpuset import CPUSet
from koord.api import names
from koord.api.kinds import NAMESPACES, NODERESOURCETOPOLOGIES, PODS
from koord.config.scheduler import KubeSchedulerConfiguration
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.scheduler.app import App
from roles.scheduler.options import Options
from tests.support import patience
from tests.support.koordlet import Cluster, agent, run, until
from tests.support.numa import LSR, profile


@contextlib.asynccontextmanager
async def scheduler(client: Any) -> AsyncIterator[None]:
    """A running scheduler whose profile binds CPUs."""
    content = profile()
    content["plugins"]["preBind"] = {"enabled": [{"name": "NodeNUMAResource"}, {"name": "DefaultPreBind"}]}
    config = KubeSchedulerConfiguration.model_validate(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "profiles": [{"schedulerName": "koord-scheduler", **content}],
        }
    )  # fmt: skip
    informers, recorder, life = InformerFactory(client), Recorder("scheduler"), Life()
    app = App(Options(config), client=client, informers=informers, recorder=recorder, ops=OpsServer("127.0.0.1", 0, recorder=recorder))
    running = asyncio.create_task(app.run(life))
    try:
        yield
    finally:
        life.stop()
        await asyncio.wait_for(running, patience.seconds(5))
        await life.finish()
        await informers.stop()


async def report(c: Cluster) -> dict[str, str]:
    found = await c.client.get(NODERESOURCETOPOLOGIES, "n1")
    return dict(found["metadata"].get("annotations") or {})


@pytest.mark.feature("SCH-NUMA-11")
@pytest.mark.feature("KA-HK-02")
@pytest.mark.feature("KLO-SI-05")
def test_a_pod_runs_on_the_cpus_that_the_scheduler_picked_from_the_agents_report(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        with contextlib.suppress(Exception):
            await c.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        await c.node({})
        async with agent(c, "NodeTopologyReport", "CPUSetAllocator", node_topology_sync_interval=0.2), scheduler(c.client):
            for _ in patience.tries(400):
                if names.ANNOTATION_NRT_CPU_TOPOLOGY in await report(c):
                    break
                await asyncio.sleep(0.05)
            resources = {"requests": {"cpu": "4", "memory": "1Gi"}}
            body = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound", "namespace": "default", "labels": LSR},
                "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "main", "image": "i", "resources": resources}]},
            }  # fmt: skip
            await c.client.create(PODS, body)
            pod: dict[str, Any] = {}
            for _ in patience.tries(400):
                pod = await c.client.get(PODS, "bound", "default")
                if pod["spec"].get("nodeName"):
                    break
                await asyncio.sleep(0.05)
            cpus = orjson.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESOURCE_STATUS])["cpuset"]
            assert cpus == "0-3"
            made = await c.running("bound", kube_qos="Burstable")
            await until(lambda: c.read("cpuset", c.dirs(made)[1], "cpuset.cpus") == cpus, "the CPUs of the container")
            # What is left is shared: the agent takes the pod's CPUs out of the pool that it reports.
            for _ in patience.tries(400):
                pools = orjson.loads((await report(c))[names.ANNOTATION_NRT_CPU_SHARED_POOLS])
                if CPUSet.parse(pools[0]["cpuset"]).isdisjoint(CPUSet.parse(cpus)):
                    break
                await asyncio.sleep(0.05)
            assert CPUSet.parse(pools[0]["cpuset"]) == CPUSet.parse("4-15")

    run(tmp_path, story)
