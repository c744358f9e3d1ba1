"""How JSON and numbers are read from annotations (API-ANN-01). See ``koord.api.annotations``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from koord.api import quantity
from koord.api.labels import is_plain_number
from koord.api.objects_meta import Projection, ResourceList, decoder

T = TypeVar("T")

Annotations = Mapping[str, str] | None


class AnnotationError(ValueError):
    """An annotation that cannot be read: ``key`` and ``detail`` say which and why."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"annotation {key}: {detail}")
        self.key = key
        self.detail = detail


def text_of(annotations: Annotations, key: str) -> str | None:
    """The annotation's text, None when it is absent."""
    return annotations.get(key) if annotations else None


def read_json(annotations: Annotations, key: str, target: type[T]) -> T | None:
    """The annotation's JSON as ``target``; None when absent. JSON ``null`` is the empty value. Raises AnnotationError."""
    text = text_of(annotations, key)
    return None if text is None else decode_json(key, text, target)


def decode_json(key: str, text: str, target: type[T]) -> T:
    """JSON text as ``target``. Raises AnnotationError naming ``key``."""
    data = (text if text.strip() != "null" else _empty(target)).encode()
    read: Any = decoder(target)  # type: ignore[arg-type]
    try:
        value: T = read(data)
    except msgspec.ValidationError as error:
        raise AnnotationError(key, str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise AnnotationError(key, f"not valid JSON: {error}") from None
    return value


def _empty(target: Any) -> str:
    return "[]" if getattr(target, "__origin__", None) is tuple else "{}"


def check_resource_list(key: str, resources: Mapping[str, Any]) -> None:
    """Raise AnnotationError for the first value that is no quantity."""
    for name, amount in resources.items():
        try:
            quantity.parse_value(amount)
        except quantity.QuantityError as error:
            raise AnnotationError(key, f"{name}: {error}") from None


class Resources(Projection):
    """Amounts in an object of their own."""

    resources: ResourceList = {}


def read_resources(annotations: Annotations, key: str) -> ResourceList | None:
    """The amounts of an annotation that holds `Resources`; None when absent. Raises AnnotationError."""
    found = read_json(annotations, key, Resources)
    if found is None:
        return None
    check_resource_list(key, found.resources)
    return found.resources


def to_float(key: str, text: str) -> float:
    """A finite decimal number. Raises AnnotationError."""
    try:
        value = float(text) if is_plain_number(text) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise AnnotationError(key, f"{text[:64]!r} is not a finite number")
    return value


_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def read_integer(annotations: Annotations, key: str, *, bits: int = 64, default: int = 0) -> int:
    """The annotation as a signed decimal integer of ``bits`` bits; ``default`` when absent. Raises AnnotationError."""
    text = text_of(annotations, key)
    if text is None:
        return default
    if _DECIMAL.fullmatch(text) is None:
        raise AnnotationError(key, f"{text[:64]!r} is not a decimal integer")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise AnnotationError(key, f"{text[:64]} is outside the range of int{bits}")
    return value
