"""`koord device-daemon`: PCI functions and vendors' tools in, the device file of koordlet out (KLO-DEV-05)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roles.koordlet.devices.daemon import write
from roles.koordlet.report.device import xpu_device
from roles.koordlet.sensing.xpu import read_devices
from tests.support import patience

NPU_SMI = """case "$*" in
"info -l") echo "Total Count : 2"; echo "NPU ID : 1"; echo "NPU ID : 2";;
"info -m") echo "NPU ID  Chip ID  Chip Name"; echo "1  0  Ascend 910B3";;
"info -t memory -i 1") echo "DDR Capacity(MB) : 0"; echo "HBM Capacity(MB) : 65536";;
"info -t common -i 0") echo "Aicore Count : 20";;
"info -t board -i 1") echo "PCIe Bus Info : 0000:C1:00.0"; echo "Chip Fault : 0";;
"info -t board -i 2") echo "PCIe Bus Info : 0000:C2:00.0"; echo "Chip Fault : 2";;
*) echo "unexpected: $*"; exit 9;;
esac
"""
XPU_SMI = "echo 0000:18:00.0 " + " ".join(str(i) for i in range(1, 18)) + " 98304 19 20 P800\n"
CNMON = """case "$*" in
"-l") echo "Card 0: MLU370-X8 (UUID: 5c0f)";;
"info -c 0") cat <<X
UUID : 5c0f-22
Domain ID : 0000
Bus num : 4f
Device : 00
Function : 0
Device : Good
NUMA node id : 1
Physical Memory Usage :
    Total : 42396 MiB
    Used : 0 MiB
Virtual Memory Usage :
    Total : 1048576 MiB
