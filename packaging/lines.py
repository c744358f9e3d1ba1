"""Lines of the product by area, at two commits: `packaging/lines.py BASE [REVISION]`.

What counts is Python code in `koord` and `roles`, without blank lines, comments, docstrings and generated files. New features are set
aside: modules that a `feat` commit has added since BASE, and lines of other modules that a `feat` commit wrote last (`git blame`). Repairs
are not: what `fix` commits have added counts, and so does what they have moved into modules of their own.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Added by commits of other kinds, and new features all the same: the seeds and faults of a world, and what it is told by.
_FEATURES = ("roles/sandbox/world/",)


def git(*arguments: str) -> bytes:
    """What git says."""
    return subprocess.run(("git", *arguments), capture_output=True, check=True).stdout


def code_lines(source: str) -> set[int]:
    """Numbers of the lines with code of their own."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def modules(revision: str) -> dict[str, set[int]]:
    """Lines with code by module."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(git("archive", revision, "koord", "roles"))) as archive:
        for member in archive:
            if member.name.endswith(".py") and not member.name.endswith("_pb2.py") and (file := archive.extractfile(member)):
                found[member.name] = code_lines(file.read().decode())
    return found


def features(base: str, revision: str) -> set[str]:
    """Modules that `feat` commits have added since the base, under their present names."""
    added: set[str] = set()
    log = git("log", "--reverse", "-M", "--diff-filter=AR", "--name-status", "--format=@%s", f"{base}..{revision}", "--", "koord", "roles")
    subject = ""
    for line in log.decode().splitlines():
        if line.startswith("@"):
            subject = line[1:]
        elif line.startswith("A") and subject.startswith("feat"):
            added.add(line.split("\t")[1])
        elif line.startswith("R"):
            _, old, new = line.split("\t")
            if old in added:
                added.add(new)
    return added


def area(path: str) -> str:
    """`koord/kube`, `roles/manager`, ...; `koord` for its own modules."""
    return "/".join(path.split("/")[:2]) if path.count("/") > 1 else "koord"


def written_by_features(path: str, base: str, revision: str, subjects: Mapping[str, str]) -> set[int]:
    """Numbers of the lines that a `feat` commit wrote last."""
    blamed = git("blame", "-s", "-w", "-M", "--abbrev=40", f"{base}..{revision}", "--", path).decode().splitlines()
    return {number for number, line in enumerate(blamed, 1) if subjects.get(line[:40], "").startswith("feat")}


def main(base: str, revision: str = "HEAD") -> None:
    """Print the table."""
    before, now, new = modules(base), modules(revision), features(base, revision)
    subjects = dict(line.split(" ", 1) for line in git("log", "--format=%H %s", f"{base}..{revision}").decode().splitlines())
    counts: dict[str, Counter[str]] = {}
    for path, lines in before.items():
        counts.setdefault(area(path), Counter())["before"] += len(lines)

    def count(path: str) -> None:
        aside = path not in before and (path in new or path.startswith(_FEATURES))
        features = now[path] & written_by_features(path, base, revision, subjects) if not aside else now[path]
        found = counts.setdefault(area(path), Counter())
        found["features"] += len(features)
        found["now"] += len(now[path] - features)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(count, now))
    total = sum(counts.values(), Counter[str]())
    print("| area | before | now | | new features |\n| --- | --- | --- | --- | --- |")
    for name, found in [*sorted(counts.items()), ("all", total)]:
        change = f"{100 * found['now'] / found['before'] - 100:+.1f} %" if found["before"] else ""
        print(f"| {name} | {found['before']} | {found['now']} | {change} | {found['features']} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
