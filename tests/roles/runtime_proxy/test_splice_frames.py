"""Frames that pass keep every byte, however they are cut; credit is never overdrawn; what a peer may not send ends the connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.runtime_proxy.splice import frames, grpcwire
from roles.runtime_proxy.splice.connection import Connection
from roles.runtime_proxy.splice.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    HeadReader,
    ProtocolFault,
    frame,
)
from roles.runtime_proxy.splice.memory import MemoryBudget
from tests.support import patience

RUNTIME = "/runtime.v1.RuntimeService/"


class Pipe:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def take(self) -> bytes:
        found = bytes(self.written)
        self.written.clear()
        return found

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Service:
    """Hooks `Held` methods with `handler`; remembers how calls ended."""

    def __init__(self, handler: Any = None, room: int = 32 << 20, limit: int = 1000) -> None:
        self.memory = MemoryBudget(room)
        self.handler = handler
        self.codes: list[tuple[str, str]] = []
        self.active = 0
        self.limit = limit
        self.sandbox_status: Any = None

    def accepted(self, connection: Connection, transport: Any) -> None:
        pass

    def begun(self, path: bytes) -> tuple[str, bool | None, Any, bool]:
        self.active += 1
        label = path.decode().rpartition("/")[2]
        return label, True, self.handler if label.startswith("Held") else None, self.active <= self.limit

    def ended(self, label: str, code: str, seconds: float) -> None:
        self.active -= 1
        self.codes.append((label, code))

    def lost(self, connection: Connection) -> None:
        pass


def connected(service: Service) -> tuple[Connection, Pipe, Pipe]:
    """A connection with both ends there and the preface said."""
    connection = Connection(service)  # type: ignore[arg-type]
    caller, engine = Pipe(), Pipe()
    connection.caller.connection_made(caller)  # type: ignore[arg-type]
    connection.engine.connection_made(engine)  # type: ignore[arg-type]
    connection.caller.data_received(PREFACE)
    assert engine.take() == PREFACE
    return connection, caller, engine


def parsed(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        assert at + 9 + length <= len(data), "half a frame"
        found.append((data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + length]))
        at += 9 + length
    return found


def call(encoder: Encoder, stream: int, method: str, *more: tuple[str, str], end: bool = False) -> bytes:
    """A request's HEADERS frame."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", RUNTIME + method), ("content-type", "application/grpc"), *more]
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, encoder.encode(headers))


