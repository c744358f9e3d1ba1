"""A request that is held: collected, shown to hooks, sent on, and its answer read along as it passes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy.deadline import Deadline
from roles.runtime_proxy.interceptor import Engine
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.splice import grpcwire
from roles.runtime_proxy.splice.frames import DATA, END_STREAM, PADDED, SAFE_PAYLOAD, Headers, ProtocolFault, frame, unpadded, window_update
from roles.runtime_proxy.splice.grpcwire import ENVELOPE, NOT_ONE, MessageFault
from roles.runtime_proxy.splice.memory import MemoryBudget, Ticket
from roles.runtime_proxy.stages import HookRefusal

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

MAX_REQUEST = 16 << 20  # bytes of a request with hooks: what kubelet and the runtimes allow
_COPIES = 3  # of a message that exist until its answer: as it came, read, and as it is sent on
MAX_ANSWER = 1 << 20  # bytes of an answer that is read along; those of the hooked calls hold an id at most

Handler = Callable[[bytes, Engine, Deadline | None], Awaitable[bytes]]
SandboxStatus = Callable[[str], Awaitable[cri.PodSandboxStatusResponse | None]]


class Socket(Protocol):
    """What a held request sees of the engine's socket."""

    full: bool


class HoldingConnection(Protocol):
    """What a held request asks of its connection, which says what each means."""

    memory: MemoryBudget
    sandbox_status: SandboxStatus
    sending: dict[int, Held]
    window: int
    stream_window: int

    @property
    def engine(self) -> Socket: ...

    def refuse(self, number: int, code: str, text: str) -> None: ...

    def settle(self, held: Held, count: int) -> None: ...

    def to_caller(self, data: bytes) -> None: ...

    def to_engine(self, data: bytes) -> None: ...


class Refused(Exception):
    """The engine answered with an error, which is on its way to the caller."""


