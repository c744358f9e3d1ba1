"""Small texts in table cells."""

from __future__ import annotations

import calendar
import time
from typing import Any

from koord import seams

Obj = dict[str, Any]

UNKNOWN, NONE, UNSET = "<unknown>", "<none>", "<unset>"


def seconds_since(stamp: str | None, at: float | None = None) -> float | None:
    """Seconds from an RFC 3339 time until now; None when there is no time."""
    if not stamp:
        return None
    try:
        moment = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    return (seams.now() if at is None else at) - moment


def human(seconds: float | None) -> str:
    """A duration as kubectl shows ages: two units at most, coarser the longer it is."""
    if seconds is None:
        return UNKNOWN
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total <= 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, hours = divmod(hours, 24)
    if days < 8:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, days = divmod(days, 365)
    if years < 8:
        return f"{years}y{days}d" if days else f"{years}y"
    return f"{years}y"


def ago(stamp: str | None) -> str:
    """Age of a time."""
    return human(seconds_since(stamp))


def age(obj: Obj) -> str:
    """Age of an object."""
    return ago(obj["metadata"].get("creationTimestamp"))


def pairs(labels: Obj | None) -> str:
    """`a=b,c=d`, or <none>."""
    return ",".join(f"{k}={v}" for k, v in sorted((labels or {}).items())) or NONE


def containers(spec: Obj, what: str) -> str:
    """Names or images of the containers of a pod specification."""
    return ",".join(str(c.get(what, "")) for c in spec.get("containers") or ())
