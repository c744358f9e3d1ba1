"""Descriptions of built-in types, read from the sources of the installed `kubernetes` package when somebody asks; never imported.

Where the package has no sources at hand (a frozen executable) there are no descriptions, and nothing else changes.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

_FIELD = re.compile(r'^    (\w+): .*?(?:serialization_alias="([^"]+)".*?)?description=("(?:[^"\\]|\\.)*")', re.MULTILINE)
_CLASS = re.compile(r'^class (\w+)\(BaseModel\):\n    """\n    (.*?)\n', re.MULTILINE)


@lru_cache(maxsize=1)
def _folder() -> Path | None:
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "client" / "models"
    return folder if folder.is_dir() else None


def _snake(name: str) -> str:
    text = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()


@lru_cache(maxsize=1024)
def of_type(name: str) -> tuple[str, dict[str, str]]:
    """(description of the type, descriptions of its fields by wire name)."""
    folder = _folder()
    if folder is None:
        return "", {}
    file = folder / f"{_snake(name)}.py"
    try:
        source = file.read_text(encoding="utf-8")
    except OSError:
        return "", {}
    fields: dict[str, str] = {}
    for attribute, wire, quoted in _FIELD.findall(source):
        fields[wire or attribute] = str(ast.literal_eval(quoted))
    found = _CLASS.search(source)
    return (found.group(2) if found else ""), fields