@st.composite
def conversation(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """What a caller and an engine may send to each other: all kinds of frames, header blocks whole and in parts, padding, extensions."""
    up, down = Encoder(), Encoder()
    said = [bytearray(frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0")), bytearray(frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))]
    numbers = iter(range(1, 1000, 2))

    def block(side: int, stream: int, headers: list[tuple[str, str]], end: bool) -> bytes:
        raw = (up if side == 0 else down).encode(headers, huffman=draw(st.booleans()))
        cut = draw(st.integers(0, len(raw)))
        flags = END_STREAM if end else 0
        match draw(st.integers(0, 3)):
            case 0:
                return frame(HEADERS, flags | END_HEADERS, stream, raw)
            case 1:
                return frame(HEADERS, flags | END_HEADERS | PADDED | PRIORITISED, stream, b"\3" + b"\0\0\0\0\1" + raw + bytes(3))
            case _:
                return frame(HEADERS, flags, stream, raw[:cut]) + frame(CONTINUATION, END_HEADERS, stream, raw[cut:])

    for _ in range(draw(st.integers(1, 12))):
        number = next(numbers)
        path = draw(st.sampled_from(("/a.B/C", RUNTIME + "Version", "/x")))
        key = draw(st.text("abc-", min_size=1, max_size=5)).strip("-") or "k"
        asked = [(":method", "POST"), (":path", path), (key, draw(st.text("xyz", max_size=70))), ("grpc-timeout", "5S")]
        said[0] += block(0, number, asked, False)
        for side in (0, 1):
            if side == 1:
                said[1] += block(1, number, [(":status", "200"), ("content-type", "application/grpc")], False)
            for _ in range(draw(st.integers(0, 3))):
                payload = draw(st.binary(max_size=300))
                padded = draw(st.booleans())
                said[side] += frame(DATA, PADDED if padded else 0, number, bytes((2,)) + payload + bytes(2) if padded else payload)
                said[side] += draw(
                    st.sampled_from(
                        (
                            b"",
                            frame(PING, 0, 0, b"12345678"),
                            frame(PING, ACK, 0, b"abcdefgh"),
                            frame(WINDOW_UPDATE, 0, number, b"\0\0\1\0"),
                            frame(WINDOW_UPDATE, 0, 0, b"\0\0\1\0"),
                            frame(PRIORITY, 0, number, b"\0\0\0\0\1"),
                            frame(0x2A, 7, number, b"an extension"),
                            frame(SETTINGS, 0, 0, b"\0\1\0\0\x20\0\0\5\0\0\x40\0"),
                        )
                    )
                )
        if draw(st.booleans()):
            said[draw(st.integers(0, 1))] += frame(RST_STREAM, 0, number, b"\0\0\0\x08")
        else:
            said[0] += frame(DATA, END_STREAM, number, b"")
            said[1] += block(
                1, number, [("grpc-status", draw(st.sampled_from("05"))), ("grpc-message", "x" * draw(st.integers(0, 9)))], True
            )
    said[1] += frame(GOAWAY, 0, 0, bytes(8))
    return bytes(said[0]), bytes(said[1])


@pytest.mark.feature("RP-CRI-01")
@given(conversation(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_property_what_has_no_hooks_passes_byte_for_byte(said: tuple[bytes, bytes], rng: random.Random) -> None:
    async def scenario() -> None:
        service = Service()
        connection, caller, engine = connected(service)
        left = [said[0], said[1]]
        while left[0] or left[1]:  # cut anywhere, the caller first: an engine answers what it was asked
            side = 0 if left[0] else 1
            size = rng.choice((1, 5, 9, 13, 100, 10_000))
            (connection.caller if side == 0 else connection.engine).data_received(left[side][:size])
            left[side] = left[side][size:]
        assert engine.take() == said[0]
        assert caller.take() == said[1]
        assert (service.active, connection.streams) == (0, {})
        assert (caller.closed, engine.closed) == (False, False)

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
@given(st.lists(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=300)), max_size=6), max_size=12), st.data())
def test_property_header_blocks_are_read_as_a_decoder_reads_them(blocks: list[list[tuple[bytes, bytes]]], data: st.DataObject) -> None:
    encoder, reader = Encoder(), HeadReader()
    reader.allow_table(1 << 16)
    for headers in blocks:
        if data.draw(st.booleans()):
            encoder.header_table_size = data.draw(st.sampled_from((0, 100, 4096, 1 << 16)))
        again = encoder.encode(headers, huffman=data.draw(st.booleans()))
        assert [(bytes(k), bytes(v)) for k, v in reader.read(again)] == headers


@pytest.mark.feature("RP-CRI-01")
@given(st.binary(max_size=60))
def test_property_header_blocks_of_noise_are_read_or_refused(noise: bytes) -> None:
    with contextlib.suppress(ProtocolFault):
        HeadReader().read(noise)


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\x0f"),
        PREFACE + frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, bytes(8)),
        PREFACE + frame(CONTINUATION, END_HEADERS, 1, b"\x82"),
        PREFACE + frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09\x82"),
        PREFACE + frame(5, END_HEADERS, 1, b"\0\0\0\2"),
        PREFACE + frame(HEADERS, END_HEADERS, 1, Encoder().encode([(":path", "/a"), (":path", RUNTIME + "RunPodSandbox")])),
        PREFACE + (b"\xff\xff\xff\x04\0\0\0\0\0"),
    ],
)
def test_what_is_no_http2_ends_the_connection(sent: bytes) -> None:
    async def scenario() -> None:
        connection = Connection(Service())  # type: ignore[arg-type]
        caller, engine = Pipe(), Pipe()
        connection.caller.connection_made(caller)  # type: ignore[arg-type]
        connection.engine.connection_made(engine)  # type: ignore[arg-type]
        connection.caller.data_received(sent)
        assert caller.closed
        assert engine.closed
        assert parsed(caller.take())[-1][0] == GOAWAY

    asyncio.run(scenario())


