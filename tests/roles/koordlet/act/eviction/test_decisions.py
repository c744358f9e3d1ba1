"""Who is to be evicted, and how much has to go (KA-CEV-01..03, KA-MEV-01..03)."""

from __future__ import annotations

from itertools import permutations

import pytest

from roles.koordlet.eviction.victims import order_by_cpu_ratio, order_by_memory
from roles.koordlet.options import Options
from roles.koordlet.qos.cpuevict import CPUEvict
from roles.koordlet.qos.evict_common import EvictState
from roles.koordlet.qos.memevict import MemoryEvict
from roles.koordlet.store import kinds

GI = 1 << 30
READY = EvictState(cooling_since=0.0)
OPT_IN = {"koordinator.sh/eviction-enabled": "true"}
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


@pytest.fixture
def cpu(gates):
    return CPUEvict(Options(), gates("BECPUEvict", "CPUEvict", "CPUAllocatableEvict"))


@pytest.fixture
def memory(gates):
    return MemoryEvict(Options(), gates("BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict"))


def threshold(world, **values):
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, **values}}


def tier(world, usage: float, request: float, limit: float, seconds: int = 5) -> None:
    for ago in range(seconds, -1, -1):
        for name, value in (("usage", usage), ("request", request), ("real-limit", limit)):
            world.sample("node_be", value, "cpu", name, ago=ago)


def only(outcome, gate):
    found = [t for t in outcome.tasks if t.gate == gate]
    return found[0] if found else None


def names(task):
    return [v.pod.name for v in task.victims]


# -- BE satisfaction ---------------------------------------------------------------------------------------------------------


def satisfied(world, **more):
    threshold(world, cpuEvictTimeWindowSeconds=5, cpuEvictBESatisfactionLowerPercent=50, cpuEvictBESatisfactionUpperPercent=80, **more)
    for name, request, priority, used in (("a", "4500", 5100, 1.2), ("b", "4500", 5100, 3.4), ("c", "11000", 5500, 3.2)):
        world.pod(name, qos="BE", kube_qos="BestEffort", requests={BATCH_CPU: request}, priority=priority)
        world.use(**{name: used})


def test_satisfaction_releases_up_to_the_upper_rate(world, cpu):
    satisfied(world)
    tier(world, 7800, 20000, 8000)
    task = only(world.decide(cpu, READY), "BECPUEvict")
    assert dict(task.targets) == {BATCH_CPU: 8000}
    assert names(task) == ["b", "a", "c"], "lower priority first, then who uses most of its request"


@pytest.mark.parametrize(
    ("usage", "request_", "limit", "wanted"),
    [
        (7100, 20000, 8000, None),  # does not use 90 %
        (7800, 20000, 11000, None),  # satisfied well enough
        (10, 20000, 999, 20000 * 0.8 - 999),  # below a core counts as used up
        (0, 20000, 0, None),
        (0, 0, 8000, None),
    ],
)
def test_satisfaction_conditions(world, cpu, usage, request_, limit, wanted):
    satisfied(world)
    tier(world, usage, request_, limit)
    task = only(world.decide(cpu, READY), "BECPUEvict")
    assert (None if task is None else task.targets[BATCH_CPU]) == (None if wanted is None else int(wanted))


def test_satisfaction_that_has_got_better_releases_less(world, cpu):
    satisfied(world)
    tier(world, 7800, 20000, 8000)
    world.now += 1
    for name, value in (("usage", 9500.0), ("request", 20000.0), ("real-limit", 9600.0)):
        world.sample("node_be", value, "cpu", name)
    task = only(world.decide(cpu, READY), "BECPUEvict")
    assert task.targets[BATCH_CPU] == 6400


def test_satisfaction_by_allocatable(world, cpu, build_node):
    satisfied(world, cpuEvictPolicy="evictByAllocatable")
    tier(world, 7800, 20000, 30000)
    assert only(world.decide(cpu, READY), "BECPUEvict") is None, "without batch-cpu there is no limit to judge by"
    world.node = build_node(allocatable={BATCH_CPU: "8000"})
    assert only(world.decide(cpu, READY), "BECPUEvict").targets[BATCH_CPU] == 8000
    world.node = build_node(allocatable={BATCH_CPU: "0"})
    assert only(world.decide(cpu, READY), "BECPUEvict").targets[BATCH_CPU] == 15999


@pytest.mark.feature("KA-CEV-01")
@pytest.mark.parametrize(("seconds", "goes"), [(1300, True), (300, False)])
def test_satisfaction_over_a_long_window(world, cpu, seconds, goes):
    satisfied(world)
    world.spec["resourceUsedThresholdWithBE"]["cpuEvictTimeWindowSeconds"] = 1300
    tier(world, 7800, 20000, 8000, seconds=seconds)
    assert (only(world.decide(cpu, READY), "BECPUEvict") is not None) is goes


