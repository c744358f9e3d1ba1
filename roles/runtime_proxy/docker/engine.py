"""Our own questions to the Docker engine: its cgroup driver, its containers, and one container in full (RP-DKR-03)."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import orjson

from roles.runtime_proxy.docker.http1 import ProtocolError, Source, read_body, response_framing

_MAX_ANSWER = 64 << 20
_TIMEOUT = 10.0  # seconds


class EngineError(Exception):
    """The engine cannot be asked; the text says what and why."""


class DockerEngine:
    """Questions over a connection each. Paths carry no API version: every engine serves those with its own newest."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def cgroup_driver(self) -> str:
        """`systemd` or `cgroupfs`. Raises EngineError."""
        document = await self._get("/info")
        driver = document.get("CgroupDriver") if isinstance(document, dict) else None
        if not isinstance(driver, str):
            raise EngineError(f"{self.path}: /info tells no CgroupDriver")
        return driver

    async def containers(self) -> list[dict[str, Any]]:
        """All containers, stopped ones too, as the list tells them. Raises EngineError."""
        document = await self._get("/containers/json?all=true")
        return [entry for entry in document if isinstance(entry, dict) and entry.get("Id")] if isinstance(document, list) else []

    async def inspect(self, container: str) -> Any:
        """A container in full, or None when there is none or the engine cannot say."""
        try:
            document = await self._get(f"/containers/{quote(container, safe='')}/json")
        except EngineError:
            return None
        return document if isinstance(document, dict) and document.get("Id") else None

    async def _get(self, target: str) -> Any:
        """One GET. None for 404. Raises EngineError."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(self.path)
                try:
                    writer.write(f"GET {target} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n".encode())
                    source = Source(reader)
                    head = await source.head()
                    if head is None:
                        raise EngineError(f"{self.path}: no answer to {target}")
                    body = await read_body(source, response_framing(head, "GET"), _MAX_ANSWER)
                finally:
                    writer.close()
            if head.status == 404:
                return None
            if head.status != 200:
                raise EngineError(f"{self.path}: {target} answers {head.status}: {body[:200].decode(errors='replace')}")
            return orjson.loads(body)
        except TimeoutError:
            raise EngineError(f"{self.path}: no answer to {target} within {_TIMEOUT:g} s") from None
        except (OSError, ProtocolError, orjson.JSONDecodeError) as error:
            raise EngineError(f"{self.path}: {target}: {error}") from None
