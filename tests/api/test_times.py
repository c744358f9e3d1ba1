"""Timestamps and Go durations."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.times import TimeError, format_duration, format_micro_time, format_time, parse_duration, parse_duration_ns, parse_time


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_timestamps_read_back(seconds: int) -> None:
    text = format_time(seconds)
    assert parse_time(text) == seconds
    assert len(text) == 20


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-01-01T00:00:00Z", 1704067200),
        ("2024-01-01T02:00:00+02:00", 1704067200),
        ("2024-01-01T00:00:00.25Z", 1704067200.25),
        ("2023-12-31T23:00:00.123456789-01:00", 1704067200.123456789),
    ],
)
def test_timestamps(text: str, wanted: float) -> None:
    assert parse_time(text) == wanted


def test_micro_time() -> None:
    assert format_micro_time(1704067200.25) == "2024-01-01T00:00:00.250000Z"
    assert parse_time(format_micro_time(1704067200.25)) == datetime(2024, 1, 1, 0, 0, 0, 250_000, UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-13-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "now",
        "2024-01-01T00:00:00",
        "2024-01-01T00:00:00+99:00",
        "20240101T000000Z",
    ],
)
def test_bad_timestamps(text: str) -> None:
    with pytest.raises(TimeError, match="is not a timestamp"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("24h", 86400, "24h0m0s"), ("5m0s", 300, "5m0s"), ("1h30m", 5400, "1h30m0s"), ("0", 0, "0s"), ("0s", 0, "0s"),
        ("1.5s", 1.5, "1.5s"), ("1us", 1e-6, "1µs"),
        ("500ms", 0.5, "500ms"), ("-2m", -120, "-2m0s"), ("+1s", 1, "1s"), (".5s", 0.5, "500ms"), ("1µs", 1e-6, "1µs"),
        ("100ns", 1e-7, "100ns"), ("1h0.5s", 3600.5, "1h0m0.5s"),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float, canonical: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == canonical


@given(st.integers(-(10**15), 10**15))
def test_durations_read_back(nanoseconds: int) -> None:
    assert parse_duration_ns(format_duration(nanoseconds / 1e9)) == pytest.approx(nanoseconds, rel=1e-9, abs=1)


@pytest.mark.parametrize("text", ["", "5", "-", "h", "1d", "1h 5m", "1.s.", "s1", "0x1s", "1e3s", "9" * 30 + "h"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(TimeError, match="is not a duration"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_nothing_crashes(text: str) -> None:
    for parse in (parse_time, parse_duration):
        with contextlib.suppress(TimeError):
            parse(text)


@given(st.text("0123456789-:TZtW. +٢", min_size=20, max_size=20) | st.datetimes().map(lambda at: f"{at:%Y-%m-%dT%H:%M:%S}Z"))
def test_the_usual_spelling_is_read_as_any_other(text: str) -> None:
    def read(text: str) -> float | str:
        try:
            return parse_time(text)
        except TimeError as error:
            return str(error).partition(" is ")[2]

    assert read(text) == read(f"{text[:-1]}z") if text.endswith("Z") else True
