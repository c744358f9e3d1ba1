"""Cycles and instructions of containers (KLO-COL-10): turns and sums with counters from files, the system call on the real kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roles.koordlet.host.errors import CgroupGoneError
from roles.koordlet.host.perf import CYCLES, CgroupCounters, Event, NoCountersError, scaled
from roles.koordlet.sensing.cpi import CPICollector
from roles.koordlet.store import kinds
from tests.support import patience

READING = struct.Struct("=QQQ")


class Counters:
    """Stands for the kernel where there is no hardware: each counter is a file with one reading."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[tuple[Event, str, int, bool]] = []
        self.fds: list[int] = []
        self.refuse = 0

    def open(self, event: Event, cgroup: int, cpu: int, leader: int) -> int:
        if self.refuse:
            raise OSError(self.refuse, os.strerror(self.refuse))
        self.opened.append((event, os.readlink(f"/proc/self/fd/{cgroup}"), cpu, leader >= 0))
        path = self.directory / str(len(self.opened))
        # instructions ran half the time they were enabled
        path.write_bytes(READING.pack(100, 10, 10) if event == CYCLES else READING.pack(30, 10, 5))
        self.fds.append(os.open(path, os.O_RDONLY))
        return self.fds[-1]

    def still_open(self) -> int:
        return sum(Path(os.readlink(f"/proc/self/fd/{fd}")).parent == self.directory for fd in os.listdir("/proc/self/fd") if _is_open(fd))


def _is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}") and os.path.exists(f"/proc/self/fd/{fd}")


def watched(agent: Any, tmp_path: Path, make_pod: Any, containers: int, version: int = 1) -> tuple[Any, Counters]:
    a = agent(version=version, gates="CPICollector=true")
    (tmp_path / "counters").mkdir()
    counters = Counters(tmp_path / "counters")
    (collector,) = [c for c in a.loop._collectors if isinstance(c, CPICollector)]
    collector.opener = counters.open
    directory = a.tree.pod_dir("Burstable", "u-1")
    names = {f"c{i}": f"id{i}" for i in range(containers)}
    for bare in names.values():
        a.tree.cgroup(a.tree.container_dir(directory, bare))
        (a.tree.root / a.tree.file("perf_event", a.tree.container_dir(directory, bare), "")).mkdir(parents=True, exist_ok=True)
    a.list(make_pod("web", "u-1", containers=names))
    return a, counters


@pytest.mark.feature("KLO-COL-10")
class TestCPI:
    @pytest.mark.parametrize("version", [1, 2])
    def test_sums_over_all_cpus_after_a_window(self, agent, make_pod, tmp_path, version) -> None:
        a, counters = watched(agent, tmp_path, make_pod, 1, version)
        a.tick()
        assert [(cpu, grouped) for _, _, cpu, grouped in counters.opened] == [(c, g) for c in range(4) for g in (False, True)]
        where = "" if version == 2 else "perf_event/"
        assert all(f"/sys/fs/cgroup/{where}kubepods.slice/" in path for _, path, _, _ in counters.opened)
        assert a.store.keys(kinds.CONTAINER_CPI) == []
        a.tick(5)
        assert a.store.keys(kinds.CONTAINER_CPI) == [], "the window is not over"
        a.tick(5)
        same = {"pod_uid": "u-1", "container_id": "containerd://id0"}
        assert a.view.last(kinds.CONTAINER_CPI, cpi_resource="cycle", **same) == 400
        assert a.view.last(kinds.CONTAINER_CPI, cpi_resource="instruction", **same) == 240, "multiplexed counters are extrapolated"
        labels = ("containerd://id0", "c0", "u-1", "web", "default")
        assert (a.metrics.container_cpi.get(*labels, "cycles"), a.metrics.container_cpi.get(*labels, "instructions")) == (400, 240)
        assert counters.still_open() == 0

    def test_containers_take_turns(self, agent, make_pod, tmp_path) -> None:
        a, counters = watched(agent, tmp_path, make_pod, 12)
        most = 0
        for _ in range(7):
            a.tick(10)
            most = max(most, counters.still_open())
        assert most == 2 * 4 * 2, "two of twelve containers at a time, two counters a CPU"
        assert len({k[1] for k in a.store.keys(kinds.CONTAINER_CPI)}) == 12
        assert len(counters.opened) == 14 * 4 * 2
        a.pod_cache.pods = ()
        for _ in range(8):
            a.tick(10)
        assert counters.still_open() == 0
        assert list(a.metrics.container_cpi.samples()) == [], "gauges of containers that are gone go too"
        assert a.store.keys(kinds.CONTAINER_CPI) == []

    @pytest.mark.parametrize(
        ("refusal", "said"), [(errno.ENOENT, "no such hardware counters"), (errno.EACCES, "CAP_PERFMON"), (errno.EMFILE, "")]
    )
    def test_a_machine_without_counters_is_named_once(self, agent, make_pod, tmp_path, caplog, refusal, said) -> None:
        a, counters = watched(agent, tmp_path, make_pod, 2)
        counters.refuse = refusal
        for _ in range(20):
            a.tick(10)
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("cpi: ") and r.levelname == "WARNING"]
        assert len(lines) == (1 if said else 0)
        assert said in "".join(lines)
        assert a.view.last(kinds.NODE_MEMORY, within=60) is not None, "the other collectors go on"

    def test_a_gap_between_windows_is_not_counted(self, agent) -> None:
        a = agent(gates="CPICollector=true")
        collector = CPICollector(a.context, 60.0, 25.0)
        a.tick()
        intervals = []
        for _ in range(4):
            collector.collect(type("At", (), {"now": a.now, "mono": a.mono})())
            intervals.append(collector.interval)
        assert intervals == [25.0, 5.0, 25.0, 5.0]

    def test_scaling(self) -> None:
        assert scaled(READING.pack(10, 0, 0)) == scaled(READING.pack(10, 5, 0)) == scaled(READING.pack(10, 5, 5)) == 10
        assert scaled(READING.pack(10, 8, 2)) == 40


@pytest.mark.feature("KLO-COL-10")
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a cgroup file system")
def test_the_system_call_counts_a_cgroup(tmp_path: Path) -> None:
    """Software clocks stand in for hardware counters, which virtual machines rarely have; the call is the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    top = tmp_path / "cg2"
    top.mkdir()
    if libc.mount(b"none", str(top).encode(), b"cgroup2", 0, None):
        pytest.skip(f"cgroup2 cannot be mounted: {os.strerror(ctypes.get_errno())}")
    group = top / f"koord-cpi-{os.getpid()}"
    busy = None
    try:
        group.mkdir()
        clocks = (Event(1, 0), Event(1, 1))
        try:
            counters = CgroupCounters(str(group), range(os.cpu_count() or 1), clocks)
        except NoCountersError as error:
            pytest.skip(str(error))
        idle = counters.read()
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        (group / "cgroup.procs").write_text(str(busy.pid))
        for _ in patience.tries(100):
            time.sleep(0.05)
            cpu_ns, task_ns = counters.read()
            if min(cpu_ns, task_ns) > 5e7:
                break
        counters.close()
        assert idle == [0, 0]
        assert min(cpu_ns, task_ns) > 5e7
        with pytest.raises(CgroupGoneError):
            CgroupCounters(str(group / "none"), [0], clocks)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
        for _ in patience.tries(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.02)
        libc.umount2(str(top).encode(), 2)
