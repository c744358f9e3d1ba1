"""Configuration errors: each says where (a path) and what is accepted, so that one line is enough to fix the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ConfigError(ValueError):
    """One mistake in a configuration: `path` as a user would write it (`profiles[0].plugins.filter`), `message` says what is accepted.

    `position` is `line:column` in the file where that is known."""

    def __init__(self, path: str, message: str, position: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message
        self.position = position

    @property
    def concerns_key(self) -> bool:
        """Whether the name of the field is wrong, not its value."""
        return self.message.startswith("unknown field")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigError) and (self.path, self.message) == (other.path, other.message)

    def __hash__(self) -> int:
        return hash((self.path, self.message))

    def __repr__(self) -> str:
        return f"ConfigError({self.path!r}, {self.message!r})"


class InvalidConfig(ConfigError):
    """A configuration refused as a whole; `errors` holds every mistake found, `str()` shows one a line."""

    def __init__(self, source: str, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.path, first.message)
        self.source = source
        self.errors = tuple(errors)

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return f"{_join(self.source, self.errors[0].position)}: {self.errors[0]}"
        return "\n".join([f"{self.source}: {len(self.errors)} errors", *(f"  {_at(error)}{error}" for error in self.errors)])


def _join(source: str, position: str) -> str:
    return f"{source}:{position}" if position else source


def _at(error: ConfigError) -> str:
    return f"{error.position}: " if error.position else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest known word, else an empty string."""
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    if word.lower() in folded:
        return f"; did you mean {folded[word.lower()]!r}? (names are case-sensitive)"
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_field(name: str, known: Iterable[str]) -> str:
    """What to say of a field that nobody reads: the nearest one, else those that there are."""
    names = sorted(known)
    accepted = f"; accepted: {', '.join(names)}" if names else ""
    return f"unknown field{did_you_mean(name, names) or accepted}"


def first_twice(names: Iterable[str]) -> tuple[int, str] | None:
    """Index and name of the first that came before already."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            return index, name
        seen.add(name)
    return None


def join(path: str, key: str | int) -> str:
    """Append a field or an index to a path: `join("profiles", 0)` is `profiles[0]`; keys with dots or slashes are quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not all(ch.isalnum() or ch in "_-" for ch in key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key
