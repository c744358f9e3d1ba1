"""Peak models, checkpoints, prod reclaimable (KLO-PRED)."""

from __future__ import annotations

import asyncio
import threading
import types
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.priority import PriorityClass
from roles.koordlet.prediction import loop as prediction_loop
from roles.koordlet.prediction import models as prediction_models
from roles.koordlet.prediction.models import FIXED_KEYS, NODE_KEY, SYSTEM_KEY, Models, PredictionOptions, class_key
from roles.koordlet.prediction.peak import Amount, Outcome, UnknownModelError, combine
from roles.koordlet.store import kinds
from roles.koordlet.store.store import MetricStore
from tests.support import patience
from tests.support.pipes import pipe_at

MIB, GIB = 1 << 20, 1 << 30
T0 = 1_700_000_000.0
PROD = class_key(PriorityClass.PROD)


def models(directory: Path, **options: Any) -> Models:
    return Models(PredictionOptions(directory=str(directory), **options))


def checkpoint(models: Models, now: float) -> int:
    """Write what is due; how many."""
    written = models.write(models.due(now))
    models.wrote(written, now)
    return len(written)


@pytest.mark.feature("KLO-PRED-01")
class TestTraining:
    def test_one_step(self, agent, make_pod, tmp_path) -> None:
        a = agent()
        for uid, qos in (("u-1", "Burstable"), ("u-2", "BestEffort")):
            a.tree.cgroup(a.tree.pod_dir(qos, uid), anon=GIB)
        a.list(make_pod("web", "u-1"), make_pod("batch", "u-2", qos="BestEffort"), make_pod("ghost", "u-3"))
        for i in range(30):
            a.tree.burn({0: 1.0, 1: 1.0, 2: 1.0}, 1.0)
            a.tree.cpu(a.tree.pod_dir("Burstable", "u-1"), 10**9 * (i + 1))
            a.tree.cpu(a.tree.pod_dir("BestEffort", "u-2"), 5 * 10**8 * (i + 1))
            a.tick()
        m = models(tmp_path)
        m.train(a.view, a.pod_cache.pods, a.now)
        assert set(m.models) == {"u-1", "u-2", *FIXED_KEYS}
        assert 1000 < m.predict("u-1").cpu < 1110, "the end of the bucket of 1 core"
        assert GIB < m.predict("u-1").memory < 1.06 * GIB
        assert 500 < m.predict(class_key(PriorityClass.BATCH)).cpu < 545
        assert 3000 < m.predict(NODE_KEY).cpu < 3200
        assert 1500 < m.predict(SYSTEM_KEY).cpu < 1640
        idle = m.predict(class_key(PriorityClass.FREE))
        assert (idle.cpu, idle.memory) == (25, 5 * MIB), "an idle class predicts its first bucket, never 0"
        with pytest.raises(UnknownModelError):
            m.predict("u-3")

    def test_old_peaks_fade(self, tmp_path) -> None:
        m = models(tmp_path, cpu_half_life=3600.0)
        for i in range(10):
            m.update("x", 8.0, GIB, T0 + i)
        for i in range(200):
            m.update("x", 1.0, GIB, T0 + 8 * 3600 + i)
        assert m.predict("x").cpu < 1100


