"""Decoding of built-in types: what a Go server does when it reads JSON into its structs.

Unknown fields are dropped (and reported), null is the zero value, quantities and times come out in canonical form, empty optional
values vanish, and a value of the wrong type is a 400. Times, and the other formats that strings may have, are here for all schemas.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from koord import seams
from koord.api.quantity import Quantity, QuantityError
from koord.api.times import format_time
from koord.apiserver.errors import StatusError, bad_request
from koord.apiserver.store import Obj

# a path is a chain (parent, key); it becomes text only for an error
Path_ = tuple[Any, str | int] | None

TABLE = Path(__file__).with_name("builtin.json")

# optional strings that are pointers in the API: "" says something there
_KEPT_STRINGS = frozenset({"storageClassName", "runtimeClassName", "ingressClassName", "volumeAttributesClassName", "string", "version"})
# booleans that are plain values: false is the same as absent
_PLAIN_BOOLS = frozenset(
    {
        "hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "unschedulable", "readOnly", "paused",
        "publishNotReadyAddresses", "globalDefault", "nullable", "exclusiveMaximum", "exclusiveMinimum", "uniqueItems",
        "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
    }
)  # fmt: skip
# integers that are plain values: 0 is the same as absent
_PLAIN_INTS = frozenset(
    {
        "minReadySeconds", "hostPort", "periodSeconds", "initialDelaySeconds", "timeoutSeconds", "successThreshold", "failureThreshold",
        "observedGeneration", "readyReplicas", "availableReplicas", "updatedReplicas", "unavailableReplicas", "fullyLabeledReplicas",
        "currentReplicas", "generation", "count", "nodePort", "healthCheckNodePort", "active", "succeeded", "failed",
    }
)  # fmt: skip


_NOTHING = object()


@dataclass(slots=True, eq=False)
class Field:
    """One field of a type. `code` as in `packaging/builtin_types.py`; `node` for a struct, `item` for lists and maps.

    `|` may be a struct, `item`, or something else, `other`.
    """

    name: str
    code: str
    required: bool
    node: TypeNode | None = None
    item: Field | None = None
    other: Field | None = None
    # the value that means "absent"
    drop: Any = _NOTHING


@dataclass(slots=True, eq=False)
class TypeNode:
    """A struct: its fields by wire name."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict)


