"""Custom resources as CEL sees them: types from their structural schemas, and values in the types' form.

Rules are checked against protobuf messages that mirror the schema, so that a field that does not exist, or a comparison of a number
with a string, is found when the definition is stored. They are evaluated on plain maps, where an absent field is no field at all.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from koord.api.times import parse_duration_ns
from koord.apiserver.cel import library
from koord.apiserver.cel.environment import DYN, Type, message_type
from koord.apiserver.schema.structural import Structural

_RESERVED = frozenset(
    {
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
        "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_ACCESSIBLE = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")
_PACKAGE = "schema"
_FORMATS = {"date-time": "Timestamp", "date": "Timestamp", "duration": "Duration"}
_SCALARS = {"integer": 3, "number": 1, "boolean": 8, "string": 9}  # field types of protobuf
_META = ("name", "generateName")


def escape(name: str) -> str:
    """The name of a property in an expression; "" for one that no expression can reach."""
    if name in _RESERVED:
        return f"__{name}__"
    if not _ACCESSIBLE.fullmatch(name):
        return ""
    return name.replace("__", "__underscores__").replace(".", "__dot__").replace("-", "__dash__").replace("/", "__slash__")


class Types:
    """The messages of one schema. `of(node)` is the type of `self` at a node."""

    def __init__(self, root: Structural) -> None:
        self._file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package=_PACKAGE, syntax="proto2")
        self._file.dependency.extend(library.WELL_KNOWN_FILES)
        self._names: dict[int, str] = {}
        meta = self._file.message_type.add(name="ObjectMeta")
        for number, name in enumerate(_META, 1):
            meta.field.add(name=name, number=number, type=9, label=1)
        self._message(root, root=True)
        self.pool = library.new_pool()
        self.pool.Add(self._file)

    def _message(self, node: Structural, *, root: bool = False) -> str:
        """Declare the message of an object with properties; its full name."""
        name = f"T{len(self._names)}"
        self._names[id(node)] = f"{_PACKAGE}.{name}"
        made = self._file.message_type.add(name=name)
        own = {"apiVersion": 9, "kind": 9} if root or node.embedded else {}
        number = 0
        for key, kind in own.items():
            number += 1
            made.field.add(name=key, number=number, type=kind, label=1)
        if own:
            number += 1
            made.field.add(name="metadata", number=number, type=11, label=1, type_name=f".{_PACKAGE}.ObjectMeta")
        for key, prop in node.props.items():
            if escape(key) and key not in (*own, *(("metadata",) if own else ())):
                number += 1
                self._field(made, escape(key), number, prop)
        return self._names[id(node)]

    def _field(self, made: Any, name: str, number: int, node: Structural) -> None:
        if node.type == "array" and node.items is not None and node.items.type != "array" and not _is_map(node.items):
            kind, type_name = self._single(node.items)
            made.field.add(name=name, number=number, label=3, type=kind, type_name=type_name or None)
            return
        kind, type_name = self._single(node)
        made.field.add(name=name, number=number, label=1, type=kind, type_name=type_name or None)

    def _single(self, node: Structural) -> tuple[int, str]:
        """(field type, message) of a value that is no list; what protobuf cannot say is any JSON of its sort."""
        if _is_any(node):
            return 11, ".google.protobuf.Value"
        if node.type == "array":
            return 11, ".google.protobuf.ListValue"
        if _is_map(node):
            return 11, ".google.protobuf.Struct"
        if node.type == "object":
            return 11, "." + self._message(node)
        form = node.raw.get("format", "") if node.type == "string" else ""
        if form in _FORMATS:
            return 11, f".google.protobuf.{_FORMATS[form]}"
        return (12 if form == "byte" else _SCALARS[node.type]), ""

    def of(self, node: Structural) -> Type:
        """The type of a node of this schema."""
        if _is_any(node):
            return DYN
        if node.type == "array":
            return cel.Type.List(self.of(node.items) if node.items is not None else DYN)
        if _is_map(node):
            return cel.Type.Map(cel.Type.STRING, self.of(node.additional) if isinstance(node.additional, Structural) else DYN)
        if node.type == "object":
            return message_type(self._names[id(node)]) if id(node) in self._names else DYN
        form = node.raw.get("format", "") if node.type == "string" else ""
        if form in _FORMATS:
            return cel.Type.TIMESTAMP if _FORMATS[form] == "Timestamp" else cel.Type.DURATION
        return {"integer": cel.Type.INT, "number": cel.Type.DOUBLE, "boolean": cel.Type.BOOL}.get(
            node.type, cel.Type.BYTES if form == "byte" else cel.Type.STRING
        )


def _is_map(node: Structural) -> bool:
    return node.type == "object" and not node.props and not node.embedded and bool(node.additional)


def _is_any(node: Structural) -> bool:
    if node.int_or_string or node.type not in (*_SCALARS, "array", "object"):
        return True
    return node.type == "object" and node.preserve and not node.props and not node.embedded


def bind(node: Structural, value: Any, *, root: bool = False) -> Any:
    """A value in the form that expressions see: names escaped, numbers and times of their own types, unknown fields left out."""
    if value is None or _is_any(node):
        return value
    if node.type == "array":
        return [bind(node.items, item) for item in value] if node.items is not None else value
    if _is_map(node):
        return {k: bind(node.additional, v) for k, v in value.items()} if isinstance(node.additional, Structural) else value
    if node.type == "object":
        out = {escape(k): bind(node.props[k], v) for k, v in value.items() if k in node.props and v is not None and escape(k)}
        if root or node.embedded:
            out |= {k: value[k] for k in ("apiVersion", "kind") if k in value}
            out["metadata"] = {k: v for k, v in (value.get("metadata") or {}).items() if k in _META}
        return out
    return _scalar(node, value)


def _scalar(node: Structural, value: Any) -> Any:
    if node.type == "number":
        return float(value)
    if node.type == "integer":
        return int(value)
    form = node.raw.get("format", "") if node.type == "string" else ""
    if form == "duration":
        seconds, nanos = divmod(parse_duration_ns(value), 10**9)
        return Duration(seconds=seconds, nanos=nanos) if seconds >= 0 or not nanos else Duration(seconds=seconds + 1, nanos=nanos - 10**9)
    if form in _FORMATS:
        made = Timestamp()
        made.FromJsonString(value.upper() if form == "date-time" else f"{value}T00:00:00Z")
        return made
    return bytearray(base64.b64decode(value)) if form == "byte" else value