@pytest.mark.feature("KLO-PRED-02")
class TestCheckpoints:
    def test_written_and_restored(self, tmp_path) -> None:
        m = models(tmp_path / "d")
        m.update("u-1", 1.5, GIB, T0)
        m.update(NODE_KEY, 3.0, 2 * GIB, T0)
        assert checkpoint(m, T0 + 1) == 2
        body = orjson.loads((tmp_path / "d" / "u-1").read_bytes())
        assert set(body) == {"UID", "CPU", "Memory", "LastUpdated"}
        assert max(body["CPU"]["bucketWeights"].values()) == 10_000
        fresh = models(tmp_path / "d")
        assert fresh.restore({"u-1"}, T0 + 2) == 2
        assert fresh.predict("u-1") == m.predict("u-1")

    def test_what_was_learned_since_the_checkpoint_stays_when_training_begins_anew(self, tmp_path) -> None:
        m = models(tmp_path)
        m.update("u-1", 1.5, GIB, T0)
        checkpoint(m, T0)
        for k in range(1, 30):
            m.update("u-1", 3.0, 2 * GIB, T0 + 60 * k)
        learned = m.predict("u-1")
        m.restore({"u-1"}, T0 + 1800)
        assert m.predict("u-1") == learned

    @pytest.mark.parametrize("by", ["file", "clock"])
    def test_a_time_at_the_end_of_all_times_ends_nothing(self, tmp_path, by) -> None:
        last = 253_402_300_799.0  # 9999-12-31T23:59:59Z
        m = models(tmp_path)
        m.update("u-1", 1.5, GIB, last - 1 if by == "clock" else T0)
        if by == "file":
            checkpoint(m, T0)
            body = orjson.loads((tmp_path / "u-1").read_bytes())
            (tmp_path / "u-1").write_bytes(orjson.dumps({**body, "LastUpdated": "9999-12-31T23:59:59Z"}))
            m = models(tmp_path)
            assert m.restore({"u-1"}, T0) == 1
        for k in range(3):
            m.update("u-1", 1.5, GIB, T0 + 60 * k)
        assert checkpoint(m, T0 + 7200) == 1
        again = models(tmp_path)
        assert again.restore({"u-1"}, T0 + 7200) == 1
        assert again.predict("u-1") == m.predict("u-1")

    def test_a_pipe_in_the_directory_holds_up_nothing(self, tmp_path) -> None:
        m = models(tmp_path)
        m.update("u-1", 1.5, GIB, T0)
        m.update(NODE_KEY, 1.5, GIB, T0)
        checkpoint(m, T0)
        content = (tmp_path / "u-1").read_bytes()
        (tmp_path / "u-1").unlink()
        for known in ({"u-1"}, set()):
            with pipe_at(tmp_path / "u-1", content):
                m = models(tmp_path)
                assert m.restore(known, T0 + 2) == 1, "the node's alone"
                m.recall({"u-1"}, T0 + 2)
                assert set(m.models) == {NODE_KEY}

    def test_what_is_of_no_use_is_deleted(self, tmp_path) -> None:
        m = models(tmp_path)
        m.update("gone", 1.0, GIB, T0)
        checkpoint(m, T0)
        (tmp_path / "u-1").write_text("{broken")
        (tmp_path / "u-2").write_text('{"CPU":{"bucketWeights":{"9999":1},"totalWeight":1},"Memory":{}}')
        (tmp_path / f"{NODE_KEY}.tmp").write_text("half")
        (tmp_path / "gone.tmp").write_bytes((tmp_path / "gone").read_bytes())
        for name in ("passwd", "notes.tmp"):
            (tmp_path / name).write_text("precious")
        assert models(tmp_path).restore({"u-1", "u-2"}, T0 + 14 * 86_400) == 0, "whatever the clock of a node that boots says"
        assert {p.name for p in tmp_path.iterdir()} == {"gone", "passwd", "notes.tmp"}, "the pod list of a node that boots is short"
        for later, left in ((86_000, {"gone"}), (86_401, set())):
            m = models(tmp_path)
            m.update(NODE_KEY, 1.0, GIB, T0 + later)
            checkpoint(m, T0 + later)
            assert models(tmp_path).restore({"u-1", "u-2"}, T0 + later) == 1
            assert {p.name for p in tmp_path.iterdir()} == {*left, NODE_KEY, "passwd", "notes.tmp"}, "what is not koordlet's stays"

    @pytest.mark.parametrize("leap", [14 * 86400.0, -14 * 86400.0])
    def test_a_clock_that_leaps_leaves_the_models_as_they_are(self, tmp_path, leap) -> None:
        m = models(tmp_path)
        now = T0
        for _ in range(1440):
            now += 60
            m.update("x", 8.0, GIB, now)
        before = m.predict("x")
        for k in range(10):
            m.update("x", 0.1, GIB, now + leap + 60 * k)
        assert m.predict("x") == before, "ten samples of a day"
        checkpoint(m, now + leap + 3600)
        again = models(tmp_path)
        assert again.restore({"x"}, now) == 1
        for _ in range(720):
            now += 60
            again.update("x", 0.1, GIB, now)
        for _ in range(2880):
            now += 60
            again.update("x", 4.0, GIB, now)
        assert 3900 < again.predict("x").cpu < 8500, "it follows what comes after"

    def test_a_clock_that_is_set_makes_no_model_old(self, tmp_path, monkeypatch) -> None:
        """No sample is of the last interval then, so that nothing is trained before the next look at what is old."""
        monkeypatch.setattr(prediction_loop, "HOUSEKEEPING", 0.02)
        m = models(tmp_path, training_interval=0.01, checkpoint_interval=0.0)
        looks, expire = [], Models.expire
        monkeypatch.setattr(Models, "expire", lambda self, now: looks.append(now) or expire(self, now))
        wall = [T0]
        monkeypatch.setattr(prediction_loop.seams, "now", lambda: wall[0])
        store = MetricStore()
        store.append(T0, [(kinds.NODE_CPU, (), 4.0), (kinds.NODE_MEMORY, (), GIB)])

        async def story() -> None:
            stopping, ready = asyncio.Event(), asyncio.Event()
            ready.set()
            running = asyncio.create_task(prediction_loop.PredictionLoop(m, store, tuple).run(stopping, ready))
            while NODE_KEY not in m.models or not looks:
                await asyncio.sleep(0.005)
            wall[0] += 14 * 86400.0
            seen = len(looks)
            while len(looks) < seen + 3:
                await asyncio.sleep(0.005)
            stopping.set()
            await running

        asyncio.run(story())
        assert NODE_KEY in m.models
        assert (tmp_path / NODE_KEY).exists()

    def test_a_pod_that_is_listed_late_has_its_model(self, tmp_path) -> None:
        """A kubelet that starts knows the pods of the API server only when it has reached that."""
        m = models(tmp_path)
        m.update("u-1", 6.0, GIB, T0)
        checkpoint(m, T0)
        (tmp_path / "u-2").write_text('{"UID": "u-1"}')
        fresh, pods = models(tmp_path, training_interval=0.01), list[Any]()

        async def story() -> None:
            stopping, ready = asyncio.Event(), asyncio.Event()
            ready.set()
            running = asyncio.create_task(prediction_loop.PredictionLoop(fresh, MetricStore(), lambda: pods).run(stopping, ready))
            while PROD not in fresh.models:
                await asyncio.sleep(0.005)
            assert "u-1" not in fresh.models
            pods.extend(types.SimpleNamespace(uid=uid) for uid in ("u-1", "u-2", "u-3"))
            for _ in patience.tries(2000):
                if "u-1" in fresh.models:
                    break
                await asyncio.sleep(0.005)
            stopping.set()
            await running

        asyncio.run(story())
        assert fresh.predict("u-1") == m.predict("u-1")
        assert not {"u-2", "u-3"} & set(fresh.models)

    def test_a_slow_disk_holds_nobody_up(self, tmp_path, monkeypatch) -> None:
        m = models(tmp_path, training_interval=0.01, checkpoint_interval=0.0)
        m.update(NODE_KEY, 1.0, GIB, T0)
        asked, others = threading.Event(), threading.Event()

        def slowly(path: str, body: bytes) -> None:
            asked.set()
            assert others.wait(patience.seconds(10)), "the loop waits for the disk"
            Path(path).write_bytes(body)

        monkeypatch.setattr(prediction_models, "replace", slowly)

        async def story() -> None:
            stopping, ready = asyncio.Event(), asyncio.Event()
            ready.set()
            stopping.set()
            running = asyncio.create_task(prediction_loop.PredictionLoop(m, MetricStore(), tuple).run(stopping, ready))
            for _ in patience.tries(2000):
                if asked.is_set():
                    break
                await asyncio.sleep(0.005)
            others.set()
            await running

        asyncio.run(story())
        assert (tmp_path / NODE_KEY).exists()
        assert m.models[NODE_KEY].saved > 0.0

    def test_bounded_oldest_first_and_expired(self, tmp_path) -> None:
        m = models(tmp_path, checkpoints_per_step=2, checkpoint_interval=600.0)
        for i in range(5):
            m.update(f"u-{i}", 1.0, GIB, T0)
        assert [checkpoint(m, T0 + i * 60) for i in range(5)] == [2, 2, 1, 0, 0]
        assert checkpoint(m, T0 + 600) == 2, "the first two are due again"
        m.update("u-0", 1.0, GIB, T0 + 3000)
        m.expire(T0 + 3000)
        assert [p.name for p in tmp_path.iterdir()] == ["u-0"]

    def test_a_model_does_not_age_while_the_node_is_down(self, tmp_path) -> None:
        m = models(tmp_path)
        m.update("u-1", 1.0, GIB, T0)
        checkpoint(m, T0)
        later = T0 + 7200
        m = models(tmp_path)
        m.restore({"u-1"}, later)
        m.expire(later + 1800)
        assert m.models.keys() == {"u-1"}, "its pod may take its time to start"
        m.expire(later + 1801)
        assert (list(m.models), list(tmp_path.iterdir())) == ([], [])

    def test_an_unwritable_directory_is_reported(self, tmp_path, caplog) -> None:
        (tmp_path / "file").write_text("")
        m = models(tmp_path / "file")
        m.update("u-1", 1.0, GIB, T0)
        assert checkpoint(m, T0) == 0
        assert "cannot be written" in caplog.text


