"""String formats that a custom resource's schema may ask for. Unknown formats are accepted, as kube-apiserver does."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date

from koord.apiserver.schema.timeformat import canonical_time

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
