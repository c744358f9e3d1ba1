"""The metric store: schemas, windows, aggregation, persistence."""

from __future__ import annotations

import errno
import math
import os
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import seams
from roles.koordlet.store import kinds, persist
from roles.koordlet.store.series import PERCENTILES, Points, SampleRejectedError, Series, percentile
from roles.koordlet.store.store import MetricStore, UnknownKindError
from roles.koordlet.store.view import MetricsView

T0 = 1_700_000_000.0


def filled(values: list[float]) -> MetricStore:
    store = MetricStore()
    for i, value in enumerate(values):
        store.append(T0 + i, [(kinds.NODE_CPU, (), value)])
    return store


@pytest.mark.feature("KLO-TSDB-01")
class TestAggregation:
    def test_percentile_takes_an_index_without_interpolation(self) -> None:
        values = [float(i) for i in range(1, 21)]
        assert [percentile(values, p) for p in PERCENTILES.values()] == [10, 18, 19, 19]
        assert percentile([7.0], 0.5) == 7

    def test_aggregations(self) -> None:
        view = MetricsView(filled([4, 1, 3, 2]), T0 + 3)
        got = {how: view.aggregate(kinds.NODE_CPU, how, 10) for how in ("avg", "p50", "p90", "last", "count", "bogus")}
        assert got == {"avg": 2.5, "p50": 2, "p90": 3, "last": 2, "count": 4, "bogus": 2.5}

    def test_nothing_is_none_except_count(self) -> None:
        view = MetricsView(MetricStore(), T0)
        assert view.aggregate(kinds.NODE_CPU, "p99", 10) is None
        assert view.aggregate(kinds.NODE_CPU, "count", 10) == 0
        assert view.last(kinds.NODE_CPU) is None

    def test_range_is_inclusive_at_both_ends(self) -> None:
        view = MetricsView(filled([1, 2, 3, 4]), T0 + 3)
        assert view.count(kinds.NODE_CPU, 2) == 3
        assert view.query(kinds.NODE_CPU, 3).covered_ms == 3000

    def test_last_looks_back_two_intervals(self) -> None:
        store = filled([5])
        assert MetricsView(store, T0 + 2).last(kinds.NODE_CPU) == 5
        assert MetricsView(store, T0 + 2.001).last(kinds.NODE_CPU) is None
        assert MetricsView(store, T0 + 9).last(kinds.NODE_CPU, within=10) == 5

    @given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60))
    def test_all_at_once_equals_one_by_one(self, values: list[float]) -> None:
        series = Series(list(range(len(values))), values, 0)
        for how, value in series.aggregates().items():
            one = series.aggregate(how)
            assert one is not None
            assert math.isclose(one, value)

    def test_merging_series_of_a_partial_query(self) -> None:
        store = MetricStore()
        store.append(T0, [(kinds.POD_CPU, ("a",), 1.0), (kinds.POD_CPU, ("b",), 3.0)])
        view = MetricsView(store, T0)
        assert view.avg(kinds.POD_CPU, 5) == 2
        assert view.avg(kinds.POD_CPU, 5, pod_uid="b") == 3


