"""Quantities against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.quantity import (
    INT64_MAX,
    Quantity,
    QuantityError,
    canonical,
    format_binary,
    format_decimal,
    format_milli,
    multiply_base,
    parse_milli,
    parse_value,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def away(value: Fraction) -> int:
    """Round away from zero."""
    return math.ceil(value) if value >= 0 else math.floor(value)


def saturate(value: int) -> int:
    return max(-INT64_MAX, min(INT64_MAX, value))


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A quantity's text with its exact worth (rounded to a nano as the API does)."""
    whole = draw(st.integers(0, 10 ** draw(st.integers(0, 12))))
    decimals = draw(st.text("0123456789", max_size=11))
    sign = draw(st.sampled_from(["", "", "+", "-"]))
    number = f"{whole}.{decimals}" if decimals else str(whole)
    worth = Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals))
    kind = draw(st.sampled_from(["decimal", "binary", "exponent"]))
    if kind == "decimal":
        suffix = draw(st.sampled_from(sorted(DECIMAL)))
        worth *= Fraction(10) ** DECIMAL[suffix]
    elif kind == "binary":
        suffix = draw(st.sampled_from(sorted(BINARY)))
        worth *= 2 ** BINARY[suffix]
    else:
        exponent = draw(st.integers(-12, 15))
        suffix = f"{draw(st.sampled_from('eE'))}{exponent}"
        worth *= Fraction(10) ** exponent
    nano = Fraction(away(worth * 10**9), 10**9)
    if kind == "binary":
        nano = min(nano, Fraction(INT64_MAX))
    return sign + number + suffix, -nano if sign == "-" else nano


@given(spellings())
@pytest.mark.feature("API-QTY-01")
def test_every_spelling_is_worth_what_it_says(case: tuple[str, Fraction]) -> None:
    text, worth = case
    quantity = Quantity(text)
    assert quantity.as_fraction() == worth
    assert quantity.value() == parse_value(text) == saturate(away(worth))
    assert quantity.milli() == parse_milli(text) == saturate(away(worth * 1000))
    assert quantity.is_integer() == (worth.denominator == 1)


@given(spellings())
def test_canonical_text_is_equal_and_stable(case: tuple[str, Fraction]) -> None:
    quantity = Quantity(case[0])
    text = str(quantity)
    again = Quantity(text)
    assert again == quantity
    assert str(again) == text
    assert hash(again) == hash(quantity)


@given(spellings(), spellings())
def test_arithmetic_and_order_are_those_of_the_numbers(left: tuple[str, Fraction], right: tuple[str, Fraction]) -> None:
    a, b = Quantity(left[0]), Quantity(right[0])
    assert (a + b).as_fraction() == left[1] + right[1]
    assert (a - b).as_fraction() == left[1] - right[1]
    assert (a < b) == (left[1] < right[1])
    assert (a >= b) == (left[1] >= right[1])
    assert (a == b) == (left[1] == right[1])
    assert (-a).as_fraction() == -left[1]
    assert (a * 3).as_fraction() == left[1] * 3


@given(st.integers(-(10**18), 10**18))
def test_formatted_integers_read_back(value: int) -> None:
    assert parse_value(format_decimal(value)) == value
    assert parse_value(format_binary(value)) == value
    milli = value // 1000
    assert parse_milli(format_milli(milli)) == milli


@pytest.mark.feature("API-QTY-01")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("25000", "25k"), ("1500", "1500"), ("1073741824", "1073741824"), ("1024Mi", "1Gi"), ("1000m", "1"), ("1500m", "1500m"),
        ("0.5Gi", "512Mi"), ("1.5", "1500m"), ("1e3", "1e3"), ("10e2", "1e3"), ("0", "0"), ("0Ki", "0"), ("1023Ki", "1023Ki"),
        ("1Ki", "1Ki"), ("0.5Ki", "512"), ("1000Mi", "1000Mi"), ("-1.5", "-1500m"), ("10E", "10E"), ("1000E", "1000E"), ("1E3", "1e3"),
        (".5", "500m"), ("9Ei", "9223372036854775807"), ("0.0000000001", "1n"), ("1e100", "1e60"), ("+5", "5"), (" 5 ", "5"),
        (1.5, "1500m"), (25000, "25k"),
    ],
)  # fmt: skip
def test_canonical_form_of(text: str | int | float, wanted: str) -> None:
    assert canonical(text) == wanted


def test_formats_of_base_units() -> None:
    assert format_milli(1500) == "1500m"
    assert format_milli(2000) == "2"
    assert format_milli(25_000_000) == "25k"
    assert format_binary(1 << 30) == "1Gi"
    assert format_binary(1000) == "1k"
    assert format_decimal(-25000) == "-25k"
    assert format_decimal(0) == format_binary(0) == format_milli(0) == "0"


@pytest.mark.parametrize(
    "bad", ["", " ", "1 Gi", "1K", "ki", "1.2.3", "--1", "1e", "e3", "1e3.5", "0x10", "NaN", "inf", "1_000", "१", "1\n2", "9" * 300]
)
def test_bad_text_is_named(bad: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity"):
        Quantity(bad)
    with pytest.raises(QuantityError):
        parse_milli(bad)


@pytest.mark.parametrize("bad", [True, None, [], {}, float("nan"), float("inf")])
def test_other_types_are_refused(bad: object) -> None:
    for parse in (Quantity, parse_milli, parse_value):
        with pytest.raises(QuantityError):
            parse(bad)  # type: ignore[operator]


@given(st.text(max_size=12))
def test_parsing_never_crashes(text: str) -> None:
    try:
        quantity = Quantity(text)
    except QuantityError as error:
        message = str(error)
    else:
        message = repr(quantity)
    assert message.startswith((repr(text)[:20], "Quantity("))


def test_what_is_too_large_for_int64_saturates() -> None:
    assert parse_milli("9E") == INT64_MAX
    assert parse_milli(1 << 62) == INT64_MAX
    assert parse_value("-10E") == -INT64_MAX


@given(st.integers(-(1 << 62), 1 << 62), st.floats(allow_nan=True, allow_infinity=True))
def test_multiplication_truncates_and_never_leaves_int64(base: int, factor: float) -> None:
    product = multiply_base(base, factor)
    assert -INT64_MAX <= product <= INT64_MAX
    exact = float(base) * factor
    if abs(exact) < 2**62:
        assert product == math.trunc(exact)


def test_multiplication_is_the_double_product() -> None:
    assert multiply_base(1000, 0.1) == 100
    assert multiply_base(3, 1.1) == 3
    assert multiply_base(100, 0.29) == 28  # 0.29 × 100 is 28.999… as doubles
    assert multiply_base(-7, 0.5) == -3
