"""docs/reference/annotations.md: labels, annotations and resource names of the protocol."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api import names
from roles.tools.reference.markdown import code, page, table
from roles.tools.reference.name_texts import ANNOTATIONS, LABELS, RESOURCES, Name


def _rows(entries: Iterable[tuple[str, Name]]) -> str:
    found = sorted((getattr(names, constant), entry) for constant, entry in entries)
    return table(("Name", "On", "Written by", "Read by", "Meaning"), [(code(key), *entry) for key, entry in found])


def render() -> str:
    """The page."""
    intro = (
        "The names by which the roles, users and other programs understand one another. *user* is whoever creates the object. A value "
        "that cannot be read is reported and counts as absent."
    )
    old = [(code(name), code(new)) for name, new in sorted(names.DEPRECATED_RESOURCES.items())]
    sections = [
        "## Labels", _rows(LABELS.items()), "## Annotations", _rows(ANNOTATIONS.items()),
        "## Resources", _rows(RESOURCES.items()),
        "## Former resource names", "Accepted on input and understood as the name beside them:", table(("Former name", "Name"), old),
    ]  # fmt: skip
    return page("Labels, annotations, resources", intro, sections)
