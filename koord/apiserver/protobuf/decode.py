"""Request bodies in Kubernetes' protobuf encoding, as `kubectl create` and other typed clients send them, turned into JSON objects.

Only reading: answers are JSON, which every client lists behind protobuf. A field that the table does not know is refused, not
dropped, so that nothing that a user wrote gets lost in silence.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = "k8s.io.apimachinery.pkg.apis.meta.v1."
_OPTIONS = _META + "DeleteOptions"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Embedded Go structs: a message on the wire, but their fields stand in the surrounding object in JSON.
_INLINE = frozenset(
    {"volumeSource", "persistentVolumeSource", "handler", "probeHandler", "localObjectReference", "ephemeralContainerCommon"}
)
_INLINE_IN = frozenset({("k8s.io.api.admissionregistration.v1.RuleWithOperations", "rule")})


class ProtobufError(ValueError):
    """A body that is not what it says; the text says what is wrong."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = orjson.loads(Path(__file__).with_name("table.json").read_bytes())
    return table


def decode(body: bytes) -> dict[str, Any]:
    """The object in a body of type application/vnd.kubernetes.protobuf. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not start with the mark of Kubernetes' protobuf encoding")
    kind = version = ""
    raw = b""
    for number, _, value in _fields(body[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            words = _scalars(value)
            version, kind = (_value(words.get(field, b""), _BYTES, "string") for field in (1, 2))
        elif number == 2 and isinstance(value, bytes):
            raw = value
    message = _OPTIONS if kind == "DeleteOptions" else _table()["kinds"].get(f"{version}/{kind}")
    if message is None:
        raise ProtobufError(f"{version} {kind} is not known in protobuf here; send it as JSON")
    return {"apiVersion": version, "kind": kind, **_message(raw, message)}


def _message(data: bytes, name: str) -> dict[str, Any]:
    table = _table()["messages"].get(name, {})
    found: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        field = table.get(str(number))
        if field is None:
            raise ProtobufError(f"field {number} of {name.rpartition('.')[2]} is not known here; send the object as JSON")
        key, kind, repeated = field
        if kind.startswith("map:"):
            entry_key, entry_value = _entry(value, kind[4:])
            found.setdefault(key, {})[entry_key] = entry_value
        elif key in _INLINE or (name, key) in _INLINE_IN:
            found.update(_message(_as_bytes(value), kind))
        elif repeated:
            found.setdefault(key, []).extend(_repeated(value, wire, kind))
        else:
            decoded = _value(value, wire, kind)
            if decoded is not None:
                found[key] = decoded
    return found


def _repeated(value: int | bytes, wire: int, kind: str) -> list[Any]:
    if kind in ("int32", "int64", "uint32", "uint64", "bool") and wire == _BYTES:  # packed
        data, at, values = _as_bytes(value), 0, []
        while at < len(data):
            item, at = _varint(data, at)
            values.append(_value(item, _VARINT, kind))
        return values
    return [_value(value, wire, kind)]


def _entry(value: int | bytes, kind: str) -> tuple[str, Any]:
    key, content = "", _value(b"", _BYTES, kind)
    for number, wire, item in _fields(_as_bytes(value)):
        if number == 1:
            key = _value(item, wire, "string")
        elif number == 2:
            content = _value(item, wire, kind)
    return key, content


def _value(value: int | bytes, wire: int, kind: str) -> Any:
    if kind == "string":
        try:
            return _as_bytes(value).decode()
        except UnicodeDecodeError as error:
            raise ProtobufError(f"a string is no UTF-8: {error}") from None
    if kind == "bytes":
        return base64.b64encode(_as_bytes(value)).decode()
    if kind == "bool":
        return bool(value)
    if kind in ("int32", "int64"):
        number = _as_int(value)
        return number - (1 << 64) if number >= 1 << 63 else number
    if kind in ("uint32", "uint64"):
        return _as_int(value)
    if kind == "double":
        return struct.unpack("<d", _as_int(value).to_bytes(8, "little"))[0]
    special = _SPECIAL.get(kind)
    return special(_as_bytes(value)) if special else _message(_as_bytes(value), kind)


def _scalars(data: bytes) -> dict[int, int | bytes]:
    return {number: value for number, _, value in _fields(data)}


def _quantity(data: bytes) -> str:
    text: str = _value(_scalars(data).get(1, b""), _BYTES, "string")
    return text


def _time(data: bytes) -> str | None:
    parts = _scalars(data)
    seconds = _value(parts.get(1, 0), _VARINT, "int64")
    return None if not parts else _moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise ProtobufError(f"{seconds} seconds are no time") from None


def _micro_time(data: bytes) -> str | None:
    parts = _scalars(data)
    if not parts:
        return None
    moment = _moment(_value(parts.get(1, 0), _VARINT, "int64"))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{_as_int(parts.get(2, 0)) // 1000:06}Z"


def _int_or_string(data: bytes) -> int | str:
    parts = _scalars(data)
    found: int | str = _value(parts.get(3, b""), _BYTES, "string") if parts.get(1, 0) == 1 else _value(parts.get(2, 0), _VARINT, "int32")
    return found


def _raw_json(data: bytes) -> Any:
    raw = _as_bytes(_scalars(data).get(1, b""))
    try:
        return orjson.loads(raw) if raw else None
    except orjson.JSONDecodeError as error:
        raise ProtobufError(f"an embedded object is no JSON: {error}") from None


_SPECIAL = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": _quantity,
    _META + "Time": _time,
    _META + "MicroTime": _micro_time,
    _META + "FieldsV1": _raw_json,
    "k8s.io.apimachinery.pkg.runtime.RawExtension": _raw_json,
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": _int_or_string,
}


# -- the wire ------------------------------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Field number, wire type and value of each field in turn."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ProtobufError(f"wire type {wire} does not exist")
        if at + size > end:
            raise ProtobufError("the body ends in the middle of a field")
        chunk = data[at : at + size]
        at += size
        yield number, wire, chunk if wire == _BYTES else int.from_bytes(chunk, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ProtobufError("the body ends in the middle of a number")


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufError("a number stands where text or a message is expected")
    return value


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ProtobufError("text or a message stands where a number is expected")
    return value
