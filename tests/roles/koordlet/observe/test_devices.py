"""Accelerators from files and the Device object (KLO-DEV-03, KLO-DEV-04)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import DEVICES
from koord.kube.informers import InformerFactory
from roles.koordlet.report.device import partitions, reason_of
from roles.koordlet.report.device_loop import DeviceLoop
from roles.koordlet.sensing.rdma import RDMA
from roles.koordlet.sensing.xpu import XPU, P2PLink, XPUDevice, XPUTopology


def entry(minor: str, **fields: Any) -> dict[str, Any]:
    return {"vendor": "huawei", "model": "Ascend 910B", "uuid": f"npu-{minor}", "minor": minor, "resources": {"gpu-core": "100"}, **fields}


@pytest.fixture
def run(agent, kubelet, make_node, world):
    def start(story) -> None:
        async def main() -> None:
            async with world(agent, kubelet, make_node(), gates="Accelerators=true") as w:
                informers = InformerFactory(w.client)
                loop = DeviceLoop(client=w.client, informers=informers, state=w.state, store=w.agent.store, interval=3.0)
                informers.start()
                await informers.wait_synced()

                async def device(now: float = 1_700_000_000.0) -> dict[str, Any]:
                    w.agent.tick()
                    await loop.step(now)
                    made = await w.client.get(DEVICES, "n1")
                    version = made["metadata"]["resourceVersion"]
                    await w.until(lambda: (loop._informer.get("n1") or {"metadata": {}})["metadata"].get("resourceVersion") == version)
                    return made

                try:
                    await story(w, device)
                finally:
                    await informers.stop()

        asyncio.run(main())

    return start


def card(tree: Any, bus: str, name: str, *, number: int = 0, state: str = "4: ACTIVE", vfs: tuple[str, ...] = (), **files: str) -> None:
    """A network card as sysfs shows it: a link to its place below a PCI root."""
    place = f"sys/devices/pci0000:17/0000:17:01.0/{bus}"
    for file, text in {"class": "0x020000", "numa_node": str(number), **files}.items():
        tree.write(f"{place}/{file}", text + "\n")
    if name:
        tree.write(f"{place}/infiniband/{name}/node_type", "1: CA\n")
        tree.write(f"sys/class/infiniband/{name}/ports/1/state", state + "\n")
    if vfs:
        tree.write(f"{place}/sriov_numvfs", f"{len(vfs)}\n")
    devices = tree.root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / bus).symlink_to(tree.root / place)
    for i, function in enumerate(vfs):
        card(tree, function, "")
        (tree.root / f"sys/devices/pci0000:17/0000:17:01.0/{function}/physfn").symlink_to(tree.root / place)
        (tree.root / place / f"virtfn{i}").symlink_to(devices / function)


@pytest.mark.feature("KLO-DEV-02")
def test_rdma_cards_in_the_device_object(agent, kubelet, make_node, world, host, caplog) -> None:
    async def main() -> None:
        tree = host()
        card(tree, "0000:18:00.0", "mlx5_1", number=-1, state="1: DOWN")
        card(tree, "0000:18:00.1", "mlx5_0", number=1, vfs=("0000:18:03.1", "0000:18:03.0"))
        card(tree, "0000:19:00.0", "irdma1")
        card(tree, "0000:1a:00.0", "mlx5_7", numa_node="none")
        card(tree, "0000:1b:00.0", "mlx5_8", **{"class": "0x030000"})
        card(tree, "0000:1c:00.0", "")
        async with world(agent, kubelet, make_node(), tree=tree, gates="RDMADevices=true") as w:
            informers = InformerFactory(w.client)
            loop = DeviceLoop(client=w.client, informers=informers, state=w.state, store=w.agent.store, interval=3.0, sources=(RDMA,))
            informers.start()
            try:
                await informers.wait_synced()
                w.agent.tick()
                await loop.step(1.0)
            finally:
                await informers.stop()
            first, second = (await w.client.get(DEVICES, "n1"))["spec"]["devices"]
            assert first == {
                "type": "rdma",
                "id": "0000:18:00.1",
                "minor": 0,
                "health": True,
                "resources": {"koordinator.sh/rdma": "100"},
                "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:17", "busID": "0000:18:00.1"},
                "vfGroups": [{"vfs": [{"minor": -1, "busID": "0000:18:03.0"}, {"minor": -1, "busID": "0000:18:03.1"}]}],
            }
            assert (second["minor"], second["health"], second["topology"]["nodeID"]) == (1, False, 0)
            assert "irdma1 has the same number as mlx5_1" in caplog.text
            assert "0000:1a:00.0 is left out" in caplog.text

    asyncio.run(main())


@pytest.mark.feature("KLO-DEV-02")
def test_rdma_cards_with_udev_s_names_are_all_reported(agent, kubelet, make_node, world, host, caplog) -> None:
    async def main() -> None:
        tree = host()
        card(tree, "0000:17:00.0", "rocep23s0f0")
        card(tree, "0000:17:00.1", "rocep23s0f1")
        card(tree, "0000:3b:00.0", "rocep59s0f0")
        card(tree, "0001:3b:00.0", "ibP1p59s0")
        card(tree, "0000:5e:00.0", "rocex506b4b03002a6a8f")
        card(tree, "0000:16:00.0", "mlx5_bond_2")
        card(tree, "0000:86:00.0", "mlx5_2")
        async with world(agent, kubelet, make_node(), tree=tree, gates="RDMADevices=true") as w:
            w.agent.tick()
            found = {device.name: device.minor for device in w.agent.store.snapshot(RDMA)}
            assert found == {
                "rocep23s0f0": 0,
                "rocep23s0f1": 1,
                "rocep59s0f0": 0x3B00,
                "ibP1p59s0": 0x13B00,
                "rocex506b4b03002a6a8f": 0x5E00,
                "mlx5_bond_2": 0x1600,
                "mlx5_2": 2,
            }
            assert "left out" not in "".join(r.getMessage() for r in caplog.records if "rdma" in r.getMessage())

    asyncio.run(main())


def put(w: Any, name: str, *entries: dict[str, Any]) -> None:
    w.agent.tree.write(f"xpu/{name}", orjson.dumps(list(entries)).decode())


@pytest.mark.feature("KLO-DEV-03")
@pytest.mark.feature("KLO-DEV-04")
class TestDevice:
    def test_created_and_left_alone(self, run) -> None:
        async def story(w, device) -> None:
            links = {"p2pLinks": [{"peerMinor": "1", "type": "HCCS"}], "mustHonorPartition": False, "nodeID": "1", "busID": "0000:01:00.0"}
            put(w, "20-b", entry("1", status={"healthy": False, "errCode": "chip error"}))
            put(w, "10-a", entry("3", status={"healthy": True}, topology=links))
            made = await device()
            assert [d["minor"] for d in made["spec"]["devices"]] == [1, 3]
            bad, good = made["spec"]["devices"]
            assert bad["resources"] == {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
            assert (bad["health"], bad["conditions"][0]["reason"], bad["conditions"][0]["status"]) == (False, "ChipError", "False")
            assert bad["conditions"][0]["message"] == "chip error: device is unhealthy"
            assert good["topology"] == {"socketID": -1, "nodeID": 1, "pcieID": "", "busID": "0000:01:00.0"}
            assert made["metadata"]["labels"] == {
                "node.koordinator.sh/gpu-model": "Ascend-910B",
                "node.koordinator.sh/gpu-vendor": "huawei",
                "node.koordinator.sh/gpu-partition-policy": "Prefer",
            }
            assert made["metadata"]["ownerReferences"][0]["kind"] == "Node"
            again = await device(1_700_000_999.0)
            assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"], "no write while nothing changes"

        run(story)

    def test_transitions_and_foreign_labels(self, run) -> None:
        async def story(w, device) -> None:
            put(w, "a", entry("0", status={"healthy": True}))
            first = await device()
            await w.client.patch(DEVICES, "n1", {"metadata": {"labels": {"mine": "x"}, "annotations": {"mine": "y"}}})
            await asyncio.sleep(0.1)
            put(w, "a", entry("0", status={"healthy": False, "errCode": "HBM_ECC"}))
            second = await device(1_700_000_500.0)
            stamps = [o["spec"]["devices"][0]["conditions"][0]["lastTransitionTime"] for o in (first, second)]
            assert stamps == ["2023-11-14T22:13:20Z", "2023-11-14T22:21:40Z"]
            put(w, "a", entry("0", status={"healthy": False, "errCode": "OTHER"}))
            third = await device(1_700_000_900.0)
            condition = third["spec"]["devices"][0]["conditions"][0]
            assert (condition["reason"], condition["lastTransitionTime"]) == ("OTHER", stamps[1])
            assert third["metadata"]["labels"]["mine"] == "x"
            assert third["metadata"]["annotations"]["mine"] == "y"

        run(story)

    @pytest.mark.parametrize("rubbish", ["", "{}", "[1]", '[{"minor": 3}]', "[{"])
    def test_a_broken_file_leaves_the_last_picture(self, run, rubbish, caplog) -> None:
        async def story(w, device) -> None:
            put(w, "a", entry("0"))
            before = await device()
            w.agent.tree.write("xpu/b", rubbish)
            assert (await device())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
            assert any("xpu/b" in r.getMessage() for r in caplog.records)

        run(story)

    @pytest.mark.parametrize("nothing", ["[]", "null"])
    def test_a_file_of_no_devices_does_not_spoil_the_others(self, run, nothing) -> None:
        async def story(w, device) -> None:
            w.agent.tree.write("xpu/a", nothing)
            put(w, "b", entry("0"))
            assert len((await device())["spec"]["devices"]) == 1

        run(story)

    def test_null_is_what_is_not_there(self, run) -> None:
        async def story(w, device) -> None:
            put(w, "a", entry("1", vendor=None, topology={"busID": None, "nodeID": "1", "p2pLinks": None}, status=None))
            made = (await device())["spec"]["devices"][0]
            assert made["topology"] == {"socketID": -1, "nodeID": 1, "pcieID": "", "busID": ""}
            assert (made["health"], "conditions" in made) == (True, False)

        run(story)

    def test_a_node_without_accelerators(self, run) -> None:
        async def story(w, device) -> None:
            assert (await device())["spec"].get("devices", []) == []
            assert w.agent.store.snapshot(XPU) == ()

        run(story)


def test_partitions_are_groups_of_peers_once_each() -> None:
    def device(minor: str, *links: tuple[str, str]) -> XPUDevice:
        return XPUDevice(minor=minor, topology=XPUTopology(p2p_links=tuple(P2PLink(peers, kind) for peers, kind in links)))

    found = partitions([device("0", ("1", "HCCS"), ("", "HCCS"), ("2", "")), device("1", ("x, 0", "HCCS"), ("0,2,3", "HCCS"))])
    assert found == {
        "2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}],
        "4": [{"minors": [0, 1, 2, 3], "gpuLinkType": "HCCS", "allocationScore": 1}],
    }


@pytest.mark.parametrize("peer", ["9" * 5000, "9" * 10, "٣", "-1", "1.0"])
def test_peers_that_are_no_minors_are_left_out(peer: str) -> None:
    link = P2PLink(f"1,{peer}", "HCCS")
    found = partitions([XPUDevice(minor="0", topology=XPUTopology(p2p_links=(link,)))])
    assert found == {"2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}]}


@given(st.text(max_size=60))
def test_every_code_becomes_a_reason_that_the_api_accepts(code: str) -> None:
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason_of(code))


@pytest.mark.parametrize(
    ("code", "reason"),
    [("HBM_ECC", "HBM_ECC"), ("8001", "ErrCode_8001"), ("-5", "ErrCode_5"), ("ECC error", "ECCError"), ("", "Unknown"), ("!!", "Unknown")],
)
def test_reasons(code: str, reason: str) -> None:
    assert reason_of(code) == reason
