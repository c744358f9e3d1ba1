"""CPU sets against Python sets."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet, CPUSetError

cpus = st.frozensets(st.integers(0, 300), max_size=40)


@given(cpus, cpus)
def test_algebra_is_that_of_sets(a: frozenset[int], b: frozenset[int]) -> None:
    x, y = CPUSet(a), CPUSet(b)
    assert list(x | y) == sorted(a | b)
    assert list(x & y) == sorted(a & b)
    assert list(x - y) == sorted(a - b)
    assert list(x ^ y) == sorted(a ^ b)
    assert (x <= y, x < y, x >= y, x > y) == (a <= b, a < b, a >= b, a > b)
    assert (x == y, x.isdisjoint(y)) == (a == b, a.isdisjoint(b))
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert all(cpu in x for cpu in a)
    assert -1 not in x


@given(cpus)
def test_text_reads_back_and_is_shortest(a: frozenset[int]) -> None:
    x = CPUSet(a)
    text = str(x)
    assert CPUSet.parse(text) == x
    assert CPUSet.from_mask(x.mask) == x
    assert hash(CPUSet.parse(text)) == hash(x)
    runs = sum(1 for cpu in a if cpu - 1 not in a)
    assert len([part for part in text.split(",") if part]) == runs


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("\n", []), ("5", [5]), (" 1 , 3-4\n", [1, 3, 4]), ("3,1,2-3", [1, 2, 3]), ("0-0", [0])],
)
def test_parse(text: str, wanted: list[int]) -> None:
    assert list(CPUSet.parse(text)) == wanted


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "1-2-3", "0-999999", "1.5", "0x1", "1;2", "9999999", ","])
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(CPUSetError, match="CPU list"):
        CPUSet.parse(text)


@given(st.text(max_size=12))
def test_parsing_never_crashes(text: str) -> None:
    with contextlib.suppress(CPUSetError):
        assert CPUSet.parse(str(CPUSet.parse(text))) == CPUSet.parse(text)


def test_numbers_out_of_range_are_refused() -> None:
    for bad in (-1, 65_536):
        with pytest.raises(CPUSetError):
            CPUSet([bad])
    with pytest.raises(CPUSetError):
        CPUSet.from_mask(-1)
