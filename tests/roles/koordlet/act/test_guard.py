"""The dead man's switch (BEY-GRD-01): best-effort pods when koordlet is gone for too long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import abandoned, give_back, journal_path, restore
from roles.koordlet.actuation.writes import Write, sequence
from roles.koordlet.guard import HOLD, RELEASE, Guard, Watch
from roles.koordlet.lock import NodeLock
from roles.koordlet.options import OptionError, Options, check
from tests.support import patience
from tests.support.processes import KOORD

pytestmark = pytest.mark.feature("BEY-GRD-01")

TIER, POD = "kubepods.slice/kubepods-besteffort.slice", "kubepods.slice/kubepods-besteffort.slice/pod"
QUOTA = "cpu.cfs_quota_us"
HOLDER = """
import sys
from roles.koordlet.lock import NodeLock
NodeLock(sys.argv[1]).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def suppressed(machine):
    """A machine on which suppression has taken what the tier had, and a hook limited a pod."""
    machine.put(QUOTA, TIER, "-1")
    machine.put(QUOTA, POD, "-1")
    for rule, directory, value in (("BECPUSuppress", TIER, "2000"), ("BatchResource", POD, "150000")):
        assert machine.executor.apply([sequence(Write(QUOTA, directory, value))], rule=rule, now=1.0).written
    machine.journal.close()
    return machine


def lock_of(machine) -> str:
    return os.path.join(machine.root.var_run, "koordlet", "koordlet.lock")


def guard_of(machine, action: str) -> Guard:
    return Guard(machine.root, lock_of(machine), action=action, percent=25, cpus=4)


def test_it_acts_once_when_nobody_was_there_for_long() -> None:
    watch = Watch()
    for now, held, due in (
        (0, False, False),
        (9, False, False),
        (10, False, True),
        (11, True, False),
        (12, False, False),
        (22, False, True),
    ):
        watch = watch.looked(held=held, now=float(now))
        assert watch.due(float(now), 10.0) is due, now


def test_what_suppression_took_is_given_back_and_limits_of_pods_stay(suppressed) -> None:
    done = guard_of(suppressed, RELEASE).act()
    assert "1 files put back" in done.text
    assert not done.left
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("-1", "150000")
    assert len(restore(suppressed.root).restored) == 1, "what is left is still on record"
    assert suppressed.get(QUOTA, POD) == "-1"


def test_they_are_held_at_a_safe_share_and_that_is_on_record(suppressed) -> None:
    done = guard_of(suppressed, HOLD).act()
    assert "25 %" in done.text
    assert not done.left
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("100000", "-1"), "no child may have more than its parent"
    assert restore(suppressed.root).failed == []
    assert suppressed.get(QUOTA, TIER) == "-1"


def test_the_safe_share_is_one_of_the_levels_own_period(suppressed) -> None:
    suppressed.put("cpu.cfs_period_us", TIER, "20000")
    suppressed.put("cpu.cfs_period_us", POD, "200000")
    assert not guard_of(suppressed, HOLD).act().left
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("20000", "150000"), "less than a core, beside one core"


def test_while_a_koordlet_lives_nothing_is_done(suppressed) -> None:
    guard, lock = guard_of(suppressed, RELEASE), NodeLock(lock_of(suppressed))
    lock.acquire()
    assert guard.held()
    assert guard.act() is None
    lock.release()
    assert not guard.held()
    assert suppressed.get(QUOTA, TIER) == "2000"


def test_a_journal_that_cannot_be_read_is_left_alone(suppressed) -> None:
    path = Path(journal_path(suppressed.root))
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()
    assert "cannot be read" in guard_of(suppressed, RELEASE).act().left[0]
    path.rmdir()
    path.write_bytes(kept)
    assert len(Journal(str(path), suppressed.root).places.boot) >= 0
    assert not guard_of(suppressed, RELEASE).act().left


def test_what_was_taken_is_given_back_on_a_full_disk_and_nothing_new_is_written(suppressed) -> None:
    """Of what is put back everything is on record already; what a hold would write is not."""
    path = Path(journal_path(suppressed.root))
    kept = path.read_bytes()
    Path(f"{path}.new").mkdir()  # where the journal would be written anew
    assert "cannot be written" in guard_of(suppressed, HOLD).act().left[0]
    assert suppressed.get(QUOTA, TIER) == "2000"
    done = guard_of(suppressed, RELEASE).act()
    assert ("1 files put back" in done.text, done.left) == (True, ())
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("-1", "150000")
    assert path.read_bytes() == kept
    Path(f"{path}.new").rmdir()
    assert restore(suppressed.root).failed == []
    assert suppressed.get(QUOTA, POD) == "-1"


