"""What was asked for and cannot work here is named at the start, in the NodeMetric and by doctor (KLO-CFG-01)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS
from koord.config.gates import KOORDLET, FeatureGates
from roles.koordlet.host.root import HostRoot
from roles.koordlet.report import policy
from roles.koordlet.selftest import BLOCKED, Machine, blocked
from roles.tools.doctor.facts import ClusterFacts
from roles.tools.doctor.judge_cluster import _features
from tests.support.koordlet import BE_TIER, Cluster, agent, run, until

pytestmark = pytest.mark.feature("KLO-CFG-01")


def host(base: Path, *files: str, v2: bool = False) -> HostRoot:
    for file in ("proc/filesystems", "proc/1/ns/.keep", *files):
        (base / file).parent.mkdir(parents=True, exist_ok=True)
        (base / file).write_text("")
    for sub in ("cpu", "cpuset", "memory", "cpuacct", "perf_event"):
        (base / "sys/fs/cgroup" / ("" if v2 else sub) / BE_TIER).mkdir(parents=True, exist_ok=True)
    if v2:
        (base / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory")
    return HostRoot.at(str(base))


V1 = tuple(
    f"sys/fs/cgroup/{sub}/{directory}/{file}"
    for sub, file in (("cpu", "cpu.cfs_quota_us"), ("cpu", "cpu.shares"), ("cpuset", "cpuset.cpus"), ("memory", "memory.limit_in_bytes"))
    for directory in (BE_TIER, "kubepods.slice")
)


def test_every_gate_that_touches_the_machine_has_a_check() -> None:
    free = {  # decide, report or answer requests, and need nothing of the machine that others do not need too
        "NodeTopologyReport", "AuditEvents", "AuditEventsHTTPHandler", "BECPUManager", "BECPUEvict", "BEMemoryEvict", "CPUEvict",
        "MemoryEvict",
        "CPUAllocatableEvict", "MemoryAllocatableEvict", "RDMADevices", "Libpfm4", "HugePageReport", "HamiCoreVGPUMonitor", "PerCPUMetric",
        "NodeMetricPromMetrics", "GPUEnvInject", "RDMADeviceInject", "TerwayQoS",
    }  # fmt: skip
    assert {row.gate for row in BLOCKED} | free == {*KOORDLET} - {"AllAlpha", "AllBeta"}


def test_on_a_machine_that_has_everything_nothing_lacks(tmp_path: Path) -> None:
    root = host(tmp_path, *V1)
    gates = {"BECPUSuppress", "CPUBurst", "BatchResource", "CPUSetAllocator", "CPUNormalization", "ResourceTuning"}
    assert blocked(lambda gate: gate in gates, root) == {}


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ("CgroupReconcile", "memory.min is not offered by this kernel"),
        ("GroupIdentity", "cpu.bvt_warp_ns is not offered"),
        ("RdtResctrl", "neither is resctrl mounted nor does this kernel know it"),
        ("PSICollector", "no pressure of single groups"),
        ("ColdPageCollector", "no kidled"),
        ("PodResourcesProxy", "the kubelet's socket is not there"),
        ("InterferenceDetection", "feature gate PSICollector is off"),
        ("SystemConfig", "may not be written"),
    ],
)
def test_what_lacks_is_named(tmp_path: Path, gate: str, why: str) -> None:
    lacks = blocked(lambda name: name == gate, host(tmp_path, *V1))
    assert why in lacks[gate]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    root = host(tmp_path, *V1)
    (tmp_path / f"sys/fs/cgroup/cpu/{BE_TIER}/cpu.cfs_quota_us").chmod(0o400)
    assert "may not be written" in blocked(lambda name: name == "CPUBurst", root)["CPUBurst"]


def test_before_the_kubelet_has_made_its_groups_nothing_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    machine = Machine.at(HostRoot.at(str(tmp_path)), lambda _: True)
    for row in BLOCKED:
        if row.gate in ("BECPUSuppress", "CPUBurst", "PSICollector"):
            assert row.why(machine) == ""


def test_asked_is_what_somebody_switched_on() -> None:
    gates = FeatureGates(KOORDLET)
    gates.set_from_flag("ColdPageCollector=true,RdtResctrl=true,CoreSched=false")
    assert [name for name in KOORDLET if gates.asked(name)] == ["ColdPageCollector"]


def test_the_nodemetric_says_it_and_doctor_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MIN_INTERVAL", 1)
    found: list[dict[str, Any]] = []

    async def story(c: Cluster) -> None:
        await c.node({})
        spec = {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 1}}
        body = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, "spec": spec}
        await c.client.create(NODEMETRICS, body)
        await c.pod("web", qos="LS", kube_qos="Burstable")
        async with agent(c, "ColdPageCollector") as app:

            async def told() -> bool:
                metric = await c.client.get(NODEMETRICS, "n1")
                found[:] = [metric]
                return bool((metric.get("status") or {}).get("conditions"))

            await until(told, "the condition")
            assert app.metrics.unavailable.get("ColdPageCollector") == 1

    run(tmp_path, story)
    (condition,) = found[0]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("FeaturesWork", "False", "CannotWorkHere")
    assert "ColdPageCollector is enabled but cannot work here: this kernel has no kidled" in condition["message"]
    facts = ClusterFacts(server="s", namespace="n", now=0.0)
    facts.node_names, facts.node_metrics = ["n1"], {"n1": found[0]}
    (finding,) = _features(facts)
    assert "n1" in str(finding)
    assert "no kidled" in str(finding)
