"""The journal: first values on record before the first write, whatever happens; everything put back (BEY-JRN-01)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import seams
from roles.koordlet.actuation import journal as journal_module
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble
from roles.koordlet.actuation.executor import Executor
from roles.koordlet.actuation.journal import Journal, JournalError
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.restore import journal_path, put_back, restore
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.writes import Kind, Write, sequence
from tests.support import patience

QOS = "kubepods.slice/kubepods-besteffort.slice"


def test_first_value_counts_and_restore_puts_it_back(machine):
    path = machine.put("cpu.cfs_quota_us", QOS, "-1")
    for value in ("5000", "6000", "7000"):
        machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, value))], rule="r", now=1)
    assert path.read_text() == "7000"
    result = restore(machine.root)
    assert (result.restored, result.failed) == ([str(path)], [])
    assert path.read_text() == "-1"
    assert restore(machine.root).restored == []


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize("how", ["file", "directory"])
@pytest.mark.parametrize("then", ["a write", "a minute"])
def test_a_journal_that_others_removed_is_written_again(machine, how, then):
    """Who cleans up below /var/run takes the account of what was changed along."""
    first, second = machine.put("cpu.cfs_quota_us", QOS, "-1"), machine.put("cpu.cfs_quota_us", f"{QOS}/pod", "-1")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "5000"))], rule="r", now=1)
    journal = Path(journal_path(machine.root))
    if how == "file":
        journal.unlink()
    else:
        shutil.rmtree(journal.parent)
    if then == "a write":
        machine.executor.apply([sequence(Write("cpu.cfs_quota_us", f"{QOS}/pod", "4000"))], rule="r", now=2)
    else:
        machine.now += 61
        machine.executor.apply([], rule="r", now=2)
    assert not restore(machine.root).failed
    assert (first.read_text(), second.read_text()) == ("-1", "-1" if then == "a write" else "-1\n")


@pytest.mark.feature("BEY-JRN-01")
def test_what_the_kubelet_gives_a_new_group_while_its_first_value_is_put_on_record_is_put_back(machine, monkeypatch):
    """The kernel makes a group with cpu.shares 1024; the kubelet gives a BestEffort pod's 2 a moment later."""
    path = machine.put("cpu.shares", f"{QOS}/pod", "1024")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", lambda _: path.write_text("2"))
        machine.executor.apply([sequence(Write("cpu.shares", f"{QOS}/pod", "204"))], rule="r", now=1)
    assert path.read_text() == "204"
    assert restore(machine.root).failed == []
    assert path.read_text() == "2"


def test_a_group_made_under_narrowed_cpus_gets_those_that_it_would_have(machine):
    above = machine.put("cpuset.cpus", QOS, "0-5")
    machine.executor.apply([sequence(Write("cpuset.cpus", QOS, "0-2"))], rule="r", now=1)
    born = machine.put("cpuset.cpus", f"{QOS}/pod", "0-2")  # as a runtime makes it: what the group above has
    own = machine.put("cpuset.cpus", f"{QOS}/other", "1")
    wider = sequence(*(Write("cpuset.cpus", group, "0-3") for group in (QOS, f"{QOS}/pod", f"{QOS}/other")))
    machine.executor.apply([wider], rule="r", now=2)
    assert restore(machine.root).failed == []
    assert [path.read_text().strip() for path in (above, born, own)] == ["0-5", "0-5", "1"]


def test_a_pod_and_its_container_made_under_narrowed_cpus_and_first_written_together_get_those_that_they_would_have(machine):
    machine.put("cpuset.cpus", QOS, "0-5")
    machine.executor.apply([sequence(Write("cpuset.cpus", QOS, "0-2"))], rule="r", now=1)
    pod = machine.put("cpuset.cpus", f"{QOS}/pod", "0-2")
    container = machine.put("cpuset.cpus", f"{QOS}/pod/container", "0-2")
    narrower = sequence(*(Write("cpuset.cpus", group, "0-1") for group in (f"{QOS}/pod/container", f"{QOS}/pod", QOS)))
    machine.executor.apply([narrower], rule="r", now=2)
    assert restore(machine.root).failed == []
    assert [path.read_text().strip() for path in (pod, container)] == ["0-5", "0-5"]


