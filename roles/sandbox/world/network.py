"""The network of the world: byte streams between processes, with the faults that real ones have.

Nothing knows HTTP but the rules of a fault plan: these look at the head of what a client sends, to hurt a certain request or its answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roles.sandbox.world.process import PROCESS

if TYPE_CHECKING:
    from roles.sandbox.world.process import Process

HIGH_WATER = 256 * 1024
"""Bytes on the way to a reader that does not read, after which the writer is asked to pause."""


@dataclass(slots=True, eq=False, kw_only=True)
class Verdict:
    """What becomes of one request. `answer`: bytes that the client gets instead of the server's. `before` and `after` happen at the moment
    in which its bytes are about to leave, or have left.
    """

    delay: float = 0.0
    lose_request: bool = False
    lose_answer: bool = False
    reset: bool = False
    stall: bool = False
    answer: bytes = b""
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


PASS = Verdict()


class Rules:
    """Faults of connections; the base class has none."""

    latency = 0.0005  # seconds one way

    def request(self, client: str, head: bytes) -> Verdict:
        """Of the head of a request that `client` sends."""
        return PASS

    def heard(self, client: str, about: str) -> None:
        """Bytes of an answer have come to a client that asked for a path."""

    def behind(self, client: str, about: str) -> None:
        """More bytes of an answer wait for a client that reads slowly."""

    def refuse(self, client: str, host: str, port: int) -> str:
        """Why a connection cannot be made now: "refused", "timeout", or "" where it can."""
        return ""


class FakeSocket:
    """What a transport shows of its socket."""

    family = -1

    def __init__(self, own: tuple[str, int], peer: tuple[str, int]) -> None:
        self._own, self._peer = own, peer

    def getsockname(self) -> tuple[str, int]:
        return self._own

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def setsockopt(self, *_: Any) -> None:
        return

    def fileno(self) -> int:
        return -1


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, own: tuple[str, int], peer: tuple[str, int], context: contextvars.Context) -> None:
        super().__init__({"sockname": own, "peername": peer, "socket": FakeSocket(own, peer)})
        self.network = network
        self.loop = network.loop
        self.process: Process | None = context.get(PROCESS)
        self.context = context
        self.other: End
        self.protocol: Any = None
        self.client = ""
        self.closing = False
        self.lost = False
        self.paused = False
        self.stalled = False  # what this end sends is swallowed from now on
        self.drop_answer = False
        self.about = ""  # what a client asked for last by GET
        self._arrives = 0.0
        self._inbox: deque[bytes | None] = deque()
        self._inbox_bytes = 0
        self._writer_paused = False
        self._sipping = False
        if self.process is not None:
            self.process.connections.append(self)

    # -- writing -------------------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.closing or self.lost or not data:
            return
        process = self.process
        if process is not None and process.dead:
            return
        data = bytes(data)
        delay = 0.0
        after: Callable[[], object] | None = None
        if self.client and not self.stalled:
            if data.startswith(b"GET "):
                self.about = data.split(b" ", 2)[1].decode("latin-1")
            verdict = self.network.rules.request(self.client, data)
            if verdict is not PASS:
                if verdict.before is not None:
                    verdict.before()
                    return
                after = verdict.after
                delay = verdict.delay
                if verdict.stall:
                    self.stalled = self.other.stalled = True
                if verdict.answer:
                    self.loop.call_later(self.network.rules.latency, self._deliver, verdict.answer, context=self.context)
                    return
                if verdict.reset:
                    self.network.at(self.network.rules.latency, self._reset)
                    return
                if verdict.lose_request:
                    self.stalled = True
                    self.network.at(self.network.lost_for, self._reset)
                    return
                if verdict.lose_answer:
                    self.other.drop_answer = True
        elif self.drop_answer:
            self.drop_answer = False
            self.stalled = True
            self.network.at(self.network.lost_for, self._reset)
        if self.stalled:
            return
        self._send(data, delay)
        if after is not None:
            after()

    def _send(self, data: bytes | None, delay: float = 0.0) -> None:
        """Bytes arrive in the order in which they were sent."""
        other = self.other
        self._arrives = max(self._arrives, self.loop.time() + self.network.rules.latency + delay)
        if data is not None:
            other._inbox_bytes += len(data)
            if other._inbox_bytes > HIGH_WATER and not self._writer_paused and (other.paused or other._slow()):
                self._writer_paused = True
                self.protocol.pause_writing()
        self.loop.call_at(self._arrives, other._arrive, data, context=other.context)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self.closing or self.lost or self.stalled):
            self._send(None)

    def get_write_buffer_size(self) -> int:
        return self.other._inbox_bytes if self.other.paused else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    # -- reading -------------------------------------------------------------------------------------------------------------

    def _slow(self) -> bool:
        """Whether what arrives may have to wait for its reader."""
        return self.process is not None and (self.process.frozen or self.process.pace > 0)

    def _arrive(self, data: bytes | None) -> None:
        if self.lost or self.closing:
            return
        if self.paused or self._inbox or (self.process is not None and self.process.pace):
            self._inbox.append(data)
            self._sip()
            return
        self._deliver(data)

    def _sip(self) -> None:
        """A process that reads slowly takes half a second's worth at a time."""
        if not (self._sipping or self.paused) and self._inbox:
            self._sipping = True
            self.loop.call_later(0.5 if self.process is not None and self.process.pace else 0.0, self._sipped, context=self.context)

    def _sipped(self) -> None:
        self._sipping = False
        if self.paused or self.lost or not self._inbox:
            return
        data = self._inbox.popleft()
        most = int(self.process.pace / 2) if self.process is not None else 0
        if data is not None and 0 < most < len(data):
            self._inbox.appendleft(data[most:])
            data = data[:most]
        if self._inbox and self.about:
            self.network.rules.behind(self.client, self.about)
        self._deliver(data)
        self._sip()

    def _deliver(self, data: bytes | None) -> None:
        if self.lost or self.closing:
            return
        if data is None:
            if not self.protocol.eof_received():
                self.close()
            return
        self._inbox_bytes = max(0, self._inbox_bytes - len(data))
        other = self.other
        if other._writer_paused and self._inbox_bytes < HIGH_WATER // 4:
            other._writer_paused = False
            self.loop.call_soon(other.protocol.resume_writing, context=other.context)
        if self.about:
            self.network.rules.heard(self.client, self.about)
        self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if not self.paused:
            return
        self.paused = False
        self._sip()

    def is_reading(self) -> bool:
        return not self.paused

    # -- the end -------------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self.closing or self.lost

    def close(self) -> None:
        """In order: the other side sees the end of what was sent."""
        if self.closing or self.lost:
            return
        if not self.stalled:
            self._send(None)
        self.closing = True
        self.loop.call_soon(self._gone, None, context=self.context)

    def abort(self) -> None:
        """At once: the other side is reset."""
        self._reset()

    def _reset(self) -> None:
        for end in (self, self.other):
            if not end.lost and not end.closing:
                end.closing = True
                error = ConnectionResetError("Connection reset by peer")
                self.loop.call_soon(end._gone, error if end is not self else None, context=end.context)

    def _gone(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        if self.process is not None and self in self.process.connections:
            self.process.connections.remove(self)
        self.protocol.connection_lost(error)

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Listener:
    """A listening port, as asyncio's Server."""

    def __init__(self, network: Network, factory: Callable[[], Any], address: tuple[str, int]) -> None:
        self.network, self.factory, self.address = network, factory, address
        self.context = contextvars.copy_context()
        self.process = PROCESS.get()
        self.sockets: tuple[FakeSocket, ...] = (FakeSocket(address, ("", 0)),)

    def close(self) -> None:
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]
        self.sockets = ()

    def is_serving(self) -> bool:
        return bool(self.sockets)

    def get_loop(self) -> Any:
        return self.network.loop

    async def start_serving(self) -> None:
        return

    async def wait_closed(self) -> None:
        return


