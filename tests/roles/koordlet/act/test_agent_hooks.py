"""Hooks through the whole agent: objects and kubelet in, cgroup files and metrics out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.kinds import NODERESOURCETOPOLOGIES, NODESLOS
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.hooks import tcnetwork
from roles.koordlet.hooks.tcapply import Result
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


@pytest.mark.feature("KA-HK-09")
def test_network_qos_that_is_switched_off_after_a_restart_gives_the_root_qdisc_back(tmp_path, monkeypatch) -> None:
    shown = ["qdisc fq 8005: root refcnt 2"]

    async def run_command(command: tuple[str, ...], root: object = None) -> Result:
        if command[:3] == ("tc", "qdisc", "show"):
            return Result(0, shown[0], "")
        if command[:3] == ("tc", "qdisc", "del"):
            shown[0] = "qdisc noqueue 0: root refcnt 2"
        elif command[:2] == ("tc", "qdisc"):
            shown[0] = "qdisc htb 1: root r2q 10 default 0x2" if "htb" in command else f"qdisc {command[-1]} {command[-2]} root"
        return Result(0, "", "")

    async def story(c: Cluster) -> None:
        await c.node({"systemStrategy": {"totalNetworkBandwidth": "8G"}, "resourceQOSStrategy": {"policies": {"netQOSPolicy": "tc"}}})
        c.file("proc/net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask\nlo 00000000 0 3 0 0 0 00000000\n")
        c.file("sys/class/net/lo/operstate", "up")
        async with agent(c, "TCNetworkQoS"):
            await until(lambda: "htb" in shown[0], "the tree")
        async with agent(c, "TCNetworkQoS") as app:
            await c.client.patch(NODESLOS, "n1", {"spec": {"resourceQOSStrategy": {"policies": {"netQOSPolicy": "terway-qos"}}}})
            await until(lambda: shown[0].startswith("qdisc fq 8005: root"), "the root qdisc of before")
            await until(lambda: not app.acting.executor.noted(Undo.NETWORK), "nothing is left on record")

    monkeypatch.setattr(tcnetwork, "run_command", run_command)
    monkeypatch.setattr(tcnetwork, "foreign", lambda root, kind: "")
    run(tmp_path, story)
