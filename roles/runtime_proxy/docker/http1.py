"""As much of HTTP/1.1 as a transparent proxy needs: heads, body framing, copying. Bytes pass as they are; only framing is understood."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_HEAD = 1 << 20
MAX_LINE = 64 << 10
_VERSIONS = ("HTTP/1.1", "HTTP/1.0")
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CHUNK = 64 << 10

CHUNKED = -1  # body framing beside a length in bytes
UNTIL_CLOSE = -2


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1; the text says what was found."""


class TooLarge(ProtocolError):
    """A body that has to be read as a whole is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request's or a response's first line and headers. `raw` holds them as they came, empty line included."""

    raw: bytes
    start: tuple[str, str, str]
    headers: tuple[tuple[str, bytes], ...]  # lower-case name, whole line

    def values(self, name: str) -> list[str]:
        return [line.split(b":", 1)[1].strip().decode("latin-1") for key, line in self.headers if key == name]

    def says(self, name: str, word: str) -> bool:
        """Whether a comma-separated header contains a word."""
        return any(word == part.strip().lower() for value in self.values(name) for part in value.split(","))

    @property
    def status(self) -> int:
        """Status of a response."""
        return int(self.start[1])

    @property
    def closes(self) -> bool:
        """Whether the connection ends after this message."""
        old = "HTTP/1.0" in (self.start[0], self.start[2])
        return self.says("connection", "close") or (old and not self.says("connection", "keep-alive"))

    def reframed(self, length: int | None, without: Iterable[str] = ()) -> bytes:
        """The head for a body that is sent as a whole; None leaves out a length (for answers without a body)."""
        dropped = {"content-length", "transfer-encoding", "trailer", *without}
        lines = [self.raw.split(b"\r\n", 1)[0], *(line for key, line in self.headers if key not in dropped)]
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        return b"\r\n".join(lines) + b"\r\n\r\n"


def parse_head(raw: bytes) -> Head:
    """Parse a head. Raises ProtocolError."""
    first, *lines = raw[:-4].split(b"\r\n")
    words = first.decode("latin-1").split(" ", 2)
    if len(words) < 2 or not (words[0] in _VERSIONS or (words[-1] in _VERSIONS and len(words) == 3 and words[0])):
        raise ProtocolError(f"this is no HTTP/1.1: {first[:60]!r}")
    if found := _CONTROLS.search(raw[:-4].replace(b"\r\n", b"")):
        raise ProtocolError(f"a head with {found[0]!r} in it; lines end in CR LF")
    if words[0] in _VERSIONS and not (len(words[1]) == 3 and words[1].isdecimal()):
        raise ProtocolError(f"no status code in {first[:60]!r}")
    headers = []
    for line in lines:
        name, colon, _ = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise ProtocolError(f"no header: {line[:60]!r}")
        headers.append((name.decode("latin-1").lower(), line))
    return Head(raw, (words[0], words[1], words[2] if len(words) > 2 else ""), tuple(headers))


def request_framing(head: Head) -> int:
    """Length of a request's body in bytes, or CHUNKED. Raises ProtocolError where two readers could disagree."""
    framing = _framing(head)
    return 0 if framing is None else framing


def response_framing(head: Head, method: str) -> int:
    """Length of a response's body in bytes, CHUNKED or UNTIL_CLOSE."""
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return 0
    framing = _framing(head)
    return UNTIL_CLOSE if framing is None else framing


def _framing(head: Head) -> int | None:
    lengths, encodings = set(head.values("content-length")), head.values("transfer-encoding")
    if encodings:
        if "HTTP/1.0" in (head.start[0], head.start[2]):
            raise ProtocolError("HTTP/1.0 has no Transfer-Encoding")
        if lengths or [e.lower() for e in encodings] != ["chunked"]:
            raise ProtocolError("Transfer-Encoding must be chunked and alone, without Content-Length")
        return CHUNKED
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdecimal()) or len(length) > 18:
        raise ProtocolError("Content-Length must be one number")
    return int(length)


class Source:
    """What a peer sends, with what was read too far kept for the next reader."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    @property
    def ended(self) -> bool:
        """Whether the peer closed its side and nothing is left."""
        return not self._buffer and self._reader.at_eof()

    async def fill(self) -> bool:
        """Wait for more; False at the end. May be cancelled without loss."""
        data = await self._reader.read(CHUNK)
        self._buffer += data
        return bool(data)

    async def begun(self) -> bool:
        """Wait for the first byte of what comes next; False when the peer ends instead."""
        return bool(self._buffer) or await self.fill()

    async def head(self) -> Head | None:
        """The next head, or None when the peer ended before one began. Raises ProtocolError."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError(f"a head of more than {MAX_HEAD} bytes")
            if _BARE_LF.search(self._buffer):  # for some it ends the head, and for others not
                raise ProtocolError("a line that ends in LF alone")
            if not await self.fill():
                if self._buffer:
                    raise ProtocolError("the connection ended within a head")
                return None
        raw = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        return parse_head(raw)

    async def some(self, limit: int = CHUNK) -> bytes:
        """Between 1 and `limit` bytes; none at the end."""
        if not self._buffer and not await self.fill():
            return b""
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return data

    async def line(self) -> bytes:
        """A line with its end. Raises ProtocolError."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE or not await self.fill():
                raise ProtocolError("a chunk's size is missing")
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise ProtocolError("a line of a chunked body that does not end in CR LF")
        return line

    async def line_end(self) -> None:
        """The end of a chunk. Raises ProtocolError."""
        if await self.line() != b"\r\n":
            raise ProtocolError("a chunk that is longer than its size")


async def copy_body(source: Source, sink: asyncio.StreamWriter, framing: int) -> None:
    """Copy a body byte for byte as it comes, chunk sizes and trailers included. Raises ProtocolError."""
    if framing != CHUNKED:
        await _copy(source, sink, framing)
        return
    while True:
        line = await source.line()
        sink.write(line)
        size = _chunk_size(line)
        if size == 0:
            while (line := await source.line()) != b"\r\n":
                sink.write(line)
            sink.write(line)
            await sink.drain()
            return
        await _copy(source, sink, size)
        await source.line_end()
        sink.write(b"\r\n")


async def read_body(source: Source, framing: int, limit: int) -> bytes:
    """A whole body without its framing. Raises TooLarge, ProtocolError."""
    found = bytearray()

    async def take(length: int) -> None:
        if len(found) + length > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
        left = length
        while left:
            data = await source.some(left)
            if not data:
                raise ProtocolError("the connection ended within a body")
            found.extend(data)
            left -= len(data)

    if framing == UNTIL_CLOSE:
        while data := await source.some():
            found += data
            if len(found) > limit:
                raise TooLarge(f"the body is larger than {limit} bytes")
    elif framing == CHUNKED:
        while size := _chunk_size(await source.line()):
            await take(size)
            await source.line_end()
        while await source.line() != b"\r\n":
            pass
    else:
        await take(framing)
    return bytes(found)


async def _copy(source: Source, sink: asyncio.StreamWriter, length: int) -> None:
    while length:
        data = await source.some(min(length, CHUNK))
        if not data:
            raise ProtocolError("the connection ended within a body")
        sink.write(data)
        await sink.drain()
        length -= len(data)


def _chunk_size(line: bytes) -> int:
    digits = line[:-2].split(b";")[0].rstrip(b" \t")
    if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ProtocolError(f"no chunk size: {line[:30]!r}")
    return int(digits, 16)
