"""Holds: one owner a file at a time, and everything given back, after a kill too (BEY-TUNE-01, BEY-JRN-01)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import Trouble, WriteError
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.holds import Holds
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.places import identity
from roles.koordlet.actuation.restore import holds_path, restore
from roles.koordlet.actuation.writes import Hold, Kind, Write, sequence

BOX = "kubepods.slice/box"
QUOTA = "cpu.cfs_quota_us"


def executor(machine) -> Executor:
    made = Executor(machine.host, machine.journal, holds=Holds(Journal(holds_path(machine.root))), clock=lambda: machine.now)
    made.holds.recover(machine.root.machine_directories)
    return made


def put(machine, value: str = "50000") -> None:
    machine.put(QUOTA, BOX, value)


def write(value: str, hold: Hold = Hold.NONE, **more) -> Write:
    return Write(QUOTA, BOX, value, hold=hold, cached=False, **more)


def apply(made: Executor, rule: str, *writes: Write, mode: Mode = Mode.ENFORCE):
    return made.apply([sequence(*writes)], rule=rule, now=1.0, mode=mode)


def test_others_wait_and_get_their_way_when_the_holder_lets_go(machine) -> None:
    put(machine)
    made = executor(machine)
    assert len(apply(made, "mine", write("80000", Hold.TAKE)).written) == 1
    waiting = apply(made, "theirs", write("60000"))
    assert (waiting.written, waiting.failed, machine.get(QUOTA, BOX)) == ([], [], "80000")
    assert made.holds.holder(QUOTA, BOX) == "mine"
    apply(made, "mine", write("", Hold.RELEASE))
    assert machine.get(QUOTA, BOX) == "60000"
    assert len(made.holds) == 0
    assert len(apply(made, "theirs", write("61000")).written) == 1


def test_a_wish_for_what_the_file_says_already_is_kept(machine) -> None:
    """The value was written a moment ago, so that another write of it would be left out."""
    put(machine)
    made = executor(machine)
    apply(made, "mine", Write(QUOTA, BOX, "80000", hold=Hold.TAKE))
    apply(made, "theirs", Write(QUOTA, BOX, "60000"))
    apply(made, "theirs", Write(QUOTA, BOX, "80000"))
    apply(made, "mine", write("", Hold.RELEASE))
    assert machine.get(QUOTA, BOX) == "80000"


def test_what_a_strategy_only_observes_is_no_wish(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    apply(made, "theirs", write("60000"), mode=Mode.OBSERVE)
    apply(made, "mine", write("", Hold.RELEASE))
    assert machine.get(QUOTA, BOX) == "50000"


def test_a_hold_goes_to_who_waited_for_it(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    apply(made, "theirs", write("60000", Hold.TAKE))
    apply(made, "mine", write("", Hold.RELEASE))
    assert (machine.get(QUOTA, BOX), made.holds.holder(QUOTA, BOX)) == ("60000", "theirs")
    assert apply(made, "mine", write("90000")).written == [], "it waits now"
    apply(made, "mine", write("", Hold.RELEASE))
    apply(made, "theirs", write("", Hold.RELEASE))
    assert (machine.get(QUOTA, BOX), len(made.holds)) == ("50000", 0), "what the file held before both"


def test_a_hold_that_was_handed_over_is_given_back_after_a_kill(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    apply(made, "theirs", write("60000", Hold.TAKE))
    apply(made, "mine", write("", Hold.RELEASE))
    made.holds.close()
    executor(machine)
    assert machine.get(QUOTA, BOX) == "50000"


def test_without_another_wish_the_first_value_comes_back(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    apply(made, "mine", write("90000", Hold.TAKE))
    apply(made, "mine", write("", Hold.RELEASE))
    assert machine.get(QUOTA, BOX) == "50000"
    apply(made, "mine", write("80000", Hold.TAKE))
    apply(made, "mine", write("55000", Hold.RELEASE))
    assert machine.get(QUOTA, BOX) == "55000", "the value that the release names"


def test_nobody_takes_what_another_holds_or_frees_what_it_does_not_hold(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    refused = apply(made, "theirs", write("90000", Hold.TAKE))
    assert (refused.written, machine.get(QUOTA, BOX)) == ([], "80000")
    assert apply(made, "theirs", write("1000", Hold.RELEASE)).written == []
    assert machine.get(QUOTA, BOX) == "80000"


def test_nothing_is_owed_to_a_group_that_went_before_it_could_be_given_back(machine, monkeypatch) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    path = Path(machine.host.cgroups.file(QUOTA, BOX))
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "write", refuse)
        assert apply(made, "mine", write("", Hold.RELEASE)).failed
    assert len(made._owed) == 1
    path.unlink()
    path.parent.rmdir()
    machine.now += 61.0
    made.apply([], rule="any", now=2.0)
    assert not made._owed


def refuse(path: str, text: str) -> None:
    raise WriteError(Trouble.BUSY, path, "is refused")


def test_observing_holds_nothing(machine) -> None:
    put(machine)
    made = executor(machine)
    assert len(apply(made, "mine", write("80000", Hold.TAKE), mode=Mode.OBSERVE).would) == 1
    assert (len(made.holds), machine.get(QUOTA, BOX)) == (0, "50000")


def test_a_killed_holder_gives_back_at_the_next_start(machine) -> None:
    put(machine)
    apply(executor(machine), "mine", write("80000", Hold.TAKE))
    again = executor(machine)
    assert (machine.get(QUOTA, BOX), len(again.holds)) == ("50000", 0)
    assert Path(holds_path(machine.root)).read_bytes() == b""


def test_what_this_run_holds_stays_when_a_killed_holder_gives_back_late(machine) -> None:
    put(machine)
    machine.put(QUOTA, f"{BOX}/other", "50000")
    apply(executor(machine), "mine", write("80000", Hold.TAKE))
    late = Executor(machine.host, machine.journal, holds=Holds(Journal(holds_path(machine.root))), clock=lambda: machine.now)
    apply(late, "mine", Write(QUOTA, f"{BOX}/other", "70000", hold=Hold.TAKE, cached=False))
    late.holds.recover(machine.root.machine_directories)
    assert (machine.get(QUOTA, BOX), machine.get(QUOTA, f"{BOX}/other"), len(late.holds)) == ("50000", "70000", 1)
    again = executor(machine)
    assert (machine.get(QUOTA, f"{BOX}/other"), len(again.holds)) == ("50000", 0)


def test_restore_gives_back_too_and_forgets_the_holds(machine) -> None:
    put(machine)
    apply(executor(machine), "mine", write("80000", Hold.TAKE))
    assert restore(machine.root).failed == []
    assert machine.get(QUOTA, BOX) == "50000"
    assert not Path(holds_path(machine.root)).exists()


def test_a_container_that_ends_takes_its_holds_along(machine) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    path = Path(machine.host.cgroups.file(QUOTA, BOX))
    path.unlink()
    path.parent.rmdir()
    released = apply(made, "mine", write("", Hold.RELEASE))
    assert (released.failed, len(made.holds)) == ([], 0)


def test_a_release_that_the_kernel_refuses_is_tried_again(machine, monkeypatch) -> None:
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    path = Path(machine.host.cgroups.file(QUOTA, BOX))
    from roles.koordlet.actuation import kernel
    from roles.koordlet.actuation.errors import Trouble, WriteError

    real = kernel.write

    def refuse(where: str, text: str) -> None:
        raise WriteError(Trouble.BUSY, where, "busy")

    monkeypatch.setattr(kernel, "write", refuse)
    assert len(apply(made, "mine", write("", Hold.RELEASE)).failed) == 1
    monkeypatch.setattr(kernel, "write", real)
    machine.now += 61
    apply(made, "other")
    assert path.read_text().strip() == "50000"
    assert len(made.holds) == 0


def test_disk_lines_are_given_back_line_by_line(machine) -> None:
    machine.put("blkio.throttle.read_bps_device", "kubepods.slice", "")
    path = machine.put("blkio.throttle.read_bps_device", BOX, "8:16 700")
    made = executor(machine)
    for disk in ("8:0", "8:16"):
        line = Write("blkio.throttle.read_bps_device", BOX, f"{disk} 1000", device=disk, hold=Hold.TAKE)
        apply(made, "mine", line)
        assert path.read_text().strip() == f"{disk} 1000"
        path.write_text(f"{disk} 1000\n")
        apply(made, "mine", Write("blkio.throttle.read_bps_device", BOX, "", device=disk, hold=Hold.RELEASE))
        assert path.read_text().strip() == {"8:0": "8:0 0", "8:16": "8:16 700"}[disk]
        path.write_text("8:16 700\n")


def test_a_process_is_told_from_a_later_one_of_its_number(machine) -> None:
    score = machine.file("proc/7/oom_score_adj", "900\n")
    machine.file("proc/7/stat", "7 (a b) S " + " ".join(["1"] * 18) + " 4711 0 0\n")
    assert identity(str(score)) == 4711
    made = executor(machine)
    one = Write("oom_score_adj", str(score), "700", kind=Kind.FILE, hold=Hold.TAKE)
    assert apply(made, "mine", one).failed == []
    machine.file("proc/7/stat", "7 (other) S " + " ".join(["1"] * 18) + " 4712 0 0\n")
    executor(machine)
    assert score.read_text() == "700", "another process has the number now"
    assert restore(machine.root).gone == [str(score)]


steps = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(list(Hold)), st.integers(1000, 90_000)), max_size=14)


@pytest.mark.feature("BEY-JRN-01")
@given(steps)
def test_property_whatever_happens_a_restart_frees_and_restore_puts_back(make_machine, tmp_path_factory, story) -> None:
    """Any order of taking, wishing and letting go: one holder at most, a restart frees all, and restore gives the first value."""
    machine = make_machine(tmp_path_factory.mktemp("m"))
    put(machine)
    made = executor(machine)
    for rule, hold, value in story:
        before, text = made.holds.holder(QUOTA, BOX), machine.get(QUOTA, BOX)
        apply(made, rule, write(str(value), hold))
        if before not in ("", rule):
            assert machine.get(QUOTA, BOX) == text, "held by another"
    assert executor(machine).holds.holder(QUOTA, BOX) == ""
    assert restore(machine.root).failed == []
    assert machine.get(QUOTA, BOX) == "50000"


@pytest.mark.feature("BEY-JRN-01")
def test_what_is_held_is_on_record_again_when_others_removed_it(machine) -> None:
    """A killed agent's successor gives back what was held, and would not know."""
    put(machine)
    made = executor(machine)
    apply(made, "mine", write("80000", Hold.TAKE))
    Path(holds_path(machine.root)).unlink()
    machine.now += 61
    made.apply([], rule="mine", now=2.0)
    machine.restart()
    executor(machine)
    assert machine.get(QUOTA, BOX) == "50000"
