"""What koordlet's benchmarks run against: a full node of real cgroups (v1, as root) or plain files, a kubelet, an API server, the agent.

Everything that is made here goes away at the end of its block, also after an error and a SIGTERM. Cgroups are named
``koord-bench-<pid>``; those of runs that were killed outright are removed by the next run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from koord.api.kinds import NODEMETRICS, NODES, NODESLOS, Kind
from koord.apiserver.testing import running_server
from tests.support.processes import free_port

NODE = "bench-node"
SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
V1 = Path("/sys/fs/cgroup")
PREFIX = "koord-bench-"
QOS = ("Guaranteed", "Burstable", "BestEffort")
CONTAINERS = ("main", "side")


def pod(number: int) -> dict[str, Any]:
    """A pod as a kubelet lists it, with the weight of a real one: environment, mounts, conditions."""
    qos = QOS[number % 3]
    uid = f"00000000-0000-4000-8000-{number:012d}"
    be = {"requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "512Mi"}} if qos == "BestEffort" else {}
    containers = [
        {
            "name": name,
            "image": f"registry.example.com/team/app-{number}:1.2.3",
            "env": [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(20)],
            "volumeMounts": [{"name": f"v{i}", "mountPath": f"/var/lib/data/{i}"} for i in range(6)],
            "resources": be or {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        }
        for name in CONTAINERS
    ]
    running = {"running": {"startedAt": "2024-01-01T00:00:00Z"}}
    statuses = [
        {"name": n, "ready": True, "containerID": f"containerd://{container(number, i)}", "state": running}
        for i, n in enumerate(CONTAINERS)
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


def qos_directory(qos: str) -> str:
    return "kubepods.slice" if qos == "Guaranteed" else f"kubepods.slice/kubepods-{qos.lower()}.slice"


def pod_directory(number: int) -> str:
    """Cgroup directory of a pod by the systemd driver."""
    qos = QOS[number % 3]
    stem = "kubepods" if qos == "Guaranteed" else f"kubepods-{qos.lower()}"
    return f"{qos_directory(qos)}/{stem}-pod00000000_0000_4000_8000_{number:012d}.slice"


def container_directory(number: int, index: int) -> str:
    return f"{pod_directory(number)}/cri-containerd-{container(number, index)}.scope"


def directories(pods: int) -> list[str]:
    """Of all pods and containers, parents first."""
    found = [qos_directory(qos) for qos in QOS]
    for number in range(pods):
        found += [pod_directory(number), *(container_directory(number, i) for i in range(2))]
    return found


@dataclass(slots=True)
class Machine:
    """A machine of the benchmark. ``top`` is the name of its cgroups, empty where plain files stand for them."""

    scratch: Path
    pods: int
    top: str = ""
    _made: list[Path] = field(default_factory=list)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def flags(self) -> list[str]:
        return [f"--cgroup-root-dir={self.scratch / 'cgroup'}"]

    def path(self, subsystem: str, directory: str = "") -> Path:
        return self.scratch / "cgroup" / subsystem / directory

    def start(self, command: Sequence[str], directory: str) -> subprocess.Popen[bytes]:
        """A process in a container's cgroups. It waits there for a line on its standard input if it reads one."""
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._children.append(child)
        self.attach(child.pid, directory)
        return child

    def attach(self, pid: int, directory: str) -> None:
        for subsystem in (*SUBSYSTEMS, "unified"):
            path = V1 / subsystem / self.top / directory / "cgroup.procs"
            if path.exists():
                path.write_text(str(pid))

    def build(self) -> None:
        """Own cgroups in every controller, reached through a directory of links."""
        (self.scratch / "cgroup").mkdir()
        for subsystem in (*SUBSYSTEMS, *(["unified"] if (V1 / "unified" / "cgroup.procs").exists() else [])):
            top = V1 / subsystem / self.top
            for directory in ["", *directories(self.pods)]:
                path = top / directory
                path.mkdir()
                self._made.append(path)
                if subsystem == "cpuset":
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (path / file).write_text((path.parent / file).read_text())
            (self.scratch / "cgroup" / subsystem).symlink_to(top)
        # what a kubelet gives the levels
        (V1 / "cpu" / self.top / qos_directory("BestEffort") / "cpu.shares").write_text("2")

    def come(self, numbers: Iterable[int]) -> None:
        """The groups of more pods."""
        for subsystem in (*SUBSYSTEMS, *(["unified"] if (self.scratch / "cgroup/unified").exists() else [])):
            for number in numbers:
                for directory in (pod_directory(number), *(container_directory(number, i) for i in range(2))):
                    path = V1 / subsystem / self.top / directory
                    path.mkdir()
                    if subsystem == "cpuset":
                        for file in ("cpuset.cpus", "cpuset.mems"):
                            (path / file).write_text((path.parent / file).read_text())

    def go(self, numbers: Iterable[int]) -> None:
        """Away with them."""
        for subsystem in (*SUBSYSTEMS, *(["unified"] if (self.scratch / "cgroup/unified").exists() else [])):
            top = V1 / subsystem / self.top
            for number in numbers:
                inner = [top / container_directory(number, i) for i in range(2)]
                remove_groups(iter([*inner, top / pod_directory(number)]))

    def sleepers(self) -> None:
        for number in range(self.pods):
            for index in range(2):
                child = subprocess.Popen(["sleep", "7200"], stdin=subprocess.DEVNULL)
                self._children.append(child)
                self.attach(child.pid, container_directory(number, index))

    def remove(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        remove_groups(reversed(self._made))

    def plain(self) -> None:
        """The same directories as plain files."""
        stat = "".join(
            f"total_{k} 4096\n" for k in ("cache", "rss", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
        )
        quota = {
            "cpu.stat": "nr_periods 1\nnr_throttled 0\nthrottled_time 0\n",
            "cpu.cfs_quota_us": "-1\n",
            "cpu.cfs_period_us": "100000\n",
        }
        files = {
            "cpu": quota,
            "cpuacct": {"cpuacct.usage": "1000000\n"},
            "cpuset": {"cpuset.cpus": "0\n"},
            "memory": {"memory.stat": stat, "memory.usage_in_bytes": "4096\n", "memory.numa_stat": "total=1 N0=1\nanon=1 N0=1\n"},
        }
        for directory in directories(self.pods):
            for subsystem, contents in files.items():
                path = self.path(subsystem, directory)
                path.mkdir(parents=True, exist_ok=True)
                for name, text in contents.items():
                    (path / name).write_text(text)


def real_cgroups() -> bool:
    return os.geteuid() == 0 and all(os.access(V1 / s, os.W_OK) and (V1 / s / "cgroup.procs").exists() for s in SUBSYSTEMS)


def remove_groups(paths: Iterator[Path]) -> None:
    """Remove cgroups, children first; a process that is just ending keeps one busy for a moment."""
    for path in paths:
        for _ in range(100):
            try:
                path.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)


def sweep() -> None:
    """Take away what a benchmark left that was killed with no chance to clean up: its name ends in the number of a process that is gone."""
    for top in V1.glob(f"*/{PREFIX}*"):
        number = top.name.removeprefix(PREFIX)
        if not number.isdigit() or Path(f"/proc/{number}").exists():
            continue
        groups = [Path(directory) for directory, _, _ in os.walk(top)]
        for group in groups:
            for word in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(word), signal.SIGKILL)
        remove_groups(reversed(groups))


