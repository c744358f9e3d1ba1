"""The process: command line, life, HTTP endpoints, through the executable (KLO-CFG, KLO-LIFE, KLO-MET)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from koord.api.kinds import NODEMETRICS, NODERESOURCETOPOLOGIES, NODES, NODESLOS
from koord.apiserver.testing import running_server
from koord.config.gates import KOORDLET
from roles.koordlet.app import host_root
from roles.koordlet.cli import command
from roles.koordlet.options import OptionError, Options, check
from roles.koordlet.store import persist
from tests.support import patience

KOORD = (sys.executable, "-m", "koord.cli")

#: Flags of upstream's koordlet that a manifest may carry.
_UPSTREAM = """
addr enable-pprof pprof-addr kube-api-qps kube-api-burst configmap-name configmap-namespace feature-gates cgroup-root-dir
sys-root-dir sys-fs-root-dir proc-root-dir var-run-root-dir run-root-dir var-lib-kubelet-dir containerd-endpoint docker-endpoint
pouch-endpoint default-runtime-type hami-core-library-directory-path pod-resources-proxy-path xpu-device-infos-dir
kubelet-preferred-address-type kubelet-sync-interval kubelet-sync-timeout kubelet-insecure-tls kubelet-read-only-port
node-topology-sync-interval disable-query-kubelet-config enable-node-metric-report report-interval enable-pod-taskids
xpu-enforce-collect-from-device-infos collect-res-used-interval collect-sys-metric-outdated-interval
collect-node-cpu-info-interval collect-node-storage-info-interval cpi-collector-interval collect-cpi-timewindow
psi-collector-interval coldpage-collector-interval resctrl-collector-interval enable-pagecache-collector enable-resctrl-collector
metric-gc-interval-seconds metric-expire-seconds tsdb-path tsdb-retention-duration tsdb-enable-prometheus-metric tsdb-stripe-size
tsdb-max-bytes tsdb-wal-segment-size tsdb-max-block-chunk-segment-size tsdb-min-block-duration tsdb-max-block-duration
tsdb-head-chunks-write-buffer-size prediction-checkpoint-filepath prediction-cold-start-duration prediction-safety-margin-percent
prediction-memory-histogram-decay-halflife prediction-cpu-histogram-decay-halflife prediction-training-interval
prediction-model-expiration-duration prediction-model-checkpoint-interval prediction-model-checkpoint-max-per-step audit-log-dir
audit-verbose audit-max-disk-space-mb audit-max-concurrent-readers audit-max-events-limit reconcile-interval-seconds
cpu-suppress-interval-seconds cpu-evict-interval-seconds memory-evict-interval-seconds memory-evict-cool-time-seconds
cpu-evict-cool-time-seconds only-evict-by-api qos-extension-plugins resource-force-update-seconds runtime-hooks-network
runtime-hooks-addr runtime-hooks-host-endpoint runtime-hooks-failure-policy runtime-hooks-plugin-failure-policy
runtime-hooks-config-path runtime-hooks-disable-stages runtime-hooks-reconcile-interval enable-nri-runtime-hook
runtime-hooks-nri-connect-timeout runtime-hooks-nri-backoff-duration runtime-hooks-nri-backoff-cap runtime-hooks-nri-backoff-steps
runtime-hooks-nri-backoff-factor runtime-hooks-nri-socket-path runtime-hooks-nri-plugin-name runtime-hooks-nri-plugin-index
disable-unset-cpu-quota
"""
UPSTREAM = _UPSTREAM.split()


@pytest.mark.feature("KLO-CFG-01")
class TestFlags:
    def test_every_upstream_flag_is_there(self) -> None:
        names = {f.name.replace("_", "-") for f in fields(Options)}
        assert [f for f in UPSTREAM if f not in names] == []
        accepted = {p.name for p in command.params}
        assert {f.name for f in fields(Options)} <= accepted
        assert {"kubeconfig"} <= accepted

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "--node-name"),
            (["--node-name=n1", "--no-such-flag"], "unknown flag"),
            (["--node-name=n1", "--kubelet-sync-interval=soon"], "soon"),
            (["--node-name=n1", "--kubelet-read-only-port=-1"], "no port"),
            (["--node-name=n1", "--mode=maybe"], "enforce, observe"),
            (["--node-name=n1", "--addr=here:99999"], "--addr: 'here:99999' is no listen address"),
            (["--node-name=n1", "--pprof-addr=here"], "--pprof-addr: 'here' is no listen address"),
            (["--node-name=n1", "--strategy-modes=BECPUSuppress=on"], "Name=enforce|observe"),
            (["--node-name=n1", "--runtime-hooks-failure-policy=Panic"], "Ignore, Fail"),
            (["--node-name=n1", "--runtime-hooks-network=udp"], "'udp' is not one of unix, tcp"),
        ],
    )
    def test_mistakes_are_one_line_and_status_2(self, arguments, said, monkeypatch) -> None:
        monkeypatch.delenv("NODE_NAME", raising=False)
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 2
        assert said in result.output
        assert len(result.output.strip().splitlines()) == 1

    def test_directories_by_mode(self) -> None:
        assert host_root(Options(), {}).cgroup == "/host-cgroup"
        assert host_root(Options(), {"agent_mode": "hostMode"}).cgroup == "/sys/fs/cgroup"
        mixed = host_root(Options(host_root="/m", proc_root_dir="/p/"), {})
        assert (mixed.proc, mixed.sys, mixed.hooks_config) == ("/p", "/m/sys", "/m/etc/runtime/hookserver.d")

    def test_values_that_no_type_can_judge(self) -> None:
        with pytest.raises(OptionError, match="positive"):
            check(Options(node_name="n1", prediction_training_interval=0.0))
        # hooks would be reconciled without a pause, the kubelet be given no time to answer
        for name in ("runtime_hooks_reconcile_interval", "runtime_hooks_nri_backoff_duration", "kubelet_sync_timeout"):
            with pytest.raises(OptionError, match=f"--{name.replace('_', '-')}: must be positive"):
                check(Options(node_name="n1", **{name: 0.0}))


@pytest.mark.feature("KLO-CFG-02")
def test_gates_and_their_defaults() -> None:
    on = {name for name, value in KOORDLET.items() if value}
    assert on == {"BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport", "GroupIdentity", "CPUSetAllocator", "BatchResource"}
    assert len(KOORDLET) == 43


class Process:
    """One koordlet as an operator runs it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def get(self, path: str) -> tuple[int, str]:
        import aiohttp

        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status, await response.text()

    async def until(self, path: str, wanted: Callable[[int, str], bool], seconds: float = 20.0) -> str:
        """Poll a path until its answer is as wanted."""
        import aiohttp

        end = time.monotonic() + patience.seconds(seconds)
        last: Any = None
        while time.monotonic() < end:
            try:
                last = await self.get(path)
            except aiohttp.ClientError as error:
                last = error
            else:
                if wanted(*last):
                    return str(last[1])
            if self.process.returncode is not None:
                _, err = await self.process.communicate()
                raise AssertionError(f"koordlet ended with status {self.process.returncode}: {err.decode()[-2000:]}")
            await asyncio.sleep(0.1)
        raise AssertionError(f"{path} did not become as wanted within {seconds} s: {last}")

    async def stop(self) -> tuple[int, str]:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(self.process.communicate(), patience.seconds(10))
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def start(tree: Any, server: Any, kubelet_port: int, *flags: str, node: str = "n1") -> Process:
    port = free_port()
    arguments = [
        *KOORD,
        "koordlet",
        f"--host-root={tree.root}",
        f"--kubeconfig={server.kubeconfig_path}",
        f"--node-name={node}",
        f"--addr=127.0.0.1:{port}",
        "--kubelet-insecure-tls=true",
        f"--kubelet-read-only-port={kubelet_port}",
        f"--tsdb-path={tree.root}/metric-data",
        f"--prediction-checkpoint-filepath={tree.root}/checkpoints",
        f"--audit-log-dir={tree.root}/audit",
        f"--runtime-hooks-addr={tree.root}/var/run/koordlet/koordlet.sock",
        "--feature-gates=BECPUSuppress=false,CPUBurst=false,RdtResctrl=false",
        *flags,
    ]
    environment = {k: v for k, v in os.environ.items() if k not in {"NODE_NAME", "KUBECONFIG"}}
    environment["PYTHONPATH"] = str(Path(__file__).parents[4])
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=environment
    )
    return Process(process, f"http://127.0.0.1:{port}")


