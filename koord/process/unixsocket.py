"""Unix sockets as gRPC and users name them."""

from __future__ import annotations

import os
from urllib.parse import quote


def target(path: str) -> str:
    """A socket's path as gRPC takes it, to call and to listen: a URI, in which `%`, `?` and `#` of a name mean something else, and what
    follows two slashes is a host."""
    if path.startswith("//"):
        path = f"/{path.lstrip('/')}"
    return f"unix:{quote(os.fsencode(path))}"


def path_of(text: str) -> str:
    """The path in what users write of a socket: with or without `unix:` or `unix://`."""
    return text.removeprefix("unix:").removeprefix("//") if text.startswith("unix:") else text
