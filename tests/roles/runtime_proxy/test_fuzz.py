"""Cut, mutated and random messages from kubelet, the engine and hook servers: one engine call or one clear error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook
from roles.runtime_proxy.docker import http1
from roles.runtime_proxy.docker.interceptor import DockerInterceptor, Reply
from roles.runtime_proxy.docker.target import route
from roles.runtime_proxy.hookclient import decode_answer
from roles.runtime_proxy.hooktypes import HOOK_METHODS
from roles.runtime_proxy.interceptor import Engine, Interceptor
from roles.runtime_proxy.recovery import complete_container, complete_pod
from roles.runtime_proxy.registration import HookServer, RegistrationError, parse_registration
from roles.runtime_proxy.stages import HookRefusal, HookRules, Stages
from roles.runtime_proxy.store import Store
from tests.roles.runtime_proxy.support import create, run_pod
from tests.roles.runtime_proxy.support_docker import container, sandbox

ROUNDS = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 30_000
UNKNOWN = bytes.fromhex("b83e07")  # field 999
HOOKS = tuple(HOOK_METHODS)


def requests() -> list[tuple[str, bytes]]:
    update = cri.UpdateContainerResourcesRequest(container_id="c", linux=cri.LinuxContainerResources(cpu_quota=-1, cpuset_cpus="0"))
    return [
        ("RunPodSandbox", run_pod(l="1").SerializeToString()),
        ("CreateContainer", create(sandbox="s", cpu_shares=3, memory_limit_in_bytes=1 << 30).SerializeToString()),
        ("StartContainer", cri.StartContainerRequest(container_id="c").SerializeToString()),
        ("UpdateContainerResources", update.SerializeToString()),
        ("StopContainer", cri.StopContainerRequest(container_id="c").SerializeToString()),
        ("RemoveContainer", cri.RemoveContainerRequest(container_id="c").SerializeToString()),
        ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="s").SerializeToString()),
        ("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id="s").SerializeToString()),
    ]


def answers() -> list[bytes]:
    pod = hook.PodSandboxHookResponse(labels={"l": "2"}, annotations={"a": "2"}, cgroup_parent="/p")
    ct = hook.ContainerResourceHookResponse(container_annotations={"n": "1"}, container_envs={"A": "x", "Z": "9"}, pod_cgroup_parent="/q")
    ct.container_resources.cpu_quota, ct.container_resources.oom_score_adj = -1, 5000
    ct.container_resources.unified["memory.low"] = "1"
    return [pod.SerializeToString(), ct.SerializeToString(), b""]


def spoil(rng: random.Random, raw: bytes) -> bytes:
    """Cut, flip, insert, repeat, or leave alone."""
    found = bytearray(raw)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0:
                del found[at:]
            case 1 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                found[at:at] = found[at : at + 16]
            case 4 if at < len(found):
                found[at] = rng.choice((0x00, 0x7F, 0x80, 0xFF))
    return bytes(found)


class Hooks:
    """A hook server whose answers are decoded as the real client decodes them."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def call(self, server: HookServer, hook_type: str, request: Any, deadline: float | None) -> Any:
        request.SerializeToString()  # what is asked can always be sent
        return decode_answer(hook_type, self.answer())


def interceptor(hooks: Hooks, policy: str = "Ignore") -> Stages:
    servers = (HookServer("h.json", "/h.sock", HOOKS, policy),)
    return Stages(hooks, lambda: servers, HookRules("skip", "true", ("*",)), lambda *_: None)


async def one_call(found: Interceptor, method: str, raw: bytes, response: bytes) -> list[bytes]:
    """Drive one call; what the engine got."""
    sent: list[bytes] = []

    async def forward(request: bytes) -> bytes:
        sent.append(request)
        return response

    async def status(_: str) -> None:
        return None

    try:
        assert await found.handlers[method](raw, Engine(forward, status), None) == response
    except (DecodeError, HookRefusal):
        assert not sent
        return []
    assert len(sent) == 1
    return sent