def refusing(monkeypatch, directory: str) -> None:
    """A kernel that does not take what is written to the files of a directory."""
    write = kernel.write

    def refused(path: str, text: str) -> None:
        if os.path.dirname(path).endswith(directory):
            raise WriteError(Trouble.INVALID, path, "is refused")
        write(path, text)

    monkeypatch.setattr(kernel, "write", refused)


@pytest.mark.parametrize("action", [RELEASE, HOLD])
def test_a_file_that_cannot_be_written_is_tried_again_and_the_others_are_written(suppressed, monkeypatch, action: str) -> None:
    other = f"{TIER}/other"
    suppressed.put(QUOTA, other, "-1")
    suppressed.journal.open()
    suppressed.executor.apply([sequence(Write(QUOTA, other, "300000"))], rule="BECPUSuppress", now=2.0)
    suppressed.journal.close()
    with monkeypatch.context() as patch:
        refusing(patch, "other")
        done = guard_of(suppressed, action).act()
    assert "is refused" in done.left[0]
    assert suppressed.get(QUOTA, TIER) == ("-1" if action == RELEASE else "100000")
    watch = Watch().looked(held=False, now=0.0).answered(done, 200.0)
    assert [watch.due(now, 120.0) for now in (201.0, 210.0)] == [False, True]
    done = guard_of(suppressed, action).act()
    assert not done.left
    assert suppressed.get(QUOTA, other) == "-1"
    assert not watch.answered(done, 210.0).due(300.0, 120.0)


@pytest.mark.parametrize("action", [RELEASE, HOLD])
def test_a_machine_that_no_koordlet_changed_is_left_alone(machine, action: str) -> None:
    os.unlink(journal_path(machine.root))
    machine.put(QUOTA, TIER, "-1")
    for _ in range(2):
        done = guard_of(machine, action).act()
        assert "no koordlet has changed this machine" in done.text
        assert not done.left
    assert machine.get(QUOTA, TIER) == "-1"


@pytest.mark.parametrize("action", [RELEASE, HOLD])
@pytest.mark.parametrize("how", ["restore", "observe"])
def test_a_machine_that_got_everything_back_is_left_alone(suppressed, action: str, how: str) -> None:
    """By a restore, or by a koordlet that only observes and died after that: its pods are not held for one that changes nothing."""
    if how == "restore":
        assert restore(suppressed.root).failed == []
    else:
        journal = Journal(journal_path(suppressed.root), suppressed.root)
        journal.open()
        assert give_back(journal, abandoned(journal, ()), suppressed.root).failed == []
        journal.close()
    done = guard_of(suppressed, action).act()
    assert ("its journal is empty" in done.text, done.left) == (True, ())
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("-1", "-1")


def test_a_journal_of_a_newer_version_says_that_a_koordlet_was_here(suppressed) -> None:
    Path(journal_path(suppressed.root)).write_bytes(b"9 something new\n")
    assert "25 %" in guard_of(suppressed, HOLD).act().text


def test_what_is_not_there_is_not_called_held(suppressed) -> None:
    suppressed.put(QUOTA, TIER, "").unlink()
    assert "no CPU quota" in guard_of(suppressed, HOLD).act().left[0]


def test_the_process_waits_for_the_end_of_a_koordlet_that_is_killed(suppressed) -> None:
    """As shipped: one process holds the lock, is killed, and the guard beside it acts."""
    command = [str(Path(KOORD).parent / "python"), "-c", HOLDER, lock_of(suppressed)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    command = [KOORD, "koordlet", "--guard", "--guard-timeout=1s", f"--host-root={suppressed.base}"]
    guard = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert guard.stderr is not None
        for line in guard.stderr:
            if "may be gone" in line:
                break
        assert suppressed.get(QUOTA, TIER) == "2000"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        for _ in patience.tries(600):
            if suppressed.get(QUOTA, TIER) == "-1":
                break
            time.sleep(0.05)
        assert suppressed.get(QUOTA, TIER) == "-1"
        guard.terminate()
        assert guard.wait(patience.seconds(20)) == 0
    finally:
        for process in (holder, guard):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.mark.parametrize(
    ("values", "said"),
    [({"guard_action": "stop"}, "release, hold"), ({"guard_cpu_percent": 0}, "1 to 100"), ({"guard": True, "restore": True}, "--restore")],
)
def test_what_cannot_be_is_refused(values, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check(Options(node_name="n", **values))
