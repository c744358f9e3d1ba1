"""Ages of reports do not go by two clocks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import NodeMetric, NodeMetricStatus, ObjectMeta
from koord.api.times import format_time, parse_time
from koord.process.reporters import TOLERATED, ReporterClocks, ReportTimes

START = 1_700_000_000.0


@dataclass
class Clocks:
    """True time, and a machine whose clock is `ahead` of it."""

    ahead: float = 0.0
    true: float = START

    def wall(self) -> float:
        return self.true + self.ahead

    def mono(self) -> float:
        return self.true - START


def ages(clocks: Clocks, asked: ReporterClocks, delays: list[float], *, interval: float = 60.0, reporter_ahead: float = 0.0) -> list[float]:
    """How old reports look when they arrive; one is written each `interval` seconds and takes so long."""
    found = []
    for delay in delays:
        written = clocks.true
        clocks.true += delay
        found.append(clocks.wall() - asked.local("n1", written + reporter_ahead))
        clocks.true = max(written + interval, clocks.true)
    return found


def clock(ahead: float = 0.0) -> tuple[Clocks, ReporterClocks]:
    made = Clocks(ahead)
    return made, ReporterClocks(made.wall, made.mono)


@given(
    ahead=st.floats(-3600, 3600), delays=st.lists(st.floats(0, 4), min_size=8, max_size=8), interval=st.sampled_from([10.0, 60.0, 300.0])
)
def test_a_wrong_clock_is_known_after_three_reports(ahead: float, delays: list[float], interval: float) -> None:
    clocks, asked = clock(ahead)
    for age, delay in list(zip(ages(clocks, asked, delays, interval=interval), delays, strict=True))[2:]:
        assert delay - TOLERATED - 5 <= age <= delay + TOLERATED + 5


def test_a_reporter_whose_clock_is_wrong_is_known_too() -> None:
    clocks, asked = clock()
    assert ages(clocks, asked, [0.0] * 4, reporter_ahead=-1200.0) == [1200.0, 1200.0, 0.0, 0.0]
    assert asked.local("n2", START) == START, "others are taken at their word"


def test_no_report_comes_from_the_future() -> None:
    clocks, asked = clock(-198.0)
    last = asked.local("n1", clocks.true - 45)  # the last one of a node that is silent since
    clocks.true += 110
    assert clocks.wall() - last == 110, "at least as old as it is known here"


def test_late_reports_stay_late() -> None:
    clocks, asked = clock()
    assert ages(clocks, asked, [0.0, 0.0, 0.0, 50.0, 0.0]) == [0.0, 0.0, 0.0, 50.0, 0.0]
    clocks, asked = clock()
    written = [clocks.true + 60 * n for n in range(10)]
    clocks.true += 1000
    assert [clocks.wall() - asked.local("n1", stamp) for stamp in written] == [1000.0 - 60 * n for n in range(10)], (
        "a stalled watch goes on"
    )


def test_a_node_that_falls_silent_grows_old_by_a_wrong_clock_as_well() -> None:
    clocks, asked = clock(448.0)
    ages(clocks, asked, [0.0] * 5)
    last = asked.local("n1", clocks.true)
    clocks.true += 900
    assert clocks.wall() - last == 900


def test_a_clock_that_was_put_right_makes_nothing_younger() -> None:
    clocks, asked = clock(448.0)
    ages(clocks, asked, [0.0] * 5)
    clocks.ahead = 0.0
    assert ages(clocks, asked, [0.0] * 3) == [0.0, 0.0, 0.0]


def metric(stamp: str | None) -> NodeMetric:
    return NodeMetric(metadata=ObjectMeta(name="n1"), status=NodeMetricStatus(update_time=stamp))


@pytest.mark.parametrize("stamp", [None, "", "yesterday"])
def test_what_tells_no_time_stays(stamp: str | None) -> None:
    one = metric(stamp)
    assert ReportTimes(lambda: START)(one) is one


def test_a_report_is_told_by_this_machines_clock() -> None:
    clocks = Clocks(448.0)
    times = ReportTimes(clocks.wall, clocks.mono)
    for _ in range(3):
        taken = times(one := metric(format_time(clocks.true)))
        again = times(one)
        clocks.true += 60
    assert parse_time(taken.status.update_time or "") == clocks.wall() - 60
    assert again.status.update_time == taken.status.update_time, "a list tells the same"
