"""The manifests that koord is installed with: read, adapted, ordered. Pure but for reading the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMESPACE = "koordinator-system"
IMAGE = "ghcr.io/koordinator-sh/koord:latest"
PARTS = ("manager", "scheduler", "descheduler", "koordlet")

Obj = dict[str, Any]


def documents(directory: str) -> Iterator[Obj]:
    """All objects of a folder of configs/, in the order of file names."""
    for file in sorted((CONFIGS / directory).glob("*.yaml")):
        yield from (document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document)


def rendered(*, image: str = IMAGE, namespace: str = NAMESPACE, crds: bool = True, without: frozenset[str] = frozenset()) -> list[Obj]:
    """What is applied, in that order. `without` leaves out parts by name, with their accounts and rights."""
    found = [*documents("crds")] if crds else []
    for document in documents("install"):
        if _part(document) not in without:
            found.append(_adapted(document, image, namespace))
    return found


def _part(document: Obj) -> str:
    name = document["metadata"]["name"]
    for part in PARTS:
        if name == part or name.startswith((f"koord-{part}", f"{part}-")):
            return part
    return "manager" if name == "koordinator-webhook-service" else ""


def _adapted(value: Any, image: str, namespace: str) -> Any:
    """The namespace and the image replaced wherever they stand, in texts within texts too."""
    if isinstance(value, dict):
        return {key: _adapted(item, image, namespace) for key, item in value.items()}
    if isinstance(value, list):
        return [_adapted(item, image, namespace) for item in value]
    if isinstance(value, str):
        return value.replace(IMAGE, image).replace(NAMESPACE, namespace)
    return value


def text(objects: list[Obj]) -> str:
    """As one YAML stream."""
    return "---\n".join(yaml.safe_dump(obj, sort_keys=False, width=140) for obj in objects)
