"""Label selectors as they stand in configuration and custom resources: every mistake with its path, or a compiled `Selector`; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koord.api.selectors import OPERATORS, Selector, SelectorError, from_label_selector, validate_key, validate_value
from koord.config.errors import ConfigError, join, unknown_field

_OPERATORS = OPERATORS[:4]
_FIELDS = ("matchLabels", "matchExpressions")
_EXPRESSION_FIELDS = ("key", "operator", "values")


def compile_selector(selector: Any, path: str = "nodeSelector") -> Selector:
    """An empty selector matches everything. Raises ConfigError with the first mistake."""
    for error in selector_errors(selector, path):
        raise error
    return from_label_selector(selector)


def selector_errors(selector: Any, path: str) -> Iterator[ConfigError]:
    """What is wrong with a selector (fields, types, keys, values, operators). A misspelled field is no trifle: without it the selector
    would match everything."""
    if not isinstance(selector, Mapping):
        yield ConfigError(path, "must be a label selector: a mapping with matchLabels and matchExpressions")
        return
    yield from _unknown(selector, _FIELDS, path)
    labels = selector.get("matchLabels") or {}
    if not isinstance(labels, Mapping):
        yield ConfigError(join(path, "matchLabels"), "must be a mapping of strings")
        labels = {}
    for key, value in labels.items():
        where = join(join(path, "matchLabels"), str(key))
        yield from _key_errors(key, where)
        yield from _value_errors(value, where)
    expressions = selector.get("matchExpressions") or []
    if not isinstance(expressions, list):
        yield ConfigError(join(path, "matchExpressions"), "must be a list")
        return
    for index, expression in enumerate(expressions):
        yield from _expression_errors(expression, join(join(path, "matchExpressions"), index))


def _expression_errors(expression: Any, where: str) -> Iterator[ConfigError]:
    if not isinstance(expression, Mapping):
        yield ConfigError(where, "must be a mapping with key, operator and values")
        return
    yield from _unknown(expression, _EXPRESSION_FIELDS, where)
    yield from _key_errors(expression.get("key"), join(where, "key"))
    operator, values = expression.get("operator"), expression.get("values") or []
    if operator not in _OPERATORS:
        yield ConfigError(join(where, "operator"), f"{operator!r} is not known; accepted: {', '.join(_OPERATORS)}")
    elif operator in ("In", "NotIn") and not values:
        yield ConfigError(join(where, "values"), f"must not be empty with operator {operator}")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield ConfigError(join(where, "values"), f"must be empty with operator {operator}")
    if not isinstance(values, list):
        yield ConfigError(join(where, "values"), "must be a list of strings")
        return
    for index, value in enumerate(values):
        yield from _value_errors(value, join(join(where, "values"), index))


def _unknown(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> Iterator[ConfigError]:
    for name in given:
        if name not in known:
            yield ConfigError(join(where, str(name)), unknown_field(str(name), known))


def _key_errors(key: Any, where: str) -> Iterator[ConfigError]:
    try:
        validate_key(key)
    except SelectorError as error:
        yield ConfigError(where, str(error))


def _value_errors(value: Any, where: str) -> Iterator[ConfigError]:
    try:
        validate_value(value)
    except SelectorError as error:
        yield ConfigError(where, str(error))
