"""YAML as Kubernetes reads it: plain data as JSON has it, and no document that is small to send and big to hold.

What a plain scalar means is go-yaml's choice (v2, the one behind sigs.k8s.io/yaml) and not PyYAML's: times and `12:30` are text, `1e3` is a
number. But `y` and `n` are text, as PyYAML writes and reads them: names of one letter are more common than such booleans. What aliases add
and how deep values lie is counted while reading, so that neither memory nor stack is taken by what is refused.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 254  # as many levels as orjson writes, and the API server stores
MAX_ALIASED = 3 * 1024 * 1024  # what aliases may add to a document, in characters and values
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
_BASES = {"x": 16, "b": 2, "o": 8}
_LONGEST_NUMBER = 400  # characters; of more digits no float is finite
_NUMERIC = frozenset("+-.0123456789")
_TAG_DIRECTIVE = re.compile(r"^%TAG\b", re.MULTILINE)
_MAX_TAG_DIRECTIVES = 100  # libyaml compares each with all before it
_MERGE = object()  # the key << of a mapping


class Misread(yaml.MarkedYAMLError):
    """YAML that says nothing JSON can say, says a key twice, or is bigger than it looks. `problem` says what, `problem_mark` where."""


def resolve(text: str) -> Any:
    """What a plain scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC or len(text) > _LONGEST_NUMBER:
        return text
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(plain):
        digits = plain.lstrip("+-")
        base = _BASES.get(digits[1:2].lower(), 8) if digits[0] == "0" and len(digits) > 1 else 10
        number = int(plain, base)
        if -(2**63) <= number < 2**64:
            return number
    if _FLOAT.fullmatch(plain):
        found = float(plain)
        if math.isfinite(found):
            # JSON has one kind of number: 3.0 is a 3 where a whole number is wanted
            return int(found) if found.is_integer() and abs(found) < 2**63 else found
    return text


