"""The part of kustomize that configs/ uses, so that one binary renders its overlays: resources, components, patches, generated ConfigMaps.

What a file asks for beyond that is an error, never left out in silence. Reads files; everything else is pure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from koord.kube.errors import PatchError
from koord.kube.patch import apply_json_patch, copy_json
from koord.process.errors import ConfigurationError

Obj = dict[str, Any]
NAMES = ("kustomization.yaml", "Kustomization")
_FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "configMapGenerator", "generatorOptions"}
_TARGET = {"kind", "name"}
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def build(directory: Path) -> list[Obj]:
    """Every object of a kustomization, in the order in which it is listed. Raises ConfigurationError."""
    return apply(directory, [])


def apply(directory: Path, objects: list[Obj]) -> list[Obj]:
    """`objects` with what a kustomization or component adds and patches. Raises ConfigurationError."""
    file = next((directory / name for name in NAMES if (directory / name).is_file()), directory / NAMES[0])
    wanted = _read(file)
    found = list(objects)
    for entry in wanted.get("resources") or ():
        path = directory / entry
        found += build(path) if path.is_dir() else documents(path)
    found += [_generated(directory, entry, wanted.get("generatorOptions") or {}, file) for entry in wanted.get("configMapGenerator") or ()]
    for entry in wanted.get("components") or ():
        found = apply(directory / entry, found)
    for number, patch in enumerate(wanted.get("patches") or ()):
        found = _patched(found, patch, f"{file}: patches[{number}]")
    return found


def documents(file: Path) -> list[Obj]:
    """The objects of one YAML file. Raises ConfigurationError."""
    try:
        return [document for document in yaml.load_all(file.read_text(encoding="utf-8"), Loader=LOADER) if document]
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{file}: {error}") from None


def _read(file: Path) -> Obj:
    found = documents(file)
    if len(found) != 1 or found[0].get("kind") not in ("Kustomization", "Component"):
        raise ConfigurationError(f"{file}: one object of kind Kustomization or Component is wanted")
    unknown = found[0].keys() - _FIELDS
    if unknown:
        raise ConfigurationError(f"{file}: {', '.join(sorted(unknown))} is not supported; accepted: {', '.join(sorted(_FIELDS))}")
    return found[0]


def _generated(directory: Path, entry: Obj, options: Obj, file: Path) -> Obj:
    """A ConfigMap of files. Names get no hash: what refers to them need not be rewritten."""
    options = {**options, **entry.get("options", {})}
    if entry.keys() - {"name", "namespace", "files", "options"} or options.keys() - {"disableNameSuffixHash", "labels"}:
        raise ConfigurationError(f"{file}: configMapGenerator takes name, namespace, files and options disableNameSuffixHash, labels")
    if not options.get("disableNameSuffixHash"):
        raise ConfigurationError(f"{file}: configMapGenerator needs disableNameSuffixHash: true")
    metadata = {"name": entry["name"], **{key: entry[key] for key in ("namespace",) if key in entry}}
    if options.get("labels"):
        metadata["labels"] = dict(options["labels"])
    data = {Path(name).name: (directory / name).read_text(encoding="utf-8") for name in entry["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patched(objects: list[Obj], patch: Obj, where: str) -> list[Obj]:
    target = patch.get("target") or {}
    if patch.keys() - {"target", "patch"} or target.keys() - _TARGET or not target:
        raise ConfigurationError(f"{where}: takes target (of {', '.join(sorted(_TARGET))}) and patch")
    body = yaml.safe_load(patch["patch"])
    deletes = isinstance(body, dict) and body.get("$patch") == "delete"
    if not deletes and not isinstance(body, list):
        raise ConfigurationError(f"{where}: patch must be a list of JSON patch operations, or $patch: delete")
    found: list[Obj] = []
    for obj in objects:
        if not _targeted(obj, target):
            found.append(obj)
        elif not deletes:
            try:
                found.append(apply_json_patch(copy_json(obj), body))
            except PatchError as error:
                raise ConfigurationError(f"{where}: {obj['kind']} {obj['metadata']['name']}: {error}") from None
    return found


def _targeted(obj: Obj, target: Obj) -> bool:
    """kustomize takes these for anchored regular expressions."""
    known = {"kind": obj["kind"], "name": obj["metadata"]["name"]}
    return all(re.fullmatch(str(pattern), known[key]) for key, pattern in target.items())
