"""Conclusions of the demo from samples, and the report and chart made of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.sandbox import measure
from roles.sandbox.measure import PhaseResult, Sample, StepResult
from roles.sandbox.report import plot, svg, text


def samples(levels: list[tuple[float, float]], *, quota: list[tuple[float, int]] | None = None) -> list[Sample]:
    """BE cores as (from time, level) pieces, sampled every 50 ms over 20 s."""
    made, ns = [], 0.0
    for i in range(401):
        time = i * 0.05
        level = [value for begin, value in levels if begin <= time][-1]
        ns += level * 0.05e9
        q = [value for begin, value in quota if begin <= time][-1] if quota else None
        made.append(Sample(time, node_busy=time, be_ns=int(ns), be_quota_us=q))
    return made


def test_reaction_counts_to_the_end_of_the_first_quiet_window() -> None:
    found = measure.reaction(samples([(0, 1.0), (10.6, 0.2)]), 10.0)
    assert found is not None
    assert found.before_cores == pytest.approx(1.0, abs=0.02)
    assert found.after_cores == pytest.approx(0.2, abs=0.02)
    assert found.seconds is not None
    assert 0.65 <= found.seconds <= 0.85


def test_a_short_dip_is_no_reaction() -> None:
    found = measure.reaction(samples([(0, 1.0), (10.5, 0.1), (10.75, 1.0), (13.0, 0.3)]), 10.0)
    assert found is not None
    assert found.seconds is not None
    assert found.seconds > 3.0


def test_no_fall_is_told_as_such() -> None:
    found = measure.reaction(samples([(0, 1.0), (10.5, 0.95)]), 10.0)
    assert found is not None
    assert found.seconds is None


def test_no_baseline_no_reaction() -> None:
    assert measure.reaction(samples([(0, 0.0)]), 10.0) is None


def test_first_cut_of_the_quota() -> None:
    found = measure.reaction(samples([(0, 1.0), (10.6, 0.2)], quota=[(0, -1), (5, 120_000), (10.4, 30_000)]), 10.0)
    assert found is not None
    assert found.quota_seconds == pytest.approx(0.4, abs=0.06)


def step(rate: float, p99: float) -> StepResult:
    return StepResult(rate, 5, 100, 0, 1.0, 2.0, p99, p99 + 1)


def test_steps_of_one_rate_merge_to_their_worst() -> None:
    merged = measure.merge_steps([step(60, 3), step(300, 9), step(60, 5)])
    assert [(s.rate, s.p99, s.count) for s in merged] == [(60, 5, 200), (300, 9, 100)]


def phase(kind: str, begin: float) -> PhaseResult:
    made = PhaseResult(kind, begin, begin + 20, steps=[step(60, 3), step(300, 9)])
    made.samples = [
        Sample(begin + s.time, s.node_busy, s.be_ns, None, s.be_ns, s.be_ns, 50_000, None, 800) for s in samples([(0, 1.0), (10.6, 0.2)])
    ]
    made.step_times = [(begin, 0, 60.0), (begin + 10, 1, 300.0)]
    made.ticks = [measure.Tick(begin + i, 0, 60, 0, 1.5, 3.0 + i) for i in range(20)]
    made.work_units, made.batch_pods = 1234, 3
    return made


FACTS = text.Facts("T", "today", "6.1", 2, 2**34, 1, 3, 9, 12_000, 75, "1200m", 10_000, True, ("a note",))


def test_report_says_what_was_measured() -> None:
    phases = [phase("alone", 0), phase("koord", 100), phase("unmanaged", 200)]
    out = text.render(FACTS, phases, "latency.svg")
    assert out.index("service alone") < out.index("with batch, unmanaged") < out.index("with batch under koord")
    assert "**800 milli-CPU**" in out
    assert re.search(r"\| 1 \| 1\.00 \| 0\.20 \| 0\.[67]\d s \|", out)
    assert "latency.svg" in out
    assert "Every process was ended" in out
    assert "service alone, with batch under koord, with batch, unmanaged" in out


def test_batch_cpu_counts_growth_only() -> None:
    made = PhaseResult("unmanaged", 0, 4)
    made.samples = [Sample(t, 0.0, batch_ns=ns) for t, ns in ((0, 0), (1, 10**9), (2, 2 * 10**9), (3, 10**9), (4, 2 * 10**9))]
    assert made.batch_cores() == pytest.approx(3 / 4)


def test_a_loud_neighbour_is_told() -> None:
    quiet, loud = phase("alone", 0), phase("koord", 100)
    quiet.samples = [Sample(t, node_busy=0.3 * t, pods_ns=0) for t in range(5)]
    loud.samples = [Sample(t, node_busy=1.5 * t, pods_ns=int(t * 0.2e9)) for t in range(5)]
    assert loud.rest_cores() == pytest.approx(1.3)
    out = text.render(FACTS, [quiet, loud], None)
    assert "disturbed the measurement**: with batch under koord (1.30)" in out
    assert "disturbed" not in text.render(FACTS, [quiet], None)


def test_report_without_a_local_node() -> None:
    facts = text.Facts("T", "today", "6.1", 0, 0, 0, 3, 9, 12_000, 75, "1200m", 0, None, ("not root",))
    out = text.render(facts, [], None)
    assert "not root" in out
    assert "p99" not in out
    assert "0 CPUs" not in out  # nothing was looked at: nothing is claimed


def test_a_failed_restore_is_not_hidden() -> None:
    facts = text.Facts("T", "today", "6.1", 2, 2**34, 1, 0, 0, 0, 75, "1", 0, False)
    assert "could not be removed" in text.render(facts, [], None)


def test_chart_is_well_formed_and_carries_the_names() -> None:
    root = ET.fromstring(plot.svg([phase("alone", 0), phase("koord", 100)], 2))
    words = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"p50", "p99", "service alone", "with batch under koord", "batch pods"} <= words
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) >= 6


POINTS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=30)


@given(POINTS, st.booleans())
def test_any_points_make_a_chart(points: list[tuple[float, float]], log: bool) -> None:
    chart = svg.Chart("<&>", "x", "y", [svg.Line("l", points)], log_y=log)
    ET.fromstring(svg.document([chart]))


@given(st.floats(1e-9, 1e12))
def test_nice_above_is_above_and_near(value: float) -> None:
    assert value * (1 - 1e-6) <= svg.nice_above(value) <= value * 2.5 * (1 + 1e-6)
