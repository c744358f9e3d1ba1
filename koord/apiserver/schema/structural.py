"""Structural schemas of custom resources: pruning, defaulting and validation."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from koord.apiserver.errors import Cause, duplicate, invalid_value, not_supported, required, too_long, too_many, type_invalid
from koord.apiserver.schema import formats
from koord.apiserver.schema.builtin import Path_, path_text
from koord.apiserver.schema.lists import repeats
from koord.apiserver.store import Obj
from koord.kube.patch import json_equal

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
# metadata, kind and apiVersion of the object itself belong to the server, not to the schema
_ROOT_KEYS = ("apiVersion", "kind", "metadata")
# keywords that are about the value itself, by its type, and those that are about other schemas that it has to fit as well
_BOUNDS = frozenset(
    {
        "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
        "minProperties", "minimum", "multipleOf", "pattern", "uniqueItems", "x-kubernetes-list-type",
    }
)  # fmt: skip
_JUNCTORS = frozenset({"allOf", "anyOf", "not", "oneOf"})
# there is no former value
_NONE = object()


@lru_cache(maxsize=1024)
def compiled_pattern(text: str) -> Any:
    """A pattern as kube-apiserver reads it, which takes linear time on any text. Raises ValueError for what RE2 does not know."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        told = error.args[0] if error.args else error
        raise ValueError(told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)) from None


def _matches(pattern: str, value: str) -> bool:
    try:
        return compiled_pattern(pattern).search(value) is not None
    except ValueError:  # of a definition from before patterns were checked: nothing matches what nobody understands
        return False


