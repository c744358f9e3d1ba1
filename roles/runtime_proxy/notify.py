"""Telling systemd that the socket is served, so that kubelet, ordered after this unit, finds it (RP-OPS-01)."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str) -> bool:
    """Send `READY=1` or `STOPPING=1` to the service manager; False when there is none that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.sendall(state.encode())
    except OSError as error:
        log.warning("the service manager at %s cannot be told %s: %s", address, state, error.strerror)
        return False
    return True
