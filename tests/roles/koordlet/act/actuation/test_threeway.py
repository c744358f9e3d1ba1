"""Before, ours, now: what others set after the agent stays theirs (BEY-JRN-01)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roles.koordlet.actuation.restore import restore
from roles.koordlet.actuation.threeway import Undo, before_by_now, put_back
from roles.koordlet.actuation.writes import Kind, Write, sequence

pytestmark = pytest.mark.feature("BEY-JRN-01")

QUOTA = "cpu.cfs_quota_us"
BOX = "kubepods.slice/box"


def apply(machine, value: str, resource: str = QUOTA) -> None:
    machine.executor.apply([sequence(Write(resource, BOX, value, cached=False))], rule="r", now=1.0)


def test_a_value_that_others_set_last_stays_and_is_told(machine) -> None:
    path = machine.put(QUOTA, BOX, "200000")
    apply(machine, "240000")
    path.write_text("800000\n")
    result = restore(machine.root)
    assert (path.read_text().strip(), result.restored) == ("800000", [])
    [told] = result.theirs
    assert (told.path, "800000" in told.detail, "240000" in told.detail, "200000" in told.detail) == (str(path), True, True, True)
    assert Path(machine.journal.path).read_bytes() == b"", "it is nobody's business any more"


def test_a_value_from_outside_is_the_one_to_go_back_to(machine) -> None:
    path = machine.put(QUOTA, BOX, "200000")
    apply(machine, "240000")
    path.write_text("800000\n")
    apply(machine, "960000")
    assert restore(machine.root).restored == [str(path)]
    assert path.read_text().strip() == "800000"


def test_what_others_set_is_theirs_though_the_agent_wants_it_and_wrote_it_before(machine) -> None:
    """The agent writes nothing where its value stands already; what it wrote before is not its own for ever."""
    path = machine.put(QUOTA, BOX, "200000")
    apply(machine, "240000")
    path.write_text("800000\n")
    apply(machine, "800000")
    path.write_text("240000\n")
    assert restore(machine.root).restored == []
    assert path.read_text().strip() == "240000"


def test_what_no_file_can_hold_is_no_value_from_outside(machine) -> None:
    path = machine.put("memory.min", BOX, "0")
    machine.put("memory.min", "kubepods.slice", "0")
    apply(machine, "4096", "memory.min")
    path.write_text("9" * 40)
    apply(machine, "8192", "memory.min")
    restore(machine.root)
    assert path.read_text().strip() == "0"


def test_a_process_and_a_file_of_the_agent(machine) -> None:
    score = machine.file("proc/7/oom_score_adj", "900\n")
    machine.file("proc/7/stat", "7 (a b) S " + " ".join(["1"] * 18) + " 4711 0 0\n")
    own = machine.file("var/run/koordlet/x", "").parent / "pod.json"
    writes = (Write("oom_score_adj", str(score), "700", kind=Kind.FILE), Write("", str(own), "{}", kind=Kind.CREATE))
    machine.executor.apply([sequence(*writes)], rule="r", now=1.0)
    score.write_text("-500\n")
    own.write_text('{"by": "hand"}')
    assert len(restore(machine.root).theirs) == 2
    assert (score.read_text(), own.read_text()) == ("-500\n", '{"by": "hand"}')


def test_single_lines_words_and_disks_are_judged_by_themselves() -> None:
    lines = put_back(Undo.LINES, "schemata", "L3:0=fff;1=fff\nMB:0=100", ("L3:0=1;1=1", "MB:0=20"), "  L3:0=1;1=f0\n  MB:0=50")
    assert (lines.texts, lines.theirs) == (["L3:0=fff"], ["L3:1=f0", "MB:0=50"])
    words = put_back(Undo.WORDS, "sched_features", "NO_A NO_B", ("A",), "A B")
    assert (words.texts, words.theirs) == (["NO_A"], [])
    name = "blkio.throttle.read_bps_device"
    disks = put_back(Undo.DEVICES, name, "8:16 9", ("8:0 5", "8:16 7", "8:32 3"), "8:0 5\n8:16 8\n8:48 1")
    assert disks.texts == ["8:0 0"]
    assert disks.theirs == ["8:16 8"]


def test_a_line_from_outside_is_the_one_to_go_back_to() -> None:
    before = before_by_now(Undo.LINES, "schemata", "L3:0=fff;1=fff", ("L3:0=1",), "L3:0=1;1=f0")
    assert put_back(Undo.LINES, "schemata", before, ("L3:0=3;1=3",), "L3:0=3;1=3").texts == ["L3:0=fff;1=f0"]
    disks = before_by_now(Undo.DEVICES, "blkio.throttle.read_bps_device", "8:0 9", ("8:0 5",), "8:0 5\n8:16 3")
    assert set(disks.splitlines()) == {"8:0 9", "8:16 3"}


steps = st.lists(st.tuples(st.sampled_from(["agent", "others", "kill"]), st.integers(1000, 1005)), max_size=12)


@given(steps)
@example([("agent", 1000), ("others", 1001), ("agent", 1001), ("others", 1000)])
def test_property_restore_gives_what_others_set_last(make_machine, tmp_path_factory, story) -> None:
    """Any order of writes by the agent, writes by others, and kills between two writes."""
    machine = make_machine(tmp_path_factory.mktemp("m"))
    path = machine.put(QUOTA, BOX, "-1")
    theirs = ours = "-1"
    for who, value in story:
        if who == "others":
            if str(value) == ours and path.read_text().strip() == ours:
                continue  # the same value again cannot be told
            path.write_text(f"{value}\n")
            theirs = str(value)
        elif who == "agent":
            apply(machine, str(value))
            ours = str(value) if theirs != str(value) or path.read_text().strip() != theirs else ours
        else:
            machine.journal.close()
            machine = make_machine(machine.base)
    assert restore(machine.root).failed == []
    assert path.read_text().strip() == theirs
