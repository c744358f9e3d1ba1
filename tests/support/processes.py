"""Starting koord's processes in tests and benchmarks: one table of how each role is started and where it is healthy."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support import patience

ROOT = Path(__file__).resolve().parent.parent.parent
KOORD = shutil.which("koord", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") or "koord"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*arguments: str, program: str = KOORD, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield child
    finally:
        child.terminate()
        child.wait(patience.seconds(10))


def healthy(url: str) -> bool:
    """Whether a URL answers 200 now."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=patience.seconds(1)) as answer:
        return bool(answer.status == 200)
    return False


def until_healthy(url: str, child: subprocess.Popen[bytes], limit: float = 40) -> None:
    until_answers(url, lambda: child.poll() is None, limit)


def until_answers(url: str, alive: Callable[[], bool], limit: float = 40) -> None:
    """Wait for a 200. Raises RuntimeError when the process ended, or after `limit` seconds."""
    end = time.monotonic() + patience.seconds(limit)
    while time.monotonic() < end:
        if not alive():
            raise RuntimeError(f"the process that was to answer at {url} has ended")
        if healthy(url):
            return
        time.sleep(0.01)
    raise RuntimeError(f"{url} did not become healthy")


@contextlib.contextmanager
def forking() -> Iterator[Callable[..., BaseProcess]]:
    """Gives a function that starts `koord` with its arguments in a process of its own, forked from one that has loaded its modules:
    hundreds of starts cost little. That one, and the tracker that it starts, would stay until pytest itself has ended: they end here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["koord.apiserver.main", "koord.apiserver.cli", "tests.support.processes"])
    started: list[BaseProcess] = []

    def forked(*arguments: str) -> BaseProcess:
        process = context.Process(target=_main, args=(arguments,), daemon=True)
        process.start()
        started.append(process)
        return process

    try:
        yield forked
    finally:
        for process in started:  # the tracker ends only after them
            process.kill()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # there is no public way to end either
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _main(arguments: tuple[str, ...]) -> None:
    from koord.cli import main

    sys.argv = ["koord", *arguments]
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    main()


def roles(directory: Path, kubeconfig: Path) -> list[tuple[str, list[str], str, dict[str, str]]]:
    """Name, arguments, health URL and environment of each role that has an HTTP port."""
    scheduler, manager, descheduler, koordlet = (free_port() for _ in range(4))
    sched_config, desched_config = directory / "scheduler.yaml", directory / "descheduler.yaml"
    sched_config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n"
        f"clientConnection: {{kubeconfig: {kubeconfig}}}\n"
    )
    address = f"127.0.0.1:{descheduler}"
    desched_config.write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nleaderElection: {leaderElect: false}\ndryRun: true\n"
        f"deschedulingInterval: 60s\nhealthzBindAddress: {address}\nmetricsBindAddress: {address}\n"
    )
    host = directory / "host"
    for part in ("sys/fs/cgroup", "proc", "var/lib/kubelet", "var/run", "run"):
        (host / part).mkdir(parents=True)
    webhook = {"WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(directory / "certs"), "POD_NAMESPACE": "koordinator-system"}
    return [
        (
            "scheduler",
            ["scheduler", f"--config={sched_config}", "--address=127.0.0.1", f"--port={scheduler}", "--secure-port=0"],
            f"http://127.0.0.1:{scheduler}/healthz",
            {},
        ),
        (
            "manager",
            [
                "manager", f"--metrics-addr=127.0.0.1:{free_port()}", f"--health-probe-addr=127.0.0.1:{manager}",
                "--enable-leader-election=false", "--enable-pprof=false", "--shutdown-delay-duration=0s",
            ],
            f"http://127.0.0.1:{manager}/healthz",
            webhook,
        ),
        ("descheduler", ["descheduler", f"--config={desched_config}", "--secure-port=0"], f"http://{address}/healthz", {}),
        (
            "koordlet",
            ["koordlet", "--node-name=bench", "--host-root=/", f"--addr=127.0.0.1:{koordlet}", f"--audit-log-dir={directory}/audit",
             f"--tsdb-path={directory}/tsdb", f"--prediction-checkpoint-filepath={directory}/prediction", "--kubelet-read-only-port=1"],
            f"http://127.0.0.1:{koordlet}/healthz",
            {},
        ),
    ]  # fmt: skip