def test_a_group_made_under_narrowed_cpus_that_have_been_widened_since_gets_those_that_it_would_have(machine):
    """A group is first written a while after it was made: later than the group above, or once the disk has room again."""
    machine.put("cpuset.cpus", QOS, "0-5")
    machine.executor.apply([sequence(Write("cpuset.cpus", QOS, "0-1"))], rule="r", now=1)
    born = machine.put("cpuset.cpus", f"{QOS}/pod", "0-1")
    machine.executor.apply([sequence(Write("cpuset.cpus", QOS, "0-2"))], rule="r", now=2)
    machine.executor.apply([sequence(Write("cpuset.cpus", QOS, "0-3"))], rule="r", now=3)
    machine.executor.apply([sequence(*(Write("cpuset.cpus", group, "0-3") for group in (QOS, f"{QOS}/pod")))], rule="r", now=4)
    assert restore(machine.root).failed == []
    assert born.read_text().strip() == "0-5"


def test_a_cgroup_made_anew_is_not_given_the_old_ones_value(machine):
    path = machine.put("cpu.cfs_quota_us", f"{QOS}/pod", "1111")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", f"{QOS}/pod", "5000"))], rule="r", now=1)
    os.rename(path.parent, path.parent.with_name("elsewhere"))  # keeps the old inode in use
    machine.put("cpu.cfs_quota_us", f"{QOS}/pod", "2222")
    assert restore(machine.root).gone == [str(path)]
    assert path.read_text() == "2222\n"


def test_own_files_and_directories_are_removed(machine):
    target = str(machine.base / "sys/fs/resctrl/BE")
    made = str(machine.base / "var/run/koordlet/pod.json")
    os.makedirs(os.path.dirname(target))
    batch = sequence(Write("", target, "", kind=Kind.DIRECTORY), Write("", made, "{}", kind=Kind.CREATE))
    assert len(machine.executor.apply([batch], rule="r", now=1).written) == 2
    assert os.path.isdir(target)
    assert restore(machine.root).failed == []
    assert not os.path.exists(target)
    assert not os.path.exists(made)


def test_lines_words_and_disks_are_put_back(tmp_path):
    schemata = tmp_path / "schemata"
    schemata.write_text("L3:0=1\nMB:0=20\n")
    features = tmp_path / "sched_features"
    features.write_text("A NO_B\n")
    disks = tmp_path / "blkio.throttle.read_bps_device"
    disks.write_text("8:0 5\n8:16 7\n")
    result = put_back(
        [
            Entry(str(schemata), "L3:0=fff\nMB:0=20", Undo.LINES, "schemata"),
            Entry(str(features), "NO_A NO_B", Undo.WORDS, "sched_features"),
            Entry(str(disks), "8:16 9", Undo.DEVICES, "blkio.throttle.read_bps_device"),
        ]
    )
    assert result.failed == []
    assert schemata.read_text().splitlines()[2:] == ["L3:0=fff"]
    assert features.read_text().splitlines()[1:] == ["NO_A"]
    assert disks.read_text().splitlines()[2:] == ["8:16 9", "8:0 0"]


def test_paths_outside_the_machine_are_not_touched(machine, tmp_path):
    outside = tmp_path.parent / "outside"
    outside.write_text("mine")
    machine.journal.remember([Entry(str(outside), "theirs")])
    result = restore(machine.root)
    assert [e.path for e in result.failed] == [str(outside)]
    assert outside.read_text() == "mine"
    assert len(Journal(journal_path(machine.root)).path) > 0
    left = Journal(journal_path(machine.root))
    left.load()
    assert [e.path for e in left] == [str(outside)], "what could not be put back stays on record"


