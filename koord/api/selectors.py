"""Label selectors, field selectors and node selector terms: parse, validate, match, format; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}", re.ASCII)
_EMPTY: dict[str, str] = {}
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class SelectorError(ValueError):
    """A selector that cannot be used; the text says what is wrong and what is accepted."""


def whole_number(text: str) -> int | None:
    """A decimal number of 64 bits, as Gt and Lt compare them; None for any other text."""
    value = int(text) if _INTEGER.fullmatch(text) else 1 << 63
    return value if -(1 << 63) <= value < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. `Gt` and `Lt` compare integers, with a single value."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy this condition (a missing label satisfies `NotIn` and `DoesNotExist` only)."""
        operator = self.operator
        value = labels.get(self.key)
        if operator == "In":
            return value in self.values
        if operator == "NotIn":
            return value is None or value not in self.values
        if operator == "Exists":
            return value is not None
        if operator == "DoesNotExist":
            return value is None
        have, limit = whole_number(value or ""), whole_number(next(iter(self.values)))
        if have is None or limit is None:
            return False
        return have > limit if operator == "Gt" else have < limit

    def __str__(self) -> str:
        if self.operator in ("In", "NotIn"):
            if len(self.values) == 1:
                return f"{self.key}{'=' if self.operator == 'In' else '!='}{next(iter(self.values))}"
            return f"{self.key} {'in' if self.operator == 'In' else 'notin'} ({','.join(sorted(self.values))})"
        if self.operator in ("Gt", "Lt"):
            return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{next(iter(self.values))}"
        return self.key if self.operator == "Exists" else f"!{self.key}"


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold. `nothing` matches no labels at all (a null LabelSelector)."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    @property
    def everything(self) -> bool:
        """True if it matches every set of labels."""
        return not self.nothing and not self.requirements

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the labels (None is the same as no labels) satisfy every requirement."""
        if self.nothing:
            return False
        if labels is None:
            labels = _EMPTY
        return all(requirement.holds(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING = Selector()
NOTHING = Selector(nothing=True)


LONGEST_KEY = 253 + 1 + 63  # characters of [DNS prefix/]name


def validate_key(key: Any) -> str:
    """A valid label key (`[prefix/]name`), or SelectorError."""
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not _valid_key(key):
        raise SelectorError(f"{key!r} is no valid label key: [DNS prefix/]name, name of at most 63 of [A-Za-z0-9-_.]")
    return key


@lru_cache(maxsize=1024)  # the same few keys in selectors of thousands of pods
def _valid_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or (len(prefix) <= 253 and _PREFIX.fullmatch(prefix) is not None))


def validate_value(value: Any) -> str:
    """A valid label value, or SelectorError."""
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        raise SelectorError(f"{value!r} is no valid label value: at most 63 of [A-Za-z0-9-_.], starting and ending alphanumeric")
    return value


def _requirement(
    key: Any, operator: Any, values: Iterable[Any] | None, *, accepted: tuple[str, ...], any_value: bool = False
) -> Requirement:
    key = validate_key(key)
    listed = list(values or ())
    if operator not in accepted:
        raise SelectorError(f"{key}: operator {operator!r} is not known; accepted: {', '.join(accepted)}")
    if operator in ("In", "NotIn") and not listed:
        raise SelectorError(f"{key}: operator {operator} needs at least one value")
    if operator in ("Exists", "DoesNotExist") and listed:
        raise SelectorError(f"{key}: operator {operator} takes no values")
    if operator in ("Gt", "Lt") and (len(listed) != 1 or not isinstance(listed[0], str) or whole_number(listed[0]) is None):
        raise SelectorError(f"{key}: operator {operator} needs exactly one integer")
    if any_value and all(isinstance(value, str) for value in listed):
        return Requirement(key, operator, frozenset(listed))
    return Requirement(key, operator, frozenset(validate_value(value) for value in listed))


# -- text (`a=b,c in (d,e),!f`) ------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(==|!=|[=,()<>!]|[^\s=,()<>!]+|$)")


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [token for token in _TOKEN.findall(text) if token]
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def fail(self, wanted: str) -> SelectorError:
        found = repr(self.peek()) if self.peek() else "the end"
        return SelectorError(f"label selector {self.text!r}: found {found}, expected {wanted}")


_PUNCTUATION = frozenset({"==", "!=", "=", ",", "(", ")", "<", ">", "!"})


def parse_label_selector(text: str) -> Selector:
    """Parse a selector as in a request's `labelSelector`: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`, `a<1`.

    An empty text selects everything. Raises SelectorError.
    """
    tokens = _Tokens(text)
    requirements: list[Requirement] = []
    if not tokens.tokens:
        return EVERYTHING
    while True:
        requirements.append(_parse_requirement(tokens))
        separator = tokens.peek()
        if not separator:
            return Selector(tuple(requirements))
        if separator != ",":
            raise tokens.fail("',' or the end")
        tokens.take()


def _parse_requirement(tokens: _Tokens) -> Requirement:
    if tokens.peek() == "!":
        tokens.take()
        return _requirement(_word(tokens, "a label key"), "DoesNotExist", (), accepted=OPERATORS)
    key = _word(tokens, "a label key")
    operator = tokens.peek()
    if operator in ("", ","):
        return _requirement(key, "Exists", (), accepted=OPERATORS)
    tokens.take()
    if operator in ("=", "==", "!="):
        value = "" if tokens.peek() in ("", ",") else _word(tokens, "a label value")
        return _requirement(key, "NotIn" if operator == "!=" else "In", (value,), accepted=OPERATORS)
    if operator in (">", "<"):
        return _requirement(key, "Gt" if operator == ">" else "Lt", (_word(tokens, "an integer"),), accepted=OPERATORS)
    if operator in ("in", "notin"):
        return _requirement(key, "In" if operator == "in" else "NotIn", _value_set(tokens), accepted=OPERATORS)
    tokens.at -= 1
    raise tokens.fail("one of = == != in notin > <")


def _word(tokens: _Tokens, wanted: str) -> str:
    if not tokens.peek() or tokens.peek() in _PUNCTUATION:
        raise tokens.fail(wanted)
    return tokens.take()


def _value_set(tokens: _Tokens) -> list[str]:
    if tokens.peek() != "(":
        raise tokens.fail("'('")
    tokens.take()
    values: list[str] = []
    while True:
        values.append("" if tokens.peek() in (",", ")") else _word(tokens, "a label value"))
        token = tokens.take()
        if token == ")":
            return values
        if token != ",":
            tokens.at -= 1
            raise tokens.fail("',' or ')'")


# -- LabelSelector objects -----------------------------------------------------------------------------------------


def from_label_selector(selector: Any, *, nil_matches: bool = False) -> Selector:
    """Compile a `metav1.LabelSelector`: a dict, or a struct with `match_labels` and `match_expressions`.

    None matches nothing, or everything if `nil_matches`; an empty one matches everything. Raises SelectorError.
    """
    if selector is None:
        return EVERYTHING if nil_matches else NOTHING
    labels, expressions = _parts(selector)
    requirements = [Requirement(validate_key(key), "In", frozenset((validate_value(value),))) for key, value in labels.items()]
    for expression in expressions:
        key, operator, values = _expression(expression)
        requirements.append(_requirement(key, operator, values, accepted=OPERATORS[:4]))
    return Selector(tuple(requirements))


def _member(obj: Any, wire: str, attribute: str) -> Any:
    """A member of a dict or of a struct; None where there is none."""
    return obj.get(wire) if isinstance(obj, Mapping) else getattr(obj, attribute, None)


def _parts(selector: Any) -> tuple[Mapping[str, str], Iterable[Any]]:
    labels = _member(selector, "matchLabels", "match_labels") or {}
    expressions = _member(selector, "matchExpressions", "match_expressions") or ()
    if not isinstance(labels, Mapping):
        raise SelectorError("matchLabels must be a mapping of strings")
    if isinstance(expressions, (str, Mapping)):
        raise SelectorError("matchExpressions must be a list")
    return labels, expressions


def _expression(expression: Any) -> tuple[Any, Any, Any]:
    if isinstance(expression, Mapping):
        parts = expression.get("key"), expression.get("operator"), expression.get("values")
    elif hasattr(expression, "key") and hasattr(expression, "operator"):
        parts = expression.key, expression.operator, getattr(expression, "values", None)
    else:
        raise SelectorError("an expression must be a mapping with key, operator and values")
    if isinstance(parts[2], (str, Mapping)):
        raise SelectorError(f"{parts[0]}: values must be a list of strings")
    return parts


# -- node selector terms -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """One term of a node selector: every expression must hold. A term without any expression matches no node."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str] | None, name: str) -> bool:
        """Whether a node with these labels and this name satisfies the term."""
        if not self.expressions and not self.fields:
            return False
        if labels is None:
            labels = _EMPTY
        return all(item.holds(labels) for item in self.expressions) and all(item.holds({"metadata.name": name}) for item in self.fields)


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms are alternatives; without terms it matches no node."""

    terms: tuple[NodeSelectorTerm, ...]

    def matches(self, labels: Mapping[str, str] | None, name: str) -> bool:
        """Whether any term matches."""
        return any(term.matches(labels, name) for term in self.terms)


def node_selector_term(term: Any) -> NodeSelectorTerm:
    """Compile a `NodeSelectorTerm` (dict or struct). `matchFields` knows `metadata.name` only. Raises SelectorError."""
    expressions = _member(term, "matchExpressions", "match_expressions") or ()
    fields = _member(term, "matchFields", "match_fields") or ()
    compiled = []
    for field in fields:
        key, operator, values = _expression(field)
        if key != "metadata.name":
            raise SelectorError(f"matchFields: {key!r} is not known; accepted: metadata.name")
        if len(values or ()) != 1:
            raise SelectorError("matchFields: metadata.name needs exactly one value")
        compiled.append(_requirement(key, operator, values, accepted=OPERATORS[:2], any_value=True))
    # values of node affinity are not validated as label values by the API: one that no label can have just never matches
    return NodeSelectorTerm(
        tuple(_requirement(*_expression(item), accepted=OPERATORS, any_value=True) for item in expressions), tuple(compiled)
    )


def node_selector(selector: Any) -> NodeSelector:
    """Compile a `NodeSelector` (dict or struct with `node_selector_terms`), or a bare list of terms."""
    listed = isinstance(selector, (list, tuple))
    terms = selector if listed else _member(selector, "nodeSelectorTerms", "node_selector_terms") or ()
    return NodeSelector(tuple(node_selector_term(term) for term in terms))


# -- field selectors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """`field=value`, or `field!=value` if `negated`."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        value = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'!=' if self.negated else '='}{value}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All requirements must hold; a missing field counts as the empty string."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Match flat fields (`{"metadata.name": "a"}`)."""
        return all((fields.get(item.field, "") == item.value) is not item.negated for item in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(item) for item in self.requirements)


_FIELD_TERM = re.compile(r"((?:[^\\,]|\\.)+)(?:,|$)")
_FIELD_PARTS = re.compile(r"\s*([A-Za-z][A-Za-z0-9_./\[\]'-]*?)\s*(!=|==|=)((?:[^\\=]|\\[\\,=])*)")


def parse_field_selector(text: str) -> FieldSelector:
    """Parse `metadata.name=a,spec.nodeName!=b`; `\\,`, `\\=` and `\\\\` stand for themselves in a value. Raises SelectorError."""
    requirements: list[FieldRequirement] = []
    at = 0
    while at < len(text):
        term = _FIELD_TERM.match(text, at)
        parts = _FIELD_PARTS.fullmatch(term.group(1)) if term else None
        if term is None or parts is None:
            raise SelectorError(f"field selector {text!r}: expected field=value or field!=value at {text[at:]!r}")
        requirements.append(FieldRequirement(parts[1], re.sub(r"\\(.)", r"\1", parts[3]), parts[2] == "!="))
        at = term.end()
    return FieldSelector(tuple(requirements))
