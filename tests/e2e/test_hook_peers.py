"""koordlet's hook server, the runtime proxy and a real containerd, each a process: koordlet's word stands in the kernel's files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from koord.api.kinds import NODES, NODESLOS
from koord.apiserver.testing import running_server
from tests.roles.runtime_proxy.support_containerd import Client, Containerd, cgroup_file, running_containerd
from tests.support import patience
from tests.support.processes import free_port, process

pytestmark = [pytest.mark.cri, pytest.mark.root]

SPEC = "node.koordinator.sh/extended-resource-spec"


class _Kubelet(BaseHTTPRequestHandler):
    """The kubelet's read-only port on a node that runs one pod, an old one."""

    def do_GET(self) -> None:
        pod = {"metadata": {"name": "old", "namespace": "shop", "uid": "uid-old"}, "spec": {}, "status": {"phase": "Running"}}
        body = json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [pod]} if self.path.startswith("/pods") else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def kubelet() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Kubelet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def koordlet(host: Path, kubeconfig: str, kubelet_port: int) -> list[str]:
    for part in ("sys/fs/cgroup", "proc", "var/lib/kubelet", "var/run", "run", "etc/runtime/hookserver.d"):
        (host / part).mkdir(parents=True)
    return [
        "koordlet", f"--host-root={host}", f"--kubeconfig={kubeconfig}", "--node-name=n1", f"--addr=127.0.0.1:{free_port()}",
        "--kubelet-insecure-tls=true", f"--kubelet-read-only-port={kubelet_port}", f"--tsdb-path={host}/series",
        f"--prediction-checkpoint-filepath={host}/checkpoints", f"--audit-log-dir={host}/audit",
        f"--runtime-hooks-addr={host}/var/run/hooks.sock", f"--runtime-hooks-host-endpoint={host}/var/run/hooks.sock",
        "--runtime-hooks-failure-policy=Fail",
        "--feature-gates=BatchResource=true,BECPUSuppress=false,CPUBurst=false,RdtResctrl=false",
    ]  # fmt: skip


def wait_for(path: Path, seconds: float = 30.0) -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear within {seconds} s"
        time.sleep(0.05)


async def drive(containerd: Containerd, socket: Path) -> dict[str, str]:
    """A batch pod's life through the proxy; what the kernel's files held."""
    m = containerd.m
    client = Client(socket, m)
    parent = containerd.parent("peers")
    batch = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
    try:
        pod = m.PodSandboxConfig(
            metadata=m.PodSandboxMetadata(name="peers", uid="uid-peers", namespace="shop"),
            labels={"koordinator.sh/qosClass": "BE"},
            annotations={SPEC: json.dumps({"containers": {"main": {"requests": batch, "limits": batch}}})},
            log_directory="/tmp",
            linux=m.LinuxPodSandboxConfig(
                cgroup_parent=parent, security_context=m.SecurityContext(namespace_options=m.NamespaceOption(network=2))
            ),
        )
        sandbox = (await client.call("RunPodSandbox", m.RunPodSandboxRequest(config=pod), "RunPodSandboxResponse")).pod_sandbox_id
        container = await client.create(sandbox, pod, "main", cpu_shares=2)
        await client.start(container)
        seen = {
            "shares": cgroup_file("cpu", parent, container, "cpu.shares"),
            "quota": cgroup_file("cpu", parent, container, "cpu.cfs_quota_us"),
            "memory": cgroup_file("memory", parent, container, "memory.limit_in_bytes"),
        }
        await client.stop(container)
        await client.raw("RemoveContainer", m.ContainerRequest(container_id=container))
        await client.raw("StopPodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
        await client.raw("RemovePodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
        return seen
    finally:
        await client.close()


@pytest.mark.feature("KA-RH-01")
@pytest.mark.feature("KA-HK-03")
@pytest.mark.feature("RP-HOOK-01")
def test_a_batch_pod_gets_its_limits_before_it_starts(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("e")
    host, socket = directory / "h", directory / "p.sock"
    hooks = host / "etc/runtime/hookserver.d"

    async def scenario() -> dict[str, str]:
        async with running_server(crds=True) as server, server.client() as client:
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            address = {"type": "InternalIP", "address": "127.0.0.1"}
            await client.patch(NODES, "n1", {"status": {"addresses": [address]}}, subresource="status")
            slo = {"apiVersion": NODESLOS.api_version, "kind": "NodeSLO", "metadata": {"name": "n1"}, "spec": {}}
            await client.create(NODESLOS, slo)
            with kubelet() as port, running_containerd() as containerd, process(*koordlet(host, str(server.kubeconfig_path), port)):
                await asyncio.to_thread(wait_for, hooks / "koordlet.json")
                arguments = (
                    "runtime-proxy", f"--koord-runtimeproxy-endpoint={socket}", f"--runtime-hooks-config-path={hooks}",
                    f"--remote-runtime-service-endpoint={containerd.socket}", "--runtime-hook-timeout=20s",
                )  # fmt: skip
                with process(*arguments):
                    await asyncio.to_thread(wait_for, socket)
                    return await drive(containerd, socket)

    assert asyncio.run(scenario()) == {"shares": "512", "quota": "50000", "memory": str(64 << 20)}
