"""What is done about a pod that slows services down, and how it is undone (BEY-INT-01)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.restore import restore
from roles.koordlet.hooks.registry import HOOKS
from roles.koordlet.options import Options
from roles.koordlet.qos import interference
from roles.koordlet.qos.interference import InterferenceDetection
from roles.koordlet.report import nodemetric_loop, policy
from roles.koordlet.states.slo import effective_slo
from roles.koordlet.store import kinds
from tests.support.koordlet import Cluster, agent, exposed, run, until

QUOTA, SHARES = "cpu.cfs_quota_us", "cpu.shares"
READ, WRITE, SERVICED = "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device", "blkio.throttle.io_service_bytes"
MIB = 1 << 20


class Case:
    """A service that waits because of a miner; ten seconds a look."""

    def __init__(self, world: Any, gates: Any, *, signal: str = "cpu") -> None:
        self.world, self.machine, self.signal = world, world.machine, signal
        self.strategy = InterferenceDetection(Options(), gates("InterferenceDetection"))
        self.state = self.strategy.initial()
        self.web = world.pod("web", qos="LS")
        self.miner = world.pod("miner", qos="BE", kube_qos="BestEffort")
        self.box = self.miner.containers[0].cgroup_dir
        self.random = random.Random(3)
        self.outcomes: list[Any] = []
        self.moved = 0
        self.counts = True
        """Whether the kernel counts what the miner reads."""
        v2 = self.machine.v2
        for directory in (self.miner.cgroup_dir, self.box):
            self.machine.put(QUOTA, directory, "max 100000" if v2 else "-1")
            self.machine.put(SHARES, directory, "100" if v2 else "1024")
            if v2:
                self.machine.put("io.max", directory, "")
            else:
                self.machine.put(READ, directory, "")
                self.machine.put(WRITE, directory, "")

    def with_sidecar(self) -> str:
        """Give the miner a native sidecar; its directory."""
        [box] = self.miner.containers
        directory = f"{self.miner.cgroup_dir}/cri-containerd-proxy.scope"
        proxy = replace(box, name="proxy", id="containerd://proxy", cgroup_dir=directory, init=True)
        self.world.pods[self.world.pods.index(self.miner)] = self.miner = replace(self.miner, init_containers=(proxy,))
        return directory

    def look(self, count: int, waiting: float, use: float, *, mode: Mode = Mode.ENFORCE) -> None:
        for _ in range(count):
            for _ in range(10):
                self.world.now += 1.0
                self.world.sample(kinds.POD_CPU, use * self.random.uniform(0.95, 1.05), self.miner.uid)
            self.moved += int(use * 100 * MIB)
            pod = self.miner.cgroup_dir
            if self.machine.v2:
                self.machine.put(SERVICED, pod, f"8:0 rbytes={self.moved} wbytes=0 rios=1 wios=0")
            elif self.counts:
                for one in self.miner.all_containers():
                    text = f"8:0 Read {self.moved}\n8:0 Write 0\n8:0 Total {self.moved}\nTotal {self.moved}"
                    self.machine.put(SERVICED, one.cgroup_dir, text)
            value = waiting * self.random.uniform(0.9, 1.1)
            self.world.sample(kinds.POD_PSI, value, self.web.uid, self.signal, "10", "some")
            outcome = self.world.decide(self.strategy, self.state)
            self.state = outcome.state
            self.outcomes.append(outcome)
            applied = self.machine.executor.apply(outcome.batches, rule=self.strategy.name, now=self.world.now, mode=mode)
            assert applied.failed == []
            self.machine.now += 10

    def get(self, resource: str, directory: str = "") -> str:
        return self.machine.get(resource, directory or self.miner.cgroup_dir)

    def verdicts(self) -> list[str]:
        return [r.verdict for o in self.outcomes for r in o.records]


@pytest.fixture
def case(world, gates) -> Case:
    return Case(world, gates)


@pytest.mark.feature("BEY-INT-01")
class TestSqueeze:
    def test_the_culprit_is_squeezed_at_once_and_set_free_when_the_victim_has_recovered(self, case) -> None:
        case.look(40, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")
        case.look(4, 60.0, 6.0)
        squeezed = int(case.get(QUOTA))
        assert 270_000 < squeezed < 330_000, "half of what it used"
        assert case.get(SHARES) == "2"
        case.look(2, 35.0, 1.0)
        assert int(case.get(QUOTA)) == squeezed, "of what it used when it was found, not of what is left"
        assert ("interference_action", ("default", "miner", "squeeze")) in [(s.family, s.labels) for s in case.outcomes[-1].samples]
        case.look(4, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")
        assert case.verdicts() == ["Interfered", "Squeezed", "Confirmed", "InterferenceOver", "SetFree"]
        assert len(case.machine.executor.holds) == 0

    def test_quotas_are_of_the_periods_that_groups_have(self, case) -> None:
        case.machine.put(QUOTA, case.box, "400000")
        case.machine.put("cpu.cfs_period_us", case.miner.cgroup_dir, "50000")
        case.machine.put("cpu.cfs_period_us", case.box, "20000")
        case.look(40, 4.0, 0.5)
        case.look(4, 60.0, 6.0)
        assert 135_000 < int(case.get(QUOTA)) < 165_000, "half of the six cores that it used"
        assert 54_000 < int(case.get(QUOTA, case.box)) < 66_000

    def test_containers_with_larger_quotas_make_way_and_get_theirs_back(self, case) -> None:
        case.machine.put(QUOTA, case.miner.cgroup_dir, "800000")
        case.machine.put(QUOTA, case.box, "700000")
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert int(case.get(QUOTA, case.box)) == int(case.get(QUOTA)) < 400_000
        case.look(4, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(QUOTA, case.box)) == ("800000", "700000")

    def test_sidecars_with_larger_quotas_make_way_too(self, case) -> None:
        proxy = case.with_sidecar()
        case.machine.put(QUOTA, case.miner.cgroup_dir, "800000")
        case.machine.put(QUOTA, proxy, "700000")
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert int(case.get(QUOTA, proxy)) == int(case.get(QUOTA)) < 400_000
        case.look(4, 4.0, 0.5)
        assert case.get(QUOTA, proxy) == "700000"

    @pytest.mark.parametrize(("version", "of_pod", "of_other"), [("v1", 1_400_000, 700_000), ("v1", -1, -1), ("v2", 1_400_000, 700_000)])
    def test_a_container_that_starts_again_finds_room(self, world, world_v2, gates, version, of_pod, of_other) -> None:
        """Where no hook answers the runtime it begins with its limit, and cgroup v1 gives none more than its pod has."""
        case = Case(world if version == "v1" else world_v2, gates)
        limited = case.world.pod("limited", qos="BE", kube_qos="BestEffort", limits={"cpu": "7"}, containers=2)
        case.world.pods = [pod for pod in case.world.pods if pod.name not in ("miner", "limited")]
        [down, other] = (container.cgroup_dir for container in limited.containers)
        case.miner = replace(limited, uid=case.miner.uid, name="miner")
        case.world.pods.append(case.miner)
        end = "" if version == "v1" else " 100000"
        for directory, quota in ((case.miner.cgroup_dir, of_pod), (down, 700_000), (other, of_other)):
            case.machine.put(QUOTA, directory, f"{quota}{end}")
            case.machine.put(SHARES, directory, "1024" if version == "v1" else "100")
        case.look(40, 4.0, 0.5)
        case.look(4, 60.0, 6.0)
        squeezed = case.get(QUOTA)
        assert int(squeezed.split()[0]) < 400_000
        running = case.miner
        ended = (replace(running.containers[0], running=False), running.containers[1])
        case.world.pods[case.world.pods.index(running)] = case.miner = replace(running, containers=ended)
        case.look(1, 35.0, 0.1)
        assert case.get(QUOTA) == (str(of_pod) if version == "v1" else squeezed)
        assert case.get(QUOTA, other) == squeezed
        case.world.pods[case.world.pods.index(case.miner)] = case.miner = running
        case.look(1, 35.0, 0.1)
        assert case.get(QUOTA) == case.get(QUOTA, down) == squeezed, "what it used when it was found"

    def test_groups_that_a_container_made_make_way_before_it(self, case) -> None:
        """The kernel refuses a group less than what is in it has (cgroup v1)."""
        inner, innermost = f"{case.box}/docker", f"{case.box}/docker/a"
        for directory, quota in ((case.miner.cgroup_dir, "800000"), (case.box, "-1"), (inner, "-1"), (innermost, "700000")):
            case.machine.put(QUOTA, directory, quota)
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert int(case.get(QUOTA, innermost)) == int(case.get(QUOTA)) < 400_000
        assert (case.get(QUOTA, case.box), case.get(QUOTA, inner)) == ("-1", "-1")
        written = [write.target for outcome in case.outcomes for batch in outcome.batches for write in batch if write.resource == QUOTA]
        assert written.index(innermost) < written.index(case.miner.cgroup_dir)
        case.look(4, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(QUOTA, innermost)) == ("800000", "700000")

    def test_where_suppression_works_by_the_tiers_quota_only_the_weight_is_taken(self, case) -> None:
        case.world.spec = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "2")

    def test_what_a_hook_wants_waits_and_comes_true_afterwards(self, case) -> None:
        """BatchResource keeps quota and shares of such pods: held files it leaves, and gets them back with its newest wish."""
        from roles.koordlet.actuation.writes import Write, sequence

        assert "BatchResource" in {hook.name for hook in HOOKS}
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        held = case.get(QUOTA), case.get(SHARES)
        wish = sequence(Write(QUOTA, case.miner.cgroup_dir, "400000"), Write(SHARES, case.miner.cgroup_dir, "512"))
        case.machine.executor.apply([wish], rule="BatchResource", now=case.world.now)
        assert (case.get(QUOTA), case.get(SHARES)) == held
        case.look(4, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(SHARES)) == ("400000", "512")

    def test_observing_only_tells(self, case) -> None:
        case.look(40, 4.0, 0.5, mode=Mode.OBSERVE)
        case.look(4, 30.0, 6.0, mode=Mode.OBSERVE)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")
        assert "Squeezed" in case.verdicts(), "which the manager calls WouldSqueeze"

    def test_a_culprit_that_is_gone_is_forgotten(self, case) -> None:
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        case.world.pods.remove(case.miner)
        case.look(1, 30.0, 0.0)
        assert case.state.held == {}
        assert len(case.machine.executor.holds) == 0

    def test_restore_while_it_is_squeezed(self, case) -> None:
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert restore(case.machine.root).failed == []
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")

    def test_cgroup_v2(self, world_v2, gates) -> None:
        case = Case(world_v2, gates)
        case.look(40, 4.0, 0.5)
        case.look(4, 30.0, 6.0)
        assert (case.get(QUOTA).split()[0] != "max", case.get(SHARES)) == (True, "1")
        case.look(4, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(SHARES)) == ("max 100000", "100")


@pytest.mark.feature("BEY-INT-01")
class TestBlame:
    def test_who_did_not_help_is_set_free_and_the_next_one_is_tried(self, case) -> None:
        other = case.world.pod("other", qos="BE", kube_qos="BestEffort")
        for resource, value in ((QUOTA, "-1"), (SHARES, "1024")):
            for directory in (other.cgroup_dir, other.containers[0].cgroup_dir):
                case.machine.put(resource, directory, value)

        def look(count: int, waiting: float, use: float) -> None:
            for _ in range(count):
                for ago in range(10):
                    case.world.sample(kinds.POD_CPU, 2.0, other.uid, ago=-ago)
                case.look(1, waiting, use)

        look(40, 4.0, 0.5)
        look(4, 60.0, 6.0)
        assert (case.get(SHARES), case.get(SHARES, other.cgroup_dir)) == ("2", "1024")
        look(2, 60.0, 6.0)
        assert (case.get(SHARES), case.get(QUOTA)) == ("1024", "-1"), "it helped nobody"
        assert case.get(SHARES, other.cgroup_dir) == "2", "though it does not move with the service"
        look(3, 35.0, 6.0)
        told = [(r.verdict, r.subject.name) for o in case.outcomes for r in o.records]
        assert ("Cleared", "miner") in told
        assert ("Confirmed", "other") in told
        look(30, 35.0, 6.0)
        assert {v.pod.name for o in case.outcomes for t in o.tasks for v in t.victims} == {"other"}

    def test_nobody_goes_whose_squeeze_did_not_help_and_all_are_tried_again(self, case) -> None:
        case.look(40, 4.0, 0.5)
        case.look(120, 60.0, 6.0)
        assert not any(o.tasks or o.requests for o in case.outcomes)
        verdicts = case.verdicts()
        assert verdicts.count("Squeezed") == verdicts.count("Cleared")
        assert 2 <= verdicts.count("Squeezed") <= 5, "with pauses"
        case.look(5, 4.0, 0.5)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")


@pytest.mark.feature("BEY-INT-01")
class TestThrottle:
    def test_disks_are_limited_when_the_victim_waits_for_disks(self, world, gates) -> None:
        case = Case(world, gates, signal="io")
        case.look(40, 1.0, 0.5)
        case.look(5, 80.0, 6.0)
        disk, rate = case.get(READ, case.box).split()
        assert (disk, case.get(WRITE, case.box), case.get(READ), case.get(SHARES)) == ("8:0", "", "", "1024")
        assert 25 * MIB < int(rate) < 35 * MIB, "half of 60 MiB a second"
        case.look(2, 45.0, 1.0)
        assert case.get(READ, case.box) == f"{disk} {rate}"
        case.look(4, 1.0, 0.5)
        assert case.get(READ, case.box) == "8:0 0", "no limit, in the kernel's words"
        assert case.verdicts() == ["Interfered", "Throttled", "Confirmed", "MigrationAsked", "InterferenceOver", "SetFree"]

    def test_a_limit_that_is_there_is_not_lifted_to_make_the_kernel_count(self, world, gates) -> None:
        case = Case(world, gates, signal="io")
        case.counts = False
        case.machine.file("proc/diskstats", "8 0 sda 1 0 0 0 1 0\n8 16 sdb 1 0 0 0 1 0\n")
        case.machine.put(READ, case.box, f"8:0 {2 * MIB}")
        case.look(40, 1.0, 0.5)
        case.look(5, 80.0, 6.0)
        assert {write.device for outcome in case.outcomes for batch in outcome.batches for write in batch} == {"8:16"}

    def test_disks_of_groups_that_a_container_made_are_limited_too(self, world, gates) -> None:
        case = Case(world, gates, signal="io")
        case.counts = False
        inner = f"{case.box}/docker"
        for resource in (READ, WRITE):
            case.machine.put(resource, inner, "")
        case.machine.put(QUOTA, inner, "-1")
        for look in range(45):
            case.machine.put(SERVICED, inner, f"8:0 Read {look * 900 * MIB}\n8:0 Write 0\n8:0 Total 0\nTotal 0")
            case.look(1, 1.0 if look < 40 else 80.0, 0.5 if look < 40 else 6.0)
        assert case.get(READ, inner).startswith("8:0 ")

    def test_disks_of_sidecars_are_limited_too(self, world, gates) -> None:
        case = Case(world, gates, signal="io")
        proxy = case.with_sidecar()
        case.machine.put(READ, proxy, "")
        case.machine.put(WRITE, proxy, "")
        case.look(40, 1.0, 0.5)
        case.look(5, 80.0, 6.0)
        assert case.get(READ, proxy) == case.get(READ, case.box) != ""

    def test_cgroup_v2(self, world_v2, gates) -> None:
        case = Case(world_v2, gates, signal="io")
        case.look(40, 1.0, 0.5)
        case.look(5, 80.0, 6.0)
        assert case.get("io.max").startswith("8:0 rbps=")
        case.look(4, 1.0, 0.5)
        assert case.get("io.max") == "8:0 rbps=max wbps=max riops=max wiops=max"


@pytest.mark.feature("BEY-INT-01")
class TestEscalation:
    def test_the_longer_it_lasts_the_more_is_done(self, case) -> None:
        case.look(40, 4.0, 0.5)
        case.look(4, 60.0, 6.0)
        assert (case.outcomes[-1].requests, case.outcomes[-1].tasks) == ({}, ())
        case.look(6, 35.0, 6.0)
        request = case.outcomes[-1].requests[case.miner.uid]["migrateOut"]
        assert (request["reason"], request["victim"], request["signal"]) == ("Interference", "default/web", "cpu")
        assert case.outcomes[-1].findings[case.web.uid]["interference"][0]["antagonist"] == "default/miner"
        assert not case.outcomes[-1].tasks
        case.look(12, 35.0, 6.0)
        (task,) = case.outcomes[-1].tasks
        assert [v.pod.name for v in task.victims] == ["miner"]
        case.look(4, 4.0, 0.5)
        assert (case.outcomes[-1].requests, case.outcomes[-1].findings) == ({}, {})
        assert case.verdicts() == ["Interfered", "Squeezed", "Confirmed", "MigrationAsked", "InterferenceOver", "SetFree"]

    def test_only_what_is_asked_for_is_done(self, case) -> None:
        case.world.spec = {"extensions": {"interference": {"actions": ["migrate"], "migrateAfterSeconds": 10}}}
        case.look(40, 4.0, 0.5)
        case.look(4, 60.0, 6.0)
        case.look(26, 35.0, 6.0)
        assert (case.get(QUOTA), case.get(SHARES)) == ("-1", "1024")
        assert case.miner.uid in case.outcomes[-1].requests
        assert not any(o.tasks for o in case.outcomes)

    def test_settings_that_cannot_be_used_leave_the_last_good(self) -> None:
        good, _ = effective_slo({"extensions": {"interference": {"actions": ["squeeze"]}}})
        for bad in ({"actions": ["kill"]}, {"evictAfterSeconds": -1}, {"after": 1}):
            found, errors = effective_slo({"extensions": {"interference": bad}}, good)
            assert (found.interference, len(errors)) == (good.interference, 1)
            assert "NodeSLO spec.extensions.interference" in str(errors[0])


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.feature("BEY-MODE-01")
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_from_pressure_to_a_squeezed_pod_and_a_word_in_the_nodemetric(tmp_path, monkeypatch, mode) -> None:
    """The whole agent. Observing reports what it finds, and neither touches the pod nor asks anybody to move it."""
    monkeypatch.setattr(interference, "WARM_UP", 3)
    monkeypatch.setattr(interference, "LEAST_POINTS", 5)
    monkeypatch.setattr(interference, "IN_A_ROW", 2)
    monkeypatch.setattr(interference, "TRIAL", 3.0)
    monkeypatch.setattr(nodemetric_loop, "WRITES_PER_SECOND", 5.0)
    monkeypatch.setattr(policy, "MIN_INTERVAL", 1)

    async def story(c: Cluster) -> None:
        await c.node({"extensions": {"interference": {"actions": ["squeeze", "migrate"], "migrateAfterSeconds": 1}}})
        collect = {"spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 1}}}
        await c.client.create(
            NODEMETRICS, {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, **collect}
        )
        web = await c.pod("web", qos="LS", kube_qos="Burstable")
        miner = await c.pod("miner", qos="BE", kube_qos="BestEffort")

        def pressure(waiting: float) -> None:
            for directory in ("kubepods.slice", *c.dirs(web), *c.dirs(miner)):
                own = waiting if directory in c.dirs(web) else 0.0
                for name in ("cpu", "memory", "io"):
                    text = f"some avg10={own if name == 'cpu' else 0.0:.2f} avg60=0.00 avg300=0.00 total=1\n"
                    c.cgroup("cpuacct", directory, f"{name}.pressure", text + text.replace("some", "full"))

        async def said(pod: str) -> dict[str, Any]:
            found = await c.client.get(NODEMETRICS, "n1")
            entries = (found.get("status") or {}).get("podsMetric") or []
            return next((e.get("extensions") or {} for e in entries if e["name"] == pod), {})

        pressure(1.0)
        c.use.update({"node": 2.0, "web": 1.0, "miner": 0.2})
        options = {"psi_collector_interval": 1.0, "strategy_modes": f"InterferenceDetection={mode}"}
        async with agent(c, "InterferenceDetection", "PSICollector", **options) as app:

            def learned() -> bool:
                if not hasattr(app, "acting"):
                    return False
                state = app.acting.manager._running["InterferenceDetection"].state
                return any(w.baseline.count >= 8 for w in state.watched.values())

            await until(learned, "a baseline", 60)
            pressure(40.0)
            c.use["miner"] = 8.0
            pod = c.dirs(miner)[0]

            async def named() -> bool:
                return any(f.get("antagonist") == "default/miner" for f in (await said("web")).get("interference", []))

            async def asked() -> bool:
                return "migrateOut" in await said("miner")

            await until(named, "the finding in the NodeMetric", 40)
            if mode == "observe":
                assert c.read("cpu", pod, SHARES) == "1024"
                assert not await asked()
                assert "koordlet_strategy_would_write{" in exposed(app.metrics.internal)
                return
            await until(lambda: c.read("cpu", pod, SHARES) == "2", "less weight")
            pressure(25.0)  # it helps, and is not enough
            await until(asked, "the request to migrate", 60)
            pressure(1.0)
            c.use["miner"] = 0.2
            await until(lambda: c.read("cpu", pod, SHARES) == "1024" and c.read("cpu", pod, QUOTA) == "-1", "freedom", 30)

    run(tmp_path, story)
