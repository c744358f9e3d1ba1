"""Timestamps (RFC 3339) and Go durations, the two spellings of time on the wire."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache


class TimeError(ValueError):
    """Text that is no timestamp or duration; the message quotes it and says what is accepted."""


_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 timestamp, with or without fractions. Raises TimeError."""
    if len(text) == 20 and text[4] == text[7] == "-" and text[10] == "T" and text[13] == text[16] == ":" and text[19] == "Z":
        try:  # as Kubernetes writes nearly all of them; a third of the time
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            pass  # told below
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise TimeError(f"{text[:64]!r} is not a timestamp such as 2006-01-02T15:04:05Z")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    zone = UTC
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        if offset >= timedelta(days=1):
            raise TimeError(f"{text[:64]!r} is not a timestamp: its offset is a day or more")
        zone = timezone(-offset if sign == "-" else offset)
    try:
        whole = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except ValueError as error:
        raise TimeError(f"{text[:64]!r} is not a timestamp: {error}") from None
    seconds = whole.timestamp()
    return seconds + int(fraction) / 10 ** len(fraction) if fraction else seconds


def format_time(seconds: float) -> str:
    """RFC 3339 UTC with whole seconds, as metav1.Time is written (fractions are cut off)."""
    return datetime.fromtimestamp(int(seconds // 1), UTC).replace(tzinfo=None).isoformat() + "Z"


def format_micro_time(seconds: float) -> str:
    """RFC 3339 UTC with six decimals, as metav1.MicroTime (Leases, events) is written."""
    whole = math.floor(seconds)
    micro = round((seconds - whole) * 1e6)
    if micro == 1_000_000:
        whole, micro = whole + 1, 0
    return f"{_second(whole)}.{micro:06d}Z"


@lru_cache(8)
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).replace(tzinfo=None).isoformat()


_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_INT64_MAX = (1 << 63) - 1


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of a Go duration such as ``1h30m``, ``5m0s``, ``-1.5s`` or ``0``. Raises TimeError."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0
    total, position = 0, 0
    while position < len(body):
        match = _DURATION_PART.match(body, position)
        if match is None or len(text) > 128:
            break
        whole, _, decimals = match.group(1).partition(".")
        unit = _UNIT_NS[match.group(2)]
        total += int(whole or "0") * unit
        if decimals:
            total += int(decimals) * unit // 10 ** len(decimals)
        position = match.end()
    if position == 0 or position < len(body) or total > _INT64_MAX:
        raise TimeError(f"{text[:64]!r} is not a duration such as 1h30m, 5m0s, 500ms or 0")
    return -total if text[0] == "-" else total


def parse_duration(text: str) -> float:
    """Seconds of a Go duration. Raises TimeError."""
    return parse_duration_ns(text) / 1e9


def format_duration(seconds: float) -> str:
    """A duration as Go writes it: 5400 → ``1h30m0s``, 0.5 → ``500ms``, 0 → ``0s``. Precise to the nanosecond."""
    total = round(seconds * 1e9)
    if total == 0:
        return "0s"
    sign, total = ("-", -total) if total < 0 else ("", total)
    if total < 10**9:
        for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)):
            if total >= size:
                return f"{sign}{_decimal(total, size)}{unit}"
    hours, total = divmod(total, _UNIT_NS["h"])
    minutes, total = divmod(total, _UNIT_NS["m"])
    text = f"{_decimal(total, 10**9)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else sign + text


def _decimal(total: int, size: int) -> str:
    whole, rest = divmod(total, size)
    if not rest:
        return str(whole)
    digits = str(rest).zfill(len(str(size)) - 1).rstrip("0")
    return f"{whole}.{digits}"