def test_few_samples_prove_nothing(world, cpu):
    satisfied(world)
    tier(world, 7800, 20000, 8000, seconds=0)
    assert world.decide(cpu, READY).tasks == ()


@pytest.mark.parametrize(("lower", "upper"), [(65, 80), (0, 80), (50, 100), (50, 40), (None, 80)])
def test_satisfaction_settings_that_cannot_be(world, cpu, lower, upper):
    satisfied(world)
    threshold(world, cpuEvictBESatisfactionLowerPercent=lower, cpuEvictBESatisfactionUpperPercent=upper)
    tier(world, 7800, 20000, 8000)
    outcome = world.decide(cpu, READY)
    assert only(outcome, "BECPUEvict") is None
    assert any(r.rule == "BECPUEvict" and r.verdict == "InvalidConfig" for r in outcome.records)
    assert not any(r.rule == "BECPUEvict" for r in world.decide(cpu, outcome.state).records), "told once"


# -- node CPU ----------------------------------------------------------------------------------------------------------------


def test_cpu_eviction_by_use_and_priority(world, cpu):
    threshold(world, cpuEvictThresholdPercent=80, evictEnabledPriorityThreshold=7000)
    world.pod("prod", qos="LS", labels=OPT_IN, priority=9000)
    world.pod("silent", qos="LS", labels=OPT_IN, priority=5000)
    world.pod("not-asked", qos="LS", priority=5000)
    world.pod("denied", qos="LS", labels=OPT_IN, priority=5000, annotations={"koordinator.sh/eviction-policy": '["MemoryEvict"]'})
    world.pod("big", qos="LS", labels=OPT_IN, priority=5000)
    world.pod("small", qos="LS", labels=OPT_IN, priority=5000)
    world.pod("first", labels=OPT_IN, priority=6000, annotations={"koordinator.sh/eviction-priority": "-5"})
    world.pod("sub", labels={**OPT_IN, "koordinator.sh/priority": "1"}, priority=5000)
    world.use(13.6, prod=1.0, denied=1.0, big=3.0, small=1.0, first=0.5, sub=0.5)
    task = only(world.decide(cpu, READY), "CPUEvict")
    assert dict(task.targets) == {"cpu": 16_000 * (85 - 78) // 100}
    assert names(task) == ["first", "sub", "big", "small"]


def test_cpu_eviction_needs_its_settings(world, cpu):
    world.use(15.9)
    for values in (
        {"cpuEvictThresholdPercent": 80},
        {"evictEnabledPriorityThreshold": 7000},
        {"cpuEvictThresholdPercent": 80, "cpuEvictLowerPercent": 80, "evictEnabledPriorityThreshold": 7000},
    ):
        threshold(world, **values)
        assert only(world.decide(cpu, READY), "CPUEvict") is None


def test_cool_down_from_the_start_and_after_evictions(world, cpu):
    threshold(world, cpuEvictThresholdPercent=80, evictEnabledPriorityThreshold=7000)
    world.use(15.0)
    state = world.decide(cpu).state
    world.now += 19
    world.use(15.0)
    assert world.decide(cpu, state).tasks == ()
    world.now += 1
    world.use(15.0)
    assert world.decide(cpu, state).tasks
    cooled = cpu.evicted(state, world.now)
    assert world.decide(cpu, cooled).tasks == ()


def test_missing_samples_evict_nobody(world, cpu, memory):
    threshold(
        world, cpuEvictThresholdPercent=1, evictEnabledPriorityThreshold=9999, memoryEvictThresholdPercent=2, memoryEvictLowerPercent=1
    )
    world.pod("a", qos="BE", kube_qos="BestEffort", labels=OPT_IN, requests={BATCH_CPU: "1000"})
    assert world.decide(cpu, READY).tasks == ()
    assert world.decide(memory).tasks == ()
    world.use(15.0)
    world.sample("node_memory_usage", 60.0 * GI)
    assert only(world.decide(cpu, READY), "CPUEvict").victims == (), "a pod without a sample is not taken"
    world.spec = {}
    assert world.decide(cpu, READY).tasks == ()
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True}}
    world.node = None
    assert world.decide(cpu, READY).tasks == ()


# -- allocatable -------------------------------------------------------------------------------------------------------------


