"""Request bodies in Kubernetes' protobuf encoding, as `kubectl create` and other typed clients send them, turned into JSON objects.

Only reading: answers are JSON, which every client lists behind protobuf. A field that the published messages do not have is refused, not
dropped, so that nothing that a user wrote gets lost in silence.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

MESSAGES = Path(__file__).with_name("messages.binpb")
_MAGIC = b"k8s\x00"
_MACHINERY = "k8s.io.apimachinery.pkg."
_META = _MACHINERY + "apis.meta.v1."
# Embedded Go structs: messages on the wire, but their fields stand in the surrounding object in JSON.
INLINE = frozenset(
    {
        "volumeSource", "persistentVolumeSource", "handler", "probeHandler", "localObjectReference", "ephemeralContainerCommon",
        "ingressRuleValue", "ruleWithOperations",
    }
)  # fmt: skip
# members whose names begin with a capital in the messages, though not in JSON
_CAPITAL = frozenset({"Expression", "Name", "Webhooks"})
INLINE_IN = frozenset({"k8s.io.api.admissionregistration.v1.RuleWithOperations.rule"})


class ProtobufError(ValueError):
    """A body that is not what it says; the text says what is wrong."""


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """The published messages; `packaging/builtin_messages.py` makes the file."""
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(MESSAGES.read_bytes()).file:
        made.Add(file)
    return made


def message_name(version: str, kind: str) -> str:
    """The message of a kind: `k8s.io.api.rbac.v1.Role` for rbac.authorization.k8s.io/v1 Role."""
    group, _, version = version.rpartition("/")
    return _META + kind if kind == "DeleteOptions" else f"k8s.io.api.{group.partition('.')[0] or 'core'}.{version}.{kind}"


def decode(body: bytes) -> dict[str, Any]:
    """The object in a body of type application/vnd.kubernetes.protobuf. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not start with the mark of Kubernetes' protobuf encoding")
    try:
        envelope = _parse(_MACHINERY + "runtime.Unknown", body[len(_MAGIC) :])
        version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
        try:
            message = _parse(message_name(version, kind), envelope.raw)
        except KeyError:
            raise ProtobufError(f"{version} {kind} is not known in protobuf here; send it as JSON") from None
        return {"apiVersion": version, "kind": kind, **_object(message)}
    except DecodeError:
        raise ProtobufError("the body is no protobuf message, or ends in the middle of one") from None
    except UnicodeDecodeError as error:
        raise ProtobufError(f"a string is no UTF-8: {error}") from None
    except orjson.JSONDecodeError as error:
        raise ProtobufError(f"an embedded object is no JSON: {error}") from None


def _parse(name: str, data: bytes) -> Any:
    message = message_factory.GetMessageClass(pool().FindMessageTypeByName(name))()
    message.MergeFromString(data)
    return message


def member(field: FieldDescriptor) -> str:
    """What a field is called in JSON."""
    return field.name.lower() if field.name in _CAPITAL else str(field.name)


def _object(message: Message) -> dict[str, Any]:
    unknown_fields: Any = UnknownFieldSet(message)
    for unknown in unknown_fields:
        number, name = unknown.field_number, message.DESCRIPTOR.name
        if number in message.DESCRIPTOR.fields_by_number:
            sort = "text or a message stands where a number" if unknown.wire_type == 2 else "a number stands where text or a message"
            raise ProtobufError(f"field {number} of {name}: {sort} is expected")
        raise ProtobufError(f"field {number} of {name} is not known here; send the object as JSON")
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = member(field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            found[name] = {key: _value(inner, value[key]) for key in value}
        elif field.name in INLINE or field.full_name in INLINE_IN:
            found |= _object(value)
        elif field.is_repeated:
            found[name] = [_value(field, item) for item in value]
        elif (decoded := _value(field, value)) is not None:
            found[name] = decoded
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    if field.message_type is None:
        return value
    special = _SPECIAL.get(field.message_type.full_name)
    return special(value) if special else _object(value)


def _time(value: Any, *, micro: bool = False) -> str | None:
    if not value.ListFields():
        return None
    try:
        moment = datetime.fromtimestamp(value.seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise ProtobufError(f"{value.seconds} seconds are no time") from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}" + (f".{value.nanos // 1000:06}Z" if micro else "Z")


_SPECIAL: dict[str, Callable[[Any], Any]] = {
    _MACHINERY + "api.resource.Quantity": lambda value: value.string,
    _META + "Time": _time,
    _META + "MicroTime": partial(_time, micro=True),
    _META + "FieldsV1": lambda value: orjson.loads(value.Raw) if value.Raw else None,
    _MACHINERY + "runtime.RawExtension": lambda value: orjson.loads(value.raw) if value.raw else None,
    _MACHINERY + "util.intstr.IntOrString": lambda value: value.strVal if value.type == 1 else value.intVal,
    "k8s.io.api.authentication.v1.ExtraValue": lambda value: list(value.items),
    "k8s.io.api.authorization.v1.ExtraValue": lambda value: list(value.items),
}
