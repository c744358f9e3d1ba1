"""The kubelet's PodResources API with allocated devices (KLO-SI-07), through the whole agent."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.process.unixsocket import target
from koord.protocols import podresources_pb2 as pb
from roles.koordlet.report.podresources import PodResourcesProxy
from tests.support.koordlet import Cluster, agent, run, until

SERVICE = "/v1.PodResourcesLister/"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
#: An unknown field of a container (cpu_ids = 3): must survive.
CPU_IDS = bytes([0x1A, 0x02, 0x04, 0x05])


def listing(*names: str) -> bytes:
    answer = pb.ListPodResourcesResponse()
    for name in names:
        pod = answer.pod_resources.add(name=name, namespace="default")
        first = pod.containers.add(name="main")
        first.MergeFromString(CPU_IDS)
        first.devices.add(resource_name="example.com/fpga", device_ids=["f0"])
        pod.containers.add(name="side")
    return answer.SerializeToString()


class Kubelet(grpc.GenericRpcHandler):
    """A kubelet that knows two pods."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    def service(self, details: Any) -> Any:
        method = details.method.removeprefix(SERVICE)

        async def answer(request: bytes, context: Any) -> bytes:
            self.asked.append((method, request))
            if method == "Get":
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such pod")
            return listing("gpus", "plain") if method == "List" else b"\x0a\x00"

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.mark.feature("KLO-SI-07")
@pytest.mark.parametrize("prefix", ["kl-", "kl%20"])
def test_allocated_devices_are_listed(prefix: str) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        allocation = {
            "rdma": [{"minor": 1, "id": "0000:18:00.1", "extension": {"vfs": [{"minor": -1, "busID": "0000:18:03.0"}]}}],
            "gpu": [{"minor": 0, "id": "GPU-a", "resources": {}}, {"minor": 1, "id": "GPU-b", "resources": {}}],
            "fpga": [{"minor": 0, "id": "x"}],
        }
        amounts = {"nvidia.com/gpu": "2", "koordinator.sh/rdma": "100"}
        wanted = {"requests": amounts, "limits": amounts}
        await c.pod("gpus", qos="LS", kube_qos="Burstable", resources=wanted, annotations={ALLOCATED: json.dumps(allocation)})
        kubelet = Kubelet()
        real = c.base / "var/lib/kubelet/pod-resources/kubelet.sock"
        real.parent.mkdir(parents=True)
        directory = c.base / "own"
        directory.mkdir()
        (directory / "kubelet.sock").write_text("left by a former life")
        async with agent(c, "PodResourcesProxy", pod_resources_proxy_path=str(directory)) as app:
            await until((directory / "kubelet.sock").is_socket, "the socket")
            await until(lambda: app.pod_cache.pods, "the pods")
            async with grpc.aio.insecure_channel(target(f"{directory}/kubelet.sock")) as channel:

                async def ask(method: str, request: bytes = b"") -> bytes:
                    return await channel.unary_unary(f"{SERVICE}{method}")(request, timeout=10, wait_for_ready=True)

                with pytest.raises(grpc.aio.AioRpcError) as away:
                    await ask("List")
                assert away.value.code() is grpc.StatusCode.UNAVAILABLE

                server = grpc.aio.server()
                server.add_generic_rpc_handlers((kubelet,))
                server.add_insecure_port(target(str(real)))
                await server.start()
                try:
                    await check(ask, kubelet)
                    shutil.rmtree(directory)  # who cleans up there knows nothing of the socket
                    await until((directory / "kubelet.sock").is_socket, "the socket, again")
                    await check(ask, kubelet)
                finally:
                    await server.stop(None)
        assert not Path(directory / "kubelet.sock").exists()

    async def check(ask: Any, kubelet: Kubelet) -> None:
        found = pb.ListPodResourcesResponse.FromString(await ask("List"))  # at once, though it was away a moment ago
        pods = {p.name: p for p in found.pod_resources}
        first, second = pods["gpus"].containers
        assert [(d.resource_name, list(d.device_ids)) for d in first.devices] == [
            ("example.com/fpga", ["f0"]),
            ("koordinator.sh/rdma", ["0000:18:03.0"]),
            ("nvidia.com/gpu", ["GPU-a", "GPU-b"]),
        ]
        assert not second.devices
        assert CPU_IDS in first.SerializeToString(), "what the proxy does not know is kept"
        assert [d.resource_name for d in pods["plain"].containers[0].devices] == ["example.com/fpga"]
        assert await ask("GetAllocatableResources") == b"\x0a\x00"
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await ask("Get", b"\x0a\x01x")
        assert gone.value.code() is grpc.StatusCode.NOT_FOUND
        assert ("Get", b"\x0a\x01x") in kubelet.asked

    with tempfile.TemporaryDirectory(prefix=prefix) as short:  # a socket's path is limited to 107 bytes
        run(Path(short), story)


def test_an_answer_that_cannot_be_read_is_passed_on() -> None:
    proxy = PodResourcesProxy("/nowhere", "/nowhere/kubelet.sock", lambda: ())
    assert proxy.listed(b"\xff\xff") == b"\xff\xff"
    assert asyncio.iscoroutinefunction(proxy.run)
