"""Calls with hooks: who is asked, what the engine gets, and what happens when a hook server misbehaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.engine import EngineClient
from roles.runtime_proxy.hookclient import HookClient, HookError
from roles.runtime_proxy.registration import HookServer as RegisteredServer
from tests.roles.runtime_proxy.support import HOOKS, Handlers, HookServer, create, proxied, run_pod, until
from tests.support import patience


def answer_pod(**keys: object) -> HookServer:
    return HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse(**keys)})


@pytest.mark.feature("RP-CRI-02")
@pytest.mark.feature("RP-HOOK-01")
@pytest.mark.feature("RP-MRG-01")
def test_a_pod_hook_sees_the_pod_and_its_answer_reaches_the_engine() -> None:
    async def scenario() -> None:
        server = answer_pod(labels={"l": "2"}, annotations={"a": "2", "b": "3"}, cgroup_parent="/elsewhere")
        async with proxied() as stack, stack.hook_server("h", server, ["PreRunPodSandbox", "PostStopPodSandbox"]):
            await stack.call("RunPodSandbox", run_pod(l="1", keep="x").SerializeToString() + bytes.fromhex("b83e07"))
            name, asked = server.asked[0]
            assert (name, asked.pod_meta.name, asked.pod_meta.namespace, asked.runtime_handler) == (
                "PreRunPodSandboxHook",
                "web-0",
                "shop",
                "runc",
            )
            assert asked.cgroup_parent == "/kubepods/burstable/podu-1"
            raw = stack.engine.of("RunPodSandbox")[0]
            sent = cri.RunPodSandboxRequest.FromString(raw)
            assert dict(sent.config.labels) == {"l": "2", "keep": "x"}
            assert dict(sent.config.annotations) == {"a": "2", "b": "3"}
            assert sent.config.linux.cgroup_parent == "/elsewhere"
            assert bytes.fromhex("b83e07") in raw
            server.answers["PostStopPodSandboxHook"] = hook.PodSandboxHookResponse()
            await stack.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="sb-u-1"))
            await until(lambda: len(server.asked) == 2)
            assert server.asked[1][0] == "PostStopPodSandboxHook"
            assert server.asked[1][1].annotations["b"] == "3"
            assert not stack.app.store.pods

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
@pytest.mark.feature("RP-MRG-02")
def test_a_container_hook_merges_resources_and_environment() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(
            container_annotations={"n": "1"}, container_envs={"A": "1", "B": "\ufffd\x00", "Z": "9"}
        )
        answer.container_resources.cpu_shares = 2
        answer.container_resources.cpu_quota = -1
        answer.container_resources.cpuset_cpus = "2,3"
        answer.container_resources.oom_score_adj = 955
        answer.container_resources.unified["memory.low"] = "1"
        async with (
            proxied() as stack,
            stack.hook_server("h", HookServer(answers={"PreCreateContainerHook": answer}), ["PreCreateContainer"]) as server,
        ):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create(cpu_period=90000, cpu_quota=45000, memory_limit_in_bytes=1 << 28, cpuset_cpus="0-5"))
            asked = server.asked[0][1]
            assert (asked.container_meta.name, asked.container_resources.cpu_quota) == ("main", 45000)
            assert dict(asked.pod_annotations) == {"a": "1"}
            sent = cri.CreateContainerRequest.FromString(stack.engine.of("CreateContainer")[0]).config
            resources = sent.linux.resources
            assert (resources.cpu_period, resources.cpu_quota, resources.cpu_shares) == (90000, -1, 2)
            assert (resources.memory_limit_in_bytes, resources.cpuset_cpus, resources.oom_score_adj) == (1 << 28, "2,3", 955)
            assert dict(resources.unified) == {"memory.low": "1"}
            # order, duplicates and bytes that are no text survive; the second A differs from the answer and takes its value
            assert [(e.key, e.value) for e in sent.envs] == [("A", b"1"), ("B", b"\xff\x00"), ("A", b"1"), ("Z", b"9")]

    asyncio.run(scenario())


@pytest.mark.feature("RP-MRG-03")
@pytest.mark.feature("RP-STO-01")
@pytest.mark.parametrize("engine_fails", [False, True])
def test_an_update_is_merged_with_what_is_stored_once_the_engine_took_it(engine_fails: bool) -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(container_annotations={"upd": "y"})
        answer.container_resources.memory_limit_in_bytes = 384 << 20
        answer.container_resources.cpuset_cpus = "8,9"
        server = HookServer(answers={"PreUpdateContainerResourcesHook": answer})
        async with proxied() as stack, stack.hook_server("h", server, ["PreUpdateContainerResources"]):
            await stack.call("RunPodSandbox", run_pod())
            stored = {"cpu_period": 90000, "cpu_quota": 45000, "cpu_shares": 300, "memory_limit_in_bytes": 256 << 20, "oom_score_adj": 950}
            await stack.call("CreateContainer", create(cpuset_cpus="0-3", **stored))
            update = cri.UpdateContainerResourcesRequest(
                container_id="ct-main", linux=cri.LinuxContainerResources(cpu_quota=-1, oom_score_adj=12)
            )
            if engine_fails:
                stack.engine.errors["UpdateContainerResources"] = (grpc.StatusCode.INTERNAL, "no")
                with pytest.raises(grpc.aio.AioRpcError):
                    await stack.call("UpdateContainerResources", update)
            else:
                await stack.call("UpdateContainerResources", update)
            seen = server.asked[0][1].container_resources
            assert (seen.cpu_quota, seen.cpuset_cpus, seen.oom_score_adj) == (-1, "0-3", 950)
            sent = cri.UpdateContainerResourcesRequest.FromString(stack.engine.of("UpdateContainerResources")[0])
            linux = sent.linux
            assert (linux.cpu_period, linux.cpu_quota, linux.cpu_shares, linux.memory_limit_in_bytes) == (90000, -1, 300, 384 << 20)
            assert (linux.cpuset_cpus, linux.oom_score_adj) == ("8,9", 0)
            assert dict(sent.annotations) == {"c": "1", "upd": "y"}
            kept = stack.app.store.containers["ct-main"].container_resources
            assert kept.cpu_quota == (45000 if engine_fails else -1)

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize(("policy", "refused"), [("Fail", True), ("Ignore", False), ("", False), ("fail", False)])
@pytest.mark.parametrize("fault", ["error", "gone", "garbage"])
def test_failure_policies(policy: str, refused: bool, fault: str) -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": b"\xff\xff\xff"} if fault == "garbage" else {})
        async with proxied() as stack, stack.hook_server("h", server, ["PreRunPodSandbox"], policy):
            if fault == "gone":
                stack.register(
                    "h.json",
                    remote_endpoint=str(stack.directory / "nobody.sock"),
                    failure_policy=policy,
                    runtime_hooks=["PreRunPodSandbox"],
                )
            raw = run_pod().SerializeToString()
            if refused:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stack.call("RunPodSandbox", raw)
                assert caught.value.code() == grpc.StatusCode.UNKNOWN
                assert caught.value.details().startswith("hook server err: ")
                assert not stack.engine.of("RunPodSandbox")
                assert not stack.app.store.pods
            else:
                await stack.call("RunPodSandbox", raw)
                assert stack.engine.of("RunPodSandbox") == [raw]

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
def test_a_hanging_hook_server_costs_its_own_deadline_only() -> None:
    async def scenario() -> None:
        async with proxied(hook_timeout=0.2) as stack, stack.hook_server("h", HookServer(delay=30), ["PreRunPodSandbox"]):
            loop = asyncio.get_running_loop()
            times = []
            for uid in ("u1", "u2", "u3", "u4"):
                started = loop.time()
                await stack.call("RunPodSandbox", run_pod(uid))
                times.append(loop.time() - started)
            assert len(stack.engine.of("RunPodSandbox")) == 4
            assert max(times[:3]) < 5
            assert times[3] < min(times[:3])  # the breaker is open: nobody waits any more

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-04")
def test_the_skip_label_keeps_hooks_away() -> None:
    async def scenario() -> None:
        async with proxied() as stack, stack.hook_server("h", HookServer(), ["PreRunPodSandbox", "PreCreateContainer"], "Fail") as server:
            request = run_pod()
            request.config.labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
            await stack.call("RunPodSandbox", request)
            await stack.call("CreateContainer", create())
            assert not server.asked

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-01")
@pytest.mark.feature("RP-REG-02")
def test_registrations_are_reloaded_and_the_first_file_is_asked() -> None:
    async def scenario() -> None:
        async with proxied(rescan=0.05) as stack:
            first, second = answer_pod(), answer_pod()
            async with (
                stack.hook_server("b", second, ["PreRunPodSandbox"]),
                stack.hook_server("a", first, ["Nonsense", "PreRunPodSandbox"]),
            ):
                await stack.call("RunPodSandbox", run_pod())
                assert (len(first.asked), len(second.asked)) == (1, 0)
                (stack.directory / "hooks.d" / "a.json").write_text("{ broken")
                await asyncio.sleep(0.2)
                await stack.call("RunPodSandbox", run_pod())
                assert (len(first.asked), len(second.asked)) == (2, 0)  # the last good content stays
                (stack.directory / "hooks.d" / "a.json").unlink()
                (stack.directory / "hooks.d" / "new.json").write_text("[]")
                for _ in patience.tries(100):
                    await asyncio.sleep(0.05)
                    await stack.call("RunPodSandbox", run_pod())
                    if second.asked:
                        break
                assert len(second.asked) == 1
                before = len(first.asked)
                await stack.call("RunPodSandbox", run_pod())
                assert (len(first.asked), len(second.asked)) == (before, 2)

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.feature("RP-CRI-04")
def test_an_answer_that_changes_nothing_keeps_every_byte() -> None:
    async def scenario() -> None:
        nothing = hook.ContainerResourceHookResponse()
        answers = {
            "PreRunPodSandboxHook": hook.PodSandboxHookResponse(labels={"l": "1"}),
            "PreCreateContainerHook": nothing,
            "PreUpdateContainerResourcesHook": nothing,
        }
        hooks = ["PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]
        async with proxied() as stack, stack.hook_server("h", HookServer(answers=answers), hooks) as server:
            first = bytes.fromhex("b83e07")  # a field that is not known, where an encoder would not put it
            for method, message in (("RunPodSandbox", run_pod(l="1")), ("CreateContainer", create(cpu_quota=9))):
                await stack.call(method, raw := first + message.SerializeToString())
                assert stack.engine.of(method) == [raw]
            update = cri.UpdateContainerResourcesRequest(container_id="ct-main", annotations={"c": "1"})
            update.linux.cpu_quota = 9
            await stack.call("UpdateContainerResources", raw := first + update.SerializeToString())
            assert stack.engine.of("UpdateContainerResources") == [raw]
            assert len(server.asked) == 3

    asyncio.run(scenario())


@pytest.mark.feature("RP-MRG-03")
@pytest.mark.feature("RP-CRI-04")
def test_what_an_update_says_beyond_the_merge_reaches_the_engine() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(container_annotations={"upd": "y"})
        server = HookServer(answers={"PreUpdateContainerResourcesHook": answer})
        async with proxied() as stack, stack.hook_server("h", server, ["PreUpdateContainerResources"]):
            await stack.call("RunPodSandbox", run_pod())
            made = create(cpu_shares=300)
            made.config.linux.resources.hugepage_limits.add(page_size="2MB", limit=4)
            made.config.linux.resources.MergeFromString(bytes.fromhex("b83e05"))
            await stack.call("CreateContainer", made)
            update = cri.UpdateContainerResourcesRequest(container_id="ct-main", annotations={"c": "2"})
            update.linux.MergeFromString(bytes.fromhex("b83e07"))
            await stack.call("UpdateContainerResources", update)
            assert dict(server.asked[0][1].container_annotations) == {"c": "2"}
            raw = stack.engine.of("UpdateContainerResources")[0]
            assert bytes.fromhex("b83e07") in raw
            assert bytes.fromhex("b83e05") not in raw  # the creation's word on something that the proxy does not follow
            sent = cri.UpdateContainerResourcesRequest.FromString(raw)
            assert dict(sent.annotations) == {"c": "2", "upd": "y"}  # the caller's value is newer than the stored one
            assert (sent.linux.cpu_shares, sent.linux.hugepage_limits[0].limit) == (300, 4)
            update.linux.hugepage_limits.add(page_size="2MB", limit=8)
            await stack.call("UpdateContainerResources", update)
            sent = cri.UpdateContainerResourcesRequest.FromString(stack.engine.of("UpdateContainerResources")[1])
            assert [item.limit for item in sent.linux.hugepage_limits] == [8]

    asyncio.run(scenario())


@pytest.mark.feature("RP-MRG-01")
@pytest.mark.feature("RP-MRG-02")
def test_only_annotations_that_are_allowed_may_be_set(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        answers = {
            "PreRunPodSandboxHook": hook.PodSandboxHookResponse(annotations={"koordinator.sh/x": "1", "a": "other"}),
            "PreCreateContainerHook": hook.ContainerResourceHookResponse(container_annotations={"exact": "1", "io.cri/y": "1", "c": "1"}),
        }
        async with (
            proxied(hook_annotations=("koordinator.sh/*", "exact")) as stack,
            stack.hook_server("h", HookServer(answers=answers), ["PreRunPodSandbox", "PreCreateContainer"]),
        ):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            pod = cri.RunPodSandboxRequest.FromString(stack.engine.of("RunPodSandbox")[0])
            assert dict(pod.config.annotations) == {"a": "1", "koordinator.sh/x": "1"}
            container = cri.CreateContainerRequest.FromString(stack.engine.of("CreateContainer")[0])
            assert dict(container.config.annotations) == {"c": "1", "exact": "1"}

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if "may not set" in record.getMessage()]
    assert said == [
        "PreRunPodSandbox: h.json may not set annotation a; it is left out",
        "PreCreateContainer: h.json may not set annotation io.cri/y; it is left out",
    ], "what a server was told and says again is no attempt"


@pytest.mark.feature("RP-CRI-01")
def test_no_more_calls_at_once_than_allowed() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse()}, delay=1.0)
        async with proxied(concurrency=2) as stack, stack.hook_server("h", server, ["PreRunPodSandbox"]):
            outcomes = await asyncio.gather(*(stack.call("RunPodSandbox", run_pod(f"u{n}")) for n in range(6)), return_exceptions=True)
            refused = [o.code() for o in outcomes if isinstance(o, grpc.aio.AioRpcError)]
            assert refused == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
            assert await stack.call("Version", b"")  # and it goes on afterwards

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_hooks_are_told_the_resources_that_the_engine_last_accepted_for_a_pod() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse()
        hooks = ["PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"]
        server = HookServer(answers={f"{name}Hook": answer for name in hooks})
        async with proxied() as stack, stack.hook_server("h", server, hooks):
            pod = run_pod()
            pod.config.linux.resources.cpu_shares = 100
            await stack.call("RunPodSandbox", pod)
            await stack.call("CreateContainer", create())
            resize = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="sb-u-1")
            resize.resources.cpu_shares, resize.resources.cpu_quota, resize.overhead.cpu_quota = 900, 5000, 70
            stack.engine.errors["UpdatePodSandboxResources"] = (grpc.StatusCode.INTERNAL, "no")
            with pytest.raises(grpc.aio.AioRpcError):
                await stack.call("UpdatePodSandboxResources", resize)
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="ct-main"))
            del stack.engine.errors["UpdatePodSandboxResources"]
            await stack.call("UpdatePodSandboxResources", resize)
            later = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="sb-u-1")  # names one value: the others stay
            later.resources.memory_limit_in_bytes = 5
            await stack.call("UpdatePodSandboxResources", later)
            await stack.call("UpdateContainerResources", cri.UpdateContainerResourcesRequest(container_id="ct-main"))
            await stack.call("CreateContainer", create(name="other"))
            told = [(asked.pod_resources.cpu_shares, asked.pod_resources.memory_limit_in_bytes) for _, asked in server.asked]
            assert told == [(100, 0), (100, 0), (900, 5), (900, 5)]
            known = stack.app.store.pods["sb-u-1"]
            assert (known.resources.cpu_quota, known.overhead.cpu_quota) == (5000, 70)

    asyncio.run(scenario())


@pytest.mark.feature("RP-STO-01")
def test_a_resize_in_the_middle_of_an_update_is_not_forgotten() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse()
        server = HookServer(answers={"PreUpdateContainerResourcesHook": answer, "PreCreateContainerHook": answer})
        async with proxied() as stack, stack.hook_server("h", server, ["PreUpdateContainerResources", "PreCreateContainer"]):
            pod = run_pod()
            pod.config.linux.resources.cpu_shares = 100
            await stack.call("RunPodSandbox", pod)
            await stack.call("CreateContainer", create())
            server.delay = 0.3
            under_way = [
                asyncio.ensure_future(stack.call("UpdateContainerResources", cri.UpdateContainerResourcesRequest(container_id="ct-main"))),
                asyncio.ensure_future(stack.call("CreateContainer", create(name="other"))),
            ]
            await until(lambda: len(server.asked) == 3)
            resize = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="sb-u-1")
            resize.resources.cpu_shares = 900
            await stack.call("UpdatePodSandboxResources", resize)
            await asyncio.gather(*under_way)
            assert {r.pod_resources.cpu_shares for r in stack.app.store.containers.values()} == {900}

    asyncio.run(scenario())


@pytest.mark.feature("RP-MRG-02")
@pytest.mark.feature("RP-MRG-03")
def test_a_partial_answer_leaves_what_it_does_not_name() -> None:
    async def scenario() -> None:
        answer = hook.ContainerResourceHookResponse(container_envs={"B": "new"})
        answer.container_resources.cpu_shares = 512
        server = HookServer(answers={"PreCreateContainerHook": answer, "PreUpdateContainerResourcesHook": answer})
        hooks = ["PreCreateContainer", "PreUpdateContainerResources"]
        async with proxied() as stack, stack.hook_server("h", server, hooks):
            endpoint = str(stack.directory / "h.sock")
            stack.register("h.json", remote_endpoint=endpoint, runtime_hooks=hooks, failure_policy="Fail", partial_answers=True)
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create(cpuset_cpus="0-3", oom_score_adj=-997, cpu_quota=9))
            sent = cri.CreateContainerRequest.FromString(stack.engine.of("CreateContainer")[0]).config
            resources = sent.linux.resources
            assert (resources.cpu_shares, resources.cpuset_cpus, resources.oom_score_adj, resources.cpu_quota) == (512, "0-3", -997, 9)
            assert [(e.key, e.value) for e in sent.envs] == [("A", b"1"), ("B", b"new"), ("A", b"2")]
            update = cri.UpdateContainerResourcesRequest(container_id="ct-main")
            update.linux.memory_limit_in_bytes = 7
            await stack.call("UpdateContainerResources", update)
            linux = cri.UpdateContainerResourcesRequest.FromString(stack.engine.of("UpdateContainerResources")[0]).linux
            assert (linux.cpuset_cpus, linux.oom_score_adj, linux.memory_limit_in_bytes, linux.cpu_shares) == ("0-3", -997, 7, 512)

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-01")
@pytest.mark.feature("RP-REG-02")
def test_what_is_odd_about_registrations_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with proxied(rescan=0.02) as stack:
            keys = {"remote_endpoint": "/nowhere.sock", "failure_policy": "fail"}
            stack.register("a.json", runtime_hooks=["PreRunPodSandbox"], **keys)
            stack.register("b.json", runtime_hooks=["PreRunPodSandbox", "PreCreateContainer"], **keys)
            await asyncio.sleep(0.2)
            stack.register("c.json", remote_endpoint="/n.sock", partial_answers="yes")

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if record.name.endswith("registration")]
    odd = [line for line in said if "not known" in line or "never asked" in line or "partial-answers" in line]
    assert odd == [
        "hook registration a.json: failure-policy: 'fail' is not known; accepted: Fail, Ignore; it is used as Ignore",
        "hook registration b.json: failure-policy: 'fail' is not known; accepted: Fail, Ignore; it is used as Ignore",
        "hook server b.json is never asked for PreRunPodSandbox: a.json, which comes first, is",
        "hook registration c.json: partial-answers must be true or false, found 'yes'; it is ignored",
    ]


@pytest.mark.feature("RP-REG-01", "RP-REG-03")
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_a_server_that_withdraws_answers_calls_that_are_under_way(policy: str) -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse(annotations={"a": "b"})}, delay=0.5)
        async with proxied(rescan=0.02) as stack, stack.hook_server("h", server, ["PreRunPodSandbox"], policy):
            call = asyncio.create_task(stack.call("RunPodSandbox", run_pod(), timeout=patience.seconds(10)))
            await until(lambda: server.asked)
            (stack.directory / "hooks.d" / "h.json").unlink()
            await call
            (sent,) = stack.engine.of("RunPodSandbox")
            assert cri.RunPodSandboxRequest.FromString(sent).config.annotations["a"] == "b"
            await stack.call("RunPodSandbox", run_pod("u-2"))
            assert len(server.asked) == 1, "nobody asks it any more"

    asyncio.run(scenario())


@pytest.mark.feature("RP-HOOK-01")
def test_a_call_whose_connection_is_closed_is_an_error_and_one_that_is_given_up_is_not() -> None:
    async def scenario() -> None:
        server = HookServer(answers={"PreRunPodSandboxHook": hook.PodSandboxHookResponse()}, delay=60)
        async with proxied() as stack, stack.hook_server("h", server, []):
            client = HookClient(patience.seconds(5))
            registered = RegisteredServer("h.json", str(stack.directory / "h.sock"), ("PreRunPodSandbox",))

            def called() -> asyncio.Task[object]:
                return asyncio.create_task(client.call(registered, "PreRunPodSandbox", hook.PodSandboxHookRequest(), None))

            given_up = called()
            await until(lambda: len(server.asked) == 1)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            closed = called()
            await until(lambda: len(server.asked) == 2)
            await client._channels[registered.endpoint].close()
            with pytest.raises(HookError, match=r"h\.json at .*: the connection was closed"):
                await closed
            await client.close()

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_post_hooks_of_a_pod_are_told_one_after_the_other(policy: str) -> None:
    """The answer passes as it comes, so that nobody waits for them, whatever the policy."""
    order: list[tuple[str, str]] = []

    class Slow(HookServer):
        def handler(self, path: str) -> Any:
            answer = super().handler(path).unary_unary

            async def handle(raw: bytes, context: Any) -> bytes:
                order.append(("asked", name := path.removeprefix(HOOKS)))
                found: bytes = await answer(raw, context)
                order.append(("answered", name))
                return found

            return grpc.unary_unary_rpc_method_handler(handle)

    async def scenario() -> None:
        nothing = hook.ContainerResourceHookResponse()
        server = Slow(answers={"PostStartContainerHook": nothing, "PostStopContainerHook": nothing}, delay=0.2)
        async with proxied() as stack, stack.hook_server("h", server, ["PostStartContainer", "PostStopContainer"], policy):
            await stack.call("RunPodSandbox", run_pod())
            await stack.call("CreateContainer", create())
            await stack.call("StartContainer", cri.StartContainerRequest(container_id="ct-main"))
            await stack.call("StopContainer", cri.StopContainerRequest(container_id="ct-main"))
            await until(lambda: len(order) == 4)
            assert order == [(what, name) for name in server.answers for what in ("asked", "answered")]

    asyncio.run(scenario())


@pytest.mark.feature("RP-HOOK-01")
@pytest.mark.parametrize("name", ["a b%20c.sock", "what?.sock", "n#1.sock", "ü.sock", "a:b;c.sock"])
def test_a_socket_is_found_whatever_its_name(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handlers(answer_pod().handler),))
        server.add_insecure_port(f"unix:{tmp_path}/made.sock")
        await server.start()
        (tmp_path / "made.sock").rename(tmp_path / name)
        client = HookClient(5.0)
        registered = RegisteredServer("h.json", str(tmp_path / name), ("PreRunPodSandbox",), "Fail")
        answer = await client.call(registered, "PreRunPodSandbox", hook.PodSandboxHookRequest(), None)
        assert answer == hook.PodSandboxHookResponse()
        engine = EngineClient(str(tmp_path / name))
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await engine.ask("Version", cri.VersionRequest(), timeout=5)
        assert found.value.code() is not grpc.StatusCode.UNAVAILABLE, "it was not reached"
        await engine.close()
        await client.close()
        await server.stop(0)

    asyncio.run(scenario())
