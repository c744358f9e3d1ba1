"""Rows of a reference table from a pydantic model of a configuration file (pure)."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from koord.api.times import format_duration
from koord.config.model import Seconds, wire
from roles.tools.reference.docstrings import description_of
from roles.tools.reference.markdown import code, noted

_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number", Any: "any", dict: "object"}
_DURATION = next(one.func for one in get_args(Seconds) if isinstance(one, BeforeValidator))

Row = tuple[str, str, str, str]


def is_duration(metadata: Any) -> bool:
    """Whether a field is written as a duration."""
    return any(isinstance(one, BeforeValidator) and one.func is _DURATION for one in metadata)


def type_of(annotation: Any, metadata: Any = ()) -> str:
    """The type in a word or two."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *own = get_args(annotation)
        return type_of(inner, own)
    if is_duration(metadata):
        return "duration"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_of(one) for one in get_args(annotation) if one is not type(None)))
    if origin is Literal:
        return "string"
    if origin in (list, tuple):
        return f"[]{type_of(get_args(annotation)[0])}"
    if origin is dict:
        inner = type_of(get_args(annotation)[1])
        return "object" if inner == "any" else f"map of {inner}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return _SCALARS[annotation]


def limits_of(annotation: Any, metadata: Any = ()) -> str:
    """What a value must be besides its type; of the items where it is a list or a map."""
    parts = []
    for one in metadata:
        match one:
            case annotated_types.Ge(ge=bound):
                parts.append(f"at least {bound}")
            case annotated_types.Gt(gt=bound):
                parts.append(f"above {bound}")
            case annotated_types.Le(le=bound):
                parts.append(f"at most {bound}")
            case annotated_types.MinLen():
                parts.append("not empty")
            case FieldInfo():
                parts += filter(None, [limits_of(None, one.metadata)])
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        parts += filter(None, [limits_of(inner[0], inner[1:])])
    elif origin is Literal:
        parts.append("one of " + ", ".join(code(str(word)) if word else "empty" for word in inner))
    elif origin in (Union, types.UnionType, list, tuple, dict):
        parts += filter(None, (limits_of(one) for one in inner if one not in (type(None), str, int)))
    return ", ".join(dict.fromkeys(parts))


def model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a field holds, and what its path gets: "" directly, "[]" in a list, ".*" in a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin, inner = get_origin(annotation), get_args(annotation)
    endings = {list: "[]", tuple: "[]", dict: ".*"}
    if origin in (Union, types.UnionType, Annotated) or origin in endings:
        for one in inner:
            model, ending = model_in(one)
            if model is not None:
                return model, endings.get(origin, "") + ending
    return None, ""


def _written(value: Any, field: FieldInfo) -> str:
    """A default as it would stand in a file; "" where there is none, or where its parts have rows of their own."""
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, float) and is_duration(field.metadata):
        return format_duration(value)
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        value = [wire(one) if isinstance(one, BaseModel) else one for one in value]
    if isinstance(value, dict):
        value = {key: wire(one) if isinstance(one, BaseModel) else one for key, one in value.items()}
    return json.dumps(value) if value not in ([], {}) else ""


Seen = dict[type[BaseModel], str]


def rows(model: type[BaseModel], path: str = "", instance: BaseModel | None = None, seen: Seen | None = None) -> Iterator[Row]:
    """Path, type, default, meaning of every field, parts of parts included, each kind of part once.

    `instance` is the default that the parent has, `seen` where each kind of part stands already.
    """
    seen = {} if seen is None else seen
    for name, field in model.model_fields.items():
        here = f"{path}{'.' if path else ''}{field.alias or name}"
        default = getattr(instance, name) if instance is not None else field.get_default(call_default_factory=True, validated_data={})
        required = "required" if field.is_required() and instance is None else ""
        text = " ".join(description_of(model, name).split())
        inner, ending = model_in(field.annotation)
        known = seen.setdefault(inner, here + ending) if inner is not None else ""
        if inner is not None and known != here + ending:
            text = f"{text} Its parts are those of `{known}`."
        text = noted(text, required, limits_of(field.annotation, field.metadata))
        yield code(here), type_of(field.annotation, field.metadata), code(_written(default, field)), text
        if inner is not None and known == here + ending:
            yield from rows(inner, known, default if isinstance(default, BaseModel) else None, seen)
