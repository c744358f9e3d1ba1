"""koordlet on a full node: 110 pods of two containers each, every default collector, strategy and report; CPU, memory, growth.

As root the pods are real cgroups (v1) with sleeping processes in them; elsewhere a tree of plain files stands for the machine.
usage: bench_koordlet.py [--quick] [--seconds=N] [--pods=N] [--gates=A=true,…] [--flags="…"] [--profile=FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from koord.api.kinds import NODEMETRICS, NODES, NODESLOS, Kind
from koord.apiserver.testing import running_server
from tests.benchmarks.table import Row, current_rss_mib, script
from tests.support.processes import free_port

NODE = "bench-node"
SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
V1 = Path("/sys/fs/cgroup")
QOS = ("Guaranteed", "Burstable", "BestEffort")
WARM_UP = 8.0


def option(name: str, default: str) -> str:
    return next((a.split("=", 1)[1] for a in sys.argv if a.startswith(f"--{name}=")), default)


def pod(number: int) -> dict[str, Any]:
    """A pod as a kubelet lists it, with the weight of a real one: environment, mounts, conditions."""
    qos = QOS[number % 3]
    uid = f"00000000-0000-4000-8000-{number:012d}"
    names = ("main", "side")
    be = {"requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "512Mi"}} if qos == "BestEffort" else {}
    containers = [
        {
            "name": name,
            "image": f"registry.example.com/team/app-{number}:1.2.3",
            "env": [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(20)],
            "volumeMounts": [{"name": f"v{i}", "mountPath": f"/var/lib/data/{i}"} for i in range(6)],
            "resources": be or {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        }
        for name in names
    ]
    running = {"running": {"startedAt": "2024-01-01T00:00:00Z"}}
    statuses = [
        {"name": n, "ready": True, "containerID": f"containerd://{container(number, i)}", "state": running} for i, n in enumerate(names)
    ]
    labels = {"app": f"app-{number}", **({"koordinator.sh/qosClass": "BE"} if qos == "BestEffort" else {})}
    return {
        "metadata": {
            "name": f"app-{number}",
            "namespace": "default",
            "uid": uid,
            "labels": labels,
            "creationTimestamp": "2024-01-01T00:00:00Z",
        },
        "spec": {"nodeName": NODE, "priority": 5500 if qos == "BestEffort" else 9500, "containers": containers},
        "status": {"phase": "Running", "qosClass": qos, "containerStatuses": statuses},
    }


def container(number: int, index: int) -> str:
    return f"{number:032x}{index:032x}"


def directories(pods: int) -> list[str]:
    """Cgroup directories by the systemd driver, parents first."""
    found = ["kubepods.slice", "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice"]
    for number in range(pods):
        qos = QOS[number % 3].lower()
        uid = f"00000000_0000_4000_8000_{number:012d}"
        base = (
            f"kubepods.slice/kubepods-pod{uid}.slice"
            if qos == "guaranteed"
            else f"kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice"
        )
        found.append(base)
        found += [f"{base}/cri-containerd-{container(number, i)}.scope" for i in range(2)]
    return found


@contextlib.contextmanager
def real_machine(pods: int, scratch: Path) -> Iterator[list[str]]:
    """Own cgroups in every controller, reached through a directory of links, with a sleeping process a container."""
    name = f"koord-bench-{os.getpid()}"
    links = scratch / "cgroup"
    links.mkdir()
    made: list[Path] = []
    sleepers: list[subprocess.Popen[bytes]] = []
    try:
        for subsystem in SUBSYSTEMS:
            top = V1 / subsystem / name
            top.mkdir()
            made.append(top)
            (links / subsystem).symlink_to(top)
            for directory in ["", *directories(pods)]:
                path = top / directory
                if directory:
                    path.mkdir()
                    made.append(path)
                if subsystem == "cpuset":
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (path / file).write_text((path.parent / file).read_text())
        for directory in directories(pods):
            if directory.endswith(".scope"):
                sleeper = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)
                sleepers.append(sleeper)
                for subsystem in SUBSYSTEMS:
                    (V1 / subsystem / name / directory / "cgroup.procs").write_text(str(sleeper.pid))
        yield [f"--cgroup-root-dir={links}"]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()
        for path in reversed(made):
            for _ in range(50):
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


@contextlib.contextmanager
def plain_machine(pods: int, scratch: Path) -> Iterator[list[str]]:
    """The same directories as plain files."""
    stat = "".join(
        f"total_{k} 4096\n" for k in ("cache", "rss", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
    )
    files = {
        "cpu": {
            "cpu.stat": "nr_periods 1\nnr_throttled 0\nthrottled_time 0\n",
            "cpu.cfs_quota_us": "-1\n",
            "cpu.cfs_period_us": "100000\n",
        },
        "cpuacct": {"cpuacct.usage": "1000000\n"},
        "cpuset": {"cpuset.cpus": "0\n"},
        "memory": {"memory.stat": stat, "memory.usage_in_bytes": "4096\n", "memory.numa_stat": "total=1 N0=1\nanon=1 N0=1\n"},
    }
    for directory in directories(pods):
        for subsystem, contents in files.items():
            path = scratch / "cgroup" / subsystem / directory
            path.mkdir(parents=True, exist_ok=True)
            for name, text in contents.items():
                (path / name).write_text(text)
    yield [f"--cgroup-root-dir={scratch / 'cgroup'}"]


def real_cgroups() -> bool:
    return os.geteuid() == 0 and all(os.access(V1 / s, os.W_OK) and (V1 / s / "cgroup.procs").exists() for s in SUBSYSTEMS)


async def cluster(client: Any) -> None:
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": "64Gi", "pods": "250", "kubernetes.io/batch-cpu": "2000"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    await client.create(NODES, node)
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    await client.patch(
        NODES, NODE, {"status": {"capacity": capacity, "allocatable": capacity, "addresses": addresses}}, subresource="status"
    )
    specs: dict[Kind, dict[str, Any]] = {
        NODEMETRICS: {"metricCollectPolicy": {"reportIntervalSeconds": 30}},
        NODESLOS: {"resourceUsedThresholdWithBE": {"enable": True}, "hostApplications": []},
    }
    for kind, spec in specs.items():
        await client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": NODE}, "spec": spec})


@contextlib.asynccontextmanager
async def kubelet(pods: int) -> Any:
    from aiohttp import web

    body = orjson.dumps({"kind": "PodList", "apiVersion": "v1", "items": [pod(n) for n in range(pods)]})
    config = orjson.dumps({"kubeletconfig": {"cpuManagerPolicy": "none"}})

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body if request.path.startswith("/pods") else config, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


async def scrape(port: int) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/internal-metrics") as response:
        return await response.text()


async def ready(port: int, process: subprocess.Popen[bytes]) -> float:
    """Seconds until /healthz answers 200."""
    import aiohttp

    began = time.monotonic()
    async with aiohttp.ClientSession() as session:
        while time.monotonic() - began < 30 and process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                    if response.status == 200:
                        return time.monotonic() - began
            await asyncio.sleep(0.02)
    raise SystemExit("koordlet did not become healthy")


async def measure(seconds: float, pods: int, machine: list[str], scratch: Path) -> dict[str, float]:
    async with running_server(crds=True) as server, server.client() as client, kubelet(pods) as kubelet_port:
        await cluster(client)
        port = free_port()
        flags = [
            f"--kubeconfig={server.kubeconfig_path}", f"--node-name={NODE}", f"--addr=127.0.0.1:{port}", "--kubelet-insecure-tls",
            f"--kubelet-read-only-port={kubelet_port}", f"--tsdb-path={scratch}/tsdb", f"--audit-log-dir={scratch}/audit",
            f"--prediction-checkpoint-filepath={scratch}/prediction", f"--var-run-root-dir={scratch}/run",
            f"--runtime-hooks-addr={scratch}/run/hook.sock", f"--runtime-hooks-config-path={scratch}/hooks",
            f"--feature-gates=RdtResctrl=false,{option('gates', '')}", *machine,
        ]  # fmt: skip
        log = open(scratch / "log", "wb")  # noqa: SIM115
        environment = {**os.environ, "agent_mode": "hostMode"}
        profiler = ["-m", "cProfile", "-o", option("profile", "")] if option("profile", "") else []
        command = [sys.executable, *profiler, "-m", "koord.cli", "koordlet", *flags, *option("flags", "").split()]
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            healthy = await ready(port, process)
            await asyncio.sleep(WARM_UP)
            first = current_rss_mib(process.pid)
            cpu, began = cpu_seconds(process.pid), time.monotonic()
            middle = first
            while (elapsed := time.monotonic() - began) < seconds:
                await asyncio.sleep(min(1.0, seconds - elapsed + 0.01))
                if elapsed < seconds / 2:
                    middle = current_rss_mib(process.pid)
            user, system = (now - before for now, before in zip(cpu_seconds(process.pid), cpu, strict=True))
            took = time.monotonic() - began
            last = current_rss_mib(process.pid)
            text = await scrape(port)
            longest = re.search(r'koordlet_tick_seconds\{[^}]*stat="longest"[^}]*\} (\S+)', text)
            files = re.search(r"^process_open_fds (\S+)", text, re.MULTILINE)
        finally:
            process.terminate()
            process.wait()
            log.close()
        return {
            "cpu": (user + system) / took * 100,
            "system": system / took * 100,
            "rss": last,
            "slope": (last - middle) / (seconds / 2) * 3600,
            "first": first,
            "longest": float(longest[1]) * 1000 if longest else float("nan"),
            "files": float(files[1]) if files else float("nan"),
            "healthy": healthy,
        }


def rows(quick: bool) -> list[Row]:
    seconds = float(option("seconds", "20" if quick else "60"))
    pods = int(option("pods", "110"))
    real = real_cgroups()
    machine = real_machine if real else plain_machine
    with tempfile.TemporaryDirectory(prefix="koord-bench-") as name, machine(pods, Path(name)) as flags:
        found = asyncio.run(measure(seconds, pods, flags, Path(name)))
        complaints = [line for line in (Path(name) / "log").read_text().splitlines() if line.startswith(("E", "F"))]
    where = f"{pods} pods, {2 * pods} containers, {'cgroup v1' if real else 'plain files'}, {seconds:.0f} s"
    return [
        Row("koordlet CPU", found["cpu"], "% of a core", 3.0, note=f"{found['system']:.2f} % in the kernel; {where}"),
        Row("koordlet RSS", found["rss"], "MiB", 90.0, note=f"{found['first']:.1f} after {WARM_UP:.0f} s, {found['files']:.0f} open files"),
        Row("koordlet RSS growth in the second half", found["slope"], "MiB/h", note="series fill their windows in the first half hour"),
        Row("koordlet longest tick", found["longest"], "ms", note="sensing and strategies together, the first one included"),
        Row("koordlet until healthy", found["healthy"], "s", 1.5, note=f"{len(complaints)} errors in its log"),
    ]


if __name__ == "__main__":
    script(rows)
