"""Claims of published devices, as the kubelet has them prepared, through the whole agent (KA-DRA-01)."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.api.kinds import DEVICES, RESOURCECLAIMS
from koord.process.unixsocket import target
from koord.protocols import dra_pb2 as pb
from koord.protocols import pluginregistration_pb2 as registration
from roles.koordlet.actuation.restore import restore
from roles.koordlet.claims import cdi
from roles.koordlet.claims.plugin import SERVICES
from roles.koordlet.host.root import HostRoot
from tests.support.claims import alternative, claim, request
from tests.support.koordlet import Cluster, agent, run, until
from tests.support.pipes import pipe_at

pytestmark = pytest.mark.feature("KA-DRA-01")
Obj = dict[str, Any]
V1, V1BETA1 = SERVICES.values()


class Kubelet:
    """The kubelet's end of the plugin's socket."""

    def __init__(self, c: Cluster) -> None:
        self.c = c
        self.socket = c.base / "var/lib/kubelet/plugins_registry/koordinator.sh-reg.sock"
        self.socket.parent.mkdir(parents=True)

    async def ask(self, method: str, request: Any, answer: Any) -> Any:
        await until(self.socket.is_socket, "the socket")
        async with grpc.aio.insecure_channel(target(str(self.socket)), options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            body = await channel.unary_unary(f"/{method}")(request.SerializeToString(), timeout=20, wait_for_ready=True)
        return answer.FromString(body)

    async def prepare(self, *claims: Obj, service: str = V1) -> dict[str, Any]:
        """Answers by the names of claims."""
        named = {one["metadata"]["uid"]: one["metadata"]["name"] for one in claims}
        asked = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=name) for uid, name in named.items()])
        found = await self.ask(f"{service}/NodePrepareResources", asked, pb.NodePrepareResourcesResponse)
        return {named[uid]: one for uid, one in found.claims.items()}

    async def error(self, one: Obj) -> str:
        found = (await self.prepare(one))[one["metadata"]["name"]]
        assert not found.devices
        return str(found.error)

    async def allocated(self, name: str, *results: tuple[str, str], pool: str = "n1", driver: str = "koordinator.sh") -> Obj:
        """A claim that the scheduler has allocated: requests and their devices."""
        asked = []
        for text in dict.fromkeys(text for text, _ in results):
            whole, _, part = text.partition("/")
            asked.append({"name": whole, "firstAvailable": [alternative(part, count=8)]} if part else request(whole, count=8))
        made: Obj = await self.c.client.create(RESOURCECLAIMS, claim(name, *asked), "default")
        rows = [{"request": text, "driver": driver, "pool": pool, "device": device} for text, device in results]
        status = {"status": {"allocation": {"devices": {"results": rows}}}}
        await self.c.client.patch(RESOURCECLAIMS, name, status, "default", subresource="status")
        return made


def card(kind: str, minor: int, name: str, address: str) -> Obj:
    topology = {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:00", "busID": address}
    return {"type": kind, "minor": minor, "id": name, "health": True, "topology": topology}


async def node(c: Cluster, *devices: Obj) -> None:
    await c.node({})
    meta = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": {"name": "n1"}}
    await c.client.create(DEVICES, {**meta, "spec": {"devices": list(devices)}})


def described(c: Cluster, path: str, kind: str, *names: str) -> None:
    """A file of a vendor's tool; JSON is YAML."""
    c.file(path, json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": name, "containerEdits": {}} for name in names]}))


def verbs(c: Cluster, address: str, name: str) -> None:
    (c.base / f"sys/bus/pci/devices/{address}/infiniband_verbs/{name}").mkdir(parents=True)


def own(c: Cluster) -> Path:
    return c.base / "var/run/cdi/koordinator.sh-device.json"


def lived(story: Any, prefix: str = "kl-") -> None:
    with tempfile.TemporaryDirectory(prefix=prefix) as short:  # a socket's path is limited to 107 bytes
        run(Path(short), story)


GPU0, GPU1 = card("gpu", 0, "GPU-a", "0000:01:00.0"), card("gpu", 1, "GPU-b", "0000:02:00.0")
NIC = card("rdma", 0, "0000:18:00.0", "0000:18:00.0")


def shown(answer: Any) -> list[tuple[Any, ...]]:
    assert not answer.error, answer.error
    return [(*one.request_names, one.pool_name, one.device_name, *one.cdi_device_ids) for one in answer.devices]


def test_names_in_files_of_vendors_mean_what_they_mean_to_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "mig.yaml").write_text("kind: v.io/gpu\ndevices: [{name: 1:10}]\n")
    assert cdi.read([str(tmp_path)], print) == {"1:10": "v.io/gpu=1:10"}


