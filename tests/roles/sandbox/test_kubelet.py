"""The process kubelet through its own doors: API objects in, processes, cgroups, statuses and /pods out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.kinds import LEASES, NODES, PODS
from koord.apiserver.testing import running_server
from koord.kube.client import Client
from koord.kube.errors import NotFound
from koord.kube.informers import InformerFactory
from roles.sandbox.process_kubelet import status
from roles.sandbox.process_kubelet.cgroups import RunGroups, read
from roles.sandbox.process_kubelet.kubelet import ProcessKubelet
from tests.support import patience

pytestmark = [pytest.mark.root, pytest.mark.feature("BEY-SBX-01")]


@dataclass
class Node:
    client: Client
    kubelet: ProcessKubelet
    groups: RunGroups

    async def create(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "none", "command": ["/bin/sh", "-c", script]}
        container |= {key: spec.pop(key) for key in ("resources", "readinessProbe") if key in spec}
        pod = {
            "metadata": {"name": name, "namespace": "default", "annotations": spec.pop("annotations", {status.PROCESS_ANNOTATION: "true"})},
            "spec": {"nodeName": "local", "containers": [container], **spec},
        }
        return await self.client.create(PODS, pod, "default")

    async def until(self, name: str, condition: Callable[[dict[str, Any]], Any], seconds: float = 10) -> dict[str, Any]:
        deadline = time.monotonic() + patience.seconds(seconds)
        while True:
            pod = await self.client.get(PODS, name, "default")
            if condition(pod):
                return pod
            assert time.monotonic() < deadline, f"pod {name} is {pod.get('status')}"
            await asyncio.sleep(0.05)

    async def gone(self, name: str, seconds: float = 10) -> None:
        deadline = time.monotonic() + patience.seconds(seconds)
        while time.monotonic() < deadline:
            try:
                await self.client.get(PODS, name, "default")
            except NotFound:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"pod {name} is still there")


@asynccontextmanager
async def node(groups: RunGroups, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_server() as server:
        async with server.client() as client:
            informers = InformerFactory(client)
            kubelet = ProcessKubelet(client, informers, groups, log_dir=tmp_path / "logs")
            await kubelet.start()
            informers.start()
            await informers.wait_synced()
            try:
                yield Node(client, kubelet, groups)
            finally:
                left = await kubelet.stop()
                await informers.stop()
            assert left == []


def run(groups: RunGroups, tmp_path: Path, body: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        async with node(groups, tmp_path) as one:
            await body(one)

    asyncio.run(main())


def phase(wanted: str) -> Callable[[dict[str, Any]], bool]:
    return lambda pod: pod.get("status", {}).get("phase") == wanted


def test_the_node_is_registered_with_real_capacity_and_a_lease(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        made = await one.client.get(NODES, "local")
        assert made["status"]["capacity"]["cpu"] == str(one.kubelet.machine.cpus)
        assert {c["type"]: c["status"] for c in made["status"]["conditions"]}["Ready"] == "True"
        assert made["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == one.kubelet.server.port
        lease = await one.client.get(LEASES, "local", "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == "local"

    run(groups, tmp_path, body)


def test_a_pod_runs_in_its_cgroups_and_ends_with_its_object(groups: RunGroups, tmp_path: Path, running: Callable[[int], bool]) -> None:
    async def body(one: Node) -> None:
        resources = {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}
        await one.create("web", "while :; do sleep 1; done", resources=resources, terminationGracePeriodSeconds=1)
        pod = await one.until("web", phase("Running"))
        entry = pod["status"]["containerStatuses"][0]
        assert entry["containerID"].startswith("containerd://")
        assert len(entry["containerID"]) == len("containerd://") + 64
        assert pod["status"]["qosClass"] == "Burstable"
        directory = f"kubepods/burstable/pod{pod['metadata']['uid']}"
        container = f"{directory}/{entry['containerID'].removeprefix('containerd://')}"
        pids = groups.pids(container)
        assert pids
        if groups.version == 1:
            assert read(groups.path("cpu", directory) / "cpu.shares") == "256"
            assert read(groups.path("memory", container) / "memory.limit_in_bytes") == str(64 * 2**20)
            assert read(groups.path("cpu", "kubepods/burstable") / "cpu.shares") == "256"
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{one.kubelet.server.port}"
            listed = await (await session.get(f"{url}/pods/")).json(content_type=None)
            assert [p["status"]["phase"] for p in listed["items"]] == ["Running"]
            config = await (await session.get(f"{url}/configz")).json(content_type=None)
            assert config["kubeletconfig"]["cgroupDriver"] == "cgroupfs"
            assert await (await session.get(f"{url}/healthz")).text() == "ok"
        await one.client.delete(PODS, "web", "default")
        await one.gone("web")
        assert not any(map(running, pids))
        assert not (groups.roots["cpu" if groups.version == 1 else ""] / directory).exists()

    run(groups, tmp_path, body)


def test_a_forced_delete_kills_at_once(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        await one.create("stubborn", "trap '' TERM; while :; do sleep 1; done")
        pod = await one.until("stubborn", phase("Running"))
        directory = f"kubepods/besteffort/pod{pod['metadata']['uid']}"
        assert groups.pids(directory, recursive=True)
        await one.client.delete(PODS, "stubborn", "default", grace_period_seconds=0)
        deadline = time.monotonic() + patience.seconds(5)
        while one.kubelet.workers and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not one.kubelet.workers
        assert not groups.pids(directory, recursive=True)

    run(groups, tmp_path, body)


def test_ends_are_told_with_exit_code_and_output(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        await one.create("done", "echo fine", restartPolicy="Never")
        await one.create("broken", "echo it broke; exit 3", restartPolicy="Never")
        assert (await one.until("done", phase("Succeeded")))["status"]["containerStatuses"][0]["state"]["terminated"][
            "reason"
        ] == "Completed"
        ended = (await one.until("broken", phase("Failed")))["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 3
        assert "it broke" in ended["message"]

    run(groups, tmp_path, body)


def test_a_failing_container_is_restarted_with_back_off(groups: RunGroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "BACKOFF_FIRST", 0.1)

    async def body(one: Node) -> None:
        marker = tmp_path / "tries"
        await one.create("flaky", f"echo x >> {marker}; test $(wc -l < {marker}) -ge 3", restartPolicy="OnFailure")
        pod = await one.until("flaky", phase("Succeeded"))
        entry = pod["status"]["containerStatuses"][0]
        assert entry["restartCount"] == 2
        assert entry["lastState"]["terminated"]["exitCode"] == 1
        assert len(marker.read_text().splitlines()) == 3

    run(groups, tmp_path, body)


def test_init_containers_run_first_and_one_after_another(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        order = tmp_path / "order"
        inits = [{"name": f"i{i}", "image": "none", "command": ["/bin/sh", "-c", f"sleep 0.1; echo i{i} >> {order}"]} for i in (1, 2)]
        await one.create("staged", f"echo main >> {order}", restartPolicy="Never", initContainers=inits)
        await one.until("staged", phase("Succeeded"))
        assert order.read_text().split() == ["i1", "i2", "main"]

    run(groups, tmp_path, body)


def test_readiness_follows_the_probe(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        flag = tmp_path / "ready"
        probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1}
        await one.create("probed", "sleep 60", readinessProbe=probe, terminationGracePeriodSeconds=0)

        def ready(wanted: str) -> Callable[[dict[str, Any]], bool]:
            return lambda p: {c["type"]: c["status"] for c in p["status"].get("conditions", [])}.get("Ready") == wanted

        await one.until("probed", lambda p: phase("Running")(p) and ready("False")(p))
        flag.touch()
        pod = await one.until("probed", ready("True"))
        assert all("reason" not in c for c in pod["status"]["conditions"]), "what it waited for is over"
        gate = [{"type": "example.com/gate", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        await one.client.patch(PODS, "probed", {"status": {"conditions": gate}}, "default", type="strategic", subresource="status")
        flag.unlink()
        pod = await one.until("probed", ready("False"))
        assert "example.com/gate" in {c["type"] for c in pod["status"]["conditions"]}, "conditions of others stay"
        await asyncio.sleep(1.2)
        assert (await one.client.get(PODS, "probed", "default"))["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]

    run(groups, tmp_path, body)


def test_a_pod_that_did_not_agree_is_refused_and_nothing_runs(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        await one.create("stranger", f"touch {tmp_path}/ran", annotations={})
        pod = await one.until("stranger", phase("Failed"))
        assert status.PROCESS_ANNOTATION in pod["status"]["message"]
        assert not (tmp_path / "ran").exists()

    run(groups, tmp_path, body)


def test_pods_of_other_nodes_are_left_alone(groups: RunGroups, tmp_path: Path) -> None:
    async def body(one: Node) -> None:
        await one.create("elsewhere", "sleep 60", nodeName="other")
        await asyncio.sleep(0.5)
        assert not one.kubelet.workers
        assert (await one.client.get(PODS, "elsewhere", "default"))["status"].get("phase", "Pending") == "Pending"

    run(groups, tmp_path, body)


def test_stopping_the_kubelet_leaves_the_machine_as_it_was(
    groups: RunGroups, tmp_path: Path, cgroup_settings: Callable[[], dict[str, str]], running: Callable[[int], bool]
) -> None:
    before = cgroup_settings()
    pids: set[int] = set()

    async def body(one: Node) -> None:
        for i in range(3):
            await one.create(f"p{i}", "trap '' TERM; sleep 60 & while :; do sleep 1; done")
        for i in range(3):
            await one.until(f"p{i}", phase("Running"))
        pids.update(groups.pids(recursive=True))

    run(groups, tmp_path, body)
    assert len(pids) >= 6
    assert not any(top.exists() for top in groups.roots.values())
    assert not any(map(running, pids))
    assert cgroup_settings() == before