class Model:
    """A caller and an engine that keep to flow control, and check that the other does."""

    def __init__(self, connection: Connection, caller: Pipe, engine: Pipe, rng: random.Random, window: int) -> None:
        self.connection, self.caller, self.engine, self.rng = connection, caller, engine, rng
        self.encoder, self.answers = Encoder(), Encoder()
        self.window, self.windows = frames.FIRST_WINDOW, {}  # what the caller may send
        self.first = frames.FIRST_WINDOW  # a new stream's window, as the caller knows it
        self.agreed = frames.FIRST_WINDOW  # the same as the engine counts it: once the caller acknowledged it
        self.asked: list[int] = []  # settings that wait for the caller, and those whose acknowledgement waits for the engine
        self.acknowledged: list[int] = []
        self.credit, self.credits = frames.FIRST_WINDOW, {}  # what the engine allowed
        self.unsent: dict[int, bytes] = {}
        self.got: dict[int, bytes] = {}
        self.done: set[int] = set()
        self.unread = 0
        self.ask(window)
        if rng.random() < 0.5:
            self.acknowledge()

    def ask(self, window: int) -> None:
        """The engine wants another window for streams."""
        self.connection.engine.data_received(frame(SETTINGS, 0, 0, b"\0\4" + window.to_bytes(4, "big")))
        self.asked.append(window)
        self.look()

    def acknowledge(self) -> None:
        """The caller does as the engine asked, and says so."""
        if self.asked:
            window = self.asked.pop(0)
            self.windows = {stream: left + window - self.first for stream, left in self.windows.items()}
            self.first = window
            self.acknowledged.append(window)
            self.connection.caller.data_received(frame(SETTINGS, ACK, 0))
            self.look()

    def open(self, stream: int, method: str, message: bytes) -> None:
        self.windows[stream], self.credits[stream] = self.first, self.agreed
        self.got[stream] = b""
        self.unsent[stream] = grpcwire.envelope(message)
        self.connection.caller.data_received(call(self.encoder, stream, method))
        self.look()

    def send(self, stream: int) -> bool:
        """A caller's DATA frame, if it may send one."""
        left = self.unsent[stream]
        size = min(len(left), self.window, self.windows[stream], self.rng.choice((1, 100, 16384)))
        if size <= 0:
            return False
        self.window -= size
        self.windows[stream] -= size
        self.unsent[stream] = left[size:]
        last = not self.unsent[stream]
        if last:
            del self.unsent[stream]
        self.connection.caller.data_received(frame(DATA, END_STREAM if last else 0, stream, left[:size]))
        self.look()
        return True

    def repay(self) -> None:
        """The engine gives credit back for what it read, and to a stream at times more than that."""
        for stream in self.credits:
            if stream not in self.done and self.rng.random() < 0.1:
                self.credits[stream] += 10
                self.connection.engine.data_received(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\x0a"))
        if self.unread:
            amount, self.unread = self.unread, 0
            self.credit += amount
            self.connection.engine.data_received(frame(WINDOW_UPDATE, 0, 0, amount.to_bytes(4, "big")))
        for stream, credit in self.credits.items():
            if stream not in self.done and credit < self.agreed // 2:
                self.credits[stream] = self.agreed
                self.connection.engine.data_received(frame(WINDOW_UPDATE, 0, stream, (self.agreed - credit).to_bytes(4, "big")))
        self.look()

    def look(self) -> None:
        """Read what came out at both ends."""
        for kind, flags, stream, payload in parsed(self.engine.take()):
            if kind == SETTINGS and flags & ACK:
                window = self.acknowledged.pop(0)
                self.credits = {number: left + window - self.agreed for number, left in self.credits.items()}
                self.agreed = window
            elif kind == DATA:
                self.credit -= len(payload)
                self.credits[stream] -= len(payload)
                self.unread += len(payload)
                assert self.credit >= 0, "the connection's credit is overdrawn"
                assert self.credits[stream] >= 0 or not payload, "a stream's credit is overdrawn"
                self.got[stream] += payload
                if flags & END_STREAM:
                    self.done.add(stream)
                    head = frame(HEADERS, END_HEADERS, stream, self.answers.encode([(":status", "200")]))
                    trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, self.answers.encode([("grpc-status", "0")]))
                    self.connection.engine.data_received(head + frame(DATA, 0, stream, grpcwire.envelope(b"ok")) + trailers)
        for kind, _, stream, payload in parsed(self.caller.take()):
            if kind == WINDOW_UPDATE and stream == 0:
                self.window += int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE:
                self.windows[stream] += int.from_bytes(payload, "big")