def test_a_pipe_among_files_of_vendors_holds_up_nothing(tmp_path: Path) -> None:
    with pipe_at(tmp_path / "odd.json", b'{"kind": "v.io/gpu", "devices": [{"name": "0"}]}'):
        (tmp_path / "lost.json").symlink_to(tmp_path / "absent")
        told = list[str]()
        assert cdi.read([str(tmp_path)], told.append) == {}
        assert [text.split(" is no CDI specification")[0] for text in told] == [f"{tmp_path}/lost.json", f"{tmp_path}/odd.json"]


def test_files_of_vendors_are_read_once_a_request_and_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = list[threading.Thread]()
    read = cdi.read

    def noted(*arguments: Any) -> dict[str, str]:
        readers.append(threading.current_thread())
        return read(*arguments)

    async def story(c: Cluster) -> None:
        await node(c, GPU0, GPU1)
        described(c, "etc/cdi/nvidia.yaml", "nvidia.com/gpu", "GPU-a", "GPU-b")
        kubelet = Kubelet(c)
        one, other = await kubelet.allocated("one", ("gpu", "gpu-0")), await kubelet.allocated("other", ("gpu", "gpu-1"))
        async with agent(c, "DRAPlugin"):
            found = await kubelet.prepare(one, other)
            assert shown(found["one"]) + shown(found["other"]) == [
                ("gpu", "n1", "gpu-0", "nvidia.com/gpu=GPU-a"),
                ("gpu", "n1", "gpu-1", "nvidia.com/gpu=GPU-b"),
            ]
            assert len(readers) == 1
            assert readers[0] is not threading.main_thread()

    monkeypatch.setattr(cdi, "read", noted)
    lived(story)


def test_devices_have_the_names_that_the_runtime_knows() -> None:
    async def story(c: Cluster) -> None:
        await node(c, GPU0, GPU1, NIC)
        described(c, "etc/cdi/nvidia.yaml", "nvidia.com/gpu", "0", "GPU-a", "all")
        described(c, "var/run/cdi/plugin.json", "k8s.device-plugin.nvidia.com/gpu", "GPU-a", "0000:02:00.0")
        verbs(c, "0000:18:00.0", "uverbs3")
        kubelet = Kubelet(c)
        both = await kubelet.allocated("both", ("gpus/first", "gpu-0"), ("gpus/first", "gpu-1"))
        nic = await kubelet.allocated("nic", ("nic", "rdma-0"))
        async with agent(c, "DRAPlugin"):
            info = await kubelet.ask("pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo)
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "koordinator.sh", "")
            assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
            for service in (V1, V1BETA1):
                found = await kubelet.prepare(both, nic, service=service)
                assert shown(found["both"]) == [
                    ("gpus", "n1", "gpu-0", "nvidia.com/gpu=GPU-a"),
                    ("gpus", "n1", "gpu-1", "k8s.device-plugin.nvidia.com/gpu=0000:02:00.0"),
                ]
                assert shown(found["nic"]) == [("nic", "n1", "rdma-0", "koordinator.sh/device=rdma-0")]
            nodes = [{"path": "/dev/infiniband/rdma_cm"}, {"path": "/dev/infiniband/uverbs3"}]
            assert json.loads(own(c).read_text()) == {
                "cdiVersion": "0.3.0", "kind": "koordinator.sh/device",
                "devices": [{"name": "rdma-0", "containerEdits": {"deviceNodes": nodes}}],
            }  # fmt: skip
            asked = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(uid=uid) for uid in ("u1", "u2")])
            gone = await kubelet.ask(f"{V1}/NodeUnprepareResources", asked, pb.NodeUnprepareResourcesResponse)
            assert sorted(gone.claims) == ["u1", "u2"]
        assert not kubelet.socket.exists()

    lived(story)


def test_the_socket_is_where_the_kubelet_looks_whatever_its_name() -> None:
    async def story(c: Cluster) -> None:
        await node(c)
        kubelet = Kubelet(c)
        async with agent(c, "DRAPlugin"):
            info = await kubelet.ask("pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo)
            assert info.name == "koordinator.sh"
            assert [each.name for each in kubelet.socket.parent.iterdir()] == [kubelet.socket.name]

    lived(story, "kl%20")


@pytest.mark.parametrize("observes", [False, True])
def test_the_socket_of_a_run_that_was_killed_goes_with_the_gate(observes: bool) -> None:
    """It lies on a disk, and the kubelet asks it as long as it is there. Who only observes may be beside the one that serves it."""

    async def story(c: Cluster) -> None:
        await node(c)
        kubelet = Kubelet(c)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(kubelet.socket))
        async with agent(c, observe_only=observes) as app:
            await until(lambda: hasattr(app, "sensing") and app._ticked, "the agent works")
            assert kubelet.socket.exists() is observes

    lived(story)


