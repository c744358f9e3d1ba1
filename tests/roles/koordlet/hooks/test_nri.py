"""The NRI plugin through the whole agent: a runtime's requests in, adjustments and files out (KA-RH-02)."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import EVENTS
from koord.protocols import nri_pb2 as nri
from roles.koordlet.nri.frames import MAX_FRAME, PLUGIN_STREAM, RUNTIME_STREAM, Decoder, FrameError, Message, Type, encode
from roles.koordlet.nri.plugin import EVENTS as NRI_EVENTS
from roles.koordlet.nri.plugin import event_mask
from roles.koordlet.nri.runner import pause_after
from roles.koordlet.options import Options
from tests.support import patience
from tests.support.koordlet import Cluster, agent, run, until
from tests.support.nri import PluginRefused, Runtime

BATCH = "node.koordinator.sh/extended-resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
DEVICES = "scheduling.koordinator.sh/device-allocated"


def sandbox(name: str, *, qos: str = "BE", annotations: dict[str, str] | None = None, uid: str = "") -> nri.PodSandbox:
    pod = nri.PodSandbox(id=f"s-{name}", name=name, uid=uid or f"uid-{name}", namespace="default", annotations=annotations or {})
    if qos:
        pod.labels["koordinator.sh/qosClass"] = qos
    tier = "besteffort" if qos == "BE" else "burstable"
    pod.linux.cgroup_parent = f"/kubepods.slice/kubepods-{tier}.slice/kubepods-{tier}-pod{pod.uid.replace('-', '_')}.slice"
    return pod


def container(name: str = "main", *, pod: str = "", quota: int = 0, state: int = nri.CONTAINER_RUNNING) -> nri.Container:
    made = nri.Container(id=f"c-{pod or name}", name=name, pod_sandbox_id=f"s-{pod}", env=["A=1", "B=x=y"], state=state)
    if quota:
        made.linux.resources.cpu.quota.value = quota
    return made


def batch(cpu: int, memory: int) -> dict[str, str]:
    wanted = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
    return {BATCH: json.dumps({"containers": {"main": {"requests": wanted, "limits": wanted}}})}


def nri_options(c: Cluster, **options: Any) -> dict[str, Any]:
    return {"runtime_hooks_nri_backoff_duration": 0.05, "runtime_hooks_nri_connect_timeout": 0.2, **options}


def socket_of(c: Cluster) -> Any:
    return c.base / "var/run/nri/nri.sock"


@pytest.mark.feature("KA-RH-02")
@pytest.mark.feature("KA-HK-06")
def test_containers_are_adjusted_and_pods_written(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        gates = ("BatchResource", "CPUSetAllocator", "GPUEnvInject", "HamiCoreVGPUMonitor")
        library = "/usr/local/vgpu/libvgpu.so"
        stale = c.base / "usr/local/vgpu/containers/uid-gpu_main/stale"
        stale.parent.mkdir(parents=True)
        stale.write_text("")
        async with Runtime(socket_of(c)) as runtime, agent(c, *gates, **nri_options(c)) as app:
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            assert (runtime.registered[0].plugin_name, runtime.registered[0].plugin_idx) == ("koordlet_nri", "00")
            answer = await runtime.call("Configure", nri.ConfigureRequest(runtime_name="t", runtime_version="1"))
            assert answer.events == 0b10001101, "run and remove pods, create and update containers"

            # a pod's own files
            pod = sandbox("batch", annotations=batch(2000, 1 << 30))
            directory = pod.linux.cgroup_parent.strip("/")
            c.directory(directory)
            c.cgroup("memory", directory, "memory.limit_in_bytes", "9223372036854771712")
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=pod))
            assert c.read("cpu", directory, "cpu.cfs_quota_us") == "200000"
            assert c.read("memory", directory, "memory.limit_in_bytes") == str(1 << 30)

            # a container that is created
            adjust = (await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=pod, container=container()))).adjust
            cpu, memory = adjust.linux.resources.cpu, adjust.linux.resources.memory
            assert (cpu.shares.value, cpu.quota.value, cpu.cpus, memory.limit.value) == (2048, 200_000, "", 1 << 30)

            # one that is updated: with its id
            bound = sandbox("bound", qos="LSR", annotations={STATUS: json.dumps({"cpuset": "2-3"})})
            request = nri.UpdateContainerRequest(pod=bound, container=container(pod="bound"), linux_resources=nri.LinuxResources())
            request.linux_resources.cpu.shares.value = 2048
            (update,) = (await runtime.call("UpdateContainer", request)).update
            assert (update.container_id, update.linux.resources.cpu.cpus, update.linux.resources.cpu.quota.value) == ("c-bound", "2-3", -1)

            # one that nothing is wanted of: no adjustment, no update
            plain = nri.PodSandbox(id="s", name="plain", uid="u", namespace="default")
            plain.linux.cgroup_parent = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu.slice"
            assert not (await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=plain, container=container()))).HasField(
                "adjust"
            )
            assert not (await runtime.call("UpdateContainer", nri.UpdateContainerRequest(pod=plain, container=container()))).update

            # environment and mounts of a shared GPU
            resources = {"koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": "8Gi", "koordinator.sh/gpu-core": "30"}
            gpu = sandbox("gpu", qos="LS", annotations={DEVICES: json.dumps({"gpu": [{"minor": 3, "resources": resources}]})})
            gpu.labels["koordinator.sh/gpu-isolation-provider"] = "HAMi-core"
            adjust = (await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=gpu, container=container()))).adjust
            env = {e.key: e.value for e in adjust.env}
            assert env == {
                "NVIDIA_VISIBLE_DEVICES": "3",
                "CUDA_DEVICE_MEMORY_LIMIT": str(8 << 30),
                "CUDA_DEVICE_SM_LIMIT": "30",
                "LD_PRELOAD": library,
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/uid-gpu_main.cache",
            }
            mounts = [(m.source, m.destination, m.type, list(m.options)) for m in adjust.mounts]
            assert mounts == [
                (library, library, "bind", ["rbind"]),
                ("/tmp/vgpulock", "/tmp/vgpulock", "bind", ["rbind"]),
                ("/usr/local/vgpu/containers/uid-gpu_main", "/usr/local/vgpu", "bind", ["rbind"]),
            ]
            assert stale.parent.is_dir()
            assert not stale.exists(), "made anew"
            assert stale.parent.stat().st_mode & 0o777 == 0o777

            # a directory that cannot be made fails no container under the failure policy Ignore
            shutil.rmtree(c.base / "usr/local/vgpu")
            (c.base / "usr/local/vgpu").write_text("")
            adjust = (await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=gpu, container=container()))).adjust
            assert {e.key: e.value for e in adjust.env} == env
            assert [m.source for m in adjust.mounts] == [library, "/tmp/vgpulock"]

            # the record of an answer
            assert any(r.verdict == "Answered" and r.rule == "BatchResource" for r in app.recorder.ring.find("Pod", "default", "batch"))

            # what is not offered, and what is no message
            with pytest.raises(PluginRefused, match="NoSuch"):
                await runtime.call("NoSuch", nri.Empty())
            with pytest.raises(PluginRefused, match="not offered"):
                await runtime.call("Configure", nri.Empty(), service="other")
            await runtime.call("Shutdown", nri.Empty())

    run(tmp_path, story)


@pytest.mark.feature("KA-RH-02")
def test_containers_from_before_are_adjusted_at_connect_and_after_a_loss(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        async with agent(c, "BatchResource", **nri_options(c)):
            pod = sandbox("old", annotations=batch(500, 1 << 20))
            first = nri.SynchronizeRequest(pods=[pod], containers=[container(pod="old")], more=True)
            stopped = container(pod="old", state=nri.CONTAINER_STOPPED)
            last = nri.SynchronizeRequest(containers=[stopped, container("alone", pod="gone")])
            async with Runtime(socket_of(c), refuse="no plugins today") as runtime:
                # the socket appears after the agent: it is looked for again
                await asyncio.wait_for(runtime.connected.wait(), patience.seconds(45))
                runtime.refuse = ""
                await until(lambda: len(runtime.registered) > 1 and runtime.connected.is_set(), "a new registration after the refusal")
                for _ in range(2):
                    assert (await runtime.call("Synchronize", first)).more
                    answer = await runtime.call("Synchronize", last)
                    (update,) = answer.update
                    assert (update.container_id, update.linux.resources.cpu.quota.value, update.ignore_failure) == ("c-old", 50_000, True)
                    before = len(runtime.registered)
                    runtime.drop()
                    await until(lambda before=before: len(runtime.registered) > before and runtime.connected.is_set(), "a new connection")

    run(tmp_path, story)


@pytest.mark.feature("KA-HK-02")
@pytest.mark.feature("KA-SUP-03")
def test_a_container_on_the_suppressed_level_is_made_with_the_cpus_of_its_pod(tmp_path) -> None:
    """cgroup v1 refuses others; a pod without requests lies on that level whatever its label says."""

    async def story(c: Cluster) -> None:
        await c.node({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 65}})
        c.use["node"] = 8.0
        web = await c.pod("web", qos="LS", kube_qos="BestEffort")
        directory, _ = c.dirs(web)
        gates = ("BECPUSuppress", "CPUSetAllocator", "NodeTopologyReport")
        async with Runtime(socket_of(c)) as runtime, agent(c, *gates, **nri_options(c)) as app:
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            asking = app.acting.hooks.asking
            await until(lambda: getattr(asking.rule(asking.hooks[0]), "shared", None), "share pools")
            await until(lambda: c.read("cpuset", directory, "cpuset.cpus") != "0-15", "suppression")
            pod = sandbox("web", qos="LS", uid=web["metadata"]["uid"])
            pod.linux.cgroup_parent = f"/{directory}"

            async def made_with_its_pods() -> bool:
                request = nri.CreateContainerRequest(pod=pod, container=container(pod="web"))
                answer = await runtime.call("CreateContainer", request)
                return not answer.adjust.linux.resources.cpu.cpus

            await until(made_with_its_pods, "a container without CPUs of its own")

    run(tmp_path, story)


@pytest.mark.feature("KA-RH-02")
def test_stages_that_are_off_and_hooks_that_fail(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        options = nri_options(c, runtime_hooks_disable_stages="PreUpdateContainerResources", runtime_hooks_plugin_failure_policy="Fail")
        async with Runtime(socket_of(c)) as runtime, agent(c, "BatchResource", "CPUSetAllocator", **options):
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            pod = sandbox("p", annotations=batch(500, 1 << 20))
            assert not (await runtime.call("UpdateContainer", nri.UpdateContainerRequest(pod=pod, container=container()))).update
            bad = sandbox("bad", annotations={STATUS: "["})
            with pytest.raises(PluginRefused, match="CPUSetAllocator"):
                await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=bad, container=container()))
            with pytest.raises(PluginRefused, match="events Nonsense"):
                await runtime.call("Configure", nri.ConfigureRequest(config="CreateContainer,Nonsense"))
            answer = await runtime.call("Configure", nri.ConfigureRequest(config="createcontainer"))
            assert answer.events == 1 << NRI_EVENTS.index("CreateContainer")

    run(tmp_path, story)


@pytest.mark.feature("KA-RH-02")
@pytest.mark.feature("KA-RDT-02")
def test_a_pods_resctrl_group_comes_and_goes_with_it(tmp_path) -> None:
    async def story(c: Cluster) -> None:
        has_resctrl(c)
        await c.node({})
        config = RESCTRL
        listed = await c.pod("rdt", qos="LS", kube_qos="Burstable", annotations=config)
        uid = listed["metadata"]["uid"]
        async with Runtime(socket_of(c)) as runtime, agent(c, "Resctrl", **nri_options(c)):
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            pod = sandbox("rdt", qos="LS", annotations=config, uid=uid)
            group = c.base / f"sys/fs/resctrl/koordlet-{uid}"
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=pod))
            await until(group.is_dir, "the group")
            adjust = (await runtime.call("CreateContainer", nri.CreateContainerRequest(pod=pod, container=container()))).adjust
            assert adjust.linux.resources.rdt_class.value == f"koordlet-{uid}"

            async def told() -> bool:
                return any(e["reason"] == "Create Resctrl Group" for e in (await c.client.list(EVENTS, "default")).items)

            await until(told, "the event")
            other = sandbox("other", qos="LS", annotations=config)
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=other))
            own = c.base / f"sys/fs/resctrl/koordlet-{other.uid}"
            assert own.is_dir()
            await runtime.call("RemovePodSandbox", nri.PodSandboxRequest(pod=other))
            assert not own.exists()

            async def removed() -> bool:
                return any(e["reason"] == "Remove Resctrl Group" for e in (await c.client.list(EVENTS, "default")).items)

            await until(removed, "the other event")

    run(tmp_path, story)


RESCTRL = {"node.koordinator.sh/resctrl": json.dumps({"llc": {"schemata": {"range": [0, 50]}}})}


def has_resctrl(c: Cluster) -> None:
    c.file("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu cat_l3 mba\n")
    c.file("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
    c.file("sys/fs/resctrl/schemata", "L3:0=fff\nMB:0=100\n")


@pytest.mark.feature("KA-RDT-02")
def test_no_container_is_sent_into_a_resctrl_group_that_could_not_be_made(tmp_path, caplog) -> None:
    async def story(c: Cluster) -> None:
        has_resctrl(c)
        c.file("sys/fs/resctrl/info/L3/num_closids", "1\n")
        await c.node({})
        async with Runtime(socket_of(c)) as runtime, agent(c, "Resctrl", **nri_options(c)):
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            pod = sandbox("full", qos="LS", annotations=RESCTRL)
            group = c.base / f"sys/fs/resctrl/koordlet-{pod.uid}"
            create = nri.CreateContainerRequest(pod=pod, container=container())
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=pod))
            assert not group.exists(), "the hardware has no more"
            for _ in range(2):
                answer = await runtime.call("CreateContainer", create)
                assert not answer.adjust.linux.resources.HasField("rdt_class"), "the runtime would refuse to start it"
            assert caplog.text.count("is not made (yet)") == 1
            group.mkdir()
            answer = await runtime.call("CreateContainer", create)
            assert answer.adjust.linux.resources.rdt_class.value == f"koordlet-{pod.uid}"

    run(tmp_path, story)


@pytest.mark.feature("KA-RDT-02")
def test_the_group_of_a_pod_that_lives_outlasts_an_earlier_sandbox(tmp_path) -> None:
    """The kubelet removes the sandboxes of a pod's earlier attempts long after it made the next one."""

    async def story(c: Cluster) -> None:
        has_resctrl(c)
        await c.node({})
        listed = await c.pod("rdt", qos="LS", kube_qos="Burstable", annotations=RESCTRL)
        async with Runtime(socket_of(c)) as runtime, agent(c, "Resctrl", **nri_options(c)):
            await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))
            pod = sandbox("rdt", qos="LS", annotations=RESCTRL, uid=listed["metadata"]["uid"])
            group = c.base / f"sys/fs/resctrl/koordlet-{pod.uid}"
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=pod))
            await until(group.is_dir, "the group")
            inode = group.stat().st_ino
            await runtime.call("RemovePodSandbox", nri.PodSandboxRequest(pod=pod))
            assert group.stat().st_ino == inode
            unlisted = sandbox("new", qos="LS", annotations=RESCTRL)
            own = c.base / f"sys/fs/resctrl/koordlet-{unlisted.uid}"
            await runtime.call("RunPodSandbox", nri.PodSandboxRequest(pod=unlisted))
            (own / "tasks").write_text("4711\n")
            await runtime.call("RemovePodSandbox", nri.PodSandboxRequest(pod=unlisted))
            assert own.is_dir(), "somebody is in it: the kubelet is about to list the pod"
            (own / "tasks").write_text("")
            await runtime.call("RemovePodSandbox", nri.PodSandboxRequest(pod=unlisted))
            assert not own.exists()

    run(tmp_path, story)


