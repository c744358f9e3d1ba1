"""CRD manifests from files into a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from koord.apiserver.controllers.crds import CRD_BUCKET
from koord.apiserver.errors import StatusError
from koord.apiserver.rest.context import Options
from koord.apiserver.rest.write import create
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core


class ManifestError(Exception):
    """A manifest that cannot be read or is refused; the text names the file."""


def read(path: Path) -> list[Obj]:
    """All CustomResourceDefinitions in a YAML file, or in the YAML files under a directory."""
    import yaml

    from koord.config import plainyaml  # neither is loaded where no file is given

    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    found: list[Obj] = []
    for file in files:
        try:
            documents = plainyaml.load_all(file.read_bytes())
        except (OSError, yaml.YAMLError) as err:
            raise ManifestError(f"{file}: {err}") from err
        mine = [d for d in documents if isinstance(d, dict) and d.get("kind") == "CustomResourceDefinition"]
        for definition in mine:
            meta = definition.get("metadata")
            if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
                raise ManifestError(f"{file}: a CustomResourceDefinition without metadata.name")
        found += mine
    if not found:
        raise ManifestError(f"{path}: no CustomResourceDefinition found in *.yaml")
    return found


async def install(core: Core, definitions: list[Obj]) -> list[str]:
    """Create the definitions that are not there; returns all names."""
    resource = core.resources.builtin("apiextensions.k8s.io", "customresourcedefinitions")
    names: list[str] = []
    for definition in definitions:
        name = definition["metadata"]["name"]
        names.append(name)
        if core.store.bucket(CRD_BUCKET).get("", name) is not None:
            continue
        obj = orjson.loads(orjson.dumps(definition))
        obj.pop("status", None)
        try:
            await create(core, resource, "", obj, Options())
        except StatusError as err:
            raise ManifestError(f"{name}: {err.message}") from err
    return names