def test_what_cannot_be_prepared_is_told_and_spoils_nothing_else() -> None:
    async def story(c: Cluster) -> None:
        await node(c, GPU0, NIC)
        described(c, "etc/cdi/acme.json", "acme.com/gpu", "GPU-a")
        for name, text in (("broken.yaml", "{"), ("list.json", "[]"), ("kindless.json", '{"devices": []}'), ("notes.txt", "{")):
            c.file(f"etc/cdi/{name}", text)
        kubelet = Kubelet(c)
        good = await kubelet.allocated("good", ("gpu", "gpu-0"))
        gone = await kubelet.allocated("gone", ("gpu", "gpu-7"))
        far = await kubelet.allocated("far", ("gpu", "gpu-0"), pool="n2")
        other = await kubelet.allocated("other", ("gpu", "gpu-0"), driver="other.example.com")
        nic = await kubelet.allocated("nic", ("nic", "rdma-0"))
        again = {"metadata": {"name": "good", "uid": "of-before"}}
        never = {"metadata": {"name": "never", "uid": "u"}}
        async with agent(c, "DRAPlugin"):
            found = await kubelet.prepare(gone, good, never)
            assert shown(found["good"]) == [("gpu", "n1", "gpu-0", "acme.com/gpu=GPU-a")]
            assert found["gone"].error == "device gpu-7 is not there: the Device object of the node has gpu-0, rdma-0"
            assert found["never"].error == "the API server has no such claim"
            assert await kubelet.error(far) == "device gpu-0 is of pool 'n2', this is node n1"
            assert "no device of driver koordinator.sh" in await kubelet.error(other)
            assert "made again" in await kubelet.error(again)
            assert "infiniband_verbs cannot be listed" in await kubelet.error(nic)
            assert not own(c).exists()
            (c.base / "etc/cdi/acme.json").unlink()
            assert "no CDI specification in /etc/cdi or /var/run/cdi has a device 'GPU-a' or '0000:01:00.0'" in await kubelet.error(good)
            verbs(c, "0000:18:00.0", "uverbs0")
            assert shown((await kubelet.prepare(nic))["nic"])
            await c.client.delete(DEVICES, "n1")

            async def lost() -> bool:
                return await kubelet.error(good) == "device gpu-0 is not there: the node has no Device object"

            await until(lost, "the node has no devices any more")

    lived(story)


def test_a_socket_that_is_taken_away_is_made_again() -> None:
    async def story(c: Cluster) -> None:
        await node(c, GPU0)
        kubelet = Kubelet(c)
        kubelet.socket.parent.rmdir()
        async with agent(c, "DRAPlugin"):
            await until((c.base / "var/run/koordlet").exists, "koordlet")
            kubelet.socket.parent.mkdir()
            kubelet.socket.write_text("left by a former life")
            for _ in range(2):
                await until(kubelet.socket.is_socket, "the socket")
                await kubelet.ask("pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo)
                kubelet.socket.unlink()
                kubelet.socket.write_text("somebody else's")

    lived(story)


def test_what_was_written_is_taken_back_with_koordlet() -> None:
    async def story(c: Cluster) -> None:
        await node(c, NIC)
        verbs(c, "0000:18:00.0", "uverbs0")
        kubelet = Kubelet(c)
        nic = await kubelet.allocated("nic", ("nic", "rdma-0"))
        async with agent(c, "DRAPlugin"):
            assert shown((await kubelet.prepare(nic))["nic"])
        assert own(c).exists(), "containers that go on need it"
        restore(HostRoot.at(str(c.base)))
        assert not own(c).parent.exists()

    lived(story)


def test_an_agent_that_only_observes_prepares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story(c: Cluster) -> None:
        await node(c, GPU0)
        kubelet = Kubelet(c)
        async with agent(c, "DRAPlugin", observe_only=True) as app:
            await until(lambda: hasattr(app, "pod_cache") and app.pod_cache.synced, "the agent works")
        assert not kubelet.socket.exists()
        assert "feature gate DRAPlugin is not available with --observe-only" in caplog.text

    lived(story)