@contextlib.contextmanager
def machine(pods: int) -> Iterator[Machine]:
    """A machine with so many pods, a sleeping process in each container where the cgroups are real."""
    import tempfile

    # a SIGTERM unwinds the stack like Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        if not real_cgroups():
            made = Machine(Path(name), pods)
            made.plain()
            yield made
            return
        sweep()
        made = Machine(Path(name), pods, f"{PREFIX}{os.getpid()}")
        try:
            made.build()
            made.sleepers()
            yield made
        finally:
            made.remove()


async def cluster(client: Any, slo: dict[str, Any]) -> None:
    """Node, NodeMetric and NodeSLO (its spec is ``slo``) of the one node."""
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": "64Gi", "pods": "250", "kubernetes.io/batch-cpu": "2000"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    await client.create(NODES, node)
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    await client.patch(
        NODES, NODE, {"status": {"capacity": capacity, "allocatable": capacity, "addresses": addresses}}, subresource="status"
    )
    specs: dict[Kind, dict[str, Any]] = {NODEMETRICS: {"metricCollectPolicy": {"reportIntervalSeconds": 30}}, NODESLOS: slo}
    for kind, spec in specs.items():
        await client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": NODE}, "spec": spec})


@contextlib.asynccontextmanager
async def kubelet(numbers: Callable[[], Iterable[int]]) -> AsyncIterator[int]:
    """Answers /pods, with those of ``numbers``, and /configz; its port."""
    from aiohttp import web

    config = orjson.dumps({"kubeletconfig": {"cpuManagerPolicy": "none"}})

    async def answer(request: web.Request) -> web.Response:
        body = orjson.dumps({"kind": "PodList", "apiVersion": "v1", "items": [pod(n) for n in numbers()]})
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


