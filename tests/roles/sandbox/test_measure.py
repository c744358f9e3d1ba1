"""Conclusions of the demo from samples, and the report and chart made of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.sandbox import measure
from roles.sandbox.measure import PhaseResult, Sample, StepResult
from roles.sandbox.report import page, plot, svg, text


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
        Sample(begin + s.time, s.node_busy, s.be_ns, None, s.be_ns, s.be_ns, 50_000, 800) for s in samples([(0, 1.0), (10.6, 0.2)])
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
    assert "the manager offered 12 CPUs to batch pods on them" in out
    assert "latency.svg" in out
    assert "Every process was ended" in out
    assert "service alone, with batch under koord, with batch, unmanaged" in out


def test_batch_cpu_counts_growth_only() -> None:
    made = PhaseResult("unmanaged", 0, 4)
    made.samples = [Sample(t, 0.0, batch_ns=ns) for t, ns in ((0, 0), (1, 10**9), (2, 2 * 10**9), (3, 10**9), (4, 2 * 10**9))]
    assert made.batch_cores() == pytest.approx(3 / 4)


def noisy(kind: str, begin: float, levels: list[float], *, quiet: float = 0.5) -> PhaseResult:
    """A phase in which others used so many cores in each second, beside pods that use a fifth and a sandbox that uses a tenth."""
    made = phase(kind, begin)
    made.quiet_cores, made.samples, busy = quiet, [], 0.0
    for second in range(len(levels) + 1):
        made.samples.append(Sample(begin + second, busy, pods_ns=int(second * 0.2e9), own_ns=int(second * 0.1e9)))
        busy += 0.3 + (levels[second] if second < len(levels) else 0.0)
    return made


def test_noise_is_judged_by_the_second() -> None:
    """A mean over the phase hides two seconds of somebody else's work, and a 99th percentile does not."""
    loud = noisy("koord", 100, [0.1] * 18 + [1.6, 1.6])
    assert loud.others() == pytest.approx([0.1] * 18 + [1.6, 1.6])
    assert sum(loud.others()) / 20 < 0.5
    assert loud.noisy_seconds() == 2
    assert loud.disturbed()
    assert not noisy("koord", 0, [0.1] * 20).disturbed()
    assert not noisy("koord", 0, [0.1] * 18 + [1.6, 1.6], quiet=0).disturbed(), "nobody looked what is quiet here"


def test_of_two_tries_the_quieter_one_counts() -> None:
    loud, quiet, cut = noisy("koord", 0, [1.6] * 5 + [0.1] * 15), noisy("koord", 100, [0.1] * 20), noisy("koord", 200, [0.0] * 20)
    cut.steps = []
    assert measure.quieter(None, loud) is loud
    assert measure.quieter(loud, quiet) is quiet
    assert measure.quieter(quiet, loud) is quiet
    assert measure.quieter(loud, cut) is loud, "a try that did not come to its end says nothing"


def test_disturbed_phases_are_not_to_be_trusted() -> None:
    quiet, loud = noisy("alone", 0, [0.1] * 20), noisy("koord", 100, [1.6] * 4 + [0.1] * 16)
    loud.attempts = 3
    told = text.verdict(FACTS, [quiet, loud])
    assert (
        "Do not trust these figures: others used the CPUs in 4 of 20 seconds of the phase “with batch under koord”, after 3 tries" in told
    )
    assert "Do not trust" not in text.verdict(FACTS, [quiet])
    busy = replace(FACTS, others_at_start=1.9)
    assert "Do not trust these figures: others used 1.9 of 2 CPUs before the start" in text.verdict(busy, [quiet])


def test_slower_alone_than_under_koord_is_no_result() -> None:
    alone, koord = phase("alone", 0), phase("koord", 100)
    alone.steps = [step(300, 311.7)]
    koord.steps = [step(300, 35.1)]
    assert measure.contradiction([alone, koord])
    assert "Do not trust these figures: the service was slower alone" in text.verdict(FACTS, [alone, koord])
    koord.steps = [step(300, 400.0)]
    assert not measure.contradiction([alone, koord])


def test_the_verdict_names_figures_and_requests() -> None:
    alone, koord, without = phase("alone", 0), phase("koord", 100), phase("unmanaged", 200)
    alone.steps, koord.steps, without.steps = [step(300, 4.0)], [step(300, 5.0)], [step(300, 80.0)]
    koord.request_milli = without.request_milli = 320
    koord.work_units, without.work_units = 600, 1200
    told = text.verdict(FACTS, [alone, without, koord])
    assert "Alone, the service answered 300 requests/s with a p99 of 4.0 ms." in told
    assert "Beside 3 batch pods that request 320m of CPU each, unmanaged, it was 80.0 ms." in told
    assert "Under koord, beside the same jobs with the same requests, it was 5.0 ms, and they did 50 % of that work." in told
    without.request_milli = 500
    assert "the same jobs" not in text.verdict(FACTS, [alone, without, koord]), "other requests are other jobs"


def test_the_page_is_one_file() -> None:
    phases = [phase("alone", 0), phase("koord", 100)]
    told = text.render(FACTS, phases, "latency.svg")
    made = page.page("A <title>", told, plot.svg(phases, 2))
    root = ET.fromstring(made.removeprefix("<!doctype html>"))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 1
    assert len(list(root.iter("table"))) == 3
    assert not re.search(r"(src|href)=|<script|url\(|@import", made), "nothing is fetched from anywhere"
    assert "A &lt;title&gt;" in made
    assert root.find(".//p[@class='verdict']") is not None


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
