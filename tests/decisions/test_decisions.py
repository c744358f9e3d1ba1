"""Records, the ring, the sinks and the query."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import seams
from koord.decisions import query
from koord.decisions.record import Record, Subject, Term, decode, decode_many, encode
from koord.decisions.recorder import Recorder
from koord.decisions.replayfile import ReplayFile, read_lines
from koord.decisions.ring import RingSink
from koord.decisions.sinks import FileSink, LineFile, LogSink, log_files, read_records
from tests.support import patience
from tests.support.fulldisk import full_disk


def record(name: str = "p", *, time: float = 1.0, verdict: str = "Unschedulable", kind: str = "Pod", **extra: Any) -> Record:
    return Record("scheduler", Subject(kind, "ns", name), time, verdict, "NodeResourcesFit", "no node fits", **extra)


def test_a_record_survives_the_wire() -> None:
    full = record(
        numbers={"nodes": 3, "score": 0.5}, terms=(Term("Insufficient cpu", 3, "short by 500m", "nodes"),), features=("SCH-FW-01",)
    )
    assert decode(encode(full)) == full
    assert json.loads(encode(full))["subject"] == {"kind": "Pod", "namespace": "ns", "name": "p"}
    assert str(full) == "Pod ns/p: Unschedulable by NodeResourcesFit: no node fits"


def test_numbers_of_foreign_types_do_not_lose_the_record() -> None:
    class Odd:
        def __str__(self) -> str:
            return "7"

    assert decode(encode(record(numbers={"x": Odd()}))).numbers == {"x": "7"}


def test_a_failing_sink_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def write(self, record: Record) -> None:
            raise OSError("disk gone")

    told: list[Record] = []

    class Telling:
        def write(self, record: Record) -> None:
            told.append(record)

    recorder = Recorder("scheduler", [Broken(), Telling()])
    for verdict in ["Unschedulable"] * 9 + ["Scheduled"]:
        recorder.record(record(verdict=verdict))
    assert len(recorder.ring) == 10
    assert len(told) == 10
    assert recorder.failed == 10
    assert len(caplog.records) == 5


def test_a_kind_pushes_no_other_out() -> None:
    ring = RingSink(total=10)
    ring.write(record("n", kind="Node"))
    for number in range(100):
        ring.write(record(f"p{number}"))
    assert len(ring) == 11
    assert [item.subject.name for item in ring.find("Node")] == ["n"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=60), st.integers(1, 5), st.integers(1, 12))
def test_the_ring_is_bounded_and_keeps_the_newest(stream: list[tuple[str, int]], per_subject: int, total: int) -> None:
    ring = RingSink(per_subject, total)
    for time, (name, _) in enumerate(stream):
        ring.write(record(name, time=float(time)))
    assert len(ring) == len(ring.find()) <= total
    for name in "abcd":
        mine = [float(time) for time, (its, _) in enumerate(stream) if its == name]
        kept = [item.time for item in ring.find("Pod", "ns", name)]
        assert kept == mine[len(mine) - len(kept) :]
        assert len(kept) <= per_subject
    if stream:
        assert ring.find("Pod", "ns", stream[-1][0])[-1].time == len(stream) - 1


def test_find_by_parts() -> None:
    ring = RingSink()
    ring.write(record("a", time=2.0))
    ring.write(record("b", time=1.0))
    ring.write(record("n", time=3.0, kind="Node"))
    assert [item.time for item in ring.find()] == [1.0, 2.0, 3.0]
    assert [item.subject.name for item in ring.find("pod")] == ["b", "a"]
    assert [item.subject.name for item in ring.find(name="n")] == ["n"]
    assert ring.find("Pod", "other") == []
    assert len(ring.find(limit=1)) == 1
    with pytest.raises(ValueError, match="at least 1"):
        RingSink(0)


def test_query() -> None:
    ring = RingSink()
    for time in range(5):
        ring.write(record(time=float(time), verdict="Scheduled" if time == 4 else "Unschedulable"))
    code, body = query.answer(ring, {"kind": "Pod", "namespace": "ns", "name": "p", "limit": "2"})
    assert code == 200
    assert [item.time for item in decode_many(body)] == [3.0, 4.0]
    assert len(decode_many(query.answer(ring, {"verdict": "scheduled"})[1])) == 1
    assert query.answer(ring, {"podname": "x"}) == (400, b"unknown parameter 'podname'; accepted: kind, namespace, name, verdict, limit\n")
    for limit in ("-1", "²", "9" * 5000):
        assert query.answer(ring, {"limit": limit})[0] == 400


def test_file_rotates_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "decisions.jsonl"
    size = len(encode(record("p0", time=0.0))) + 1
    sink = FileSink(path, max_bytes=size * 2, keep=2)
    for number in range(7):
        sink.write(record(f"p{number}", time=0.0))
    files = [path, Path(f"{path}.1"), Path(f"{path}.2")]
    assert [[item.subject.name for item in read_records(file)] for file in files] == [["p6"], ["p4", "p5"], ["p2", "p3"]]
    assert not Path(f"{path}.3").exists()
    path.write_text('{"role": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        list(read_records(path))


def test_file_on_the_loop_writes_later_and_drops_when_it_cannot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        path = tmp_path / "d.jsonl"
        sink = FileSink(path, backlog=3)
        for number in range(5):
            sink.write(record(f"p{number}"))
        assert not path.exists()
        assert sink.dropped == 2
        for _ in patience.tries(100):
            await asyncio.sleep(0.02)
            if path.exists() and len(list(read_records(path))) == 3:
                break
        assert [item.subject.name for item in read_records(path)] == ["p2", "p3", "p4"]
        sink.write(record("last"))
        sink.close()
        assert len(list(read_records(path))) == 4

    asyncio.run(main())
    (tmp_path / "file").write_text("")
    broken = FileSink(tmp_path / "file" / "x")
    broken.write(record())
    broken.write(record())
    assert broken.dropped == 2
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 1


def test_a_file_that_is_closed_while_its_thread_waits_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    async def never(function: Any, *args: Any) -> None:
        began.append(function.__name__)
        await asyncio.Event().wait()

    monkeypatch.setattr(seams, "to_thread", never)

    async def run() -> None:
        sink = FileSink(tmp_path / "d.jsonl")
        sink.write(record("p1"))
        while not began:
            await asyncio.sleep(0.01)
        sink.write(record("p2"))
        sink.close()

    asyncio.run(run())
    assert list(read_records(tmp_path / "d.jsonl")) == [record("p1"), record("p2")]


def test_rotated_files_are_compressed_and_all_together_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.jsonl"
    sink = FileSink(path, max_bytes=20_000, total_bytes=60_000, keep=99, compress=True)
    random = Random(1)
    for number in range(600):
        sink.write(record(f"p{number}", time=float(number), numbers={"noise": random.randbytes(300).hex()}))
    files = log_files(tmp_path)
    assert files[-1] == path
    assert len(files) > 2
    assert all(file.suffix == ".gz" for file in files[:-1])
    assert sum(file.stat().st_size for file in files) <= 60_000
    names = [item.subject.name for file in files for item in read_records(file)]
    assert names == [f"p{number}" for number in range(600 - len(names), 600)]  # the newest, in order, without a gap


def test_what_a_crash_leaves_of_a_line_is_no_mistake_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.jsonl"
    whole = encode(record("before")) + b"\n"
    path.write_bytes(whole + encode(record("torn"))[:40])
    assert [item.subject.name for item in read_records(path)] == ["before"]
    FileSink(path).write(record("after"))
    assert [item.subject.name for item in read_records(path)] == ["before", "after"]


@pytest.mark.parametrize("before", [[], ["before"], ["a" * 2**20], ["b" * (2**20 - 100), "c"]])
@pytest.mark.parametrize("torn", [1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_of_a_long_line_that_a_crash_left_nothing_stays(tmp_path: Path, before: list[str], torn: int) -> None:
    path = tmp_path / "scheduler.jsonl"
    path.write_bytes(b"".join(encode(record(name)) + b"\n" for name in before) + encode(record("x" * 4 * 2**20))[:torn])
    FileSink(path).write(record("after"))
    assert [item.subject.name for item in read_records(path)] == [*before, "after"]


class Replayed(ReplayFile):
    role = "test"

    def begin(self) -> dict[str, Any]:
        return {}

    def parts(self, item: Any) -> list[Any]:
        return [["subject", item.subject.name]]


@pytest.mark.parametrize("make", [FileSink, Replayed])
def test_a_full_disk_and_a_directory_that_was_swept_away_cost_what_was_to_be_written_then(tmp_path: Path, make: type[LineFile]) -> None:
    path = tmp_path / "log" / "test.jsonl"
    file = make(path)

    def names() -> list[str]:
        if make is FileSink:
            return [item.subject.name for item in read_records(path)]
        return [line[1] for _, line in read_lines(path) if line[0] != "head"]

    file.put(record("before"))
    with full_disk(path):
        file.put(record("refused"))
        file.put(record("refused"))
    file.put(record("after"))
    assert (names(), file.dropped) == (["before", "after"], 2)
    shutil.rmtree(path.parent)
    file.put(record("refused"))
    file.put(record("anew"))
    assert (names(), file.dropped) == (["anew"], 3)


def test_log_lines_carry_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "koord.decisions"):
        LogSink(verdicts={"Evicted"}).write(record(verdict="Evicted", numbers={"usage": 93}))
        LogSink(verdicts={"Evicted"}).write(record())
        LogSink(logging.DEBUG).write(record())
    assert caplog.messages == ["Pod ns/p: Evicted by NodeResourcesFit: no node fits [usage=93]"]