@pytest.mark.feature("KLO-TSDB-01")
class TestWriting:
    def test_schema_is_enforced(self) -> None:
        store = MetricStore()
        with pytest.raises(UnknownKindError, match="pod_uid"):
            store.append(T0, [(kinds.POD_CPU, (), 1.0)])
        with pytest.raises(UnknownKindError, match="not known"):
            store.append(T0, [("no_such_kind", (), 1.0)])
        with pytest.raises(UnknownKindError, match="has the properties"):
            MetricsView(store, T0).avg(kinds.POD_CPU, 5, container_id="x")

    def test_a_batch_is_all_or_nothing(self) -> None:
        store = filled([1])
        with pytest.raises(SampleRejectedError):
            store.append(T0, [(kinds.NODE_MEMORY, (), 5.0), (kinds.NODE_CPU, (), 2.0)])
        assert MetricsView(store, T0).count(kinds.NODE_MEMORY, 5) == 0

    def test_order_duplicates_and_old_samples(self) -> None:
        points = Points(600_000)
        for time in (100_000, 90_000, 95_000, 95_000):
            points.add(time, float(time))
        assert list(points.span(0, 10**9)[0]) == [90_000, 95_000, 100_000]
        with pytest.raises(SampleRejectedError, match="another value"):
            points.add(95_000, 1.0)
        with pytest.raises(SampleRejectedError, match="older"):
            points.add(39_999, 1.0)

    def test_windows_bound_the_memory(self) -> None:
        store = MetricStore()
        for i in range(5000):
            store.append(T0 + i, [(kinds.POD_CPU, ("a",), 1.0), (kinds.NODE_CPU, (), 1.0)])
        assert store.size_bytes < (330 + 1830) * 16 * 1.5
        assert MetricsView(store, T0 + 4999).count(kinds.POD_CPU, 300, pod_uid="a") == 301
        assert MetricsView(store, T0 + 4999).count(kinds.NODE_CPU, 1800) == 1801
        store.want(window=1000)
        for i in range(5000, 6000):
            store.append(T0 + i, [(kinds.POD_CPU, ("a",), 1.0)])
        assert MetricsView(store, T0 + 5999).count(kinds.POD_CPU, 1000, pod_uid="a") > 1000

    def test_a_byte_limit_shortens_every_series(self) -> None:
        store = MetricStore(max_bytes=16 * 500)
        for i in range(200):
            store.append(T0 + i, [(kinds.POD_CPU, (str(n),), 1.0) for n in range(5)])
        store.expire(T0 + 200)
        assert store.evictions == 1
        for i in range(200, 320):
            store.append(T0 + i, [(kinds.POD_CPU, (str(n),), 1.0) for n in range(5)])
        assert MetricsView(store, T0 + 320).last(kinds.POD_CPU, pod_uid="3") == 1

    def test_a_byte_limit_leaves_the_windows_of_the_node(self) -> None:
        """The node's few series are what its aggregated usage of an hour comes from."""
        store = MetricStore(max_bytes=16 * 1000)
        store.want(node_window=3600.0, window=3600.0)
        for i in range(0, 3600, 10):
            store.append(T0 + i, [(kinds.NODE_CPU, (), 1.0), *((kinds.POD_CPU, (str(n),), 1.0) for n in range(5))])
        store.expire(T0 + 3590)
        assert store.evictions == 1
        assert store.size_bytes <= 16 * 1000
        view = MetricsView(store, T0 + 3590)
        assert view.count(kinds.NODE_CPU, 3600) == 360
        assert 0 < view.count(kinds.POD_CPU, 3600, pod_uid="3") < 120

    def test_a_byte_limit_counts_no_points_that_have_expired(self) -> None:
        store = MetricStore(max_bytes=16 * 360)
        for i in range(390):
            store.append(T0 + i, [(kinds.POD_CPU, ("a",), 1.0)])
        assert store.size_bytes > 16 * 360
        store.expire(T0 + 389)
        assert store.evictions == 0
        assert MetricsView(store, T0 + 389).count(kinds.POD_CPU, 330, pod_uid="a") == 331

    def test_a_byte_limit_holds_where_no_window_is_full_yet(self) -> None:
        store = MetricStore(max_bytes=16 * 100)
        for i in range(50):
            store.append(T0 + i, [(kinds.POD_CPU, (str(n),), 1.0) for n in range(5)])
        store.expire(T0 + 50)
        assert store.size_bytes <= 16 * 100
        assert MetricsView(store, T0 + 50).last(kinds.POD_CPU, pod_uid="3") == 1

    def test_zero_is_no_limit(self) -> None:
        """As in the store of Prometheus, whose options these are."""
        store = MetricStore(retention=0.0, max_bytes=0)
        store.want(node_window=3600.0)
        for i in range(0, 4000, 10):
            store.append(T0 + i, [(kinds.NODE_CPU, (), 1.0)])
        store.expire(T0 + 3990)
        assert store.evictions == 0
        assert MetricsView(store, T0 + 3990).count(kinds.NODE_CPU, 3600) == 361

    def test_dropping_and_expiring(self) -> None:
        store = MetricStore()
        store.append(T0, [(kinds.POD_CPU, ("a",), 1.0), (kinds.POD_CPU, ("b",), 1.0)])
        assert store.drop(kinds.POD_CPU, pod_uid="a") == 1
        store.expire(T0 + 100)
        assert store.series_count == 1
        store.expire(T0 + 1000)
        assert store.series_count == 0

    @given(st.lists(st.tuples(st.integers(0, 200_000), st.floats(0, 10)), max_size=80))
    def test_points_stay_sorted_and_within_the_window(self, samples: list[tuple[int, float]]) -> None:
        points = Points(50_000)
        for time, value in samples:
            try:
                points.add(time, value)
            except SampleRejectedError:
                continue
        times = list(points.span(0, 10**9)[0])
        assert times == sorted(set(times))
        assert not times or times[0] >= times[-1] - 50_000


@pytest.mark.feature("KLO-TSDB-02")
def test_snapshots_keep_the_newest() -> None:
    store = MetricStore()
    assert store.snapshot("node_cpu_info") is None
    store.put_snapshot("node_cpu_info", 1)
    store.put_snapshot("node_cpu_info", 2)
    assert store.snapshot("node_cpu_info") == 2


