"""Semantic versions (semver.org 2.0.0) as expressions compare them."""

from __future__ import annotations

import re

from koord.apiserver.remember import short_ones

_NUMBER = r"(0|[1-9]\d*)"
_PART = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_FORM = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_PART}(?:\.{_PART})*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?", re.ASCII
)  # fmt: skip
_Key = tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]


def valid(text: str) -> bool:
    """Whether a text is a semantic version."""
    return _FORM.fullmatch(text) is not None


@short_ones(1024, 256, len)
def _key(text: str) -> _Key:
    """What orders versions. Raises ValueError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no semantic version")
    parts = found[4].split(".") if found[4] else []
    # numbers come before words, and a version with a pre-release before the one without
    order = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
    return (int(found[1]), int(found[2]), int(found[3])), not parts, order


def numbers(text: str) -> tuple[int, int, int]:
    """Major, minor and patch. Raises ValueError."""
    return _key(text)[0]


def compare(one: str, other: str) -> int:
    """-1, 0 or 1; builds do not count. Raises ValueError."""
    return (_key(one) > _key(other)) - (_key(one) < _key(other))
