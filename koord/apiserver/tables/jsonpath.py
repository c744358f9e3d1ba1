"""The JSONPath of printer columns: dots, indices, wildcards and equality filters."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_STEP = re.compile(
    r"""\.?(?:
        \['(?P<quoted>(?:[^'\\]|\\.)+)'\]
      | \["(?P<double>[^"]+)"\]
      | \[\?\(@\.?(?P<field>[^\s=!]*)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\)\]
      | \[(?P<index>-?\d+|\*)\]
      | (?P<name>(?:[^.\[\]\\]|\\.)+)
    )""",
    re.VERBOSE,
)
Step = tuple[str, str, str]


@lru_cache(maxsize=1024)
def parse(path: str) -> tuple[Step, ...]:
    """The steps of a path. Raises ValueError."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or found.end() == at:
            raise ValueError(f"JSONPath {path!r}: cannot read {text[at:]!r}")
        at = found.end()
        if found["field"] is not None:
            steps.append(("filter" if found["op"] == "==" else "not", found["field"], found["value"].strip("\"'")))
        elif found["index"] is not None:
            steps.append(("index", found["index"], ""))
        else:
            name = found["quoted"] or found["double"] or found["name"]
            steps.append(("name", name.replace("\\", ""), ""))
    return tuple(steps)


def find(obj: Any, path: str) -> list[Any]:
    """All values that a path leads to."""
    values = [obj]
    for kind, key, wanted in parse(path):
        out: list[Any] = []
        for value in values:
            out += _step(value, kind, key, wanted)
        values = out
    return values


def _step(value: Any, kind: str, key: str, wanted: str) -> list[Any]:
    if kind == "name":
        if isinstance(value, dict):
            if key == "*":
                return list(value.values())
            return [value[key]] if key in value and value[key] is not None else []
        return []
    if not isinstance(value, list):
        return []
    if kind == "index":
        if key == "*":
            return list(value)
        index = int(key)
        return [value[index]] if -len(value) <= index < len(value) else []
    matches = []
    for item in value:
        inner: Any = item
        for part in key.split(".") if key else ():
            inner = inner.get(part) if isinstance(inner, dict) else None
        if (_text(inner) == wanted) == (kind == "filter"):
            matches.append(item)
    return matches


def _text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
