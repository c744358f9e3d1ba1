"""Tuning of services, and what is done about pods that slow them down, on this machine's own cgroup v1 controllers."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.holds import Holds
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import holds_path, restore
from roles.koordlet.host import parse
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.storage import LocalStorage
from roles.koordlet.options import Options
from roles.koordlet.qos import interference
from roles.koordlet.qos.blkio import BlkIOReconcile
from roles.koordlet.qos.interference import InterferenceDetection
from roles.koordlet.qos.tuning import ResourceTuning
from roles.koordlet.states.model import HostState
from roles.koordlet.store import kinds
from tests.support import patience

pytestmark = pytest.mark.root

QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
MIB = 1 << 20
#: Argument: a file, read again and again past the page cache.
READER = """
import mmap, os
buffer = mmap.mmap(-1, 1 << 20)
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
while True:
    if os.preadv(fd, [buffer], 0) <= 0: break
    for at in range(1 << 20, 16 << 20, 1 << 20): os.preadv(fd, [buffer], at)
"""
#: Argument: MiB to touch. Says so and stays.
HOLDER = "data = bytearray(int(sys.argv[1]) << 20)\nprint('held', flush=True)\nimport time\ntime.sleep(100)"


@pytest.fixture
def machine(machine: Any) -> Any:
    """With the real processes, so that their scores can be set, and holds on disk."""
    machine.root = HostRoot.at(str(machine.base)).with_dirs(proc="/proc")
    machine.host = HostState(machine.root, replace_root(machine.host.cgroups, machine.root), machine.host.files)
    holds = Holds(Journal(holds_path(machine.root)))
    machine.executor = Executor(machine.host, machine.journal, holds=holds, recorder=machine.recorder, clock=lambda: machine.now)
    return machine


def replace_root(cgroups: Any, root: HostRoot) -> Any:
    return type(cgroups)(root, cgroups.version, cgroups.driver)


class Ticks:
    """Decides on what is measured of real groups, a step at a time."""

    def __init__(self, world: Any, strategy: Any) -> None:
        self.world, self.strategy, self.state, self.outcome = world, strategy, strategy.initial(), None
        self._periods: dict[str, tuple[int, int]] = {}

    def throttled(self, container: Any) -> float:
        """Throttled share of the periods since the last call."""
        path = self.world.machine.host.cgroups.file("cpu.stat", container.cgroup_dir)
        periods, throttled = parse.throttled_periods(path, Path(path).read_bytes(), v2=False)
        before = self._periods.get(container.id, (periods, throttled))
        self._periods[container.id] = (periods, throttled)
        return (throttled - before[1]) / (periods - before[0]) if periods > before[0] else 0.0

    def step(self, passed: float) -> None:
        self.world.now += passed
        self.world.machine.now += passed
        outcome = self.world.decide(self.strategy, self.state)
        self.state, self.outcome = outcome.state, outcome
        applied = self.world.machine.executor.apply(outcome.batches, rule=self.strategy.name, now=self.world.now)
        assert applied.failed == []


@pytest.mark.feature("BEY-TUNE-01")
def test_a_throttled_service_gets_more_and_gives_it_back(world, tree, gates, build_topology) -> None:
    pod = world.pod("web", qos="LS", limits={"cpu": "50m"})
    (container,) = pod.containers
    tree.make(container.cgroup_dir)
    get = world.machine.get
    for directory in (pod.cgroup_dir, container.cgroup_dir):
        Path(world.machine.host.cgroups.file(QUOTA, directory)).write_text("5000")
    before = tree.values()
    world.topology = build_topology(4)
    ticks = Ticks(world, ResourceTuning(Options(), gates("ResourceTuning", "CPUBurst")))
    tree.burn(container.cgroup_dir)
    ticks.throttled(container)
    seen = [5000]
    deadline = time.monotonic() + patience.seconds(40)
    while seen[-1] == 5000 and time.monotonic() < deadline:
        time.sleep(0.3)
        world.load(0.5)
        world.sample(kinds.CONTAINER_CPU_THROTTLED, ticks.throttled(container), container.id)
        ticks.step(5.0)
        seen.append(int(get(QUOTA, container.cgroup_dir)))
    assert seen[-1] == 6000, "a step up, by measured throttling on the real kernel"
    assert get(QUOTA, pod.cgroup_dir) == "6000"
    if Path(world.machine.host.cgroups.file(BURST, container.cgroup_dir)).exists():
        assert get(BURST, container.cgroup_dir) == "5000"
    tree.processes[0].kill()
    for _ in range(14):
        ticks.step(55.0)
        world.load(0.5)
        world.sample(kinds.CONTAINER_CPU_THROTTLED, 0.0, container.id)
        ticks.step(6.0)
    assert tree.values() == before
    assert restore(world.machine.root).failed == []
    assert tree.values() == before


@pytest.mark.feature("BEY-TUNE-01")
@pytest.mark.feature("BEY-JRN-01")
def test_a_kill_by_the_kernel_makes_the_others_of_the_container_less_likely_to_die(world, tree, gates) -> None:
    pod = world.pod("web", qos="LS", limits={"memory": "48Mi"}, requests={"memory": "32Mi"})
    (container,) = pod.containers
    tree.make(container.cgroup_dir)
    survivor = tree.run(container.cgroup_dir, HOLDER, "4")
    assert survivor.stdout.readline() == b"held\n"
    score = Path(f"/proc/{survivor.pid}/oom_score_adj")
    own = int(score.read_text())
    if own > 100:
        pytest.skip("the tests themselves run with a raised oom_score_adj")
    score.write_text("700")
    limit = Path(world.machine.host.cgroups.file("memory.limit_in_bytes", container.cgroup_dir))
    limit.write_text(str(48 * MIB))
    ticks = Ticks(world, ResourceTuning(Options(), gates("ResourceTuning")))
    ticks.step(5.0)
    assert score.read_text().strip() == "700"
    glutton = tree.run(container.cgroup_dir, "open('/proc/self/oom_score_adj', 'w').write('1000')\n" + HOLDER, "200")
    assert glutton.wait(timeout=patience.seconds(60)) == -9, "killed for want of memory"
    ticks.step(5.0)
    assert score.read_text().strip() == "100", "three steps at once"
    (record,) = ticks.outcome.records
    assert (record.numbers["kills"], record.numbers["level"]) == (1, 3)
    assert survivor.poll() is None
    for expected in ("300", "500", "700"):
        ticks.step(61.0)
        ticks.step(61.0) if expected == "300" else None
        assert score.read_text().strip() == expected
    glutton_again = tree.run(container.cgroup_dir, "open('/proc/self/oom_score_adj', 'w').write('1000')\n" + HOLDER, "200")
    assert glutton_again.wait(timeout=patience.seconds(60)) == -9
    ticks.step(5.0)
    assert score.read_text().strip() == "100"
    assert restore(world.machine.root).failed == []
    assert score.read_text().strip() == "700", "restored while it was tuned"


class Slowed:
    """A service whose waiting is given, and a pod that really burns CPU or disk."""

    def __init__(self, world: Any, tree: Any, gates: Any, signal: str) -> None:
        self.world, self.signal = world, signal
        self.web = world.pod("web", qos="LS")
        self.miner = world.pod("miner", qos="BE", kube_qos="BestEffort")
        self.box = self.miner.containers[0].cgroup_dir
        tree.make(self.box, self.web.containers[0].cgroup_dir)
        self.ticks = Ticks(world, InterferenceDetection(Options(), gates("InterferenceDetection")))

    def look(self, waiting: float, use: float, passed: float = 10.0) -> None:
        self.world.now += passed
        self.world.machine.now += passed
        self.world.sample(kinds.POD_CPU, use, self.miner.uid)
        self.world.sample(kinds.POD_PSI, waiting, self.web.uid, self.signal, "10", "some")
        self.ticks.step(0.0)


@pytest.fixture
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(interference, "WARM_UP", 5)
    monkeypatch.setattr(interference, "LEAST_POINTS", 4)


def rate_of(read: Any, seconds: float) -> float:
    """How fast a counter grows."""
    first, begun = read(), time.monotonic()
    time.sleep(seconds)
    return (read() - first) / (time.monotonic() - begun)


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.usefixtures("quick")
def test_an_antagonist_is_squeezed_on_the_real_kernel(world, tree, gates) -> None:
    case = Slowed(world, tree, gates, "cpu")
    before = tree.values()
    tree.burn(case.box)
    for number in range(8):
        case.look(2.0 + number % 2 * 0.1, 0.1 + number % 2 * 0.01)
    for _ in range(4):
        case.look(40.0, 0.6)
    assert int(world.machine.get(QUOTA, case.miner.cgroup_dir)) == 30_000
    assert world.machine.get("cpu.shares", case.miner.cgroup_dir) == "2"
    assert rate_of(lambda: tree.used(case.box), 1.0) / 1e9 < 0.45, "three tenths of a CPU"
    for _ in range(4):
        case.look(2.0, 0.1)
    assert tree.values() == before
    assert restore(world.machine.root).failed == []
    assert tree.values() == before


def disk_of(path: Path) -> str | None:
    """``major:minor`` of the whole disk that a file lies on, where it is a real one."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path("/sys/dev/block", number)
    if not block.exists():
        return None
    return (block.resolve().parent / "dev").read_text().strip() if (block / "partition").exists() else number


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.usefixtures("quick")
def test_the_disk_of_an_antagonist_is_throttled_on_the_real_kernel(world, tree, gates, tmp_path) -> None:
    disk = disk_of(tmp_path)
    if disk is None or not Path("/sys/fs/cgroup/blkio", tree.name).exists():
        pytest.skip("the temporary directory lies on no disk of its own, or there is no blkio controller")
    data = tmp_path / "data"
    data.write_bytes(os.urandom(MIB) * 16)
    subprocess.run(["sync", str(data)], check=True)
    case = Slowed(world, tree, gates, "io")
    reader = tree.run(case.box, READER, str(data))
    serviced = Path(world.machine.host.cgroups.file("blkio.throttle.io_service_bytes", case.box))

    def read_bytes() -> int:
        return parse.disk_bytes(serviced.read_bytes(), v2=False)[0].get(disk, 0)

    for number in range(8):
        case.look(1.0 + number % 2 * 0.1, 0.1 + number % 2 * 0.01)
    for _ in range(6):
        case.look(40.0, 0.9, passed=0.5)
        time.sleep(0.5)
        if case.ticks.outcome.state.held and "throttle" in case.ticks.outcome.state.held[case.miner.uid].actions:
            break
    if reader.poll() is not None or read_bytes() == 0:
        pytest.skip("the file system does not read past the page cache here")
    line = world.machine.get("blkio.throttle.read_bps_device", case.box)
    assert line.startswith(f"{disk} ")
    limit = int(line.split()[1])
    assert MIB <= limit < 1 << 40, "half of what it read"
    time.sleep(0.5)
    assert rate_of(read_bytes, 2.0) < limit * 1.3 + 2 * MIB
    for _ in range(4):
        case.look(1.0, 0.1)
    assert world.machine.get("blkio.throttle.read_bps_device", case.box) == ""
    assert restore(world.machine.root).failed == []


