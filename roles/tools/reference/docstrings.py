"""Texts below the fields of configuration models, read from their source: only the reference needs them, so models do not load them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """The text below each annotated name of each class at the top of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Mapping[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found


def description_of(model: type[BaseModel], field: str) -> str:
    """What a field means: its own description, else the text below it, in the class or in one that it inherits from."""
    own = model.model_fields[field].description
    if own:
        return own
    for cls in model.__mro__:
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            text = _of_module(cls.__module__).get(cls.__name__, {}).get(field)
            if text:
                return text
    return ""
