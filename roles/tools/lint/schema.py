"""Objects as an API server with koord's definitions would take them: strict decoding, schema, and the checks of built-in kinds.

The embedded API server runs in this process, without listening; objects are sent to it with dryRun=All and fieldValidation=Strict.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

from koord.apiserver import manifests as definitions
from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers.crds import CustomResources
from koord.apiserver.core import Core, seed
from koord.apiserver.errors import StatusError
from koord.apiserver.resources import Resource
from koord.apiserver.rest import write
from koord.apiserver.rest.context import Options
from koord.apiserver.schema.builtin import Field, TypeNode
from koord.apiserver.schema.structural import Structural
from koord.config.errors import did_you_mean, unknown_field
from koord.config.positions import parse_path
from roles.tools import manifests
from roles.tools.lint.finding import Finding, Level
from roles.tools.lint.sources import Document

Obj = dict[str, Any]
_OURS = re.compile(r"(^|\.)koordinator\.sh$|^scheduling\.sigs\.k8s\.io$|^topology\.node\.k8s\.io$")
_UNKNOWN = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
_STRICT = "strict decoding error"


class Schemas:
    """An API server that nothing is stored in but definitions and priority classes."""

    def __init__(self) -> None:
        # Namespaces of linted objects are rarely among the files.
        self.core = Core(ServerConfig(disabled_plugins=frozenset({"NamespaceLifecycle"})))
        seed(self.core)
        CustomResources(self.core).start()

    async def install(self, classes: Iterable[Obj]) -> None:
        """koord's definitions, its priority classes and those given."""
        await definitions.install(self.core, list(manifests.documents("crds")))
        own = [obj for obj in manifests.documents("install") if obj["kind"] == "PriorityClass"]
        resource = self.core.resources.by_path("scheduling.k8s.io", "v1", "priorityclasses")
        assert resource is not None
        for obj in (*classes, *own):
            try:
                await write.create(self.core, resource, "", copy.deepcopy(obj), Options(field_validation="Strict"))
            except (StatusError, TypeError, AttributeError, KeyError):
                continue  # named twice, or told of when it is checked itself

    def classes(self) -> list[Obj]:
        """The priority classes that are known."""
        return [entry.obj for entry in self.core.store.bucket("scheduling.k8s.io/priorityclasses").entries.values()]

    def resource(self, obj: Obj) -> Resource | None:
        """The resource that an object's apiVersion and kind name."""
        return next((one for one in self._all() if (one.api_version, one.kind) == (obj.get("apiVersion"), obj.get("kind"))), None)

    def _all(self) -> Iterator[Resource]:
        return (one for one in self.core.resources if one.verbs != ("create",))

    def misspelt(self, obj: Obj) -> str:
        """What to say of an object that is not served: of one of our groups what is accepted, "" for other people's."""
        version, kind = str(obj.get("apiVersion") or ""), str(obj.get("kind") or "")
        group = version.rpartition("/")[0]
        served = [one for one in self._all() if one.group == group]
        if served:
            kinds = sorted({one.kind for one in served if one.api_version == version})
            if kinds:
                hint = did_you_mean(kind, kinds) or f"; accepted: {', '.join(kinds)}"
                return f"kind {kind!r} does not exist in {version}{hint}"
            versions = sorted({one.api_version for one in served})
            return f"apiVersion {version!r} is not served; accepted: {', '.join(versions)}" if self._owned(group) else ""
        groups = sorted({one.group for one in self._all() if self._owned(one.group)})
        near = did_you_mean(group, groups)
        if near or self._owned(group):
            return f"API group {group!r} is not known{near or '; of koord there are ' + ', '.join(groups)}"
        return ""

    @staticmethod
    def _owned(group: str) -> bool:
        return _OURS.search(group) is not None

    async def check(self, document: Document, resource: Resource) -> tuple[Obj | None, list[Finding]]:
        """The object as the API server would store it (None when it would refuse it), and why it would refuse it."""
        obj = copy.deepcopy(document.data)
        notes = list(self._forgive(obj, resource, document))
        meta = obj.get("metadata") if isinstance(obj.get("metadata"), dict) else {}
        namespace = (meta.get("namespace") or "default") if resource.namespaced else ""
        # Unknown fields are told first and alone: asked again without strictness, the server goes on to the values.
        for validation in ("Strict", "Ignore"):
            options = Options(dry_run=True, field_validation=validation)
            try:
                entry = await write.create(self.core, resource, str(namespace), copy.deepcopy(obj), options)
            except StatusError as error:
                if error.reason == "AlreadyExists":
                    return None, notes  # a definition or priority class that is koord's own
                notes += self._findings(error, document, resource)
                if _STRICT not in error.message:
                    return None, notes
            except (TypeError, AttributeError, KeyError, ValueError) as error:
                return None, [*notes, document.finding(f"cannot be read: {error}")]
            else:
                return entry.obj, notes
        return None, notes

    def _forgive(self, obj: Obj, resource: Resource, document: Document) -> Iterator[Finding]:
        """Leave out what only a cluster can tell."""
        for field in ("resourceVersion", "uid"):
            if isinstance(obj.get("metadata"), dict):
                obj["metadata"].pop(field, None)
        spec = obj.get("spec")
        name = spec.get("priorityClassName") if resource.kind == "Pod" and isinstance(spec, dict) else None
        if isinstance(name, str) and name and self.core.store.bucket("scheduling.k8s.io/priorityclasses").get("", name) is None:
            assert isinstance(spec, dict)
            spec.pop("priorityClassName")
            spec.pop("priority", None)
            yield document.finding(
                f"PriorityClass {name!r} is not among the files: what depends on its value is not checked",
                "spec.priorityClassName",
                level=Level.WARNING,
            )

    def _findings(self, error: StatusError, document: Document, resource: Resource) -> Iterator[Finding]:
        unknown = _UNKNOWN.findall(error.message) if _STRICT in error.message else []
        if unknown:
            for path in unknown:
                name, known = _siblings(path, resource)
                yield document.finding(unknown_field(name, known), path, key=True)
            return
        causes = (error.details or {}).get("causes") or ()
        for cause in causes:
            yield document.finding(str(cause["message"]), str(cause.get("field") or ""))
        if not causes:
            message = error.message.rpartition(f"cannot be handled as a {resource.kind}: ")[2]
            match = re.search(r"((?:spec|metadata|status|data)[\w.\[\]/-]*): ", message)
            path = match.group(1) if match else ""
            yield document.finding(message.removeprefix(f"{path}: "), path)


def _siblings(path: str, resource: Resource) -> tuple[str, list[str]]:
    """(the unknown name, the names that are accepted beside it)."""
    parts = parse_path(path)
    name = str(parts[-1])
    return name, _known(resource, parts[:-1])


def _known(resource: Resource, parts: list[str | int]) -> list[str]:
    node: Any = resource.structural or resource.type
    for part in parts:
        node = _below(node, part)
        if node is None:
            return []
    if isinstance(node, Structural):
        return [*node.props, *(("apiVersion", "kind", "metadata") if not parts else ())]
    return list(node.fields) if isinstance(node, TypeNode) else []


def _below(node: Any, part: str | int) -> Any:
    """The schema of a member or item; None where it says nothing."""
    if isinstance(node, Structural):
        if isinstance(part, int):
            return node.items
        return node.props.get(part) or (node.additional if isinstance(node.additional, Structural) else None)
    field = node.fields.get(str(part)) if isinstance(node, TypeNode) else node.item if isinstance(node, Field) else None
    return field.node if field is not None and field.node is not None else field
