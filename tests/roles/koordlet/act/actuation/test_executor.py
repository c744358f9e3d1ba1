"""The executor on plain files: caching, order, errors, modes (KA-EXE-01)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading

import pytest

from koord import seams
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.executor import Mode
from roles.koordlet.actuation.triggers import FRESH
from roles.koordlet.actuation.writes import Batch, Kind, Merge, Write, sequence
from tests.support import patience
from tests.support.koordlet import exposed

QOS = "kubepods.slice/kubepods-besteffort.slice"
POD = f"{QOS}/kubepods-besteffort-poda.slice"
BOX = f"{POD}/cri-containerd-c.scope"
SHARES, READ_BPS = "cpu.shares", "blkio.throttle.read_bps_device"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every write that reaches the kernel, in order."""
    seen: list[tuple[str, str]] = []
    real = kernel.write

    def write(path: str, text: str) -> None:
        seen.append((path, text))
        real(path, text)

    monkeypatch.setattr(kernel, "write", write)
    return seen


def quota(directory: str, value: int | str, **options: object) -> Write:
    return Write("cpu.cfs_quota_us", directory, str(value), **options)  # type: ignore[arg-type]


def cpus(directory: str, value: str, merge: Merge = Merge.LOOSER_CPUSET) -> Write:
    return Write("cpuset.cpus", directory, value, merge=merge)


def test_cached_value_is_not_written_again_until_the_force_interval(machine, calls):
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    ex = machine.executor
    assert len(ex.apply([sequence(quota(QOS, 5000))], rule="r", now=1).written) == 1
    machine.put("cpu.cfs_quota_us", QOS, "7777")  # somebody else
    machine.now += 59
    assert ex.apply([sequence(quota(QOS, 5000))], rule="r", now=2).skipped == 1
    assert machine.get("cpu.cfs_quota_us", QOS) == "7777"
    machine.now += 2
    assert len(ex.apply([sequence(quota(QOS, 5000))], rule="r", now=3).written) == 1
    assert machine.get("cpu.cfs_quota_us", QOS) == "5000"
    assert [t for _, t in calls] == ["5000", "5000"]


def test_uncached_writes_look_every_time_but_write_only_differences(machine, calls):
    machine.put("cpu.cfs_quota_us", QOS, "5000")
    for _ in range(3):
        machine.executor.apply([sequence(quota(QOS, 5000, cached=False))], rule="r", now=1)
    assert calls == []
    machine.put("cpu.cfs_quota_us", QOS, "1")
    machine.executor.apply([sequence(quota(QOS, 5000, cached=False))], rule="r", now=1)
    assert len(calls) == 1


@pytest.mark.feature("BEY-JRN-01")
def test_a_file_holds_ours_until_others_set_it_or_it_says_what_it_said_before(machine):
    machine.put(SHARES, "kubepods.slice", "1024")
    machine.put(READ_BPS, "kubepods.slice", "8:16 500")

    def holds() -> tuple[bool, ...]:
        machine.host.files.begin_tick()
        ours = machine.executor.holds_ours
        return (ours(SHARES, "kubepods.slice"), *(ours(READ_BPS, "kubepods.slice", disk) for disk in ("", "8:0", "8:16")))

    def write(shares: str, *limits: str) -> tuple[bool, ...]:
        writes = [Write(READ_BPS, "kubepods.slice", limit, device=limit.split()[0]) for limit in limits]
        machine.executor.apply([sequence(Write(SHARES, "kubepods.slice", shares), *writes)], rule="r", now=1.0)
        return holds()

    assert holds() == (False,) * 4
    assert write("2", "8:0 100") == (True, True, True, False)
    machine.put(SHARES, "kubepods.slice", "3")
    machine.put(READ_BPS, "kubepods.slice", "8:0 70\n8:16 500")
    assert holds() == (False,) * 4
    machine.restart()
    assert holds() == (False,) * 4
    assert write("2", "8:0 200") == (True, True, True, False)
    assert write("3", "8:0 70") == (False,) * 4, "what it said before, which is what others said last"