class Network:
    """Who listens where, and what connects them, on a VirtualLoop. `lost_for`: seconds until a connection that lost something is given up
    by TCP."""

    lost_for = 12.0

    def __init__(self, loop: Any, rules: Rules | None = None) -> None:
        self.loop = loop
        self.rules = rules or Rules()
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.services: dict[tuple[str, int], Callable[[], tuple[str, int] | None]] = {}
        self.names: dict[str, tuple[str, ...]] = {}  # addresses of a name, as a resolver gives them
        self._port = 30_000
        self._world = contextvars.copy_context()
        loop.network = self

    def at(self, delay: float, callback: Callable[..., Any], *args: Any) -> None:
        """Do something as the network itself, whoever is running now."""
        self.loop.call_later(delay, callback, *args, context=self._world)

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        """A listener. Raises OSError where somebody listens already."""
        if not host or host in ("0.0.0.0", "::", "127.0.0.1"):
            process = PROCESS.get()
            host = process.address if process is not None else "127.0.0.1"
        if not port and "/" not in host:
            self._port += 1
            port = self._port
        address = (host, port)
        if address in self.listeners and not self._is_dead(self.listeners[address]):
            raise OSError(98, f"address in use: {address}")
        listener = self.listeners[address] = Listener(self, factory, address)
        return listener

    @staticmethod
    def _is_dead(listener: Listener) -> bool:
        return listener.process is not None and (listener.process.dead or bool(listener.process.ended))

    def serves(self, address: tuple[str, int]) -> bool:
        """Whether somebody alive listens there."""
        listener = self.listeners.get(address)
        return listener is not None and not self._is_dead(listener)

    def _target(self, host: str, port: int) -> tuple[str, int]:
        """Where an address leads now: itself, or whoever is behind a Service or another address of the same host."""
        process = PROCESS.get()
        if host in ("127.0.0.1", "localhost") and process is not None:
            host = process.address
        service = self.services.get((host, port))
        return (service() if service is not None else None) or (host, port)

    async def reach(self, host: str, port: int) -> None:
        """The way there and back. Raises ConnectionRefusedError; waits for ever where nobody answers."""
        process = PROCESS.get()
        trouble = self.rules.refuse(process.name if process is not None else "world", host, port)
        if trouble == "timeout":
            await asyncio.Event().wait()
        await asyncio.sleep(2 * self.rules.latency)
        if trouble:
            raise self._refused(host, port)

    @staticmethod
    def _refused(host: str, port: int) -> ConnectionRefusedError:
        return ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")

    def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[End, Any]:
        """Connect the process that is running now with an address that was reached. Raises ConnectionRefusedError."""
        process = PROCESS.get()
        target = self._target(host, port)
        if not self.serves(target):
            raise self._refused(host, port)
        listener = self.listeners[target]
        self._port += 1
        own = (process.address if process is not None else "10.255.0.1", self._port)
        ours = End(self, own, (host, port), contextvars.copy_context())
        theirs = End(self, target, own, listener.context.copy())
        ours.other, theirs.other = theirs, ours
        ours.client = process.name if process is not None else "world"
        ours.protocol = factory()
        theirs.protocol = listener.context.copy().run(listener.factory)
        self.loop.call_soon(theirs.protocol.connection_made, theirs, context=theirs.context)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol
