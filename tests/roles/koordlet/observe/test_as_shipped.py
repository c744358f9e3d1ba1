"""What the DaemonSet's pod can do below /host: asked of the kernel, not of a path; what it cannot do is said at the start (KLO-CFG-01)."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from roles.koordlet.host.errors import HostError
from roles.koordlet.host.namespaces import NETWORK, PROCESSES, foreign
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.tools import environment, lacking, locate
from roles.koordlet.options import Options
from roles.koordlet.selftest import blocked
from roles.koordlet.sensing.gpulibrary import SILENT, GPUCard
from roles.koordlet.sensing.nvml import driver_library
from roles.koordlet.sensing.nvmlthread import NVMLThread
from roles.koordlet.unavailable import unavailable
from tests.support import patience
from tests.support.processes import KOORD

pytestmark = pytest.mark.feature("KLO-CFG-01")


def machine(base: Path, kind: str, target: str) -> HostRoot:
    (base / "proc/1/ns").mkdir(parents=True, exist_ok=True)
    (base / "proc/1/ns" / kind).symlink_to(target)
    return HostRoot.at(str(base))


@pytest.mark.parametrize(("kind", "asked"), [(PROCESSES, "hostPID"), (NETWORK, "hostNetwork")])
def test_the_kernel_says_whose_namespace_it_is(tmp_path: Path, kind: str, asked: str) -> None:
    assert foreign(machine(tmp_path / "own", kind, f"/proc/self/ns/{kind}"), kind) == ""
    assert asked in foreign(machine(tmp_path / "other", kind, "/proc/self/ns/uts"), kind)
    assert "cannot be read" in foreign(HostRoot.at(str(tmp_path / "none")), kind)
    assert foreign(HostRoot.at("/"), kind) == ""


def test_what_a_gate_lacks_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, NETWORK, "/proc/self/ns/net")
    driver = tmp_path / "sys/bus/pci/drivers/nvidia/0000:3b:00.0"
    driver.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    gates = {"CoreSched", "TCNetworkQoS", "BlkIOReconcile", "Accelerators"}
    lacks = blocked(lambda gate: gate in gates, root)
    assert set(lacks) == gates
    assert "tc, ipset, iptables" in lacks["TCNetworkQoS"]
    assert "libnvidia-ml" in lacks["Accelerators"]
    assert len([text for text in unavailable(Options(), lambda gate: gate in gates, root) if "on this machine" in text]) == 4
    assert blocked(lambda gate: False, root) == {}
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("")
    assert driver_library(root) == str(library)
    assert "Accelerators" not in blocked(lambda gate: gate in gates, root)


def test_programs_are_the_machines_own_where_it_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "usr/sbin/koord-test-program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    root = HostRoot.at(str(tmp_path))
    assert locate("koord-test-program", HostRoot.at("/")) is None
    assert locate("koord-test-program", root) is None, "a picture of a machine runs nothing"
    machine(tmp_path, PROCESSES, "/proc/self/ns/pid")
    if os.geteuid() == 0:
        assert (locate("koord-test-program", root) or ())[-2:] == (str(tmp_path), "/usr/sbin/koord-test-program")
        assert lacking(["koord-test-program", "koord-no-such"], root) == ["koord-no-such"]
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/koord")
    assert "LD_LIBRARY_PATH" not in environment(), "programs of the machine do not get the libraries of a frozen koord"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_below_a_mount_of_the_machine_nothing_is_missing_for_the_path_alone(tmp_path: Path) -> None:
    """As the pod sees it: the machine's root at another place, process ids and network the machine's own."""
    there = tmp_path / "host"
    there.mkdir()
    script = f"mount --rbind / {there} && {KOORD} doctor --node --host-root={there}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=patience.seconds(60), check=False
    )
    assert "cgroups: version" in done.stdout, done.stderr
    assert "hostPID" not in done.stdout
    assert "hostNetwork" not in done.stdout


# -- a card that hangs -------------------------------------------------------------------------------------------------------


class Library:
    """Answers while `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asked = threading.Event()
        self.card = GPUCard("GPU-1", 0, 1 << 30)

    def cards(self) -> tuple[GPUCard, ...]:
        self.asked.set()
        assert self.free.wait(patience.seconds(30))
        return (self.card,)

    def processes(self) -> list[object]:
        return []


@pytest.mark.feature("KLO-DEV-01")
def test_a_card_that_hangs_holds_up_nobody_and_is_not_healthy() -> None:
    library, clock = Library(), [0.0]
    nvml = NVMLThread(lambda: library, clock=lambda: clock[0])
    nvml.start()
    try:
        assert library.asked.wait(patience.seconds(10))
        with pytest.raises(HostError, match="not answered yet"):
            nvml.cards()
        library.free.set()
        for _ in range(500):
            try:
                found = nvml.cards()
                break
            except HostError:
                threading.Event().wait(0.02)
        assert [card.problem for card in found] == [""]
        library.asked.clear()
        library.free.clear()
        assert library.asked.wait(patience.seconds(10)), "asked again"
        clock[0] += 6
        assert [card.problem for card in nvml.cards()] == [SILENT]
        with pytest.raises(HostError, match="has not answered"):
            nvml.processes()
    finally:
        library.free.set()
        nvml.stop()


def test_a_driver_that_comes_later_is_found() -> None:
    found: list[Library | None] = [None, Library()]
    found[1].free.set()
    nvml = NVMLThread(lambda: found.pop(0), load_again=0.01)
    nvml.start()
    try:
        for _ in range(500):
            try:
                if nvml.cards():
                    break
            except HostError:
                pass
            threading.Event().wait(0.02)
        assert nvml.cards()
    finally:
        nvml.stop()
