"""The descheduler through its door: nodes, metrics and pods in, decision records out; nothing is evicted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from koord.api import kinds
from koord.api.times import format_time
from koord.apiserver.testing import running_server
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process.life import Life
from roles.descheduler.app import App, Options
from roles.descheduler.config import parse

CONFIG = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
dryRun: true
leaderElection: {{leaderElect: {elect}}}
{more}
profiles:
- name: balance
  plugins: {{balance: {{enabled: [{{name: LowNodeLoad}}]}}}}
  pluginConfig:
  - name: LowNodeLoad
    args:
      lowThresholds: {{cpu: 30, memory: 100}}
      highThresholds: {{cpu: 70, memory: 100}}
      anomalyCondition: {{timeout: 1m, consecutiveAbnormalities: 1, consecutiveNormalities: 1}}
"""


def config(more: str = "", elect: str = "false") -> str:
    return CONFIG.format(more=more, elect=elect)


def node(name: str) -> dict[str, Any]:
    capacity = {"cpu": "10", "memory": "20Gi", "pods": "110"}
    return {
        "metadata": {"name": name},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, where: str, **meta: Any) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}
    return {
        "metadata": {"name": name, "ownerReferences": [owner], **meta},
        "spec": {"nodeName": where, "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    }


def metric(name: str, system: str, pods: dict[str, str], age: float = 0) -> dict[str, Any]:
    usage = [
        {"namespace": "default", "name": pod_name, "podUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
        for pod_name, cpu in pods.items()
    ]
    return {
        "metadata": {"name": name},
        "status": {
            "updateTime": format_time(time.time() - age),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1"}}, "systemUsage": {"resources": {"cpu": system, "memory": "1Gi"}}},
            "podsMetric": usage,
        },
    }


async def put(client: Any, kind: Any, obj: dict[str, Any], namespace: str | None = None) -> None:
    status = obj.pop("status", None)
    await client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, **obj}, namespace)
    if status is not None:
        await client.patch(kind, obj["metadata"]["name"], {"status": status}, namespace, subresource="status")


async def hot_cluster(client: Any, age: float = 0) -> None:
    """Node hot at 85 %, cool at 10 %, and one that never reported."""
    for name in ("hot", "cool", "silent"):
        await put(client, kinds.NODES, node(name))
    for name, meta in (
        ("big", {}),
        ("fits", {}),
        ("small", {}),
        ("never", {"annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}}),
    ):
        await put(client, kinds.PODS, pod(name, "hot", **meta), "default")
    used = {"big": "4", "fits": "1500m", "small": "500m", "never": "1500m", "left-already": "9"}
    await put(client, kinds.NODEMETRICS, metric("hot", "1", used, age))
    await put(client, kinds.NODEMETRICS, metric("cool", "1", {}, age))


async def one_round(server: Any, text: str) -> list[Any]:
    config_, profiles = parse(text, "test")
    async with server.client() as client:
        informers = InformerFactory(client)
        recorder = Recorder("descheduler")
        app = App(Options(config_, profiles, "test"), client=client, informers=informers, recorder=recorder)
        try:
            await asyncio.wait_for(app.run(Life()), 20)
        finally:
            await informers.stop()
        return [record for kind, name in (("Pod", None), ("Node", None), ("Profile", None)) for record in recorder.ring.find(kind=kind)]


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-FW-01")
@pytest.mark.parametrize("elect", ["false", "true"])
def test_a_dry_run_says_which_pods_would_leave_why_and_where_to(elect: str) -> None:
    async def scenario() -> None:
        async with running_server(crds=True) as server:
            async with server.client() as client:
                await hot_cluster(client)
                if elect == "true":
                    await client.create(kinds.NAMESPACES, {"metadata": {"name": "koordinator-system"}})
            records = await one_round(server, config(elect=elect))
            would = [record for record in records if record.verdict == "WouldEvict"]
            # 8500m used, 7000m allowed: the pod that just covers the excess goes, and the node is cool
            assert [record.subject.name for record in would] == ["fits"]
            assert "node is overutilized, node cpu usage(85.00%)>threshold(70.00%)" in would[0].message
            assert would[0].numbers["target"] == "cool"
            classes = {record.subject.name: record.numbers["class"] for record in records if record.verdict == "Classified"}
            assert classes == {"hot": "hot", "cool": "bothLow"}
            assert [record.subject.name for record in records if record.verdict == "Skipped"] == ["silent"]
            async with server.client() as client:
                assert len((await client.list(kinds.PODS, "default")).items) == 4

    asyncio.run(scenario())


@pytest.mark.feature("DS-LNL-08")
def test_nothing_is_decided_on_stale_metrics() -> None:
    async def scenario() -> None:
        async with running_server(crds=True) as server:
            async with server.client() as client:
                await hot_cluster(client, age=181)
            records = await one_round(server, config())
            assert not [record for record in records if record.verdict == "WouldEvict"]
            assert {record.subject.name for record in records if record.verdict == "Skipped"} == {"hot", "cool", "silent"}

    asyncio.run(scenario())


@pytest.mark.feature("DS-FW-03")
def test_limits_of_a_round_hold_in_a_dry_run() -> None:
    async def scenario() -> None:
        async with running_server(crds=True) as server:
            async with server.client() as client:
                await hot_cluster(client)
            records = await one_round(server, config("maxNoOfPodsToEvictPerNode: 0"))
            refused = [record for record in records if record.verdict == "NotEvicted"]
            assert refused
            assert "has had its 0 evictions" in refused[0].message
            assert not [record for record in records if record.verdict == "WouldEvict"]

    asyncio.run(scenario())


@pytest.mark.feature("DS-CFG-01")
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("lowThresholds: {cpu: 30", "lowThresholds: {cpu: 80"), "lowThresholds.cpu: 80 must not be above highThresholds.cpu, 70"),
        (("highThresholds", "highTresholds"), "unknown field; did you mean 'highThresholds'?"),
        (("dryRun: true", "dryRun: false"), "dryRun: must be true"),
        (("[{name: LowNodeLoad}]", "[{name: LowNodeLode}]"), "plugin 'LowNodeLode' does not exist; did you mean 'LowNodeLoad'?"),
        (("[{name: LowNodeLoad}]", "[{name: MigrationController}]"), "plugin MigrationController does not implement balance"),
        (("[{name: LowNodeLoad}]", "[{name: LowNodeLoad}, {name: LowNodeLoad}]"), "plugin LowNodeLoad is already registered"),
        (("leaderElect: false", "leaderElect: perhaps"), "leaderElection.leaderElect: must be true or false"),
    ],
)
def test_a_bad_configuration_ends_the_process_with_one_clear_line(tmp_path: Path, change: tuple[str, str], wanted: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config().replace(*change))
    command = [sys.executable, "-m", "koord.cli", "descheduler", f"--config={path}", "--kubeconfig=/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert wanted in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.feature("DS-CFG-03")
def test_the_process_serves_health_metrics_and_records_and_ends_on_sigterm(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_server(crds=True) as server:
            async with server.client() as client:
                await hot_cluster(client)
            port = _free_port()
            address = f"127.0.0.1:{port}"
            path = tmp_path / "config.yaml"
            path.write_text(config(f"deschedulingInterval: 1s\nhealthzBindAddress: {address}\nmetricsBindAddress: {address}"))
            command = [
                sys.executable,
                "-m",
                "koord.cli",
                "descheduler",
                f"--config={path}",
                f"--kubeconfig={server.kubeconfig_path}",
                "--secure-port=0",
            ]
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
            try:
                async with asyncio.timeout(20):
                    while not (await asyncio.to_thread(_get, f"http://{address}/healthz")):
                        await asyncio.sleep(0.1)
                    records: Any = []
                    while not records:
                        text = await asyncio.to_thread(_get, f"http://{address}/debug/decisions?kind=Pod&namespace=default&name=fits")
                        records = json.loads(text)
                        await asyncio.sleep(0.1)
                assert records[0]["verdict"] == "WouldEvict"
                assert 'koord_descheduler_nodes{node_class="hot"} 1.0' in await asyncio.to_thread(_get, f"http://{address}/metrics")
            finally:
                process.terminate()
            assert await asyncio.wait_for(process.wait(), 6) == 0

    asyncio.run(scenario())


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
