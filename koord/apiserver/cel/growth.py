"""How large the values of an expression can become, told from its tree before it is evaluated.

The library counts the steps of an evaluation's comprehensions, and not what a step makes: ten characters of a selector double a text, and
a few hundred take all memory of whoever evaluates it. What an expression is given counts as a hundred characters. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

GIVEN = 100.0  # characters of what is not known; of a device's attribute at most 64
MOST = 1e8
_ITEMS = 64.0  # of a list that is not known
_NUMBER = 8.0
_RANGE = 1000.0  # numbers of a range at most
_STEPS = 10_000.0  # of all comprehensions of an evaluation: the library ends it after these
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHECKED_EXPR = 4  # the field of a checked expression that holds its tree, and those of a node by what it is
_CONSTANT, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 3, 4, 5, 6, 7, 8, 9
_TRUTHS = frozenset({"_&&_", "_||_", "!_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "size"})


class TooLargeError(Exception):
    """A value could become larger than anybody can hold."""


class Size(NamedTuple):
    """At most so many items, each at most so large; of a text, or what may be one, the characters of one item."""

    items: float
    each: Size | float

    @property
    def total(self) -> float:
        return self.items * (self.each if isinstance(self.each, float) else self.each.total)


def _text(length: float) -> Size:
    return Size(1.0, length)


def _item(of: Size) -> tuple[float, Size]:
    """(items, the largest) of what is walked; a text may as well be a list that is not known."""
    return (min(_ITEMS, max(1.0, of.each)), of) if isinstance(of.each, float) else (of.items, of.each)


def check(checked: bytes, known: Mapping[str, Size]) -> Size:
    """How large the value of a checked expression, serialized, can be, given the sizes that are `known` of its variables. Raises
    TooLargeError where a value in it can grow beyond MOST characters."""
    return _size(_one(_one(memoryview(checked), 2), _CHECKED_EXPR), known, _STEPS)


def _fields(message: memoryview, *wanted: int) -> Iterator[tuple[int, memoryview]]:
    """The fields of a protobuf message that are bytes: number and content, of those wanted or of all."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == _VARINT:
            _, at = _varint(message, at)
        elif key & 7 == _BYTES:
            length, at = _varint(message, at)
            if not wanted or key >> 3 in wanted:
                yield key >> 3, message[at : at + length]
            at += length
        else:
            at += {_FIXED64: 8, _FIXED32: 4}[key & 7]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _one(message: memoryview, number: int) -> memoryview:
    return next((content for _, content in _fields(message, number)), memoryview(b""))


def _name(message: memoryview, number: int) -> str:
    return bytes(_one(message, number)).decode(errors="replace")


def _size(node: memoryview, known: Mapping[str, Size], steps: float) -> Size:
    """How large the value of a node can be, with the variables of the comprehensions around it and the steps that these leave."""
    found = _text(_NUMBER)
    for kind, inner in _fields(node):
        if kind == _CONSTANT:
            found = _text(max((float(len(text)) for _, text in _fields(inner, 6, 7)), default=_NUMBER))
        elif kind == _IDENT:
            found = known.get(_name(inner, 1), _text(GIVEN))
        elif kind == _SELECT:
            found = _item(_size(_one(inner, 1), known, steps))[1]
        elif kind == _CALL:
            found = _called(inner, known, steps)
        elif kind == _LIST:
            found = _listed([_size(item, known, steps) for _, item in _fields(inner, 1)])
        elif kind == _STRUCT:
            pairs = [[_size(part, known, steps) for _, part in _fields(entry, 3, 4)] for _, entry in _fields(inner, 2)]
            found = _listed([_text(sum(part.total for part in pair)) for pair in pairs])
        elif kind == _COMPREHENSION:
            found = _walked(inner, known, steps)
    if found.total > MOST:
        raise TooLargeError(f"a value of the expression could grow beyond {MOST:.0f} characters")
    return found


def _listed(items: list[Size]) -> Size:
    return Size(float(len(items)), max(items, key=lambda item: item.total, default=_text(0.0)))


def _called(call: memoryview, known: Mapping[str, Size], steps: float) -> Size:
    function = _name(call, 2)
    nodes = [node for _, node in _fields(call, 1)] + [node for _, node in _fields(call, 3)]
    given = [_size(node, known, steps) for node in nodes]
    match function, given:
        case "_+_", [one, other]:
            if isinstance(one.each, float) or isinstance(other.each, float):
                return _text(one.total + other.total)
            return Size(one.items + other.items, max(one.each, other.each, key=lambda item: item.total))
        case "_[_]" | "_?._" | "_[?_]", [one, _]:
            return _item(one)[1]
        case "replace", [text, old, new, *_]:
            # more only as far as it is longer than what it takes the place of, or goes between all characters
            constant = next(_fields(nodes[1]), (0,))[0] == _CONSTANT
            return _text(text.total * max(1.0, new.total / max(1.0, old.total if constant else 1.0) + (1.0 if not old.total else 0.0)))
        case "join", [parts, *separator]:
            items, each = _item(parts)
            between = items * sum(size.total for size in separator)
            return _text((parts.total if each is parts else items * each.total) + between)
        case "lists.range", _:
            return Size(_RANGE, _text(_NUMBER))
    if function in _TRUTHS or not given:
        return _text(_NUMBER)
    return max(given, key=lambda size: size.total)


def _walked(loop: memoryview, known: Mapping[str, Size], steps: float) -> Size:
    """A comprehension: what one step makes, as often as there are items. `cel.bind` is one without items."""
    items, each = _item(_size(_one(loop, 2), known, steps))
    accumulated, into = _name(loop, 3), _size(_one(loop, 4), known, steps)
    items = min(items, steps)
    if items:
        names = {_name(loop, 1): each, _name(loop, 8): each, accumulated: into}
        made = _size(_one(loop, 6), {**known, **names}, steps / items)
        into = made if isinstance(made.each, float) else Size(items * made.items, made.each)
    return _size(_one(loop, 7), {**known, accumulated: into}, steps)