class Held:
    """One stream whose request waits for hooks. The caller's headers went on as they came; only its message is held.

    Credit: what the caller sends here is given back by the connection, so that a slow hook holds up nobody else; what is sent on
    takes of the credit that the engine gives, which therefore is not told to the caller.
    """

    def __init__(self, connection: HoldingConnection, stream: int, handler: Handler, headers: Headers) -> None:
        self.stream = stream
        self.window = connection.stream_window  # bytes that the engine takes on this stream now
        self.owed = 0  # bytes of the caller's connection credit that were not given back
        self._connection = connection
        self._handler = handler
        self._encoding = grpcwire.value_of(headers, b"grpc-encoding")
        self._fixed_length = bool(grpcwire.value_of(headers, b"content-length"))
        self._deadline = Deadline(grpcwire.timeout_of(headers))
        self._frames: list[tuple[int, bytes]] = []
        self._shape: list[tuple[int, int]] = []  # flags and lengths of the frames that the message came in, where it alone is kept
        self._forwarded = False
        self._start = b""
        self._size = 0  # bytes that came of the body
        self._uncredited = 0  # bytes of the caller's stream credit that were not given back
        self._ticket: Ticket | None = None
        self._complete = False
        self._message: bytes | None = None
        self._sending: deque[tuple[int, bytes]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._answer_encoding = b""
        self._answer_body = bytearray()

    # -- the request --------------------------------------------------------------------------------------------------------------

    def take(self, flags: int, payload: bytes) -> None:
        """A DATA frame of the caller."""
        if self._complete:
            raise ProtocolFault("data after the end of a request")
        content = unpadded(flags, payload)
        self._complete = bool(flags & END_STREAM)
        if not payload and not self._complete:
            return  # it says nothing, and earns no credit
        if content or self._complete:  # padding counts for nothing, and would be kept without a bound
            self._frames.append((flags & ~PADDED, content))
        self._uncredited += len(payload)
        self._size += len(content)
        self._start += content[: ENVELOPE - len(self._start)]
        length = grpcwire.message_length(self._start)
        if length is not None and self._size > length:  # what the message's length does not account for is not collected
            self._connection.refuse(self.stream, "INTERNAL", NOT_ONE)
            return
        if self._ticket is None:
            if length is not None and length > MAX_REQUEST + ENVELOPE:
                text = f"a request of {length - ENVELOPE} bytes with hooks: at most {MAX_REQUEST} are accepted"
                self._connection.refuse(self.stream, "RESOURCE_EXHAUSTED", text)
                return
            if length is not None or self._complete:
                memory = self._connection.memory
                self._ticket = memory.ask(min((length or 0) * _COPIES, memory.size), self._granted)
                return
        if self._ticket is not None and self._ticket.held:
            self._granted()
        elif self._ticket is not None and not self._ticket.wait_with(len(content)):
            text = "koord runtime-proxy: too much waits for memory"
            self._connection.refuse(self.stream, "RESOURCE_EXHAUSTED", text)

    def _granted(self) -> None:
        """There is memory for the whole message."""
        if not self._complete:
            self._connection.to_caller(window_update(self.stream, self._uncredited))
            self._uncredited = 0
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._decide())

    async def _decide(self) -> None:
        try:
            body = b"".join(content for _, content in self._frames)
            if (grpcwire.message_length(body) or ENVELOPE) > len(body):
                self._send(self._frames)  # a message cut short: the engine, which can do nothing with it, says so in its own words
                return
            self._message = grpcwire.only_message(body, self._encoding, MAX_REQUEST)
            if body[0] == 0:  # made again from the message when it is sent on
                self._shape = [(flags, len(content)) for flags, content in self._frames]
                self._frames = []
            del body
            await self._handle(self._message)
        except MessageFault as fault:
            self._connection.refuse(self.stream, fault.code, str(fault))
        except HookRefusal as refusal:
            self._connection.refuse(self.stream, "UNKNOWN", str(refusal))
        except Refused:
            pass
        except Exception:
            log.exception("a call with hooks failed")
            if self._answer is None:
                self._connection.refuse(self.stream, "INTERNAL", "koord runtime-proxy: an error of its own; see its log")

    async def _handle(self, message: bytes) -> None:
        engine = Engine(self._forward, self._connection.sandbox_status)
        try:
            await self._handler(message, engine, self._deadline)
        except DecodeError as error:
            # No valid message: the engine, which was not asked yet, says so in its own words.
            log.warning("a request with hooks cannot be decoded (%s); forwarded as it came", error)
            await self._forward(message)

    async def _forward(self, message: bytes) -> bytes:
        """Send a message on and wait for the answer to it. Raises Refused."""
        same, found = message == self._message, self._frames
        if self._fixed_length and not same:
            raise MessageFault("a request whose headers give its length cannot be changed by hooks", "INVALID_ARGUMENT")
        if not same or self._shape:
            body = grpcwire.envelope(message)
            shape = self._shape if same and self._shape else _shape_of(len(body))
            found, at = [], 0
            for flags, length in shape:
                found.append((flags, body[at : at + length]))
                at += length
        self._answer = asyncio.get_running_loop().create_future()
        self._message = None
        self._send(found)
        return await self._answer

    def _send(self, found: list[tuple[int, bytes]]) -> None:
        self._sending = deque(found)
        self._forwarded = True
        self._frames = []
        self._connection.settle(self, sum(len(payload) for _, payload in found))
        self.pump()

    def pump(self) -> None:
        """Send on as much as the engine takes."""
        if not self._sending:
            return
        connection = self._connection
        while self._sending:
            if connection.engine.full:  # what the socket does not take yet stays here, where it is counted
                connection.sending[self.stream] = self
                return
            flags, payload = self._sending[0]
            credit = min(self.window, connection.window)
            if not payload or len(payload) <= credit:
                self._sending.popleft()
            elif credit > 0:
                size = min(credit, SAFE_PAYLOAD)
                self._sending[0] = (flags, payload[size:])
                flags, payload = 0, payload[:size]
            else:
                connection.sending[self.stream] = self
                return
            self.window -= len(payload)
            connection.window -= len(payload)
            connection.to_engine(frame(DATA, flags, self.stream, payload))
        connection.sending.pop(self.stream, None)

    @property
    def sent(self) -> bool:
        """Whether the whole request went to the engine."""
        return self._forwarded and not self._sending

    # -- the answer ---------------------------------------------------------------------------------------------------------------

    def answer_head(self, headers: Headers) -> None:
        """The answer's first headers."""
        self._answer_encoding = grpcwire.value_of(headers, b"grpc-encoding")

    def answer_data(self, flags: int, payload: bytes) -> None:
        """A DATA frame of the answer, which passes."""
        if len(self._answer_body) <= MAX_ANSWER:
            self._answer_body += unpadded(flags, payload)

    def over(self, code: str) -> None:
        """The call has ended; OK is the engine's answer, anything else an end of another kind."""
        self._sending.clear()
        self._frames = []
        if self._ticket is not None:
            self._ticket.close()
        if self._answer is None or self._answer.done():
            if self._task is not None and self._task is not _current():
                self._task.cancel()
        elif code == "OK":
            self._answer.set_result(self._read_answer())
        elif code == "CANCELLED":
            assert self._task is not None
            self._task.cancel()
        else:
            self._answer.set_exception(Refused(code))

    def _read_answer(self) -> bytes:
        try:
            return grpcwire.only_message(bytes(self._answer_body), self._answer_encoding, MAX_ANSWER)
        except MessageFault as fault:
            log.warning("the engine's answer to a call with hooks cannot be read (%s); what it made is not known to hooks", fault)
            return b""


class Stream:
    """A call under way."""

    __slots__ = ("answered", "gives_up", "held", "label", "started", "unary")

    def __init__(self, label: str, unary: bool, started: float, timeout: float | None) -> None:
        self.label = label
        self.unary = unary
        self.started = started
        self.gives_up = None if timeout is None else started + timeout
        self.answered = False  # whether the answer's first headers went to the caller
        self.held: Held | None = None


def _shape_of(length: int) -> list[tuple[int, int]]:
    """Flags and lengths of the frames for a body of so many bytes that every engine takes."""
    found = [(0, min(SAFE_PAYLOAD, length - at)) for at in range(0, length, SAFE_PAYLOAD)]
    found[-1] = (END_STREAM, found[-1][1])
    return found


def _current() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
