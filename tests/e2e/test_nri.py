"""koordlet as an NRI plugin of a real containerd: what it answers is in the cgroup files of real containers (KA-RH-02)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.runtime_proxy.support_containerd import Client, Containerd, cgroup_file, running_containerd
from tests.support import patience
from tests.support.koordlet import Cluster, agent, run, until

pytestmark = [pytest.mark.cri, pytest.mark.root]

NRI = """
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{0}/nri.sock"
  plugin_path = "{0}/plugins"
  plugin_config_path = "{0}/plugins.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    if os.geteuid() != 0:
        pytest.skip("needs root: containers are run")
    unpacked = Path(os.environ.get("KOORD_TEST_CONTAINERD", Path.home() / ".cache/koord/containerd")) / "usr/bin"
    if not (unpacked / "containerd").exists():
        pytest.skip(f"needs containerd >= 1.7 in {unpacked}: tests/support/containerd17.sh puts it there")
    with running_containerd(unpacked, NRI) as daemon:
        yield daemon


@pytest.mark.feature("KA-RH-02")
def test_a_real_runtime_asks(containerd: Containerd, tmp_path: Path) -> None:
    """One container is there before the agent, one is created after it, and one is updated by somebody else."""

    async def story(c: Cluster) -> None:
        await c.node({})
        socket = c.base / "var/run/nri/nri.sock"
        socket.parent.mkdir(parents=True)
        socket.symlink_to(containerd.directory / "nri.sock")
        client = Client(containerd.socket, containerd.m)
        parent = containerd.parent("nri-besteffort")
        quantities = {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 64 << 20}
        spec = {"containers": {name: {"requests": quantities, "limits": quantities} for name in ("old", "new")}}
        annotations = {"node.koordinator.sh/extended-resource-spec": json.dumps(spec)}
        m = containerd.m
        config = m.PodSandboxConfig(
            metadata=m.PodSandboxMetadata(name="p", uid="uid-p", namespace="shop"),
            labels={"io.kubernetes.pod.name": "p", "koordinator.sh/qosClass": "BE"},
            annotations=annotations,
            log_directory="/tmp",
            linux=m.LinuxPodSandboxConfig(
                cgroup_parent=parent, security_context=m.SecurityContext(namespace_options=m.NamespaceOption(network=2))
            ),
        )
        try:
            sandbox = (await client.call("RunPodSandbox", m.RunPodSandboxRequest(config=config), "RunPodSandboxResponse")).pod_sandbox_id
            old = await client.create(sandbox, config, "old")
            await client.start(old)
            assert cgroup_file("cpu", parent, old, "cpu.cfs_quota_us") == "-1"
            async with agent(c, "BatchResource", runtime_hooks_nri_backoff_duration=0.1):

                def quota(container: str) -> str:
                    return cgroup_file("cpu", parent, container, "cpu.cfs_quota_us")

                await until(lambda: quota(old) == "50000", "the quota of the container from before", 30)
                new = await client.create(sandbox, config, "new")
                await client.start(new)
                assert quota(new) == "50000"
                assert cgroup_file("cpu", parent, new, "cpu.shares") == "512"
                assert cgroup_file("memory", parent, new, "memory.limit_in_bytes") == str(64 << 20)
                await client.update(new, cpu_quota=200_000, cpu_period=100_000)
                assert quota(new) == "50000", "an update of somebody else is corrected on its way"
                other = await client.create(sandbox, config, "other")
                await client.start(other)
                assert quota(other) == "-1", "containers without batch resources are left alone"
        finally:
            await client.close()

    run(tmp_path, lambda c: asyncio.wait_for(story(c), patience.seconds(100)))
