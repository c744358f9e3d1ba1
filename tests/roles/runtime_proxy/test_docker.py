"""Docker mode through its socket: what passes, what hooks change, and what is known after a restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from koord.protocols import runtimehook_pb2 as hook
from tests.roles.runtime_proxy.support import HookServer, until
from tests.roles.runtime_proxy.support_docker import FakeDocker, container, docker_proxied, sandbox
from tests.support import patience

POD_PARENT = "kubepods-burstable-podu1.slice"
POD_PATH = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice"
RESOURCES = {
    "CpuPeriod": 100000,
    "CpuQuota": 50000,
    "CpuShares": 300,
    "Memory": 1 << 28,
    "MemorySwap": -1,
    "OomScoreAdj": 900,
    "CpusetCpus": "0-3",
    "CpusetMems": "0",
}


AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    print(s.recv(9))
"""


def answers(**given: object) -> HookServer:
    """Every hook type answers with nothing unless told otherwise."""
    nothing = hook.ContainerResourceHookResponse()
    found = {
        "PreRunPodSandboxHook": hook.PodSandboxHookResponse(),
        "PreCreateContainerHook": nothing,
        "PreStartContainerHook": nothing,
        "PostStartContainerHook": nothing,
        "PreUpdateContainerResourcesHook": nothing,
        "PostStopContainerHook": nothing,
        "PostStopPodSandboxHook": hook.PodSandboxHookResponse(),
    }
    return HookServer(answers={**found, **{f"{name}Hook": value for name, value in given.items()}})


