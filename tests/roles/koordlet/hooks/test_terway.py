"""TerwayQoS: NodeSLO and pods in, Terway's files out (KA-HK-08)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

POLICY = {"policies": {"netQOSPolicy": "terway-qos"}}
LS = {"networkQOS": {"enable": True, "egressRequest": "1600M", "egressLimit": 50, "ingressRequest": 10, "ingressLimit": "4G"}}
BE = {"networkQOS": {"enable": True, "egressLimit": "2G", "ingressLimit": 101}}


def spec(total: Any = "8G", **strategy: Any) -> dict[str, Any]:
    return {"systemStrategy": {"totalNetworkBandwidth": total}, "resourceQOSStrategy": {**POLICY, **strategy}}


@pytest.fixture
def node(hooked) -> Any:
    made = hooked("TerwayQoS")
    made.dir = made.machine.base / "host-var-lib/terway/qos"
    made.dir.mkdir(parents=True)
    return made


def config(node: Any) -> dict[str, int]:
    lines = (node.dir / "global_bps_config").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(" ") for line in lines)}


@pytest.mark.feature("KA-HK-08")
def test_bandwidths_are_bytes(node) -> None:
    node.world.spec = spec(lsClass=LS, beClass=BE)
    node.run()
    got = config(node)
    assert list(got) == ["hw_tx_bps_max", "hw_rx_bps_max"] + [
        f"offline_{level}_{way}_bps_{end}" for level in ("l1", "l2") for way in ("tx", "rx") for end in ("min", "max")
    ]
    assert list(got.values()) == [10**9, 10**9, 2 * 10**8, 5 * 10**8, 10**8, 5 * 10**8, 0, 25 * 10**7, 0, 0]
    node.world.spec = spec(lsClass={"networkQOS": {**LS["networkQOS"], "enable": False}})
    node.run()
    assert list(config(node).values()) == [10**9, 10**9] + [0] * 8


@pytest.mark.feature("KA-HK-08")
def test_pods(node) -> None:
    node.world.spec = spec()
    limits = {"koordinator.sh/networkQOS": '{"ingressLimit":"80M","egressLimit":"160M"}'}
    wanted = [
        (node.world.pod("system", qos="SYSTEM"), 0, (0, 0)),
        (node.world.pod("lsr", qos="LSR", annotations=limits), 1, (10**7, 2 * 10**7)),
        (node.world.pod("be", qos="BE", kube_qos="BestEffort"), 2, (0, 0)),
        (node.world.pod("burstable", annotations={"koordinator.sh/networkQOS": '{"ingressLimit":"fast"}'}), 1, (0, 0)),
        (node.world.pod("besteffort", kube_qos="BestEffort"), 2, (0, 0)),
    ]
    node.run()
    got = json.loads((node.dir / "pod.json").read_text())
    assert set(got) == {p.uid for p, _, _ in wanted}
    for pod, priority, (ingress, egress) in wanted:
        assert got[pod.uid] == {
            "podName": pod.name,
            "podNamespace": "default",
            "podUID": pod.uid,
            "prio": priority,
            "cgroupDir": f"/sys/fs/cgroup/net_cls/{pod.cgroup_dir}",
            "qosConfig": {"ingressBandwidth": ingress, "egressBandwidth": egress},
        }
    node.world.pods.pop()
    node.run()
    assert len(json.loads((node.dir / "pod.json").read_text())) == 4


@pytest.mark.feature("KA-HK-08")
def test_another_policy_and_bad_values(node) -> None:
    node.world.spec = spec(lsClass=LS)
    node.run()
    before = config(node)
    node.world.spec = spec(total="lots", lsClass=LS)
    node.run()
    assert config(node) == before, "the last good rule stays"
    node.world.spec = {}
    node.run()
    assert list(node.dir.iterdir()) == []
    assert node.run().written == 0


@pytest.mark.feature("KA-HK-08")
@pytest.mark.feature("KA-RH-03")
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_counts_no_more(node, phase) -> None:
    """Its address may be another pod's by now."""
    node.world.spec = spec()
    job, other = node.world.pod("job", qos="BE", kube_qos="BestEffort"), node.world.pod("other", qos="LS")
    node.run()
    assert set(json.loads((node.dir / "pod.json").read_text())) == {job.uid, other.uid}
    node.world.pods[0] = replace(job, phase=phase)
    node.run()
    assert set(json.loads((node.dir / "pod.json").read_text())) == {other.uid}
