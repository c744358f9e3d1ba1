"""One direction of a connection: frames are looked at where they must be, and their bytes go on as they came."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from roles.runtime_proxy.splice import frames
from roles.runtime_proxy.splice.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEAD,
    HEADERS,
    MAX_BLOCK,
    PUSH_PROMISE,
    Headers,
    HeadReader,
    ProtocolFault,
)

_MAX_CONTROL = 1 << 20  # bytes of a frame that is neither DATA nor part of a header block


class Fate(Enum):
    """What becomes of a DATA frame."""

    PASS = auto()  # its bytes go on as they come
    WHOLE = auto()  # it is shown as a whole, and `whole_data` says whether it goes on
    WAIT = auto()  # the receiver has no credit for it; nothing behind it is looked at until `feed` is called again


class Direction:
    """Reads frames of one sender. A subclass says what becomes of them; a method that returns True lets the frame pass."""

    def __init__(self) -> None:
        self.sink: asyncio.WriteTransport | None = None
        self.heads = HeadReader()
        self.waiting = False
        self._left = b""  # the begin of a frame whose rest has not come
        self._rest = 0  # bytes of a frame that passes and whose begin is written
        self._injected: list[bytes] = []
        self._feeding = False
        self._block: list[bytes] | None = None  # a header block that goes on in the next frame
        self._block_of = (0, 0)

    # -- what a subclass decides --------------------------------------------------------------------------------------------------

    def data(self, flags: int, stream: int, length: int) -> Fate:
        """A DATA frame begins; any answer but PASS may be asked for again."""
        raise NotImplementedError

    def whole_data(self, flags: int, stream: int, payload: bytes) -> bool:
        """A DATA frame whose fate is WHOLE."""
        raise NotImplementedError

    def head(self, flags: int, stream: int, headers: Headers) -> bool:
        """A header block. Where it came in several frames it passes in any case."""
        raise NotImplementedError

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Any other frame that HTTP/2 knows."""
        raise NotImplementedError

    # -- the loop -----------------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Put frames of our own between those that pass, at once or at the end of the frame that is under way."""
        if self._feeding or self._rest or self._block is not None:
            self._injected.append(data)
        elif self.sink is not None:
            self.sink.write(data)

    def feed(self, data: bytes = b"") -> None:
        """Take what the sender sent. Raises ProtocolFault."""
        if self._left:
            data = self._left + data
            self._left = b""
        self._feeding, self.waiting = True, False
        try:
            self._feed(data)
        finally:
            self._feeding = False

    def _feed(self, data: bytes) -> None:
        assert self.sink is not None
        out = self.sink.write
        size, at, start = len(data), 0, 0
        while True:
            if self._rest:
                step = min(self._rest, size - at)
                at += step
                self._rest -= step
                if self._rest:
                    break
            if self._injected and self._block is None:
                if at > start:
                    out(data[start:at])
                start = at
                out(b"".join(self._injected))
                self._injected.clear()
            if size - at < HEAD:
                break
            word = int.from_bytes(data[at : at + HEAD], "big")
            length, kind, flags, stream = word >> 48, word >> 40 & 0xFF, word >> 32 & 0xFF, word & 0x7FFFFFFF
            end = at + HEAD + length
            if self._block is not None and (kind != CONTINUATION or stream != self._block_of[1]):
                raise ProtocolFault("a header block is interrupted")
            if kind == DATA:
                fate = self.data(flags, stream, length)
                if fate is Fate.PASS:
                    at += HEAD
                    self._rest = length
                    continue
                if fate is Fate.WAIT:
                    self.waiting = True
                    break
                if end > size:
                    break
                passes = self.whole_data(flags, stream, data[at + HEAD : end])
            elif kind > CONTINUATION:  # an extension: theirs to understand
                at += HEAD
                self._rest = length
                continue
            else:
                if length > (MAX_BLOCK if kind in (HEADERS, CONTINUATION) else _MAX_CONTROL):
                    raise ProtocolFault(f"a frame of {length} bytes", frames.ENHANCE_YOUR_CALM)
                if end > size:
                    break
                payload = data[at + HEAD : end]
                if kind in (HEADERS, CONTINUATION):
                    passes = self._part_of_head(kind, flags, stream, payload)
                elif kind == PUSH_PROMISE:
                    raise ProtocolFault("gRPC pushes nothing")
                else:
                    passes = self.control(kind, flags, stream, payload)
            if not passes:
                if at > start:
                    out(data[start:at])
                start = end
            at = end
        if at > start:
            out(data if start == 0 and at == size else data[start:at])
        if at < size:
            self._left = data[at:]

    def _part_of_head(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if kind == HEADERS:
            fragment = frames.block_fragment(flags, payload)
            if flags & END_HEADERS:
                return self.head(flags, stream, self.heads.read(fragment))
            self._block, self._block_of = [fragment], (flags, stream)
            return True
        if self._block is None:
            raise ProtocolFault("the middle of a header block without its begin")
        self._block.append(payload)
        if sum(map(len, self._block)) > MAX_BLOCK:
            raise ProtocolFault(f"headers of more than {MAX_BLOCK} bytes", frames.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), None
            self.head(self._block_of[0], stream, self.heads.read(block))
        return True
