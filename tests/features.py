"""`make features`: each feature ID with the tests that name it, read from the source without importing it.

--missing lists only IDs without a test; --check fails when a test names an ID that features.toml does not know.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (feature ID, test name) for each `pytest.mark.feature(...)` in a test module."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            for feature in _ids(node.value):
                yield feature, "(module)"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield from _decorated(node, node.name)
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _decorated(child, f"{node.name}.{child.name}")


def _decorated(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for decorator in node.decorator_list:
        for feature in _ids(decorator):
            yield feature, name


def _ids(expression: ast.expr) -> Iterator[str]:
    for call in ast.walk(expression):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.feature"):
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def main(arguments: list[str]) -> int:
    features: dict[str, dict[str, str]] = tomllib.loads((ROOT / "features.toml").read_text(encoding="utf-8"))
    known = {feature: title for area in features.values() for feature, title in area.items()}
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for feature, name in marks(path):
            tests[feature].append(f"{path.relative_to(ROOT)}::{name}")
    unknown = sorted(set(tests) - set(known))
    for feature in unknown:
        print(f"unknown feature ID {feature} in {', '.join(tests[feature])}", file=sys.stderr)
    if "--check" in arguments:
        return 1 if unknown else 0
    for area, titles in features.items():
        done = sum(feature in tests for feature in titles)
        print(f"\n{area}: {done} of {len(titles)}")
        for feature, title in titles.items():
            if "--missing" in arguments and feature in tests:
                continue
            print(f"  {feature:18} {title}")
            for test in tests.get(feature, []):
                print(f"  {'':18}   {test}")
    covered = sum(feature in tests for feature in known)
    print(f"\n{covered} of {len(known)} features have a test that names them.")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