def test_growth_goes_down_and_shrinking_goes_up(machine, calls):
    for directory in (QOS, POD, BOX):
        machine.put("cpuset.cpus", directory, "0-3")
    batch = Batch(((cpus(QOS, "2-5"),), (cpus(POD, "2-5"),), (cpus(BOX, "2-5"),)))
    machine.executor.apply([batch], rule="r", now=1)
    names = [(p.rsplit("/", 2)[-2], t) for p, t in calls]
    short = {QOS: "kubepods-besteffort.slice", POD: "kubepods-besteffort-poda.slice", BOX: "cri-containerd-c.scope"}
    assert names == [
        (short[QOS], "0-5"),
        (short[POD], "0-5"),
        (short[BOX], "0-5"),
        (short[BOX], "2-5"),
        (short[POD], "2-5"),
        (short[QOS], "2-5"),
    ]
    assert machine.get("cpuset.cpus", QOS) == "2-5"


def test_quota_that_shrinks_waits_for_the_children(machine, calls):
    machine.put("cpu.cfs_quota_us", POD, "300000")
    machine.put("cpu.cfs_quota_us", BOX, "200000")
    batch = Batch(((quota(POD, 100000, merge=Merge.LARGER_QUOTA),), (quota(BOX, 50000, merge=Merge.LARGER_QUOTA),)))
    machine.executor.apply([batch], rule="r", now=1)
    assert [t for _, t in calls] == ["50000", "100000"]
    calls.clear()
    batch = Batch(((quota(POD, -1, merge=Merge.LARGER_QUOTA),), (quota(BOX, 70000, merge=Merge.LARGER_QUOTA),)))
    machine.executor.apply([batch], rule="r", now=1)
    assert [t for _, t in calls] == ["-1", "70000"]


def test_what_is_so_already_is_not_written(machine, machine_v2, calls):
    machine.put("cpuset.cpus", QOS, "0,1,2")
    machine_v2.put("cpu.cfs_quota_us", QOS, "max 100000")
    machine_v2.put("memory.high", QOS, "max")
    ex, ex2 = machine.executor, machine_v2.executor
    assert not ex.apply([sequence(cpus(QOS, "0-2"))], rule="r", now=1).written
    assert not ex2.apply([sequence(quota(QOS, -1), Write("memory.high", QOS, str(2**63 - 1)))], rule="r", now=1).written
    assert calls == []


@pytest.mark.feature("KA-EXE-01")
def test_no_limit_is_said_once_in_the_words_that_were_asked_for(machine, calls):
    """What a v1 kernel shows for no limit is a large number, which may as well have been set by somebody."""
    wanted, clock = Write("memory.limit_in_bytes", QOS, "-1"), [1000.0]
    machine.executor.clock = lambda: clock[0]
    machine.put("memory.limit_in_bytes", QOS, "9223372036854771712")
    assert not machine.executor.apply([sequence(wanted)], rule="r", now=1, mode=Mode.OBSERVE).would, "nothing would change"
    machine.executor.apply([sequence(wanted)], rule="r", now=1)
    assert [t for _, t in calls] == ["-1"]
    machine.put("memory.limit_in_bytes", QOS, "9223372036854771712")  # as the kernel shows it
    for _ in range(5):
        clock[0] += 61
        assert not machine.executor.apply([sequence(wanted)], rule="r", now=1).written


def test_v2_values_are_converted_and_cpu_max_keeps_its_period(machine_v2):
    machine_v2.put("cpu.cfs_quota_us", QOS, "max 50000")
    machine_v2.put("cpu.shares", QOS, "100")
    machine_v2.put("memory.limit_in_bytes", QOS, "1048576")
    writes = sequence(quota(QOS, 20000), Write("cpu.shares", QOS, "1024"), Write("memory.limit_in_bytes", QOS, "-1"))
    assert len(machine_v2.executor.apply([writes], rule="r", now=1).written) == 3
    assert machine_v2.get("cpu.cfs_quota_us", QOS) == "20000 50000"
    assert machine_v2.get("cpu.shares", QOS) == "39"
    assert machine_v2.get("memory.limit_in_bytes", QOS) == "max"
    assert machine_v2.executor.apply([writes], rule="r", now=2).skipped == 3


def test_an_unset_v2_cpuset_counts_as_its_effective_one(machine_v2, calls):
    machine_v2.put("cpuset.cpus", QOS, "")
    machine_v2.put("cpuset.cpus.effective", QOS, "0-7")
    machine_v2.executor.apply([sequence(cpus(QOS, "0-7"))], rule="r", now=1)
    assert calls == []
    machine_v2.executor.apply([sequence(cpus(QOS, "0-3"))], rule="r", now=1)
    assert [t for _, t in calls] == ["0-3"]


