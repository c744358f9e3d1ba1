"""A caller's connection and the engine's connection that it has for itself (RP-CRI-01).

Frames are carried as they came, in both directions: stream numbers, windows, resets, pings, settings and GOAWAY are the two ends'
own affair. Header blocks are read along, to know methods and results. A request with hooks is held (`held.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from roles.runtime_proxy.splice import frames, grpcwire
from roles.runtime_proxy.splice.direction import Direction, Fate
from roles.runtime_proxy.splice.frames import END_STREAM, PREFACE, Headers, ProtocolFault, reset, window_update
from roles.runtime_proxy.splice.held import Handler, Held, SandboxStatus, Stream
from roles.runtime_proxy.splice.memory import MemoryBudget

log = logging.getLogger(__name__)

_HIGH = 256 << 10  # bytes that wait for one end before the other is not read any more
_EARLY = 24 << 10  # bytes of held requests after which the caller's connection gets its credit back before they are sent on
_DROPPED = 256  # streams that ended here and whose late frames are kept from the engine and the caller
_CLOCKS = 0.01  # seconds by which the caller's clock may be ahead
_PROBE = b"koord-pr"  # what our own PING carries


class Service(Protocol):
    """What connections share."""

    memory: MemoryBudget
    sandbox_status: SandboxStatus

    def accepted(self, connection: Connection, transport: Any) -> None: ...

    def begun(self, path: bytes) -> tuple[str, bool | None, Handler | None, bool]:
        """A call begins: its label, whether it has one answer (None: not known), its handler if it has hooks, and whether it may begin."""
        ...

    def ended(self, label: str, code: str, seconds: float) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class End(asyncio.Protocol):
    """One socket."""

    transport: Any = None

    def __init__(self, connection: Connection, received: Callable[[bytes], None]) -> None:
        self._connection = connection
        self.received = received
        self.full = False  # whether much waits to be written
        self._reasons: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=_HIGH)
        if self is self._connection.caller:  # not read until the engine is connected
            self.stop_reading("engine")
            self._connection.service.accepted(self._connection, transport)
        else:
            try:
                self._connection.connected()
            except ProtocolFault as error:
                self._connection.fault(error)

    def data_received(self, data: bytes) -> None:
        try:
            self.received(data)
        except ProtocolFault as error:
            self._connection.fault(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.close("CANCELLED" if self is self._connection.caller else "UNAVAILABLE")

    def pause_writing(self) -> None:
        self.full = True
        self._other.stop_reading("buffer")

    def resume_writing(self) -> None:
        self.full = False
        self._other.read_on("buffer")
        if self is self._connection.engine:
            self._connection.pump()

    @property
    def _other(self) -> End:
        return self._connection.engine if self is self._connection.caller else self._connection.caller

    def stop_reading(self, reason: str) -> None:
        """Read no more until the reason is gone."""
        if not self._reasons and self.transport is not None:
            self.transport.pause_reading()
        self._reasons.add(reason)

    def read_on(self, reason: str) -> None:
        """A reason not to read is gone."""
        self._reasons.discard(reason)
        if not self._reasons and self.transport is not None and not self.transport.is_closing():
            with contextlib.suppress(RuntimeError):
                self.transport.resume_reading()


class Up(Direction):
    """What the caller sends."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def data(self, flags: int, stream: int, length: int) -> Fate:
        connection = self._connection
        found = connection.streams.get(stream)
        if (found is not None and found.held is not None) or stream in connection.dropped:
            return Fate.WHOLE
        if length > connection.window:  # only where held requests took of it: the engine gives it back
            return Fate.WAIT
        connection.window -= length
        return Fate.PASS

    def whole_data(self, flags: int, stream: int, payload: bytes) -> bool:
        connection = self._connection
        found = connection.streams.get(stream)
        if found is None or found.held is None:  # late: the call was ended here
            if payload:
                connection.to_caller(window_update(0, len(payload)))
            return False
        connection.owe(found.held, len(payload))
        found.held.take(flags, payload)
        return False

    def head(self, flags: int, stream: int, headers: Headers) -> bool:
        connection = self._connection
        if stream > connection.last_stream:
            connection.begin(stream, flags, headers)
        elif stream in connection.dropped or ((found := connection.streams.get(stream)) is not None and found.held is not None):
            raise ProtocolFault("a gRPC request has no trailers")
        return True

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        connection = self._connection
        if kind == frames.RST_STREAM:
            if stream in connection.dropped:
                return False
            found = connection.streams.get(stream)
            connection.end(stream, "CANCELLED")
            return found is None or stream not in connection.dropped
        if kind == frames.SETTINGS and flags & frames.ACK:
            connection.agreed()
        elif kind == frames.SETTINGS:
            for number, value in frames.settings(payload):
                if number == frames.SETTING_TABLE_SIZE:
                    connection.down.heads.allow_table(value)
        elif kind == frames.PING and flags & frames.ACK:
            if payload == _PROBE:
                connection.probed.set()
            return payload != _PROBE
        elif kind == frames.WINDOW_UPDATE:
            return stream not in connection.dropped
        return True


