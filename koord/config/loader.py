"""Reading a component config file: strict YAML or JSON, unknown fields and duplicates refused, every mistake with its path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from koord.config import plainyaml
from koord.config.errors import ConfigError, InvalidConfig, join, unknown_field
from koord.config.positions import Positions
from koord.config.redact import HIDDEN, is_secret, redacted_text

M = TypeVar("M", bound=BaseModel)
Models = Mapping[tuple[str, str], type[M]]

_TYPE_WORDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "string_type": "a string", "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping",
    "model_attributes_type": "a mapping", "tuple_type": "a list", "set_type": "a list", "frozen_set_type": "a list",
}  # fmt: skip


def _documents(text: str) -> list[Any]:
    """All documents with content. Raises yaml.YAMLError."""
    try:
        return plainyaml.load_all(text, strict=True)
    except plainyaml.Misread:
        raise
    except yaml.YAMLError:  # once more, for better words
        return plainyaml.load_all(text, strict=True, quick=False)


def decode(text: str, source: str = "config") -> Any:
    """One YAML (or JSON) document as plain data. Raises InvalidConfig naming the line."""
    try:
        documents = _documents(text)
    except plainyaml.Misread as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidConfig(source, [ConfigError(where, error.problem or "")]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidConfig(source, [ConfigError(where, f"not valid YAML: {problem}")]) from None
    if len(documents) > 1:
        raise InvalidConfig(source, [ConfigError("", f"holds {len(documents)} YAML documents; one is accepted")])
    return documents[0] if documents else None


def load_component_config(path: str | os.PathLike[str], models: Models[M]) -> M:
    """Read, decode and validate the file at `path`; `models` maps (apiVersion, kind) to the accepted models. Raises InvalidConfig."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(source, [ConfigError("", f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError:
        raise InvalidConfig(source, [ConfigError("", "is not UTF-8 text")]) from None
    try:
        return validate(decode(text, source), models, source)
    except InvalidConfig as error:
        raise located(error, text) from None


def located(error: InvalidConfig, text: str) -> InvalidConfig:
    """The same mistakes with their lines and columns in `text`, which they were found in."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return error  # its one mistake names the line already
    if root is None:
        return error
    places = Positions(root, text)
    return InvalidConfig(error.source, [_placed(one, places) for one in error.errors])


def _placed(error: ConfigError, places: Positions) -> ConfigError:
    if error.position or not error.path or error.path.startswith("line "):
        return error
    return ConfigError(error.path, error.message, str(places.of(error.path, key=error.concerns_key)))


def validate(data: Any, models: Models[M], source: str = "config") -> M:
    """Turn decoded data into the model its apiVersion and kind name. Raises InvalidConfig with every mistake."""
    if not isinstance(data, dict):
        raise InvalidConfig(source, [ConfigError("", f"must be a mapping with apiVersion and kind, got {_kind_of(data)}")])
    version, kind = data.get("apiVersion"), data.get("kind")
    model = models.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if model is None:
        accepted = " or ".join(f"{v} {k}" for v, k in models)
        raise InvalidConfig(source, [ConfigError("apiVersion", f"{version!r} with kind {kind!r} is not known; accepted: {accepted}")])
    return validate_model(data, model, source)


def validate_model(data: Any, model: type[M], source: str = "config", path: str = "") -> M:
    """Validate plain data against one model; paths in errors start at `path`. Raises InvalidConfig.

    Fields have the API's names alone: a file that writes Python's would not be understood by upstream.
    """
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidConfig(source, translate(error, model, path)) from None


def overlaid(base: M, given: Mapping[str, Any], flags: Mapping[str, str]) -> M:
    """`base` with the fields of flags that were given; `flags`: field by flag. Raises ConfigError, which names the flag."""
    fields = {field: given[flag] for flag, field in flags.items() if flag in given}
    if not fields:
        return base
    model = type(base)
    try:
        return model.model_validate({**base.model_dump(), **fields})
    except ValidationError as error:
        wrong = translate(error, model)[0]
        spelt = {model.model_fields[field].alias: flag for flag, field in flags.items()}
        raise ConfigError(f"--{spelt[wrong.path].replace('_', '-')}", wrong.message) from None


def check_shape(data: Any, model: type[BaseModel], source: str = "config", path: str = "") -> None:
    """Check names and types of fields, but no values: for what is decoded and not used. Raises InvalidConfig."""
    try:
        model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = [item for item in error.errors(include_url=False) if _shapeless(item)]
        if wrong:
            raise InvalidConfig(source, _translated(wrong, model, path)) from None


def _shapeless(item: ErrorDetails) -> bool:
    """Whether a value cannot be decoded at all; a ConfigError is a validator's judgement on one that can."""
    if item["type"] == "value_error":
        cause = item["ctx"]["error"]
        return not isinstance(cause, ConfigError) or cause.concerns_key
    return item["type"] == "extra_forbidden" or item["type"] in _TYPE_WORDS


def translate(error: ValidationError, model: type[BaseModel], path: str = "") -> list[ConfigError]:
    """Pydantic's errors as ConfigErrors: paths in wire names, types in a reader's words, a nearest name for unknown fields."""
    return _translated(error.errors(include_url=False), model, path)


def _translated(items: Iterable[ErrorDetails], model: type[BaseModel], path: str) -> list[ConfigError]:
    found: dict[ConfigError, None] = {}
    for item in items:
        where, location = path, item["loc"]
        for key in location:
            where = join(where, key)
        kind = item["type"]
        if kind == "extra_forbidden":
            message = unknown_field(str(location[-1]), known_fields(model, location[:-1]))
        elif kind == "missing":
            message = "is required"
        elif kind in _TYPE_WORDS:
            message = f"must be {_TYPE_WORDS[kind]}, got {_kind_of(item['input'])}"
        elif kind == "value_error":
            message = str(item["ctx"]["error"])
            cause = item["ctx"]["error"]
            if isinstance(cause, ConfigError):
                where, message = join_paths(where, cause.path), cause.message
        else:
            message = f"{item['msg'][:1].lower()}{item['msg'][1:]}, got {item['input']!r}"
        found[ConfigError(where, _without(message, location, item.get("input")))] = None
    return list(found)


def _without(message: str, location: tuple[int | str, ...], value: Any) -> str:
    """The message, without the value of a field that holds a secret."""
    if not any(isinstance(key, str) and is_secret(key) for key in location):
        return redacted_text(message)
    shown = [text for text in (repr(value), str(value)) if len(text) > 3]
    for text in shown:
        message = message.replace(text, HIDDEN)
    return redacted_text(message)


def join_paths(base: str, rest: str) -> str:
    """`base` followed by a path that a validator named relative to it."""
    if not rest or not base:
        return base or rest
    return f"{base}{rest}" if rest.startswith("[") else f"{base}.{rest}"


def known_fields(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Wire names of the fields of the model found by walking `location` from `model`; empty if the walk leaves the models."""
    current: type[BaseModel] | None = model
    for key in location:
        if isinstance(key, int) or current is None:
            continue
        field = next((f for name, f in current.model_fields.items() if key in (f.alias, name)), None)
        current = _model_in(field.annotation) if field is not None else None
    return [field.alias or name for name, field in current.model_fields.items()] if current is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def _kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str)):
        return repr(value)
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, (list, tuple)) else type(value).__name__
