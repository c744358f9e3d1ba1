"""What koordlet keeps in memory of pods that came and went: objects, counted with the collector of cycles off."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from koord.decisions.recorder import Recorder
from koord.decisions.ring import RingSink
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.eviction.runner import EvictionRunner
from roles.koordlet.hooks.manager import HooksManager
from roles.koordlet.host.errors import HostFileError
from roles.koordlet.host.files import HostFiles
from roles.koordlet.options import Options
from roles.koordlet.qos.manager import QOSManager
from roles.koordlet.qos.registry import make_strategies
from roles.koordlet.sensing.base import TROUBLE_ROUNDS, SensingContext
from roles.koordlet.sensing.loop import SensingLoop
from roles.koordlet.sensing.registry import make_collectors
from roles.koordlet.states.podinformer import export_container_resources

AT_ONCE, FIRST, BATCHES = 9, 3, 4
#: Objects of a kind a pod that count as kept: a module that is loaded late, or a tool's thread, leaves a few of all together.
LEFT = 5.0
CLASSES = (("LS", "Burstable"), ("BE", "BestEffort"), ("LSR", "Guaranteed"))
SPEC = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
    "cpuBurstStrategy": {"policy": "auto"},
    "resourceQOSStrategy": {
        "policies": {"cpuPolicy": "groupIdentity"},
        **{f"{name}Class": {"memoryQOS": {"enable": True, "minLimitPercent": 50}} for name in ("ls", "lsr", "be")},
    },
    "extensions": {"interference": {}, "resourceTuning": {}},
}
ON = {
    "BECPUSuppress", "BEMemoryEvict", "BECPUEvict", "CPUBurst", "CgroupReconcile", "InterferenceDetection", "ResourceTuning",
    "PSICollector", "CPUSetAllocator", "BatchResource", "GroupIdentity", "OOMScoreAdj", "MemoryOffloading",
}  # fmt: skip
FILES = {
    "cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000", "cpu.cfs_burst_us": "0", "cpu.shares": "512",
    "cpu.bvt_warp_ns": "0", "cpuset.cpus": "0-15", "memory.min": "0", "memory.low": "0", "memory.high": "0",
    "memory.limit_in_bytes": "1073741824",
    "memory.stat": "".join(f"total_{k} 4096\n" for k in (
        "cache", "rss", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")),
    "cpu.stat": "nr_periods 10\nnr_throttled 1\nthrottled_time 5\n", "cpuacct.usage": "1000000",
    "cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n",
    "memory.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "io.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}  # fmt: skip


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What only the collector of cycles would free counts as kept: between its rounds it is."""
    logging.disable()  # what pytest keeps of it would count
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


class Node:
    """All collectors, strategies and hooks on the machine of a world, moved by hand."""

    def __init__(self, world, mode: Mode) -> None:
        self.world, self.mono, self.made = world, 1000.0, 0
        self.machine = machine = world.machine
        world.spec = SPEC
        gate, picture = ON.__contains__, partial(world.snapshot, fresh=False)
        options = Options(psi_collector_interval=1.0, mode=str(mode))
        machine.executor = self.executor = Executor(
            machine.host, machine.journal, metrics=machine.metrics, recorder=machine.recorder, clock=lambda: self.mono
        )
        context = SensingContext(machine.host, world.store, machine.metrics, lambda: tuple(world.pods), lambda: world.slo, lambda: "", gate,
            options=options,
        )  # fmt: skip
        self.evictions = EvictionRunner(_Nobody(), machine.recorder, lambda _: mode, metrics=machine.metrics)
        self.manager = QOSManager(
            make_strategies(options, gate), executor=self.executor, evicting=self.evictions, recorder=machine.recorder,
            metrics=machine.metrics, modes=lambda _: mode, notify=lambda _: None,
        )  # fmt: skip
        self.hooks = HooksManager(options, self.executor, machine.metrics, gate, lambda _: mode, picture, lambda _: None)
        self.sensing = SensingLoop(
            make_collectors(context), files=machine.host.files, store=world.store,
            metrics=machine.metrics, interval=1.0, on_tick=lambda _: self.manager.tick(picture(), self.mono),
            sweep=machine.host.cgroups.age,
        )  # fmt: skip

    async def rest(self) -> None:
        """As long as troubles of what is gone are remembered, and until the journal lets go of it."""
        for _ in range(2 * TROUBLE_ROUNDS):
            await self.second()
        self.machine.journal.compact()

    async def second(self, seconds: int = 1) -> None:
        self.mono += seconds
        self.world.now += seconds
        self.sensing.tick(self.world.now, self.mono)
        await self.hooks.once()

    async def batch(self) -> None:
        """Pods that live three seconds; their groups go a second before the kubelet says so. Then two minutes of quiet."""
        world, put = self.world, self.machine.put
        self.made += 1
        for index in range(AT_ONCE):
            qos, kube_qos = CLASSES[index % 3]
            amount = {"cpu": "1", "memory": "1Gi"}
            pod = world.pod(f"p{self.made}-{index}", qos=qos, kube_qos=kube_qos, requests=amount, limits=amount, containers=2)
            for directory in (pod.cgroup_dir, *(c.cgroup_dir for c in pod.containers)):
                for name, text in FILES.items():
                    put(name, directory, text)
        export_container_resources(self.machine.metrics, tuple(world.pods))
        for _ in range(3):
            await self.second()
        for pod in world.pods:
            for controller in os.listdir(self.machine.root.cgroup):
                shutil.rmtree(os.path.join(self.machine.root.cgroup, controller, pod.cgroup_dir), ignore_errors=True)
        await self.second()
        world.pods.clear()
        export_container_resources(self.machine.metrics, ())
        await self.second()
        cgroups = self.machine.host.cgroups
        assert not [key for key in (*cgroups._paths, *cgroups._dirs) if "-pod" in key[1]], "paths of pods that are gone"
        for _ in range(3):
            await self.second(61)


class _Nobody:
    def recently_evicted(self, uid: str) -> bool:
        return False

    async def evict(self, pod, gate: str, why: str) -> str | None:
        return "not here"


def kept() -> Counter[str]:
    return Counter(f"{type(o).__module__}.{type(o).__name__}" for o in gc.get_objects())


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.usefixtures("no_collector")
def test_pods_that_are_gone_leave_nothing(world, mode: Mode) -> None:
    world.machine.recorder = Recorder("koordlet", [RingSink(total=50)])

    async def story() -> None:
        node = Node(world, mode)
        counts = []
        for batches in (FIRST, BATCHES):
            for _ in range(batches):
                await node.batch()
            await node.rest()
            counts.append(kept())
        await node.evictions.stop()
        before, after = counts
        grown = {name: (after[name] - before[name]) / (BATCHES * AT_ONCE) for name in after}
        assert {name: count for name, count in grown.items() if count >= LEFT} == {}

    asyncio.run(story())


@pytest.mark.feature("KLO-SYS-02")
@pytest.mark.usefixtures("no_collector")
def test_a_file_that_is_not_there_keeps_no_caller(tmp_path: Path) -> None:
    """An error of this tick that is told again must not hold the frames that it went through."""

    class Held:
        pass

    files, before = HostFiles(), len(gc.get_objects())
    for number in range(100):
        held = Held()
        for _ in range(3):
            with pytest.raises(HostFileError, match="cgroup directory does not exist"):
                files.read(str(tmp_path / f"gone{number}/cpu.stat"))
    del held
    files.begin_tick()
    assert len(gc.get_objects()) - before < 100
    assert not [o for o in gc.get_objects() if isinstance(o, Held)]
