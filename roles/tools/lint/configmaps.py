"""slo-controller-config: what the manager would refuse or ignore of it, and what its webhook would not let in (MGR-CFG-01, MGR-CM-V-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import yaml

from koord.api import names
from koord.config import slo, slo_schema, slo_validate
from koord.config.errors import ConfigError, did_you_mean
from koord.config.positions import Position, Positions
from koord.config.schema import unknown
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document, join


def is_slo_config(document: Any) -> bool:
    """Whether a ConfigMap is the one of that name or bears its mark."""
    meta = document.get("metadata") if isinstance(document, dict) and document.get("kind") == "ConfigMap" else None
    if not isinstance(meta, dict):
        return False
    labels = meta.get("labels")
    marked = isinstance(labels, dict) and labels.get(names.LABEL_CONFIGMAP_TYPE) == names.CONFIGMAP_TYPE_SLO
    return marked or meta.get("name") == names.CONFIGMAP_SLO_CONTROLLER_CONFIG


def check(document: Document) -> Iterator[Finding]:
    """Every mistake in the texts of a slo-controller-config."""
    data = document.data.get("data")
    if not isinstance(data, dict):
        return  # absent is allowed; a wrong type is told by the schema
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    trees: dict[str, _Text] = {}
    for key, text in texts.items():
        if key in slo_schema.KEYS:
            tree = trees[key] = _Text(document, key, text)
            if tree.broken is not None:
                yield tree.broken
        else:
            hint = did_you_mean(key, slo_schema.KEYS)
            message = f"is not read by koord{hint or '; known keys: ' + ', '.join(slo_schema.KEYS)}"
            yield document.finding(message, f'data["{key}"]', key=True, level=Level.ERROR if hint else Level.WARNING)
    good = {key: texts[key] for key, tree in trees.items() if tree.broken is None}
    result = slo.parse(good, previous=None)
    seen: set[tuple[str, str]] = set()
    unread = (error for key, text in good.items() for error in unknown(slo_schema.KEYS[key], orjson.loads(text or "null"), key))
    for error in [*result.errors, *slo_validate.mistakes(good), *result.warnings, *unread]:
        if (error.path, _gist(error)) not in seen:
            seen.add((error.path, _gist(error)))
            key = next(key for key in good if error.path == key or error.path.startswith((f"{key}.", f"{key}[")))
            yield trees[key].finding(error)


def _gist(error: ConfigError) -> str:
    """Readers and webhook word a range each in its way; about one field one of them is enough."""
    return error.message if error.concerns_key else ""


class _Text:
    """The JSON of one key, with the places of its fields in the file."""

    def __init__(self, document: Document, key: str, text: str) -> None:
        self._document = document
        self._key = key
        self._path = f'data["{key}"]'
        self._inner = document.places.inner(join(document.prefix, self._path))
        self._places: Positions | None = None
        self.broken: Finding | None = None
        try:
            orjson.loads(text or "null")
        except orjson.JSONDecodeError as error:
            self.broken = self._finding(f"not valid JSON: {error.msg}", "", Position(error.lineno, error.colno))
            return
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
        self._places = Positions(root, text) if root is not None else None

    def finding(self, error: ConfigError) -> Finding:
        """A mistake that a reader of the key found."""
        path = error.path[len(self._key) :].removeprefix(".")
        position = self._places.of(path, key=error.concerns_key) if self._places is not None else None
        return self._finding(error.message, path, position)

    def _finding(self, message: str, path: str, position: Position | None) -> Finding:
        document = self._document
        place = self._inner.outer(position) if self._inner is not None and position is not None else document.at(self._path)
        full = join(join(document.base, self._path), path)
        return Finding(document.source.name, place, Level.ERROR, message, full, document.subject)
