"""What a request's target names, whatever its spelling (RP-DKR-02). Pure.

Docker's engine decodes and cleans a path before it looks at it; a call must not miss its hook because it was written otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote_to_bytes

from roles.runtime_proxy.docker.http1 import ProtocolError

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_VERSION = r"(?:/v[0-9.]+)?"
_ROUTES = (
    ("create", re.compile(_VERSION + r"/containers/create/?()")),
    ("start", re.compile(_VERSION + r"/containers/([^/]+)/start/?")),
    ("update", re.compile(_VERSION + r"/containers/([^/]+)/update/?")),
    ("stop", re.compile(_VERSION + r"/containers/([^/]+)/stop.*", re.DOTALL)),
)


@dataclass(frozen=True, slots=True)
class Route:
    """A call with hooks: which one, for which container, and the query's `name`."""

    call: str
    container: str
    name: str


def route(target: str) -> Route | None:
    """Match a request's target by its path, whatever the method; None for everything that has no hooks. Raises ProtocolError."""
    path, _, query = target.partition("?")
    path = clean(path)
    for call, pattern in _ROUTES:
        if match := pattern.fullmatch(path):
            return Route(call, match[1], parse_qs(query).get("name", [""])[0])
    return None


def clean(path: str) -> str:
    """A path decoded once, without host, empty and dot segments. Raises ProtocolError for what cannot be brought to that form."""
    if path == "*":
        return path
    if found := _ABSOLUTE.match(path):
        path = path[found.end() :] or "/"
    if not path.startswith("/"):
        raise ProtocolError(f"the target must be a path: {path[:60]!r}")
    if not path.isascii() or not path.isprintable() or _BAD_ESCAPE.search(path):
        raise ProtocolError(f"the path cannot be decoded: {path[:60]!r}")
    decoded = unquote_to_bytes(path).decode("utf-8", "replace")
    kept: list[str] = []
    for part in decoded.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return "/" + "/".join(kept) + ("/" if kept and decoded.endswith("/") else "")