@pytest.mark.parametrize(
    "write",
    [
        Write("cpu.shares", QOS, "1"),
        Write("cpuset.cpus", QOS, "0-"),
        Write("memory.wmark_ratio", QOS, "101"),
        Write("cpu.shares", "../../etc", "1024"),
        Write("min_free_kbytes", "", "12", kind=Kind.FILE),
    ],
    ids=lambda w: f"{w.resource}={w.value}",
)
def test_bad_values_and_paths_are_refused_before_the_kernel(machine, calls, write):
    for resource in ("cpu.shares", "cpuset.cpus", "memory.wmark_ratio"):
        machine.put(resource, "kubepods.slice", "0")
        machine.put(resource, QOS, "7")
    applied = machine.executor.apply([sequence(write)], rule="r", now=1)
    assert [e.trouble for e in applied.failed] == [Trouble.INVALID]
    assert calls == []


def test_gone_and_unsupported_are_no_failures(machine, calls):
    applied = machine.executor.apply([sequence(quota("kubepods.slice/nope", 5), Write("cpu.bvt_warp_ns", QOS, "2"))], rule="r", now=1)
    assert (applied.failed, applied.written, calls) == ([], [], [])


@pytest.mark.parametrize(
    ("number", "trouble"),
    [
        (errno.EBUSY, Trouble.BUSY),
        (errno.EINVAL, Trouble.INVALID),
        (errno.EROFS, Trouble.READ_ONLY),
        (errno.EIO, Trouble.OTHER),
    ],
)
def test_kernel_errors_are_told_and_do_not_stop_the_batch(machine, monkeypatch, number, trouble):
    machine.put("cpu.cfs_quota_us", POD, "-1")
    machine.put("cpu.cfs_quota_us", BOX, "-1")
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if data == b"1234":
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    applied = machine.executor.apply([sequence(quota(POD, 1234), quota(BOX, 5678))], rule="r", now=1)
    assert [e.trouble for e in applied.failed] == [trouble]
    assert machine.get("cpu.cfs_quota_us", BOX) == "5678"
    monkeypatch.undo()
    assert len(machine.executor.apply([sequence(quota(POD, 1234))], rule="r", now=2).written) == 1, "a failed value is not cached"


def test_one_bad_file_does_not_hold_up_a_leveled_batch(machine):
    machine.put("cpuset.cpus", QOS, "0-7")
    machine.put("cpuset.cpus", POD, "rubbish")
    machine.put("cpuset.cpus", BOX, "0-7")
    batch = Batch(((cpus(QOS, "0-1"),), (cpus(POD, "0-1"),), (cpus(BOX, "0-1"),)))
    applied = machine.executor.apply([batch], rule="r", now=1)
    assert [e.trouble for e in applied.failed] == [Trouble.INVALID]
    assert machine.get("cpuset.cpus", BOX) == "0-1"
    assert machine.get("cpuset.cpus", QOS) == "0-1"


@pytest.mark.feature("BEY-MODE-01")
def test_observe_mode_changes_nothing_and_says_once_what_it_would(machine, calls):
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    for now in (1, 2, 3):
        applied = machine.executor.apply([sequence(quota(QOS, 5000))], rule="suppress", now=now, mode=Mode.OBSERVE)
        assert len(applied.would) == 1
    assert calls == []
    assert len(machine.journal) == 0
    records = machine.recorder.ring.find("CgroupFile")
    assert [(r.verdict, r.rule, r.message) for r in records] == [("WouldWrite", "suppress", "-1 → 5000")]


def test_every_write_leaves_a_record_and_a_duration(machine):
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    machine.executor.apply([sequence(quota(QOS, 5000))], rule="suppress", now=12.5)
    (record,) = machine.recorder.ring.find("CgroupFile")
    assert (record.verdict, record.numbers, record.time) == ("Written", {"old": "-1", "new": "5000"}, 12.5)
    text = exposed(machine.metrics.internal)
    assert 'koordlet_resource_update_duration_milliseconds_count{status="success",type="cgroup"} 1' in text