@pytest.mark.feature("RP-CRI-01")
@pytest.mark.feature("RP-CRI-03")
@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_property_credit_is_never_overdrawn_and_nothing_starves(seed: int) -> None:
    """Held requests that hooks make longer or shorter, beside others, against an engine that keeps account."""

    async def scenario() -> None:
        rng = random.Random(seed)
        changed: dict[bytes, bytes] = {}

        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            for _ in range(rng.choice((0, 0, 3))):
                await asyncio.sleep(0)
            factor = rng.choice((0, 1, 1, 2))
            changed[message[:4]] = message[:4] + message[4:] * factor
            assert await engine.forward(changed[message[:4]]) == b"ok"
            return b"ok"

        window = rng.choice((1000, 65535, 1 << 20))
        service = Service(handler, room=2 << 20 if window < 1 << 20 else 32 << 20)
        connection, caller, engine = connected(service)
        model = Model(connection, caller, engine, rng, window)
        messages = {}
        for number in range(1, 2 * rng.choice((1, 5, 20)), 2):
            size = rng.choice((0, 50, 5000, 70_000, 250_000))
            messages[number] = number.to_bytes(4, "big") + rng.randbytes(1) * size
            model.open(number, rng.choice(("Held", "Version")), messages[number])
        for _ in range(200_000):
            if len(model.done) == len(messages):
                break
            moved = [stream for stream in list(model.unsent) if rng.random() < 0.7 and model.send(stream)]
            if rng.random() < 0.3 or not moved:
                model.repay()
            if rng.random() < 0.02:
                model.ask(rng.choice((1000, 65535, window)))
            if rng.random() < 0.1:
                model.acknowledge()
            await asyncio.sleep(0)
        assert len(model.done) == len(messages), "a call starves"
        for number, message in messages.items():
            assert model.got[number] == grpcwire.envelope(changed.get(message[:4], message))
        for _ in range(20):
            await asyncio.sleep(0)
            model.repay()
        assert not connection.streams
        assert (service.memory.free, service.memory.loose) == (service.memory.size, 0)
        assert model.window == model.credit  # the caller knows all of the engine's credit, and no more

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_a_request_that_is_refused_leaves_both_ends_in_step() -> None:
    async def scenario() -> None:
        connection, caller, engine = connected(Service(limit=1))
        up, down = Encoder(), Encoder()
        connection.caller.data_received(call(up, 1, "Version") + call(up, 3, "Version", ("k", "v")) + frame(DATA, END_STREAM, 3, b"12345"))
        passed = parsed(engine.take())
        assert [(kind, stream) for kind, _, stream, _ in passed] == [(HEADERS, 1), (HEADERS, 3), (RST_STREAM, 3)]
        told = parsed(caller.take())
        assert [(kind, stream) for kind, _, stream, _ in told] == [(HEADERS, 3), (WINDOW_UPDATE, 0)]
        status = dict(HeadReader().read(told[0][3]))
        assert status[b"grpc-status"] == b"8"
        # The engine's answer was on its way: its table must reach the caller, its data must not, and its credit is given back.
        late = down.encode([(":status", "200"), ("content-type", "application/grpc")])
        connection.engine.data_received(
            frame(HEADERS, END_HEADERS, 3, late) + frame(DATA, 0, 3, b"123") + frame(RST_STREAM, 0, 3, bytes(4))
        )
        assert parsed(caller.take()) == [(HEADERS, END_HEADERS, 3, late)]
        assert parsed(engine.take()) == [(WINDOW_UPDATE, 0, 0, b"\0\0\0\3")]
        connection.engine.data_received(frame(HEADERS, END_HEADERS | END_STREAM, 3, down.encode([(":status", "200")])))
        assert caller.take() == b""
        answer = frame(HEADERS, END_HEADERS | END_STREAM, 1, down.encode([(":status", "200"), ("content-type", "application/grpc")]))
        connection.engine.data_received(answer)
        assert caller.take() == answer

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
@pytest.mark.parametrize("how", ["reset", "engine ends", "caller leaves", "engine leaves"])
def test_a_held_call_that_ends_early_never_reaches_the_engine(how: str) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            try:
                await asyncio.sleep(60)
            finally:
                gone.set()
            return b""

        service = Service(handler)
        connection, caller, engine = connected(service)
        encoder = Encoder()
        connection.caller.data_received(call(encoder, 1, "Held") + frame(DATA, END_STREAM, 1, grpcwire.envelope(b"m" * 100)))
        await asyncio.sleep(0.01)
        if how == "reset":
            connection.caller.data_received(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
        elif how == "engine ends":
            connection.engine.data_received(frame(HEADERS, END_HEADERS | END_STREAM, 1, Encoder().encode([("grpc-status", "4")])))
        elif how == "caller leaves":
            connection.caller.connection_lost(None)
        else:
            connection.engine.connection_lost(None)
        await asyncio.wait_for(gone.wait(), patience.seconds(5))
        assert DATA not in [kind for kind, *_ in parsed(engine.take())]
        credit = [payload for kind, _, stream, payload in parsed(caller.take()) if (kind, stream) == (WINDOW_UPDATE, 0)]
        assert credit == [(105).to_bytes(4, "big")]
        code = {"reset": "CANCELLED", "engine ends": "DEADLINE_EXCEEDED", "caller leaves": "CANCELLED", "engine leaves": "UNAVAILABLE"}
        assert service.codes == [("Held", code[how])]
        assert service.memory.free == service.memory.size

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
def test_an_empty_frame_of_a_request_with_hooks_is_no_fault() -> None:
    """It earns no credit: an increment of 0 is an error of the one who sends it, and the caller would end the call."""

    async def scenario() -> None:
        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            found: bytes = await engine.forward(message)
            return found

        connection, caller, engine = connected(Service(handler))
        body = grpcwire.envelope(b"m" * 100)
        connection.caller.data_received(call(Encoder(), 1, "Held"))
        for part in (b"", body[:3], b"", body[3:50], b"", body[50:]):
            connection.caller.data_received(frame(DATA, 0, 1, part))
        connection.caller.data_received(frame(DATA, END_STREAM, 1))
        await asyncio.sleep(0.01)
        assert b"".join(payload for kind, _, _, payload in parsed(engine.take()) if kind == DATA) == body
        credit = [int.from_bytes(payload, "big") for kind, _, _, payload in parsed(caller.take()) if kind == WINDOW_UPDATE]
        assert credit == [50, 55]

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
def test_a_request_with_hooks_that_goes_on_behind_its_message_is_refused_at_once() -> None:
    """It is accounted for by its message's length: what comes behind would be kept without a bound."""

    async def scenario() -> None:
        connection, caller, engine = connected(Service(lambda *_: asyncio.sleep(60)))
        connection.caller.data_received(call(Encoder(), 1, "Held") + frame(DATA, 0, 1, grpcwire.envelope(b"m" * 100)))
        assert connection.streams
        caller.take()
        connection.caller.data_received(frame(DATA, 0, 1, b"more"))
        assert not connection.streams
        told = parsed(caller.take())
        assert dict(HeadReader().read(next(payload for kind, _, _, payload in told if kind == HEADERS)))[b"grpc-status"] == b"13"
        assert [kind for kind, *_ in parsed(engine.take())] == [HEADERS, RST_STREAM]
        assert sum(int.from_bytes(payload, "big") for kind, _, stream, payload in told if (kind, stream) == (WINDOW_UPDATE, 0)) == 109

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-03")
@pytest.mark.parametrize("cut", [0, 1])
def test_padding_of_a_request_with_hooks_is_credited_and_not_kept(cut: int) -> None:
    """It counts for nothing in the message's length: a caller could have it kept without a bound. And a frame that goes to the engine in
    parts must not carry it as content."""

    async def scenario() -> None:
        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            found: bytes = await engine.forward(message)
            return found

        connection, caller, engine = connected(Service(handler))
        body = grpcwire.envelope(b"m" * 100)[: 105 - cut]
        connection.caller.data_received(call(Encoder(), 1, "Held") + frame(DATA, 0, 1, body[:50]))
        held = connection.streams[1].held
        for _ in range(1000):
            connection.caller.data_received(frame(DATA, PADDED, 1, b"\xfe" + bytes(254)))
        assert sum(len(payload) for _, payload in held._frames) == 50
        credit = [int.from_bytes(p, "big") for kind, _, stream, p in parsed(caller.take()) if (kind, stream) == (WINDOW_UPDATE, 1)]
        assert credit == [50, *[255] * 1000]
        held.window = 20  # of the engine's
        connection.caller.data_received(frame(DATA, PADDED | END_STREAM, 1, b"\x80" + body[50:] + bytes(128)))
        await asyncio.sleep(0.01)
        connection.engine.data_received(frame(WINDOW_UPDATE, 0, 1, b"\0\0\2\0"))
        sent = [(flags, payload) for kind, flags, _, payload in parsed(engine.take()) if kind == DATA]
        assert b"".join(payload for _, payload in sent) == body
        assert [flags for flags, _ in sent] == [*[0] * (len(sent) - 1), END_STREAM]

    asyncio.run(scenario())


def test_small_requests_find_room_first() -> None:
    room, order = MemoryBudget(100), []
    first = room.ask(80, lambda: order.append("first"))
    tickets = [room.ask(size, lambda size=size: order.append(size)) for size in (90, 30, 20)]
    assert order == ["first", 20]
    tickets[1].close()
    first.close()
    assert order == ["first", 20]
    tickets[2].close()
    assert order == ["first", 20, 90]
    tickets[0].close()
    assert room.free == 100


@pytest.mark.parametrize(
    ("text", "seconds"), [(b"5S", 5.0), (b"100m", 0.1), (b"2H", 7200.0), (b"", None), (b"5", None), (b"x5S", None), (b"999999999S", None)]
)
def test_timeouts_are_read_as_grpc_writes_them(text: bytes, seconds: float | None) -> None:
    assert grpcwire.timeout_of([(b"grpc-timeout", text)]) == seconds


def test_status_texts_are_percent_encoded_and_not_too_long() -> None:
    assert grpcwire.percent_encoded("50% ü\n") == b"50%25 %C3%BC%0A"
    assert len(grpcwire.percent_encoded("x" * 100_000)) == 4096


@pytest.mark.feature("RP-CRI-03")
def test_a_request_that_waits_for_memory_gets_it_whatever_the_engine_credits() -> None:
    async def scenario() -> None:
        hold = asyncio.Event()

        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            await hold.wait()
            found: bytes = await engine.forward(message)
            return found

        service = Service(handler, room=150)
        connection, _, engine = connected(service)
        encoder = Encoder()
        for number in (1, 3):
            connection.caller.data_received(call(encoder, number, "Held") + frame(DATA, END_STREAM, number, grpcwire.envelope(b"m" * 100)))
        await asyncio.sleep(0.01)
        for number in (1, 3):
            connection.engine.data_received(frame(WINDOW_UPDATE, 0, number, b"\0\0\1\0"))
        assert (service.memory.free, service.memory.loose) == (0, 0)
        engine.take()
        hold.set()
        await asyncio.sleep(0.01)
        assert [(kind, stream) for kind, _, stream, _ in parsed(engine.take())] == [(DATA, 1)]
        connection.engine.data_received(frame(HEADERS, END_HEADERS | END_STREAM, 1, Encoder().encode([("grpc-status", "5")])))
        await asyncio.sleep(0.01)
        assert [(kind, stream) for kind, _, stream, _ in parsed(engine.take())] == [(DATA, 3)]

    asyncio.run(scenario())


@pytest.mark.feature("RP-CRI-01")
def test_a_larger_window_is_used_once_the_caller_acknowledged_it() -> None:
    """The engine counts by its settings from then on; a byte before would be one too many."""

    async def scenario() -> None:
        async def handler(message: bytes, engine: Any, deadline: Any) -> bytes:
            found: bytes = await engine.forward(message * 2)
            return found

        connection, _, engine = connected(Service(handler))
        connection.caller.data_received(call(Encoder(), 1, "Held"))
        connection.engine.data_received(frame(SETTINGS, 0, 0, b"\0\4\0\2\0\0") + frame(WINDOW_UPDATE, 0, 0, b"\0\2\0\0"))
        message = grpcwire.envelope(b"m" * 40_000)
        for at in range(0, len(message), 10_000):
            part = message[at : at + 10_000]
            connection.caller.data_received(frame(DATA, END_STREAM if at + 10_000 >= len(message) else 0, 1, part))
        await asyncio.sleep(0.01)
        assert sum(len(payload) for kind, _, _, payload in parsed(engine.take()) if kind == DATA) == 65_535
        connection.caller.data_received(frame(SETTINGS, ACK, 0))
        await asyncio.sleep(0.01)
        passed = parsed(engine.take())
        assert passed[0][:2] == (SETTINGS, ACK)
        assert sum(len(payload) for kind, _, _, payload in passed if kind == DATA) == 80_005 - 65_535

    asyncio.run(scenario())
