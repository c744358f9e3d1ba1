"""Times in the form that the API writes them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from koord import seams

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


def now() -> str:
    """The wall clock as a metav1.Time: UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seams.now()))