@pytest.mark.feature("KLO-TSDB-01")
class TestClockSteps:
    @pytest.mark.parametrize("by", [-300.0, -10.0, 300.0, -14 * 86400.0])
    def test_percentiles_have_no_gap(self, by: float) -> None:
        store = filled([float(i) for i in range(200)])
        before = MetricsView(store, T0 + 199)
        count, median = before.count(kinds.NODE_CPU, 60), before.aggregate(kinds.NODE_CPU, "p50", 100)
        store.clock_stepped(by, T0 + 200 + by)
        store.append(T0 + 200 + by, [(kinds.NODE_CPU, (), 200.0)])
        after = MetricsView(store, T0 + 200 + by)
        assert after.count(kinds.NODE_CPU, 60) == count
        assert after.aggregate(kinds.NODE_CPU, "p50", 100) == (median or 0.0) + 1
        assert after.query(kinds.NODE_CPU, 200).covered_ms == 200_000

    def test_by_how_much_it_was_set_back_need_not_be_known(self) -> None:
        store = filled([float(i) for i in range(200)])
        store.clock_jumped_back(T0 - 3600)
        store.append(T0 - 3600, [(kinds.NODE_CPU, (), 200.0)])
        assert MetricsView(store, T0 - 3600).query(kinds.NODE_CPU, 200).covered_ms == 200_000
        store.clock_jumped_back(T0 - 3500)  # nothing is of the future
        assert MetricsView(store, T0 - 3600).query(kinds.NODE_CPU, 200).covered_ms == 200_000

    def test_what_would_be_of_the_future_even_so_is_dropped(self) -> None:
        store = filled([1.0, 2.0, 3.0])
        store.append(T0 + 2, [(kinds.POD_CPU, ("p",), 1.0)])
        store.clock_stepped(-10.0, T0 - 9)
        assert MetricsView(store, T0 - 9).aggregate(kinds.NODE_CPU, "last", 60) == 2.0
        assert store.keys(kinds.POD_CPU) == []


@pytest.mark.feature("KLO-TSDB-01")
class TestPersistence:
    def test_series_survive_a_restart(self, tmp_path: Path) -> None:
        store = filled([1, 2, 3])
        persist.save(store, str(tmp_path / "d"), T0 + 3)
        fresh = MetricStore()
        assert persist.load(fresh, str(tmp_path / "d"), T0 + 4) == 1
        assert MetricsView(fresh, T0 + 4).avg(kinds.NODE_CPU, 60) == 2
        assert persist.load(MetricStore(), str(tmp_path / "d"), T0 + 90_000) == 0, "too old"
        assert persist.load(MetricStore(), str(tmp_path / "d"), T0 - 60) == 0, "of the future"

    def test_long_windows_survive_a_restart(self, tmp_path: Path) -> None:
        """They are asked for when the objects of the node are there, which is after the series were read."""
        store = MetricStore()
        store.want(node_window=3 * 3600.0, window=1200.5)
        for i in range(0, 3 * 3600, 10):
            store.append(T0 + i, [(kinds.NODE_CPU, (), 1.0), (kinds.POD_CPU, ("a",), 1.0)])
        now = T0 + 3 * 3600
        persist.save(store, str(tmp_path), now)
        fresh = MetricStore()
        assert persist.load(fresh, str(tmp_path), now) == 2
        fresh.append(now, [(kinds.NODE_CPU, (), 1.0), (kinds.POD_CPU, ("a",), 1.0)])
        view = MetricsView(fresh, now)
        assert view.query(kinds.NODE_CPU, 3 * 3600).covered_ms == 3 * 3600_000
        assert view.query(kinds.POD_CPU, 1200, pod_uid="a").covered_ms == 1200_000
        short = MetricStore(retention=600.0)
        persist.load(short, str(tmp_path), now)
        assert MetricsView(short, now).query(kinds.NODE_CPU, 3 * 3600).covered_ms < 640_000

    def test_a_disk_that_is_too_full_is_left_as_full_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
        persist.save(filled([1]), str(tmp_path), T0)
        before = (tmp_path / persist.FILE).read_bytes()
        written: list[int] = []

        def some_of_it(_: seams.Files, fd: int, data: bytes | memoryview) -> int:
            if written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(os.write(fd, data[:16]))
            return written[0]

        monkeypatch.setattr(seams.Files, "write", some_of_it)
        persist.save(filled([1, 2, 3]), str(tmp_path), T0 + 3)
        assert "No space left" in caplog.text
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {persist.FILE: before}

    def test_series_of_an_earlier_release(self, tmp_path: Path) -> None:
        body = msgspec.msgpack.encode([1, sys.byteorder, T0, filled([1, 2, 3]).dump()])
        (tmp_path / persist.FILE).write_bytes(body)
        assert persist.load(MetricStore(), str(tmp_path), T0 + 4) == 1

    @pytest.mark.parametrize("rubbish", [b"", b"\x93", b"hello", b"\x94\x01\xa3big\x01\x90"])
    def test_rubbish_is_ignored(self, tmp_path: Path, rubbish: bytes) -> None:
        (tmp_path / persist.FILE).write_bytes(rubbish)
        assert persist.load(MetricStore(), str(tmp_path), T0) == 0
        assert persist.load(MetricStore(), str(tmp_path / "none"), T0) == 0
