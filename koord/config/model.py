"""Base of the component-config models: strict types, unknown fields refused, wire names in camelCase."""

from __future__ import annotations

import os
import stat
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, PlainSerializer, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from koord.api.times import format_duration, parse_duration
from koord.config.redact import redacted


def _duration(value: Any) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    # A number is only reached from code (defaults): files must say the unit.
    if isinstance(value, float):
        return value
    raise ValueError(f'{value!r} is no duration; write it like "300ms", "15s" or "1h30m"')


Seconds = Annotated[float, BeforeValidator(_duration), PlainSerializer(format_duration, return_type=str)]
"""A duration in seconds, written in files as a Go duration text ("15s")."""


def _take_lists(part: Any) -> None:
    if isinstance(part, dict):
        if part.get("type") in ("tuple", "set", "frozenset"):
            part["strict"] = False
        for key, value in part.items():
            if key not in ("metadata", "serialization", "default"):
                _take_lists(value)
    elif isinstance(part, list):
        for one in part:
            _take_lists(one)


class ConfigModel(BaseModel):
    """A part of a component config file. Python names are snake_case, wire names camelCase.

    The text below a field is its description in docs/reference; models do not load it (`use_attribute_docstrings` would read and parse
    the source of every model at each start).
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Files know one kind of list, so a list is what a tuple or a set is written as; their items stay strict."""
        schema = handler(source)
        _take_lists(handler.resolve_ref_schema(schema))
        return schema

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, data: Any) -> Any:
        """A known field that is null is not set, as everywhere in Kubernetes: its default holds."""
        if not isinstance(data, dict) or all(value is not None for value in data.values()):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


def wire(model: BaseModel, *, secrets: bool = False) -> dict[str, Any]:
    """The model as it would stand in a file (`/configz`). `secrets`: keys and tokens too, for a file that is read back."""
    plain: dict[str, Any] = model.model_dump(by_alias=True, exclude_none=True, mode="json")
    return plain if secrets else dict(redacted(plain))


def write_private(path: str, text: str) -> None:
    """Write a file that only its owner may read, for what may hold secrets. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        file.write(text)