def test_allocatable_overcommit(world, cpu, build_node):
    threshold(
        world,
        cpuAllocatableEvictThresholdPercent=110,
        cpuAllocatableEvictLowerPercent=100,
        allocatableEvictPriorityThreshold=7999,
    )
    for name, request in (("a", "6000"), ("b", "5000"), ("c", "1000")):
        world.pod(name, qos="BE", kube_qos="BestEffort", requests={BATCH_CPU: request}, labels=OPT_IN, priority=5500)
        world.use(**{name: 0.1})
    world.pod("mid", labels=OPT_IN, priority=7500, requests={"kubernetes.io/mid-cpu": "500"})
    world.pod("free", labels=OPT_IN, priority=3500, requests={"cpu": "8"})
    world.use(1.0, mid=0.1, free=0.1)
    world.node = build_node(allocatable={BATCH_CPU: "10000", "kubernetes.io/mid-cpu": "1000"})
    task = only(world.decide(cpu, READY), "CPUAllocatableEvict")
    assert dict(task.targets) == {BATCH_CPU: 2000}
    assert names(task) == ["a", "b", "c"]
    world.node = build_node()
    task = only(world.decide(cpu, READY), "CPUAllocatableEvict")
    assert dict(task.targets) == {BATCH_CPU: 12000, "kubernetes.io/mid-cpu": 500}
    assert names(task) == ["a", "b", "c", "mid"], "native CPU of free pods is no target"


# -- memory ------------------------------------------------------------------------------------------------------------------


def be_memory(world, **pods: float | None):
    for name, used in pods.items():
        world.pod(name, qos="BE", kube_qos="BestEffort", priority=5500)
        if used is not None:
            world.sample("pod_memory_usage", used * GI, f"uid-{name}")


