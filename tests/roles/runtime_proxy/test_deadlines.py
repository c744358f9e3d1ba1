"""Hooks and time: a hook server that hangs costs its policy's share of the caller's deadline, and concurrent changes have an order."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.concurrency import Background, KeyedLocks
from roles.runtime_proxy.deadline import Deadline, share
from roles.runtime_proxy.hookclient import HookClient, HookError
from roles.runtime_proxy.registration import HookServer as Registered
from roles.runtime_proxy.stages import HookRefusal, HookRules, Stages
from tests.roles.runtime_proxy.support import Engine, Handlers, HookServer, create, proxied, run_pod, until


class SlowEngine(Engine):
    """Takes `pause` seconds for each StopContainer and UpdateContainerResources, and applies updates as an engine does."""

    pause = 0.0
    state: dict[str, Any] = {}

    def _unary(self, method: str) -> Any:
        answer = super()._unary(method)

        async def handle(raw: bytes, context: Any) -> bytes:
            if method == "UpdateContainerResources":
                linux = cri.UpdateContainerResourcesRequest.FromString(raw).linux
                self.state.update({f.name: v for f, v in linux.ListFields() if f.name in ("cpuset_cpus", "memory_limit_in_bytes")})
            if method in ("StopContainer", "UpdateContainerResources"):
                await asyncio.sleep(self.pause)
            found: bytes = await answer(raw, context)
            return found

        return handle


class Echo(HookServer):
    """Answers an update with the resources that it was told, after a pause."""

    def handler(self, path: str) -> Any:
        async def handle(raw: bytes, context: Any) -> bytes:
            asked = hook.ContainerResourceHookRequest.FromString(raw)
            self.asked.append((path, asked))
            await asyncio.sleep(self.delay)
            return hook.ContainerResourceHookResponse(container_resources=asked.container_resources).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)


@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize("deadline", [0.3, 1.0])
def test_a_server_that_hangs_leaves_the_engine_its_time(deadline: float) -> None:
    """The engine takes four tenths of the caller's time, and no hook takes it away, before or after."""

    async def scenario() -> None:
        engine = SlowEngine()
        async with (
            proxied(engine) as stack,
            stack.hook_server("h", HookServer(delay=30), ["PreStartContainer", "PostStartContainer", "PostStopContainer"]) as server,
        ):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            engine.pause = deadline * 0.4
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="ct-main"), timeout=deadline)
            await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"), timeout=deadline)
            assert (len(engine.of("StartContainer")), len(engine.of("StopContainer"))) == (1, 1)
            assert server.asked[0][0] == "PreStartContainerHook"

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
def test_a_binding_server_that_hangs_is_named_before_the_caller_gives_up() -> None:
    async def scenario() -> None:
        async with proxied() as stack, stack.hook_server("h", HookServer(delay=30), ["PreRunPodSandbox"], "Fail"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.call("RunPodSandbox", run_pod(), timeout=1)
            assert caught.value.code() == grpc.StatusCode.UNKNOWN
            assert caught.value.details().startswith("hook server err: ")

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-02")
def test_asking_for_a_sandbox_that_is_not_known_leaves_the_engine_its_time() -> None:
    class Forgetful(Engine):
        def _unary(self, method: str) -> Any:
            answer = super()._unary(method)

            async def handle(raw: bytes, context: Any) -> bytes:
                if method == "PodSandboxStatus":
                    await asyncio.sleep(30)
                found: bytes = await answer(raw, context)
                return found

            return handle

    async def scenario() -> None:
        async with proxied(Forgetful()) as stack:
            await stack.call("CreateContainer", create(), timeout=1)
            assert len(stack.engine.of("CreateContainer")) == 1

    asyncio.run(scenario())


@pytest.mark.feature("RP-MRG-03")
@pytest.mark.parametrize("hooked", [False, True])
def test_updates_at_once_never_undo_one_another(hooked: bool) -> None:
    async def scenario() -> None:
        engine = SlowEngine()
        async with proxied(engine) as stack:
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create(cpuset_cpus="0-3", memory_limit_in_bytes=100))
            engine.pause, engine.state = 0.05, {}
            one, two, later = (cri.UpdateContainerResourcesRequest(container_id="ct-main") for _ in range(3))
            one.linux.cpuset_cpus, two.linux.memory_limit_in_bytes, later.linux.cpu_shares = "8-11", 500, 77
            both = [stack.call("UpdateContainerResources", one), stack.call("UpdateContainerResources", two)]
            if not hooked:
                await asyncio.gather(*both)
                both = []
            async with stack.hook_server("h", Echo(delay=0.05), ["PreUpdateContainerResources"]):
                await asyncio.gather(*both)
                await stack.call("UpdateContainerResources", later)
            assert engine.state == {"cpuset_cpus": "8-11", "memory_limit_in_bytes": 500}
            kept = stack.app.store.containers["ct-main"].container_resources
            assert (kept.cpuset_cpus, kept.memory_limit_in_bytes, kept.cpu_shares) == ("8-11", 500, 77)
            assert len(stack.app.backend.interceptor.locks) == 0

    asyncio.run(scenario())


