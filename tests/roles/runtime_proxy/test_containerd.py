"""The proxy between a CRI client and a real containerd with runc: whole pod lives, real cgroup files, and parts that die in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.protocols import runtimehook_pb2 as hook
from tests.roles.runtime_proxy.support import Handlers, HookServer, until
from tests.roles.runtime_proxy.support_containerd import Client, Containerd, cgroup_file, running_containerd
from tests.support import patience
from tests.support.processes import KOORD

pytestmark = [pytest.mark.cri, pytest.mark.root]

MEBIBYTE = 1 << 20
ALL_CPUS = Path("/sys/devices/system/cpu/online").read_text().strip()


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    with running_containerd() as daemon:
        yield daemon


class Proxy:
    """`koord runtime-proxy` as a process of its own."""

    def __init__(self, containerd: Containerd, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "p.sock"
        self.hooks = directory / "hooks.d"
        self.hooks.mkdir()
        self._engine = containerd.socket
        self._log = (directory / "proxy.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                KOORD,
                "runtime-proxy",
                f"--koord-runtimeproxy-endpoint={self.socket}",
                f"--remote-runtime-service-endpoint=unix://{self._engine}",
                f"--runtime-hooks-config-path={self.hooks}",
            ],
            stderr=self._log,
        )
        self.wait()

    def wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + patience.seconds(20)
        while True:
            with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(f"unix:{self.socket}") as channel:
                channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=2)
                return
            assert self._process.poll() is None, (self.directory / "proxy.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        self._log.close()
        return self._process.wait(10)


@pytest.fixture
def proxy(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    running = Proxy(containerd, tmp_path_factory.mktemp("p"))
    running.start()
    yield running
    assert running.stop() == 0


@contextlib.asynccontextmanager
async def hook_server(proxy: Proxy, server: HookServer, hooks: list[str], policy: str = "Ignore") -> AsyncIterator[grpc.aio.Server]:
    """A hook server of the test's, registered by its file; the proxy looks twice a second."""
    path = proxy.directory / "h.sock"
    listener = grpc.aio.server()
    listener.add_generic_rpc_handlers((Handlers(server.handler),))
    listener.add_insecure_port(f"unix:{path}")
    await listener.start()
    (proxy.hooks / "h.json").write_text(json.dumps({"remote-endpoint": str(path), "failure-policy": policy, "runtime-hooks": hooks}))
    await asyncio.sleep(0.8)
    try:
        yield listener
    finally:
        await listener.stop(0)


