"""Readiness probes of process containers: HTTP, TCP or a command, with the periods and thresholds of the pod spec."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


def port_of(value: Any, ports: Sequence[Mapping[str, Any]]) -> int:
    """A port number, or the number of a named container port. Raises ValueError for an unknown name."""
    if isinstance(value, int) or str(value).isdigit():
        return int(value)
    for port in ports:
        if port.get("name") == value:
            return int(port["containerPort"])
    raise ValueError(f"no container port is named {value!r}")


async def check(probe: Mapping[str, Any], ports: Sequence[Mapping[str, Any]]) -> bool:
    """Run a probe once; False on any refusal, wrong answer or timeout."""
    timeout = float(probe.get("timeoutSeconds") or 1)
    try:
        return await asyncio.wait_for(_attempt(probe, ports), timeout)
    except (OSError, TimeoutError, ValueError):
        return False


async def _attempt(probe: Mapping[str, Any], ports: Sequence[Mapping[str, Any]]) -> bool:
    if "exec" in probe:
        process = await asyncio.create_subprocess_exec(
            *probe["exec"]["command"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
    target = probe.get("httpGet") or probe.get("tcpSocket") or {}
    host = target.get("host") or "127.0.0.1"
    reader, writer = await asyncio.open_connection(host, port_of(target.get("port"), ports))
    try:
        if "httpGet" not in probe:
            return True
        writer.write(f"GET {target.get('path') or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = (await reader.readline()).split()
        return len(status) >= 2 and status[1].isdigit() and 200 <= int(status[1]) < 400
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class Readiness:
    """Successes and failures in a row against the probe's thresholds (pure)."""

    def __init__(self, probe: Mapping[str, Any]) -> None:
        self.initial = float(probe.get("initialDelaySeconds") or 0)
        self.period = max(float(probe.get("periodSeconds") or 10), 0.05)
        self.success_threshold = max(int(probe.get("successThreshold") or 1), 1)
        self.failure_threshold = max(int(probe.get("failureThreshold") or 3), 1)
        self.ready = False
        self._row = 0

    def observe(self, ok: bool) -> bool:
        """Take one result; True if readiness changed."""
        if ok == self.ready:
            self._row = 0
            return False
        self._row += 1
        if self._row < (self.success_threshold if ok else self.failure_threshold):
            return False
        self.ready, self._row = ok, 0
        return True
