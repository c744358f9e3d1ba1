"""Bytes of an NRI connection: the multiplexer's frames and, inside, ttrpc's (KA-RH-02). Pure.

One socket carries several streams of bytes, each frame with the number of its stream (4 bytes) and its length (4 bytes), big
endian. A stream is a sequence of ttrpc messages: length (4 bytes), call (4 bytes), type, flags, then the message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

PLUGIN_STREAM, RUNTIME_STREAM = 1, 2
"""Streams of the services: the plugin's, which the runtime calls, and the runtime's, which the plugin calls."""

#: The other side reads through a buffer of this size and takes no longer frame.
MAX_FRAME = 4096
MAX_MESSAGE = 4 << 20
_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
#: A frame of a peer may hold a whole message with its header.
_LONGEST = MAX_MESSAGE + _MESSAGE.size


class FrameError(ValueError):
    """Bytes that are no frame or no message: the connection cannot be used any more."""


class Type(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One ttrpc message. Calls of one side have odd numbers."""

    call: int
    type: int
    body: bytes


def encode(stream: int, message: Message) -> bytes:
    """A message as frames of its stream. Raises FrameError when it is too long."""
    if len(message.body) > MAX_MESSAGE:
        raise FrameError(f"a message of {len(message.body)} bytes is longer than {MAX_MESSAGE}")
    data = _MESSAGE.pack(len(message.body), message.call, message.type, 0) + message.body
    parts = [data[at : at + MAX_FRAME] for at in range(0, len(data), MAX_FRAME)]
    return b"".join(_FRAME.pack(stream, len(part)) + part for part in parts)


class Decoder:
    """Takes bytes as they come and gives whole messages with their stream."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._streams: dict[int, bytearray] = {}

    def feed(self, data: bytes) -> list[tuple[int, Message]]:
        """Messages that are complete now. Raises FrameError."""
        self._bytes += data
        found: list[tuple[int, Message]] = []
        while len(self._bytes) >= _FRAME.size:
            stream, length = _FRAME.unpack_from(self._bytes)
            if length > _LONGEST:
                raise FrameError(f"a frame of {length} bytes is longer than {_LONGEST}")
            end = _FRAME.size + length
            if len(self._bytes) < end:
                break
            if stream in (PLUGIN_STREAM, RUNTIME_STREAM):
                self._streams.setdefault(stream, bytearray()).extend(self._bytes[_FRAME.size : end])
                found += [(stream, message) for message in self._messages(stream)]
            del self._bytes[:end]
        return found

    def _messages(self, stream: int) -> list[Message]:
        buffer = self._streams[stream]
        found: list[Message] = []
        while len(buffer) >= _MESSAGE.size:
            length, call, kind, _ = _MESSAGE.unpack_from(buffer)
            if length > MAX_MESSAGE:
                raise FrameError(f"a message of {length} bytes is longer than {MAX_MESSAGE}")
            end = _MESSAGE.size + length
            if len(buffer) < end:
                break
            found.append(Message(call, kind, bytes(buffer[_MESSAGE.size : end])))
            del buffer[:end]
        return found
