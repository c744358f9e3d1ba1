"""A gRPC server at a path of the machine. One whose socket was taken away listens to nobody, and nothing tells: look, and make it anew."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    import asyncio

    import grpc.aio

log = logging.getLogger(__name__)

#: How often the socket is looked for (seconds).
LOOK = 3.0
_GRACE = 1.0
_GONE = (0, 0, 0)


async def stay(
    path: str,
    listen: Callable[[str], Awaitable[grpc.aio.Server]],
    stopping: asyncio.Event,
    *,
    about: str,
    server: grpc.aio.Server | None = None,
) -> None:
    """Listen until stopping, and again where the socket is not there, or another one is. ``server`` listens already.

    ``listen`` raises OSError or RuntimeError while that cannot be; it is tried again.
    """
    own, complaint = identity(path), ""
    try:
        while not stopping.is_set():
            if server is not None and identity(path) != own:
                log.error("the socket %s was taken away or replaced; it is made again", path)
                await server.stop(_GRACE)
                server = None
            if server is None:
                try:
                    server = await listen(path)
                    own, complaint = identity(path), ""
                except (OSError, RuntimeError) as error:
                    if str(error) != complaint:
                        log.error("%s: %s cannot be listened on, it is tried again: %s", about, path, error)
                    complaint = str(error)
            await pause(stopping, LOOK)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if server is not None:
            await server.stop(_GRACE)


def identity(path: str) -> tuple[int, int, int]:
    """Which socket stands at a path, zeros where none does. The time tells it from one that had its number before; a mode that others give
    it does not change it."""
    try:
        found = os.stat(path)
    except OSError:
        return _GONE
    return found.st_dev, found.st_ino, found.st_mtime_ns