def test_schemata_lines_count_only_the_domains_they_name(machine):
    path = machine.file("sys/fs/resctrl/BE/schemata", "    L3:0=fff;1=fff\n    MB:0=100;1=100\n")

    def line(text: str) -> Write:
        return Write("schemata", str(path), text, kind=Kind.LINE, device=text[:2], cached=False)

    ex = machine.executor
    assert not ex.apply([sequence(line("L3:0=fff;"), line("MB:1=100;"))], rule="r", now=1).written
    assert len(ex.apply([sequence(line("L3:0=1f;1=1f;"), line("MB:0=20;1=20;"))], rule="r", now=1).written) == 2
    assert path.read_text().splitlines()[-2:] == ["L3:0=1f;1=1f;", "MB:0=20;1=20;"]


def test_what_was_written_to_groups_that_are_gone_is_forgotten_within_a_minute(machine):
    """The cache must not grow with the pods of the last minutes: at fifty a second that is thousands of entries."""
    ex = machine.executor
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    for number in range(20):
        directory = f"{QOS}/kubepods-besteffort-pod{number}.slice"
        machine.put("cpu.cfs_quota_us", directory, "-1")
        ex.apply([sequence(quota(directory, 5000))], rule="r", now=1)
        shutil.rmtree(os.path.dirname(machine.host.cgroups.file("cpu.cfs_quota_us", directory)))
    machine.now += 61
    ex.apply([sequence(quota(QOS, 5000))], rule="r", now=62)
    assert {target for target, _, _ in ex._cache} == {QOS}


def test_memory_is_asked_back_in_a_thread_once_at_a_time(machine_v2, monkeypatch):
    """The kernel takes its time where it has to write to a slow disk, and suppression must not wait for that."""
    first, second = (str(machine_v2.put("memory.reclaim", f"kubepods.slice/{name}", "")) for name in "ab")
    over, asked = threading.Event(), []

    def slowly(path: str, text: str) -> None:
        asked.append((path, text))
        assert over.wait(patience.seconds(10)), "the loop waits for the kernel"
        if path == second:
            raise WriteError(Trouble.INVALID, path, "is refused")

    monkeypatch.setattr(kernel, "write", slowly)
    ask = [Write("memory.reclaim", f"kubepods.slice/{name}", "4096", kind=Kind.TRIGGER, cached=False) for name in "ab"]

    async def story() -> None:
        made = machine_v2.executor
        assert made.apply([sequence(*ask)], rule="r", now=1.0).failed == []
        again = made.apply([sequence(*ask)], rule="r", now=2.0)
        assert [error.trouble for error in again.failed] == [Trouble.BUSY, Trouble.BUSY]
        over.set()
        while made.triggers.busy:
            await asyncio.sleep(0.005)
        assert asked == [(first, "4096"), (second, "4096")]
        counts = [r for r in made.metrics.resource_update.samples() if r[0].endswith("_count")]
        assert sorted((labels, value) for *_, labels, value in counts) == [(("default", "failed"), 1), (("default", "success"), 1)]
        made.apply([sequence(*ask)], rule="r", now=3.0)
        await made.triggers.stop()
        assert not made.triggers.busy

    asyncio.run(story())


def test_memory_is_not_asked_back_for_what_was_measured_long_ago(machine_v2, monkeypatch):
    """Behind a disk that took its time a pod may wait for memory itself by now, or nobody may want it asked any more."""
    names = ("a", "b")
    first, second = (str(machine_v2.put("memory.reclaim", f"kubepods.slice/{name}", "")) for name in names)
    over, asked = threading.Event(), []

    class Clock(seams.System):
        at = 100.0

        def monotonic(self) -> float:
            return self.at

    def slowly(path: str, text: str) -> None:
        asked.append((path, text))
        assert over.wait(patience.seconds(10))

    monkeypatch.setattr(kernel, "write", slowly)
    asks = [Write("memory.reclaim", f"kubepods.slice/{name}", "4096", kind=Kind.TRIGGER, cached=False) for name in names]
    clock = Clock()
    token = seams.use(clock)

    async def story() -> None:
        made = machine_v2.executor
        made.apply([sequence(*asks)], rule="r", now=1.0)
        while not asked:
            await asyncio.sleep(0.005)
        clock.at += FRESH + 1
        over.set()
        while made.triggers.busy:
            await asyncio.sleep(0.005)
        assert asked == [(first, "4096")]
        made.apply([sequence(asks[1])], rule="r", now=9.0)
        while made.triggers.busy:
            await asyncio.sleep(0.005)
        assert asked[1:] == [(second, "4096")]

    try:
        asyncio.run(story())
    finally:
        seams.leave(token)
