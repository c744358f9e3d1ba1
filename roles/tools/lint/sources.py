"""From file arguments to texts, and from texts to documents that know where each field stands."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import yaml

from koord.config import plainyaml
from koord.config.positions import START, Inner, Position, Positions, expanded, keys_twice
from roles.tools.folders import meant
from roles.tools.lint.finding import Finding, Level

STDIN = "<stdin>"
_SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 32 << 20
MAX_VALUES = 10_000_000
"""What aliases may make of a document; without any, MAX_BYTES have room for no more than so many."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with its name. `asked` is False for a file that was only met in a folder."""

    name: str
    text: str
    asked: bool = True


@dataclass(slots=True)
class Document:
    """One document: plain data, and where its fields are. `inner` is set for a text within another document's scalar."""

    source: Source
    data: Any
    places: Positions
    inner: Inner | None = None
    base: str = ""
    """Path of this document inside a List or a ConfigMap, in front of every path in messages."""
    prefix: str = ""
    """Path of `data` below the root of `places`: items of a List share their nodes."""
    about: str = ""
    """What findings are said to be about, where that is not the object itself."""

    def at(self, path: str, *, key: bool = False) -> Position:
        """The place of a field in the file."""
        position = self.places.of(join(self.prefix, path), key=key)
        return self.inner.outer(position) if self.inner is not None else position

    def finding(self, message: str, path: str = "", *, key: bool = False, level: Level = Level.ERROR, subject: str = "") -> Finding:
        """A finding about a field of this document."""
        return Finding(self.source.name, self.at(path, key=key), level, message, join(self.base, path), subject or self.subject)

    @property
    def subject(self) -> str:
        """`Kind namespace/name`, as far as it is known."""
        if self.about or not isinstance(self.data, dict):
            return self.about
        kind, meta = self.data.get("kind"), mapping(self.data.get("metadata"))
        name = "/".join(str(part) for part in (meta.get("namespace"), meta.get("name")) if part)
        return f"{kind} {name}".strip() if isinstance(kind, str) else ""


class Inside:
    """The JSON text of one field, with the places of its own fields in the file."""

    def __init__(self, document: Document, path: str, text: str) -> None:
        self._document, self._path, self._text = document, path, text

    @cached_property
    def _inner(self) -> Inner | None:
        """Where the text is in the file; it is looked for when something is wrong, as that takes the whole file."""
        document = self._document
        return document.places.inner(join(document.prefix, self._path)) if document.inner is None else None

    @cached_property
    def _places(self) -> Positions | None:
        root = yaml.compose(self._text.replace("\t", " "), Loader=yaml.SafeLoader)
        return Positions(root, self._text) if root is not None else None

    def finding(self, message: str, path: str = "", *, key: bool = False, position: Position | None = None) -> Finding:
        """A mistake at a path of the JSON, or at a `position` in the text; of the whole field where neither is to be found."""
        document = self._document
        if position is None and self._inner is not None and self._places is not None:
            position = self._places.of(path, key=key)
        place = self._inner.outer(position) if self._inner is not None and position is not None else document.at(self._path)
        full = join(join(document.base, self._path), path)
        return Finding(document.source.name, place, Level.ERROR, message, full, document.subject)


