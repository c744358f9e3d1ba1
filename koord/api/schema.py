"""A small schema for JSON that people write, and its form in a CRD; pure.

Two ranges of a number stand side by side: `crd` is what a CRD accepts (beyond it a write would be refused), `cm` is the tighter one that
the ConfigMap webhook demands. `text` says what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Range = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Described:
    """What every node has."""

    text: str


@dataclass(frozen=True, slots=True)
class Int(Described):
    """A whole number."""

    cm: Range | None = None
    crd: Range | None = None
    default: int | None = None
    """What the API server fills in."""
    bits: int = 64


@dataclass(frozen=True, slots=True)
class Num(Described):
    """A number; `above` is an exclusive lower bound."""

    above: float | None = None
    most: float | None = None


class Bool(Described):
    """true or false."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Str(Described):
    """A string; `choices` are the known words, checked for the webhook only: a newer agent may know more."""

    choices: tuple[str, ...] = ()


class Amount(Described):
    """A Kubernetes quantity, as text or number."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IntOrText(Described):
    """An int (percent) or a string."""

    default: int | None = None
    """What the API server fills in."""


class Span(Described):
    """A Go duration text."""

    __slots__ = ()


class Selector(Described):
    """A label selector; validity is a matter of the entry that holds it, only the type is checked here."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Free(Described):
    """Anything, kept as it is; with `pruned` a CRD keeps nothing of what is in it."""

    pruned: bool = False


@dataclass(frozen=True, slots=True)
class ListOf(Described):
    """A list of one kind of item."""

    item: Node


@dataclass(frozen=True, slots=True)
class MapOf(Described):
    """A mapping of string keys to one kind of value."""

    value: Node


@dataclass(frozen=True, slots=True)
class Struct(Described):
    """A mapping with known fields; each of `pairs` (low, high) must be set together and low < high (webhook)."""

    fields: Mapping[str, Node]
    pairs: tuple[tuple[str, str], ...] = ()


Node = Int | Num | Bool | Str | Amount | IntOrText | Span | Selector | Free | ListOf | MapOf | Struct

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
QUANTITY_PATTERN = rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"
INT_OR_STRING: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def openapi(node: Node) -> dict[str, Any]:
    """The node as the structural schema of a CRD."""
    schema = _openapi(node)
    if isinstance(node, (Int, IntOrText)) and node.default is not None:
        schema["default"] = node.default
    return {"description": node.text, **schema} if node.text else schema


def _openapi(node: Node) -> dict[str, Any]:
    match node:
        case Struct(fields=fields):
            return {"type": "object", "properties": {name: openapi(fields[name]) for name in sorted(fields)}}
        case ListOf(item=item):
            return {"type": "array", "items": openapi(item)}
        case MapOf(value=value):
            return {"type": "object", "additionalProperties": openapi(value)}
        case Free(pruned=pruned):
            return {"type": "object"} if pruned else {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case Int(crd=bounds, bits=bits):
            low, high = bounds or (None, None)
            limits = {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
            return {"type": "integer", "format": f"int{bits}", **limits}
        case Amount():
            return {**INT_OR_STRING, "pattern": QUANTITY_PATTERN}
        case IntOrText():
            return dict(INT_OR_STRING)
        case Bool():
            return {"type": "boolean"}
        case Str():
            return {"type": "string"}
    raise TypeError(f"no CRD has a {type(node).__name__}")