def test_a_full_disk_leaves_unrecorded_files_alone_and_the_recorded_ones_writable(machine, monkeypatch):
    known = machine.put("cpu.cfs_quota_us", QOS, "-1")
    fresh = machine.put("cpu.cfs_quota_us", f"{QOS}/pod", "-1")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "5000"))], rule="r", now=1)
    size = os.path.getsize(machine.journal.path)

    def full(fd: int, data: bytes) -> None:
        os.write(fd, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module, "_write_all", full)
    batch = sequence(Write("cpu.cfs_quota_us", QOS, "6000"), Write("cpu.cfs_quota_us", f"{QOS}/pod", "6000"))
    applied = machine.executor.apply([batch], rule="r", now=2)
    assert applied.unjournalled
    assert [e.trouble for e in applied.failed] == [Trouble.UNJOURNALLED]
    assert known.read_text() == "6000"
    assert fresh.read_text() == "-1\n"
    assert "No space left" in machine.journal.failure
    assert os.path.getsize(machine.journal.path) == size, "the torn line is cut off"
    monkeypatch.undo()
    assert len(machine.executor.apply([batch], rule="r", now=3).written) == 1
    assert machine.journal.failure == ""


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize(
    ("boot", "own", "synced"),
    [("one", False, False), ("one", True, True), ("", False, True)],
    ids=["a file of the kernel", "a file on a disk", "boots cannot be told apart"],
)
def test_the_disk_is_waited_for_where_a_file_outlasts_the_kernel(machine, monkeypatch, boot, own, synced):
    (machine.base / "proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (machine.base / "proc/sys/kernel/random/boot_id").write_text(boot)
    machine.put("cpu.cfs_quota_us", QOS, "-1")
    made = machine.base / "etc/hook.json"
    made.parent.mkdir()
    write = Write("", str(made), "{}", kind=Kind.CREATE) if own else Write("cpu.cfs_quota_us", QOS, "5000")
    journal = Journal(journal_path(machine.root), machine.root)
    journal.open()
    executor = Executor(machine.host, journal)
    steps: list[str] = []

    def sync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == journal.path:
            steps.append("synced")

    def written(at: str, text: str) -> None:
        steps.append("written")
        assert Path(at).name.encode() in Path(journal.path).read_bytes(), "the line is there before the value is"

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(kernel, "write", written)
    monkeypatch.setattr(kernel, "replace_file", written)
    assert executor.apply([sequence(write)], rule="r", now=1).failed == []
    assert steps == (["synced", "written"] if synced else ["written"])
    made.write_text("{}")
    synced_new: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced_new.append(os.readlink(f"/proc/self/fd/{fd}")))
    journal.compact()
    assert synced_new == ([f"{journal.path}.new", os.path.dirname(journal.path)] if synced else [])


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.parametrize("later", ["the next tick", "the end"])
@pytest.mark.parametrize("started", ["before", "meanwhile"])
def test_what_was_written_while_the_disk_was_full_is_put_back_all_the_same(machine, monkeypatch, started, later):
    """The disk says that it was koordlet's value as soon as it can, without another write of the file."""
    path = machine.put("cpu.cfs_quota_us", QOS, "-1")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "5000"))], rule="r", now=1)
    journal, executor = machine.journal, machine.executor
    now = 100.0

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(journal_module, "_write_all", full)
        disk.setattr(seams, "monotonic", lambda: now)
        if started == "meanwhile":
            journal.close()
            journal = Journal(journal.path, machine.root)
            with pytest.raises(JournalError):
                journal.open()
            executor = Executor(machine.host, journal)
        executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "6000", cached=False))], rule="r", now=2)
    monkeypatch.setattr(seams, "monotonic", lambda: now + 2)
    assert path.read_text() == "6000"
    if later == "the next tick":
        executor.apply([], rule="another", now=3)
        assert journal.failure == ""
    else:
        journal.close()
    result = restore(machine.root)
    assert (result.restored, result.theirs, path.read_text()) == ([str(path)], [], "-1")


@pytest.mark.feature("BEY-JRN-01")
def test_what_others_set_while_the_disk_was_full_is_what_is_put_back(machine, monkeypatch):
    path = machine.put("cpu.cfs_quota_us", QOS, "-1")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "5000"))], rule="r", now=1)

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module, "_write_all", full)
    path.write_text("45000")
    machine.executor.apply([sequence(Write("cpu.cfs_quota_us", QOS, "6000", cached=False))], rule="r", now=2)
    monkeypatch.undo()
    machine.executor.apply([], rule="another", now=3)
    machine.journal.close()
    assert (restore(machine.root).restored, path.read_text()) == ([str(path)], "45000")


