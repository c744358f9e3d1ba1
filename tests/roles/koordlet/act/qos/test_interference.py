"""Interference: signals that leave their baseline, and who moves with them (BEY-INT-01, KA-INT-01)."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import EVENTS
from koord.api.objects_meta import OwnerReference
from roles.koordlet.acting import modes
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.options import Options
from roles.koordlet.qos import carryover, interference
from roles.koordlet.qos.baseline import Baseline, aligned, covariance
from roles.koordlet.qos.interference import IN_A_ROW, SLOWER, InterferenceDetection, InterferenceState, Watched
from roles.koordlet.store import kinds
from tests.support.koordlet import Cluster, agent, exposed, run, until

STEP = 10.0


@pytest.fixture
def strategy(gates):
    return InterferenceDetection(Options(), gates("InterferenceDetection"))


class Story:
    """A victim, a culprit and a bystander; time passes in steps of a PSI sample."""

    def __init__(self, world: Any, strategy: Any) -> None:
        self.world, self.strategy, self.state = world, strategy, strategy.initial()
        self.victim = world.pod("web", qos="LS")
        self.culprit = world.pod("miner", qos="BE", kube_qos="BestEffort")
        self.bystander = world.pod("batch", qos="BE", kube_qos="BestEffort")
        self.random = random.Random(7)
        self.outcomes: list[Any] = []

    def step(self, count: int, waiting: float, culprit: float, *, resource: str = "cpu", kind: str = kinds.POD_CPU) -> None:
        for _ in range(count):
            for second in range(10):
                ago = STEP - 1 - second
                self.world.now += 1.0
                self.world.sample(kind, culprit * self.random.uniform(0.95, 1.05), self.culprit.uid)
                self.world.sample(kind, 2.0 * self.random.uniform(0.9, 1.1), self.bystander.uid)
                assert ago >= 0
            noise = self.random.uniform(0.9, 1.1)
            self.world.sample(kinds.POD_PSI, waiting * noise, self.victim.uid, resource, "10", "some")
            outcome = self.world.decide(self.strategy, self.state)
            self.state = outcome.state
            self.outcomes.append(outcome)

    def verdicts(self) -> list[str]:
        return [r.verdict for o in self.outcomes for r in o.records]


@pytest.fixture
def story(world, strategy) -> Story:
    return Story(world, strategy)


def test_an_outlier_is_called_out_with_its_culprit_and_ends(story) -> None:
    story.step(40, 4.0, 0.5)
    assert story.verdicts() == [], "noise is no interference"
    story.step(3, 30.0, 6.0)
    assert story.verdicts() == [], "one burst is none either"
    story.step(2, 30.0, 6.0)
    (record,) = [r for o in story.outcomes for r in o.records]
    assert (record.verdict, record.subject.name, record.numbers["antagonist"]) == ("Interfered", "web", "default/miner")
    assert 3.5 < record.numbers["mean"] < 7, "the burst is learned too"
    assert record.numbers["correlation"] > 0.9
    (notice,) = [n for o in story.outcomes for n in o.notices]
    assert (notice.type, notice.reason, notice.name, notice.observed) == ("Warning", "Interference", "web", True)
    assert "pod default/miner moves with it" in notice.message
    (sample,) = story.outcomes[-1].samples
    assert sample.labels == ("default", "web", "cpu", "default/miner")
    assert sample.value > 4
    story.step(4, 4.0, 0.5)
    assert story.verdicts() == ["Interfered", "Confirmed", "InterferenceOver"]
    assert story.outcomes[-1].samples == ()


def test_nobody_is_blamed_for_what_does_not_move_with_anybody(story) -> None:
    story.step(40, 4.0, 0.5)
    story.step(4, 30.0, 0.5)
    (record,) = [r for o in story.outcomes for r in o.records]
    assert "no pod moves with it" in record.message
    assert "antagonist" not in record.numbers
    assert not any(o.tasks for o in story.outcomes)


def test_a_culprit_is_to_go_only_when_it_lasts_and_with_a_pause(story, world) -> None:
    story.step(40, 4.0, 0.5)
    story.step(4, 60.0, 6.0)
    assert not any(o.tasks for o in story.outcomes)
    story.step(19, 35.0, 6.0)
    (task,) = story.outcomes[-1].tasks
    assert (task.gate, [v.pod.name for v in task.victims]) == ("InterferenceDetection", ["miner"])
    assert "default/web" in task.message
    story.state = story.strategy.evicted(story.state, world.now)
    story.step(1, 35.0, 6.0)
    assert not story.outcomes[-1].tasks, "the pause"


def test_a_policy_annotation_protects_the_culprit(world, strategy) -> None:
    story = Story(world, strategy)
    story.culprit.annotations["koordinator.sh/eviction-policy"] = '["MemoryEvict"]'
    story.step(40, 4.0, 0.5)
    story.step(25, 30.0, 6.0)
    assert "Interfered" in story.verdicts()
    assert not any(o.tasks for o in story.outcomes)


def test_what_lasts_long_enough_is_the_new_usual(story, monkeypatch) -> None:
    monkeypatch.setattr(interference, "ADAPT_AFTER", 10)
    story.step(40, 4.0, 0.5)
    story.step(250, 30.0, 0.5)
    assert story.verdicts() == ["Interfered", "InterferenceOver"]


def test_memory_and_cycles_per_instruction(world, strategy) -> None:
    story = Story(world, strategy)
    story.step(40, 1.0, 1e9, resource="mem", kind=kinds.POD_MEMORY)
    story.step(4, 20.0, 9e9, resource="mem", kind=kinds.POD_MEMORY)
    assert [r.numbers["antagonist"] for o in story.outcomes for r in o.records] == ["default/miner"]

    state = strategy.initial()
    verdicts = []
    for turn in range(40):
        world.now += 60.0
        slow = 3.0 if turn >= 36 else 1.0
        world.use(miner=6.0 if turn >= 36 else 0.5)
        for container, weight in (("a", 1.0), ("b", 3.0)):
            world.sample(kinds.CONTAINER_CPI, 1e9 * weight * slow, story.victim.uid, container, "cycle")
            world.sample(kinds.CONTAINER_CPI, 1e9 * weight, story.victim.uid, container, "instruction")
        outcome = world.decide(strategy, state)
        state = outcome.state
        verdicts += [(r.verdict, r.numbers["signal"], r.numbers["value"]) for r in outcome.records]
    assert verdicts == [("Interfered", "cpi", 3.0)]


class Signals:
    """A service whose signal rises while one of two best-effort pods does more of something; ten seconds a step."""

    def __init__(self, world: Any, strategy: Any) -> None:
        self.world, self.strategy, self.state = world, strategy, strategy.initial()
        self.web = world.pod("web", qos="LS")
        self.pods = {name: world.pod(name, qos="BE", kube_qos="BestEffort") for name in ("miner", "copier")}
        self.random = random.Random(11)
        self.records: list[Any] = []

    def steps(self, count: int, signal: tuple[str, ...], value: float, **active: tuple[tuple[str, ...], float]) -> None:
        """``active``: by pod, a series (kind and what selects it beside the pod) and its value."""
        for _ in range(count):
            self.world.now += STEP
            for name, (series, amount) in active.items():
                kind, *rest = series
                self.world.sample(kind, amount * self.random.uniform(0.95, 1.05), self.pods[name].uid, *rest)
            kind, *rest = signal
            self.world.sample(kind, value * self.random.uniform(0.9, 1.1), self.web.uid, *rest)
            outcome = self.world.decide(self.strategy, self.state)
            self.state = outcome.state
            self.records += outcome.records

    def found(self) -> list[tuple[str, str, str]]:
        """(verdict, signal, antagonist) of each record."""
        return [(r.verdict, r.numbers["signal"], r.numbers.get("antagonist", "")) for r in self.records]


AGAIN, DROPS, TRAFFIC = (kinds.POD_NETWORK, "retransmits"), (kinds.POD_NETWORK, "drops"), (kinds.POD_NETWORK, "bytes")
WAITING_FOR_DISKS = (kinds.POD_PSI, "io", "10", "some")
CPU, DISK = (kinds.POD_CPU,), (kinds.POD_DISK,)


def test_who_fills_the_network_while_segments_are_sent_again(world, strategy) -> None:
    signals = Signals(world, strategy)
    signals.steps(40, AGAIN, 0.1, miner=(CPU, 1.0), copier=(TRAFFIC, 1e6))
    signals.steps(3, AGAIN, 0.9, miner=(CPU, 8.0), copier=(TRAFFIC, 9e7))
    assert signals.found() == [], "less than one percent more is no trouble"
    signals.steps(4, AGAIN, 6.0, miner=(CPU, 8.0), copier=(TRAFFIC, 1e8))
    assert signals.found() == [("Interfered", "retransmits", "default/copier")], "by traffic, not by CPU"


def test_packets_are_dropped_by_traffic_or_because_nobody_comes_to_read_them(world, strategy) -> None:
    signals = Signals(world, strategy)
    signals.steps(40, DROPS, 0.0, miner=(CPU, 1.0), copier=(TRAFFIC, 1e6))
    signals.steps(4, DROPS, 20.0, miner=(CPU, 12.0), copier=(TRAFFIC, 1e6))
    assert signals.found() == [("Interfered", "drops", "default/miner")]


def test_disks_are_filled_by_bytes_where_the_kernel_counts_them(world, strategy) -> None:
    signals = Signals(world, strategy)
    signals.steps(40, WAITING_FOR_DISKS, 1.0, miner=(CPU, 1.0), copier=(DISK, 1e6))
    signals.steps(4, WAITING_FOR_DISKS, 40.0, miner=(CPU, 12.0), copier=(DISK, 5e8))
    assert signals.found() == [("Interfered", "io", "default/copier")]


def test_a_counted_disk_clears_who_only_computes(world, strategy) -> None:
    signals = Signals(world, strategy)
    signals.steps(40, WAITING_FOR_DISKS, 1.0, miner=(CPU, 1.0), copier=(DISK, 1e6))
    signals.steps(4, WAITING_FOR_DISKS, 40.0, miner=(CPU, 12.0), copier=(DISK, 1e6))
    assert signals.found() == [("Interfered", "io", "")]


def test_without_counted_disks_cpu_use_has_to_do(world, strategy) -> None:
    signals = Signals(world, strategy)
    signals.steps(40, WAITING_FOR_DISKS, 1.0, miner=(CPU, 1.0))
    signals.steps(4, WAITING_FOR_DISKS, 40.0, miner=(CPU, 12.0))
    assert signals.found() == [("Interfered", "io", "default/miner")]


def test_best_effort_pods_and_pods_without_samples_are_not_watched(world, strategy) -> None:
    world.pod("be", qos="BE", kube_qos="BestEffort")
    world.pod("web", qos="LS")
    world.sample(kinds.POD_PSI, 99.0, "uid-be", "cpu", "10", "some")
    outcome = world.decide(strategy)
    assert outcome.state.watched == {}


def test_it_only_observes_unless_it_is_named() -> None:
    assert modes(Options())("InterferenceDetection") is Mode.OBSERVE
    assert modes(Options(strategy_modes="InterferenceDetection=enforce"))("InterferenceDetection") is Mode.ENFORCE
    assert modes(Options())("CPUBurst") is Mode.ENFORCE


class TestNumbers:
    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
    def test_property_a_baseline_stays_among_its_values(self, values) -> None:
        baseline = Baseline()
        for number, value in enumerate(values):
            baseline = baseline.learned(value, 1000.0 + 10 * number)
        assert min(values) - 1e-6 <= baseline.mean <= max(values) + 1e-6
        assert baseline.variance >= 0
        assert baseline.limit(1.0) >= baseline.mean + 1.0

    def test_old_values_fade(self) -> None:
        baseline = Baseline()
        for number in range(200):
            baseline = baseline.learned(10.0, 10.0 * number)
        for number in range(1080):
            baseline = baseline.learned(20.0, 2000.0 + 10.0 * number)
        assert 18.0 < baseline.mean < 20.0, "three half-lives later"

    @given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=30))
    def test_property_correlation_is_symmetric_and_bounded(self, pairs) -> None:
        left, right = [a for a, _ in pairs], [b for _, b in pairs]
        assert -1 <= covariance(left, right)[1] <= 1
        assert math.isclose(covariance(left, right)[1], covariance(right, left)[1], abs_tol=1e-9)

    def test_alignment_takes_what_lies_before(self) -> None:
        assert aligned([100, 200, 300], [50, 100, 150, 310], [1.0, 3.0, 5.0, 7.0], 100) == [2.0, 5.0, None]


@pytest.mark.feature("BEY-INT-01")
@pytest.mark.feature("KA-INT-01")
@pytest.mark.feature("KLO-COL-11")
def test_from_pressure_files_to_an_event(tmp_path, monkeypatch) -> None:
    """The whole agent: PSI files in; gauge, event, record and, asked for by name, an eviction out."""
    monkeypatch.setattr(interference, "WARM_UP", 3)
    monkeypatch.setattr(interference, "LEAST_POINTS", 5)
    monkeypatch.setattr(interference, "IN_A_ROW", 2)
    monkeypatch.setattr(interference, "TRIAL", 3.0)

    async def story(c: Cluster) -> None:
        await c.node({"extensions": {"interference": {"evictAfterSeconds": 1, "actions": ["squeeze", "evict"]}}})
        web = await c.pod("web", qos="LS", kube_qos="Burstable")
        miner = await c.pod("miner", qos="BE", kube_qos="BestEffort")

        def pressure(waiting: float) -> None:
            for directory in ("kubepods.slice", *c.dirs(web), *c.dirs(miner)):
                own = waiting if directory in c.dirs(web) else 0.0
                for name in ("cpu", "memory", "io"):
                    value = own if name == "cpu" else 0.0
                    text = f"some avg10={value:.2f} avg60=0.00 avg300=0.00 total=1\n"
                    c.cgroup("cpuacct", directory, f"{name}.pressure", text + text.replace("some", "full"))

        pressure(1.0)
        c.use.update({"node": 2.0, "web": 1.0, "miner": 0.2})
        options = {"psi_collector_interval": 1.0, "strategy_modes": "InterferenceDetection=enforce"}
        async with agent(c, "InterferenceDetection", "PSICollector", **options) as app:
            await until(lambda: "koordlet_pod_psi{" in exposed(app.metrics.external), "pressure as measured")
            assert 'psi_degree="some",psi_precision="avg10",psi_resource_type="cpu"' in exposed(app.metrics.external)

            def learned() -> bool:
                state = app.acting.manager._running["InterferenceDetection"].state
                return any(w.baseline.count >= 8 for w in state.watched.values())

            await until(learned, "a baseline", 60)
            assert "koordlet_interference{" not in exposed(app.metrics.internal)
            pressure(40.0)
            c.use["miner"] = 8.0
            await until(lambda: "koordlet_interference{" in exposed(app.metrics.internal), "the gauge", 20)

            async def told() -> bool:
                return any(e["reason"] == "Interference" for e in (await c.client.list(EVENTS, "default")).items)

            await until(told, "the event")
            (record, *_) = [r for r in app.recorder.ring.find("Pod", "default", "web") if r.rule == "InterferenceDetection"]
            assert record.verdict == "Interfered"

            def squeezed() -> bool:
                return c.read("cpu", c.dirs(miner)[0], "cpu.shares") == "2"

            await until(squeezed, "the squeeze of the culprit", 40)
            pressure(25.0)
            await until(lambda: c.evicted("miner"), "the eviction of the culprit, whose squeeze helped and was not enough", 60)

    run(tmp_path, story)


@pytest.mark.feature("BEY-INT-01")
def test_from_network_counters_to_a_word_in_the_nodemetric(tmp_path, monkeypatch) -> None:
    """The whole agent: counters of two network namespaces in; gauge, record and the report out."""
    monkeypatch.setattr(interference, "WARM_UP", 3)
    monkeypatch.setattr(interference, "LEAST_POINTS", 5)

    async def story(c: Cluster) -> None:
        await c.node({})
        pids = {"web": 71, "copier": 81}
        for name, qos, kube_qos in (("web", "LS", "Burstable"), ("copier", "BE", "BestEffort")):
            pod = await c.pod(name, qos=qos, kube_qos=kube_qos)
            c.cgroup("cpu", c.dirs(pod)[1], "cgroup.procs", f"{pids[name]}\n")
        counted = dict.fromkeys(("sent", "again", "moved"), 0)

        def pass_second(again: int, moved: int) -> None:
            """Counters of both, as of one more second."""
            counted["sent"] += 2000
            counted["again"] += again
            counted["moved"] += moved
            for name, pid in pids.items():
                bytes_moved = counted["moved"] if name == "copier" else 0
                faces = f"a\nb\n  eth0: {bytes_moved} {counted['sent']} 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
                sent_again = counted["again"] if name == "web" else 0
                c.file(f"proc/{pid}/net/dev", faces)
                c.file(f"proc/{pid}/net/snmp", f"Tcp: OutSegs RetransSegs\nTcp: {counted['sent']} {sent_again}\n")
                c.file(f"proc/{pid}/net/netstat", "TcpExt: ListenDrops\nTcpExt: 0\n")

        pass_second(0, 0)
        async with agent(c, "InterferenceDetection", psi_collector_interval=1.0) as app:
            ended = asyncio.Event()
            level = [2, 1000]

            async def live() -> None:
                while not ended.is_set():
                    pass_second(*level)
                    await asyncio.sleep(0.5)

            living = asyncio.create_task(live())
            try:
                await asyncio.sleep(8)
                assert "koordlet_interference{" not in exposed(app.metrics.internal)
                level[:] = [900, 200_000_000]
                # on a busy machine the first samples may not be enough to name anybody
                named = ('signal="retransmits"', 'antagonist="default/copier"')
                await until(lambda: all(label in exposed(app.metrics.internal) for label in named), "the gauge", 20)
            finally:
                ended.set()
                await living
            (record, *_) = [r for r in app.recorder.ring.find("Pod", "default", "web") if r.rule == "InterferenceDetection"]
            assert (record.verdict, record.numbers["signal"]) == ("Interfered", "retransmits")
            assert not await c.evicted("copier")

    run(tmp_path, story)


def test_after_two_hours_a_service_is_known_well_enough_for_a_rise_of_twenty_points() -> None:
    rng, watched, level = random.Random(5), Watched(), 0.0
    for number in range(720):
        level = 0.4 * level + rng.gauss(0, 0.9)
        watched = watched.taken(6 * math.exp(0.3 * level), 10.0 * number, 5.0)
    assert watched.high == 0
    for number in range(720, 720 + IN_A_ROW):
        watched = watched.taken(6 + 20.0 + rng.random(), 10.0 * number, 5.0)
    assert watched.high == IN_A_ROW


def test_values_every_second_teach_no_more_than_their_time() -> None:
    """Ten times as many values of the same noise are neither ten times the experience nor ten times the alarms."""
    calls = {}
    for step in (10.0, 1.0):
        rng, watched, level, calls[step] = random.Random(3), Watched(), 0.0, 0
        for number in range(int(6 * 3600 / step)):
            level = 0.9 * level + math.sqrt(0.19) * rng.gauss(0, 1)
            watched = watched.taken(6 * math.exp(0.6 * level), step * number, 1.0)
            calls[step] += watched.high == IN_A_ROW
            if number * step == 600.0:
                assert watched.baseline.experience == pytest.approx(61, abs=1)
    assert calls[1.0] <= calls[10.0] + 1, calls


def test_a_rise_is_named_within_five_seconds_of_samples_every_second(world) -> None:
    strategy = InterferenceDetection(Options(psi_collector_interval=1.0), lambda _: True)
    state = strategy.initial()
    world.pod("web", qos="LS")
    for name in ("miner", "batch"):
        world.pod(name, qos="BE", kube_qos="BestEffort")
    rng, rose = random.Random(5), 400
    for second in range(rose + 5):
        world.now += 1.0
        world.sample(kinds.POD_CPU, (4.0 if second >= rose else 0.1) * rng.uniform(0.9, 1.1), "uid-miner")
        world.sample(kinds.POD_CPU, rng.choice((0.1, 2.0)), "uid-batch")
        waits = (50.0 if second >= rose else 4.0) * rng.uniform(0.7, 1.3)
        average = 4.0 + max(second - rose, 0)
        world.sample(kinds.POD_PSI, waits, "uid-web", "cpu", kinds.PSI_RECENT, "some")
        world.sample(kinds.POD_PSI, average, "uid-web", "cpu", "10", "some")
        outcome = world.decide(strategy, state)
        state = outcome.state
        assert second >= rose or not outcome.records
        if outcome.records:
            break
    (record,) = outcome.records
    assert (record.verdict, record.numbers["antagonist"]) == ("Interfered", "default/miner")
    assert second - rose < 5


def test_what_single_seconds_hide_is_seen_in_the_means_of_ten(world) -> None:
    """Seconds that scatter by far more than the rise; nobody is called out for the scatter."""
    strategy, rng = InterferenceDetection(Options(psi_collector_interval=1.0), lambda _: True), random.Random(5)

    def waits() -> float:
        return min(8.0 * math.exp(rng.gauss(0, 0.8)), 90.0)

    fast = slow = Watched()
    for second in range(0, 7200, 10):
        ten = [waits() for _ in range(10)]
        for number, value in enumerate(ten):
            fast = fast.taken(value, world.now - 7200 + second + number, 5.0)
        slow = slow.taken(sum(ten) / 10, world.now - 7200 + second + 9, 5.0)
    for pod in ("web", "miner"):
        world.pod(pod, qos="LS" if pod == "web" else "BE", kube_qos="Burstable" if pod == "web" else "BestEffort")
    state = InterferenceState(watched={("uid-web", "cpu"): fast, ("uid-web", "cpu" + SLOWER): slow})
    told = []
    for second in range(600):
        world.now += 1.0
        disturbed = 200 <= second < 400
        world.sample(kinds.POD_CPU, (4.0 if disturbed else 0.1) * rng.uniform(0.9, 1.1), "uid-miner")
        world.sample(kinds.POD_PSI, min(waits() + 25.0 * disturbed, 100.0), "uid-web", "cpu", kinds.PSI_RECENT, "some")
        outcome = world.decide(strategy, state)
        state = outcome.state
        told += [(second, record.verdict, record.numbers.get("antagonist", "")) for record in outcome.records]
    (at, verdict, who), *_, (over, last, _) = told
    assert (verdict, who, last) == ("Interfered", "default/miner", "InterferenceOver")
    assert 200 < at <= 280
    assert 400 < over <= 460
    assert {verdict for _, verdict, _ in told} <= {"Interfered", "Cleared", "InterferenceOver"}


def test_a_pod_begins_with_the_norm_of_its_siblings_also_after_a_restart(world, gates) -> None:
    """A service that waits 40 % by nature is usual in its next pod, too; what is not usual is called out after five minutes."""

    def strategy() -> InterferenceDetection:
        return InterferenceDetection(Options(), gates("InterferenceDetection"))

    def lived(pod: Any, state: Any, values: list[float]) -> tuple[Any, list[str]]:
        verdicts = []
        for value in values:
            world.now += STEP
            world.sample(kinds.POD_PSI, value, pod.uid, "cpu", "10", "some")
            outcome = world.decide(one, state)
            state = outcome.state
            verdicts += [r.verdict for r in outcome.records]
        return state, verdicts

    owner = OwnerReference(kind="ReplicaSet", name="web-7d9", controller=True)
    one, rng = strategy(), random.Random(2)
    first = world.pod("web-1", qos="LS")
    meta = msgspec.structs.replace(first.pod.metadata, owner_references=(owner,))
    first = dataclasses.replace(first, pod=msgspec.structs.replace(first.pod, metadata=meta), labels={"pod-template-hash": "7d9"})
    world.pods[:] = [first]
    state, verdicts = lived(first, one.initial(), [40 * rng.uniform(0.8, 1.2) for _ in range(1500)])
    assert verdicts == []
    kept, one = one.kept(state), strategy()
    state = one.resumed(kept)
    meta = msgspec.structs.replace(meta, owner_references=(msgspec.structs.replace(owner, name="web-55f"),))
    second = dataclasses.replace(
        first, uid="uid-web-2", name="web-2", pod=msgspec.structs.replace(first.pod, metadata=meta), labels={"pod-template-hash": "55f"}
    )
    world.pods[:] = [second]
    starting = [90.0] * 10
    state, verdicts = lived(second, state, [*starting, *(40 * rng.uniform(0.8, 1.2) for _ in range(30)), *[70.0] * IN_A_ROW])
    assert verdicts == ["Interfered"]
    with pytest.raises(ValueError, match="not a baseline"):
        one.resumed(msgspec.msgpack.encode([("d/Pod/x", "cpu", 1.0, 1.0, 3, 0.0, 1.0, b"\0\0\0\0")]))


def test_what_strategies_learned_survives_the_agent_and_a_damaged_file(world, strategy, tmp_path, caplog) -> None:
    manager = SimpleNamespace(kept=lambda: {"InterferenceDetection": b"x"}, resumed=[])
    manager.resume = manager.resumed.append
    carryover.load(manager, str(tmp_path))
    carryover.save(manager, str(tmp_path))
    carryover.load(manager, str(tmp_path))
    (tmp_path / carryover.FILE).write_bytes(b"\xc1")
    carryover.load(manager, str(tmp_path))
    assert manager.resumed == [{"InterferenceDetection": b"x"}]
    assert "cannot be used and is ignored" in caplog.text
