"""HTTP/1.1 from bytes, however they are cut; pure. Answers are read here, requests in `koord.process.requests`, bodies in one way."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_DECIMAL = re.compile(r"[0-9]{1,15}")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{1,12}")
MAX_HEAD = 65536  # bytes of status line and headers


class ProtocolError(Exception):
    """What came is no HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that was read to its end. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class MessageParser:
    """Reads one message: its head as a subclass says, then its body. Feed it until `done`."""

    __slots__ = ("_buffer", "_chunks", "_left", "_mode")
    _steps: ClassVar[dict[str, Callable[[Any, bytes, int], int]]]

    def __init__(self) -> None:
        self._buffer = b""
        self._chunks: list[bytes] = []
        self._left = 0
        self._mode = "head"

    @property
    def done(self) -> bool:
        """Whether the message is complete."""
        return self._mode == "done"

    @property
    def begun(self) -> bool:
        """Whether the head is complete."""
        return self._mode != "head"

    def drain(self) -> list[bytes]:
        """What has come of the body since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def _read(self, data: bytes) -> bytes:
        """More bytes. Returns those behind the end of the message. Raises ProtocolError."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at = 0
        while self._mode != "done":
            at = self._steps[self._mode](self, data, at)
            if at < 0:
                return b""
        return data[at:]

    # -- states: each reads data from a position and returns the position of the next state, or -1 if it needs more --

    def _wait(self, data: bytes, at: int, limit: int, what: str) -> int:
        """Keep what is there until more comes."""
        if len(data) - at > limit:
            raise ProtocolError(f"{what} too long")
        self._buffer = data[at:]
        return -1

    def _take(self, data: bytes, at: int) -> int:
        """Take what is left of a body or chunk, as far as it is there."""
        taken = data[at : at + self._left]
        if taken:
            self._chunks.append(taken)
            self._left -= len(taken)
        return at + len(taken)

    def _length(self, data: bytes, at: int) -> int:
        at = self._take(data, at)
        if self._left:
            return -1
        self._mode = "done"
        return at

    def _size(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            return self._wait(data, at, 1024, "a chunk's size is")
        text = data[at:end].split(b";", 1)[0].strip()
        if not _HEXADECIMAL.fullmatch(text):
            raise ProtocolError(f"a chunk's size is {text[:20]!r}")
        self._left = int(text, 16)
        self._mode = "chunk" if self._left else "trailer"
        return end + 2

    def _chunk(self, data: bytes, at: int) -> int:
        at = self._take(data, at)
        if self._left:
            return -1
        if len(data) - at < 2:
            return self._wait(data, at, 1, "a chunk's end is")
        if data[at : at + 2] != b"\r\n":
            raise ProtocolError("a chunk does not end where it should")
        self._mode = "size"
        return at + 2

    def _trailer(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            return self._wait(data, at, MAX_HEAD, "the trailers are")
        if end == at:
            self._mode = "done"
        return end + 2


class AnswerParser(MessageParser):
    """Reads one answer. Feed it until `done`; `keep_alive` then says whether the connection can be used again.

    `tunnel`: the answer to a CONNECT, which ends with its headers, and whose connection then is somebody else's.
    """

    __slots__ = ("_tunnel", "headers", "keep_alive", "started", "status")

    def __init__(self, *, tunnel: bool = False) -> None:
        super().__init__()
        self.status = 0
        self._tunnel = tunnel
        self.headers: dict[str, str] = {}
        self.keep_alive = True
        self.started = False

    def response(self) -> Response:
        """The complete answer, decompressed. Raises ProtocolError."""
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        if body and self.headers.get("content-encoding") == "gzip":
            try:
                body = zlib.decompress(body, wbits=zlib.MAX_WBITS | 16)
            except zlib.error as error:
                raise ProtocolError(f"the body cannot be decompressed: {error}") from error
        return Response(self.status, self.headers, body)

    def feed(self, data: bytes) -> None:
        """More bytes. Bytes behind the end of the answer make the connection unusable. Raises ProtocolError."""
        self.started = True
        if self._read(data):
            self.keep_alive = False

    def end(self) -> bool:
        """The connection was closed; True if that completes the answer (it had no length)."""
        if self._mode == "close":
            self._mode = "done"
            self.keep_alive = False
        return self._mode == "done"

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return self._wait(data, at, MAX_HEAD, "the headers are")
        lines = data[at:end].decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not _DECIMAL.fullmatch(parts[1]):
            raise ProtocolError(f"not an HTTP/1.1 answer: {lines[0][:80]!r}")
        self.status = int(parts[1])
        headers = self.headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"not a header: {line[:80]!r}")
            headers[name.lower()] = value.strip()
        if not 100 <= self.status < 200:  # an informational one is followed by the answer itself
            connection = headers.get("connection", "").lower()
            self.keep_alive = "close" not in connection and (parts[0] == "HTTP/1.1" or "keep-alive" in connection)
            self._choose_body()
            self.keep_alive = self.keep_alive or self._tunnel
        return end + 4

    def _choose_body(self) -> None:
        headers = self.headers
        if self._tunnel or self.status in (204, 304):
            self._mode = "done"
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._mode = "size"
        elif "content-length" in headers:
            length = headers["content-length"]
            if not _DECIMAL.fullmatch(length):
                raise ProtocolError(f"content-length is {length!r}")
            self._left = int(length)
            self._mode = "length" if self._left else "done"
        else:
            self._mode = "close"

    def _close(self, data: bytes, at: int) -> int:
        self._chunks.append(data[at:])
        return -1


BODY_STEPS = {
    "length": MessageParser._length,
    "size": MessageParser._size,
    "chunk": MessageParser._chunk,
    "trailer": MessageParser._trailer,
}
AnswerParser._steps = BODY_STEPS | {"head": AnswerParser._head, "close": AnswerParser._close}