@contextlib.asynccontextmanager
async def clients(proxy: Proxy, containerd: Containerd) -> AsyncIterator[tuple[Client, Client]]:
    """A client through the proxy and one that goes the direct way."""
    through, direct = Client(proxy.socket, containerd.m), Client(containerd.socket, containerd.m)
    try:
        yield through, direct
    finally:
        await through.close()
        await direct.close()


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.feature("RP-CRI-04")
def test_answers_through_the_proxy_are_those_of_the_direct_way(containerd: Containerd, proxy: Proxy) -> None:
    async def scenario() -> None:
        m = containerd.m
        async with clients(proxy, containerd) as (through, direct):
            sandbox, pod = await through.run_pod("same", parent := containerd.parent("same"), app="web")
            container = await through.create(sandbox, pod, "main", cpu_shares=300, memory_limit_in_bytes=32 * MEBIBYTE)
            await through.start(container)
            for method, request in (
                ("Version", m.VersionRequest()),
                ("ListPodSandbox", m.Empty()),
                ("ListContainers", m.Empty()),
                ("PodSandboxStatus", m.PodSandboxRequest(pod_sandbox_id=sandbox)),
                ("ContainerStatus", m.ContainerStatusRequest(container_id=container)),
            ):
                answer = await through.raw(method, request)
                # containerd writes the entries of a map in any order: one of its own answers must be this one, byte for byte.
                own = [await direct.raw(method, request) for _ in range(60)]
                assert answer in own, method
            images = [await c.raw("ListImages", m.Empty(), service="ImageService") for c in (through, direct)]
            assert images[0] == images[1] != b""
            status = [await c.call("Status", m.StatusRequest(), "StatusResponse") for c in (through, direct)]
            assert status[0].status.conditions == status[1].status.conditions
            for client in (through, direct):
                done = await client.exec(container, "/bin/sh", "-c", "echo $A-$B; echo oops >&2; exit 7")
                assert (done.stdout, done.stderr, done.exit_code) == (b"1-two words\n", b"oops\n", 7)
                url = (await client.call("Exec", m.ExecRequest(container_id=container, cmd=["/bin/env"], stdout=True), "ExecResponse")).url
                assert url.startswith("http://127.0.0.1:")
            missing = m.ContainerRequest(container_id="absent")
            errors = []
            for client in (through, direct):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.raw("StartContainer", missing)
                errors.append((caught.value.code(), caught.value.details()))
            assert errors[0] == errors[1]
            assert cgroup_file("cpu", parent, container, "cpu.shares") == "300"
            await through.stop(container)
            await through.raw("RemoveContainer", m.ContainerRequest(container_id=container))
            await through.raw("StopPodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
            await through.raw("RemovePodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
            assert await direct.raw("ListPodSandbox", m.Empty()) == b""

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-02")
@pytest.mark.feature("RP-CRI-03")
@pytest.mark.feature("RP-MRG-01")
@pytest.mark.feature("RP-MRG-02")
@pytest.mark.feature("RP-MRG-03")
@pytest.mark.feature("RP-HOOK-01")
def test_what_hooks_say_stands_in_the_kernels_files(containerd: Containerd, proxy: Proxy) -> None:
    async def scenario() -> None:
        parent = containerd.parent("hooked")
        created = hook.ContainerResourceHookResponse(container_envs={"A": "1", "B": "two words", "C": "new"})
        created.container_resources.cpu_shares = 512
        created.container_resources.cpu_quota = 40000
        created.container_resources.memory_limit_in_bytes = 48 * MEBIBYTE
        created.container_resources.cpuset_cpus = "0"
        updated = hook.ContainerResourceHookResponse()
        updated.container_resources.memory_limit_in_bytes = 96 * MEBIBYTE
        updated.container_resources.cpuset_cpus = ALL_CPUS
        ok = hook.ContainerResourceHookResponse()
        answers = {
            "PreRunPodSandboxHook": hook.PodSandboxHookResponse(cgroup_parent=parent, annotations={"hooked": "yes"}, labels={"l": "2"}),
            "PreCreateContainerHook": created,
            "PreStartContainerHook": ok,
            "PostStartContainerHook": ok,
            "PreUpdateContainerResourcesHook": updated,
            "PostStopContainerHook": ok,
            "PostStopPodSandboxHook": hook.PodSandboxHookResponse(),
        }
        server = HookServer(answers=answers)
        m = containerd.m
        async with (
            clients(proxy, containerd) as (through, direct),
            hook_server(proxy, server, [name.removesuffix("Hook") for name in answers], "Fail"),
        ):
            sandbox, pod = await through.run_pod("hooked", containerd.parent("elsewhere"))
            pod.linux.cgroup_parent = parent  # kubelet computes it; the hook moved the sandbox
            status = await direct.call("PodSandboxStatus", m.PodSandboxRequest(pod_sandbox_id=sandbox), "PodSandboxStatusResponse")
            assert status.status.annotations["hooked"] == "yes"
            assert status.status.labels["l"] == "2"
            assert cgroup_file("cpu", parent, sandbox, "cpu.shares") == "2"  # the sandbox itself is in the hook's parent
            container = await through.create(sandbox, pod, "main", cpu_period=100000, cpu_quota=80000, memory_limit_in_bytes=32 * MEBIBYTE)
            await through.start(container)
            await until(lambda: len(server.asked) == 4)  # post hooks run after the answer

            def kernel() -> tuple[str, ...]:
                return tuple(
                    cgroup_file(controller, parent, container, name)
                    for controller, name in (
                        ("cpu", "cpu.shares"),
                        ("cpu", "cpu.cfs_quota_us"),
                        ("memory", "memory.limit_in_bytes"),
                        ("cpuset", "cpuset.cpus"),
                    )
                )

            assert kernel() == ("512", "40000", str(48 * MEBIBYTE), "0")
            assert (await through.exec(container, "/bin/sh", "-c", "echo $A$B$C")).stdout == b"1two wordsnew\n"
            await through.update(container, cpu_quota=60000)
            assert kernel() == ("512", "60000", str(96 * MEBIBYTE), ALL_CPUS)
            await through.stop(container)
            await through.raw("StopPodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
            await through.raw("RemovePodSandbox", m.PodSandboxRequest(pod_sandbox_id=sandbox))
            await until(lambda: len(server.asked) == 7)
            assert [name for name, _ in server.asked] == [
                "PreRunPodSandboxHook",
                "PreCreateContainerHook",
                "PreStartContainerHook",
                "PostStartContainerHook",
                "PreUpdateContainerResourcesHook",
                "PostStopContainerHook",
                "PostStopPodSandboxHook",
            ]
            assert server.asked[4][1].container_resources.cpu_quota == 60000
            assert server.asked[4][1].container_resources.cpu_shares == 512

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
def test_a_proxy_that_was_killed_knows_its_containers_again(containerd: Containerd, proxy: Proxy) -> None:
    async def scenario() -> None:
        parent = containerd.parent("again")
        answer = hook.ContainerResourceHookResponse()
        answer.container_resources.cpu_shares = 700
        server = HookServer(answers={"PreUpdateContainerResourcesHook": answer})
        async with (
            clients(proxy, containerd) as (through, direct),
            hook_server(proxy, server, ["PreUpdateContainerResources"]),
        ):
            sandbox, pod = await through.run_pod("again", parent, app="web")
            container = await through.create(
                sandbox, pod, "main", cpu_period=100000, cpu_quota=50000, cpu_shares=300, memory_limit_in_bytes=64 * MEBIBYTE
            )
            await through.start(container)
            await direct.update(container, cpu_quota=70000)  # behind the proxy's back
            await asyncio.to_thread(proxy.kill)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await through.update(container, cpu_shares=5)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert (await direct.exec(container, "/bin/echo", "alive")).stdout == b"alive\n"
            await asyncio.to_thread(proxy.start)
            await asyncio.sleep(0.3)
            await through.update(container, memory_limit_in_bytes=80 * MEBIBYTE)
            asked = server.asked[-1][1]
            found = asked.container_resources
            assert (found.cpu_period, found.cpu_quota, found.cpu_shares, found.memory_limit_in_bytes) == (
                100000,
                70000,
                300,
                80 * MEBIBYTE,
            )
            assert (asked.pod_cgroup_parent, dict(asked.container_envs)) == (parent, {"A": "1", "B": "two words"})
            assert (dict(asked.container_annotations), asked.pod_labels["app"]) == ({"c": "1"}, "web")
            assert cgroup_file("cpu", parent, container, "cpu.shares") == "700"
            assert cgroup_file("cpu", parent, container, "cpu.cfs_quota_us") == "70000"
            assert cgroup_file("memory", parent, container, "memory.limit_in_bytes") == str(80 * MEBIBYTE)

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
def test_a_hook_server_that_dies_stops_pods_or_not_as_its_policy_says(containerd: Containerd, proxy: Proxy) -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse(labels={"l": "2"})})
        async with clients(proxy, containerd) as (through, direct):
            async with hook_server(proxy, server, ["PreRunPodSandbox"], "Fail"):
                await through.run_pod("before", containerd.parent("policy"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await through.run_pod("refused", containerd.parent("policy"))
            assert caught.value.code() == grpc.StatusCode.UNKNOWN
            assert caught.value.details().startswith("hook server err: ")
            skipped, _ = await through.run_pod("s", containerd.parent("policy"), **{"runtimeproxy.koordinator.sh/skip-hookserver": "true"})
            assert skipped
            async with hook_server(proxy, server, ["PreRunPodSandbox"], "Ignore"):
                pass  # registered anew with policy Ignore, and gone
            sandbox, _ = await through.run_pod("ignored", containerd.parent("policy"))
            names = await direct.raw("ListPodSandbox", containerd.m.Empty())
            assert sandbox
            assert b"refused" not in names

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_a_runtime_that_was_killed_is_found_again(containerd: Containerd, proxy: Proxy) -> None:
    async def scenario() -> None:
        parent = containerd.parent("killed")
        async with clients(proxy, containerd) as (through, _):
            sandbox, pod = await through.run_pod("killed", parent)
            container = await through.create(sandbox, pod, "main", cpu_shares=300)
            await through.start(container)
            await asyncio.to_thread(containerd.kill)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await through.exec(container, "/bin/echo")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            await asyncio.to_thread(containerd.start)
            done: Any = None
            async with asyncio.timeout(patience.seconds(10)):
                while done is None:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        done = await through.exec(container, "/bin/echo", "same container")
                    await asyncio.sleep(0.05)
            assert done.stdout == b"same container\n"
            await through.update(container, cpu_shares=400)
            assert cgroup_file("cpu", parent, container, "cpu.shares") == "400"

    asyncio.run(scenario())
