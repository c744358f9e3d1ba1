"""The dead man's switch (BEY-GRD-01): best-effort pods when koordlet is gone for too long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.restore import journal_path, restore
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
    assert "1 files put back" in guard_of(suppressed, RELEASE).act()
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("-1", "150000")
    assert len(restore(suppressed.root).restored) == 1, "what is left is still on record"
    assert suppressed.get(QUOTA, POD) == "-1"


def test_they_are_held_at_a_safe_share_and_that_is_on_record(suppressed) -> None:
    assert "25 %" in guard_of(suppressed, HOLD).act()
    assert (suppressed.get(QUOTA, TIER), suppressed.get(QUOTA, POD)) == ("100000", "-1"), "no child may have more than its parent"
    assert restore(suppressed.root).failed == []
    assert suppressed.get(QUOTA, TIER) == "-1"


def test_while_a_koordlet_lives_nothing_is_done(suppressed) -> None:
    guard, lock = guard_of(suppressed, RELEASE), NodeLock(lock_of(suppressed))
    lock.acquire()
    assert guard.held()
    assert guard.act() == ""
    lock.release()
    assert not guard.held()
    assert suppressed.get(QUOTA, TIER) == "2000"


def test_a_journal_that_cannot_be_read_is_left_alone(suppressed) -> None:
    path = Path(journal_path(suppressed.root))
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(Exception, match="cannot be read"):
        guard_of(suppressed, RELEASE).act()
    path.rmdir()
    path.write_bytes(kept)
    assert len(Journal(str(path), suppressed.root).places.boot) >= 0
    assert guard_of(suppressed, RELEASE).act()


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
