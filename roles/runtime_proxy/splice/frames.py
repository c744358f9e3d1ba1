"""As much of HTTP/2 (RFC 9113) and HPACK (RFC 7541) as carrying frames needs. Pure: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpack import Decoder
from hpack.exceptions import HPACKError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = 9  # bytes before a frame's payload

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

SETTING_TABLE_SIZE, SETTING_WINDOW = 1, 4
FIRST_WINDOW = 65535  # bytes, of a connection and of each of its streams, until something else is said
SAFE_PAYLOAD = 16384  # bytes that every peer takes in one frame
ANY_STREAM = (1 << 31) - 1

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x0, 0x1, 0x2, 0x8, 0x9, 0xB

MAX_BLOCK = 4 << 20  # bytes of a header block on the wire
MAX_LIST = 16 << 20  # bytes of a header block read, as HPACK counts them

Headers = list[tuple[bytes, bytes]]


class ProtocolFault(Exception):
    """A peer does not keep to HTTP/2; the connection cannot go on. `code` is what GOAWAY says."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame. The payload may not be longer than the peer allows."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def window_update(stream: int, increment: int) -> bytes:
    """Credit for a stream, or for the connection (stream 0)."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def reset(stream: int, code: int) -> bytes:
    """The end of a stream in the middle."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """No new streams on this connection; those up to `last_stream` go on."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:1024])


def settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Numbers and values of a SETTINGS frame."""
    for at in range(0, len(payload) - 5, 6):
        yield int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding. Raises ProtocolFault."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolFault("a frame has more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def block_fragment(flags: int, payload: bytes) -> bytes:
    """What a HEADERS frame holds of its header block. Raises ProtocolFault."""
    payload = unpadded(flags, payload)
    return payload[5:] if flags & PRIORITISED else payload


def head_frames(stream: int, headers: Iterable[tuple[bytes, bytes]], *, end: bool) -> bytes:
    """A header block of literals that no table remembers, so that it can be put between blocks of another encoder."""
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)
    parts = [block[at : at + SAFE_PAYLOAD] for at in range(0, len(block), SAFE_PAYLOAD)] or [b""]
    found = []
    for number, part in enumerate(parts):
        flags = (END_HEADERS if number == len(parts) - 1 else 0) | (END_STREAM if end and number == 0 else 0)
        found.append(frame(CONTINUATION if number else HEADERS, flags, stream, part))
    return b"".join(found)


def _text(value: bytes) -> bytes:
    """A string as HPACK writes it: its length with a prefix of seven bits, no Huffman code."""
    length = len(value)
    if length < 127:
        return bytes((length,)) + value
    head, length = bytearray((127,)), length - 127
    while length >= 128:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + value


class HeadReader:
    """Reads the header blocks of one direction in the order in which they are carried, as the peer's decoder does.

    gRPC repeats itself: a block that changes no table and was read since the last change is remembered whole.
    """

    _REMEMBERED = 256

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_LIST)
        self._table = self._decoder.header_table
        self._known: dict[bytes, Headers] = {}
        self.changed = False  # whether the last block changed the table

    def allow_table(self, size: int) -> None:
        """The receiver allows a table of so many bytes. It judges what is sent; here the largest ever allowed is followed."""
        self._decoder.max_allowed_table_size = max(self._decoder.max_allowed_table_size, size)

    def read(self, block: bytes) -> Headers:
        """Names and values of a block. Raises ProtocolFault: after that nothing can be read any more."""
        known = self._known.get(block)
        if known is not None:
            self.changed = False
            return known
        table = self._table
        before = (table.dynamic_entries[0] if table.dynamic_entries else None, len(table.dynamic_entries), table.maxsize)
        try:
            found = self._read(block)
        except (HPACKError, IndexError) as error:
            raise ProtocolFault(f"headers that cannot be read: {error}", COMPRESSION_ERROR) from None
        first, length, size = before
        entries = table.dynamic_entries
        self.changed = len(entries) != length or table.maxsize != size or bool(entries and entries[0] is not first)
        if self.changed:
            self._known.clear()
        elif len(block) < 1024 and len(self._known) < self._REMEMBERED:
            self._known[block] = found
        return found

    def _read(self, block: bytes) -> Headers:
        """Most fields are indexes, looked up here; the decoder, which takes long for each, gets the literals."""
        if (block and block[0] & 0xE0 == 0x20) or len(block) > 1024:  # a new size of the table comes first, or much to come
            return list(self._decoder.decode(block, raw=True))  # type: ignore[arg-type]
        found: Headers = []
        lookup, at, size = self._table.get_by_index, 0, len(block)
        while at < size:
            first = block[at]
            if 0x80 < first < 0xFF:
                found.append(lookup(first & 0x7F))
                at += 1
            elif first & 0x80:
                index, at = _integer(block, at, 0x7F)
                found.append(lookup(index))
            else:
                end = _end_of_literal(block, at)
                found += self._decoder.decode(block[at:end], raw=True)  # type: ignore[arg-type]
                at = end
        return found


def _end_of_literal(block: bytes, at: int) -> int:
    """Where a literal field ends. Raises IndexError for a block that is cut short."""
    name, at = _integer(block, at, 0x3F if block[at] & 0x40 else 0x0F)
    for _ in range(1 if name else 2):
        length, at = _integer(block, at, 0x7F)
        at += length
    return at


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number of HPACK and where it ends."""
    value = block[at] & mask
    at += 1
    if value == mask:
        shift = 0
        while True:
            byte = block[at]
            at += 1
            value += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
    return value, at