def listed(*pods: dict[str, Any]) -> bytes:
    return orjson.dumps({"kind": "PodList", "items": list(pods)})


async def cluster(client: Any, node: dict[str, Any]) -> None:
    status = node.pop("status")
    await client.create(NODES, node)
    await client.patch(NODES, "n1", {"status": status}, subresource="status")
    for kind in (NODEMETRICS, NODESLOS):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "n1"}, "spec": {}}
        await client.create(kind, body)


def loaded(pid: int) -> set[str]:
    """Packages of which a process has loaded compiled parts."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {line.partition("/site-packages/")[2].partition("/")[0] for line in maps.splitlines()}


@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.feature("KLO-MET-01")
def test_a_node_from_start_to_end(host, kubelet, make_node, make_pod) -> None:
    async def main() -> None:
        tree = host()
        tree.cgroup(tree.pod_dir("Burstable", "u-1"), anon=1 << 20)
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            capacity = {"cpu": "4", "memory": "8Gi", "kubernetes.io/batch-cpu": "2500"}
            await cluster(client, make_node(allocatable=capacity))
            koordlet = await start(tree, server, served.port)
            try:
                await koordlet.until("/healthz", lambda status, _: status == 200)
                status, text = await koordlet.get("/readyz")
                assert status == 503, "the kubelet has not listed a pod yet"
                assert "kubelet" in text
                served.pods = listed(make_pod("web", "u-1"))
                await koordlet.until("/readyz", lambda status, _: status == 200)
                second = await start(tree, server, served.port)
                code, said = await ended(second)
                assert code == 1
                assert f"another koordlet (pid {koordlet.process.pid}) runs on this node" in said
                await check_metrics(koordlet)
                packages = loaded(koordlet.process.pid)
                assert {"orjson", "msgspec"} <= packages
                assert not {"aiohttp", "yarl", "multidict", "frozenlist"} & packages, "it serves and asks by koord's own HTTP"
                for _ in patience.tries(100):
                    zones = [o for o in (await client.list(NODERESOURCETOPOLOGIES)).items if o["zones"]]
                    if zones:
                        break
                    await asyncio.sleep(0.1)
                assert zones[0]["metadata"]["name"] == "n1"
                await asyncio.sleep(1.0)
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            assert "Traceback" not in said
            assert (tree.root / "metric-data" / persist.FILE).stat().st_size > 100, "series are kept for the next start"

    asyncio.run(main())


async def ended(process: Process) -> tuple[int, str]:
    """The status of a process that ends by itself."""
    _, err = await asyncio.wait_for(process.process.communicate(), patience.seconds(15))
    assert process.process.returncode is not None
    return process.process.returncode, err.decode()


async def check_metrics(koordlet: Process) -> None:
    name = 'koordlet_node_resource_allocatable{node="n1",resource="kubernetes.io/batch-cpu",unit="integer"} 2500'
    await koordlet.until("/external-metrics", lambda _, text: name in text)
    internal = await koordlet.until("/internal-metrics", lambda _, text: "koordlet_node_used_cpu_cores" in text)
    assert "koordlet_node_resource_allocatable" not in internal
    assert 'koordlet_start_time{node="n1"} 1' in internal
    assert "process_resident_memory_bytes" in internal
    _, external = await koordlet.get("/external-metrics")
    assert "koordlet_start_time" not in external
    _, union = await koordlet.get("/metrics")
    for part in (
        "koordlet_start_time{",
        "koordlet_node_resource_allocatable{",
        'koordlet_node_used_memory_bytes{node="n1"}',
    ):
        assert part in union
    assert 'path="/pods/"' in union
    # the first round is over before the API server has told of the Node
    for text in (internal, union):
        assert 'koordlet_collect_node_cpu_info_status{node="n1",status="succeeded"} 1' in text


@pytest.mark.feature("KLO-CFG-02")
def test_what_this_version_lacks_is_told_at_start(host, kubelet, make_node) -> None:
    async def main() -> None:
        tree = host()
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            await cluster(client, make_node())
            koordlet = await start(tree, server, served.port, "--feature-gates=Libpfm4=true,PSICollector=true")
            try:
                await koordlet.until("/healthz", lambda status, _: status == 200)
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            told = [line for line in said.splitlines() if "not available in this version" in line]
            assert len(told) == 1, said
            assert told[0].startswith("W")
            assert "feature gate Libpfm4" in told[0]

    asyncio.run(main())


@pytest.mark.feature("KLO-COL-12")
@pytest.mark.feature("KLO-SI-06")
def test_gates_of_hardware_collectors(host, kubelet, make_node, make_pod) -> None:
    async def main() -> None:
        tree = host()
        flags = "cat_l3 mba cqm_mbm_total cqm_mbm_local cqm_llc cqm_occup_llc"
        tree.write("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: X\nflags\t\t: {flags}\n\n")
        tree.write("sys/fs/resctrl/schemata", "L3:0=fff\n")
        tree.write("sys/fs/resctrl/BE/mon_data/mon_L3_00/llc_occupancy", "4096\n")
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            await cluster(client, make_node())
            served.pods = listed(make_pod("web", "u-1"))
            gates = "--feature-gates=ResctrlCollector=true,BlkIOReconcile=true"
            koordlet = await start(
                tree,
                server,
                served.port,
                gates,
                "--enable-resctrl-collector",
                "--resctrl-collector-interval=1s",
                "--kubelet-sync-interval=1s",
            )
            try:
                line = 'koordlet_resctrl_llc_occupancy{cache_id="00",node="n1",qos="BE"} 4096'
                await koordlet.until("/external-metrics", lambda _, text: line in text)
                await koordlet.until("/readyz", lambda status, _: status == 200)
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            assert "ResctrlCollector is not available" not in said

    asyncio.run(main())


@pytest.mark.feature("KLO-LIFE-01")
@pytest.mark.parametrize("missing", ["node", "kubelet", "cgroups"])
def test_what_is_missing_is_waited_for_or_named(host, kubelet, make_node, missing) -> None:
    async def main() -> None:
        tree = host()
        if missing == "cgroups":
            (tree.root / "sys/fs/cgroup").rename(tree.root / "sys/fs/elsewhere")
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            if missing != "node":
                await cluster(client, make_node())
            koordlet = await start(tree, server, served.port if missing != "kubelet" else free_port())
            if missing == "cgroups":
                code, said = await ended(koordlet)
                assert code == 1
                assert "cgroup root" in said.strip().splitlines()[-1]
                return
            try:
                await koordlet.until("/healthz", lambda status, _: status == 200)
                wanted = "Node n1" if missing == "node" else "the kubelet's pods"
                await koordlet.until("/readyz", lambda status, text: status == 503 and wanted in text)
                if missing == "node":
                    _, text = await koordlet.get("/internal-metrics")
                    names = {line.split("{")[0] for line in text.splitlines() if 'node="n1"' in line}
                    assert names == {"koordlet_start_time"}, "nothing else before the Node is known"
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said

    asyncio.run(main())


@pytest.mark.feature("BEY-PSI-01")
@pytest.mark.parametrize("on", [True, False])
def test_pressure_starts_ticks_out_of_turn_unless_it_is_switched_off(host, kubelet, make_node, make_pod, on) -> None:
    async def main() -> None:
        tree = host()
        stall = 0

        def press() -> None:
            for name in ("cpu", "memory"):
                tree.write(f"proc/pressure/{name}", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stall}\n")

        press()
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            await cluster(client, make_node())
            served.pods = listed(make_pod("web", "u-1"))
            koordlet = await start(tree, server, served.port, f"--pressure-triggers={str(on).lower()}")
            try:
                await koordlet.until("/readyz", lambda status, _: status == 200)
                woken = ""
                for _ in range(300 if on else 20):
                    stall += 60_000
                    press()
                    await asyncio.sleep(0.1)
                    _, text = await koordlet.get("/internal-metrics")
                    woken = next((line for line in text.splitlines() if line.startswith("koordlet_pressure_wakeups{")), "")
                    if woken:
                        break
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            assert ('reason="memory"' in woken) is on

    asyncio.run(main())