def test_memory_default_lower_is_two_below(world, memory):
    threshold(world, memoryEvictThresholdPercent=70)
    be_memory(world, a=2.5, b=1.0, unknown=None, unknown2=None)
    world.sample("node_memory_usage", 64 * GI * 0.715)
    outcome = world.decide(memory)
    task = only(outcome, "BEMemoryEvict")
    assert dict(task.targets) == {"memory": 64 * GI * 3 // 100}
    assert names(task) == ["a", "b"], "who has not been read yet is spared"
    assert task.victims[0].releases["used"]["memory"] == int(2.5 * GI)


def test_pods_that_cannot_be_read_are_taken_late_and_one_a_run(world, memory):
    threshold(world, memoryEvictThresholdPercent=70)
    be_memory(world, low=1.0, x=None, y=None)
    world.sample("node_memory_usage", 64.0 * GI)
    state = world.decide(memory).state
    world.now += 5
    be = {p.name: p for p in world.pods}
    world.sample("pod_memory_usage", 1.0 * GI, be["low"].uid)
    world.sample("node_memory_usage", 64.0 * GI)
    assert names(only(world.decide(memory, state), "BEMemoryEvict")) == ["low", "y"]
    for name in ("x", "y"):
        world.sample("pod_memory_usage", 2.0 * GI, be[name].uid)
    later = world.decide(memory, state)
    assert not later.state.unsampled
    assert len(names(only(later, "BEMemoryEvict"))) == 3


def test_a_pod_that_cannot_be_read_takes_no_patience_from_one_that_has_just_come(world, memory):
    threshold(world, memoryEvictThresholdPercent=70)
    state = memory.initial()
    for second in range(8):  # each second a pod comes, and the one before it is read
        be_memory(world, **{f"job-{second}": None})
        world.sample("node_memory_usage", 64.0 * GI)
        outcome = world.decide(memory, state)
        assert names(only(outcome, "BEMemoryEvict")) == [f"job-{n}" for n in range(second)]
        state = outcome.state
        world.now += 1
        for n in range(second + 1):
            world.sample("pod_memory_usage", (9.0 - n) * GI, f"uid-job-{n}")


def test_memory_below_threshold_or_with_bad_settings(world, memory):
    be_memory(world, a=2.5)
    world.sample("node_memory_usage", 64 * GI * 0.699)
    threshold(world, memoryEvictThresholdPercent=70)
    assert world.decide(memory).tasks == ()
    threshold(world, memoryEvictThresholdPercent=60, memoryEvictLowerPercent=60)
    assert world.decide(memory).tasks == ()


def test_memory_by_priority_and_allocatable(world, memory, build_node):
    threshold(
        world,
        memoryEvictThresholdPercent=50,
        memoryEvictLowerPercent=40,
        evictEnabledPriorityThreshold=6000,
        memoryAllocatableEvictThresholdPercent=100,
        memoryAllocatableEvictLowerPercent=90,
        allocatableEvictPriorityThreshold=6000,
    )
    world.node = build_node(allocatable={BATCH_MEMORY: "10Gi"})
    for name, request, used in (("x", "8Gi", 1), ("y", "4Gi", 6)):
        world.pod(name, qos="BE", kube_qos="BestEffort", labels=OPT_IN, priority=5500, requests={BATCH_MEMORY: request})
        world.sample("pod_memory_usage", used * GI, f"uid-{name}")
    world.sample("node_memory_usage", 64 * GI * 0.5)
    outcome = world.decide(memory)
    assert [t.gate for t in outcome.tasks] == ["BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"]
    assert names(only(outcome, "MemoryEvict")) == ["y", "x"]
    assert names(only(outcome, "MemoryAllocatableEvict")) == ["x", "y"]
    released = only(outcome, "MemoryAllocatableEvict").targets[BATCH_MEMORY]
    assert released == pytest.approx(3 * GI, abs=2)


def test_pods_that_forbid_it_come_last_and_those_that_are_done_never(world, memory):
    threshold(world, memoryEvictThresholdPercent=50)
    world.pod("done", qos="BE", kube_qos="BestEffort", phase="Succeeded")
    world.pod("no", qos="BE", kube_qos="BestEffort", annotations={"koordinator.sh/eviction-policy": "[]"})
    world.pod("bad", qos="BE", kube_qos="BestEffort", annotations={"koordinator.sh/eviction-policy": "{rubbish"})
    world.pod("yes", qos="BE", kube_qos="BestEffort", annotations={"koordinator.sh/eviction-policy": '["BEMemoryEvict"]'})
    world.sample("node_memory_usage", 60.0 * GI)
    for pod in world.pods:
        world.sample("pod_memory_usage", 1.0 * GI, pod.uid)
    assert names(only(world.decide(memory), "BEMemoryEvict")) == ["yes", "no", "bad"], "an owner's list does not outlast the node"


def leaving(world, **seconds):
    """Pods whose grace ends in so many seconds."""
    for name, left in seconds.items():
        world.pod(name, qos="BE", kube_qos="BestEffort", requests={BATCH_CPU: "5000"}, priority=5500)
        world.leaving[f"uid-{name}"] = left
        world.sample("pod_memory_usage", 1.0 * GI, f"uid-{name}")


@pytest.mark.feature("KA-CEV-01")
@pytest.mark.feature("KA-MEV-01")
def test_pods_that_are_about_to_leave_come_first_and_overdue_ones_last(world, cpu, memory):
    satisfied(world, memoryEvictThresholdPercent=50)
    leaving(world, soon=20, stuck=-60, late=3600)
    world.use(soon=0.1, stuck=5.0, late=0.0)
    for name in "abc":
        world.sample("pod_memory_usage", 2.0 * GI, f"uid-{name}")
    tier(world, 7800, 20000, 8000)
    world.sample("node_memory_usage", 60.0 * GI)
    task = only(world.decide(cpu, READY), "BECPUEvict")
    assert names(task) == ["soon", "b", "a", "c", "late", "stuck"]
    assert [v.pod.name for v in task.victims if v.ending] == ["soon"]
    assert [v.pod.name for v in task.victims if v.lingering] == ["late", "stuck"]
    found = names(only(world.decide(memory), "BEMemoryEvict"))
    assert found[0] == "soon"
    assert found[-1] == "stuck"


def test_the_order_does_not_hang_on_who_is_listed_first(world):
    """Pods without a priority of their own stand where their class stands; else a < b < c < a would be possible."""
    for name, priority, used in (("a", 5900, 9), ("b", None, 5), ("c", 5100, 1), ("d", None, None), ("e", None, None)):
        world.pod(name, qos="BE", kube_qos="BestEffort", requests={BATCH_CPU: "1000"}, priority=priority)
        if used is not None:
            world.sample(kinds.POD_MEMORY, used, f"uid-{name}")
            world.use(**{name: float(used)})
    snapshot = world.snapshot()
    for order, wanted in ((order_by_memory, "cbeda"), (order_by_cpu_ratio, "cbdea")):
        found = {"".join(p.name for p in order(snapshot, pods)) for pods in permutations(snapshot.pods)}
        assert {text.replace("ed", "de") for text in found} == {wanted.replace("ed", "de")}


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize(("used", "critical"), [(71, False), (84, False), (85, True), (99, True)])
def test_the_need_is_critical_half_way_from_the_threshold_to_the_whole(world, memory, cpu, used, critical):
    threshold(world, memoryEvictThresholdPercent=70, cpuEvictThresholdPercent=70, evictEnabledPriorityThreshold=7000)
    be_memory(world, a=2.5)
    world.sample("node_memory_usage", 64 * GI * (used + 0.5) / 100)
    world.use(16 * (used + 0.5) / 100)
    assert only(world.decide(memory), "BEMemoryEvict").critical is critical
    assert only(world.decide(cpu, READY), "CPUEvict").critical is critical
