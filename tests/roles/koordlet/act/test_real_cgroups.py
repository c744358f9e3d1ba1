"""Strategies and executor on this machine's own cgroup v1 controllers, with processes that burn CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from roles.koordlet.actuation.restore import restore
from roles.koordlet.actuation.writes import Batch, Merge, Write, sequence
from roles.koordlet.options import Options
from roles.koordlet.qos.burst import CPUBurst
from roles.koordlet.qos.suppress import BECPUSuppress
from tests.support import patience

pytestmark = pytest.mark.root

QOS = "kubepods.slice/kubepods-besteffort.slice"


@pytest.mark.feature("KA-SUP-02")
def test_best_effort_cpu_falls_within_a_second_of_a_load_step(world, tree, gates, build_node, build_topology):
    """One tick a second, as in the agent: the first tick after the step takes effect, and everything is put back."""
    cores = os.cpu_count() or 1
    be = world.pod("be", qos="BE", kube_qos="BestEffort")
    ls = world.pod("ls", qos="LS")
    tree.make(be.containers[0].cgroup_dir, ls.containers[0].cgroup_dir)
    before = tree.values()
    world.node, world.topology = build_node(str(cores)), build_topology(cores, threads=1)
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    strategy = BECPUSuppress(Options(), gates("BECPUSuppress"))
    tree.burn(be.containers[0].cgroup_dir, cores)
    last: dict[str, int] = {}

    def tick(state):
        """Sample as the collectors do, decide, write."""
        world.now = time.time()
        rates = {}
        for pod in (be, ls):
            value = tree.used(pod.cgroup_dir)
            rates[pod.name] = max(value - last.get(pod.uid, value), 0) / 1e9 / elapsed
            last[pod.uid] = value
        world.load(sum(rates.values()), **rates)
        return world.run(strategy, state)

    elapsed = 1.0
    state = tick(None)
    time.sleep(1.0)
    state = tick(state)
    quiet = int(world.machine.get("cpu.cfs_quota_us", QOS))

    tree.burn(ls.containers[0].cgroup_dir, cores)
    begun, step = last[ls.uid], time.monotonic()
    time.sleep(1.0)
    for _ in patience.tries(100):  # on a busy machine they start late
        if tree.used(ls.cgroup_dir) - begun > 0.2e9:
            break
        time.sleep(0.05)
    elapsed = time.monotonic() - step
    tick(state)
    quota = int(world.machine.get("cpu.cfs_quota_us", QOS))
    start, mark = tree.used(be.cgroup_dir), time.monotonic()
    time.sleep(0.8)
    rate = (tree.used(be.cgroup_dir) - start) / 1e9 / (time.monotonic() - mark)

    assert quota < quiet, "the others' load is taken from the allowance"
    assert rate <= quota / 100_000 * 1.25 + 0.1
    assert restore(world.machine.root).failed == []
    assert tree.values() == before


@pytest.mark.feature("KA-SUP-02")
def test_a_pod_that_starts_at_the_least_quota_gets_its_share_of_the_tier(world, tree, gates, build_node, build_topology):
    """Batch pods that request whole cores burn what the tier has; a plain pod of weight 2 that starts has as much as they."""
    busy, fresh = (
        world.pod(name, qos="BE", kube_qos="BestEffort", phase=phase) for name, phase in (("busy", "Running"), ("fresh", "Pending"))
    )
    tree.make(busy.containers[0].cgroup_dir, fresh.containers[0].cgroup_dir)
    world.pod("ls", qos="LS")
    cores = os.cpu_count() or 1
    world.node, world.topology = build_node(str(cores)), build_topology(cores, threads=1)
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    for pod, shares in ((busy, "1024"), (fresh, "2")):
        Path(world.machine.host.cgroups.file("cpu.shares", pod.cgroup_dir)).write_text(shares)
    strategy = BECPUSuppress(Options(), gates("BECPUSuppress"))
    world.load(float(cores), ls=float(cores))
    world.run(strategy)
    cpu = min(os.sched_getaffinity(0))
    tree.burn(busy.containers[0].cgroup_dir, cores, cpu=cpu)
    tree.burn(fresh.containers[0].cgroup_dir, cores, cpu=cpu)
    begun = tree.used(fresh.cgroup_dir)
    for _ in patience.tries(200):
        time.sleep(0.05)
        mine = tree.used(fresh.cgroup_dir) - begun
        if mine > 0.1e9:
            break
    assert mine > 0.1e9, "a tenth of a second of CPU, which makes a sandbox, within ten seconds"
    assert mine > 0.25 * (tree.used(busy.cgroup_dir) + mine) / 2
    assert restore(world.machine.root).failed == []


@pytest.mark.feature("KA-SUP-02")
def test_a_level_at_cpu_idle_fills_the_node_and_yields_without_a_quota(world, tree, gates, build_node, build_topology):
    cores = os.cpu_count() or 1
    be = world.pod("be", qos="BE", kube_qos="BestEffort")
    ls = world.pod("ls", qos="LS")
    tree.make(be.containers[0].cgroup_dir, ls.containers[0].cgroup_dir)
    idle = Path(world.machine.host.cgroups.file("cpu.idle", QOS))
    if not idle.exists():
        pytest.skip("needs a kernel with cpu.idle")
    world.node, world.topology = build_node(str(cores)), build_topology(cores, threads=1)
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 100}}
    strategy = BECPUSuppress(Options(), gates("BECPUSuppress"))
    world.load(0.6 * cores, be=0.2, ls=0.2)
    state = world.run(strategy)
    assert int(world.machine.get("cpu.cfs_quota_us", QOS)) > 0, "without cpu.idle a quota"
    idle.write_text("1")
    state = world.run(strategy, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "-1"

    cpu = min(os.sched_getaffinity(0))
    tree.burn(be.containers[0].cgroup_dir, cores, cpu=cpu)
    tree.burn(ls.containers[0].cgroup_dir, cores, cpu=cpu)
    # what the rest of the machine takes from both is not the point, and on a busy one they start late
    share = 1.0
    for _ in patience.tries(10):
        begun = tree.used(be.cgroup_dir), tree.used(ls.cgroup_dir)
        time.sleep(0.5)
        mine, others = tree.used(be.cgroup_dir) - begun[0], tree.used(ls.cgroup_dir) - begun[1]
        share = mine / max(mine + others, 1)
        if others and share < 0.1:
            break
    assert share < 0.1, f"{share:.2f} of the CPU beside a service that wants all"
    idle.write_text("0")


@pytest.mark.feature("KA-SUP-01")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_cpusets_grow_and_shrink_with_processes_in_them(world, tree):
    machine = world.machine
    pods = [world.pod(f"be{i}", qos="BE", kube_qos="BestEffort", containers=2) for i in range(2)]
    boxes = [c.cgroup_dir for p in pods for c in p.containers]
    tree.make(*boxes)
    before = tree.values()
    for box in boxes:
        tree.burn(box)
    levels = [[QOS], [p.cgroup_dir for p in pods], boxes]
    all_cpus = machine.get("cpuset.cpus", QOS)
    for wanted in ("0", "1", "0-1", "1", all_cpus, "0"):
        batch = Batch(tuple(tuple(Write("cpuset.cpus", d, wanted, merge=Merge.LOOSER_CPUSET) for d in level) for level in levels))
        applied = machine.executor.apply([batch], rule="test", now=time.time())
        assert applied.failed == []
        assert {machine.get("cpuset.cpus", d) for level in levels for d in level} == {wanted}
        assert Path(f"/proc/{tree.processes[0].pid}/status").read_text().split("Cpus_allowed_list:")[1].split()[0] == wanted
    assert restore(machine.root).failed == []
    assert tree.values() == before


@pytest.mark.feature("KA-EXE-01")
def test_the_kernels_refusals_are_told_and_leave_the_rest(world, tree):
    machine = world.machine
    pod = world.pod("be", qos="BE", kube_qos="BestEffort")
    box = pod.containers[0].cgroup_dir
    tree.make(box)
    tree.burn(box)

    def apply(*writes):
        return machine.executor.apply([sequence(*writes)], rule="test", now=time.time())

    # a parent below its child: the kernel says so, and the executor with levels avoids it
    assert apply(Write("cpu.cfs_quota_us", box, "50000", cached=False)).failed == []
    refused = apply(Write("cpu.cfs_quota_us", QOS, "20000"), Write("cpu.shares", box, "512"))
    assert [str(e.trouble) for e in refused.failed] == ["invalid"]
    assert machine.get("cpu.shares", box) == "512"
    merge = {"merge": Merge.LARGER_QUOTA, "cached": False}
    levels = Batch(((Write("cpu.cfs_quota_us", QOS, "20000", **merge),), (Write("cpu.cfs_quota_us", box, "20000", **merge),)))
    assert machine.executor.apply([levels], rule="test", now=time.time()).failed == []
    assert apply(Write("memory.limit_in_bytes", box, str(64 << 20))).failed == []
    assert machine.get("memory.limit_in_bytes", box) == str(64 << 20)
    assert apply(Write("cpu.shares", "kubepods.slice/gone", "512")).failed == []


@pytest.mark.feature("KA-SUP-02")
def test_children_with_quotas_make_way_on_the_real_kernel(world, tree, gates, build_node, build_topology):
    pod = world.pod("be", qos="BE", kube_qos="BestEffort")
    box = pod.containers[0].cgroup_dir
    tree.make(box)
    before = tree.values()
    world.node, world.topology = build_node("4"), build_topology(os.cpu_count() or 1, threads=1)
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    for directory, quota in ((pod.cgroup_dir, "150000"), (box, "120000")):
        world.machine.executor.apply([sequence(Write("cpu.cfs_quota_us", directory, quota))], rule="test", now=time.time())
    world.load(2.0, be=0.1)
    world.run(BECPUSuppress(Options(), gates("BECPUSuppress")))
    assert [world.machine.get("cpu.cfs_quota_us", d) for d in (QOS, pod.cgroup_dir, box)] == ["70000", "-1", "-1"]
    assert restore(world.machine.root).failed == []
    assert tree.values() == before


@pytest.mark.feature("KA-BST-01")
@pytest.mark.feature("KA-BST-02")
def test_burst_up_and_down_on_the_real_kernel(world, tree, gates, build_topology):
    if not Path("/sys/fs/cgroup/cpu", tree.name, "cpu.cfs_burst_us").exists():
        pytest.skip("this kernel has no cpu.cfs_burst_us")
    pod = world.pod("ls", qos="LS", limits={"cpu": "500m"})
    box = pod.containers[0].cgroup_dir
    tree.make(box)
    before = tree.values()
    world.topology = build_topology(4)
    for directory in (pod.cgroup_dir, box):
        Path(world.machine.host.cgroups.file("cpu.cfs_quota_us", directory)).write_text("50000")
    original = tree.values()
    strategy = CPUBurst(Options(), gates("CPUBurst"))
    world.spec = {"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000}}
    get = world.machine.get
    for expected in ("60000", "72000"):
        world.load(0.5)
        world.sample("container_cpu_throttled", 0.5, pod.containers[0].id)
        world.run(strategy)
        world.now += 1
        assert [get("cpu.cfs_quota_us", d) for d in (pod.cgroup_dir, box)] == [expected, expected]
        assert get("cpu.cfs_burst_us", box) == "50000", "no more than the limit: one that is made smaller must fit under the quota"
    world.spec = {}
    world.load(0.5)
    world.run(strategy)
    assert [get(f, box) for f in ("cpu.cfs_quota_us", "cpu.cfs_burst_us")] == ["50000", "0"]
    assert restore(world.machine.root).failed == []
    assert tree.values() == original != before


@pytest.mark.feature("KA-HK-05")
def test_the_weight_comes_back_when_a_group_is_idle_no_more(world, tree):
    """The kernel gives a group that stops being idle the default weight; best-effort pods would then weigh as much as the others."""
    if not Path("/sys/fs/cgroup/cpu", tree.name, "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")
    machine = world.machine
    tree.make(QOS)
    Path(machine.host.cgroups.file("cpu.shares", QOS)).write_text("2")
    before = tree.values()

    def idle(value):
        applied = machine.executor.apply([sequence(Write("cpu.idle", QOS, value))], rule="test", now=time.time())
        assert applied.failed == []
        return machine.get("cpu.idle", QOS), machine.get("cpu.shares", QOS)

    assert idle("1")[0] == "1"
    assert idle("0") == ("0", "2")
    assert idle("1")[0] == "1"
    assert restore(machine.root).failed == []
    assert (machine.get("cpu.idle", QOS), tree.values()) == ("0", before)


@pytest.mark.feature("KA-SUP-03")
@pytest.mark.parametrize("switched", [{"enable": True, "cpuSuppressPolicy": "cpuset"}, {"enable": False}], ids=["other policy", "off"])
def test_the_quota_is_given_back_on_the_real_kernel(world, tree, gates, build_node, build_topology, switched):
    be = world.pod("be", qos="BE", kube_qos="BestEffort")
    tree.make(be.containers[0].cgroup_dir)
    tree.burn(be.containers[0].cgroup_dir)
    before = tree.values()
    cores = os.cpu_count() or 1
    world.node, world.topology = build_node(str(cores)), build_topology(cores, threads=1)
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    strategy = BECPUSuppress(Options(), gates("BECPUSuppress"))
    world.load(cores * 0.9, be=0.1)
    state = world.run(strategy)
    assert 0 < int(world.machine.get("cpu.cfs_quota_us", QOS)) < cores * 100_000
    world.spec = {"resourceUsedThresholdWithBE": switched}
    for _ in range(2):
        world.now += 1
        world.load(cores * 0.1, be=0.1)
        state = world.run(strategy, state)
    assert world.machine.get("cpu.cfs_quota_us", QOS) == "-1"
    assert restore(world.machine.root).failed == []
    assert tree.values() == before