class Structural:
    """One node of a structural schema, ready to walk."""

    __slots__ = (
        "additional", "below", "bounded", "default", "embedded", "has_default", "has_defaults", "has_rules", "int_or_string", "items",
        "junctors", "nullable", "preserve", "props", "raw", "required", "type",
    )  # fmt: skip

    def __init__(self, raw: Obj) -> None:
        self.raw = raw
        self.type: str = raw.get("type", "")
        self.nullable = bool(raw.get("nullable"))
        self.preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded = bool(raw.get("x-kubernetes-embedded-resource"))
        self.int_or_string = bool(raw.get("x-kubernetes-int-or-string"))
        self.required: tuple[str, ...] = tuple(raw.get("required") or ())
        self.props = {k: Structural(v) for k, v in (raw.get("properties") or {}).items()}
        items = raw.get("items")
        self.items = Structural(items) if isinstance(items, dict) else None
        more = raw.get("additionalProperties")
        self.additional: Structural | bool | None = Structural(more) if isinstance(more, dict) else more
        self.has_default = raw.get("default") is not None
        self.default = raw.get("default")
        self.below = [*self.props.values(), *([self.items] if self.items else [])]
        if isinstance(self.additional, Structural):
            self.below.append(self.additional)
        self.has_defaults: bool = self.has_default or any(b.has_defaults for b in self.below)
        self.has_rules: bool = bool(raw.get("x-kubernetes-validations")) or any(b.has_rules for b in self.below)
        self.bounded = not _BOUNDS.isdisjoint(raw)  # most nodes say no more than their type
        self.junctors = not _JUNCTORS.isdisjoint(raw)

    def inside(self, value: Any) -> Iterator[tuple[str | int, Any, Structural]]:
        """(key or index, value, its node) of what a value holds and the schema specifies."""
        if isinstance(value, dict):
            for key, inner in value.items():
                node = self.props.get(key, self.additional)
                if isinstance(node, Structural):
                    yield key, inner, node
        elif isinstance(value, list) and self.items is not None:
            for at, item in enumerate(value):
                yield at, item, self.items

    # -- decoding ----------------------------------------------------------------------------------------------------------------

    def prune(self, value: Any, path: Path_, unknown: list[str], *, root: bool = False) -> None:
        """Drop fields that the schema does not know, in place; their paths go to `unknown`.

        Under x-kubernetes-preserve-unknown-fields unknown fields stay, and only specified fields are looked into again.
        """
        own = _ROOT_KEYS if root or self.embedded else ()
        if isinstance(value, dict) and not self.preserve and not self.additional:
            for key in [key for key in value if key not in self.props and key not in own]:
                unknown.append(path_text((path, key)))
                del value[key]
        for at, inner, node in self.inside(value):
            if at not in own and isinstance(inner, (dict, list)):
                node.prune(inner, (path, at), unknown)

    def fill(self, value: Any) -> None:
        """Set defaults, in place; a null where null is not allowed and a default exists becomes the default."""
        if not self.has_defaults:
            return
        for key, prop in self.props.items() if isinstance(value, dict) else ():
            if prop.has_default and (key not in value or (value[key] is None and not prop.nullable)):
                value[key] = copy.deepcopy(prop.default)
        for at, inner, node in list(self.inside(value)):
            if inner is None and node.has_default and not node.nullable:
                value[at] = inner = copy.deepcopy(node.default)
            node.fill(inner)

    def drop_nulls(self, value: Any) -> None:
        """Nulls of members that may not be null are as good as absent; where there is a default, `fill` sets it."""
        for key in [key for key, inner in value.items() if inner is None] if isinstance(value, dict) else ():
            node = self.props.get(key, self.additional)
            if isinstance(node, Structural) and not node.nullable and not node.has_default:
                del value[key]
        for _, inner, node in self.inside(value):
            if isinstance(inner, (dict, list)):
                node.drop_nulls(inner)

    def conform(self, obj: Obj, unknown: list[str], *, nulls: bool = False) -> None:
        """Bring a whole object into the form of this schema, in place: pruned, with defaults, and without nulls that mean nothing unless
        `nulls` are kept, for the validation to refuse."""
        self.prune(obj, None, unknown, root=True)
        if not nulls:
            self.drop_nulls(obj)
        self.fill(obj)

    # -- validation --------------------------------------------------------------------------------------------------------------

    def validate(self, value: Any, path: Path_, causes: list[Cause], old: Any = _NONE) -> None:
        """Add one cause for each violation. A part that equals its former value, in `old`, may stay as it is."""
        if json_equal(value, old):
            return
        if value is None:
            if not (self.nullable or (not self.type and not self.int_or_string)):
                causes.append(_of_type(value, path, self.type))
            return
        if self.int_or_string:
            if type(value) not in (int, str):
                causes.append(_of_type(value, path, "integer,string"))
                return
        elif self.type and not self._is(value):
            causes.append(_of_type(value, path, self.type))
            return
        raw = self.raw
        if "enum" in raw and value not in raw["enum"]:
            causes.append(not_supported(path_text(path), value, [str(x) for x in raw["enum"]]))
        if isinstance(value, dict):
            self._object(value, path, causes)
        elif self.bounded:
            if isinstance(value, str):
                self._string(value, path, causes)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self._number(value, path, causes)
            elif isinstance(value, list):
                self._array(value, path, causes)
        if isinstance(value, (dict, list)):
            former = self.former(value, old)
            for key, inner, node in self.inside(value):
                node.validate(inner, (path, key), causes, former.get(key, _NONE))
        if self.junctors:
            self._junctors(value, path, causes)

    def former(self, value: Obj | list[Any], old: Any) -> dict[Any, Any]:
        """The former values by key, or by index where the keys of a list's items tell which is which."""
        if isinstance(value, dict):
            return old if isinstance(old, dict) else {}
        if not isinstance(old, list):
            return {}
        known = {identity: item for item in old if (identity := self._identity(item)) is not None}
        return {at: known[identity] for at, item in enumerate(value) if (identity := self._identity(item)) in known}

    def _identity(self, item: Any) -> bytes | None:
        """What tells an item of this list from the others; None in a list that is no map."""
        if self.raw.get("x-kubernetes-list-type") != "map" or not isinstance(item, dict):
            return None
        return orjson.dumps([item.get(key) for key in self.raw.get("x-kubernetes-list-map-keys") or ()])

    def _is(self, value: Any) -> bool:
        kind = type(value)
        if kind is bool:
            return self.type == "boolean"
        if kind is float and self.type == "integer":
            return math.isfinite(value) and value == int(value)
        return kind in _TYPES.get(self.type, ())

    def _string(self, value: str, path: Path_, causes: list[Cause]) -> None:
        raw, where = self.raw, path_text(path)
        if "maxLength" in raw and len(value) > raw["maxLength"]:
            causes.append(too_long(where, raw["maxLength"]))
        if "minLength" in raw and len(value) < raw["minLength"]:
            causes.append(invalid_value(where, value, f"{where} in body should be at least {raw['minLength']} chars long"))
        if "pattern" in raw and not _matches(raw["pattern"], value):
            causes.append(invalid_value(where, value, f"{where} in body should match '{raw['pattern']}'"))
        check = formats.of(raw["format"]) if "format" in raw else None
        if check is not None and not check(value):
            causes.append(invalid_value(where, value, f"{where} in body must be of type {raw['format']}: {value!r}".replace("'", '"')))

    def _number(self, value: int | float, path: Path_, causes: list[Cause]) -> None:
        raw, where = self.raw, path_text(path)
        for bound, beyond, word in (("Minimum", operator.lt, "greater"), ("Maximum", operator.gt, "less")):
            limit, exclusive = raw.get(bound.lower()), raw.get(f"exclusive{bound}")
            if limit is not None and (beyond(value, limit) or (exclusive and value == limit)):
                text = f"should be {word} than {'' if exclusive else 'or equal to '}{_num(limit)}"
                causes.append(invalid_value(where, value, f"{where} in body {text}"))
        step = raw.get("multipleOf")
        if step and not _whole(value / step):
            causes.append(invalid_value(where, value, f"{where} in body should be a multiple of {_num(step)}"))
        bits = {"int32": 31, "int64": 63}.get(raw.get("format", ""))
        if bits and not -(2**bits) <= value < 2**bits:
            causes.append(invalid_value(where, value, f"{where} in body must be of type {raw['format']}: {value}"))

    def _array(self, value: list[Any], path: Path_, causes: list[Cause]) -> None:
        raw, where = self.raw, path_text(path)
        self._sized(value, "Items", where, causes)
        kind = "set" if raw.get("uniqueItems") else raw.get("x-kubernetes-list-type")
        if kind == "set":
            causes += [duplicate(f"{where}[{i}]", value[i]) for i in repeats(value)]
        elif kind == "map":
            keys = raw.get("x-kubernetes-list-map-keys") or ()
            # an item that is no object has the cause of its type already
            named = [(i, {key: item.get(key) for key in keys}) for i, item in enumerate(value) if isinstance(item, dict)]
            causes += [duplicate(f"{where}[{named[at][0]}]", named[at][1]) for at in repeats(name for _, name in named)]

    def _object(self, value: Obj, path: Path_, causes: list[Cause]) -> None:
        for key in ("apiVersion", "kind") if self.embedded else ():
            if not value.get(key):
                causes.append(required(path_text((path, key)), "must not be empty"))
        causes += [required(path_text((path, key))) for key in self.required if key not in value]
        if self.bounded:
            self._sized(value, "Properties", path_text(path), causes)

    def _sized(self, value: list[Any] | Obj, what: str, where: str, causes: list[Cause]) -> None:
        most, least = self.raw.get(f"max{what}", math.inf), self.raw.get(f"min{what}", 0)
        if len(value) > most:
            causes.append(too_many(where, len(value), int(most)))
        if len(value) < least:
            causes.append(invalid_value(where, len(value), f"{where} in body should have at least {least} {what.lower()}"))

    def _junctors(self, value: Any, path: Path_, causes: list[Cause]) -> None:
        raw, where = self.raw, path_text(path)

        def holds(sub: Obj) -> bool:
            inner: list[Cause] = []
            Structural(sub).validate(value, path, inner)
            return not inner

        for sub in raw.get("allOf") or ():
            Structural(sub).validate(value, path, causes)
        if raw.get("anyOf") and not self.int_or_string and not any(holds(s) for s in raw["anyOf"]):
            causes.append(invalid_value(where, "", f"{where} in body must validate at least one schema (anyOf)"))
        if raw.get("oneOf") and sum(holds(s) for s in raw["oneOf"]) != 1:
            causes.append(invalid_value(where, "", f"{where} in body must validate one and only one schema (oneOf)"))
        if isinstance(raw.get("not"), dict) and holds(raw["not"]):
            causes.append(invalid_value(where, "", f"{where} in body must not validate the schema (not)"))


def structural(raw: Obj) -> Structural:
    """The schema, compiled once for the same text: a definition is checked, stored, and stored again with its status."""
    return _compiled(orjson.dumps(raw))


@lru_cache(maxsize=256)
def _compiled(text: bytes) -> Structural:
    return Structural(orjson.loads(text))


def _whole(quotient: float) -> bool:
    return math.isfinite(quotient) and math.isclose(quotient, round(quotient), abs_tol=1e-9)


def _num(value: int | float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


def _of_type(value: Any, path: Path_, wanted: str) -> Cause:
    where = path_text(path)
    shown = _NAMES.get(type(value), "unknown")
    return type_invalid(where, shown, f'{where} in body must be of type {wanted}: "{shown}"')