def test_a_share_of_what_is_left() -> None:
    now = [100.0]
    deadline = Deadline(8.0, lambda: now[0])
    assert share(deadline, 0.25) == 2.0
    now[0] = 106.0
    assert (deadline.left(), share(deadline, 0.25)) == (2.0, 0.5)
    now[0] = 200.0
    assert deadline.left() == 0.0
    assert (share(Deadline(None), 0.5), share(None, 0.5)) == (None, None)


def test_work_afterwards_has_an_order_a_bound_and_an_end() -> None:
    async def scenario() -> None:
        done: list[str] = []
        hold = asyncio.Event()

        async def slow() -> None:
            await hold.wait()
            done.append("first")

        async def quick(name: str) -> None:
            done.append(name)

        work = Background(limit=3)
        assert work.put("pod", slow)
        assert work.put("pod", lambda: quick("second"))
        assert work.put("other", lambda: quick("other"))
        assert not work.put("more", lambda: quick("more"))
        await until(lambda: done == ["other"])
        hold.set()
        await until(lambda: done == ["other", "first", "second"])
        hold.clear()
        work.put("pod", slow)
        await work.close(0.01)
        assert done == ["other", "first", "second"]

    asyncio.run(scenario())


def test_locks_are_forgotten_when_nobody_uses_them() -> None:
    async def scenario() -> None:
        locks, order = KeyedLocks(), []

        async def visit(name: str, pause: float) -> None:
            async with locks.of("a"):
                order.append(name)
                await asyncio.sleep(pause)
                order.append(name)

        tasks = [asyncio.create_task(visit(name, 0.01)) for name in "xyz"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (order, len(locks)) == (["x", "x", "z", "z"], 0)

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize(("policy", "part"), [("Ignore", 0.2), ("", 0.2), ("Fail", 0.75)])
def test_a_hook_is_given_a_budget_of_its_own(policy: str, part: float) -> None:
    """At most a fifth of what is left of the caller's time, unless the call may not go on without the hook."""

    class Caller:
        given: list[float | None] = []

        async def call(self, server: Registered, hook_type: str, request: Any, deadline: float | None) -> Any:
            self.given.append(deadline)
            raise HookError("away")

    async def scenario() -> None:
        caller = Caller()
        server = Registered("h.json", "/h.sock", ("PreStartContainer", "PostStartContainer"), policy)
        stages = Stages(caller, lambda: (server,), HookRules(), lambda *_: None)
        deadline = Deadline(10.0, lambda: 100.0)
        with contextlib.suppress(HookRefusal):
            await stages.pre("PreStartContainer", hook.ContainerResourceHookRequest(), {}, deadline)
        assert caller.given == [pytest.approx(10 * part)]
        stages.post("PostStartContainer", hook.ContainerResourceHookRequest(), {}, "sandbox")
        await stages.close()
        assert caller.given[1:] == [None], "after the answer: nobody waits"

    asyncio.run(scenario())


@pytest.mark.feature("RP-HOOK-01")
def test_a_hook_server_that_is_slow_to_speak_is_waited_for(tmp_path: Path) -> None:
    """koordlet's has to load its gRPC on the first connection, which takes its time on a busy node."""

    async def main() -> None:
        server = HookServer({"PreRunPodSandboxHook": hook.PodSandboxHookResponse(labels={"a": "b"})})
        listener = grpc.aio.server()
        listener.add_generic_rpc_handlers((Handlers(server.handler),))
        listener.add_insecure_port(f"unix:{tmp_path}/inner.sock")
        await listener.start()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

        async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.6)
            inner_reader, inner_writer = await asyncio.open_unix_connection(f"{tmp_path}/inner.sock")
            with contextlib.suppress(ConnectionError), contextlib.closing(writer), contextlib.closing(inner_writer):
                await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

        async with await asyncio.start_unix_server(front, f"{tmp_path}/outer.sock"):
            client = HookClient(10.0)
            registered = Registered("x.json", f"{tmp_path}/outer.sock", ("PreRunPodSandbox",), "Fail")
            answer = await client.call(registered, "PreRunPodSandbox", hook.PodSandboxHookRequest(), None)
            assert dict(answer.labels) == {"a": "b"}
            await client.close()
        await listener.stop(0)

    asyncio.run(main())
