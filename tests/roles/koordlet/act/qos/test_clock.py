"""A step of the wall clock, at any moment and in either direction, changes no decision (KA-QOS-01)."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.times import format_time
from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.options import Options
from roles.koordlet.qos.manager import QOSManager
from roles.koordlet.qos.registry import make_strategies
from roles.koordlet.store import kinds

SPEC = {
    "resourceUsedThresholdWithBE": {
        "enable": True, "cpuSuppressPolicy": "cfsQuota", "memoryEvictThresholdPercent": 70,
        "cpuEvictBESatisfactionUpperPercent": 90, "cpuEvictBESatisfactionLowerPercent": 60, "cpuEvictTimeWindowSeconds": 20,
    },
    "cpuBurstStrategy": {"policy": "auto", "cfsQuotaBurstPeriodSeconds": 30},
    "resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}},
    "extensions": {"interference": {}, "resourceTuning": {}},
}  # fmt: skip
GATES = frozenset(
    {"BECPUSuppress", "BEMemoryEvict", "BECPUEvict", "CPUBurst", "CgroupReconcile", "InterferenceDetection", "ResourceTuning"}
)
#: Seconds: when the service begins to wait, when memory is full, and the end.
WAITS, FULL, END = 60, 95, 150
FILES = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000", "cpu.cfs_burst_us": "0", "cpu.shares": "2", "memory.min": "0"}


class _Evictions:
    def __init__(self) -> None:
        self.submitted: list[tuple[str, tuple[str, ...]]] = []

    def busy(self, strategy: str) -> bool:
        return False

    def submit(self, strategy: str, tasks: Any, mode: Mode, done: Callable[[int], None]) -> None:
        self.submitted.append((strategy, tuple(v.pod.name for task in tasks for v in task.victims)))
        done(1)


@dataclasses.dataclass
class Lived:
    """``helped``: for how many seconds a pod that starts had more weight."""

    files: dict[str, str]
    evictions: list[tuple[str, tuple[str, ...]]]
    told: list[tuple[str, str, str]]
    helped: int


def lived(w: Any, leap: float, at: int) -> Lived:
    """Two and a half minutes of a node, with a clock that is set by ``leap`` seconds in second ``at``."""
    machine = w.machine
    machine.recorder = Recorder("koordlet", [RingSink(total=20_000)])
    w.spec = SPEC
    cpu = {"cpu": "2", "memory": "4Gi"}
    web = w.pod("web", qos="LS", requests=cpu, limits=cpu)
    jobs = [w.pod(name, qos="BE", kube_qos="BestEffort", labels={"koordinator.sh/eviction-enabled": "true"}) for name in ("miner", "other")]
    new = w.pod("new", qos="BE", kube_qos="BestEffort", phase="Pending")
    meta = msgspec.structs.replace(new.pod.metadata, creation_timestamp=format_time(w.now))
    new = w.pods[-1] = dataclasses.replace(new, pod=msgspec.structs.replace(new.pod, metadata=meta))
    groups = machine.host.cgroups
    for directory in (groups.kubepods, groups.qos_dir("Burstable"), groups.qos_dir("BestEffort"), *(p.cgroup_dir for p in w.pods),
                      *(p.containers[0].cgroup_dir for p in w.pods)):  # fmt: skip
        for name, text in FILES.items():
            machine.put(name, directory, text if name != "cpu.cfs_quota_us" or "besteffort" not in directory else "-1")
    evictions = _Evictions()
    manager = QOSManager(
        make_strategies(Options(psi_collector_interval=1.0), GATES.__contains__), executor=machine.executor, evicting=evictions,
        recorder=machine.recorder, metrics=machine.metrics, modes=lambda _: Mode.ENFORCE, notify=lambda _: None,
    )  # fmt: skip
    helped = 0
    start = w.now
    for second in range(END):
        w.now = start + second + (leap if second >= at else 0.0)
        if second == at:
            w.store.clock_stepped(leap, w.now)
        machine.now = second
        waiting, work = (40.0, 6.0) if second >= WAITS else (4.0 + second % 3 / 10, 0.5 + second % 2 / 10)
        w.load(8.0 + work, web=1.8, miner=work, other=1.0, new=0.0)
        for what, cores in (("usage", 3000.0), ("request", 8000.0), ("real-limit", 3000.0)):
            w.sample(kinds.NODE_BE, cores, "cpu", what)
        w.sample(kinds.POD_PSI, waiting, web.uid, "cpu", "10", "some")
        w.sample(kinds.CONTAINER_CPU_THROTTLED, 0.5 if second % 40 < 20 else 0.0, web.containers[0].id)
        w.sample(kinds.CONTAINER_CPU, 1.8, web.containers[0].id)
        w.sample(kinds.NODE_MEMORY, (0.9 if second >= FULL else 0.4) * 64 * 2**30)
        for job in jobs:
            w.sample(kinds.POD_MEMORY, 2**30, job.uid)
        manager.tick(w.snapshot(), 5000.0 + second)
        helped += machine.get("cpu.shares", new.cgroup_dir) == "1024"
    told = [(r.rule, r.verdict, r.subject.name) for r in machine.recorder.ring.find()]
    values = {str(p.relative_to(machine.base)): p.read_text() for p in Path(machine.root.cgroup).rglob("*") if p.is_file()}
    return Lived(values, evictions.submitted, told, helped)


@pytest.fixture(scope="module")
def live(make_machine, make_world) -> Callable[..., Any]:
    @functools.cache
    def live(leap: float = 0.0, at: int = 0) -> Any:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
            machine = make_machine(Path(base))
            try:
                return lived(make_world(machine), leap, at)
            finally:
                machine.journal.close()
                machine.host.files.close_all()

    return live


@pytest.mark.parametrize(("leap", "at"), [(14 * 86400.0, 20), (-3600.0, 45), (3600.0, 70), (-14 * 86400.0, 100)])
def test_no_decision_hangs_on_the_wall_clock(live: Callable[..., Any], leap: float, at: int) -> None:
    steady, stepped = live(), live(leap, at)
    assert {"BECPUSuppress", "CPUBurst", "InterferenceDetection"} <= {rule for rule, *_ in steady.told}
    assert {strategy for strategy, _ in steady.evictions} == {"MemoryEvict", "CPUEvict"}
    assert stepped.files == steady.files
    assert stepped.helped == steady.helped, "a pod that starts is helped for as long"
    for rule in {rule for rule, *_ in steady.told}:
        assert {r for r in stepped.told if r[0] == rule} == {r for r in steady.told if r[0] == rule}
    for strategy, count in Counter(steady.evictions).items():
        assert abs(Counter(stepped.evictions)[strategy] - count) <= 3, "a window of samples begins anew"