X
;;
esac
"""
MX_SMI = """case "$*" in
"--list") echo "GPU#0  MXC500  0000:08:00.0  Available (UUID: GPU-77)";;
"--show-memory -i 0") echo "    vis_vram total : 9 KB"; echo "    vram total      : 67108864 KB";;
"--count-ecc -i 0") echo "   SRAM Correctable : 5"; echo "   SRAM Uncorrectable : 0"; echo "   Double Bit ECC : 1";;
esac
"""


class Machine:
    """A file system root, and a `chroot` on PATH that only leaves the root out."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.bin = base / "bin"
        self.output = base / "infos" / "ic-device"
        self.bin.mkdir()
        self.tool("chroot", 'shift; exec "$@"')

    def tool(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def card(self, address: str, vendor: str, product: str = "0xd802", node: str = "1") -> None:
        place = self.base / "host/sys/devices/pci0000:c0" / address
        place.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", product), ("numa_node", node)):
            (place / name).write_text(text + "\n")
        link = self.base / "host/sys/bus/pci/devices"
        link.mkdir(parents=True, exist_ok=True)
        (link / address).symlink_to(place)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", **more}

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, "-m", "koord.cli", "device-daemon", f"--host-root={self.base}/host", *flags]

    def once(self, *flags: str, **environment: str) -> Any:
        done = subprocess.run(
            self.command("--oneshot", f"--prints-output-file={self.output}", *flags),
            env=self.environment(**environment), capture_output=True, text=True, timeout=patience.seconds(60), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(self.output.read_text()) if self.output.exists() else None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about"
        time.sleep(0.05)


@pytest.mark.feature("KLO-DEV-05")
@pytest.mark.feature("KLO-DEV-03")
def test_every_family_is_described_and_koordlet_reads_it(machine: Machine) -> None:
    for address, vendor in (("0000:c1:00.0", "0x19e5"), ("0000:c2:00.0", "19e5"), ("0000:18:00.0", "0x1d22"), ("0000:4f:00.0", "cabc")):
        machine.card(address, vendor)
    machine.card("0000:08:00.0", "0x9999", node="-1")
    for number in ("0", "1", "2", "10"):
        (machine.base / "host/dev").mkdir(exist_ok=True)
        (machine.base / f"host/dev/davinci{number}").write_text("")
    (machine.base / "host/dev/davinci_manager").write_text("")
    for name, body in (("npu-smi", NPU_SMI), ("xpu_smi", XPU_SMI), ("cnmon", CNMON), ("mx-smi", MX_SMI)):
        machine.tool(name, body)
    found = machine.once()
    assert [d["uuid"] for d in found] == ["npu-1-0", "npu-1-1", "npu-2-10", "npu-2-2", "xpu-0", "5c0f-22", "GPU-77"]
    npu, _, faulty, _, xpu, mlu, metax = found
    assert (npu["vendor"], npu["model"], npu["minor"]) == ("huawei", "Ascend-910B3", "0")
    assert npu["resources"] == {
        "koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100",
    }  # fmt: skip
    assert npu["topology"] == {"socketID": "-1", "nodeID": "1", "busID": "0000:c1:00.0", "pcieID": "pci0000:c0"}
    assert (npu["status"], faulty["status"]["healthy"], faulty["status"]["errCode"]) == ({"healthy": True}, False, "chip error")
    assert (xpu["model"], xpu["resources"]["koordinator.sh/gpu-memory"], xpu["resources"]["koordinator.sh/gpu-core"]) == (
        "P800",
        "98304Mi",
        "100",
    )
    assert (mlu["model"], mlu["resources"]["koordinator.sh/gpu-memory"], mlu["topology"]["busID"]) == (
        "MLU370-X8",
        "42396Mi",
        "0000:4f:00.0",
    )
    assert (metax["resources"]["koordinator.sh/gpu-memory"], metax["status"]["errCode"]) == ("65536Mi", "ECC error")
    assert metax["topology"]["nodeID"] == "0"

    assert machine.output.stat().st_mode & 0o777 == 0o644
    assert list(machine.output.parent.iterdir()) == [machine.output], "nothing else for koordlet to read"
    read = read_devices(str(machine.output.parent))
    assert len(read) == 7
    assert xpu_device(read[2])["conditions"][0]["reason"] == "ChipError", "a code that the API would refuse"


@pytest.mark.feature("KLO-DEV-05")
def test_a_310p3_and_a_machine_without_cards(machine: Machine) -> None:
    assert machine.once() == []
    machine.card("0000:c1:00.0", "0x19e5", product="0x1710")
    assert machine.once() == [], "a management processor is no accelerator"
    machine.card("0000:c2:00.0", "0x19e5")
    (machine.base / "host/dev").mkdir()
    (machine.base / "host/dev/davinci0").write_text("")
    body = NPU_SMI.replace("910B3", "310P3").replace('; echo "NPU ID : 2"', "")
    body = body.replace('echo "DDR Capacity(MB) : 0"; echo "HBM Capacity(MB) : 65536"', 'echo "Command or option is not found"; exit 1')
    machine.tool("npu-smi", body.replace('"info -t common', '"info -t cpu-num-cfg -i 1") echo "AI CPU : 1";;\n"info -t common'))
    (only,) = machine.once()
    assert only["resources"] == {
        "koordinator.sh/gpu-memory": "21527Mi", "huawei.com/npu-core": "8", "huawei.com/npu-cpu": "1", "huawei.com/npu-dvpp": "100",
    }  # fmt: skip


@pytest.mark.feature("KLO-DEV-05")
@pytest.mark.parametrize("tool", ["", "echo two columns", "exit 3"])
def test_a_family_that_cannot_be_described_takes_the_file_away(machine: Machine, tool: str) -> None:
    machine.card("0000:18:00.0", "0x1d22")
    machine.output.parent.mkdir()
    machine.output.write_text("[]")
    if tool:
        machine.tool("xpu_smi", tool)
    assert machine.once() is None


@pytest.mark.feature("KLO-DEV-05")
def test_settings_and_signals(machine: Machine, tmp_path: Path) -> None:
    """The command line wins over the environment, that over the file; SIGHUP reads them again; the file goes at the end."""
    config = tmp_path / "config.yaml"
    config.write_text(f"version: v1\nflags:\n  kdd:\n    oneshot: true\n    sleepInterval: 1h\n    printsOutputFile: {tmp_path}/by-file\n")
    process = subprocess.Popen(
        machine.command("--oneshot=false", f"--config-file={config}"),
        env=machine.environment(KDD_SLEEP_INTERVAL="50m"),
        stderr=subprocess.PIPE,
    )
    try:
        until((tmp_path / "by-file").exists, "the file")
        config.write_text(config.read_text().replace("by-file", "moved"))
        process.send_signal(signal.SIGHUP)
        until((tmp_path / "moved").exists, "the file of the new settings")
        until(lambda: not (tmp_path / "by-file").exists(), "the old file gone")
        config.write_text("version: v1\nflags: [kdd]\n")
        (tmp_path / "moved").unlink()
        process.send_signal(signal.SIGHUP)
        until((tmp_path / "moved").exists, "the file of the last good settings")
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=patience.seconds(20))
    assert process.returncode == 0, said
    assert not (tmp_path / "moved").exists()

    assert b"flags.kdd" in said
    for flags, text in (
        (("--sleep-interval=soon",), "soon"),
        (("--sleep-interval=-1s",), "not positive"),
        (("--config-file=/nowhere",), "/nowhere"),
    ):
        done = subprocess.run(
            machine.command(*flags), env=machine.environment(), capture_output=True, text=True, timeout=patience.seconds(30), check=False
        )
        assert done.returncode == 2
        assert text in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.feature("KLO-DEV-05")
def test_the_file_is_made_in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory may be a mount: a file from elsewhere cannot be renamed into it. Readers see no half-written file in it."""
    output = tmp_path / "infos" / "ic-device"
    seen: list[tuple[str, tuple[object, ...]]] = []
    rename = os.replace

    def replace(source: str, target: str) -> None:
        seen.append((os.path.relpath(source, output.parent), read_devices(str(output.parent))))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write(str(output), [{"uuid": "a", "minor": "0"}])
    ((source, while_written),) = seen
    assert not source.startswith(".." + os.sep)
    assert while_written == ()
    assert [device.uuid for device in read_devices(str(output.parent))] == ["a"]
    assert sorted(os.listdir(output.parent)) == ["ic-device"]
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
