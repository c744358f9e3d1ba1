"""Hostile annotation sets, all at once on one machine, through the whole agent: nobody gets more than it requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.koordlet import Cluster, agent, run, until

P, S = "koordinator.sh/", "scheduling.koordinator.sh/"


def _json(key: str, **members: object) -> dict[str, str]:
    return {key: json.dumps(members)}


SETS: list[dict[str, str]] = [
    *({S + "resource-status": text} for text in (
        '{"cpuset":"0-13"}', '{"cpuset":"0"}', '{"cpuset":"0-65535"}', '{"cpuset":"-1"}', '{"cpuset":"99"}', '{"cpuset":["0"]}', '"0-3"',
        "[",
        "null",
        '{"cpuset":"0-3","numaNodeResources":[{"node":-1,"resources":{"cpu":"1"}}]}', '{"cpuset":"0-3","numaNodeResources":7}',
        '{"cpuset":"0,0,0,1-1"}', '{"cpuset":" 0 - 3 "}', '{"cpuset":"0-3\\n4"}',
    )),
    *(_json(P + "cpuBurst", policy=policy, cfsQuotaBurstPercent=percent, cpuBurstPercent=percent)
      for policy in ("auto", "cfsQuotaBurstOnly", "none") for percent in (1_000_000, -1)),
    _json(P + "cpuBurst", policy="auto", cfsQuotaBurstPeriodSeconds=-999),
    *(_json(P + "memoryQOS", policy=policy, minLimitPercent=percent, lowLimitPercent=percent)
      for policy in ("auto", "default") for percent in (100_000, -100)),
    _json(P + "memoryQOS", policy="auto", wmarkRatio=10_000, wmarkMinAdj=-999, priority=99, throttlingPercent=-5),
    {P + "oom-score-adj": "-1000"},
    {P + "oom-score-adj-spec": '{"main":-1000}'},
    {P + "cpuQOS": '{"enable":true,"groupIdentity":2}'},
    {P + "blkioQOS": '{"blocks":[{"name":"/dev/sda","type":"device","ioCfg":{"ioWeightPercent":100000}}]}'},
    {P + "eviction-policy": "[]"},
    {"node.koordinator.sh/resctrl": '{"llc":{"schemata":{"range":[0,100]}}}'},
    {S + "device-allocated": '{"gpu":[{"minor":0},{"minor":1}],"rdma":[{"minor":0,"id":"../.."}]}'},
]  # fmt: skip


@pytest.mark.feature("BEY-SEC-03")
def test_hostile_annotations_take_nothing(tmp_path: Path) -> None:
    assert len(SETS) >= 30

    async def story(c: Cluster) -> None:
        await c.node({})
        resources = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "128Mi"}}
        pods = []
        for number, given in enumerate(SETS):
            pods.append(await c.pod(f"h{number}", qos="LS", kube_qos="Burstable", quota=10_000, resources=resources, annotations=given))
        for directory in ("kubepods.slice", "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice"):
            for file in ("memory.min", "memory.low"):
                c.cgroup("memory", directory, file, "0")
        for pod in pods:
            for directory in c.dirs(pod):
                for file in ("memory.min", "memory.low"):
                    c.cgroup("memory", directory, file, "0")
        gates = ("CPUSetAllocator", "CPUBurst", "CgroupReconcile", "NodeTopologyReport", "BECPUSuppress")
        async with agent(c, *gates) as app:
            await until(lambda: hasattr(app, "pod_cache") and len(app.pod_cache.pods) == len(SETS), "all pods")

            def told() -> bool:
                records = [r for pod in app.pod_cache.pods for r in app.recorder.ring.find("Pod", pod.namespace, pod.name)]
                return sum(r.verdict == "Ignored" for r in records) >= 15

            await until(told, "what is ignored on record", 40)
            await until(
                lambda: c.read("cpuset", c.dirs(pods[0])[1], "cpuset.cpus") == "0-15", "the share pool, which all of them share", 40
            )
        for pod, given in zip(pods, SETS, strict=True):
            outer, inner = c.dirs(pod)
            for directory in (outer, inner):
                assert c.read("cpu", directory, "cpu.cfs_quota_us") == "10000", given
                assert 0 <= int(c.read("memory", directory, "memory.min")) <= 64 << 20, given
                assert 0 <= int(c.read("memory", directory, "memory.low")) <= 64 << 20, given
            assert c.read("cpuset", inner, "cpuset.cpus") == "0-15", given
        assert int(c.read("memory", "kubepods.slice", "memory.min")) <= len(SETS) * (64 << 20)

    run(tmp_path, story)
