"""NVIDIA cards through the whole agent: a library and sysfs in; Device, NodeMetric samples and health out (KLO-DEV-01)."""

from __future__ import annotations

import queue
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import DEVICES
from roles.koordlet.host.root import HostRoot
from roles.koordlet.sensing import nvml
from roles.koordlet.sensing.nvml import NVML, Health, bus_address
from roles.koordlet.store import kinds
from tests.support import patience
from tests.support.koordlet import GI, Cluster, agent, run, until


class NVMLError(Exception):
    pass


class Timeout(NVMLError):
    pass


class NotFound(NVMLError):
    pass


def record(**fields: Any) -> Any:
    return types.SimpleNamespace(**fields)


class Library(types.ModuleType):
    """pynvml as far as the agent uses it; cards are their own handles."""

    NVMLError, NVMLError_Timeout, NVMLError_NotFound = NVMLError, Timeout, NotFound
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *cards: Any) -> None:
        super().__init__("pynvml")
        self.cards = list(cards)
        self.lost: set[str] = set()
        self.watched: list[str] = []
        self.memory: dict[str, list[Any]] = {}
        self.used: dict[str, list[Any]] = {}
        """Samples of each reading, with their times since the last one."""
        self.events: queue.Queue[Any] = queue.Queue()

    def nvmlInit(self) -> None:
        if not self.cards:
            raise NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.look(self.cards[index])
        return self.cards[index]

    def look(self, card: Any) -> None:
        if card.uuid in self.lost:
            raise NVMLError("GPU is lost")

    def nvmlDeviceGetPciInfo(self, card: Any) -> Any:
        return record(busId=card.bus.encode())

    def nvmlDeviceGetUUID(self, card: Any) -> str:
        if card is None:
            raise NVMLError("no device")
        return str(card.uuid)

    def nvmlDeviceGetMinorNumber(self, card: Any) -> int:
        return int(card.minor)

    def nvmlDeviceGetMemoryInfo(self, card: Any) -> Any:
        self.look(card)
        return record(total=card.memory)

    def nvmlDeviceGetName(self, card: Any) -> bytes:
        return str(card.model).encode()

    def nvmlDeviceGetComputeRunningProcesses(self, card: Any) -> list[Any]:
        return self.memory.get(card.uuid, [])

    def nvmlDeviceGetProcessUtilization(self, card: Any, since: int) -> list[Any]:
        if card.uuid not in self.used:
            raise NotFound
        return [record(pid=s.pid, timeStamp=since + s.timeStamp, smUtil=s.smUtil) for s in self.used[card.uuid]]

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, card: Any, kinds: int, events: str) -> None:
        if card.uuid == "GPU-old":
            raise NVMLError("Not Supported")
        self.watched.append(card.uuid)

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        try:
            return self.events.get(timeout=0.05)
        except queue.Empty:
            raise Timeout from None

    def nvmlEventSetFree(self, events: str) -> None:
        return


def card(uuid: str, minor: int, bus: str, model: str = "NVIDIA A100 80GB") -> Any:
    return record(uuid=uuid, minor=minor, bus=bus, model=model, memory=80 * GI)


