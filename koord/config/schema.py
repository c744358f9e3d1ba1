"""Checks of JSON against a `koord.api.schema`: types, ranges, unknown fields; and merging. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from koord.api.quantity import Quantity, QuantityError
from koord.api.schema import Amount, Bool, Free, Int, IntOrText, ListOf, MapOf, Node, Num, Range, Selector, Span, Str, Struct
from koord.api.times import parse_duration
from koord.config.errors import ConfigError, join, unknown_field
from koord.config.selectors import selector_errors

Mode = Literal["types", "crd", "cm"]


def errors(node: Node, value: Any, path: str, mode: Mode = "types") -> Iterator[ConfigError]:
    """Mistakes in `value`: wrong types always; values out of range for mode "crd" or "cm". null counts as unset."""
    if value is None or isinstance(node, Free):
        return
    if isinstance(node, (Struct, MapOf)) and not isinstance(value, Mapping):
        yield ConfigError(path, f"must be an object, got {_show(value)}")
    elif isinstance(node, Struct):
        for name, child in node.fields.items():
            if name in value:
                yield from errors(child, value[name], join(path, name), mode)
        if mode == "cm":
            yield from _pairs(node, value, path)
    elif isinstance(node, ListOf):
        if not isinstance(value, list):
            yield ConfigError(path, f"must be a list, got {_show(value)}")
            return
        for index, item in enumerate(value):
            yield from errors(node.item, item, join(path, index), mode)
    elif isinstance(node, MapOf):
        for key, item in value.items():
            yield from errors(node.value, item, join(path, key), mode)
    else:
        yield from _leaf(node, value, path, mode)


def _leaf(node: Node, value: Any, path: str, mode: Mode) -> Iterator[ConfigError]:
    match node:
        case Int(bits=bits):
            if isinstance(value, bool) or not isinstance(value, int):
                yield ConfigError(path, f"must be a whole number, got {_show(value)}")
            elif not _fits(value, bits):
                yield ConfigError(path, f"must be a signed {bits}-bit number, got {value}")
            elif mode != "types":
                yield from _out_of_range(node.cm if mode == "cm" else node.crd, value, path)
        case Num():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                yield ConfigError(path, f"must be a number, got {_show(value)}")
            elif mode == "cm":
                if node.above is not None and value <= node.above:
                    yield ConfigError(path, f"must be greater than {node.above:g}, got {value}")
                if node.most is not None and value > node.most:
                    yield ConfigError(path, f"must be at most {node.most:g}, got {value}")
        case Bool():
            if not isinstance(value, bool):
                yield ConfigError(path, f"must be true or false, got {_show(value)}")
        case Str():
            if not isinstance(value, str):
                yield ConfigError(path, f"must be a string, got {_show(value)}")
            elif mode == "cm" and node.choices and value and value not in node.choices:
                yield ConfigError(path, f"{value!r} is not known; accepted: {', '.join(node.choices)}")
        case Amount():
            try:
                Quantity(value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) else "")
            except QuantityError:
                yield ConfigError(path, f'must be a quantity like "10Gi" or "1500m", got {_show(value)}')
        case IntOrText():
            if isinstance(value, bool) or not isinstance(value, (int, str)):
                yield ConfigError(path, f"must be a whole number (percent) or a string (quantity), got {_show(value)}")
            elif isinstance(value, int) and not _fits(value, 32):
                yield ConfigError(path, f"must be a signed 32-bit number, got {value}")
        case Span():
            try:
                parse_duration(value if isinstance(value, str) else "")
            except ValueError:
                yield ConfigError(path, f'must be a duration like "5m" or "1h30m", got {_show(value)}')
        case Selector():
            if not isinstance(value, Mapping):
                yield from selector_errors(value, path)


def _fits(value: int, bits: int) -> bool:
    """Whether a Go field of that size holds it: an API server refuses, and a Go program cannot read, an object with a larger number."""
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _out_of_range(bounds: Range | None, value: int, path: str) -> Iterator[ConfigError]:
    low, high = bounds or (None, None)
    if (low is not None and value < low) or (high is not None and value > high):
        accepted = (
            f"between {low:g} and {high:g}"
            if low is not None and high is not None
            else f"at least {low:g}"
            if low is not None
            else f"at most {high:g}"
        )
        yield ConfigError(path, f"must be {accepted}, got {value}")


def _pairs(node: Struct, value: Mapping[str, Any], path: str) -> Iterator[ConfigError]:
    for low, high in node.pairs:
        a, b = value.get(low), value.get(high)
        if a is None and b is None:
            continue
        if a is None or b is None:
            missing, given = (low, high) if a is None else (high, low)
            yield ConfigError(join(path, given), f"needs {missing} beside it: the two are only valid together, {low} < {high}")
        elif isinstance(a, int) and isinstance(b, int) and a >= b:
            yield ConfigError(join(path, low), f"must be less than {high} ({b}), got {a}")


def unknown(node: Node, value: Any, path: str) -> Iterator[ConfigError]:
    """Fields that nobody reads, with the nearest known name."""
    if isinstance(node, Struct) and isinstance(value, Mapping):
        for name, item in value.items():
            child = node.fields.get(name)
            if child is None:
                yield ConfigError(join(path, name), unknown_field(name, node.fields))
            else:
                yield from unknown(child, item, join(path, name))
    elif isinstance(node, ListOf) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown(node.item, item, join(path, index))
    elif isinstance(node, MapOf) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from unknown(node.value, item, join(path, key))


def clean(node: Node, value: Any) -> Any:
    """`value` without unknown fields and nulls, quantities in canonical form. The value must be free of type errors."""
    if isinstance(node, Struct):
        return {name: clean(node.fields[name], item) for name, item in value.items() if name in node.fields and item is not None}
    if isinstance(node, ListOf):
        return [clean(node.item, item) for item in value if item is not None]
    if isinstance(node, MapOf):
        return {key: clean(node.value, item) for key, item in value.items() if item is not None}
    if isinstance(node, Amount):
        return str(Quantity(str(value)))
    return value


def merge(base: Any, over: Any) -> Any:
    """Lay `over` on `base`: objects field by field, lists replaced, empty strings and lists count as unset."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = dict(base)
        for key, value in over.items():
            if value is None or value in ("", []):
                continue
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    return over


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
