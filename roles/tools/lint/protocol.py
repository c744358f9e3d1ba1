"""Koordinator's labels and annotations: every value read by the parser that the roles read it with (API-LBL-01, API-ANN-01)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from koord.api import names
from koord.api.annotations import AnnotationError
from koord.config.errors import ConfigError, unknown_field
from koord.config.schema import errors
from koord.config.schema import unknown as unknown_in_schema
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.keys import ANNOTATIONS, LABEL_VALUES, LABELS, SCHEMAS, SHAPES
from roles.tools.lint.shapes import unknown_members
from roles.tools.lint.sources import Document, Inside, join, part_of

_NEAR = 0.8
_LISTED = (*LABELS, *ANNOTATIONS)


def check(document: Document, meta: Any, path: str) -> Iterator[Finding]:
    """Every mistake in the labels and annotations of an object's or template's metadata, which stands at `path`."""
    if not isinstance(meta, dict):
        return
    for field, own, other in (("labels", LABELS, ANNOTATIONS), ("annotations", ANNOTATIONS, LABELS)):
        values = meta.get(field)
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            continue  # told by the schema
        for key in values:
            where = join(path, f'{field}["{key}"]')
            for message, level in _misplaced(key, field, own, other):
                yield document.finding(message, where, key=True, level=level)
        if field == "labels":
            yield from _labels(document, values, path)
        else:
            yield from _annotations(document, values, path)


def _ours(key: str) -> bool:
    domain = key.partition("/")[0]
    if domain == "sandbox.koordinator.sh":
        return False  # marks of `koord sandbox`
    return domain in (names.DOMAIN, names.LABEL_POD_GROUP) or domain.endswith(f".{names.DOMAIN}")


def _misplaced(key: str, field: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Level]]:
    if key in own:
        return
    if key in other:
        right = "annotations" if field == "labels" else "labels"
        yield f"{key} is read from {right}, not from {field}", Level.ERROR
        return
    near = _nearest(key)
    if near:
        yield f"{key} is not known; did you mean {near!r}?", Level.ERROR
    elif _ours(key):
        yield f"{key} is not known to koord", Level.WARNING


def _nearest(key: str) -> str:
    """The key that was probably meant: same domain and almost the same name, or the same name and almost the same domain."""
    domain, slash, name = key.partition("/")
    if not slash:
        return ""
    siblings = {known.partition("/")[2]: known for known in _LISTED if known.partition("/")[0] == domain}
    folded = {word.lower(): known for word, known in siblings.items()}
    if name.lower() in folded:
        return folded[name.lower()]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=_NEAR)
    if near:
        return siblings[near[0]]
    namesakes = {known.partition("/")[0]: known for known in _LISTED if known.partition("/")[2].lower() == name.lower()}
    near = difflib.get_close_matches(domain, namesakes, n=1, cutoff=_NEAR)
    return namesakes[near[0]] if near and domain != near[0] else ""


def _labels(document: Document, values: Mapping[str, str], path: str) -> Iterator[Finding]:
    for key, accepts in LABEL_VALUES.items():
        if key not in values:
            continue
        wanted = accepts(values[key])
        if wanted:
            yield document.finding(f"{values[key]!r} is not known; accepted: {wanted}", join(path, f'labels["{key}"]'))


def _annotations(document: Document, values: Mapping[str, str], path: str) -> Iterator[Finding]:
    for key, parse in ANNOTATIONS.items():
        if key not in values or parse is None:
            continue
        where = join(path, f'annotations["{key}"]')
        try:
            parse(values)
        except AnnotationError as error:
            yield document.finding(error.detail, where)
            continue
        inside = Inside(document, where, values[key])
        yield from (inside.finding(one.message, one.path, key=one.concerns_key) for one in _members(key, values[key]))


def _members(key: str, text: str) -> Iterator[ConfigError]:
    """Members of an annotation's JSON that nobody reads, and values out of range."""
    if key not in SHAPES and key not in SCHEMAS:
        return
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # short forms like "true"
    if key in SCHEMAS:
        yield from errors(SCHEMAS[key], value, "", "cm")
        yield from unknown_in_schema(SCHEMAS[key], value, "")
        return
    for where, name, known in unknown_members(SHAPES[key], value):
        yield ConfigError(join(where, name), unknown_field(name, known))


TEMPLATES: dict[str, str] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"), "spec.template"),
    "CloneSet": "spec.template",
    "CronJob": "spec.jobTemplate.spec.template",
    "Reservation": "spec.template",
    "PodTemplate": "template",
    "PodMigrationJob": "spec.reservationOptions.template.spec.template",
}
"""Where the pod template of a kind stands."""


def template_of(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """(path, pod template) of an object that makes pods."""
    path = TEMPLATES.get(str(data.get("kind")), "")
    node = part_of(data, path) if path else None
    return (path, node) if isinstance(node, dict) else None