class Schemas:
    """The table of all built-in types, loaded once."""

    def __init__(self) -> None:
        raw = orjson.loads(TABLE.read_bytes())
        self.kinds: dict[str, str] = raw["kinds"]
        self._raw: dict[str, dict[str, str]] = raw["types"]
        self._nodes: dict[str, TypeNode] = {}

    def kind(self, group: str, version: str, kind: str) -> TypeNode | None:
        name = self.kinds.get(f"{group}/{version}/{kind}")
        return self.type(name) if name else None

    def type(self, name: str) -> TypeNode:
        """The node of a type; types refer to one another, so the node is registered before its fields are read."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = TypeNode(name)
            for wire, text in self._raw[name].items():
                node.fields[wire] = self._field(wire, text)
        return node

    def _field(self, name: str, text: str) -> Field:
        required = text.endswith("!")
        text = text.rstrip("!")
        code = text[0] if len(text) == 1 or text[0] in "[{" else "|" if "|" in text else "r"
        made = Field(name, code, required)
        if code == "|":
            made.item, made.other = (self._field("", part) for part in text.split("|"))
        elif code in "[{":
            made.item = self._field("", text[1:])
        elif code == "r":
            made.node = self.type(text)
        if not required:
            if code == "[":
                made.drop = []
            elif code == "{":
                made.drop = {}
            elif code == "s" and name and name not in _KEPT_STRINGS:
                made.drop = ""
            elif code == "b" and name in _PLAIN_BOOLS:
                made.drop = False
            elif code in "iI" and name in _PLAIN_INTS:
                made.drop = 0
        return made


@lru_cache(maxsize=1)
def schemas() -> Schemas:
    """The built-in types; about 5 ms on first use."""
    return Schemas()


def path_text(path: Path_) -> str:
    """`spec.containers[0].name` of a path chain."""
    parts: list[str] = []
    while path is not None:
        parts.append(path[1] if type(path[1]) is str else f"[{path[1]}]")
        path = path[0]
    out = ""
    for part in reversed(parts):
        out += part if part.startswith("[") or not out else "." + part
    return out


_GO_KIND = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_WANTED = {
    "s": "string", "i": "int64", "I": "int32", "n": "float64", "b": "bool", "t": "time", "T": "time", "[": "list", "{": "map",
    "r": "object", "q": "quantity", "x": "int or string", "y": "base64 bytes",
}  # fmt: skip


_GO_TYPE: dict[str, Any] = {"s": str, "r": dict, "{": dict, "[": list}


def _mismatch(code: str, value: Any, path: Path_) -> StatusError:
    kind = _GO_KIND.get(type(value), "null")
    return bad_request(f"json: cannot unmarshal {kind} into field {path_text(path)} of type {_WANTED[code]}")


@lru_cache(maxsize=65_536)
def canonical_quantity(value: str | int | float) -> str:
    """A quantity in canonical form. Raises QuantityError."""
    return str(Quantity(value) if isinstance(value, str) else Quantity(repr(value)))


_INT32 = 1 << 31
_PLAIN: dict[str, tuple[type, ...]] = {"i": (int,), "I": (int,), "b": (bool,), "x": (str, int), "n": (float, int)}


def _scalar(code: str, value: Any, path: Path_) -> Any:
    """Check and normalise a value that is neither string, list, map nor struct."""
    kind = type(value)
    if kind in _PLAIN.get(code, ()):
        if code in "Ix" and kind is int and not -_INT32 <= value < _INT32:
            raise bad_request(f"json: cannot unmarshal number {value} into field {path_text(path)} of type int32")
        return value
    if code == "q" and kind in (str, int, float):
        try:
            return canonical_quantity(value)
        except QuantityError as err:
            raise bad_request(f"{path_text(path)}: {err}") from err
    if code in "tT" and kind is str:
        out = canonical_time(value, micro=code == "T")
        if out is None:
            raise bad_request(f'{path_text(path)}: parsing time "{value}" as RFC 3339: cannot parse')
        return out
    if code == "y" and kind is str:
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as err:
            raise bad_request(f"{path_text(path)}: illegal base64 data") from err
        return value
    raise _mismatch(code, value, path)


def _value(field: Field, value: Any, path: Path_, unknown: list[str]) -> Any:
    code = field.code
    if code in "oj":
        return value
    if code == "|":
        chosen = field.item if type(value) is dict else field.other
        assert chosen is not None
        return _value(chosen, value, path, unknown)
    wanted = _GO_TYPE.get(code)
    if wanted is None:
        return _scalar(code, value, path)
    if type(value) is not wanted:
        raise _mismatch(code, value, path)
    if code == "r":
        assert field.node is not None
        clean(field.node, value, path, unknown)
    elif code in "[{":
        item = field.item
        assert item is not None
        for at, inner in enumerate(value) if code == "[" else value.items():
            if type(inner) is str and item.code == "s":
                continue
            if inner is None and item.code not in "oj":  # the zero value
                inner = _GO_TYPE[item.code]() if item.code in _GO_TYPE else "0" if item.code == "q" else ""
            value[at] = _value(item, inner, (path, at), unknown)
    return value


def clean(node: TypeNode, obj: Obj, path: Path_, unknown: list[str]) -> None:
    """Bring a decoded struct into stored form, in place. Unknown fields are dropped and their paths added to `unknown`.

    Raises StatusError (400) at the first value of a wrong type.
    """
    fields = node.fields
    gone: list[str] | None = None
    for key, value in obj.items():
        field = fields.get(key)
        if field is None:
            unknown.append(path_text((path, key)))
        elif value is not None:
            code = field.code
            if code == "s":
                if type(value) is not str:
                    raise _mismatch(code, value, (path, key))
            else:
                new = _value(field, value, (path, key), unknown)
                if new is not value:
                    obj[key] = value = new
            if value != field.drop or (value == 0 and field.drop is not False and type(value) is bool):
                continue
        if gone is None:
            gone = []
        gone.append(key)
    if gone:
        for key in gone:
            del obj[key]


# -- formats -------------------------------------------------------------------------------------------------------------------------

_TIME = re.compile(r"^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)
_PLAIN_TIME = re.compile(r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ\Z", re.ASCII)


def canonical_time(text: str, *, micro: bool) -> str | None:
    """RFC 3339 in UTC with whole seconds, or with the six digits of microseconds; None when it is no such time."""
    if not micro and _PLAIN_TIME.match(text):  # of days that no month lacks
        return text
    found = _TIME.match(text)
    if found is None or (micro and len(found.group(7) or "") != len(".000000")):
        return None
    try:
        zone = "+00:00" if found.group(8) in "Zz" else found.group(8)
        moment = datetime.fromisoformat(text[:10] + "T" + text[11:19] + zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    out = moment.strftime("%Y-%m-%dT%H:%M:%S")
    if micro:
        out += found.group(7)
    return out + "Z"


_stamp = lru_cache(maxsize=16)(format_time)


def now() -> str:
    """The wall clock as a metav1.Time: UTC, whole seconds."""
    return _stamp(int(seams.now()))


def reads(read: Callable[[str], Any]) -> Callable[[str], bool]:
    """Whether a function reads a text without a ValueError."""

    def check(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return check