NODE = {"cpu": "16", "memory": "64Gi"}
POLICY = {"metricCollectPolicy": {"aggregateDurationSeconds": 60}}


@pytest.mark.feature("KLO-PRED-03")
class TestReclaimable:
    """Through NodeMetric: what the manager reads."""

    def status(self, agent, kubelet, world, node, pods, prepare) -> dict[str, Any]:
        async def main() -> dict[str, Any]:
            async with world(agent, kubelet, node, metric=POLICY, slo={}) as w:
                a = w.agent
                a.now = T0 + 1_000_000
                for p in pods:
                    a.tree.cgroup(a.tree.pod_dir(p["status"]["qosClass"], p["metadata"]["uid"]), anon=GIB)
                a.list(*pods)
                a.tick()
                a.tick()
                prepare(w.models, a.now)
                return await w.metric()

        return asyncio.run(main())

    def resources(self, status: dict[str, Any], field: str) -> dict[str, str]:
        return status[field]["resource"].get("resources")

    @pytest.mark.parametrize("static", [False, True], ids=["", "static"])
    def test_the_careful_one_of_both_predictors(self, agent, kubelet, world, make_node, make_pod, static) -> None:
        def prepare(m: Models, now: float) -> None:
            for key, cpu in (("u-1", 1.0), (PROD, 3.0), (SYSTEM_KEY, 0.0), (class_key(PriorityClass.NONE), 0.0)):
                m.update(key, cpu, GIB, now)

        pods = [make_pod("web", "u-1", requests={"cpu": "8", "memory": "16Gi"}, priority=9500)]
        if static:  # the kubelet has it from a file, and nobody created it
            pods[0]["status"]["startTime"] = pods[0]["metadata"]["creationTimestamp"]
            pods[0]["metadata"]["creationTimestamp"] = None
        status = self.status(agent, kubelet, world, make_node(capacity=NODE, allocatable=NODE), pods, prepare)
        m = models(Path("/nonexistent"))
        prepare(m, T0)
        peak = (m.predict(PROD).cpu + 25 + 25) * 110 // 100
        assert self.resources(status, "prodPeakMetric")["cpu"] == f"{peak}m"
        assert self.resources(status, "prodReclaimableMetric")["cpu"] == f"{8000 - peak}m"

    def test_a_cold_pod_counts_with_its_request(self, agent, kubelet, world, make_node, make_pod) -> None:
        def prepare(m: Models, now: float) -> None:
            for key in FIXED_KEYS:
                m.update(key, 0.0, 0.0, now)

        from koord.api.times import format_time

        created = format_time(T0 + 1_000_000 - 3600)
        pods = [make_pod("young", "u-1", requests={"cpu": "6", "memory": "12Gi"}, priority=9500, created=created)]
        status = self.status(agent, kubelet, world, make_node(capacity=NODE, allocatable=NODE), pods, prepare)
        assert self.resources(status, "prodReclaimableMetric") == {"cpu": "0", "memory": "0"}
        assert self.resources(status, "prodPeakMetric") == {"cpu": "6", "memory": "12Gi"}

    def test_raw_allocatable_and_pods_that_are_not_prod(self, agent, kubelet, world, make_node, make_pod) -> None:
        def prepare(m: Models, now: float) -> None:
            for key in ("u-1", "u-2", *FIXED_KEYS):
                m.update(key, 0.0, 0.0, now)

        pods = [
            make_pod("web", "u-1", requests={"cpu": "8", "memory": "16Gi"}, priority=9500),
            make_pod("spark", "u-2", qos="BestEffort", requests={"cpu": "4", "memory": "4Gi"}),
        ]
        node = make_node(capacity=NODE, allocatable=NODE, annotations={"node.koordinator.sh/raw-allocatable": '{"cpu":"1","memory":"1Gi"}'})
        status = self.status(agent, kubelet, world, node, pods, prepare)
        free = self.resources(status, "prodReclaimableMetric")
        assert free["cpu"] == f"{1000 - 75 * 110 // 100}m", "bounded by raw allocatable"

    def test_without_models_nothing_is_claimed(self, agent, kubelet, world, make_node, make_pod) -> None:
        status = self.status(agent, kubelet, world, make_node(), [make_pod("web", "u-1")], lambda m, now: None)
        assert status["prodReclaimableMetric"] == {"resource": {}}
        assert "prodPeakMetric" not in status


amounts = st.builds(Amount, st.integers(0, 10**6), st.integers(0, 10**12))


@given(st.builds(Outcome, amounts, amounts), st.builds(Outcome, amounts, amounts))
def test_combining_is_careful_and_symmetric(first: Outcome, second: Outcome) -> None:
    both = combine(first, second)
    assert both == combine(second, first)
    for one in (first, second):
        assert both.reclaimable.cpu <= one.reclaimable.cpu
        assert both.peak.memory >= one.peak.memory
