"""The descheduler through its door: nodes, metrics and pods in, decision records out; nothing is evicted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from koord.apiserver.testing import running_server
from tests.roles.descheduler.support import after_rounds, metric, node, pod, put
from tests.support import patience

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


def hot_cluster(age: float = 0) -> list[dict[str, Any]]:
    """Node hot at 85 %, cool at 10 %, and one that never reported."""
    never = {"annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}}
    used = {"big": "4", "fits": "1500m", "small": "500m", "never": "1500m", "left-already": "9"}
    return [
        *(node(name) for name in ("hot", "cool", "silent")),
        *(pod(name, "hot") for name in ("big", "fits", "small")),
        pod("never", "hot", meta=never),
        metric("hot", "1", used, age=age),
        metric("cool", "1", age=age),
    ]


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-FW-01")
@pytest.mark.parametrize("elect", ["false", "true"])
def test_a_dry_run_says_which_pods_would_leave_why_and_where_to(elect: str) -> None:
    lease_home = [{"kind": "Namespace", "metadata": {"name": "koordinator-system"}}]
    done = after_rounds([*hot_cluster(), *(lease_home if elect == "true" else [])], config(elect=elect))
    would = done.records("WouldEvict")
    # 8500m used, 7000m allowed: the pod that just covers the excess goes, and the node is cool
    assert [record.subject.name for record in would] == ["fits"]
    assert "node is overutilized, node cpu usage(85.00%)>threshold(70.00%)" in would[0].message
    assert would[0].numbers["target"] == "cool"
    assert "the scheduler would put it on " in would[0].message
    classes = {record.subject.name: record.numbers["class"] for record in done.records("Classified")}
    assert classes == {"hot": "hot", "cool": "bothLow"}
    assert done.subjects("Skipped") == ["silent"]
    assert len(done.pods) == 4


@pytest.mark.feature("DS-LNL-08")
def test_nothing_is_decided_on_stale_metrics() -> None:
    done = after_rounds(hot_cluster(age=181), config())
    assert not done.records("WouldEvict")
    assert set(done.subjects("Skipped")) == {"hot", "cool", "silent"}


@pytest.mark.feature("DS-FW-03")
def test_limits_of_a_round_hold_in_a_dry_run() -> None:
    done = after_rounds(hot_cluster(), config("maxNoOfPodsToEvictPerNode: 0"))
    assert "has had its 0 evictions" in done.records("NotEvicted")[0].message
    assert not done.records("WouldEvict")


@pytest.mark.feature("DS-CFG-01")
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("lowThresholds: {cpu: 30", "lowThresholds: {cpu: 80"), "lowThresholds.cpu: 80 must not be above highThresholds.cpu, 70"),
        (("highThresholds", "highTresholds"), "unknown field; did you mean 'highThresholds'?"),
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(30), check=False)
    assert done.returncode == 1
    assert wanted in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.feature("DS-CFG-03")
def test_the_process_serves_health_metrics_and_records_and_ends_on_sigterm(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_server(crds=True) as server:
            async with server.client() as client:
                await put(client, *hot_cluster())
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
                async with asyncio.timeout(patience.seconds(20)):
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
            assert await asyncio.wait_for(process.wait(), patience.seconds(6)) == 0

    asyncio.run(scenario())


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=patience.seconds(5)) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
