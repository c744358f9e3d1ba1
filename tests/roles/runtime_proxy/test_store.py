"""What the proxy knows of pods and containers: from when, until when, and what it says when it knows nothing."""

from __future__ import annotations

import asyncio
import json
import logging

import grpc
import grpc.aio
import pytest

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.logfilter import RepeatFilter
from tests.roles.runtime_proxy.support import Engine, HookServer, create, proxied, run_pod, until
from tests.support import patience


@pytest.mark.feature("RP-STO-02")
def test_the_store_is_rebuilt_from_the_engine() -> None:
    async def scenario() -> None:
        pods = cri.ListPodSandboxResponse(
            items=[cri.PodSandbox(id="sb-1", metadata=cri.PodSandboxMetadata(name="w", uid="u", namespace="n"), labels={"x": "y"})]
        )
        containers = cri.ListContainersResponse(
            containers=[
                cri.Container(
                    id="c-1", pod_sandbox_id="sb-1", metadata=cri.ContainerMetadata(name="main", attempt=3), annotations={"k": "v"}
                ),
                cri.Container(id="c-2", pod_sandbox_id="gone"),
            ]
        )
        engine = Engine(answers={"ListPodSandbox": pods.SerializeToString(), "ListContainers": containers.SerializeToString()})
        answer = hook.ContainerResourceHookResponse()
        async with (
            proxied(engine) as stack,
            stack.hook_server("h", HookServer(answers={"PreStartContainerHook": answer}), ["PreStartContainer"]) as server,
        ):
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="c-1"))
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="c-2"))
            assert len(server.asked) == 1
            asked = server.asked[0][1]
            assert (asked.container_meta.name, asked.container_meta.attempt, asked.container_meta.id) == ("main", 3, "c-1")
            assert dict(asked.pod_labels) == {"x": "y"}
            assert not asked.HasField("container_resources")

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_an_unknown_sandbox_is_learnt_from_the_engine_or_forwarded() -> None:
    async def scenario() -> None:
        answers = {"PreCreateContainerHook": hook.ContainerResourceHookResponse(container_annotations={"n": "1"})}
        async with proxied() as stack, stack.hook_server("h", HookServer(answers=answers), ["PreCreateContainer"]) as server:
            raw = create(sandbox="nowhere").SerializeToString()
            await stack.call("CreateContainer", raw)
            assert (stack.engine.of("CreateContainer"), server.asked) == ([raw], [])
            status = cri.PodSandboxStatus(id="s", metadata=cri.PodSandboxMetadata(name="w", uid="u", namespace="n"), labels={"x": "y"})
            stack.engine.answers["PodSandboxStatus"] = cri.PodSandboxStatusResponse(status=status).SerializeToString()
            await stack.call("CreateContainer", raw)
            assert dict(server.asked[0][1].pod_labels) == {"x": "y"}

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_containers_of_a_stopped_sandbox_are_known_until_their_own_stop() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PostStopContainerHook": hook.ContainerResourceHookResponse()})
        async with proxied() as stack, stack.hook_server("h", server, ["PostStopContainer"]):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            await stack.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="sb-u-1"))
            await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"))
            await until(lambda: [name for name, _ in server.asked] == ["PostStopContainerHook"])
            await stack.call("CreateContainer", create())  # a sandbox that is gone: the engine says so, nothing is stored
            assert not stack.app.store.known()

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers"])
def test_an_engine_that_cannot_list_is_served_and_asked_again(method: str) -> None:
    async def scenario() -> None:
        pods = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="sb-1", metadata=cri.PodSandboxMetadata(name="w", uid="u"))])
        engine = Engine(answers={"ListPodSandbox": pods.SerializeToString()}, errors={method: (grpc.StatusCode.INTERNAL, "corrupt")})
        async with proxied(engine, patience=0.1, relist=0.1) as stack:
            await stack.call("RunPodSandbox", run_pod())
            assert set(stack.app.store.pods) == {"sb-u-1"}
            pods.items.add(id="sb-u-1")
            engine.answers["ListPodSandbox"] = pods.SerializeToString()
            engine.errors.clear()
            async with asyncio.timeout(patience.seconds(10)):
                while "sb-1" not in stack.app.store.pods:
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers", "ContainerStatus"])
def test_an_engine_that_takes_its_time_to_tell_what_runs_is_served_meanwhile(method: str) -> None:
    """As one whose database is locked: kubelet has a runtime, and the one list that is under way counts when it comes."""

    async def scenario() -> None:
        pods = cri.ListPodSandboxResponse(
            items=[cri.PodSandbox(id=i, metadata=cri.PodSandboxMetadata(name=i, uid=i)) for i in ("sb-1", "sb-u-1")]
        )
        containers = cri.ListContainersResponse(containers=[cri.Container(id="ct-1", pod_sandbox_id="sb-1")])
        resources = cri.ContainerStatus(id="ct-1")
        resources.resources.linux.cpu_shares = 77
        answers = {"ListPodSandbox": pods, "ListContainers": containers, "ContainerStatus": cri.ContainerStatusResponse(status=resources)}
        engine = Engine(answers={name: answer.SerializeToString() for name, answer in answers.items()}, waits={method: asyncio.Event()})
        async with proxied(engine, patience=0.1, relist=600.0) as stack:
            assert not engine.waits[method].is_set(), "the proxy serves"
            await stack.call("RunPodSandbox", run_pod())
            assert "sb-u-1" in stack.app.store.pods
            engine.waits[method].set()

            def complete() -> bool:
                found = stack.app.store.containers.get("ct-1")
                return found is not None and found.container_resources.cpu_shares == 77

            await until(complete)
            assert {"sb-1", "sb-u-1"} == set(stack.app.store.pods)
            assert stack.app.store.pods["sb-u-1"].pod_meta.name == "web-0", "what was made meanwhile is not overwritten"
            assert [len(engine.of(name)) for name in ("ListPodSandbox", "ListContainers")] == [1, 1]

    asyncio.run(scenario())


