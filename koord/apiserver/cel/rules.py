"""x-kubernetes-validations: the CEL rules of a custom resource's schema, compiled once and asked at every write.

Rules are checked against protobuf messages that mirror the schema, so that a field that does not exist, or a comparison of a number
with a string, is found when the definition is stored. They are evaluated on plain maps, where an absent field is no field at all.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from koord.api.times import parse_duration_ns
from koord.apiserver.cel import library
from koord.apiserver.cel.environment import BOOL, DYN, STRING, Bound, CelError, Environment, Program, Type, check_message, readable, told
from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required
from koord.apiserver.schema.builtin import Path_, path_text
from koord.apiserver.schema.structural import Structural
from koord.apiserver.store import Obj
from koord.kube.patch import json_equal

REASONS = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")
_STRINGS = re.compile(r"""[rR]?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_OLD = re.compile(r"(?<![\w.])oldSelf\b")
_VALUES = Environment({"self": DYN, "oldSelf": DYN})  # plain maps
_STEP = re.compile(r"\.([^.\['\]]+)|\['([^']+)'\]")


@dataclass(slots=True)
class Rule:
    """One rule. With `optional` its `oldSelf` may be absent: `first` judges what has no former value."""

    text: str
    message: str
    reason: str
    where: str
    transition: bool
    program: Program
    first: Program | None = None
    message_program: Program | None = None


@dataclass(slots=True)
class RuleNode:
    """The rules of a node of a schema and of those below it."""

    node: Structural
    root: bool
    rules: list[Rule] = field(default_factory=list)
    props: dict[str, RuleNode] = field(default_factory=dict)
    items: RuleNode | None = None
    additional: RuleNode | None = None

    def check(self, value: Any, old: Any, path: Path_, causes: list[Cause]) -> None:
        """Add a cause for each rule that does not hold. `old` is the former value, None for none. The value follows its schema."""
        if value is None:
            return
        if self.root:
            value, old = readable(value), readable(old)
        if self.rules:
            try:
                bound = bind(self.node, value, root=self.root)
                former = bind(self.node, old, root=self.root) if old is not None else None
            except (ValueError, OverflowError) as error:  # a text that its format allows and no expression can hold
                where, kind = path_text(path) or "<nil>", self.node.type or "object"
                causes.append(invalid_value(where, kind, f"{error}: its rules cannot be evaluated"))
                return
            same = old is not None and json_equal(value, old)
            given = _VALUES.bind({"self": bound, "oldSelf": former})
            for rule in self.rules:
                # what was stored before a rule came may stay as it is
                if not (same and not rule.transition):
                    self._judge(rule, value, given, former is None, path, causes)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for key, inner in value.items():
                below = self.props.get(key) or (self.additional if key not in self.node.props else None)
                if below is not None:
                    below.check(inner, before.get(key), (path, key), causes)
        elif isinstance(value, list) and self.items is not None:
            former_items = self.node.former(value, old)
            for at, item in enumerate(value):
                self.items.check(item, former_items.get(at), (path, at), causes)

    def _judge(self, rule: Rule, value: Any, given: Bound, first: bool, path: Path_, causes: list[Cause]) -> None:
        program = rule.program
        if rule.transition and first:
            if rule.first is None:
                return
            program = rule.first
        place = path_text(path)
        try:
            if not program.evaluate(given):
                message = told(rule.message_program, given) or rule.message or f"failed rule: {_line(rule.text)}"
                causes.append(_cause(rule.reason, (place + rule.where).removeprefix(".") or "<nil>", value, message))
        except CelError as error:
            text = f"{error} evaluating rule: {rule.message or _line(rule.text)}"
            causes.append(invalid_value(place or "<nil>", self.node.type or "object", text))


def _line(text: str) -> str:
    return " ".join(text.split())


def _cause(reason: str, place: str, value: Any, message: str) -> Cause:
    if reason == "FieldValueForbidden":
        return field_forbidden(place, message)
    if reason == "FieldValueRequired":
        return required(place, message)
    if reason == "FieldValueDuplicate":
        return duplicate(place, value)
    if isinstance(value, (dict, list)):  # too much to be shown
        return Cause("FieldValueInvalid", place, f"Invalid value: {message}")
    return invalid_value(place, value, message)


# -- compiling -----------------------------------------------------------------------------------------------------------------------


def compile_rules(root: Structural, path: str, causes: list[Cause]) -> RuleNode | None:
    """The rules of a schema; None where there are none. Mistakes become causes, and rules that have one are left out."""
    return _Compiler(root, causes).node(root, path, root=True, loose="")


