"""Where in a YAML or JSON text a field stands: paths of errors become lines and columns (BEY-LINT-01). Pure.

Paths are understood as every reader of configurations here writes them: `profiles[0].plugins`, `data["a.b/c"]`, `spec.max[cpu]`,
`containers[*].name` (the first one), `profiles[schedulerName=a].pluginConfig[2]`; and with dots inside keys, as kube-apiserver writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

Part = str | int


class Position(NamedTuple):
    """A place in a text; both count from 1, columns in characters."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


START = Position(1, 1)
_PART = re.compile(r"""\.?(?:\["((?:[^"\\]|\\.)*)"\]|\[([^\]]*)\]|([^.\[]+))""")


def parse_path(path: str) -> list[Part]:
    """The keys and indexes of a path. Text that is no path is one key: it will not be found, and what holds it is shown instead."""
    parts: list[Part] = []
    at = 0
    while at < len(path):
        match = _PART.match(path, at)
        if match is None or match.end() == at:
            return [*parts, path[at:]]
        quoted, bracket, plain = match.groups()
        if quoted is not None:
            parts.append(quoted)
        elif bracket is not None:
            parts.append(int(bracket) if bracket.isdecimal() else 0 if bracket == "*" else bracket)
        else:
            parts.append(plain)
        at = match.end()
    return parts


class Positions:
    """The node tree of one document. `text` is the whole text that it was read from, for texts within it."""

    def __init__(self, root: yaml.Node, text: str) -> None:
        self.root = root
        self.text = text

    def of(self, path: str, *, key: bool = False) -> Position:
        """Where the value of a path stands, or with `key` its key; the nearest part above it where there is none."""
        node, key_node, _ = self._walk(parse_path(path))
        return _position(key_node if key and key_node is not None else node)

    def value(self, path: str) -> yaml.Node | None:
        """The node of a path, None where the path does not lead anywhere."""
        node, _, left = self._walk(parse_path(path))
        return None if left else node

    def inner(self, path: str) -> Inner | None:
        """The text in a scalar, with its place in this one; None when there is no scalar."""
        node = self.value(path)
        return Inner(node, self.text) if isinstance(node, yaml.ScalarNode) else None

    def _walk(self, parts: list[Part]) -> tuple[yaml.Node, yaml.Node | None, list[Part]]:
        """As far as the path leads: the value there, its key, and what is left of the path."""
        node: yaml.Node = self.root
        key_node: yaml.Node | None = None
        while parts:
            step = _step(node, parts)
            if step is None:
                break
            node, key_node, parts = step
        return node, key_node, parts


def _step(node: yaml.Node, parts: list[Part]) -> tuple[yaml.Node, yaml.Node | None, list[Part]] | None:
    """(value, key, the rest of the path) one part further; None where it ends. A key may take several parts: it may hold dots."""
    if isinstance(node, yaml.SequenceNode):
        item = _item(node, parts[0])
        return None if item is None else (item, None, parts[1:])
    if not isinstance(node, yaml.MappingNode):
        return None
    for size in range(len(parts), 0, -1):
        wanted = ".".join(str(part) for part in parts[:size])
        for key_node, value in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value == wanted:
                return value, key_node, parts[size:]
    return None


def _item(node: yaml.SequenceNode, part: Part) -> yaml.Node | None:
    if isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    name, sign, wanted = part.partition("=")
    for item in node.value if sign else ():
        if isinstance(item, yaml.MappingNode) and any(k.value == name and v.value == wanted for k, v in item.value):
            return item  # type: ignore[no-any-return]
    # The one that leaves the field out has its default: with a single item there is no doubt.
    return node.value[0] if sign and len(node.value) == 1 else None


def _position(node: yaml.Node) -> Position:
    mark = node.start_mark
    return Position(mark.line + 1, mark.column + 1)


class Inner:
    """A text inside a scalar of another text: where its lines and columns are in the outer one."""

    def __init__(self, node: yaml.ScalarNode, outer: str) -> None:
        self.text: str = node.value
        self._start = _position(node)
        self._lines: list[Position] = []
        lines = outer.splitlines()
        if node.style in ("|", ">"):
            self._lines = list(_block_lines(self.text, lines, self._start.line, folded=node.style == ">"))
        elif node.start_mark.line == node.end_mark.line:
            quote = 1 if node.style in ("'", '"') else 0
            raw = lines[self._start.line - 1][node.start_mark.column + quote : node.end_mark.column - quote]
            if raw == self.text:
                self._lines = [Position(self._start.line, self._start.column + quote)]

    def outer(self, position: Position) -> Position:
        """The place in the outer text; the scalar's own where escapes or folding leave no telling."""
        if position.line > len(self._lines):
            return self._start
        base = self._lines[position.line - 1]
        return Position(base.line, base.column + position.column - 1)


def _block_lines(text: str, outer: list[str], start: int, *, folded: bool) -> Iterator[Position]:
    """Where each line of a block scalar begins. A folded one keeps its lines only as long as nothing was joined."""
    inner = text.split("\n")
    shown = outer[start : start + len(inner)]  # from the line after the one with | or >
    indent = next((len(there) - len(line) for line, there in zip(inner, shown, strict=False) if line.strip()), 0)
    for offset, (line, there) in enumerate(zip(inner, shown, strict=False)):
        if folded and there.strip() != line.strip():
            return
        yield Position(start + offset + 1, indent + 1)


def expanded(root: yaml.Node) -> int:
    """How many values a document has when each alias is replaced by what it stands for. Raises RecursionError."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = 1  # an alias of itself is another mistake
            inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
            sizes[id(node)] = 1 + sum(map(size, inner))
        return sizes[id(node)]

    return size(root)


def mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping of a document once, also those that several aliases name."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += (value for _, value in node.value)
            yield node


def keys_twice(root: yaml.Node) -> Iterator[tuple[str, Position]]:
    """(key, place) of every key that stands in its mapping already."""
    for node in mappings(root):
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    yield key.value, _position(key)
                seen.add(key.value)