@pytest.mark.feature("KA-RH-02")
def test_a_runtime_that_starts_again_is_found_however_long_the_pause_has_grown(tmp_path, caplog) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        path = socket_of(c)
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        async with agent(c, "BatchResource", **nri_options(c, runtime_hooks_nri_backoff_duration=3600.0)):
            await until(lambda: "it is tried again" in caplog.text, "the first attempt")
            path.unlink()
            async with Runtime(path) as runtime:
                await asyncio.wait_for(runtime.connected.wait(), patience.seconds(15))

    run(tmp_path, story)


class TestFrames:
    messages = st.lists(
        st.tuples(st.sampled_from([PLUGIN_STREAM, RUNTIME_STREAM]), st.integers(1, 99), st.binary(max_size=3 * MAX_FRAME)), max_size=5
    )

    @given(messages, st.lists(st.integers(1, 9000), max_size=12))
    def test_property_what_is_sent_arrives_however_it_is_cut(self, sent, cuts) -> None:
        data = b"".join(encode(stream, Message(call, Type.REQUEST, body)) for stream, call, body in sent)
        decoder, found, at = Decoder(), [], 0
        for cut in [*cuts, len(data)]:
            found += decoder.feed(data[at : at + cut])
            at += cut
        found += decoder.feed(data[at:])
        for stream in (PLUGIN_STREAM, RUNTIME_STREAM):
            wanted = [(call, body) for own, call, body in sent if own == stream]
            assert [(m.call, m.body) for own, m in found if own == stream] == wanted

    @given(st.binary(max_size=200))
    def test_fuzz_any_bytes_are_messages_or_one_error(self, data) -> None:
        try:
            Decoder().feed(data)
        except FrameError as error:
            problem = str(error)
        else:
            problem = "longer"
        assert "longer" in problem

    def test_no_frame_is_longer_than_the_peers_buffer(self) -> None:
        data = encode(PLUGIN_STREAM, Message(1, Type.RESPONSE, b"x" * 10_000))
        assert int.from_bytes(data[4:8], "big") == MAX_FRAME
        with pytest.raises(FrameError):
            encode(PLUGIN_STREAM, Message(1, Type.RESPONSE, bytes((4 << 20) + 1)))


def test_events_and_pauses() -> None:
    assert event_mask("") == event_mask("RunPodSandbox, RemovePodSandbox,CreateContainer,UpdateContainer")
    with pytest.raises(ValueError, match="accepted are RunPodSandbox"):
        event_mask("Sleep")
    options = Options(runtime_hooks_nri_backoff_cap=5.0)
    assert [pause_after(n, options) for n in (1, 2, 3, 4, 500)] == [1, 2, 4, 5, 5]
