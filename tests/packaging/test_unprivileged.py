"""koordlet without root: as another user on a machine that is not his, with an API server and a kubelet, from the frozen executable."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from koord.api.kinds import NODEMETRICS
from koord.apiserver.testing import running_server
from tests.support.koordlet import GI, Cluster, kubelet, until
from tests.support.processes import free_port, healthy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOBODY = 65534
COUNTING = {"cpuacct.usage", "cpu.stat", "stat"}


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users get to."""
    directory = Path(tempfile.mkdtemp(prefix="koord-unprivileged-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def tree(base: Path) -> dict[str, tuple[int, bytes]]:
    """Each file's owner and content, each directory's owner; not what counts by itself."""
    return {
        str(path.relative_to(base)): (path.stat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in base.rglob("*")
        if path.name not in COUNTING
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.feature("BEY-MODE-01")
def test_somebody_else_reports_the_node_and_touches_nothing(dist: Path, open_directory: Path) -> None:
    machine = open_directory / "machine"
    machine.mkdir()

    async def story(c: Cluster, kubeconfig: Path) -> None:
        c.machine()
        await c.node({"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 50}})
        spec = {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}}
        await c.client.create(
            NODEMETRICS, {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, "spec": spec}
        )
        await c.pod("be", qos="BE", kube_qos="BestEffort", memory=9 * GI)
        c.use.update({"node": 9.0, "be": 8.0})
        c.counters()
        c.file("var/lib/kubelet/cpu_manager_state", "{}")
        (machine / "var/lib/kubelet/cpu_manager_state").chmod(0o600)
        before = tree(machine)
        address = f"127.0.0.1:{free_port()}"
        async with kubelet(c) as port:
            command = [dist / "koord" / "koord", "koordlet", "--observe-only", "--node-name=n1", f"--host-root={machine}"]
            command += [f"--kubeconfig={kubeconfig}", f"--addr={address}", "--kubelet-insecure-tls", f"--kubelet-read-only-port={port}"]
            command += ["--kubelet-sync-interval=1s"]
            with (
                (open_directory / "log").open("w") as errors,
                subprocess.Popen(command, user=NOBODY, group=NOBODY, extra_groups=[], stderr=errors) as child,
            ):
                mover = asyncio.create_task(moving(c))
                try:
                    await until(lambda: asyncio.to_thread(healthy, f"http://{address}/healthz"), "health", 60)
                    await until(partial(reported, c), "a NodeMetric with use", 90)
                finally:
                    child.terminate()
                    await asyncio.to_thread(child.wait, 20)
                    mover.cancel()
        log = (open_directory / "log").read_text()
        assert child.returncode == 0, log[-2000:]
        assert tree(machine) == before
        told = [line for line in log.splitlines() if "no permission" in line]
        assert len(told) == 1, log[-2000:]
        assert "cpu_manager_state may not be read by user 65534" in told[0]
        assert "Traceback" not in log

    async def main() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            kubeconfig = Path(shutil.copy(server.kubeconfig_path, open_directory / "kubeconfig"))
            kubeconfig.chmod(0o644)
            await story(Cluster(machine, client), kubeconfig)

    asyncio.run(main())


async def moving(c: Cluster) -> None:
    while True:
        c.counters()
        await asyncio.sleep(0.2)


async def reported(c: Cluster) -> bool:
    status = (await c.client.get(NODEMETRICS, "n1")).get("status") or {}
    return bool((status.get("nodeMetric") or {}).get("nodeUsage"))
