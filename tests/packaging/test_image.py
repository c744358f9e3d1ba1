"""The image: built from the Dockerfile without an engine, and every role started from it in a real containerd under a read-only root."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koord.version import VERSION
from tests.packaging import image as images
from tests.packaging.image import REVISION, Built, Start
from tests.roles.runtime_proxy.support_containerd import Client, Containerd, running_containerd
from tests.support import patience
from tests.support.koordlet import Cluster
from tests.support.processes import ROOT, free_port, healthy, roles

pytestmark = [pytest.mark.slow, pytest.mark.cri, pytest.mark.root, pytest.mark.timeout(600)]

LIMIT = 60.0


@pytest.fixture(scope="module")
def containerd(built: Built) -> Iterator[Containerd]:
    with running_containerd(snapshotter="overlayfs" if built.builder.driver == "overlay" else "native") as daemon:
        built.builder.give(["ctr", "-a", str(daemon.socket), "-n", "k8s.io", "images", "import", "-"])
        yield daemon


def test_the_image_says_what_it_is_and_is_nobody_special(built: Built) -> None:
    configuration = built.configuration
    assert configuration["User"] == "65532:65532"
    assert configuration["Entrypoint"] == ["/usr/local/bin/koord"]
    assert configuration["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/koord", "probe"]
    labels = {k.removeprefix("org.opencontainers.image."): v for k, v in configuration["Labels"].items()}
    assert labels["title"] == "koord"
    assert labels["licenses"] == "Apache-2.0"
    assert (labels["version"], labels["revision"]) == (VERSION, REVISION)
    assert labels["base.name"].endswith(images.base_name())


def test_the_image_carries_its_sbom_and_no_program_that_gives_rights(built: Built) -> None:
    sbom = json.loads((built.tree / "opt/koord/koord.cdx.json").read_text())
    assert {"aiohttp", "grpcio", "python"} <= {c["name"] for c in sbom["components"]}
    privileged = [
        os.path.join(base, name)
        for base, _, names in os.walk(built.tree)
        for name in names
        if not os.path.islink(os.path.join(base, name)) and os.stat(os.path.join(base, name)).st_mode & 0o6000
    ]
    assert privileged == []
    assert not (built.tree / "src").exists()


def starts(directory: Path, kubeconfig: Path, runtime: Path) -> dict[str, tuple[Start, str]]:
    """How each role is started in the image, and where it says that it is well."""
    kubeconfig = Path(shutil.copy(kubeconfig, directory / "kubeconfig"))
    kubeconfig.chmod(0o644)
    host, state, certificates = directory / "machine", directory / "state", directory / "certs"
    for path in (host, state, certificates):
        path.mkdir()
    certificates.chmod(0o777)  # as an emptyDir is
    out = {
        name: (Start(arguments, {"KUBECONFIG": str(kubeconfig), **environment}, read=(directory,), write=(certificates,)), url)
        for name, arguments, url, environment in roles(directory, kubeconfig)
        if name != "koordlet"
    }
    start, url = out["manager"]  # a directory of its own below the emptyDir, as the manifest has it
    environment = {**start.environment, "WEBHOOK_CERT_DIR": f"{certificates}/webhook-certs"}
    out["manager"] = (replace(start, environment=environment), url)
    machine = Cluster(host, None)
    machine.machine()
    machine.counters()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    agent = [
        "koordlet", "--node-name=image", f"--host-root={host}", f"--addr={addresses[0]}", f"--audit-log-dir={state}/audit",
        f"--tsdb-path={state}/series", f"--prediction-checkpoint-filepath={state}/prediction",
    ]  # fmt: skip
    environment = {"KUBECONFIG": str(kubeconfig)}
    out["koordlet"] = (Start(agent, environment, read=(kubeconfig,), write=(host, state), user=0), f"http://{addresses[0]}/healthz")
    proxy = [
        "runtime-proxy", f"--koord-runtimeproxy-endpoint={state}/proxy.sock", f"--remote-runtime-service-endpoint=unix://{runtime}",
        f"--runtime-hooks-config-path={state}/hooks.d", f"--addr={addresses[1]}",
    ]  # fmt: skip
    out["runtime-proxy"] = (Start(proxy, {}, read=(runtime,), write=(state,), user=0), f"http://{addresses[1]}/healthz")
    return out


async def live(client: Client, sandbox: str, pod: Any, role: str, start: Start, url: str) -> None:
    """One role's life: well, as its own probe says too; unprivileged; ended by SIGTERM with status 0."""
    log = Path(pod.log_directory) / f"{role}.log"
    container = await images.create(client, sandbox, pod, role, start)
    await client.start(container)
    end = time.monotonic() + patience.seconds(LIMIT)
    while not await asyncio.to_thread(healthy, url):
        now, _ = await images.status(client, container)
        assert now.state == 1, f"{role} ended with {now.exit_code}: {log.read_text()[-1500:]}"
        assert time.monotonic() < end, f"{role} did not become healthy: {log.read_text()[-1500:]}"
        await asyncio.sleep(0.1)
    _, more = await images.status(client, container)
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{more['pid']}/status").read_text().splitlines() if ":" in line)
    assert facts["Uid"].split() == [str(65532 if start.user is None else start.user)] * 4
    assert int(facts["CapEff"], 16) == 0
    root = next(line for line in Path(f"/proc/{more['pid']}/mountinfo").read_text().splitlines() if line.split()[4] == "/")
    assert root.split()[5].split(",")[0] == "ro"
    probed = await client.exec(container, "koord", "probe")
    assert (probed.exit_code, probed.stdout) == (0, b"ok\n"), probed.stderr.decode()
    await client.raw("StopContainer", client.m.StopContainerRequest(container_id=container, timeout=20))
    ended, _ = await images.status(client, container)
    assert (ended.state, ended.exit_code) == (2, 0), f"{role}: {log.read_text()[-1500:]}"


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet", "runtime-proxy"])
def test_a_role_lives_under_a_read_only_root(containerd: Containerd, api: Path, tmp_path: Path, role: str) -> None:
    tmp_path.chmod(0o755)
    start, url = starts(tmp_path, api, containerd.socket)[role]

    async def scenario() -> None:
        client = Client(containerd.socket, containerd.m)
        sandbox, pod = await client.run_pod(role, containerd.parent(f"image-{role}"))
        pod.log_directory = str(tmp_path)
        try:
            await live(client, sandbox, pod, role, start, url)
        finally:
            for method in ("StopPodSandbox", "RemovePodSandbox"):
                await client.raw(method, client.m.PodSandboxRequest(pod_sandbox_id=sandbox))
            await client.close()

    asyncio.run(scenario())


def test_the_dockerfile_is_the_only_way_in() -> None:
    """What is not for the image stays out of the build's context."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "dist"} <= set(ignored)
