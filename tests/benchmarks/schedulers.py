"""The schedulers that can be measured side by side, how each is started, and what one run of pods costs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import yaml

from koord.api.kinds import PODS
from koord.kube.client import Client
from koord.kube.config import load
from tests.benchmarks.table import cpu_seconds, current_rss_mib
from tests.support.processes import KOORD, free_port, process
from tests.support.real_apiserver import get

LIMIT = 300.0  # seconds after which pods that are not bound are given up
QUIET = 0.02  # seconds of CPU in half a second of a scheduler that has nothing to do


class Contender(NamedTuple):
    """A scheduler: the name in the table, the program, and whether it is one of koord's or upstream's, which know the shipped profile."""

    name: str
    program: str
    koordinator: bool = True

    def command(self, config: Path, kubeconfig: Path, port: int) -> tuple[list[str], str]:
        """Command and base URL."""
        if self.program == KOORD:
            flags = [f"--config={config}", f"--kubeconfig={kubeconfig}", "--address=127.0.0.1", f"--port={port}", "--secure-port=0"]
            return [KOORD, "scheduler", *flags], f"http://127.0.0.1:{port}"
        flags = [f"--config={config}", f"--secure-port={port}", "--bind-address=127.0.0.1", f"--cert-dir={config.parent}"]
        flags += ["--authentication-skip-lookup=true", "--authorization-always-allow-paths=/healthz,/metrics"]
        if self.koordinator:
            flags += ["--port=0"]  # its plugins' services, for which it would take a port that is always the same
        return [self.program, *flags], f"https://127.0.0.1:{port}"


class Run(NamedTuple):
    """What one run of pods took: how many of them were bound, pods/s, CPU of the scheduler and of the API server (ms a pod; None where that
    is not ours), resident memory of the scheduler (MiB) and the load of the machine at its end."""

    bound: int
    rate: float
    cpu: float
    server: float | None
    memory: float
    load: float


@contextlib.contextmanager
def started(contender: Contender, kubeconfig: Path, profile: dict[str, Any] | None, directory: Path) -> Iterator[tuple[int, str]]:
    """The scheduler's PID and base URL once it answers. All get the same file. Raises RuntimeError when it ends at once."""
    config = directory / "scheduler.yaml"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 10000, "burst": 10000}, **({"profiles": [profile]} if profile else {}),
    }  # fmt: skip
    config.write_text(yaml.safe_dump(content))
    command, base = contender.command(config, kubeconfig, free_port())
    with process(*command[1:], program=command[0]) as scheduler:
        while get(f"{base}/healthz")[0] != 200:
            if scheduler.poll() is not None:
                raise RuntimeError(f"{command} ended with {scheduler.returncode}")
            time.sleep(0.01)
        yield scheduler.pid, base


def idle(contender: Contender, kubeconfig: Path, profile: dict[str, Any] | None, directory: Path) -> float:
    """Seconds of CPU that a start takes where no pod waits, until it rests."""
    with started(contender, kubeconfig, profile, directory) as (pid, _):
        used, end = 0.0, time.monotonic() + LIMIT
        while cpu_seconds(pid) - used > QUIET and time.monotonic() < end:
            used = cpu_seconds(pid)
            time.sleep(0.5)
        return cpu_seconds(pid)


def run(
    contender: Contender, kubeconfig: Path, profile: dict[str, Any] | None, directory: Path, pods: int, server: int | None, start: float
) -> Run:
    """The scheduler is started and binds `pods` pods that wait already. `start` is what `idle` said."""
    server_before = cpu_seconds(server) if server else 0.0
    version = asyncio.run(_version(kubeconfig))
    with started(contender, kubeconfig, profile, directory) as (pid, _):
        done, seconds = asyncio.run(_bindings(kubeconfig, version, pods))
        share = 1e3 / max(1, done)
        return Run(
            done, done / max(seconds, 1e-9), (cpu_seconds(pid) - start) * share,
            (cpu_seconds(server) - server_before) * share if server else None, current_rss_mib(pid), os.getloadavg()[0],
        )  # fmt: skip


async def _version(kubeconfig: Path) -> str:
    """Of the pods as they are now."""
    async with Client(load(str(kubeconfig))) as client:
        return (await client.list(PODS, "default")).resource_version


async def _bindings(kubeconfig: Path, version: str, pods: int) -> tuple[int, float]:
    """How many pods the API server shows on a node since a version, and the seconds between the first and the last of them. The scheduler
    itself is not asked: its metrics cost it milliseconds each time, the more the longer it takes."""
    bound: set[str] = set()
    times = [0.0]
    with contextlib.suppress(TimeoutError):
        async with Client(load(str(kubeconfig))) as client, asyncio.timeout(LIMIT):
            while len(bound) < pods:  # the API server ends watches that do not keep up
                watch = client.watch(PODS, "default", resource_version=version, field_selector="spec.nodeName!=", bookmarks=False)
                async with contextlib.aclosing(watch):
                    async for line in watch:
                        event = orjson.loads(line)
                        if event["type"] == "ERROR":
                            version = ""
                            break
                        meta = event["object"]["metadata"]
                        version = meta["resourceVersion"]
                        if meta["name"] not in bound:
                            bound.add(meta["name"])
                            times.append(time.monotonic())
                        if len(bound) == pods:
                            break
    return len(bound), times[-1] - times[1] if bound else 0.0
