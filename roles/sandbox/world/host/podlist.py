"""The read-only port of a modelled kubelet: GET /pods/ and /configz by HTTP/1.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

Obj = dict[str, Any]
PORT = 10255


class Answering(asyncio.Protocol):
    """One connection. `documents` gives what a path shows, None for what is not there."""

    def __init__(self, documents: Callable[[str], Obj | None]) -> None:
        self._documents = documents
        self._transport: Any = None
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        while b"\r\n\r\n" in self._head:
            head, _, self._head = self._head.partition(b"\r\n\r\n")
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
            found = self._documents(words[1]) if len(words) == 3 else None
            body = orjson.dumps(found) if found is not None else b"not found"
            status = "200 OK" if found is not None else "404 Not Found"
            line = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(line.encode() + body)


async def serve(address: str, documents: Callable[[str], Obj | None]) -> Any:
    """Listen on an address of the machine."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Answering(documents), address, PORT)
