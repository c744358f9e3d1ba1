"""Decaying histograms: buckets, decay, percentiles, checkpoints."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.histogram import (
    AGENT_CPU,
    AGENT_MEMORY,
    RECOMMENDER_CPU,
    RECOMMENDER_MEMORY,
    BucketOptions,
    CheckpointError,
    DecayingHistogram,
)

HOUR = 3600.0
NOW = 1_700_000_000.0
samples = st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 30 * 24 * HOUR)), min_size=1, max_size=30)


def histogram(options: BucketOptions = AGENT_CPU, half_life: float = 12 * HOUR) -> DecayingHistogram:
    return DecayingHistogram(options, half_life)


def filled(values: list[tuple[float, float]]) -> DecayingHistogram:
    made = histogram()
    for value, age in values:
        made.add(value, 1.0, NOW + age)
    return made


@pytest.mark.feature("KLO-PRED-01")
def test_bucket_counts_of_the_specification() -> None:
    assert (AGENT_CPU.count, AGENT_MEMORY.count) == (158, 205)
    assert RECOMMENDER_CPU.count == RECOMMENDER_MEMORY.count == 176


@pytest.mark.parametrize("options", [AGENT_CPU, AGENT_MEMORY, RECOMMENDER_CPU, RECOMMENDER_MEMORY])
@given(share=st.floats(0, 1.5))
def test_a_value_lies_in_its_bucket(options: BucketOptions, share: float) -> None:
    value = options.maximum * share**8
    bucket = options.index(value)
    assert 0 <= bucket < options.count
    slack = 1 + 1e-9
    assert options.start(bucket) <= value * slack
    if bucket < options.count - 1:
        assert value <= options.end(bucket) * slack


def test_bucket_bounds_grow_by_the_ratio() -> None:
    assert AGENT_CPU.start(0) == 0.0
    assert AGENT_CPU.start(1) == pytest.approx(0.025)
    assert AGENT_CPU.start(2) == pytest.approx(0.025 * 2.05)
    assert AGENT_CPU.end(AGENT_CPU.count - 1) == AGENT_CPU.start(AGENT_CPU.count - 1)
    assert AGENT_CPU.index(1e300) == AGENT_CPU.count - 1
    for options in ({"first": 0, "maximum": 1}, {"first": 1, "maximum": 2, "ratio": 1}, {"first": 2, "maximum": 1}):
        with pytest.raises(ValueError, match="no buckets"):
            BucketOptions(**options)


@pytest.mark.feature("KLO-PRED-01")
def test_an_idle_item_predicts_the_end_of_the_first_bucket() -> None:
    cpu, memory = histogram(AGENT_CPU), histogram(AGENT_MEMORY)
    assert cpu.percentile(0.95) == 0.0
    for made in (cpu, memory):
        made.add(0.0, 1.0, NOW)
    assert math.trunc(cpu.percentile(0.95) * 1000) == 25
    assert memory.percentile(0.98) == 5 * 2**20


@given(samples)
def test_percentiles_rise_and_bound_the_samples(values: list[tuple[float, float]]) -> None:
    made = filled(values)
    shares = [0.6, 0.9, 0.95, 0.98, 1.0]
    found = made.percentiles(shares)
    assert found == sorted(found)
    assert found == [made.percentile(share) for share in shares]
    assert made.percentiles(reversed(shares)) == found[::-1]
    assert found[-1] <= AGENT_CPU.end(AGENT_CPU.index(max(value for value, _ in values)))


def test_a_clock_that_was_ahead_does_not_outweigh_what_comes_after() -> None:
    made = histogram()
    for k in range(10):
        made.add(0.1, 1.0, NOW + 14 * 24 * HOUR + 60 * k)
    for k in range(1440):
        made.add(8.0, 1.0, NOW + 60 * k)
    assert made.percentile(0.95) > 7


@given(samples, samples)
def test_what_was_added_can_be_taken_back(kept: list[tuple[float, float]], gone: list[tuple[float, float]]) -> None:
    made = filled(kept + gone)
    for value, age in gone:
        made.subtract(value, 1.0, NOW + age)
    wanted = filled(kept)
    scale = 2.0 ** ((wanted.reference - made.reference) / made.half_life)
    assert made.total_weight == pytest.approx(wanted.total_weight * scale, rel=1e-6, abs=1e-9 * filled(kept + gone).total_weight)
    assert made.total_weight >= 0


@pytest.mark.feature("KLO-PRED-01")
def test_old_samples_fade_by_half() -> None:
    made = histogram()
    made.add(10.0, 1.0, NOW)
    made.add(1.0, 1.0, NOW + 12 * HOUR)
    # a third of the weight is old: p60 sees the new value, p95 the old one
    assert made.percentile(0.6) == pytest.approx(1.0, rel=0.06)
    assert made.percentile(0.95) == pytest.approx(10.0, rel=0.06)
    made.add(1.0, 1.0, NOW + 10 * 24 * HOUR)
    assert made.percentile(0.95) == pytest.approx(1.0, rel=0.06)


@given(samples, samples)
def test_merging_is_adding(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> None:
    merged, other = filled(a), filled(b)
    merged.merge(other)
    both = filled(a + b)
    assert merged.total_weight == pytest.approx(both.total_weight * 2.0 ** ((both.reference - merged.reference) / both.half_life), rel=1e-9)


def test_only_like_histograms_merge() -> None:
    with pytest.raises(ValueError, match="cannot be merged"):
        histogram().merge(histogram(half_life=1.0))
    with pytest.raises(ValueError, match="cannot be merged"):
        histogram().merge(histogram(AGENT_MEMORY))


@pytest.mark.feature("KLO-PRED-02")
@given(samples)
def test_a_checkpoint_reads_back(values: list[tuple[float, float]]) -> None:
    made = filled(values)
    checkpoint = json.loads(json.dumps(made.to_checkpoint()))
    again = DecayingHistogram.from_checkpoint(AGENT_CPU, made.half_life, checkpoint)
    assert again.reference == made.reference
    assert again.total_weight == pytest.approx(made.total_weight)
    assert again.to_checkpoint()["bucketWeights"] == checkpoint["bucketWeights"]
    assert max(checkpoint["bucketWeights"].values()) == 10_000


def test_an_empty_checkpoint() -> None:
    checkpoint = histogram().to_checkpoint()
    assert checkpoint == {"referenceTimestamp": "0001-01-01T00:00:00Z", "bucketWeights": {}, "totalWeight": 0.0}
    assert DecayingHistogram.from_checkpoint(AGENT_CPU, HOUR, checkpoint).empty
    assert DecayingHistogram.from_checkpoint(AGENT_CPU, HOUR, {}).percentile(0.5) == 0.0


@pytest.mark.feature("KLO-PRED-02")
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"totalWeight": -1}, "totalWeight"), ({"totalWeight": "1"}, "totalWeight"), ({"totalWeight": float("nan")}, "totalWeight"),
        ({"totalWeight": 1e308}, "totalWeight"),
        ({"bucketWeights": []}, None), ({"bucketWeights": [1]}, "a map is wanted"), ({"bucketWeights": {"158": 1}}, "not in 0..157"),
        ({"bucketWeights": {"-1": 1}}, "not in"), ({"bucketWeights": {"x": 1}}, "not in"), ({"bucketWeights": {"1": -1}}, "at least 0"),
        ({"bucketWeights": {"1": 1.5}}, "at least 0"), ({"referenceTimestamp": "yesterday"}, "referenceTimestamp"),
        ({"referenceTimestamp": 5}, "referenceTimestamp"),
    ],
)  # fmt: skip
def test_a_bad_checkpoint_is_named(bad: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert DecayingHistogram.from_checkpoint(AGENT_CPU, HOUR, bad).empty
        return
    with pytest.raises(CheckpointError, match=said):
        DecayingHistogram.from_checkpoint(AGENT_CPU, HOUR, bad)


@pytest.mark.parametrize(
    ("value", "weight", "time"), [(-1, 1, 0), (math.nan, 1, 0), (math.inf, 1, 0), (1, -1, 0), (1, math.nan, 0), (1, 1, math.inf)]
)
def test_no_sample_is_refused(value: float, weight: float, time: float) -> None:
    with pytest.raises(ValueError, match="no sample"):
        histogram().add(value, weight, time)


def test_half_life_must_be_positive() -> None:
    with pytest.raises(ValueError, match="half-life"):
        histogram(half_life=0)