def test_damage_is_reported_and_the_rest_kept(tmp_path, caplog):
    journal = Journal(str(tmp_path / "journal"))
    journal.open()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x")
        journal.remember([Entry(str(tmp_path / name), name)])
    journal.close()
    lines = Path(journal.path).read_bytes().splitlines()
    Path(journal.path).write_bytes(lines[0] + b"\n" + lines[1][:-3] + b"zzz\n" + lines[2] + b"\n" + b"deadbeef [tor")
    again = Journal(journal.path)
    again.open()
    assert [e.value for e in again] == ["a", "c"]
    assert "1 damaged lines" in caplog.text
    assert "unfinished line" in caplog.text
    again.remember([Entry(str(tmp_path / "b"), "new")])
    third = Journal(journal.path)
    third.load()
    assert [e.value for e in third] == ["a", "c", "new"]


def test_an_unreadable_journal_is_one_clear_error(tmp_path):
    (tmp_path / "journal").mkdir()
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(str(tmp_path / "journal")).load()


class Killed(BaseException):
    """The process ends here."""


@given(st.integers(0, 40), st.integers(0, 200), st.lists(st.tuples(st.integers(0, 5), st.integers(1000, 9999)), max_size=12))
def test_killed_at_any_moment_everything_can_be_put_back(make_machine, at, torn, story):
    """A kill between any two system calls, also in the middle of a journal line."""
    left = at

    def tick(partial: object = None) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            if partial is not None:
                fd, data = partial  # type: ignore[misc]
                os.write(fd, bytes(data)[:torn])
            raise Killed

    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patch:
        machine = make_machine(Path(base))
        paths = [machine.put("cpu.cfs_quota_us", f"{QOS}/p{i}", str(-1 - i)) for i in range(6)]
        before = [p.read_text().strip() for p in paths]
        real_write, real_all = kernel.write, journal_module._write_all

        def write(path: str, text: str) -> None:
            tick()
            real_write(path, text)
            tick()

        def write_all(fd: int, data: bytes) -> None:
            tick((fd, data))
            real_all(fd, data)
            tick()

        patch.setattr(kernel, "write", write)
        patch.setattr(journal_module, "_write_all", write_all)
        try:
            for which, value in story:
                batch = sequence(*(Write("cpu.cfs_quota_us", f"{QOS}/p{i}", str(value + i), cached=False) for i in range(which + 1)))
                machine.executor.apply([batch], rule="r", now=1)
        except Killed:
            pass
        patch.undo()
        machine.journal.close()
        assert restore(machine.root).failed == []
        assert [p.read_text().strip() for p in paths] == before


WORKER = """
import random, sys
sys.path.insert(0, sys.argv[3])
import importlib.util
spec = importlib.util.spec_from_file_location("act_conftest", sys.argv[2])
module = importlib.util.module_from_spec(spec)
sys.modules["act_conftest"] = module
spec.loader.exec_module(module)
from pathlib import Path
from roles.koordlet.actuation.writes import Write, sequence
machine = module.build(Path(sys.argv[1]))
print("ready", flush=True)
rng = random.Random(7)
while True:
    i = rng.randrange(200)
    write = Write("cpu.cfs_quota_us", f"kubepods.slice/q/p{i}", str(rng.randrange(1000, 9999)), cached=False)
    machine.executor.apply([sequence(write)], rule="r", now=1)
"""


def test_kill_9_of_a_writing_process(machine):
    paths = [machine.put("cpu.cfs_quota_us", f"kubepods.slice/q/p{i}", str(-i - 1)) for i in range(200)]
    repo = str(Path(__file__).parents[5])
    rng = random.Random(1)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), str(machine.base), str(Path(__file__).parents[1] / "conftest.py"), repo],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + patience.seconds(20)
        while all(p.read_text().strip() == str(-i - 1) for i, p in enumerate(paths)) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert any(p.read_text().strip() != str(-i - 1) for i, p in enumerate(paths))
        assert restore(machine.root).failed == []
        assert [p.read_text().strip() for p in paths] == [str(-i - 1) for i in range(200)]