@pytest.mark.feature("KA-BLK-01")
@pytest.mark.feature("BEY-JRN-01")
def test_limits_of_disks_come_and_go_on_the_real_kernel(world, tree, gates, tmp_path) -> None:
    disk = disk_of(tmp_path)
    if disk is None or not Path("/sys/fs/cgroup/blkio", tree.name).exists():
        pytest.skip("the temporary directory lies on no disk of its own, or there is no blkio controller")
    tier = "kubepods.slice/kubepods-besteffort.slice"
    pod = world.pod("be", qos="BE", kube_qos="BestEffort")
    tree.make(pod.containers[0].cgroup_dir)
    world.storage = LocalStorage(disks={"/dev/disk": disk})
    strategy = BlkIOReconcile(Options(), gates("BlkIOReconcile"))

    def configured(**limits: int) -> dict[str, str]:
        block = {"name": "/dev/disk", "type": "device", "ioCfg": limits}
        world.spec = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [block] if limits else []}}}}
        world.run(strategy)
        names = ("read_bps", "write_bps", "read_iops", "write_iops")
        return {name: world.machine.get(f"blkio.throttle.{name}_device", tier) for name in names}

    assert configured(readBPS=2 * MIB, writeIOPS=100) == {
        "read_bps": f"{disk} {2 * MIB}",
        "write_bps": "",
        "read_iops": "",
        "write_iops": f"{disk} 100",
    }
    assert configured(readBPS=4 * MIB)["read_bps"] == f"{disk} {4 * MIB}"
    assert set(configured().values()) == {""}
    configured(readBPS=MIB)
    assert restore(world.machine.root).failed == []
    assert world.machine.get("blkio.throttle.read_bps_device", tier) == ""