def mapping(value: Any) -> dict[str, Any]:
    """A mapping as it is, an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}


def part_of(data: Any, path: str) -> Any:
    """What stands at a path of mappings; None where nothing does."""
    for part in path.split("."):
        data = mapping(data).get(part)
    return data


def within(document: Document, path: str, data: Any) -> Document:
    """A part of a document, looked at as `data`."""
    about = document.subject
    return Document(document.source, data, document.places, document.inner, join(document.base, path), join(document.prefix, path), about)


def join(base: str, path: str) -> str:
    """One path below another."""
    if not base or not path:
        return base or path
    return f"{base}{path}" if path.startswith("[") else f"{base}.{path}"


def read(names: Iterable[str]) -> tuple[list[Source | Finding], list[str]]:
    """The texts of files, folders and `-`, and what was passed over. What cannot be read is a Finding in its place."""
    found: dict[str, Source | Finding] = {}
    skipped: list[str] = []
    for name in names:
        if name == "-":
            if STDIN not in found:  # it can be read once only
                found[STDIN] = _source(STDIN)
        elif os.path.isdir(name):  # no answer, for want of rights, is an answer here: reading tells why
            for file in _below(name):
                if isinstance(file, Finding):
                    found.setdefault(file.source, file)
                elif _chart_template(file, Path(name)):
                    skipped.append(f"{file} (a Helm template: render it first)")
                else:
                    found.setdefault(str(file), _source(str(file), asked=False))
        else:
            found[name] = _source(name)
    return list(found.values()), skipped


def _below(folder: str) -> list[Path | Finding]:
    """The files of a folder that may be for us, links that lead nowhere among them, and the folders in it that cannot be read."""
    closed: list[Path | Finding] = []

    def refused(error: OSError) -> None:
        closed.append(_unread(str(Path(error.filename)), f"cannot be read: {error.strerror or error}"))

    files = [Path(parent, name) for parent, _, names in os.walk(folder, onerror=refused) for name in names]
    wanted = [file for file in files if file.suffix in _SUFFIXES and meant(file) and (os.path.isfile(file) or _leads_nowhere(file))]
    return sorted([*wanted, *closed], key=lambda one: Path(one.source) if isinstance(one, Finding) else one)


def _leads_nowhere(file: Path) -> bool:
    return os.path.islink(file) and not os.path.exists(file)


def _chart_template(file: Path, top: Path) -> bool:
    return any(
        parent.name == "templates" and os.path.isfile(parent.parent / "Chart.yaml")
        for parent in file.parents
        if parent == top or top in parent.parents
    )


def _source(name: str, *, asked: bool = True) -> Source | Finding:
    try:
        if name == STDIN:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                raw = file.read(MAX_BYTES + 1)  # the size that a device or a pipe tells says nothing
    except OSError as error:
        return _unread(name, f"cannot be read: {error.strerror or error}")
    if len(raw) > MAX_BYTES:
        return _unread(name, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        return Source(name, raw.decode("utf-8-sig"), asked)
    except UnicodeDecodeError as error:
        return _unread(name, f"is not UTF-8 text: byte {error.start + 1} is 0x{raw[error.start]:02x}")


def _unread(name: str, message: str) -> Finding:
    return Finding(name, START, Level.ERROR, message)


def documents(source: Source) -> Iterator[Document | Finding]:
    """The documents of a text, Lists taken apart; a Finding for what is no document. Nothing after a syntax error is seen."""
    text = source.text
    is_json = text.lstrip()[:1] in ("{", "[")
    shown = text.replace("\t", " ") if is_json else text  # JSON may be indented with tabs, which YAML does not take
    try:
        for root in yaml.compose_all(shown, Loader=Loader):
            yield from _document(source, root, shown)
    except yaml.YAMLError as error:
        yield syntax(source, error)
    except RecursionError:
        yield Finding(source.name, START, Level.ERROR, "is nested too deeply")


def syntax(source: Source, error: yaml.YAMLError, inner: Inner | None = None, path: str = "") -> Finding:
    """A syntax error with its place."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = Position(mark.line + 1, mark.column + 1) if mark else START
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Finding(source.name, inner.outer(position) if inner else position, Level.ERROR, f"not valid YAML: {problem}", path)


def _document(source: Source, root: yaml.Node, text: str) -> Iterator[Document | Finding]:
    if expanded(root) > MAX_VALUES:
        yield Finding(source.name, START, Level.ERROR, f"its aliases stand for more than {MAX_VALUES:,} values")
        return
    twice = list(keys_twice(root))
    for key, position in twice:
        yield Finding(source.name, position, Level.ERROR, f"the key {key!r} is already set in this mapping")
    data = plain(root)
    if data is None:
        return
    if isinstance(data, Exception):
        yield Finding(source.name, Positions(root, text).of(""), Level.ERROR, str(data))
        return
    places = Positions(root, text)
    kind = data.get("kind") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind.endswith("List") and isinstance(data.get("items"), list):
        of_kind = {"apiVersion": data.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
        for index, item in enumerate(data["items"]):
            item = {**of_kind, **item} if isinstance(item, dict) else item  # of a typed list, as API servers write it
            yield Document(source, item, places, base=f"items[{index}]", prefix=f"items[{index}]")
    else:
        yield Document(source, data, places)


def plain(root: yaml.Node) -> Any:
    """The data that a node stands for, as it would go through JSON: times stay text. An exception (returned) if it has no such form."""
    try:
        data = Loader.data(root)
        # What JSON cannot carry (infinity, bytes, aliases in a circle) no API server takes either.
        return orjson.loads(orjson.dumps(data))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, TypeError, ValueError) as error:
        return ValueError(f"cannot be taken as JSON: {getattr(error, 'problem', None) or error}")


class Loader(yaml.SafeLoader):
    """Composes nodes whose plain scalars mean what they mean to Kubernetes and to the roles, and makes data of them."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node that has none."""
        if kind is not yaml.ScalarNode or not implicit[0]:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return f"{_TAG}merge" if value == "<<" else _TAG + _TAGS[type(plainyaml.resolve(value))]

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Keys are texts, as in JSON: those that are numbers or truth values are spelled as Kubernetes does."""
        found = super().construct_mapping(node, deep)
        return {_spelt(key): value for key, value in found.items()}

    @classmethod
    def data(cls, root: yaml.Node) -> Any:
        """Construct one composed document."""
        loader = cls("")
        try:
            return loader.construct_document(root)
        finally:
            loader.dispose()


def _spelt(key: Any) -> Any:
    if isinstance(key, bool):
        return str(key).lower()
    return str(key) if isinstance(key, (int, float)) else key


def _number(_: Loader, node: yaml.ScalarNode) -> int | float:
    value = plainyaml.resolve(node.value)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"JSON has no number {node.value}")
    return value


_TAG = "tag:yaml.org,2002:"
_TAGS = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}
NO_TEXTS = frozenset(_TAG + name for kind, name in _TAGS.items() if kind is not str)
"""Tags of plain scalars that are no texts."""
for _name in ("int", "float"):
    Loader.add_constructor(_TAG + _name, _number)
for _name in ("timestamp", "binary"):
    Loader.add_constructor(_TAG + _name, lambda loader, node: node.value)
