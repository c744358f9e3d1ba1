"""Families of accelerators: how each is recognised, asked and described (KLO-DEV-05). One class and one row each."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.names import RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY
from roles.koordlet.devices.tools import DetectError, Host, ToolFailedError, last_number, value_of

Device = dict[str, Any]
HEALTHY = {"healthy": True}


class Family:
    """PCI ``vendors`` say whether a machine has such cards; ``devices`` describes them. Raises DetectError."""

    name: ClassVar[str]
    vendors: ClassVar[frozenset[str]]
    not_products: ClassVar[frozenset[str]] = frozenset()

    def present(self, pci: Sequence[tuple[str, str]]) -> bool:
        return any(vendor in self.vendors and product not in self.not_products for vendor, product in pci)

    def devices(self, host: Host) -> list[Device]:
        raise NotImplementedError


class HuaweiNPU(Family):
    """Ascend cards by npu-smi. A card may have several chips, each with a device file ``/dev/davinci<n>``."""

    name = "huawei"
    vendors = frozenset({"19e5"})
    #: Management processors on Huawei boards.
    not_products = frozenset({"1710", "1711"})
    DEVICE_FILE = re.compile(r"davinci(\d+)")
    #: AI CPUs by model; others are asked.
    AI_CPUS: ClassVar[dict[str, int]] = {"910B": 0, "910B2": 6, "910B3": 7, "910B4": 7}
    P310_CORES, P310_MEMORY = 8, "21527Mi"

    def devices(self, host: Host) -> list[Device]:
        cards = [line.split()[-1] for line in host.run("npu-smi", "info", "-l").splitlines() if "NPU ID" in line]
        minors = self._minors(host)
        if not cards or len(minors) % len(cards):
            raise DetectError(f"npu-smi knows {len(cards)} cards, /dev has {len(minors)} davinci devices")
        model = self._model(host)
        resources = {
            RESOURCE_GPU_MEMORY: self._memory(host, cards[0]),
            "huawei.com/npu-core": str(self._cores(host, model)),
            "huawei.com/npu-cpu": str(self._cpus(host, model, cards[0])),
            "huawei.com/npu-dvpp": "100",
        }
        chips = len(minors) // len(cards)
        boards = {card: self._board(host, card) for card in cards}
        out: list[Device] = []
        for number, minor in enumerate(minors):
            card = cards[number // chips]
            topology, status = boards[card]
            device = {"vendor": self.name, "model": model, "uuid": f"npu-{card}-{minor}", "minor": minor, "resources": resources}
            out.append({**device, "topology": topology, "status": status})
        return out

    def _minors(self, host: Host) -> list[str]:
        """Sorted as text, as the device plugins number them."""
        names = os.listdir(host.path("dev")) if os.path.isdir(host.path("dev")) else []
        return sorted(found[1] for name in names if (found := self.DEVICE_FILE.fullmatch(name)))

    def _model(self, host: Host) -> str:
        lines = host.run("npu-smi", "info", "-m").splitlines()
        words = lines[1].split() if len(lines) > 1 else []
        if len(words) < 2:
            raise DetectError("npu-smi info -m names no model")
        return f"{words[-2]}-{words[-1]}"

    def _memory(self, host: Host, card: str) -> str:
        try:
            text = host.run("npu-smi", "info", "-t", "memory", "-i", card)
        except ToolFailedError as error:
            # tools of the 310P3 do not know the question
            if "Command or option is not found" in error.output:
                return self.P310_MEMORY
            raise
        sizes = [last_number(line) for line in text.splitlines() if "DDR Capacity" in line or "HBM Capacity" in line]
        return f"{sum(sizes)}Mi"

    def _cores(self, host: Host, model: str) -> int:
        if model == "Ascend-310P3":
            return self.P310_CORES
        lines = host.run("npu-smi", "info", "-t", "common", "-i", "0").splitlines()
        return sum(last_number(line) for line in lines if "Aicore Count" in line)

    def _cpus(self, host: Host, model: str, card: str) -> int:
        known = self.AI_CPUS.get(model.partition("-")[2] or model)
        if known is not None:
            return known
        lines = host.run("npu-smi", "info", "-t", "cpu-num-cfg", "-i", card).splitlines()
        return sum(last_number(line) for line in lines if "AI" in line)

    def _board(self, host: Host, card: str) -> tuple[dict[str, str], Device]:
        """Where a card sits, and whether its chips are well."""
        topology, status = {"socketID": "-1", "nodeID": "-1"}, dict[str, Any](HEALTHY)
        for line in host.run("npu-smi", "info", "-t", "board", "-i", card).splitlines():
            if "PCIe Bus Info" in line:
                topology = host.place(line.split()[-1])
            elif "Chip Fault" in line and (faults := last_number(line)) > 0:
                status = {"healthy": False, "errCode": "chip error", "errMessage": f"NPU {card} has {faults} chip faults"}
        return topology, status


class KunlunXPU(Family):
    """Kunlun cards by ``xpu_smi -m``: a line a card, columns by position."""

    name = "kunlun"
    vendors = frozenset({"1d22"})
    BUS, MEMORY, MODEL = 0, 18, 21

    def devices(self, host: Host) -> list[Device]:
        out: list[Device] = []
        for number, line in enumerate(filter(str.strip, host.run("xpu_smi", "-m").splitlines())):
            words = line.split()
            if len(words) <= self.MODEL or not words[self.MEMORY].isdecimal():
                raise DetectError(f"xpu_smi -m: line {number + 1} has {len(words)} columns, more than {self.MODEL} are needed")
            device = {"vendor": self.name, "model": words[self.MODEL], "uuid": f"xpu-{number}", "minor": str(number)}
            resources = {RESOURCE_GPU_MEMORY: f"{words[self.MEMORY]}Mi", RESOURCE_GPU_CORE: "100"}
            out.append({**device, "resources": resources, "topology": host.place(words[self.BUS]), "status": dict(HEALTHY)})
        return out


class CambriconMLU(Family):
    """Cambricon cards by cnmon: a block of ``key : value`` lines a card."""

    name = "cambricon"
    vendors = frozenset({"cabc"})

    def devices(self, host: Host) -> list[Device]:
        listed = host.run("cnmon", "-l")
        count = sum("UUID" in line for line in listed.splitlines())
        model = next((word for word in listed.split() if "MLU" in word), "")
        if count and not model:
            raise DetectError("cnmon -l names no model")
        return [self._card(host, number, model) for number in range(count)]

    def _card(self, host: Host, number: int, model: str) -> Device:
        text = host.run("cnmon", "info", "-c", str(number))
        address: dict[str, str] = {}
        uuid, memory, node, status = "", "", "-1", dict[str, Any](HEALTHY)
        section = ""
        for line in text.splitlines():
            key, value = line.partition(":")[0].strip(), value_of(line)
            section = line.strip() if not value else section
            if "UUID" in line and not uuid:
                uuid = value.split()[0] if value else ""
            elif "NUMA node id" in line:
                node = value
            elif key in ("Domain ID", "Bus num", "Function") or (key == "Device" and value.isdecimal()):
                address[key] = value
            elif key == "Device" and value and value != "Good":
                status = {"healthy": False, "errMessage": f"Device is unhealthy, status: {value}"}
            elif key == "Total" and not memory and "Physical Memory" in section:
                memory = f"{value.split()[0]}Mi"
        if not uuid or not memory:
            raise DetectError(f"cnmon info -c {number} gives no UUID or no physical memory")
        topology = {"socketID": "-1", "nodeID": node}
        if len(address) == 4:
            topology["busID"] = f"{address['Domain ID']}:{address['Bus num']}:{address['Device']}.{address['Function']}"
        device = {"vendor": self.name, "model": model, "uuid": uuid, "minor": str(number)}
        return {**device, "resources": {RESOURCE_GPU_MEMORY: memory, RESOURCE_GPU_CORE: "100"}, "topology": topology, "status": status}


class MetaX(Family):
    """MetaX cards by mx-smi: a line ``GPU#<n> <model> <address> <state> (UUID: <uuid>)`` a card."""

    name = "metax"
    vendors = frozenset({"9999"})
    LINE = re.compile(r"GPU#(\d+)\s+(\S+)\s+([0-9a-fA-F:.]+)\s+.*?UUID:\s*([^\s)]+)")
    MEMORY = re.compile(r"^\s*vram total\s*:\s*(\d+)\s*(KB|MB)", re.MULTILINE)
    #: Bits that were lost; what was corrected does no harm.
    ECC = re.compile(r"^\s*(?:\S+ Uncorrectable|Double Bit ECC)\s*:\s*(\d+)", re.MULTILINE)

    def devices(self, host: Host) -> list[Device]:
        found = self.LINE.findall(host.run("mx-smi", "--list"))
        if not found:
            raise DetectError("mx-smi --list names no card")
        return [self._card(host, *card) for card in found]

    def _card(self, host: Host, number: str, model: str, bus_id: str, uuid: str) -> Device:
        memory = self.MEMORY.search(host.run("mx-smi", "--show-memory", "-i", number))
        if memory is None:
            raise DetectError(f"mx-smi --show-memory -i {number} gives no total")
        size = int(memory[1]) // 1024 if memory[2] == "KB" else int(memory[1])
        errors = sum(int(count) for count in self.ECC.findall(host.run("mx-smi", "--count-ecc", "-i", number)))
        status: Device = dict(HEALTHY)
        if errors:
            status = {"healthy": False, "errCode": "ECC error", "errMessage": f"GPU {number} has {errors} uncorrected ECC errors"}
        device = {"vendor": self.name, "model": model, "uuid": uuid, "minor": number}
        resources = {RESOURCE_GPU_MEMORY: f"{size}Mi", RESOURCE_GPU_CORE: "100"}
        return {**device, "resources": resources, "topology": host.place(bus_id), "status": status}


FAMILIES: tuple[type[Family], ...] = (HuaweiNPU, KunlunXPU, CambriconMLU, MetaX)


def detect(host: Host) -> list[Device]:
    """All accelerators of the machine; empty without a known card. Raises DetectError when one family cannot be described."""
    pci = host.pci()
    return [device for family in (kind() for kind in FAMILIES) if family.present(pci) for device in family.devices(host)]
