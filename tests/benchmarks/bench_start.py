"""Start times: `koord --help`, and each role's process until its health URL answers 200."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.table import Row, current_rss_mib, script

ROOT = Path(__file__).resolve().parent.parent.parent
KOORD = shutil.which("koord", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") or "koord"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([KOORD, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield child
    finally:
        child.terminate()
        child.wait(10)


def until_healthy(url: str, child: subprocess.Popen[bytes], limit: float = 40) -> None:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if child.poll() is not None:
            raise RuntimeError(f"{child.args} ended with {child.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.01)
    raise RuntimeError(f"{url} did not become healthy")


def rows(quick: bool) -> list[Row]:
    tries = 3 if quick else 7
    helps = []
    for _ in range(tries):
        started = time.monotonic()
        subprocess.run([KOORD, "--help"], check=True, stdout=subprocess.DEVNULL)
        helps.append(time.monotonic() - started)
    found = [Row("koord --help", statistics.median(helps), "s", 0.2, note=f"median of {tries}, minimum {min(helps):.3f} s")]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        kubeconfig = directory / "kubeconfig"
        port = free_port()
        started = time.monotonic()
        with process("apiserver", "--port", str(port), "--data-dir", str(directory / "data"), "--print-kubeconfig", str(kubeconfig)) as api:
            while not kubeconfig.exists() and api.poll() is None:
                time.sleep(0.01)
            found.append(Row("apiserver until it serves", time.monotonic() - started, "s", 1.5))
            subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.install_crds", str(kubeconfig)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
            )
            for role, arguments, url, environment in _roles(directory, kubeconfig):
                started = time.monotonic()
                with process(*arguments, KUBECONFIG=str(kubeconfig), **environment) as child:
                    until_healthy(url, child)
                    seconds = time.monotonic() - started
                    found.append(Row(f"{role} until healthy", seconds, "s", 1.5, note=f"{current_rss_mib(child.pid):.0f} MiB RSS"))
    return found


def _roles(directory: Path, kubeconfig: Path) -> list[tuple[str, list[str], str, dict[str, str]]]:
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
                "--enable-leader-election=false", "--enable-pprof=false",
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


if __name__ == "__main__":
    script(rows)
