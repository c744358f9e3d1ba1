"""The hook server: requests of a runtime proxy in, responses and the pod's files out (KA-RH-01)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import orjson
import pytest

from koord.apiserver.testing import running_server
from koord.process.unixsocket import target
from koord.protocols import runtimehook_pb2 as pb
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.hooks.manager import HooksManager
from roles.koordlet.options import Options
from tests.support import patience
from tests.support.koordlet import exposed

UID = "11111111-2222-3333-4444-555555555555"
STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "node.koordinator.sh/extended-resource-spec"
DEVICES = "scheduling.koordinator.sh/device-allocated"


def batch(cpu: str) -> dict[str, str]:
    part = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": "1Gi"}
    return {SPEC: json.dumps({"containers": {"main": {"requests": part, "limits": part}}})}


class Server:
    """The hooks of an agent whose states are synced, and a client of its socket."""

    def __init__(self, node: Any, manager: HooksManager, channel: Any) -> None:
        self.node, self.manager, self.channel = node, manager, channel

    async def ask(self, method: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(
            f"/runtime.v1alpha1.RuntimeHookService/{method}",
            request_serializer=lambda r: r.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=5)

    async def container(self, method: str = "PreCreateContainerHook", *, qos: str = "", annotations: Any = None, **fields: Any) -> Any:
        request = pb.ContainerResourceHookRequest(
            pod_meta=pb.PodSandboxMetadata(name="hk", namespace="default", uid=UID),
            container_meta=pb.ContainerMetadata(name="main", id="abc"),
            pod_labels={"koordinator.sh/qosClass": qos, **fields.pop("labels", {})},
            pod_annotations=annotations or {},
            pod_cgroup_parent=fields.pop("parent", f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"),
            **fields,
        )
        return await self.ask(method, request, pb.ContainerResourceHookResponse)


async def _answered() -> bool:
    """A kubelet that lists what the world has."""
    return True


@contextlib.asynccontextmanager
async def serving(node: Any, *gates: str, mode: Mode = Mode.ENFORCE, directory: str = "koordlet", **options: Any) -> AsyncIterator[Server]:
    root = node.machine.root
    sock = Path(root.var_run, directory, "koordlet.sock")
    sock.parent.mkdir(parents=True, exist_ok=True)
    sock.write_text("stale")
    registration = Path(root.hooks_config, "koordlet.json")
    if registration.parent.is_dir():
        registration.unlink(missing_ok=True)
    settings = Options(node_name="node-a", runtime_hooks_addr=str(sock), **options)
    manager = HooksManager(
        settings, node.machine.executor, node.machine.metrics, lambda g: g in gates, lambda _: mode, node.world.snapshot, fetch=_answered
    )
    stopping, synced = asyncio.Event(), asyncio.Event()
    synced.set()
    running = asyncio.create_task(manager.run(stopping, synced))
    try:
        for _ in patience.tries(200):
            if registration.exists():
                break
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(target(str(sock))) as channel:
            yield Server(node, manager, channel)
    finally:
        stopping.set()
        await running
    assert not sock.exists()
    assert list(sock.parent.glob(".koordlet.*")) == []


@pytest.fixture
def node(hooked) -> Any:
    return hooked()


def run(main: Any) -> None:
    asyncio.run(main)


@pytest.mark.feature("KA-RH-01")
class TestContainers:
    def test_allocated_cpus_and_the_echo(self, node) -> None:
        async def main() -> None:
            async with serving(node, "CPUSetAllocator") as server:
                assert server.manager._server._grpc is None, "gRPC is loaded by the first connection"
                resources = pb.LinuxContainerResources(cpu_shares=2048, cpu_quota=200000, cpu_period=100000, memory_limit_in_bytes=1 << 30)
                answer = await server.container(
                    qos="LSR",
                    annotations={STATUS: '{"cpuset":"2,10"}'},
                    container_resources=resources,
                    container_envs={"A": "1"},
                    container_annotations={"x": "y"},
                )
            wanted = pb.LinuxContainerResources()
            wanted.CopyFrom(resources)
            wanted.cpuset_cpus, wanted.cpu_quota = "2,10", -1
            assert answer.container_resources == wanted
            assert (dict(answer.container_envs), dict(answer.container_annotations)) == ({"A": "1"}, {"x": "y"})
            assert answer.pod_cgroup_parent.startswith("/kubepods.slice/")

        run(main())

    @pytest.mark.feature("KA-HK-03")
    def test_quotas_are_of_the_period_that_the_kubelet_set(self, node) -> None:
        async def main() -> None:
            async with serving(node, "BatchResource") as server:
                resources = pb.LinuxContainerResources(cpu_period=10_000)
                answer = await server.container(qos="BE", annotations=batch("500"), container_resources=resources)
            assert answer.container_resources.cpu_quota == 5_000

        run(main())

    def test_batch_resources_without_resources_in_the_request(self, node) -> None:
        async def main() -> None:
            async with serving(node, "BatchResource") as server:
                answer = await server.container(qos="BE", annotations=batch("500"))
                untouched = await server.container(qos="LS", annotations=batch("500"))
                broken = await server.container(qos="BE", annotations={SPEC: "{"})
            got = answer.container_resources
            assert (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes) == (512, 50000, 1 << 30)
            assert not untouched.HasField("container_resources"), "nothing is made up"
            assert not broken.HasField("container_resources")

        run(main())

    def test_shared_gpu(self, node) -> None:
        resources = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi", "koordinator.sh/gpu-memory-ratio": "50"}
        gpus = [{"minor": 3, "resources": resources}, {"minor": 1, "resources": resources}]
        hami = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}

        async def main() -> None:
            async with serving(node, "GPUEnvInject", "HamiCoreVGPUMonitor") as server:
                plain = await server.container(annotations={DEVICES: json.dumps({"gpu": gpus})}, container_envs={"A": "1"})
                shared = await server.container(annotations={DEVICES: json.dumps({"gpu": gpus[:1]})}, labels=hami)
                del resources["koordinator.sh/gpu-memory-ratio"]
                wrong = await server.container(annotations={DEVICES: json.dumps({"gpu": gpus})}, labels=hami)
                later = await server.container("PreStartContainerHook", annotations={DEVICES: json.dumps({"gpu": gpus})})
            assert dict(plain.container_envs) == {"A": "1", "NVIDIA_VISIBLE_DEVICES": "3,1"}
            assert dict(shared.container_envs) == {
                "NVIDIA_VISIBLE_DEVICES": "3",
                "CUDA_DEVICE_MEMORY_LIMIT": str(4 << 30),
                "CUDA_DEVICE_SM_LIMIT": "50",
                "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"/usr/local/vgpu/{UID}_main.cache",
            }
            # what is known counts: without it the image's own setting, often all GPUs of the node, would
            assert (dict(wrong.container_envs), dict(later.container_envs)) == ({"NVIDIA_VISIBLE_DEVICES": "3,1"}, {})

        run(main())

    @pytest.mark.parametrize("directory", ["koord%20let", "what?", "n#1"])
    def test_the_socket_answers_whatever_its_name(self, node, directory) -> None:
        async def main() -> None:
            async with serving(node, "CPUSetAllocator", directory=directory) as asked:
                two = pb.LinuxContainerResources(cpu_shares=2048)
                answer = await asked.container(qos="LSR", annotations={STATUS: '{"cpuset":"0,2"}'}, container_resources=two)
            assert answer.container_resources.cpuset_cpus == "0,2"

        run(main())

    def test_own_quota_by_the_ratio(self, node) -> None:
        async def main() -> None:
            make_node = sys.modules["koord_test_koordlet_act"].make_node
            node.world.node = make_node(annotations={"node.koordinator.sh/cpu-normalization-ratio": "2"})
            async with serving(node, "CPUNormalization") as server:
                method = "PreUpdateContainerResourcesHook"
                known = await server.container(method, qos="LS", container_resources=pb.LinuxContainerResources(cpu_quota=50000))
                unknown = await server.container(method, qos="LS", container_resources=pb.LinuxContainerResources(cpu_shares=7))
                small = await server.container(method, qos="LS", container_resources=pb.LinuxContainerResources(cpu_quota=1500))
            assert known.container_resources.cpu_quota == 25000
            assert small.container_resources.cpu_quota == 1000, "the least that the kernel takes"
            assert unknown.container_resources == pb.LinuxContainerResources(cpu_shares=7)

        run(main())


@pytest.mark.feature("KA-RH-01")
class TestPods:
    @pytest.mark.parametrize("parent", ["/kubepods.slice/kubepods-besteffort.slice/{}", "{}"])
    def test_answer_and_files(self, node, parent) -> None:
        name = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
        directory = f"kubepods.slice/kubepods-besteffort.slice/{name}"
        node.files("cpu.cfs_quota_us", "-1", directory)
        node.files("cpu.shares", "2", directory)

        async def main() -> None:
            async with serving(node, "BatchResource") as server:
                request = pb.PodSandboxHookRequest(
                    pod_meta=pb.PodSandboxMetadata(name="hk", namespace="default", uid=UID),
                    labels={"koordinator.sh/qosClass": "BE"},
                    annotations=batch("1500"),
                    cgroup_parent=parent.format(name),
                )
                answer = await server.ask("PreRunPodSandboxHook", request, pb.PodSandboxHookResponse)
                stopped = await server.ask("PostStopPodSandboxHook", request, pb.PodSandboxHookResponse)
            assert (answer.resources.cpu_shares, answer.resources.cpu_quota) == (1536, 150000)
            assert (answer.labels, answer.cgroup_parent) == (request.labels, request.cgroup_parent)
            assert not stopped.HasField("resources")

        run(main())
        assert node.machine.get("cpu.cfs_quota_us", directory) == "150000"
        assert node.machine.get("cpu.shares", directory) == "1536"
        assert [r.message for r in node.records if r.verdict == "Answered"] == [
            f"PreRunPodSandbox: cpu_shares 1536, cpu_quota 150000, memory_limit {1 << 30}"
        ]

    @pytest.mark.parametrize("parent", ["/../../../etc", "", "kubepods-pod...slice", "\N{BLACK STAR}"])
    def test_strange_parents(self, node, parent) -> None:
        async def main() -> None:
            async with serving(node, "BatchResource") as server:
                request = pb.PodSandboxHookRequest(
                    labels={"koordinator.sh/qosClass": "BE"}, annotations=batch("1500"), cgroup_parent=parent
                )
                codes = []
                try:
                    answer = await server.ask("PreRunPodSandboxHook", request, pb.PodSandboxHookResponse)
                    codes.append((grpc.StatusCode.OK, answer.cgroup_parent))
                except grpc.aio.AioRpcError as error:
                    codes.append((error.code(), parent))
            assert codes in ([(grpc.StatusCode.OK, parent)], [(grpc.StatusCode.INVALID_ARGUMENT, parent)])

        run(main())
        assert [r for r in node.records if r.verdict == "Written"] == []


@pytest.mark.feature("KA-RH-01")
class TestPolicies:
    def test_failure_policy(self, node) -> None:
        async def main() -> None:
            bad = {STATUS: "["}
            async with serving(node, "CPUSetAllocator", "BatchResource") as server:
                answer = await server.container(qos="BE", annotations={**bad, **batch("500")})
                assert answer.container_resources.cpu_quota == 50000, "other hooks answer"
            async with serving(node, "CPUSetAllocator", runtime_hooks_plugin_failure_policy="Fail") as server:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await server.container(qos="LSR", annotations=bad)
                assert "resource-status" in (caught.value.details() or "")
                one = pb.LinuxContainerResources(cpu_shares=1024)
                answer = await server.container(qos="LSR", annotations={STATUS: '{"cpuset":"1"}'}, container_resources=one)
                assert answer.container_resources.cpuset_cpus == "1"
            text = exposed(node.machine.metrics.internal).splitlines()
            counts = [line for line in text if line.startswith("koordlet_runtime_hook_invoked_duration_milliseconds_count{")]
            lines = [line for line in counts if 'hook="CPUSetAllocator"' in line and 'stage="PreCreateContainer"' in line]
            assert sorted(line.split('status="')[1].split('"')[0] for line in lines) == ["failed", "succeeded"]

        run(main())

    def test_registration_and_disabled_stages(self, node) -> None:
        async def main() -> None:
            options = {"runtime_hooks_disable_stages": "PreCreateContainer, Nonsense", "runtime_hooks_failure_policy": "Fail"}
            async with serving(node, "BatchResource", **options) as server:
                written = orjson.loads(Path(node.machine.root.hooks_config, "koordlet.json").read_bytes())
                assert written == {
                    "remote-endpoint": "/var/run/koordlet/koordlet.sock",
                    "failure-policy": "Fail",
                    "runtime-hooks": ["PreRunPodSandbox", "PreUpdateContainerResources"],
                }
                sock = Path(node.machine.root.var_run, "koordlet/koordlet.sock")
                assert stat.S_IMODE(sock.stat().st_mode) == 0o600
                answer = await server.container(qos="BE", annotations=batch("500"))
                assert not answer.HasField("container_resources")
                answer = await server.container("PreUpdateContainerResourcesHook", qos="BE", annotations=batch("500"))
                assert answer.container_resources.cpu_quota == 50000

        run(main())

    def test_observing_changes_no_request(self, node) -> None:
        async def main() -> None:
            async with serving(node, "BatchResource", mode=Mode.OBSERVE) as server:
                answer = await server.container(qos="BE", annotations=batch("500"))
            assert not answer.HasField("container_resources")
            assert [r.verdict for r in node.records] == ["WouldAnswer"]

        run(main())

    def test_a_directory_that_cannot_be_written_is_tried_again(self, node, caplog) -> None:
        blocked = Path(node.machine.root.hooks_config)
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.write_text("")

        async def main() -> None:
            manager = asyncio.create_task(free())
            async with serving(node, "BatchResource", runtime_hooks_reconcile_interval=0.1) as server:
                answer = await server.container(qos="BE", annotations=batch("500"))
                assert answer.container_resources.cpu_quota == 50000
            await manager

        async def free() -> None:
            await asyncio.sleep(0.3)
            blocked.unlink()

        run(main())
        assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1


@pytest.mark.feature("KA-RH-01")
@pytest.mark.feature("KA-HK-02")
def test_through_the_agent(host, kubelet, make_node, make_pod, start, cluster, listed, eventually) -> None:
    async def main() -> None:
        tree = host()
        sock = tree.root / "var/run/koordlet/koordlet.sock"
        async with running_server(crds=True) as server, server.client() as client, kubelet() as served:
            await cluster(client, make_node())
            served.pods = listed(make_pod("b", "u-1"))
            koordlet = await start(tree, server, served.port)
            try:
                await eventually((tree.root / "etc/runtime/hookserver.d/koordlet.json").exists)
                before = resident(koordlet.process.pid)
                async with grpc.aio.insecure_channel(f"unix:{sock}") as channel:
                    asked = Server(None, None, channel)  # type: ignore[arg-type]
                    two = pb.LinuxContainerResources(cpu_shares=2048)
                    answer = await asked.container(qos="LSR", annotations={STATUS: '{"cpuset":"0,2"}'}, container_resources=two)
                print(f"resident: {before} kB before, {resident(koordlet.process.pid)} kB after the first request")
                assert answer.container_resources.cpuset_cpus == "0,2"
            finally:
                code, said = await koordlet.stop()
            assert code == 0, said
            assert "Traceback" not in said
            assert not sock.exists()

    asyncio.run(main())


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
