"""gRPC over HTTP/2 in its own words: timeouts, status codes, messages in their envelopes. Pure."""

from __future__ import annotations

import zlib

from roles.runtime_proxy.splice.frames import Headers

CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
ENVELOPE = 5  # bytes before each message: compressed or not, length
NOT_ONE = "the body is not one message"
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NAMES = {str(number).encode(): name for number, name in enumerate(CODES)}
_MAX_TEXT = 4096  # bytes of a status text of our own: clients drop calls whose trailers are longer than 8 KiB
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class MessageFault(Exception):
    """A body that is no single message that can be read. `code` is the status that says so."""

    def __init__(self, text: str, code: str = "INTERNAL") -> None:
        super().__init__(text)
        self.code = code


def value_of(headers: Headers, name: bytes) -> bytes:
    """The first value of a header, empty when absent."""
    return next((value for key, value in headers if key == name), b"")


def timeout_of(headers: Headers) -> float | None:
    """Seconds of `grpc-timeout`; None when there is none that can be read."""
    text = value_of(headers, b"grpc-timeout")
    digits, unit = text[:-1], _UNITS.get(text[-1:])
    return int(digits) * unit if unit is not None and digits.isdigit() and len(digits) <= 8 else None


def code_name(number: bytes) -> str:
    """The name of a status; UNKNOWN for what is none."""
    return _NAMES.get(number, "UNKNOWN")


def status_headers(code: str, text: str, *, answered: bool) -> Headers:
    """A status as trailers; with the response's own headers before it where none were sent yet."""
    trailers = [(b"grpc-status", str(CODES.index(code)).encode()), (b"grpc-message", percent_encoded(text))]
    return trailers if answered else [(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers]


def percent_encoded(text: str) -> bytes:
    """A status text as gRPC sends it, not too long for any client."""
    raw = text.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore").encode()
    return b"".join(bytes((c,)) if 0x20 <= c <= 0x7E and c != 0x25 else b"%%%02X" % c for c in raw)


def envelope(message: bytes) -> bytes:
    """A message, not compressed, as it goes on the wire."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def message_length(start: bytes) -> int | None:
    """Bytes that the first message of a body has, envelope included; None until its envelope is there."""
    return ENVELOPE + int.from_bytes(start[1:5], "big") if len(start) >= ENVELOPE else None


def only_message(body: bytes, encoding: bytes, limit: int) -> bytes:
    """The one message of a unary body, decompressed. Raises MessageFault."""
    if message_length(body) != len(body):
        raise MessageFault(NOT_ONE)
    if body[0] == 0:
        return body[ENVELOPE:]
    bits = _WINDOW_BITS.get(encoding)
    if body[0] != 1 or bits is None:
        name = encoding.decode("latin-1")
        raise MessageFault(f"a request compressed with {name!r} cannot be shown to hooks; accepted: gzip, deflate", "UNIMPLEMENTED")
    reader = zlib.decompressobj(bits)
    try:
        found = reader.decompress(body[ENVELOPE:], limit + 1)
    except zlib.error as error:
        raise MessageFault(f"the message cannot be decompressed: {error}") from None
    if len(found) > limit:
        raise MessageFault(f"the message has more than {limit} bytes", "RESOURCE_EXHAUSTED")
    if not reader.eof:
        raise MessageFault("the compressed message is cut short")
    return found
