"""The two ends of a connection and what is said in each direction: which frames pass, and what they mean for the calls under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from roles.runtime_proxy.splice import frames, grpcwire
from roles.runtime_proxy.splice.direction import Direction, Fate
from roles.runtime_proxy.splice.frames import END_STREAM, Headers, ProtocolFault, window_update
from roles.runtime_proxy.splice.held import Held, HoldingConnection, Stream

HIGH = 256 << 10  # bytes that wait for one end before the other is not read any more


class Joined(HoldingConnection, Protocol):
    """What an end asks of its connection, which says what each means."""

    streams: dict[int, Stream]
    asked: deque[int | None]
    last_stream: int
    up: Up
    down: Down
    caller: End
    engine: End

    def accepted(self, transport: Any) -> None: ...

    def connected(self) -> None: ...

    def begin(self, number: int, flags: int, headers: Headers) -> None: ...

    def end(self, number: int, code: str) -> None: ...

    def dropped(self, number: int) -> bool: ...

    def owe(self, held: Held, count: int) -> None: ...

    def credit(self, count: int) -> bool: ...

    def agreed(self) -> None: ...

    def pump(self) -> None: ...

    def fault(self, error: ProtocolFault) -> None: ...

    def close(self, code: str) -> None: ...

    def swallow_probe(self, payload: bytes) -> bool: ...


class End(asyncio.Protocol):
    """One socket."""

    transport: Any = None

    def __init__(self, connection: Joined, received: Callable[[bytes], None]) -> None:
        self._connection = connection
        self.received = received
        self.full = False  # whether much waits to be written
        self._reasons: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH)
        if self is self._connection.caller:  # not read until the engine is connected
            self.stop_reading("engine")
            self._connection.accepted(transport)
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

    def __init__(self, connection: Joined) -> None:
        super().__init__()
        self._connection = connection

    def data(self, flags: int, stream: int, length: int) -> Fate:
        connection = self._connection
        found = connection.streams.get(stream)
        if (found is not None and found.held is not None) or connection.dropped(stream):
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
        elif connection.dropped(stream) or ((found := connection.streams.get(stream)) is not None and found.held is not None):
            raise ProtocolFault("a gRPC request has no trailers")
        return True

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        connection = self._connection
        if kind == frames.RST_STREAM:
            if connection.dropped(stream):
                return False
            found = connection.streams.get(stream)
            connection.end(stream, "CANCELLED")
            return found is None or not connection.dropped(stream)
        if kind == frames.SETTINGS and flags & frames.ACK:
            connection.agreed()
        elif kind == frames.SETTINGS:
            for number, value in frames.settings(payload):
                if number == frames.SETTING_TABLE_SIZE:
                    connection.down.heads.allow_table(value)
        elif kind == frames.PING and flags & frames.ACK:
            return not connection.swallow_probe(payload)
        elif kind == frames.WINDOW_UPDATE:
            return not connection.dropped(stream)
        return True


class Down(Direction):
    """What the engine sends."""

    def __init__(self, connection: Joined) -> None:
        super().__init__()
        self._connection = connection

    def data(self, flags: int, stream: int, length: int) -> Fate:
        found = self._connection.streams.get(stream)
        if found is None:
            return Fate.WHOLE if self._connection.dropped(stream) else Fate.PASS
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
            return not connection.dropped(stream) or self.heads.changed
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
            return not connection.dropped(stream)
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.RST_STREAM:
            if connection.dropped(stream):
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
