"""Resource vectors: laws of the arithmetic, spelling, amplification."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting import resources
from koord.api.quantity import QuantityError

NAMES = ["cpu", "memory", "kubernetes.io/batch-cpu", "nvidia.com/gpu", "hugepages-2Mi"]
vectors = st.dictionaries(st.sampled_from(NAMES), st.integers(-(10**15), 10**15))
positive = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 10**15))


@given(vectors, vectors, vectors)
def test_sums_and_differences(a: dict[str, int], b: dict[str, int], c: dict[str, int]) -> None:
    assert resources.equal(resources.add(a, b), resources.add(b, a))
    assert resources.equal(resources.add(resources.add(a, b), c), resources.sum_([a, b, c]))
    assert resources.equal(resources.sub(resources.add(a, b), b), a)
    assert not any(resources.sub(a, a).values())
    before = dict(a)
    resources.max_(a, b)
    assert a == before


@given(positive, positive)
def test_the_larger(a: dict[str, int], b: dict[str, int]) -> None:
    larger = resources.max_(a, b)
    assert resources.fits(a, larger) == resources.fits(b, larger) == []
    for name in a.keys() & b.keys():
        assert larger[name] == max(a[name], b[name])


@given(positive, positive)
def test_what_does_not_fit_is_named(request: dict[str, int], free: dict[str, int]) -> None:
    lacking = resources.fits(request, free)
    assert lacking == sorted(lacking)
    assert set(lacking) == {name for name in request if request[name] > free.get(name, 0)}
    if not lacking:
        assert all(value >= 0 for value in resources.sub(free, request).values())


@given(positive)
def test_text_reads_back(vector: dict[str, int]) -> None:
    assert resources.parse(resources.format(vector)) == vector


def test_base_units() -> None:
    asked = {"cpu": "1500m", "memory": "1Gi", "kubernetes.io/batch-cpu": "1500", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": 1}
    vector = resources.parse(asked)
    assert vector == {"cpu": 1500, "memory": 1 << 30, "kubernetes.io/batch-cpu": 1500, "hugepages-2Mi": 4 << 20, "nvidia.com/gpu": 1}
    assert resources.format(vector) == {**asked, "nvidia.com/gpu": "1"}
    assert resources.parse(None) == {}
    assert resources.format_value("memory", 25_000) == "25000"
    assert resources.format_value("kubernetes.io/batch-cpu", 25_000) == "25k"
    with pytest.raises(QuantityError, match="lots"):
        resources.parse({"cpu": "lots"})


@pytest.mark.feature("API-AMP-01")
@pytest.mark.parametrize(
    ("value", "ratio", "wanted"),
    [
        (1000, 1.5, 1500),
        (1001, 1.5, 1502),
        (1000, 1.0, 1000),
        (1000, 0.5, 1000),
        (1000, -2, 1000),
        (1000, math.nan, 1000),
        (0, 2, 0),
        (3, 1.1, 4),
    ],
)
def test_amplify(value: int, ratio: float, wanted: int) -> None:
    assert resources.amplify_value(value, ratio) == wanted


@pytest.mark.feature("API-AMP-01")
@given(positive, st.floats(1, 100))
def test_amplification_never_loses(vector: dict[str, int], ratio: float) -> None:
    amplified = resources.amplify(vector, dict.fromkeys(vector, ratio))
    for name, value in vector.items():
        assert value <= amplified[name] <= math.ceil(value * ratio) + 1
    assert resources.amplify(vector, {}) == vector


def test_selections_keep_what_is_there() -> None:
    assert resources.non_negative({"cpu": -1, "memory": 2}) == {"cpu": 0, "memory": 2}
    assert resources.only({"cpu": 1, "memory": 2}, ["memory", "x"]) == {"memory": 2}