def plug(c: Cluster, address: str, node: str) -> None:
    """A card in sysfs, held by the driver."""
    place = c.base / f"sys/devices/pci0000:17/0000:17:01.0/{address}"
    c.file(f"sys/devices/pci0000:17/0000:17:01.0/{address}/numa_node", node)
    for link in (c.base / "sys/bus/pci/devices", c.base / "sys/bus/pci/drivers/nvidia"):
        link.mkdir(parents=True, exist_ok=True)
        (link / address).symlink_to(place)
    c.file("sys/bus/pci/drivers/nvidia/bind", "")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Two equal cards, one that cannot be watched, and one whose function the driver does not hold."""
    made = Library(
        card("GPU-b", 1, "00000000:3B:00.0"),
        card("GPU-a", 0, "00000000:18:00.0"),
        card("GPU-old", 2, "00000000:5E:00.0"),
        card("GPU-gone", 3, "00000000:AA:00.0"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.mark.feature("KLO-DEV-01")
@pytest.mark.feature("KLO-DEV-04")
def test_inventory_use_and_health(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        for address, node in (("0000:18:00.0", "0"), ("0000:3b:00.0", "1"), ("0000:5e:00.0", "-1")):
            plug(c, address, node)
        training = await c.pod("training", qos="LS", kube_qos="Burstable")
        await c.pod("idle", qos="LS", kube_qos="Burstable")
        c.cgroup("cpu", c.dirs(training)[1], "cgroup.procs", "102\n")
        c.cgroup("cpu", f"{c.dirs(training)[1]}/docker/job", "cgroup.procs", "101\n")  # a group that the container made
        library.memory = {
            "GPU-a": [record(pid=101, usedGpuMemory=2 * GI), record(pid=7, usedGpuMemory=GI)],
            "GPU-b": [record(pid=102, usedGpuMemory=None)],
        }
        library.used = {
            "GPU-a": [
                record(pid=101, timeStamp=5, smUtil=30),
                record(pid=101, timeStamp=4, smUtil=99),
                record(pid=0, timeStamp=9, smUtil=9),
            ]
        }
        async with agent(c, "Accelerators", xpu_device_infos_dir=str(c.base / "none"), node_topology_sync_interval=0.2) as app:

            async def device() -> dict[str, Any]:
                found = (await c.client.list(DEVICES)).items
                return found[0] if found else {"metadata": {}, "spec": {"devices": []}}

            async def there() -> bool:
                return len((await device())["spec"]["devices"]) == 3

            await until(there, "the Device object")
            made = await device()
            assert made["metadata"]["labels"] == {
                "node.koordinator.sh/gpu-vendor": "nvidia",
                "node.koordinator.sh/gpu-model": "A100-80GB",
                "node.koordinator.sh/gpu-driver-version": "550.54",
            }
            first, second, old = made["spec"]["devices"]
            assert (first["id"], first["minor"], first["health"], first["type"]) == ("GPU-a", 0, True, "gpu")
            assert first["resources"] == {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory": "80Gi",
                "koordinator.sh/gpu-memory-ratio": "100",
            }
            assert second["topology"] == {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:17", "busID": "0000:3b:00.0"}
            assert "conditions" not in second
            assert (old["health"], old["conditions"][0]["reason"]) == (False, "DeviceHealthCheckNotSupported")

            # use: of the node all processes that are sampled, of pods their own
            uid = training["metadata"]["uid"]
            await until(lambda: app.store.keys(kinds.POD_GPU_CORE), "samples of the pod")
            view = app.snapshot(__import__("time").time()).metrics
            a = {"gpu_minor": "0", "gpu_device_uuid": "GPU-a"}
            assert view.last(kinds.POD_GPU_CORE, pod_uid=uid, **a) == 30
            assert view.last(kinds.POD_GPU_MEMORY, pod_uid=uid, **a) == 2 * GI
            assert view.last(kinds.CONTAINER_GPU_MEMORY, container_id="containerd://training", **a) == 2 * GI
            assert view.last(kinds.NODE_GPU_CORE, **a) == 30, "a process without a sample does not count"
            assert view.last(kinds.NODE_GPU_MEMORY, gpu_minor="1", gpu_device_uuid="GPU-b") == 0
            assert {key[0] for key in app.store.keys(kinds.POD_GPU_CORE)} == {uid}

            # an application's Xid is its own, another one the card's; both cards when nobody knows whose
            library.events.put(record(eventType=8, eventData=31, device=library.cards[0]))
            library.events.put(record(eventType=8, eventData=79, device=library.cards[0]))

            async def reason() -> bool:
                entry = (await device())["spec"]["devices"][1]
                return [k["reason"] for k in entry.get("conditions", [])] == ["Xid79"] and entry["health"] is False

            await until(reason, "the Xid in the object")
            assert (await device())["spec"]["devices"][0]["health"] is True
            # a card that answers and stays quiet comes back
            monkeypatch.setattr(nvml, "RECOVERS_AFTER", 0.0)

            async def healthy() -> bool:
                return bool((await device())["spec"]["devices"][1]["health"])

            await until(healthy, "the recovery")

    run(tmp_path, story)


@pytest.mark.feature("KLO-DEV-01")
def test_a_process_that_pauses_uses_nothing_but_its_memory(tmp_path: Path, library: Library) -> None:
    """NVML has samples only of those that worked since the last reading, and none at all where nobody did."""
    c = Cluster(tmp_path, None)
    plug(c, "0000:18:00.0", "0")
    sizes = {101: 40 * GI, 102: 20 * GI, 103: GI}
    found = NVML(library, HostRoot.at(str(tmp_path)), Health())

    def used(*samples: tuple[int, int]) -> dict[int, float]:
        library.memory["GPU-a"] = [record(pid=pid, usedGpuMemory=size) for pid, size in sizes.items()]
        library.used = {"GPU-a": [record(pid=pid, timeStamp=5, smUtil=use) for pid, use in samples]} if samples else {}
        processes = found.processes()
        assert all(each.memory == sizes[each.pid] for each in processes)
        return {each.pid: each.core_percent for each in processes}

    assert used() == {}, "of one that never worked nothing is known"
    assert used((101, 90), (102, 5)) == {101: 90, 102: 5}
    assert used((102, 7)) == {101: 0, 102: 7}
    assert used() == {101: 0, 102: 0}
    assert used((101, 50)) == {101: 50, 102: 0}
    gone = sizes.pop(102)
    assert used((101, 50)) == {101: 50}
    sizes[102] = gone
    assert used((101, 50)) == {101: 50}, "another process with its number"


@pytest.mark.feature("KLO-DEV-01")
def test_a_card_that_is_lost_hides_no_other_and_is_found_when_it_is_back(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    c, now = Cluster(tmp_path, None), [0.0]
    for address in ("0000:18:00.0", "0000:3b:00.0"):
        plug(c, address, "0")
    library.lost = {"GPU-b"}
    found = nvml.load(HostRoot.at(str(tmp_path)), lambda: now[0])
    assert found is not None
    now[0] = nvml.LOOK_AGAIN - 1.0
    assert [card.uuid for card in found.cards()] == ["GPU-a"]
    library.lost = {"GPU-a", "GPU-gone"}
    now[0] = nvml.LOOK_AGAIN
    assert [card.uuid for card in found.cards()] == ["GPU-a", "GPU-b"]
    assert caplog.text.count("NVML: card 0: GPU is lost") == 1
    for _ in patience.tries(500):
        if "GPU-b" in library.watched:
            break
        time.sleep(0.01)
    assert sorted(library.watched) == ["GPU-a", "GPU-b"], "its events are waited for, too"
    library.lost = {"GPU-a", "GPU-b", "GPU-old", "GPU-gone"}
    assert nvml.load(HostRoot.at(str(tmp_path))) is None, "of whom nobody is left NVML cannot tell"


@pytest.mark.feature("KLO-DEV-01")
def test_a_driver_that_fails_hides_no_card_that_is_known(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    c, now = Cluster(tmp_path, None), [0.0]
    for address in ("0000:18:00.0", "0000:3b:00.0"):
        plug(c, address, "0")
    library.lost = {"GPU-b"}
    found = NVML(library, HostRoot.at(str(tmp_path)), Health(lambda: now[0]))

    def fail() -> int:
        raise NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(library, "nvmlDeviceGetCount", fail)
    library.lost = {"GPU-a", "GPU-b"}
    for at in (nvml.LOOK_AGAIN, nvml.LOOK_AGAIN + 5.0):
        now[0] = at
        cards = found.cards()
    assert [card.problem for card in cards] == ["DeviceNotAnswering"]


@pytest.mark.feature("KLO-DEV-01")
def test_what_keeps_events_away_is_told_once_until_they_can_be_waited_for(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plug(Cluster(tmp_path, None), "0000:18:00.0", "0")

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return self.is_set()

    stop, answers = Stop(), [NVMLError("no"), NVMLError("no"), Timeout(), NVMLError("no")]

    def waited(events: str, milliseconds: int) -> Any:
        if len(answers) == 1:
            stop.set()
        raise answers.pop(0)

    monkeypatch.setattr(library, "nvmlEventSetWait_v2", waited)
    NVML(library, HostRoot.at(str(tmp_path)), Health()).watch(stop)
    assert caplog.text.count("waiting for events of NVIDIA cards: no") == 2


@pytest.mark.feature("KLO-DEV-01")
def test_a_card_that_answers_with_errors_alone_is_not_healthy(tmp_path: Path, library: Library, caplog: pytest.LogCaptureFixture) -> None:
    """It may have fallen off the bus while nobody listened for its Xid."""
    c, now = Cluster(tmp_path, None), [0.0]
    for address in ("0000:18:00.0", "0000:3b:00.0"):
        plug(c, address, "0")
    found = NVML(library, HostRoot.at(str(tmp_path)), Health(lambda: now[0]))

    def problems() -> list[str]:
        return [card.problem for card in found.cards()]

    library.lost = {"GPU-b"}
    assert problems() == ["", ""], "for a moment any card may fail"
    now[0] = 5.0
    assert problems() == ["", "DeviceNotAnswering"]
    found.health.xid(["GPU-b"], 79)
    assert problems() == ["", "Xid79"]
    library.lost = set()
    now[0] = 604.0
    assert problems() == ["", "Xid79"]
    now[0] = 605.0
    assert problems() == ["", ""]
    library.lost = {"GPU-b"}
    assert problems() == ["", ""], "counted anew"
    assert caplog.text.count("card GPU-b does not answer: GPU is lost") == 2


@pytest.mark.feature("KLO-DEV-01")
@pytest.mark.parametrize("missing", ["package", "driver", "cards"])
def test_without_cards_the_agent_goes_on(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None if missing == "package" else Library())

    async def story(c: Cluster) -> None:
        await c.node({})
        if missing != "cards":
            plug(c, "0000:18:00.0", "0")
        async with agent(c, "Accelerators", xpu_device_infos_dir=str(c.base / "none"), node_topology_sync_interval=0.2) as app:
            await until(lambda: app.store.snapshot("GPU") == () if hasattr(app, "store") else False, "an empty inventory")

    run(tmp_path, story)


def test_an_event_of_no_card_is_of_all_and_health_is_kept() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    health.xid(["a", "b"], 48)
    health.xid(["a"], 13)
    assert (health.problem("a", answers=True), health.problem("c", answers=True)) == ("Xid48", "")
    now[0] = 601.0
    assert health.problem("a", answers=False) == "Xid48", "it does not answer"
    assert health.problem("b", answers=True) == ""
    health.unsupported("c")
    assert health.problem("c", answers=True) == "DeviceHealthCheckNotSupported"


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0001:3b:00.0", "0001:3b:00.0"), ("3b:00.0", "0000:3b:00.0"), ("b:3b:00.0", "000b:3b:00.0")],
)
def test_addresses(text: str, address: str) -> None:
    assert bus_address(text) == address


@pytest.mark.feature("KLO-CFG-01")
def test_devices_are_reported_where_topology_is_off(tmp_path: Path) -> None:
    async def story(c: Cluster) -> None:
        await c.node({})
        c.file("xpu/ic-device", '[{"vendor": "kunlun", "model": "p800", "uuid": "xpu-0", "minor": "0", "resources": {}}]')
        async with agent(c, "Accelerators", xpu_device_infos_dir=str(c.base / "xpu"), node_topology_sync_interval=0.0):

            async def there() -> bool:
                return [d["id"] for found in (await c.client.list(DEVICES)).items for d in found["spec"]["devices"]] == ["xpu-0"]

            await until(there, "the Device object")

    run(tmp_path, story)
