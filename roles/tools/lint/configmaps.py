"""slo-controller-config: what the manager would refuse or ignore of it, and what its webhook would not let in (MGR-CFG-01, MGR-CM-V-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from koord.api import names
from koord.config import slo, slo_schema, slo_validate
from koord.config.errors import ConfigError, did_you_mean
from koord.config.positions import Position
from koord.config.schema import unknown
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document, Inside


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
    trees: dict[str, Inside] = {}
    for key, text in texts.items():
        if key in slo_schema.KEYS:
            inside = Inside(document, f'data["{key}"]', text)
            try:
                orjson.loads(text or "null")
                trees[key] = inside
            except orjson.JSONDecodeError as error:
                yield inside.finding(f"not valid JSON: {error.msg}", position=Position(error.lineno, error.colno))
        else:
            hint = did_you_mean(key, slo_schema.KEYS)
            message = f"is not read by koord{hint or '; known keys: ' + ', '.join(slo_schema.KEYS)}"
            yield document.finding(message, f'data["{key}"]', key=True, level=Level.ERROR if hint else Level.WARNING)
    good = {key: texts[key] for key in trees}
    result = slo.parse(good, previous=None)
    seen: set[tuple[str, str]] = set()
    unread = (error for key, text in good.items() for error in unknown(slo_schema.KEYS[key], orjson.loads(text or "null"), key))
    for one in [*result.errors, *slo_validate.mistakes(good), *result.warnings, *unread]:
        if (one.path, _gist(one)) not in seen:
            seen.add((one.path, _gist(one)))
            key = next(key for key in good if one.path == key or one.path.startswith((f"{key}.", f"{key}[")))
            yield trees[key].finding(one.message, one.path[len(key) :].removeprefix("."), key=one.concerns_key)


def _gist(error: ConfigError) -> str:
    """Readers and webhook word a range each in its way; about one field one of them is enough."""
    return error.message if error.concerns_key else ""
