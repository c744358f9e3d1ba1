"""The latency-sensitive service: a small HTTP server that does a fixed amount of CPU work for each request."""

from __future__ import annotations

import asyncio

from roles.sandbox.workload.work import spin

BODY = b"ok\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
MAX_HEAD = 16 * 1024


class Service(asyncio.Protocol):
    """One connection: requests without bodies, answered in order. `/healthz` is answered without work."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            if not head.startswith(b"GET "):
                self.transport.write(BAD)
                self.transport.close()
                return
            if not head.startswith(b"GET /healthz"):
                spin(self.iterations)
            self.transport.write(RESPONSE)
        if len(self.buffer) > MAX_HEAD:
            self.transport.write(BAD)
            self.transport.close()


async def serve(address: str, port: int, iterations: int) -> None:
    """Serve until cancelled. Raises OSError when the port is taken."""
    server = await asyncio.get_running_loop().create_server(lambda: Service(iterations), address, port, backlog=1024)
    async with server:
        await server.serve_forever()
