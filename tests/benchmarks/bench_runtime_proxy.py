"""What the runtime proxy adds to a call: each call through it and directly, turn by turn in one run."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc.aio
import uvloop

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from tests.benchmarks.table import Row, current_rss_mib, script
from tests.support.processes import KOORD, process

RUNTIME, IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
CALLERS = 100
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
ENGINE = Path(__file__).with_name("runtime_engine.py")


def create_request() -> bytes:
    request = cri.CreateContainerRequest(pod_sandbox_id="sandbox")
    request.config.metadata.name = "main"
    for n in range(20):
        request.config.envs.add(key=f"SERVICE_{n}_HOST", value=b"10.0.0.1")
        request.config.annotations[f"example.com/annotation-{n}"] = "value"
    request.config.linux.resources.cpu_shares = 1024
    request.sandbox_config.linux.cgroup_parent = "/kubepods/burstable/pod-u"
    return request.SerializeToString()


class Way:
    """One connection, as kubelet holds one."""

    def __init__(self, socket: Path) -> None:
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._calls: dict[str, grpc.aio.UnaryUnaryMultiCallable] = {}

    async def call(self, method: str, raw: bytes, service: str = RUNTIME) -> float:
        send = self._calls.setdefault(method, self.channel.unary_unary(service + method))
        started = time.perf_counter()
        await send(raw, timeout=60, wait_for_ready=True)
        return (time.perf_counter() - started) * 1000


async def turns(direct: Way, proxied: Way, method: str, raw: bytes, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of `count` calls each way, alternating so that both meet the same machine."""
    found: tuple[list[float], list[float]] = ([], [])
    for n in range(count + 50):
        for way, times in zip((direct, proxied), found, strict=True):
            taken = await way.call(method, raw)
            if n >= 50:
                times.append(taken)
    return found


async def hook_itself(directory: Path, count: int) -> float:
    """Milliseconds of a call of the hook server by a client of its own, p50."""
    request = hook.ContainerResourceHookRequest(container_envs={f"SERVICE_{n}_HOST": "10.0.0.1" for n in range(20)})
    request.container_resources.cpu_shares = 1024
    raw, times = request.SerializeToString(), []
    async with grpc.aio.insecure_channel(f"unix:{directory}/h.sock", options=OPTIONS) as channel:
        ask = channel.unary_unary("/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook")
        for _ in range(count):
            started = time.perf_counter()
            await ask(raw, timeout=60, wait_for_ready=True)
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def crowd(way: Way, method: str, raw: bytes, count: int) -> tuple[float, list[float]]:
    """Calls per second and milliseconds of each, with CALLERS callers on one connection."""
    times: list[float] = []

    async def caller() -> None:
        for _ in range(count // CALLERS):
            times.append(await way.call(method, raw))

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return len(times) / (time.perf_counter() - started), times


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def added(direct: list[float], proxied: list[float], share: float) -> float:
    """Milliseconds that a percentile through the proxy is above the direct one's."""
    return percentile(proxied, share) - percentile(direct, share)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mib(pid: int) -> float:
    """The most resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


async def measure(directory: Path, pid: int, quick: bool) -> list[Row]:
    direct, proxied = Way(directory / "e.sock"), Way(directory / "p.sock")
    count = 1000 if quick else 4000
    rows = []
    try:
        await proxied.call("RunPodSandbox", cri.RunPodSandboxRequest().SerializeToString())
        resting = current_rss_mib(pid)
        rows.append(Row("runtime-proxy: memory at rest", resting, "MiB", 45))
        for what, method, raw, calls, goals in (
            ("Version", "Version", b"", count, (0.3, 1.0)),
            ("ListContainers of 200", "ListContainers", b"", count // 2, (0.3, 1.0)),
            ("CreateContainer with a hook", "CreateContainer", create_request(), count // 2, (None, None)),
        ):
            found = await turns(direct, proxied, method, raw, calls)
            note = f"direct {statistics.median(found[0]):.2f} ms, through the proxy {statistics.median(found[1]):.2f} ms"
            rows.append(Row(f"runtime-proxy: added to {what}, p50", added(*found, 0.5), "ms", goals[0], note=note))
            note = f"direct {percentile(found[0], 0.99):.2f} ms, through the proxy {percentile(found[1], 0.99):.2f} ms"
            rows.append(Row(f"runtime-proxy: added to {what}, p99", added(*found, 0.99), "ms", goals[1], note=note))
        own = await hook_itself(directory, count // 2)
        rows.append(
            Row("runtime-proxy: the same beyond the hook itself", added(*found, 0.5) - own, "ms", 1.0, note=f"the hook {own:.2f} ms")
        )
        used = cpu_seconds(pid)
        for _ in range(count):
            await proxied.call("Version", b"")
        rows.append(Row("runtime-proxy: CPU a call", (cpu_seconds(pid) - used) / count * 1000, "ms", 0.4))
        straight, rates, times = 0.0, 0.0, []
        for _ in range(2):  # turn by turn: both meet the same machine
            straight += (await crowd(direct, "Version", b"", count))[0] / 2
            rate, found_times = await crowd(proxied, "Version", b"", count)
            rates, times = rates + rate / 2, times + found_times
        share = f"direct {straight:.0f} /s, through the proxy {rates:.0f} /s"
        rows.append(Row(f"runtime-proxy: rate with {CALLERS} callers, of the direct one", rates / straight * 100, "%", 65, "higher", share))
        rows.append(Row(f"runtime-proxy: a call with {CALLERS} callers, p99", percentile(times, 0.99), "ms"))
        images = [proxied.call("ListImages", b"", IMAGES) for _ in range(30)]
        await asyncio.gather(*images)
        rows.append(Row("runtime-proxy: more memory while 30 lists of 12 MiB pass", peak_rss_mib(pid) - resting, "MiB", 64))
        rows.append(Row("runtime-proxy: memory after that", current_rss_mib(pid), "MiB"))
    finally:
        await direct.channel.close()
        await proxied.channel.close()
    return rows


def rows(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        (directory / "hooks.d").mkdir()
        registration = {"remote-endpoint": str(directory / "h.sock"), "runtime-hooks": ["PreCreateContainer"]}
        (directory / "hooks.d" / "h.json").write_text(json.dumps(registration))
        arguments = [
            f"--koord-runtimeproxy-endpoint={directory}/p.sock",
            f"--remote-runtime-service-endpoint={directory}/e.sock",
            f"--runtime-hooks-config-path={directory}/hooks.d",
        ]
        root = str(Path(__file__).resolve().parent.parent.parent)
        with (
            process(str(ENGINE), str(directory / "e.sock"), str(directory / "h.sock"), program=sys.executable, PYTHONPATH=root),
            process("runtime-proxy", *arguments, program=KOORD) as proxy,
        ):
            end = time.monotonic() + 20
            while not (directory / "p.sock").exists():
                if proxy.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("the runtime proxy does not serve its socket")
                time.sleep(0.02)
            return uvloop.run(measure(directory, proxy.pid, quick))


if __name__ == "__main__":
    script(rows)
