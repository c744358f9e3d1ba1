"""String formats that a custom resource's schema may ask for. Unknown formats are accepted, as kube-apiserver does."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache

from koord import seams
from koord.api.times import format_time

_TIME = re.compile(r"^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)$")
_PLAIN_TIME = re.compile(r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ$")


def canonical_time(text: str, *, micro: bool) -> str | None:
    """RFC 3339 in UTC with whole seconds, or microseconds; None when it is no time."""
    if not micro and _PLAIN_TIME.match(text):
        return text
    found = _TIME.match(text)
    if found is None:
        return None
    try:
        zone = "+00:00" if found.group(8) in "Zz" else found.group(8)
        moment = datetime.fromisoformat(text[:10] + "T" + text[11:19] + zone).astimezone(UTC)
    except ValueError:
        return None
    out = moment.strftime("%Y-%m-%dT%H:%M:%S")
    if micro:
        out += "." + ((found.group(7) or ".")[1:] + "000000")[:6]
    return out + "Z"


_stamp = lru_cache(maxsize=16)(format_time)


def now() -> str:
    """The wall clock as a metav1.Time: UTC, whole seconds."""
    return _stamp(int(seams.now()))


_DURATION = re.compile(r"^[+-]?(0|(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))*)$")
_UUID = re.compile(r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$")
_HOST = re.compile(r"^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$")
# strfmt's durations also know days and weeks with blanks ("3 days")
_LONG_DURATION = re.compile(r"^\d+\s*(ns|us|ms|s|m|h|d|w|nano(second)?s?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?)$", re.I)


def _ip(version: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


def _byte(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": lambda text: canonical_time(text, micro=False) is not None,
    "date": _date,
    "duration": lambda text: bool(_DURATION.match(text) or _LONG_DURATION.match(text)),
    "byte": _byte,
    "ipv4": _ip(4),
    "ipv6": _ip(6),
    "cidr": _cidr,
    "uuid": lambda text: bool(_UUID.match(text)),
    "hostname": lambda text: len(text) <= 255 and bool(_HOST.match(text)),
}
