"""An open-loop load generator: requests leave at fixed times whatever the service does, and latency counts from the planned time.

So a service that stalls is charged for every request that had to wait (no coordinated omission). One thread, plain sockets, `select`
for timers finer than a millisecond.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

REQUEST = b"GET /work HTTP/1.1\r\nHost: service\r\n\r\n"
MAX_CONNECTIONS = 256
FIRST_CONNECTIONS = 32
DRAIN_SECONDS = 3.0
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Step:
    """A constant arrival rate (requests per second) for so many seconds."""

    rate: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Step:
        """Read `RATE:SECONDS`. Raises ValueError with what is accepted."""
        rate, _, seconds = text.partition(":")
        try:
            step = cls(float(rate), float(seconds))
        except ValueError:
            raise ValueError(f"a step is RATE:SECONDS, for example 200:10, not {text!r}") from None
        if not (0 < step.rate <= 100_000 and 0 < step.seconds <= 86_400):
            raise ValueError(f"step {text!r}: rate must be in (0, 100000] and seconds in (0, 86400]")
        return step


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of an ascending sequence; 0 of an empty one."""
    if not ordered:
        return 0.0
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[min(int(rank), len(ordered)) - 1]


def summary(latencies: Sequence[float], errors: int) -> dict[str, Any]:
    """Counts and percentiles; latencies in seconds in, milliseconds out."""
    ordered = sorted(latencies)
    result: dict[str, Any] = {"count": len(ordered), "errors": errors}
    for percent in PERCENTILES:
        result[f"p{percent}"] = round(percentile(ordered, percent) * 1000, 3)
    result["max"] = round(ordered[-1] * 1000, 3) if ordered else 0.0
    return result


def plan(steps: Sequence[Step]) -> list[tuple[float, int]]:
    """All departures as (seconds from the start, index of the step), evenly spaced inside each step."""
    departures, begin = [], 0.0
    for index, step in enumerate(steps):
        departures += [(begin + i / step.rate, index) for i in range(int(step.rate * step.seconds))]
        begin += step.seconds
    return departures


@dataclass(slots=True)
class Connection:
    """A keep-alive connection; `planned` is the departure it is answering, None when it is free."""

    sock: socket.socket
    planned: tuple[float, int] | None = None
    buffer: bytes = b""


@dataclass(slots=True)
class Generator:
    """Carries out a plan against one address and writes JSON lines: a line for each step, one a second, and a summary."""

    address: tuple[str, int]
    steps: Sequence[Step]
    out: TextIO
    clock: Callable[[], float] = time.monotonic
    connections: list[Connection] = field(default_factory=list)
    free: deque[Connection] = field(default_factory=deque)
    """Taken from the front and put back at the end, so that all processes behind the address get their share."""
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    by_step: list[list[float]] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    second_errors: int = 0

    def run(self) -> list[dict[str, Any]]:
        """Send everything, wait for the last answers at most three seconds, and return the summary of each step."""
        departures = deque(plan(self.steps))
        self.by_step = [[] for _ in self.steps]
        self.errors = [0 for _ in self.steps]
        self._open()
        start, current, next_tick = self.clock(), -1, 1.0
        end = sum(step.seconds for step in self.steps)
        while True:
            now = self.clock() - start
            while departures and departures[0][0] <= now:
                planned = departures.popleft()
                if planned[1] != current:
                    current = planned[1]
                    self._say("step", index=current, rate=self.steps[current].rate)
                self.waiting.append((start + planned[0], planned[1]))
            self._dispatch()
            if now >= next_tick:
                self._tick(current)
                next_tick += 1.0
            busy = any(c.planned is not None for c in self.connections) or self.waiting
            if not departures and (now >= end + DRAIN_SECONDS or (now >= end and not busy)):
                break
            wake = min(departures[0][0] if departures else now + 0.05, next_tick)
            self._receive(max(0.0, wake - (self.clock() - start)))
        self._abandon()
        result = [{"rate": s.rate, "seconds": s.seconds, **summary(self.by_step[i], self.errors[i])} for i, s in enumerate(self.steps)]
        self._say("end", steps=result)
        return result

    def _dispatch(self) -> None:
        while self.waiting:
            connection = self.free.popleft() if self.free else self._connect()
            if connection is None:
                return
            connection.planned = self.waiting.popleft()
            try:
                connection.sock.send(REQUEST)
            except OSError:
                self._drop(connection)

    def _open(self) -> None:
        """Connections to begin with; what cannot be had now is tried again with the requests."""
        while len(self.connections) < FIRST_CONNECTIONS:
            try:
                self.free.append(self._new())
            except OSError:
                return

    def _connect(self) -> Connection | None:
        """A new connection, None when there are enough. A refused one counts as an error of the oldest waiting request."""
        if len(self.connections) >= MAX_CONNECTIONS:
            return None
        try:
            return self._new()
        except OSError:
            self._fail(self.waiting.popleft()[1])
            return None

    def _new(self) -> Connection:
        sock = socket.create_connection(self.address, timeout=1.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.append(connection)
        return connection

    def _receive(self, timeout: float) -> None:
        by_socket = {c.sock: c for c in self.connections if c.planned is not None}
        ready, _, _ = select.select(list(by_socket), [], [], timeout)
        now = self.clock()
        for sock in ready:
            connection = by_socket[sock]
            try:
                data = sock.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                continue
            connection.buffer += data
            self._answered(connection, now)

    def _answered(self, connection: Connection, now: float) -> None:
        head, separator, body = connection.buffer.partition(b"\r\n\r\n")
        if not separator or len(body) < _content_length(head):
            return
        assert connection.planned is not None
        planned, index = connection.planned
        connection.buffer, connection.planned = b"", None
        self.free.append(connection)
        if head.startswith(b"HTTP/1.1 200"):
            self.by_step[index].append(now - planned)
            self.second.append(now - planned)
        else:
            self._fail(index)

    def _drop(self, connection: Connection) -> None:
        connection.sock.close()
        self.connections.remove(connection)
        if connection in self.free:
            self.free.remove(connection)
        if connection.planned is not None:
            self._fail(connection.planned[1])

    def _fail(self, index: int) -> None:
        self.errors[index] += 1
        self.second_errors += 1

    def _abandon(self) -> None:
        """Requests that never got an answer are errors, not silence."""
        for connection in list(self.connections):
            self._drop(connection)
        for _, index in self.waiting:
            self._fail(index)
        self.waiting.clear()

    def _tick(self, index: int) -> None:
        self._say("tick", step=index, **summary(self.second, self.second_errors))
        self.second.clear()
        self.second_errors = 0

    def _say(self, event: str, **values: object) -> None:
        self.out.write(json.dumps({"event": event, "time": time.time(), "monotonic": time.monotonic(), **values}) + "\n")
        self.out.flush()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0