class _Builder:
    """Turns the events of one stream into plain data."""

    def __init__(self, events: Iterator[Any], *, strict: bool) -> None:
        self._events = events
        self._strict = strict
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # value, size, and how many levels it has
        self._size = 0  # characters and values so far, aliases written out
        self._aliased = 0
        self._deepest = 0

    def documents(self) -> Iterator[Any]:
        """Each document, None for one without content."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._value(next(self._events), 1)

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        before = self._size
        self._size += 1
        if isinstance(event, yaml.ScalarEvent):
            self._size += len(event.value)
            value, levels = _scalar(event), 0
        else:
            value, levels = self._collection(event, depth)
        if event.anchor is not None:  # not before its end: what holds itself is no JSON
            self._anchors[event.anchor] = value, self._size - before, levels
        return value

    def _collection(self, event: Any, depth: int) -> tuple[Any, int]:
        """A list or a mapping, and how many levels it has."""
        outside, self._deepest = self._deepest, depth
        self._check_depth(event, depth)
        value: Any
        if isinstance(event, yaml.SequenceStartEvent):
            _check_tag(event, "seq")
            value = []
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                value.append(_plain(self._value(inner, depth + 1)))
        else:
            _check_tag(event, "map")
            value = self._mapping(depth)
        levels = self._deepest - depth + 1
        self._deepest = max(outside, self._deepest)
        return value, levels

    def _alias(self, event: Any, depth: int) -> Any:
        if event.anchor not in self._anchors:
            raise Misread(problem=f"the alias {event.anchor!r} has no anchor before it", problem_mark=event.start_mark)
        value, size, levels = self._anchors[event.anchor]
        self._check_depth(event, depth + levels - 1)
        self._deepest = max(self._deepest, depth + levels - 1)
        self._size += size
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            raise Misread(problem="document contains excessive aliasing", problem_mark=event.start_mark)
        return value

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Misread(problem=f"nested more deeply than {MAX_DEPTH} levels", problem_mark=event.start_mark)

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            mark = event.start_mark
            key = self._value(event, depth + 1)
            value = self._value(next(self._events), depth + 1)
            if key is _MERGE:
                for one in value if isinstance(value, list) else [value]:
                    if not isinstance(one, dict):
                        raise Misread(problem="the value of the key << must be a mapping, or a list of mappings", problem_mark=mark)
                    merged = {**one, **merged}
                continue
            if type(key) is not str:
                key = self._spelt(key, mark)
            if self._strict and key in found:
                raise Misread(problem=f"the key {key!r} is already set in this mapping", problem_mark=mark)
            found[key] = _plain(value)
        return {**merged, **found} if merged else found

    def _spelt(self, key: Any, mark: Any) -> str:
        """A key that is no text, as JSON has it."""
        if self._strict or not isinstance(key, (bool, int, float)):
            raise Misread(problem=f"the key {key!r} must be a string", problem_mark=mark)
        return str(key).lower() if isinstance(key, bool) else str(key)


def _plain(value: Any) -> Any:
    """A value where << means itself."""
    return "<<" if value is _MERGE else value


def _check_tag(event: Any, usual: str) -> None:
    if event.tag not in (None, "!", _TAG + usual):
        raise Misread(problem=f"the tag {event.tag!r} is not known here", problem_mark=event.start_mark)


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag = event.tag or ""
    if tag in ("", "!"):
        plain = event.implicit[0] and tag != "!"
        value: Any = (_MERGE if text == "<<" else resolve(text)) if plain else text
    elif tag == _TAG + "merge":
        value = _MERGE
    elif tag in (_TAG + "str", _TAG + "timestamp"):
        return text
    elif tag == _TAG + "binary":
        try:
            return base64.b64decode("".join(text.split()), validate=True).decode()
        except (binascii.Error, ValueError):
            raise Misread(problem="!!binary value contains invalid base64 data", problem_mark=event.start_mark) from None
    elif tag.removeprefix(_TAG) in _TYPES:
        value = resolve(text)
        if type(value) not in _TYPES[tag.removeprefix(_TAG)]:
            raise Misread(problem=f"cannot decode {text!r} as a !!{tag.removeprefix(_TAG)}", problem_mark=event.start_mark)
    else:
        raise Misread(problem=f"the tag {tag!r} is not known here", problem_mark=event.start_mark)
    if isinstance(value, float) and not math.isfinite(value):
        raise Misread(problem=f"JSON has no number {text}", problem_mark=event.start_mark)
    return value


def _documents(text: str | bytes, *, strict: bool, quick: bool) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-16" if text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig")
        if len(_TAG_DIRECTIVE.findall(text)) > _MAX_TAG_DIRECTIVES:
            raise Misread(problem=f"has more than {_MAX_TAG_DIRECTIVES} %TAG directives")
        for found in _Builder(yaml.parse(text, Loader=loader), strict=strict).documents():
            if found is not None:
                yield found
    except UnicodeError as error:
        raise Misread(problem=f"is no Unicode text: {error}") from error


def load_all(text: str | bytes, *, strict: bool = False, quick: bool = True) -> list[Any]:
    """All documents with content; aliases share what they stand for. Raises yaml.YAMLError, of which Misread is one.

    `strict` refuses a key written twice (Kubernetes' strict decoders do, and the loser would vanish silently) and keys that are no strings.
    `quick` is libyaml, where PyYAML was built with it: several times as fast, with fewer words for what is no YAML.
    """
    return list(_documents(text, strict=strict, quick=quick))


def load(text: str | bytes) -> Any:
    """The one document of a text, None if it has none. Raises yaml.YAMLError."""
    documents = _documents(text, strict=False, quick=True)
    found = next(documents, None)
    if next(documents, None) is not None:
        raise Misread(problem="holds more than one document")
    return found


_Dumper: Any = type("_Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
# PyYAML leaves a text like 1e3 without quotes, which says something else to whoever reads as above
_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TAG + "str", text, style=None if text and type(resolve(text)) is str else "'")
)


def dump(value: Any) -> str:
    """Plain data as a document with sorted keys, which `load` reads back as it was."""
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True)
    return written
