"""Running strategies: due times, pressure, modes, failures (BEY-MODE-01, BEY-PSI-01)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koord.decisions.record import Record, Subject
from roles.koordlet.actuation import journal as journal_module
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.options import Options
from roles.koordlet.qos.manager import QOSManager
from roles.koordlet.qos.outcome import Notice, Outcome, Sample, Strategy
from roles.koordlet.qos.registry import NAMES, STRATEGIES, make_strategies
from roles.koordlet.qos.suppress import BECPUSuppress

QOS = "kubepods.slice/kubepods-besteffort.slice"


class Evictions:
    def __init__(self):
        self.submitted, self.running = [], set()

    def busy(self, strategy):
        return strategy in self.running

    def submit(self, strategy, tasks, mode, done):
        self.submitted.append((strategy, mode))
        done(1)


def stub(name="Stub", *, urgent=False, decide=None, interval=1.0):
    class Stub(Strategy[int]):
        enabled = True
        interval = 1.0

        def initial(self):
            return 0

        def decide(self, snapshot, slo, state, now):
            if decide is not None:
                return decide(state, now)
            return Outcome(state + 1)

        def evicted(self, state, now):
            return state + 100

    Stub.name, Stub.urgent, Stub.interval = name, urgent, interval
    return Stub(Options(), lambda gate: True)


def manage(world, *strategies, mode=Mode.ENFORCE):
    told: list[Notice] = []
    evictions = Evictions()
    manager = QOSManager(
        strategies,
        executor=world.machine.executor,
        evicting=evictions,
        recorder=world.machine.recorder,
        metrics=world.machine.metrics,
        modes=lambda name: mode,
        notify=told.append,
    )
    return manager, evictions, told


def state_of(manager, name):
    return manager._running[name].state


def test_every_strategy_has_one_row_and_a_name_of_its_own():
    assert len(set(NAMES)) == len(STRATEGIES)
    assert [s.name for s in make_strategies(Options(), lambda gate: False)] == list(NAMES)
    assert not any(s.enabled for s in make_strategies(Options(), lambda gate: False))


def test_strategies_run_when_they_are_due(world):
    manager, *_ = manage(world, stub("A"), stub("B", interval=5.0), stub("Off", interval=0))
    for mono in (10.0, 10.5, 11.0, 12.0, 15.0):
        manager.tick(world.snapshot(), mono)
    assert (state_of(manager, "A"), state_of(manager, "B"), manager.names) == (4, 2, ("A", "B"))


def test_nothing_is_decided_before_the_picture_is_complete(world):
    manager, *_ = manage(world, stub("A"))
    world.spec = None
    manager.tick(world.snapshot(), 1.0)
    world.spec = {}
    manager.tick(replace(world.snapshot(), pods_synced=False), 2.0)
    assert state_of(manager, "A") == 0


@pytest.mark.feature("BEY-PSI-01")
def test_pressure_runs_at_once_only_what_relieves_it(world):
    manager, *_ = manage(world, stub("Urgent", urgent=True), stub("Other"))
    manager.tick(world.snapshot(), 10.0)
    for name in manager.names:
        manager.run_now(name, world.snapshot(), 10.2)
    manager.run_now("Unknown", world.snapshot(), 10.2)
    assert (state_of(manager, "Urgent"), state_of(manager, "Other")) == (2, 1)
    manager.run_now("Other", world.snapshot(), 11.0)
    assert state_of(manager, "Other") == 2, "what is due runs all the same"


@pytest.mark.feature("BEY-PSI-01")
@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_pressure_may_take_at_any_time_but_gives_once_an_interval(world, gates, policy):
    be = world.pod("be", qos="BE", kube_qos="BestEffort")
    for directory in (QOS, be.cgroup_dir, be.containers[0].cgroup_dir):
        world.machine.put("cpu.cfs_quota_us", directory, "200000" if directory == QOS else "-1")
        world.machine.put("cpuset.cpus", directory, "0-1")
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": policy}}
    manager, *_ = manage(world, BECPUSuppress(Options(), gates("BECPUSuppress")))
    get = lambda: world.machine.get("cpu.cfs_quota_us" if policy == "cfsQuota" else "cpuset.cpus", QOS)  # noqa: E731
    seen = []
    for step in range(3):
        world.load(1.4)
        manager.run_now("BECPUSuppress", world.snapshot(), 10.0 + step * 0.3)
        seen.append(get())
        world.now += 0.3
    assert seen == ["360000" if policy == "cfsQuota" else "0-3"] * 3
    world.load(9.4)
    manager.run_now("BECPUSuppress", world.snapshot(), 12.0)
    assert get() == ("100000" if policy == "cfsQuota" else "0-1")
    world.now += 1
    world.load(1.4)
    manager.run_now("BECPUSuppress", world.snapshot(), 13.0)
    assert get() == ("260000" if policy == "cfsQuota" else "0-3")


@pytest.mark.feature("BEY-MODE-01")
def test_observe_mode_decides_tells_and_counts_but_changes_nothing(world, gates):
    be = world.pod("be", qos="BE", kube_qos="BestEffort")
    for directory in (QOS, be.cgroup_dir, be.containers[0].cgroup_dir):
        world.machine.put("cpuset.cpus", directory, "0-15")
        world.machine.put("cpu.cfs_quota_us", directory, "-1")
    world.spec = {"resourceUsedThresholdWithBE": {"enable": True}}
    manager, _, told = manage(world, BECPUSuppress(Options(), gates("BECPUSuppress")), mode=Mode.OBSERVE)
    for mono in (1.0, 2.0):
        world.load(6.4)
        manager.tick(world.snapshot(), mono)
        world.now += 1
    assert world.machine.get("cpuset.cpus", QOS) == "0-15"
    assert len(world.machine.journal) == 0
    (record,) = world.machine.recorder.ring.find("Pod", "default", "be")
    assert (record.verdict, record.rule, record.numbers["cpuset"]) == ("WouldSuppress", "BECPUSuppress", "0-3")
    assert world.machine.metrics.would_write.get("BECPUSuppress") == 6
    assert told == []


def test_a_failing_strategy_does_not_stop_the_others_and_is_logged_once(world, caplog):
    def fail(state, now):
        raise RuntimeError("boom")

    manager, *_ = manage(world, stub("Bad", decide=fail), stub("Good"))
    for mono in (1.0, 2.0, 3.0):
        manager.tick(world.snapshot(), mono)
    assert state_of(manager, "Good") == 3
    assert caplog.text.count("strategy Bad failed") == 1


def test_a_run_that_evicted_starts_the_cool_down_and_a_busy_strategy_waits(world):
    manager, evictions, _ = manage(world, stub("E", decide=lambda state, now: Outcome(state + 1, tasks=("task",))))
    manager.tick(world.snapshot(), 1.0)
    assert (evictions.submitted, state_of(manager, "E")) == ([("E", Mode.ENFORCE)], 101)
    evictions.running.add("E")
    manager.tick(world.snapshot(), 2.0)
    assert state_of(manager, "E") == 101


@pytest.mark.feature("BEY-JRN-01")
def test_without_a_journal_a_strategy_only_observes_and_says_so(world, monkeypatch):
    world.machine.put("cpu.cfs_quota_us", QOS, "-1")

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module, "_write_all", full)
    write = sequence(Write("cpu.cfs_quota_us", QOS, "5000", cached=False))
    manager, *_ = manage(world, stub("W", decide=lambda state, now: Outcome(state, batches=(write,))))
    manager.tick(world.snapshot(), 1.0)
    manager.tick(world.snapshot(), 2.0)
    assert (manager.held_back, world.machine.get("cpu.cfs_quota_us", QOS)) == (("W",), "-1")
    monkeypatch.undo()
    manager.tick(world.snapshot(), 3.0)
    assert (manager.held_back, world.machine.get("cpu.cfs_quota_us", QOS)) == ((), "5000")
    assert [r.verdict for r in world.machine.recorder.ring.find("Node")] == ["HeldBack", "Enforcing"]


# -- clocks and mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leap", [3600.0, -3600.0])
def test_strategies_get_a_time_that_never_leaps_and_records_the_wall_clock(world, leap):
    seen: list[float] = []

    def decide(state, now):
        seen.append(now)
        return Outcome(state, records=(Record("koordlet", Subject("Node", name="node-a"), now, "Seen"),))

    manager, *_ = manage(world, stub(decide=decide))
    start = world.now
    for tick in range(6):
        world.now = start + tick + (leap if tick >= 3 else 0)
        manager.tick(world.snapshot(), 100.0 + tick)
    assert seen == [start + tick for tick in range(6)]
    assert world.now in [record.time for record in world.machine.recorder.ring.find("Node")]


MISTAKES = {
    "no outcome": lambda: None,
    "a gauge that is not there": lambda: Outcome(0, samples=(Sample("my_gauge", 1.0),)),
    "a counter": lambda: Outcome(0, cleared=("pod_eviction",), samples=(Sample("pod_eviction", 1.0, ("a",)),)),
    "other labels": lambda: Outcome(0, samples=(Sample("be_suppress_cpu", 1.0),)),
    "no number": lambda: Outcome(0, samples=(Sample("be_suppress_cpu", "much", ("x",)),)),
    "a number as value": lambda: Outcome(0, batches=(sequence(Write("cpu.shares", "kubepods.slice", 5)),)),
    "no file of the table": lambda: Outcome(0, batches=(sequence(Write("cpu.max", "kubepods.slice", "5")),)),
    "no batch": lambda: Outcome(0, batches=("x",)),
    "no notice": lambda: Outcome(0, notices=("x",)),
    "no record": lambda: Outcome(0, records=({},)),
    "findings": lambda: Outcome(0, findings=5),
}


@pytest.mark.feature("KA-PLG-01")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_one_strategy_costs_its_turn_and_nothing_else(world, mistake):
    world.machine.put("cpu.shares", "kubepods.slice", "1024")
    good: list[float] = []

    def decide(state, now):
        good.append(now)
        return Outcome(state)

    made = manage(world, stub("Bad", decide=lambda state, now: MISTAKES[mistake]()), stub("Good", decide=decide))
    made[0].tick(world.snapshot(), 1.0)
    assert len(good) == 1
    assert world.machine.metrics.strategy_failures.get("Bad") == 1
    assert world.machine.get("cpu.shares", "kubepods.slice") == "1024"


@pytest.mark.feature("KA-PLG-01")
@pytest.mark.parametrize("call", ["interval", "decide", "evicted"])
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, AssertionError])
def test_whatever_a_strategy_raises_at_any_call_the_others_go_on(world, call, kind):
    mine, raising = stub("Bad", decide=lambda state, now: Outcome(state, tasks=("a task",))), []

    def fails(*_):
        if raising:
            raise kind("mine")
        return 1.0

    made = type(mine)
    setattr(made, call, property(fails) if call == "interval" else fails)
    good: list[float] = []
    manager, *_ = manage(world, mine, stub("Good", decide=lambda state, now: good.append(now) or Outcome(state)))
    raising.append(True)
    for second in (1.0, 2.0):
        manager.tick(world.snapshot(), second)
    assert len(good) == 2
    assert world.machine.metrics.strategy_failures.get("Bad") == 2