@pytest.mark.feature("RP-CRI-04")
@pytest.mark.feature("RP-REG-03")
def test_fuzz_of_requests_answers_and_hook_answers() -> None:
    async def scenario() -> None:
        rng = random.Random(20240601)
        calls, hook_answers = requests(), answers()
        responses = [cri.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString(), b"\x0a\x01c", b""]
        fails = [interceptor(Hooks(lambda: spoil(rng, rng.choice(hook_answers))), policy) for policy in ("Ignore", "Fail")]
        reached = 0
        for n in range(ROUNDS):
            if n % 100 == 0:
                subject = Interceptor(fails[n // 100 % 2])
                await one_call(subject, "RunPodSandbox", calls[0][1], responses[0])
                await one_call(subject, "CreateContainer", calls[1][1], b"\x0a\x01c")
            method, raw = rng.choice(calls)
            raw = spoil(rng, raw)
            kind = {"RunPodSandbox": cri.RunPodSandboxRequest, "CreateContainer": cri.CreateContainerRequest}.get(method)
            for sent in await one_call(subject, method, raw, spoil(rng, rng.choice(responses))):
                reached += 1
                if kind is not None:
                    kind.FromString(sent)  # what reaches the engine can be read by it
        assert reached > ROUNDS // 3

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-04")
def test_fuzz_without_an_answer_keeps_every_byte() -> None:
    async def scenario() -> None:
        rng = random.Random(7)
        calls = requests()
        quiet = Stages(Hooks(lambda: b"\xff"), lambda: (HookServer("h", "/h", HOOKS, "Ignore"),), HookRules(), lambda *_: None)
        subject = Interceptor(quiet)
        for _ in range(ROUNDS // 6):
            method, raw = rng.choice(calls)
            raw = spoil(rng, raw) + UNKNOWN
            for sent in await one_call(subject, method, raw, b""):
                assert sent == raw

    asyncio.run(scenario())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=8) | st.just("A=1"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("Labels", "Env", "HostConfig", "Memory", "a")), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.mark.feature("RP-DKR-02")
@given(data=st.data())
def test_property_docker_bodies_of_any_shape_reach_the_engine_once(data: st.DataObject) -> None:
    async def scenario() -> None:
        answer = data.draw(st.sampled_from(answers()))
        subject = DockerInterceptor(interceptor(Hooks(lambda: answer)), nobody)
        subject.driver = "systemd"
        sent: list[bytes] = []

        async def forward(raw: bytes) -> Reply:
            sent.append(raw)
            return Reply(201, b'{"Id":"s"}')

        for target, document in (sandbox(), container("s"), ("/containers/s/update", {}), ("/containers/s/stop", {})):
            for key in data.draw(st.lists(st.sampled_from(("Labels", "HostConfig", "Env", "Memory", "Extra")), max_size=2)):
                document[key] = data.draw(JSON)
            raw = json.dumps(document).encode()
            before = len(sent)
            reply = await subject.handle(route(target), raw, forward)  # type: ignore[arg-type]
            assert len(sent) - before == (1 if reply.status == 201 else 0)
            if "Extra" in document and reply.status == 201:
                assert json.loads(sent[-1])["Extra"] == document["Extra"]

    asyncio.run(scenario())


async def nobody(_: str) -> None:
    return None


@pytest.mark.feature("RP-DKR-01")
@given(st.binary(max_size=200), st.sampled_from((b"POST / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"")))
def test_property_http_heads_are_read_or_refused(noise: bytes, first: bytes) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(first + noise + b"\r\n\r\n")
        reader.feed_eof()
        with contextlib.suppress(http1.ProtocolError):
            source = http1.Source(reader)
            head = await source.head()
            assert head is not None
            framing = http1.request_framing(head)
            assert framing >= http1.CHUNKED
            await http1.read_body(source, framing, 1000)

    asyncio.run(scenario())


@pytest.mark.feature("RP-REG-01")
@given(st.binary(max_size=60) | JSON.map(lambda document: json.dumps(document).encode()))
def test_property_registrations_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(RegistrationError):
        assert parse_registration("h.json", content).endpoint


@pytest.mark.feature("RP-STO-02")
def test_fuzz_of_what_an_engine_tells_at_start() -> None:
    rng = random.Random(11)
    spec = {
        "config": {
            "envs": [{"key": "A", "value": "1"}, 3],
            "linux": {"resources": {"cpu_quota": 5, "unified": {"a": "b"}}, "cgroup_parent": "/p"},
        }
    }
    spec["runtimeSpec"] = {
        "linux": {"resources": {"cpu": {"quota": -1, "cpus": "0"}, "memory": {"limit": 1 << 70}}},
        "process": {"oomScoreAdj": "x"},
    }
    info = {"info": json.dumps(spec)}
    container_raw = cri.ContainerStatusResponse(status=cri.ContainerStatus(id="c"), info=info).SerializeToString()
    pod_raw = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="s"), info=info).SerializeToString()
    pods = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="s", labels={"a": "b"})]).SerializeToString()
    listed = cri.ListContainersResponse(containers=[cri.Container(id="c", pod_sandbox_id="s")]).SerializeToString()
    for n in range(ROUNDS // 6):
        store = Store()
        with contextlib.suppress(DecodeError):
            store.rebuild(
                cri.ListPodSandboxResponse.FromString(spoil(rng, pods) if n else pods),
                cri.ListContainersResponse.FromString(spoil(rng, listed) if n else listed),
                frozenset(),
            )
        for pod in store.pods.values():
            with contextlib.suppress(DecodeError):
                complete_pod(pod, cri.PodSandboxStatusResponse.FromString(spoil(rng, pod_raw) if n else pod_raw))
        for record in store.containers.values():
            with contextlib.suppress(DecodeError):
                complete_container(record, cri.ContainerStatusResponse.FromString(spoil(rng, container_raw) if n else container_raw))
            if n == 0:
                assert (record.container_resources.cpu_quota, record.container_resources.cpuset_cpus) == (-1, "0")
                assert (record.container_resources.memory_limit_in_bytes, record.container_envs["A"]) == (0, "1")
