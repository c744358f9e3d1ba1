"""Resource tuning: measured throttling and memory pressure in, burst, quota, protection and scores out (BEY-TUNE-01)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qos import QoSClass
from roles.koordlet.acting import modes
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.restore import restore
from roles.koordlet.actuation.writes import Hold, Kind, Write, sequence
from roles.koordlet.options import Options
from roles.koordlet.qos.burst import CPUBurst
from roles.koordlet.qos.burst_limits import NodeState
from roles.koordlet.qos.memoryqos import MemoryQoS
from roles.koordlet.qos.tuning import ResourceTuning
from roles.koordlet.qos.tuning_steps import LEVELS, CPUStep, MemorySigns, MemoryStep, next_cpu, next_memory, protection, score
from roles.koordlet.states.slo import CPUTuning, MemoryTuning, effective_slo
from roles.koordlet.store import kinds
from tests.support.koordlet import Cluster, agent, exposed, run, until

MIB = 1 << 20
QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"


class Service:
    """A service of one container in a machine of files, and the strategies that care for it."""

    def __init__(self, world, gates, *, limit: str = "1", **pod) -> None:
        self.world, self.machine = world, world.machine
        self.pod = world.pod("web", qos="LS", limits={"cpu": limit, "memory": "1Gi"}, requests={"cpu": limit, "memory": "512Mi"}, **pod)
        self.box = self.pod.containers[0].cgroup_dir
        self.tuning = ResourceTuning(Options(), gates("ResourceTuning", "CPUBurst"))
        self.others = [CPUBurst(Options(), gates("CPUBurst"))]
        self.states = {s.name: s.initial() for s in (self.tuning, *self.others)}
        self.outcome = None
        cgroups = self.machine.host.cgroups
        self.above = (self.pod.cgroup_dir, cgroups.qos_dir("Burstable"), cgroups.kubepods)
        quota, unlimited = ("100000", "-1") if not self.machine.v2 else ("100000 100000", "max 100000")
        for directory in (self.box, *self.above):
            self.machine.put(QUOTA, directory, quota if directory in (self.box, self.pod.cgroup_dir) else unlimited)
            self.machine.put(BURST, directory, "0")
        self.refaults = self.kills = 0

    def memory(self, usage: int, *, refaults: int = 0, kills: int = 0, limit: int = 1024) -> None:
        """Use and limit in MiB; what happened since the last time."""
        v2 = self.machine.v2
        self.refaults, self.kills = self.refaults + refaults, self.kills + kills
        keys = {"workingset_refault_anon": 0, "workingset_refault_file": self.refaults, "inactive_file": 100 * MIB}
        names = keys if v2 else {"total_pgmajfault": self.refaults, "total_inactive_file": 100 * MIB}
        self.machine.put("memory.limit_in_bytes", self.box, str(limit * MIB))
        self.machine.put("memory.usage_in_bytes", self.box, str(usage * MIB))
        self.machine.put("memory.stat", self.box, "\n".join(f"{k} {v}" for k, v in names.items()))
        self.machine.put("memory.events", self.box, f"oom_kill {self.kills}" if v2 else f"under_oom 0\noom_kill {self.kills}")

    def protectable(self) -> None:
        for directory in (self.box, *self.above):
            for resource in ("memory.min", "memory.low"):
                self.machine.put(resource, directory, "0")

    def turn(self, *, throttled: float | None = None, node: float = 1.0, seconds: float = 5.0, mode: Mode = Mode.ENFORCE) -> None:
        """Time passes, everybody decides, and what they want is carried out."""
        self.world.now += seconds
        self.world.load(node)
        if throttled is not None:
            self.world.sample(kinds.CONTAINER_CPU_THROTTLED, throttled, self.pod.containers[0].id)
        for strategy in (*self.others, self.tuning):
            outcome = self.world.decide(strategy, self.states[strategy.name])
            self.states[strategy.name] = outcome.state
            own = mode if strategy is self.tuning else Mode.ENFORCE
            applied = self.machine.executor.apply(outcome.batches, rule=strategy.name, now=self.world.now, mode=own)
            assert applied.failed == []
        self.outcome = outcome
        self.machine.now += seconds

    def get(self, resource: str, directory: str = "") -> str:
        return self.machine.get(resource, directory or self.box)


@pytest.fixture
def with_holder(monkeypatch):
    """Snapshots that know who holds what."""

    def install(world) -> None:
        real = world.snapshot
        monkeypatch.setattr(world, "snapshot", lambda: replace(real(), holder=world.machine.executor.holds.holder))

    return install


@pytest.fixture
def service(world, gates, with_holder) -> Service:
    with_holder(world)
    return Service(world, gates)


@pytest.fixture
def service_v2(world_v2, gates, with_holder) -> Service:
    with_holder(world_v2)
    return Service(world_v2, gates)


@pytest.mark.feature("BEY-TUNE-01")
class TestCPU:
    def test_burst_first_then_quota_and_back_when_calm(self, service) -> None:
        seen = []
        for _ in range(7):
            service.turn(throttled=0.4)
            seen.append((service.get(BURST), service.get(QUOTA)))
        assert seen[:4] == [("25000", "100000"), ("50000", "100000"), ("100000", "100000"), ("100000", "120000")]
        assert seen[-1] == ("100000", "180000")
        assert service.get(QUOTA, service.pod.cgroup_dir) == "180000", "the pod's quota is widened by as much"
        (record,) = service.outcome.records
        assert (record.verdict, record.numbers["quota_percent"], record.numbers["throttled_ratio"]) == ("Tuned", 180, 0.4)
        assert {s.labels[-1]: s.value for s in service.outcome.samples} == {"cfs_quota_us": 180_000, "cfs_burst_us": 100_000}
        for _ in range(12):
            service.turn(throttled=0.0, seconds=61)
        assert [service.get(f, d) for f in (QUOTA, BURST) for d in (service.box, service.pod.cgroup_dir)] == ["100000", "100000", "0", "0"]
        assert len(service.machine.executor.holds) == 0

    def test_a_container_that_is_not_throttled_gets_nothing(self, service) -> None:
        for throttled in (0.0, 0.02, None):
            service.turn(throttled=throttled, seconds=60)
            assert service.outcome.batches == ()
        assert (service.get(QUOTA), service.get(BURST)) == ("100000", "0")

    def test_a_busy_share_pool_keeps_quotas_down(self, service) -> None:
        for _ in range(6):
            service.turn(throttled=0.4)
        assert int(service.get(QUOTA)) > 100_000
        for _ in range(6):
            service.turn(throttled=0.4, node=15.0)
        assert (service.get(QUOTA), service.get(BURST)) == ("100000", "100000"), "what it saved it may still burst"

    def test_cpu_burst_does_not_fight_for_the_files(self, service) -> None:
        """CPUBurst with policy none resets quotas each tick; held ones it leaves, and says nothing."""
        for _ in range(5):
            service.turn(throttled=0.4)
        grown = service.get(QUOTA)
        assert grown == "140000"
        outcome = service.world.decide(service.others[0])
        assert outcome.records == ()
        service.machine.executor.apply(outcome.batches, rule="CPUBurst", now=service.world.now)
        assert (service.get(QUOTA), service.get(BURST)) == (grown, "100000")

    def test_a_file_that_another_strategy_holds_is_taken_when_that_lets_go(self, service) -> None:
        """What it is without tuning is what it was before both."""
        executor = service.machine.executor

        def other(value: str, hold: Hold) -> None:
            executor.apply((sequence(Write(QUOTA, service.box, value, hold=hold)),), rule="Other", now=service.world.now)

        other("50000", Hold.TAKE)
        for _ in range(5):
            service.turn(throttled=0.4)
            assert service.get(QUOTA) == "50000"
        other("", Hold.RELEASE)
        assert service.get(QUOTA) == "100000"
        service.turn(throttled=0.4)
        assert service.get(QUOTA) == "160000"
        for _ in range(12):
            service.turn(throttled=0.0, seconds=61)
        assert (service.get(QUOTA), len(executor.holds)) == ("100000", 0)

    @pytest.mark.parametrize("owner", ["annotation", "node"])
    def test_who_has_a_burst_policy_is_left_to_cpu_burst(self, service, owner) -> None:
        service.turn(throttled=0.4)
        assert service.get(BURST) == "25000"
        if owner == "annotation":
            service.pod.annotations["koordinator.sh/cpuBurst"] = '{"policy": "none"}'
        else:
            service.world.spec = {"cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 50}}
        service.turn(throttled=0.4)
        assert service.get(BURST) == ("0" if owner == "annotation" else "50000"), "given back to CPU burst"
        assert len(service.machine.executor.holds) == 0

    def test_a_resized_container_keeps_its_new_quota(self, service) -> None:
        for _ in range(4):
            service.turn(throttled=0.4)
        spec = service.pod.containers[0].spec
        spec.resources.limits["cpu"] = "2"
        service.turn(throttled=0.4)
        assert service.get(QUOTA) == "280000", "a step more, of the new quota"
        service.world.spec = {"extensions": {"resourceTuning": {"cpu": {"enable": False}}}}
        service.turn(throttled=0.4)
        service.turn(throttled=0.4)
        assert service.get(QUOTA) == "200000"

    def test_a_resized_container_keeps_its_new_quota_of_another_period(self, service) -> None:
        for directory in (service.box, service.pod.cgroup_dir):
            service.machine.put("cpu.cfs_period_us", directory, "50000")
            service.machine.put(QUOTA, directory, "50000")
        for _ in range(4):
            service.turn(throttled=0.4)
        service.pod.containers[0].spec.resources.limits["cpu"] = "2"
        service.turn(throttled=0.4)
        assert service.get(QUOTA) == "140000", "a step more, of the new quota"
        service.world.spec = {"extensions": {"resourceTuning": {"cpu": {"enable": False}}}}
        service.turn(throttled=0.4)
        service.turn(throttled=0.4)
        assert (service.get(QUOTA), service.get(QUOTA, service.pod.cgroup_dir)) == ("100000", "100000")

    def test_observing_writes_nothing(self, service) -> None:
        before = service.get(QUOTA), service.get(BURST)
        for _ in range(6):
            service.turn(throttled=0.4, mode=Mode.OBSERVE)
        assert (service.get(QUOTA), service.get(BURST)) == before
        assert modes(Options())("ResourceTuning") is Mode.OBSERVE
        assert modes(Options(strategy_modes="ResourceTuning=enforce"))("ResourceTuning") is Mode.ENFORCE

    def test_restore_after_tuning(self, service) -> None:
        for _ in range(5):
            service.turn(throttled=0.4)
        assert restore(service.machine.root).failed == []
        assert (service.get(QUOTA), service.get(BURST), service.get(QUOTA, service.pod.cgroup_dir)) == ("100000", "0", "100000")

    def test_cgroup_v2(self, service_v2) -> None:
        for _ in range(4):
            service_v2.turn(throttled=0.4)
        assert (service_v2.get(QUOTA), service_v2.get(BURST)) == ("120000 100000", "100000")
        for _ in range(8):
            service_v2.turn(throttled=0.0, seconds=61)
        assert (service_v2.get(QUOTA), service_v2.get(BURST)) == ("100000 100000", "0")


@pytest.mark.feature("BEY-TUNE-01")
class TestMemory:
    def test_protection_grows_while_pages_are_read_back_and_decays(self, service_v2) -> None:
        service = service_v2
        service.protectable()
        service.memory(1000)
        service.turn()
        assert service.get("memory.low") == "0", "near the limit alone is no reason"
        lows = []
        for _ in range(3):
            service.memory(1000, refaults=5000)
            service.turn()
            lows.append(int(service.get("memory.low")) // MIB)
        assert lows == [300, 600, 900], "thirds of the working set"
        assert int(service.get("memory.min")) == 512 * MIB, "never more than the request"
        for directory in service.above:
            assert (int(service.get("memory.low", directory)), int(service.get("memory.min", directory))) == (900 * MIB, 512 * MIB)
        (record,) = service.outcome.records
        assert (record.verdict, record.numbers["level"], record.numbers["refaults_per_second"]) == ("Tuned", 3, 1000.0)
        for _ in range(5):
            service.memory(1000)
            service.turn(seconds=61)
        assert {service.get(f, d) for f in ("memory.low", "memory.min") for d in (service.box, *service.above)} == {"0"}

    def test_far_from_the_limit_or_without_one_nothing_happens(self, service_v2) -> None:
        service_v2.protectable()
        for usage, limit in ((500, 1024), (1000, 1 << 43)):
            service_v2.memory(usage, limit=limit)
            service_v2.turn()
            service_v2.memory(usage, limit=limit, refaults=9000)
            service_v2.turn()
            assert service_v2.get("memory.low") == "0"

    def test_pressure_of_the_container_counts_like_refaults(self, service_v2) -> None:
        service_v2.protectable()
        service_v2.memory(1000)
        service_v2.world.sample(kinds.CONTAINER_PSI, 20.0, service_v2.pod.uid, service_v2.pod.containers[0].id, "mem", "10", "some")
        service_v2.turn(seconds=1)
        assert service_v2.get("memory.low") != "0"

    def test_a_kill_brings_the_whole_protection(self, service_v2) -> None:
        service_v2.protectable()
        service_v2.memory(200)
        service_v2.turn()
        service_v2.memory(200, kills=1)
        service_v2.turn()
        assert service_v2.outcome.records[0].numbers["level"] == LEVELS

    def test_memory_qos_gets_its_files_back_with_what_it_wants(self, service_v2, gates) -> None:
        service = service_v2
        service.protectable()
        service.others.append(MemoryQoS(Options(), gates("CgroupReconcile")))
        service.states["CgroupReconcile"] = service.others[-1].initial()
        service.world.spec = {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "lowLimitPercent": 10}}}}
        service.memory(1000)
        service.turn()
        own = 512 * MIB * 10 // 100 // 4096 * 4096
        assert int(service.get("memory.low")) // 4096 * 4096 == own
        service.memory(1000, refaults=5000)
        service.turn()
        assert int(service.get("memory.low")) > own + 290 * MIB, "on top of what the class has"
        for _ in range(3):
            service.memory(1000)
            service.turn(seconds=61)
        assert int(service.get("memory.low")) // 4096 * 4096 == own

    def test_scores_on_v1_follow_and_come_back(self, service) -> None:
        machine = service.machine
        for pid, value in ((11, 900), (12, 900), (13, -500)):
            machine.file(f"proc/{pid}/oom_score_adj", f"{value}\n")
            machine.file(f"proc/{pid}/stat", f"{pid} (web) S " + " ".join(["1"] * 18) + f" {pid} 0\n")
        machine.put("cgroup.procs", service.box, "11\n12\n13")

        def found() -> list[str]:
            return [(machine.base / f"proc/{pid}/oom_score_adj").read_text().strip() for pid in (11, 12, 13)]

        service.memory(1000)
        service.turn()
        service.memory(1000, refaults=5000)
        service.turn()
        assert found() == ["700", "700", "-500"], "a process with a score of its own keeps it"
        machine.file("proc/14/oom_score_adj", "700\n")
        machine.file("proc/14/stat", "14 (child) S " + " ".join(["1"] * 18) + " 14 0\n")
        machine.put("cgroup.procs", service.box, "11\n12\n13\n14")
        service.memory(1000, refaults=5000)
        service.turn()
        assert (found()[0], (machine.base / "proc/14/oom_score_adj").read_text()) == ("500", "500")
        for _ in range(4):
            service.memory(1000)
            service.turn(seconds=61)
        assert found() == ["900", "900", "-500"]
        assert (machine.base / "proc/14/oom_score_adj").read_text() == "900", "what a child inherited is undone too"
        assert len(machine.executor.holds) == 0

    def test_scores_that_the_hook_keeps_are_left(self, world, gates, with_holder) -> None:
        with_holder(world)
        service = Service(world, gates, annotations={"koordinator.sh/oom-score-adj": "123"})
        service.tuning = ResourceTuning(Options(), gates("ResourceTuning", "OOMScoreAdj"))
        world.machine.file("proc/11/oom_score_adj", "123\n")
        world.machine.put("cgroup.procs", service.box, "11")
        for _ in range(3):
            service.memory(1000, refaults=5000)
            service.turn()
        assert (world.machine.base / "proc/11/oom_score_adj").read_text() == "123\n"

    @pytest.mark.parametrize("owner", ["hook", "class"])
    def test_scores_are_given_back_to_who_decides_on_them_now(self, world, gates, with_holder, owner) -> None:
        with_holder(world)
        service, executor = Service(world, gates), world.machine.executor
        service.tuning = ResourceTuning(Options(), gates("ResourceTuning", "OOMScoreAdj"))
        path = world.machine.file("proc/11/oom_score_adj", "900\n")
        world.machine.file("proc/11/stat", "11 (web) S " + " ".join(["1"] * 18) + " 11 0\n")
        world.machine.put("cgroup.procs", service.box, "11")
        hook = sequence(Write("oom_score_adj", str(path), "500", kind=Kind.FILE, cached=False))

        def turn(*, kills: int = 0) -> str:
            service.memory(1000, kills=kills)
            service.turn()
            if "koordinator.sh/oom-score-adj" in world.pods[0].annotations:
                executor.apply([hook], rule="OOMScoreAdj", now=world.now)
            return path.read_text().strip()

        turn()
        assert turn(kills=1) == "300"
        plain = world.pods[0]
        own = (
            {"annotations": {"koordinator.sh/oom-score-adj": "500"}} if owner == "hook" else {"qos_label": QoSClass.BE, "qos": QoSClass.BE}
        )
        world.pods[0] = replace(plain, **own)
        assert turn() == ("500" if owner == "hook" else "900")
        assert len(executor.holds) == 0
        path.write_text("900\n")
        world.pods[0] = plain
        turn()
        assert turn(kills=1) == "300", "of the score that it has without tuning"


class TestConfiguration:
    def test_settings_are_taken_and_bad_ones_leave_the_last_good(self) -> None:
        good, errors = effective_slo({"extensions": {"resourceTuning": {"cpu": {"throttledPercent": 20}, "memory": {"enable": False}}}})
        assert (errors, good.tuning.cpu.throttled_percent, good.tuning.memory.enable) == ([], 20, False)
        for bad in ({"cpu": {"throttledPercent": 0}}, {"cpu": {"throttled": 3}}, {"memory": 5}, "x"):
            found, errors = effective_slo({"extensions": {"resourceTuning": bad}}, good)
            assert found.tuning == good.tuning
            assert str(errors[0]).startswith("NodeSLO spec.extensions.resourceTuning")


class TestSteps:
    @given(
        st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 1)), st.sampled_from(list(NodeState)), st.floats(-5, 90)), max_size=60),
        st.booleans(),
    )
    def test_property_cpu_steps_stay_in_their_bounds_and_end(self, story, can_burst) -> None:
        config, step, now = CPUTuning(), CPUStep(), 1000.0
        for throttled, node, passed in story:
            now += passed
            after = next_cpu(step, throttled, node, config, can_burst=can_burst, now=now)
            assert 0 <= after.burst <= config.max_burst_percent
            assert 100 <= after.quota <= config.max_quota_percent
            if node is not NodeState.IDLE:
                assert after.quota <= step.quota, "the quota grows only on an idle pool"
            if not can_burst:
                assert after.burst == 0
            step = after
        for _ in range(40):
            now += config.calm_seconds + 1
            step = next_cpu(step, 0.0, NodeState.IDLE, config, can_burst=can_burst, now=now)
        assert not step.active

    @given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 40), st.floats(0, 1e6), st.integers(0, 2)), max_size=40))
    def test_property_memory_steps_stay_in_their_bounds_and_end(self, story) -> None:
        config, step, now = MemoryTuning(), MemoryStep(), 1000.0
        for usage, limit, refaults, kills in story:
            now += 5
            signs = MemorySigns(usage, limit, usage // 2, None, refaults, kills)
            step = next_memory(step, signs, config, now)
            least, low = protection(step.level, signs, 1 << 30, 4096)
            assert 0 <= least <= min(1 << 30, limit)
            assert least <= low <= limit
            assert (low == 0) or step.level > 0
        for _ in range(LEVELS + 1):
            now += config.calm_seconds + 1
            step = next_memory(step, MemorySigns(0, 1, 0), config, now)
        assert step.level == 0

    @given(st.integers(-1000, 1000), st.integers(0, LEVELS))
    def test_property_a_score_is_never_raised_nor_made_sacred(self, base, level) -> None:
        got = score(base, level, MemoryTuning())
        assert got <= base
        assert got == base or got >= 2


@pytest.mark.feature("BEY-TUNE-01")
@pytest.mark.feature("BEY-MODE-01")
def test_from_throttled_periods_to_a_quota(tmp_path) -> None:
    """The whole agent with CPU burst beside it; then off by the NodeSLO, and everything is as before."""

    async def story(c: Cluster) -> None:
        await c.node({"cpuBurstStrategy": {"policy": "none"}, "extensions": {"resourceTuning": {"cpu": {"calmSeconds": 1}}}})
        resources = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
        web = await c.pod("web", qos="LS", kube_qos="Burstable", quota=100_000, resources=resources)
        before = c.values()
        c.use.update({"node": 2.0, "web": 1.0, "web.throttled": 0.5})
        options = {"strategy_modes": "ResourceTuning=enforce", "resource_tuning_interval_seconds": 1}
        async with agent(c, "ResourceTuning", "CPUBurst", **options) as app:
            box = c.dirs(web)[1]
            await until(lambda: int(c.read("cpu", box, QUOTA)) >= 120_000, "a larger quota")
            assert c.read("cpu", box, BURST) == "100000"
            assert "koordlet_container_tuning{" in exposed(app.metrics.internal)
            assert any(r.rule == "ResourceTuning" for r in app.recorder.ring.find("Pod", "default", "web"))
            c.use["web.throttled"] = 0.0
            c.started -= 1.0  # counters go on where they are
            await until(lambda: c.read("cpu", box, QUOTA) == "100000" and c.read("cpu", box, BURST) == "0", "calm", 40)
        assert c.values() == before

    run(tmp_path, story)