@pytest.mark.feature("RP-DKR-01")
def test_answers_pass_as_the_engine_wrote_them() -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            assert await stack.call("GET", "/v1.40/images/json?all=1") == (200, {"path": "/images/json"})
            status, content = await stack.call("GET", "/v1.40/download")
            assert status == 200
            assert content.startswith(b"1000\r\n")
            assert content.endswith(b"0\r\nSum: 1\r\n\r\n")
            assert len(content) == 200 * (4096 + 8) + len(b"0\r\nSum: 1\r\n\r\n")
            assert (await stack.call("HEAD", "/_ping"))[0] == 200
            body = b"5\r\nhello\r\n0\r\n\r\n"
            await stack.call("POST", "/build", body, "Transfer-Encoding: chunked\r\n")
            assert stack.engine.of("/build")[0][3] == b"hello"
            stack.engine.errors["/images/x/json"] = (404, "no such image")
            assert await stack.call("GET", "/images/x/json") == (404, {"message": "no such image"})

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_a_connection_is_kept_for_many_calls_hooked_ones_too() -> None:
    async def scenario() -> None:
        async with docker_proxied(FakeDocker(ids=["sb1"])) as stack:
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            target, document = sandbox()
            raw = json.dumps(document).encode()
            for _ in range(3):
                writer.write(b"GET /version HTTP/1.1\r\nHost: d\r\n\r\n")
                assert (await reader.readuntil(b"}")).endswith(b'"/version"}')
                writer.write(f"POST {target} HTTP/1.1\r\nHost: d\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
                assert b"201" in await reader.readuntil(b"]}")
            assert [r[3] for r in stack.engine.of(".*/containers/create")] == [raw] * 3  # nobody changed it: byte for byte
            writer.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.parametrize("upgrade", ["Connection: Upgrade\r\nUpgrade: tcp\r\n", ""])
@pytest.mark.parametrize("target", ["/v1.40/exec/e1/start", "/v1.40/containers/c1/attach?stream=1&stdin=1"])
def test_exec_and_attach_are_hijacked_streams(upgrade: str, target: str) -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            body = b'{"Detach":false,"Tty":false}'
            writer.write(f"POST {target} HTTP/1.1\r\nHost: d\r\n{upgrade}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            head = await reader.readuntil(b"prompt>")  # the engine speaks first
            assert head.startswith(b"HTTP/1.1 101 UPGRADED\r\n" if upgrade else b"HTTP/1.1 200 OK\r\n")
            for text in (b"one", b"two" * 100_000):
                writer.write(text)
                assert await reader.readexactly(len(text)) == text.upper()
            writer.write_eof()  # end of standard input: the other direction stays open
            assert await reader.read() == b"bye"
            writer.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_a_caller_that_leaves_an_endless_answer_is_seen_by_the_engine() -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            writer.write(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")
            await reader.readuntil(b"one")
            writer.close()
            await asyncio.wait_for(stack.engine.gone.wait(), patience.seconds(5))

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.parametrize(
    "request_head",
    [
        b"nonsense\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"POST /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /x HTTP/1.1\r\nA: " + b"x" * (1 << 20) + b"y" * 70000,
    ],
)
def test_what_is_no_http_gets_one_clear_error(request_head: bytes) -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            reader, writer = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            writer.write(request_head)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), patience.seconds(10))
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b'{"message":"' in answer
            assert not stack.engine.of("/x")
            writer.close()
            assert (await stack.call("GET", "/version"))[0] == 200

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
@pytest.mark.feature("RP-DKR-03")
def test_a_sandbox_is_created_as_the_hook_says() -> None:
    async def scenario() -> None:
        answer = hook.PodSandboxHookResponse(cgroup_parent="/kubepods.slice/kubepods-besteffort.slice")
        answer.resources.cpu_shares = 2
        answer.resources.cpu_quota = -1
        async with docker_proxied(FakeDocker(ids=["sb1"])) as stack, stack.hooks(answers(PreRunPodSandbox=answer)) as server:
            target, document = sandbox(CgroupParent=POD_PARENT, **RESOURCES)
            assert await stack.call("POST", target, document) == (201, {"Id": "sb1", "Warnings": []})
            asked = server.asked[0][1]
            meta = asked.pod_meta
            assert (meta.name, meta.namespace, meta.uid, asked.runtime_handler) == ("web-0", "shop", "u1", "docker")
            assert (asked.labels["app"], dict(asked.annotations), asked.cgroup_parent) == ("web", {"a": "1"}, POD_PATH)
            assert (asked.resources.cpu_quota, asked.resources.memory_swap_limit_in_bytes) == (50000, -1)
            sent = stack.engine.bodies(".*/containers/create")[0]
            changed = dict.fromkeys(("CpuPeriod", "Memory", "MemorySwap", "OomScoreAdj"), 0) | {"CpusetCpus": "", "CpusetMems": ""}
            assert sent["HostConfig"] == {**changed, "CpuShares": 2, "CpuQuota": -1, "CgroupParent": "kubepods-besteffort.slice"}
            assert {k: v for k, v in sent.items() if k != "HostConfig"} == {k: v for k, v in document.items() if k != "HostConfig"}

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_an_answer_that_changes_nothing_keeps_every_byte() -> None:
    async def scenario() -> None:
        async with docker_proxied(FakeDocker(ids=["sb1", "ct1"])) as stack, stack.hooks(answers()) as server:
            for number, (target, document) in enumerate((sandbox(), container(), ("/containers/ct1/update", {"CpuShares": 3}))):
                document.pop("HostConfig", None)
                raw = json.dumps(document, indent=3).encode()
                assert (await stack.call("POST", target, raw))[0] < 300
                assert [r[3] for r in stack.engine.of(".*/(create|update)")][number] == raw
            assert len(server.asked) == 3

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_a_container_takes_its_pod_from_the_store_and_its_environment_from_the_hook() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(container_envs={"A": "1", "B": "changed", "N": "new=1"})
        async with docker_proxied(FakeDocker(ids=["sb1", "ct1"])) as stack, stack.hooks(answers(PreCreateContainer=answer)) as server:
            await stack.call("POST", *sandbox(CgroupParent=POD_PARENT, CpuShares=10))
            target, document = container(CgroupParent=POD_PARENT, **RESOURCES)
            assert (await stack.call("POST", target, document))[0] == 201
            asked = server.asked[1][1]
            assert (asked.container_meta.name, asked.container_meta.attempt, asked.pod_meta.uid) == ("main", 2, "u1")
            assert (asked.pod_cgroup_parent, asked.pod_labels["app"], asked.pod_resources.cpu_shares) == (POD_PATH, "web", 10)
            assert dict(asked.container_envs) == {"A": "1", "B": "2=3", "Z": "9"}
            assert (dict(asked.container_annotations), asked.container_resources.cpuset_cpus) == ({"c": "1"}, "0-3")
            sent = stack.engine.bodies("/containers/create")[0]
            assert sent["Env"] == ["A=1", "B=changed", "N=new=1"]
            assert sent["HostConfig"] == document["HostConfig"]  # no resources and no parent in the answer: nothing else changes

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_start_update_and_stop_reach_hooks_in_order() -> None:
    async def scenario() -> None:
        update = hook.ContainerResourceHookResponse()
        update.container_resources.cpu_shares = 77
        update.container_resources.memory_limit_in_bytes = 1 << 29
        async with docker_proxied(FakeDocker(ids=["sb1", "ct1"])) as stack:
            async with stack.hooks(answers(PreUpdateContainerResources=update)) as server:
                await stack.call("POST", *sandbox())
                await stack.call("POST", *container(**RESOURCES))
                assert (await stack.call("POST", "/v1.40/containers/sb1/start"))[0] == 204  # a sandbox: plain
                assert (await stack.call("POST", "/v1.40/containers/ct1/start"))[0] == 204
                await until(lambda: len(server.asked) == 4)  # post hooks run after the answer
                body = {"CpuQuota": -1, "Memory": 0, "CpusetCpus": "", "RestartPolicy": {"Name": "no"}}
                assert (await stack.call("POST", "/containers/ct1/update", body))[0] == 200
                seen = server.asked[4][1].container_resources
                assert (seen.cpu_quota, seen.memory_limit_in_bytes, seen.cpuset_cpus) == (-1, 1 << 28, "0-3")
                sent = stack.engine.bodies("/containers/ct1/update")[0]
                assert (sent["CpuShares"], sent["Memory"], sent["CpuQuota"], sent["RestartPolicy"]) == (77, 1 << 29, 0, {"Name": "no"})
                assert "OomScoreAdj" not in sent
                stack.engine.errors["/containers/ct1/stop"] = (500, "busy")
                assert await stack.call("POST", "/v1.40/containers/ct1/stop?t=3") == (500, {"message": "busy"})
                await until(lambda: len(server.asked) == 6)
                stack.engine.errors.clear()
                assert (await stack.call("POST", "/v1.40/containers/ct1/stop?t=3"))[0] == 204
                await until(lambda: len(server.asked) == 7)
                assert (await stack.call("POST", "/v1.40/containers/sb1/stop"))[0] == 204
                await until(lambda: len(server.asked) == 8)
                assert [name.removesuffix("Hook") for name, _ in server.asked] == [
                    "PreRunPodSandbox",
                    "PreCreateContainer",
                    "PreStartContainer",
                    "PostStartContainer",
                    "PreUpdateContainerResources",
                    "PostStopContainer",
                    "PostStopContainer",  # the retry of a failed stop
                    "PostStopPodSandbox",
                ]
                assert not stack.app.store.known()
                status, answer = await stack.call("POST", "/v1.40/containers/ct1/stop")
                assert (status, answer["message"]) == (500, "No such container: ct1")
                assert len(stack.engine.of(".*/ct1/stop")) == 2

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
def test_a_failing_hook_refuses_or_not_as_its_policy_says(policy: str, status: int) -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack, stack.hooks(answers(PreRunPodSandbox=None), policy):
            target, document = sandbox()
            got, answer = await stack.call("POST", target, document)
            assert got == status
            assert len(stack.engine.of(".*/create")) == (status == 201)
            if status == 500:
                assert "hook server err: INTERNAL: scripted failure" in answer["message"]
                document["Labels"]["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
                assert (await stack.call("POST", target, document))[0] == 201

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_names_that_are_not_kubelets() -> None:
    async def scenario() -> None:
        async with docker_proxied(FakeDocker(ids=["a", "b", "sb1", "c"])) as stack, stack.hooks(answers()) as server:
            assert (await stack.call("POST", "/containers/create?name=db", {"Image": "x"}))[0] == 201
            assert (await stack.call("POST", "/containers/create", b"no json"))[0] == 201
            status, answer = await stack.call("POST", "/containers/create?name=k8s_a_b", {"Labels": {}})
            assert (status, "k8s_<container>_<pod>" in answer["message"]) == (500, True)
            status, answer = await stack.call("POST", *container("nowhere"))
            assert (status, "Failed to get pod info" in answer["message"]) == (500, True)
            assert not server.asked
            await stack.call("POST", *sandbox())
            assert (await stack.call("POST", *container(name="k8s_main_web-0_shop_u1_2_4f3e")))[0] == 201  # dockershim's seventh part
            assert server.asked[1][1].container_meta.name == "main"
            stack.engine.inspected["db"] = {"Id": "a", "Name": "/db"}
            assert (await stack.call("POST", "/containers/db/stop"))[0] == 204

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-02")
def test_a_stop_goes_on_where_the_engine_cannot_say_whether_there_is_such_a_container() -> None:
    """Whoever reads "No such container" takes the container for stopped, while it runs on."""

    async def scenario() -> None:
        async with docker_proxied(FakeDocker(errors={"/containers/db/json": (500, "the daemon is busy")})) as stack:
            assert (await stack.call("POST", "/containers/db/stop"))[0] == 204
            assert len(stack.engine.of("/containers/db/stop")) == 1
            status, answer = await stack.call("POST", "/containers/nobody/stop")
            assert (status, answer["message"]) == (500, "No such container: nobody")

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-03")
@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
def test_containers_that_run_already_are_known_at_start(driver: str) -> None:
    async def scenario() -> None:
        systemd = driver == "systemd"
        pod, ct = sandbox(CgroupParent=POD_PARENT if systemd else "/kubepods/burstable/podu1")[1], container(**RESOURCES)[1]
        engine = FakeDocker(
            driver=driver,
            containers=[{"Id": i, "Labels": d["Labels"]} for i, d in (("ct1", ct), ("sb1", pod), ("db", {"Labels": {}}), ("lost", ct))],
            inspected={
                "sb1": {"Id": "sb1", "Name": "/k8s_POD_web-0_shop_u1_0", "Config": pod, "HostConfig": pod["HostConfig"]},
                "ct1": {"Id": "ct1", "Name": "/k8s_main_web-0_shop_u1_2", "Config": ct, "HostConfig": ct["HostConfig"]},
            },
        )
        async with docker_proxied(engine, relist=0.1) as stack, stack.hooks(answers()) as server:
            assert set(stack.app.store.containers) == {"ct1"}
            await stack.call("POST", "/containers/ct1/start")
            asked = server.asked[0][1]
            assert (asked.pod_meta.name, asked.pod_meta.uid, asked.container_meta.id) == ("web-0", "u1", "ct1")
            assert asked.pod_cgroup_parent == (POD_PATH if systemd else "/kubepods/burstable/podu1")
            assert (asked.container_resources.cpu_quota, asked.container_envs["B"]) == (50000, "2=3")
            engine.containers.clear()  # removed by somebody else: forgotten
            async with asyncio.timeout(patience.seconds(5)):
                while stack.app.store.known():
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-03")
def test_what_was_stopped_is_not_taken_up_again_from_the_engines_list() -> None:
    """Docker lists stopped containers until they are removed, and kubelet stops a sandbox again before that: its hook has been told."""

    async def scenario() -> None:
        pod, ct = sandbox()[1], container()[1]
        engine = FakeDocker(
            ids=["sb1", "ct1"],
            inspected={
                "sb1": {"Id": "sb1", "Name": "/k8s_POD_web-0_shop_u1_0", "Config": pod, "HostConfig": {}},
                "ct1": {"Id": "ct1", "Name": "/k8s_main_web-0_shop_u1_2", "Config": ct, "HostConfig": {}},
            },
        )
        server = HookServer(answers={k: v for k, v in answers().answers.items() if k.startswith("PostStop")})
        async with docker_proxied(engine, relist=0.05) as stack, stack.hooks(server):
            await stack.call("POST", *sandbox())
            await stack.call("POST", *container())
            engine.containers = [{"Id": i, "Labels": d["Labels"]} for i, d in (("sb1", pod), ("ct1", ct))]
            for _ in range(2):
                for one in ("ct1", "sb1"):
                    assert (await stack.call("POST", f"/containers/{one}/stop"))[0] == 204
                listed = len(engine.of("/containers/json"))
                await until(lambda listed=listed: len(engine.of("/containers/json")) > listed + 2)
                assert not stack.app.store.known()
            await until(lambda: len(server.asked) >= 2)
            await asyncio.sleep(0.1)
            assert [name for name, _ in server.asked] == ["PostStopContainerHook", "PostStopPodSandboxHook"]
            engine.containers = []  # removed: forgotten altogether
            await until(lambda: not stack.app.store.stopped())

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_an_engine_that_goes_and_comes_back() -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            path = stack.directory / "docker.sock"
            path.rename(path.with_suffix(".away"))
            status, answer = await stack.call("GET", "/version")
            assert (status, "cannot be reached" in answer["message"]) == (502, True)
            path.with_suffix(".away").rename(path)
            assert (await stack.call("GET", "/version"))[0] == 200

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_other_users_and_too_many_connections_are_refused() -> None:
    async def scenario() -> None:
        async with docker_proxied(concurrency=1) as stack:
            _, held = await asyncio.open_unix_connection(stack.directory / "proxy.sock")
            await asyncio.sleep(0.1)
            status, answer = await stack.call("GET", "/version")
            assert (status, "more than 1 connections" in answer["message"]) == (503, True)
            held.close()
            for _ in patience.tries(100):
                status, _ = await stack.call("GET", "/version")
                if status == 200:
                    break
                await asyncio.sleep(0.05)
            assert status == 200
            if os.geteuid() == 0:
                os.chmod(stack.directory, 0o711)
                os.chmod(stack.directory / "proxy.sock", 0o666)  # even if somebody opened the file's mode
                done = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", AS_NOBODY, str(stack.directory / "proxy.sock")), stdout=subprocess.PIPE
                )
                assert (await done.communicate())[0] == b"b''\n"
                assert not stack.engine.of("/")

    asyncio.run(scenario())


@pytest.mark.feature("RP-DKR-01")
def test_a_socket_that_was_taken_away_is_made_again() -> None:
    async def scenario() -> None:
        async with docker_proxied() as stack:
            path = stack.directory / "proxy.sock"
            path.unlink()
            await until(path.is_socket)
            status, _ = await stack.call("GET", "/info")
            assert status == 200

    asyncio.run(scenario())