class Down(Direction):
    """What the engine sends."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def data(self, flags: int, stream: int, length: int) -> Fate:
        found = self._connection.streams.get(stream)
        if found is None:
            return Fate.WHOLE if stream in self._connection.dropped else Fate.PASS
        if found.held is not None:
            return Fate.WHOLE
        if flags & END_STREAM:  # an answer without a status
            self._connection.end(stream, "UNKNOWN")
        return Fate.PASS

    def whole_data(self, flags: int, stream: int, payload: bytes) -> bool:
        connection = self._connection
        found = connection.streams.get(stream)
        if found is None or found.held is None:
            if payload:
                connection.to_engine(window_update(0, len(payload)))
            return False
        found.held.answer_data(flags, payload)
        if flags & END_STREAM:
            connection.end(stream, "UNKNOWN")
        return True

    def head(self, flags: int, stream: int, headers: Headers) -> bool:
        connection = self._connection
        found = connection.streams.get(stream)
        if found is None:
            # Of a call that was ended here. The caller's table must follow the engine's: a block that changes it passes, and
            # clients read and forget it.
            return stream not in connection.dropped or self.heads.changed
        if flags & END_STREAM:
            connection.end(stream, grpcwire.code_name(grpcwire.value_of(headers, b"grpc-status")))
        elif not grpcwire.value_of(headers, b":status").startswith(b"1"):
            found.answered = True
            if found.held is not None:
                found.held.answer_head(headers)
        return True

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        connection = self._connection
        if kind == frames.WINDOW_UPDATE:
            count = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            if stream == 0:
                return connection.credit(count)
            found = connection.streams.get(stream)
            if found is not None and found.held is not None:
                found.held.window += count
                found.held.pump()
                return False
            return stream not in connection.dropped
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.RST_STREAM:
            if stream in connection.dropped:
                return False
            connection.end(stream, "CANCELLED" if payload[-1:] == b"\x08" else "UNAVAILABLE")
        elif kind == frames.GOAWAY:
            last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            for number in [number for number in connection.streams if number > last]:
                connection.end(number, "UNAVAILABLE")
        return True

    def _settings(self, payload: bytes) -> None:
        window = None
        for number, value in frames.settings(payload):
            if number == frames.SETTING_TABLE_SIZE:
                self._connection.up.heads.allow_table(value)
            elif number == frames.SETTING_WINDOW:
                window = value
        self._connection.asked.append(window)


class Connection:
    """Both ends. Made when a caller connects; ends when either end does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.memory = service.memory
        self.sandbox_status = service.sandbox_status
        self.streams: dict[int, Stream] = {}
        self.sending: dict[int, Held] = {}  # held requests that wait for the engine's credit
        self.window = frames.FIRST_WINDOW  # bytes that the engine takes on this connection now
        self.stream_window = frames.FIRST_WINDOW  # the same for a stream that begins
        self.asked: deque[int | None] = deque()  # windows for streams of the engine's settings that were not acknowledged yet
        self.last_stream = 0
        self.probed = asyncio.Event()  # the caller has seen our farewell
        self.dropped: dict[int, None] = {}  # streams whose late frames are kept from both ends
        self._owed = 0  # bytes of held requests whose credit the caller did not get back
        self._debt = 0  # bytes sent to the engine that the caller did not pay for: so much of its credit is not told to the caller
        self._time = asyncio.get_running_loop().time
        self._closed = False
        self.up, self.down = Up(self), Down(self)
        self.to_caller, self.to_engine = self.down.write, self.up.write  # frames of our own
        self.caller, self.engine = End(self, self._first_bytes), End(self, self.down.feed)
        self._preface = b""

    # -- bytes --------------------------------------------------------------------------------------------------------------------

    async def connect(self, path: str) -> None:
        """Connect to the engine; until then the caller is not read. Raises OSError."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self.engine, path)

    def connected(self) -> None:
        """Both ends are there."""
        if self._closed:
            self.engine.transport.close()
            return
        self.up.sink, self.down.sink = self.engine.transport, self.caller.transport
        self.caller.read_on("engine")
        self._first_bytes(b"")

    def _first_bytes(self, data: bytes) -> None:
        self._preface += data
        if self.up.sink is None and len(self._preface) < _HIGH:
            return  # what the event loop read before it could be told not to
        if not self._preface.startswith(PREFACE[: len(self._preface)]):
            raise ProtocolFault("this is no HTTP/2 with prior knowledge")
        if len(self._preface) >= len(PREFACE):
            rest, self._preface = self._preface[len(PREFACE) :], b""
            self.engine.transport.write(PREFACE)
            self.caller.received = self._from_caller
            self._from_caller(rest)

    def _from_caller(self, data: bytes) -> None:
        self.up.feed(data)
        if self.up.waiting:
            self.caller.stop_reading("credit")

    # -- calls --------------------------------------------------------------------------------------------------------------------

    def begin(self, number: int, flags: int, headers: Headers) -> None:
        """A request's headers came, and pass."""
        self.last_stream = number
        paths = [value for key, value in headers if key == b":path"]
        if len(paths) > 1:
            raise ProtocolFault("a request with two paths")
        label, unary, handler, accepted = self.service.begun(paths[0] if paths else b"")
        timeout = grpcwire.timeout_of(headers)
        stream = self.streams[number] = Stream(label, timeout is not None if unary is None else unary, self._time(), timeout)
        if not accepted:
            self.refuse(number, "RESOURCE_EXHAUSTED", "koord runtime-proxy: more calls at once than --max-requests")
        elif handler is not None and not flags & END_STREAM:
            stream.held = Held(self, number, handler, headers)

    def end(self, number: int, code: str) -> None:
        """A call has ended, whoever ended it."""
        stream = self.streams.pop(number, None)
        if stream is None:
            return
        now, held = self._time(), stream.held
        if code == "CANCELLED" and stream.gives_up is not None and now > stream.gives_up - _CLOCKS:
            code = "DEADLINE_EXCEEDED"  # which callers say by a reset
        if held is not None:
            self.sending.pop(number, None)
            if held.owed:  # never sent on: the engine will not give this credit back
                self.settle(held, 0)
            if not held.sent:  # what the caller still sends must not reach the engine without its hooks
                self.drop(number)
                self.to_engine(reset(number, frames.CANCEL))
            held.over(code)
        self.service.ended(stream.label, code, now - stream.started)

    def refuse(self, number: int, code: str, text: str) -> None:
        """Answer a call in the engine's place, and let the engine forget it."""
        stream = self.streams.get(number)
        if stream is None:
            return
        self.to_caller(frames.head_frames(number, grpcwire.status_headers(code, text, answered=stream.answered), end=True))
        if stream.held is None or stream.held.sent:
            self.to_engine(reset(number, frames.CANCEL))
        self.drop(number)
        self.end(number, code)

    def drop(self, number: int) -> None:
        """Keep late frames of a stream from both ends."""
        self.dropped[number] = None
        if len(self.dropped) > _DROPPED:
            del self.dropped[next(iter(self.dropped))]

    # -- credit -------------------------------------------------------------------------------------------------------------------

    def owe(self, held: Held, count: int) -> None:
        """The caller paid for bytes that stay here. Beyond a little it gets them back: a slow hook must not stop other calls."""
        held.owed += count
        self._owed += count
        if self._owed > _EARLY:
            self.to_caller(window_update(0, self._owed))
            self._owed = 0
            for stream in self.streams.values():
                if stream.held is not None:
                    stream.held.owed = 0

    def settle(self, held: Held, count: int) -> None:
        """So many bytes go to the engine for a held request; it gives back credit for those, whatever the caller paid."""
        more = held.owed - count
        self._owed -= held.owed
        held.owed = 0
        if more > 0:
            self.to_caller(window_update(0, more))
        else:
            self._debt -= more

    def credit(self, count: int) -> bool:
        """The engine gives credit for the connection. True when all of it is the caller's."""
        self.window += count
        paid = min(self._debt, count)
        self._debt -= paid
        self.pump()
        if paid and count > paid:
            self.to_caller(window_update(0, count - paid))
        if self.up.waiting:
            self.caller.read_on("credit")
            self._from_caller(b"")
        return not paid

    def agreed(self) -> None:
        """The caller acknowledged settings of the engine's. Only now may more be sent on than before: the engine counts from here."""
        window = self.asked.popleft() if self.asked else None
        if window is None:
            return
        change, self.stream_window = window - self.stream_window, window
        for stream in self.streams.values():
            if stream.held is not None:
                stream.held.window += change
        asyncio.get_running_loop().call_soon(self.pump)  # after the acknowledgement, which is passing

    def pump(self) -> None:
        """Send on what is held and may go."""
        for number in list(self.sending):
            self.sending[number].pump()

    # -- the end ------------------------------------------------------------------------------------------------------------------

    def busy(self) -> set[Stream]:
        """Calls with one answer under way."""
        return {stream for stream in self.streams.values() if stream.unary}

    def farewell(self) -> None:
        """Ask the caller to make its next call on another connection. `probed` is set once it has seen that."""
        if self.down.sink is None or self._closed:
            self.probed.set()
            return
        self.to_caller(frames.goaway(frames.ANY_STREAM, frames.NO_ERROR) + frames.frame(frames.PING, 0, 0, _PROBE))

    def finish(self) -> None:
        """End every call that is under way with a status, and the connection."""
        if self.down.sink is not None and not self._closed:
            for number in list(self.streams):
                self.refuse(number, "UNAVAILABLE", "koord runtime-proxy ends; connect again")
            self.to_caller(frames.goaway(self.last_stream, frames.NO_ERROR))
        self.close("UNAVAILABLE")

    def fault(self, error: ProtocolFault) -> None:
        """An end that does not keep to the protocol ends the connection."""
        log.warning("a connection is ended: %s", error)
        if self.down.sink is not None:
            self.to_caller(frames.goaway(self.last_stream, error.code, str(error)))
        self.close("UNAVAILABLE")

    def close(self, code: str) -> None:
        """End both ends; what waits for them is written first."""
        if self._closed:
            return
        self._closed = True
        self.probed.set()
        for number in list(self.streams):
            self.end(number, code)
        for end in (self.caller, self.engine):
            if end.transport is not None:
                end.transport.close()
        self.service.lost(self)
