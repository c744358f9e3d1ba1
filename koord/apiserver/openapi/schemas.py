"""OpenAPI schemas of everything that is served."""

from __future__ import annotations

import ast
import copy
import importlib.util
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord.apiserver.schema.builtin import Field, TypeNode, schemas
from koord.apiserver.ssa.schema import LIST_MAP, LIST_SET, of_type

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]

_FIELD = re.compile(r'^    (\w+): .*?(?:serialization_alias="([^"]+)".*?)?description=("(?:[^"\\]|\\.)*")', re.MULTILINE)
_CLASS = re.compile(r'^class (\w+)\(BaseModel\):\n    """\n    (.*?)\n', re.MULTILINE)


@lru_cache(maxsize=1)
def _folder() -> Path | None:
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "client" / "models"
    return folder if folder.is_dir() else None


def _snake(name: str) -> str:
    text = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()


@lru_cache(maxsize=1024)
def descriptions_of(name: str) -> tuple[str, dict[str, str]]:
    """(description of the type, descriptions of its fields by wire name)."""
    folder = _folder()
    if folder is None:
        return "", {}
    file = folder / f"{_snake(name)}.py"
    try:
        source = file.read_text(encoding="utf-8")
    except OSError:
        return "", {}
    fields: dict[str, str] = {}
    for attribute, wire, quoted in _FIELD.findall(source):
        fields[wire or attribute] = str(ast.literal_eval(quoted))
    found = _CLASS.search(source)
    return (found.group(2) if found else ""), fields


_MODEL = re.compile(r"^([A-Z][a-z]+)??(V\d+(?:(?:alpha|beta)\d+)?)(.+)$")
_SIMPLE: dict[str, Obj] = {
    "s": {"type": "string"},
    "i": {"type": "integer", "format": "int64"},
    "n": {"type": "number", "format": "double"},
    "b": {"type": "boolean"},
    "t": {"type": "string", "format": "date-time"},
    "T": {"type": "string", "format": "date-time"},
    "q": {"type": "string", "description": "A quantity: a decimal number with an optional suffix, such as 500m, 2, 1.5Gi."},
    "x": {"type": "string", "format": "int-or-string"},
    "y": {"type": "string", "format": "byte"},
    "o": {"type": "object"},
}


def component(name: str) -> str:
    """The schema name of a built-in type: `io.k8s.api.v1.PodSpec` for V1PodSpec."""
    found = _MODEL.match(name)
    if found is None:
        return f"io.k8s.api.{name}"
    prefix = f"{found.group(1).lower()}." if found.group(1) else ""
    return f"io.k8s.api.{prefix}{found.group(2).lower()}.{found.group(3)}"


def _field(field: Field, base: str) -> Obj:
    if field.code == "r":
        assert field.node is not None
        return {"$ref": base + component(field.node.name)}
    if field.code == "[":
        assert field.item is not None
        return {"type": "array", "items": _field(field.item, base)}
    if field.code == "{":
        assert field.item is not None
        return {"type": "object", "additionalProperties": _field(field.item, base)}
    return dict(_SIMPLE[field.code])


def _described(schema: Obj, text: str, *, wrap: bool) -> Obj:
    if not text:
        return schema
    if "$ref" in schema and wrap:
        return {"description": text, "allOf": [schema], "default": {}}
    return {"description": text, **schema}


def type_schema(node: TypeNode, base: str, *, wrap: bool) -> Obj:
    """The schema of one built-in type. `wrap`: references with siblings are put into allOf, as OpenAPI 3.0 wants."""
    about, texts = descriptions_of(node.name)
    shape = of_type(node)
    properties: Obj = {}
    for name, field in node.fields.items():
        schema = _described(_field(field, base), texts.get(name, ""), wrap=wrap)
        if field.code == "[":
            child = shape.of(name)
            if child.mode == LIST_MAP:
                schema["x-kubernetes-list-type"] = "map"
                schema["x-kubernetes-list-map-keys"] = list(child.keys)
                schema["x-kubernetes-patch-strategy"] = "merge"
                schema["x-kubernetes-patch-merge-key"] = child.keys[0]
            else:
                schema["x-kubernetes-list-type"] = "set" if child.mode == LIST_SET else "atomic"
        properties[name] = schema
    out: Obj = {"type": "object", "properties": properties}
    if about:
        out = {"description": about, **out}
    required = [n for n, f in node.fields.items() if f.required]
    if required:
        out["required"] = required
    return out


def _below(node: TypeNode, seen: dict[str, TypeNode]) -> None:
    if node.name in seen:
        return
    seen[node.name] = node
    for field in node.fields.values():
        inner: Field | None = field
        while inner is not None:
            if inner.node is not None:
                _below(inner.node, seen)
            inner = inner.item


def _gvk(resource: Resource) -> list[Obj]:
    return [{"group": resource.group, "kind": resource.kind, "version": resource.version}]


def definition_name(resource: Resource) -> str:
    """The schema name of a served kind."""
    if resource.type is not None:
        return component(resource.type.name)
    reversed_group = ".".join(reversed(resource.group.split(".")))
    return f"{reversed_group}.{resource.version}.{resource.kind}"


def build(resources: Iterable[Resource], base: str, *, wrap: bool) -> Obj:
    """All schemas that the resources need, by name; `base` is what references start with."""
    resources = list(resources)
    nodes: dict[str, TypeNode] = {}
    _below(schemas().type("V1ObjectMeta"), nodes)
    _below(schemas().type("V1DeleteOptions"), nodes)
    for resource in resources:
        if resource.type is not None:
            _below(resource.type, nodes)
        if "scale" in resource.subresources:
            _below(schemas().type("V1Scale"), nodes)
        if "eviction" in resource.subresources:
            _below(schemas().type("V1Eviction"), nodes)
    out = {component(n.name): type_schema(n, base, wrap=wrap) for n in nodes.values()}
    meta = {"$ref": base + component("V1ObjectMeta")}
    for resource in resources:
        name = definition_name(resource)
        if resource.structural is not None:
            out[name] = custom_schema(resource.structural.raw, meta, wrap=wrap)
        if name in out:
            out[name]["x-kubernetes-group-version-kind"] = _gvk(resource)
            if "list" in resource.verbs:
                out[name + "List"] = _list(resource, base + name)
    return out


def _list(resource: Resource, item: str) -> Obj:
    properties = {
        "apiVersion": {"type": "string"},
        "items": {"type": "array", "items": {"$ref": item}},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"resourceVersion": {"type": "string"}, "continue": {"type": "string"}}},
    }
    kind = [{"group": resource.group, "kind": resource.list_kind, "version": resource.version}]
    about = f"{resource.list_kind} is a list of {resource.kind}"
    return {
        "description": about,
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": kind,
    }


def custom_schema(raw: Obj, meta: Obj, *, wrap: bool) -> Obj:
    """The published schema of a custom resource: its own, with the members that every object has."""
    out = copy.deepcopy(raw)
    properties = out.setdefault("properties", {})
    properties["apiVersion"] = {"type": "string", "description": "The versioned schema of this representation of an object."}
    properties["kind"] = {"type": "string", "description": "The REST resource that this object represents."}
    properties["metadata"] = _described(dict(meta), "Standard object's metadata.", wrap=wrap)
    return out