@dataclass(slots=True)
class Agent:
    """A running koordlet. ``healthy`` is how long it took until /healthz answered 200 (seconds)."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    healthy: float = float("nan")

    @property
    def pid(self) -> int:
        return self.process.pid

    async def metrics(self) -> str:
        import aiohttp

        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/internal-metrics") as response:
            return await response.text()

    async def until_healthy(self) -> None:
        import aiohttp

        began = time.monotonic()
        async with aiohttp.ClientSession() as session:
            while time.monotonic() - began < 30 and self.process.poll() is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{self.port}/healthz") as response:
                        if response.status == 200:
                            self.healthy = time.monotonic() - began
                            return
                await asyncio.sleep(0.02)
        raise SystemExit(f"koordlet did not become healthy; its log ends in:\n{self.log.read_text()[-2000:]}")

    def complaints(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(("E", "F"))]


def _end_with_parent() -> None:
    """In the child: an agent must not outlive a benchmark that was killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextlib.asynccontextmanager
async def agent(
    machine: Machine,
    *,
    slo: dict[str, Any],
    gates: str = "",
    flags: Sequence[str] = (),
    profile: str = "",
    numbers: Callable[[], Iterable[int]] | None = None,
) -> AsyncIterator[Agent]:
    """koordlet on the machine, healthy; with an API server and a kubelet of its own. Ends with the block."""
    scratch = machine.scratch
    async with (
        running_server(crds=True) as server,
        server.client() as client,
        kubelet(numbers or (lambda: range(machine.pods))) as kubelet_port,
    ):
        await cluster(client, slo)
        port = free_port()
        arguments = [
            f"--kubeconfig={server.kubeconfig_path}", f"--node-name={NODE}", f"--addr=127.0.0.1:{port}", "--kubelet-insecure-tls",
            f"--kubelet-read-only-port={kubelet_port}", f"--tsdb-path={scratch}/tsdb", f"--audit-log-dir={scratch}/audit",
            f"--prediction-checkpoint-filepath={scratch}/prediction", f"--var-run-root-dir={scratch}/run",
            f"--runtime-hooks-addr={scratch}/run/hook.sock", f"--runtime-hooks-config-path={scratch}/hooks",
            f"--feature-gates=RdtResctrl=false,{gates}", *machine.flags, *flags,
        ]  # fmt: skip
        environment = {**os.environ, "agent_mode": "hostMode"}
        profiler = ["-m", "cProfile", "-o", profile] if profile else []
        command = [sys.executable, *profiler, "-m", "koord.cli", "koordlet", *arguments]
        log = scratch / "log"
        with open(log, "wb") as stream:
            # no other thread runs yet
            process = subprocess.Popen(command, stderr=stream, env=environment, preexec_fn=_end_with_parent)  # noqa: PLW1509
        made = Agent(process, port, log)
        try:
            await made.until_healthy()
            yield made
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
