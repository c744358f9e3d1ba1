"""The latency-sensitive service: a small HTTP server that does a fixed amount of CPU work for each request."""

from __future__ import annotations

import asyncio
import os
import socket

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


async def serve(listener: socket.socket, iterations: int) -> None:
    """Serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: Service(iterations), sock=listener)
    async with server:
        await server.serve_forever()


def listen(address: str, port: int) -> socket.socket:
    """One of several listening sockets on a port. Raises OSError when it is taken by somebody else."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((address, port))
    listener.listen(1024)
    return listener


def run(address: str, port: int, iterations: int, workers: int) -> None:
    """Serve with so many processes on one port. All listen before the first one serves: the kernel spreads connections from the start."""
    listeners = [listen(address, port) for _ in range(workers)]
    mine = 0
    for index in range(1, workers):
        if os.fork() == 0:
            mine = index
            break
    for index, listener in enumerate(listeners):
        if index != mine:
            listener.close()
    asyncio.run(serve(listeners[mine], iterations))