def test_a_proxy_that_is_told_to_stop_does_not_wait_for_a_list() -> None:
    async def scenario() -> None:
        engine = Engine(waits={"ListPodSandbox": asyncio.Event()})
        async with proxied(engine, patience=0.1):
            pass

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_unknown_sandboxes_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with proxied() as stack:
            for number in range(40):
                await stack.call("CreateContainer", create(sandbox=f"nowhere-{number}"))
            assert len(stack.engine.of("CreateContainer")) == 40

    asyncio.run(scenario())
    assert len([text for text in caplog.messages if "nowhere" in text]) < 30


def test_lines_left_out_of_the_log_are_counted() -> None:
    def line(text: str, at: float) -> tuple[bool, str]:
        record = logging.LogRecord("n", logging.WARNING, "f", 1, text, ("x",), None)
        record.created = at
        return sparing.filter(record), record.getMessage()

    sparing = RepeatFilter()
    assert [line("lost %s", 100.0)[0] for _ in range(13)] == [True] * 10 + [False] * 3
    assert line("other %s", 100.0) == (True, "other x")
    assert line("lost %s", 111.0) == (True, "lost x (and 3 more like this)")
    assert line("lost %s", 130.0) == (True, "lost x")


@pytest.mark.feature("RP-CRI-03")
def test_a_failed_stop_keeps_the_record_for_the_retry() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PostStopContainerHook": hook.ContainerResourceHookResponse()})
        async with proxied() as stack, stack.hook_server("h", server, ["PostStopContainer"]):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            stack.engine.errors["StopContainer"] = (grpc.StatusCode.UNAVAILABLE, "later")
            with pytest.raises(grpc.aio.AioRpcError):
                await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"))
            del stack.engine.errors["StopContainer"]
            await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"))
            await until(lambda: [name for name, _ in server.asked] == ["PostStopContainerHook"] * 2)
            assert not stack.app.store.containers

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
def test_resources_that_the_engine_tells_are_known_after_a_restart() -> None:
    async def scenario() -> None:
        pods = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="sb-1", metadata=cri.PodSandboxMetadata(name="w", uid="u"))])
        listed = cri.ListContainersResponse(containers=[cri.Container(id="c-1", pod_sandbox_id="sb-1")])
        status = cri.ContainerStatusResponse(status=cri.ContainerStatus(id="c-1"))
        status.status.resources.linux.cpu_shares = 300
        status.status.resources.linux.memory_limit_in_bytes = status.status.resources.linux.memory_swap_limit_in_bytes = 1 << 28
        engine = Engine(
            answers={
                "ListPodSandbox": pods.SerializeToString(),
                "ListContainers": listed.SerializeToString(),
                "ContainerStatus": status.SerializeToString(),
            }
        )
        answer = hook.ContainerResourceHookResponse()
        answer.container_resources.cpu_quota = 70000
        server = HookServer(answers={"PreUpdateContainerResourcesHook": answer})
        async with proxied(engine) as stack, stack.hook_server("h", server, ["PreUpdateContainerResources"]):
            request = cri.UpdateContainerResourcesRequest(container_id="c-1", linux=cri.LinuxContainerResources(cpu_shares=400))
            await stack.call("UpdateContainerResources", request)
            linux = cri.UpdateContainerResourcesRequest.FromString(engine.of("UpdateContainerResources")[0]).linux
            assert (linux.cpu_shares, linux.cpu_quota, linux.memory_limit_in_bytes) == (400, 70000, 1 << 28)
            assert linux.memory_swap_limit_in_bytes == 0

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_an_answer_that_cannot_be_read_is_passed_on_and_the_call_is_not_repeated() -> None:
    async def scenario() -> None:
        async with proxied(Engine(answers={"RunPodSandbox": b"\x0a\xff"})) as stack:
            assert await stack.call("RunPodSandbox", run_pod()) == b"\x0a\xff"
            assert len(stack.engine.of("RunPodSandbox")) == 1
            assert not stack.app.store.pods

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01", "RP-STO-02")
def test_what_was_stopped_is_not_taken_up_again_from_the_engines_list() -> None:
    """The engine lists it until it is removed, and kubelet stops a sandbox once more before that: its hook has been told."""

    async def scenario() -> None:
        answers = {"PostStopPodSandboxHook": hook.PodSandboxHookResponse(), "PostStopContainerHook": hook.ContainerResourceHookResponse()}
        server, engine = HookServer(answers=answers), Engine()
        async with proxied(engine, relist=0.05) as stack, stack.hook_server("h", server, ["PostStopPodSandbox", "PostStopContainer"]):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            meta = cri.PodSandboxMetadata(name="w", uid="u-1")
            pods = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="sb-u-1", metadata=meta)])
            containers = cri.ListContainersResponse(containers=[cri.Container(id="ct-main", pod_sandbox_id="sb-u-1")])
            engine.answers["ListPodSandbox"] = pods.SerializeToString()
            engine.answers["ListContainers"] = containers.SerializeToString()

            async def stop_both() -> None:
                await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"))
                await stack.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="sb-u-1"))

            await stop_both()
            listed = len(engine.of("ListContainers"))
            await until(lambda: len(engine.of("ListContainers")) > listed + 2)
            assert not stack.app.store.known()
            await stop_both()
            await asyncio.sleep(0.1)
            assert sorted(name for name, _ in server.asked) == ["PostStopContainerHook", "PostStopPodSandboxHook"]

            for message in (pods.items, containers.containers):
                del message[:]
            engine.answers["ListPodSandbox"] = pods.SerializeToString()
            engine.answers["ListContainers"] = containers.SerializeToString()
            await until(lambda: not stack.app.store.stopped())

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
def test_resources_of_a_pod_survive_a_restart_as_they_were_at_its_last_resize() -> None:
    made = {"cpu_shares": 100, "memory_limit_in_bytes": 5, "oom_score_adj": 9}
    config = {"linux": {"cgroup_parent": "/p", "overhead": {"cpu_shares": 10}, "resources": made}}

    async def told(**info: object) -> list[hook.ContainerResourceHookRequest]:
        """What hooks are told of a new container of a pod that was there, and of a container that was there, too."""
        hooks = ["PreCreateContainer", "PreStartContainer"]
        engine, server = Engine(), HookServer(answers={f"{one}Hook": hook.ContainerResourceHookResponse() for one in hooks})
        meta = cri.PodSandboxMetadata(name="w", uid="u-1")
        pods = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="sb-u-1", metadata=meta)])
        containers = cri.ListContainersResponse(containers=[cri.Container(id="ct-old", pod_sandbox_id="sb-u-1")])
        status = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="sb-u-1", metadata=meta), info={"info": json.dumps(info)})
        answers = {"ListPodSandbox": pods, "ListContainers": containers, "PodSandboxStatus": status}
        engine.answers |= {method: answer.SerializeToString() for method, answer in answers.items()}
        async with proxied(engine) as stack, stack.hook_server("h", server, hooks):
            await stack.call("CreateContainer", create())
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="ct-old"))
            assert stack.app.store.pods["sb-u-1"].overhead.cpu_shares == 10
            return [asked for _, asked in server.asked]

    for asked in asyncio.run(told(config=config)):
        assert (asked.pod_resources.cpu_shares, asked.pod_resources.memory_limit_in_bytes, asked.pod_resources.oom_score_adj) == (100, 5, 9)
    for asked in asyncio.run(told(config=config, resources={"linux": {"cpu_shares": 900}})):
        assert (asked.pod_resources.cpu_shares, asked.pod_resources.memory_limit_in_bytes) == (900, 5)
    for asked in asyncio.run(told(config=config, resources={"linux": {"cpu_shares": "much", "cpu_quota": 1 << 70}}, overhead=3)):
        assert (asked.pod_resources.cpu_shares, asked.pod_resources.cpu_quota) == (100, 0)
