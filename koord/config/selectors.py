"""Label selectors as they stand in configuration and custom resources: compiled once, then matched; pure.

`koord.kube.selectors` lies above this layer; this is the part that configuration needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from koord.config.errors import ConfigError, join, unknown_field

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_FIELDS = ("matchLabels", "matchExpressions")
_EXPRESSION_FIELDS = ("key", "operator", "values")


class LabelSelector:
    """A compiled metav1.LabelSelector; an empty one matches everything. `LabelSelector.compile` refuses an invalid one."""

    __slots__ = ("_expressions", "_labels", "source")

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.source = source
        self._labels: tuple[tuple[str, str], ...] = tuple((source.get("matchLabels") or {}).items())
        self._expressions = tuple(
            (item["key"], item["operator"], frozenset(item.get("values") or ())) for item in source.get("matchExpressions") or ()
        )

    @classmethod
    def compile(cls, selector: Any, path: str = "nodeSelector") -> LabelSelector:
        """Raises ConfigError with the first mistake."""
        for error in selector_errors(selector, path):
            raise error
        return cls(selector)

    @property
    def requirements(self) -> Iterator[tuple[str, str, frozenset[str]]]:
        """(key, operator, values) of every requirement; a label that must match is `In` one value."""
        yield from ((key, "In", frozenset((value,))) for key, value in self._labels)
        yield from self._expressions

    @property
    def empty(self) -> bool:
        """Whether the selector has no requirement at all."""
        return not self._labels and not self._expressions

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet every requirement."""
        for key, value in self._labels:
            if labels.get(key) != value:
                return False
        for key, operator, values in self._expressions:
            if operator == "In":
                held = key in labels and labels[key] in values
            elif operator == "NotIn":
                held = key not in labels or labels[key] not in values
            else:
                held = (key in labels) == (operator == "Exists")
            if not held:
                return False
        return True


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
    prefix, slash, name = key.rpartition("/") if isinstance(key, str) else ("", "", "")
    if not _NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix))):
        yield ConfigError(where, f"{key!r} is no valid label key")


def _value_errors(value: Any, where: str) -> Iterator[ConfigError]:
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        yield ConfigError(where, f"{value!r} is no valid label value")