class _Compiler:
    def __init__(self, root: Structural, causes: list[Cause]) -> None:
        self._types = Types(root)
        self._causes = causes

    def node(self, node: Structural, path: str, *, loose: str, root: bool = False) -> RuleNode | None:
        """`loose` is the path of the list above whose items have no identity, "" for none."""
        if not node.has_rules:
            return None
        out = RuleNode(node, root)
        listed = node.raw.get("x-kubernetes-validations") or ()
        if listed:
            # an environment whose types are those of the schema: it finds mistakes
            checked = Environment(dict.fromkeys(("self", "oldSelf"), self._types.of(node)), pool=self._types.pool)
            for at, raw in enumerate(listed):
                made = self._rule(raw, node, checked, f"{path}.x-kubernetes-validations[{at}]", loose)
                if made is not None:
                    out.rules.append(made)
        for key, prop in node.props.items():
            below = self.node(prop, f"{path}.properties[{key}]", loose=loose)
            if below is not None:
                out.props[key] = below
        if node.items is not None:
            known = node.raw.get("x-kubernetes-list-type") == "map"
            out.items = self.node(node.items, f"{path}.items", loose=loose if known else loose or path)
        if isinstance(node.additional, Structural):
            out.additional = self.node(node.additional, f"{path}.additionalProperties", loose=loose)
        return out if out.rules or out.props or out.items or out.additional else None

    def _rule(self, raw: Obj, node: Structural, checked: Environment, path: str, loose: str) -> Rule | None:
        text, causes = str(raw.get("rule") or ""), self._causes
        if not text.strip():
            causes.append(required(f"{path}.rule", "rule is not specified"))
            return None
        before = len(causes)
        message, reason = str(raw.get("message") or ""), raw.get("reason") or "FieldValueInvalid"
        transition, optional = bool(_OLD.search(_STRINGS.sub("''", text))), bool(raw.get("optionalOldSelf"))
        if transition and loose:
            why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {loose}"
            causes.append(invalid_value(f"{path}.rule", text, why))
        if optional and not transition:
            causes.append(invalid_value(f"{path}.optionalOldSelf", True, "may not be set if oldSelf is not used in rule"))
        check_message(message, text, path, "rule", causes)
        if reason not in REASONS:
            causes.append(not_supported(f"{path}.reason", reason, REASONS))
        where = str(raw.get("fieldPath") or "")
        if where and not _leads_somewhere(node, where):
            causes.append(invalid_value(f"{path}.fieldPath", where, "fieldPath must be a valid path"))
        program = self._compiled(checked, _optional(text, "optional.of(oldSelf)") if optional else text, f"{path}.rule", BOOL)
        first = message_of = None
        if optional and program is not None:
            first = self._compiled(checked, _optional(text, "optional.none()"), f"{path}.rule", BOOL)
        if raw.get("messageExpression"):
            message_of = self._compiled(checked, raw["messageExpression"], f"{path}.messageExpression", STRING)
        if program is None or len(causes) > before:
            return None
        return Rule(text, message.strip(), reason, where, transition, program, first, message_of)

    def _compiled(self, checked: Environment, text: str, path: str, result: str) -> Program | None:
        try:
            checked.compile(text, result)
            return _VALUES.compile(text, result)
        except CelError as error:
            self._causes.append(invalid_value(path, text, str(error)))
            return None


def _optional(text: str, value: str) -> str:
    """The expression with `oldSelf` replaced, except in its strings."""
    out, at = [], 0
    for found in _STRINGS.finditer(text):
        out += [_OLD.sub(value, text[at : found.start()]), found.group(0)]
        at = found.end()
    return "".join([*out, _OLD.sub(value, text[at:])])


def _leads_somewhere(node: Structural, path: str) -> bool:
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return False
        key = step[1] or step[2]
        below = node.props.get(key) or node.additional
        if not isinstance(below, Structural):
            return False
        node, at = below, step.end()
    return True


# -- types and values -----------------------------------------------------------------------------------------------------------------

_RESERVED = frozenset(
    {
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop",
        "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_ACCESSIBLE = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")
_PACKAGE = "schema"
_FORMATS = {"date-time": "Timestamp", "date": "Timestamp", "duration": "Duration"}
_WIRE_TYPES = {"integer": 3, "number": 1, "boolean": 8, "string": 9}  # field types of protobuf
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
        items = node.items if node.type == "array" else None
        repeated = items is not None and items.type != "array" and not _is_map(items)
        kind, type_name = self._single(items if repeated and items is not None else node)
        made.field.add(name=name, number=number, label=3 if repeated else 1, type=kind, type_name=type_name or None)

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
        return (12 if form == "byte" else _WIRE_TYPES[node.type]), ""

    def of(self, node: Structural) -> Type:
        """The type of a node of this schema."""
        if _is_any(node):
            return DYN
        if node.type == "array":
            return cel.Type.List(self.of(node.items) if node.items is not None else DYN)
        if _is_map(node):
            return cel.Type.Map(cel.Type.STRING, self.of(node.additional) if isinstance(node.additional, Structural) else DYN)
        if node.type == "object":
            return cel.Type(self._names[id(node)]) if id(node) in self._names else DYN
        form = node.raw.get("format", "") if node.type == "string" else ""
        if form in _FORMATS:
            return cel.Type.TIMESTAMP if _FORMATS[form] == "Timestamp" else cel.Type.DURATION
        return {"integer": cel.Type.INT, "number": cel.Type.DOUBLE, "boolean": cel.Type.BOOL}.get(
            node.type, cel.Type.BYTES if form == "byte" else cel.Type.STRING
        )


def _is_map(node: Structural) -> bool:
    return node.type == "object" and not node.props and not node.embedded and bool(node.additional)


def _is_any(node: Structural) -> bool:
    if node.int_or_string or node.type not in (*_WIRE_TYPES, "array", "object"):
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
