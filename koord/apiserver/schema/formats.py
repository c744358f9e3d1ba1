"""The formats of strings that schemas of custom resources may ask for. Kubernetes knows these; any other is as good as none."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

from koord.apiserver.schema.builtin import canonical_time, reads


def _like(pattern: str, flags: int = re.ASCII) -> Callable[[str], bool]:
    """Whether a text is like the pattern from end to end."""
    compiled = re.compile(pattern, flags)
    return lambda text: compiled.fullmatch(text) is not None


_UNITS = "ns|us|µs|μs|ms|s|m|h"
_NUMBER = r"(\d+(\.\d*)?|\.\d+)"
_duration = _like(rf"[+-]?(0|({_NUMBER}({_UNITS}))+)")
# durations may also be said in days and weeks, with blanks ("3 days")
_long_duration = _like(
    r"\d+\s*(ns|us|ms|s|m|h|d|w|nano(second)?s?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?)", re.IGNORECASE | re.ASCII
)
_day = _like(r"\d{4}-\d\d-\d\d")
_day_exists = reads(date.fromisoformat)
_host = _like(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*")
_address = reads(ipaddress.ip_address)
_network = reads(partial(ipaddress.ip_network, strict=False))
_prefix = _like(r"\d{1,3}")
_octet = r"(0|[1-9]\d?|1\d\d|2[0-4]\d|25[0-5])"
_UUID = r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?%s[0-9a-fA-F]{3}-?%s[0-9a-fA-F]{3}-?[0-9a-fA-F]{12}"
_ANY = "[0-9a-fA-F]"

# -- URIs ----------------------------------------------------------------------------------------------------------------------------

_ESCAPES = r"(?:[^%]|%[0-9a-fA-F]{2})*"
_escaped = _like(_ESCAPES, re.ASCII | re.DOTALL)
_scheme = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_user = _like(r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*")
# a name, or an IPv6 address in brackets, with or without a port
_place = _like(r"""(?:\[[^\]\s]*\]|(?:[^\x00-\x7f]|[a-zA-Z0-9._~!$&'()*+,;=<>"-]|%[89a-fA-F][0-9a-fA-F])*)(?::\d*)?""")


def uri(text: str) -> bool:
    """Whether a text is an absolute URI, or the absolute path of one."""
    if not text or any(char < " " or char == "\x7f" for char in text):
        return False
    found = _scheme.match(text)
    rest = text[found.end() :] if found else text
    rest = rest.partition("?")[0]
    if not rest.startswith("/"):
        return found is not None or text == "*"
    if found is not None and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        user, at, place = authority.rpartition("@")
        return bool((not at or _user(user)) and _place(place) and _escaped(slash + path))
    return _escaped(rest)


# -- mail ----------------------------------------------------------------------------------------------------------------------------

_ATOM = r"(?:[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]|[^\x00-\x7f])+"
_QUOTED = r'"(?:[^"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*"'
_WORDS = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
_MAIL = rf"{_WORDS}@(?:{_ATOM}(?:\.{_ATOM})*|\[[0-9a-fA-F.:]+\])"
# no two repetitions of blanks stand side by side: a long text is read in linear time
_mail = _like(rf"{_MAIL}|(?:{_WORDS}(?:\s+{_WORDS})*\s*)?<\s*{_MAIL}\s*>")

# -- numbers with a check ------------------------------------------------------------------------------------------------------------

_isbn10, _isbn13 = _like(r"\d{9}[\dX]"), _like(r"\d{13}")
# the first digits that say whose card it is, and how many there are
_card = _like(
    r"4\d{12}(\d{3})?|5[1-5]\d{14}|2(2[2-9]|[3-6]\d|7[01])\d{13}|2720\d{12}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|6(011|5\d\d)\d{12}|6[27]\d{14}"
    r"|(2131|1800|35\d{3})\d{11}"
)


def _isbn(length: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        digits = re.sub(r"[\s-]", "", text)
        if length == 10:
            return _isbn10(digits) and sum((10 - at) * (10 if d == "X" else int(d)) for at, d in enumerate(digits)) % 11 == 0
        return _isbn13(digits) and sum((1, 3)[at % 2] * int(d) for at, d in enumerate(digits)) % 10 == 0

    return check


def _credit_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]", "", text)
    doubled = sum(int(d) if at % 2 == 0 else sum(divmod(2 * int(d), 10)) for at, d in enumerate(reversed(digits)))
    return _card(digits) and doubled % 10 == 0


# -- all ---------------------------------------------------------------------------------------------------------------------------

_isbns = _isbn(10), _isbn(13)


def _cidr(text: str) -> bool:
    address, _, prefix = text.partition("/")
    return _prefix(prefix) and "%" not in address and _network(text)


_FORMATS: dict[str, Callable[[str], bool]] = {
    "bsonobjectid": _like(r"[0-9a-fA-F]{24}"),
    "byte": reads(partial(base64.b64decode, validate=True)),
    "cidr": _cidr,
    "creditcard": _credit_card,
    "date": lambda text: _day(text) and _day_exists(text),
    "datetime": lambda text: canonical_time(text, micro=False) is not None,
    "duration": lambda text: _duration(text) or _long_duration(text),
    "email": lambda text: _mail(text.strip()),
    "hexcolor": _like(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": lambda text: len(text) <= 255 and _host(text),
    "ipv4": lambda text: "." in text and "%" not in text and _address(text),
    "ipv6": lambda text: ":" in text and "%" not in text and _address(text),
    "isbn": lambda text: any(check(text) for check in _isbns),
    "isbn10": _isbns[0],
    "isbn13": _isbns[1],
    "mac": _like(r"|".join(rf"{pair}(?:{sign}{pair}){{{more}}}" for pair in ("[0-9a-fA-F]{2}",) for sign in ":-" for more in (5, 7, 19))
                 + r"|" + r"|".join(rf"[0-9a-fA-F]{{4}}(?:\.[0-9a-fA-F]{{4}}){{{more}}}" for more in (2, 3, 9))),
    "password": lambda text: True,
    "rgbcolor": _like(rf"rgb\(\s*{_octet}\s*,\s*{_octet}\s*,\s*{_octet}\s*\)"),
    "ssn": _like(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": uri,
    "uuid": _like(_UUID % (_ANY, _ANY)),
    "uuid3": _like(_UUID % ("3", _ANY)),
    "uuid4": _like(_UUID % ("4", "[89abAB]")),
    "uuid5": _like(_UUID % ("5", "[89abAB]")),
}  # fmt: skip


def of(form: Any) -> Callable[[str], bool] | None:
    """The check of a format, None for one that is not known. Hyphens in its name do not count."""
    return _FORMATS.get(form.replace("-", "")) if isinstance(form, str) else None
