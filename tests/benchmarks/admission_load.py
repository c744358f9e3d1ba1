"""An API server's end of admission, in a process of its own: reviews at a fixed rate, whether or not earlier ones were answered.

usage: python -m tests.benchmarks.admission_load PORT CA_FILE RATE SECONDS < REVIEWS > RESULT

REVIEWS is JSON: a list of [path, body]. They are sent in turn, at the ticks of a clock (open loop), as kube-apiserver does it: HTTP/1.1
over TLS, on the connection that was used last, a new one where none is free, and 25 kept between two reviews. A latency counts from the
tick, so that time spent waiting for this process counts too. RESULT is JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import sys
import time
from typing import Any, cast

KEPT = 25
AT_ONCE = 200
"""As many writes as kube-apiserver has under way by default; what comes beyond waits, and its latency counts that."""
WARM_UP = 1.0
"""Seconds at the beginning that do not count: connections are made."""


class Connection(asyncio.Protocol):
    """One review at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answer: asyncio.Future[bytes] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self.answer is None:
            return
        at = self._buffer.lower().index(b"content-length:") + 15
        size = int(self._buffer[at : self._buffer.index(b"\r\n", at)])
        if len(self._buffer) < end + 4 + size:
            return
        if not self._buffer.startswith(b"HTTP/1.1 200 ") or b'"allowed":true' not in self._buffer:
            self.answer.set_exception(ConnectionError(self._buffer[:300].decode(errors="replace")))
        else:
            self.answer.set_result(self._buffer[end + 4 :])
        self._buffer, self.answer = b"", None

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionError("closed without an answer"))


async def load(port: int, context: ssl.SSLContext, reviews: list[bytes], rate: float, seconds: float) -> dict[str, Any]:
    """Latencies in seconds, how many failed, how many connections were made, and CPU seconds of this process."""
    loop = asyncio.get_running_loop()
    free: list[Connection] = []
    latencies: list[float] = []
    failures: list[str] = []
    made = 0
    room = asyncio.Semaphore(AT_ONCE)

    async def one(body: bytes, due: float, counts: bool) -> None:
        async with room:
            await review(body, due, counts)

    async def review(body: bytes, due: float, counts: bool) -> None:
        nonlocal made
        try:
            if free:
                connection = free.pop()
            else:
                made += 1
                _, connection = await loop.create_connection(Connection, "127.0.0.1", port, ssl=context, server_hostname="localhost")
            await connection.ask(body)
        except OSError as error:
            failures.append(str(error) or type(error).__name__)
            return
        if counts:
            latencies.append(time.perf_counter() - due)
        if len(free) < KEPT:
            free.append(connection)
        else:
            connection.transport.close()

    tasks: set[asyncio.Task[None]] = set()
    began = time.perf_counter() + 0.1
    for number in range(int((WARM_UP + seconds) * rate)):
        due = began + number / rate
        while (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(one(reviews[number % len(reviews)], due, due - began >= WARM_UP))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.wait(tasks, timeout=30) if tasks else None
    for connection in free:
        connection.transport.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"latencies": latencies, "failures": failures, "connections": made, "cpu": used.ru_utime + used.ru_stime}


def request(path: str, body: str) -> bytes:
    """As Go's client writes it."""
    data = body.encode()
    head = (
        f"POST {path}?timeout=10s HTTP/1.1", "Host: localhost", "User-Agent: kube-apiserver-admission", f"Content-Length: {len(data)}",
        "Accept: application/json, */*", "Content-Type: application/json", "Accept-Encoding: gzip", "", "",
    )  # fmt: skip
    return "\r\n".join(head).encode() + data


def main() -> None:
    import uvloop

    port, authority, rate, seconds = sys.argv[1:5]
    reviews = [request(path, body) for path, body in json.load(sys.stdin)]
    context = ssl.create_default_context(cafile=authority)
    json.dump(uvloop.run(load(int(port), context, reviews, float(rate), float(seconds))), sys.stdout)


if __name__ == "__main__":
    main()
