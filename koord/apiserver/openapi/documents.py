"""/openapi/v2 and /openapi/v3: documents made on demand and kept until the served resources change."""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from koord.apiserver.errors import not_acceptable, path_not_found
from koord.apiserver.schema.builtin import Field, TypeNode, schemas
from koord.apiserver.ssa.fields import LIST_MAP, LIST_SET, of_type
from koord.apiserver.store import Obj
from koord.apiserver.web.render import respond

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource


_FIELD = re.compile(r'^    (\w+): .*?(?:serialization_alias="([^"]+)".*?)?description=("(?:[^"\\]|\\.)*")', re.MULTILINE)
_found = cache(importlib.util.find_spec)
# before each word of a name: V1PodSpec, V1CSIDriver, V1HTTPGetAction
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Za-z0-9])(?=[A-Z][a-z])")
_CLASS = re.compile(r'^class (\w+)\(BaseModel\):\n    """\n    (.*?)\n', re.MULTILINE)


@lru_cache(maxsize=1024)
def descriptions_of(name: str) -> tuple[str, dict[str, str]]:
    """(description of the type, descriptions of its fields by wire name), "" where the package that has them is not installed."""
    spec = _found("kubernetes")
    module = _WORD.sub("_", name).lower()
    place = next(iter((spec.submodule_search_locations if spec else None) or ("",)))
    try:
        source = Path(place, "client", "models", f"{module}.py").read_text(encoding="utf-8")
    except OSError:
        return "", {}
    found = _CLASS.search(source)
    fields = {wire or attribute: str(ast.literal_eval(quoted)) for attribute, wire, quoted in _FIELD.findall(source)}
    return (found.group(2) if found else ""), fields


# what references start with, in either version of OpenAPI
_V2, _V3 = "#/definitions/", "#/components/schemas/"
_MODEL = re.compile(r"^([A-Z][a-z]+)??(V\d+(?:(?:alpha|beta)\d+)?)(.+)$")
_SIMPLE: dict[str, Obj] = {
    "s": {"type": "string"},
    "i": {"type": "integer", "format": "int64"},
    "I": {"type": "integer", "format": "int32"},
    "n": {"type": "number", "format": "double"},
    "b": {"type": "boolean"},
    "t": {"type": "string", "format": "date-time"},
    "T": {"type": "string", "format": "date-time"},
    "q": {"type": "string", "description": "A quantity: a decimal number with an optional suffix, such as 500m, 2, 1.5Gi."},
    "x": {"type": "string", "format": "int-or-string"},
    "y": {"type": "string", "format": "byte"},
    "o": {"type": "object"},
    # whatever it may be, it is no one type
    "j": {},
    "|": {},
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
    if field.code in "[{":
        assert field.item is not None
        sort, items = ("array", "items") if field.code == "[" else ("object", "additionalProperties")
        return {"type": sort, items: _field(field.item, base)}
    return dict(_SIMPLE[field.code])


def _described(schema: Obj, text: str) -> Obj:
    """A schema with its description. A reference with a sibling is put into allOf, as OpenAPI 3.0 wants."""
    if not text:
        return schema
    if schema.get("$ref", "").startswith(_V3):
        return {"description": text, "allOf": [schema], "default": {}}
    return {"description": text, **schema}


def type_schema(node: TypeNode, base: str) -> Obj:
    """The schema of one built-in type."""
    about, texts = descriptions_of(node.name)
    shape = of_type(node)
    properties: Obj = {}
    for name, field in node.fields.items():
        schema = _described(_field(field, base), texts.get(name, ""))
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
    out: Obj = {"description": about} if about else {}
    out |= {"type": "object", "properties": properties}
    required = [n for n, f in node.fields.items() if f.required]
    if required:
        out["required"] = required
    return out


def _below(node: TypeNode, seen: dict[str, TypeNode]) -> None:
    if node.name in seen:
        return
    seen[node.name] = node
    for field in node.fields.values():
        for inner in _types(field):
            _below(inner, seen)


def _types(field: Field) -> Iterator[TypeNode]:
    """The types that a field may hold."""
    if field.node is not None:
        yield field.node
    for part in (field.item, field.other):
        if part is not None:
            yield from _types(part)


def _gvk(resource: Resource, kind: str) -> Obj:
    return {"group": resource.group, "kind": kind, "version": resource.version}


def definition_name(resource: Resource) -> str:
    """The schema name of a served kind."""
    if resource.type is not None:
        return component(resource.type.name)
    reversed_group = ".".join(reversed(resource.group.split(".")))
    return f"{reversed_group}.{resource.version}.{resource.kind}"


def build(resources: Iterable[Resource], base: str) -> Obj:
    """All schemas that the resources need, by name; `base` is what references start with."""
    resources = list(resources)
    nodes: dict[str, TypeNode] = {}
    for name in ("V1ObjectMeta", "V1DeleteOptions"):
        _below(schemas().type(name), nodes)
    for resource in resources:
        if resource.type is not None:
            _below(resource.type, nodes)
        for sub in ("scale", "eviction"):
            if sub in resource.subresources:
                _below(schemas().type(f"V1{sub.title()}"), nodes)
    out = {component(n.name): type_schema(n, base) for n in nodes.values()}
    meta = {"$ref": base + component("V1ObjectMeta")}
    for resource in resources:
        name = definition_name(resource)
        if resource.structural is not None:
            out[name] = custom_schema(resource.structural.raw, meta)
        if name in out:
            out[name]["x-kubernetes-group-version-kind"] = [_gvk(resource, resource.kind)]
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
    return {
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": [_gvk(resource, resource.list_kind)],
    }


def custom_schema(raw: Obj, meta: Obj) -> Obj:
    """The published schema of a custom resource: its own, with the members that every object has."""
    out = copy.deepcopy(raw)
    properties = out.setdefault("properties", {})
    properties["apiVersion"] = {"type": "string", "description": "The versioned schema of this representation of an object."}
    properties["kind"] = {"type": "string", "description": "The REST resource that this object represents."}
    properties["metadata"] = _described(dict(meta), "Standard object's metadata.")
    return out


MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
# the same in letters that MIME allows: what the answer is labelled with
CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

# field numbers of the messages Document, Info, Definitions, Schema and what they are made of
_SWAGGER, _ABOUT, _PATHS, _DEFINITIONS = 1, 2, 8, 9
_REF, _FORMAT, _DESCRIPTION, _REQUIRED, _ADDITIONAL, _TYPE, _ITEMS, _ALL_OF, _PROPERTIES, _EXTENSION = 1, 2, 4, 19, 21, 22, 23, 24, 25, 31


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _delimited(number: int, content: bytes | str) -> bytes:
    """A length-delimited field."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _named(name: str, value: bytes) -> bytes:
    return _delimited(1, _delimited(1, name) + _delimited(2, value))


def _schema(schema: Obj) -> bytes:
    """One schema. Only what a validating client looks at is written."""
    out = bytearray()
    for number, key in ((_REF, "$ref"), (_FORMAT, "format"), (_DESCRIPTION, "description")):
        if schema.get(key):
            out += _delimited(number, schema[key])
    for name in schema.get("required") or ():
        out += _delimited(_REQUIRED, name)
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        out += _delimited(_ADDITIONAL, _delimited(1, _schema(more)))
    if schema.get("type"):
        out += _delimited(_TYPE, _delimited(1, schema["type"]))
    if isinstance(schema.get("items"), dict):
        out += _delimited(_ITEMS, _delimited(1, _schema(schema["items"])))
    for inner in schema.get("allOf") or ():
        out += _delimited(_ALL_OF, _schema(inner))
    if schema.get("properties"):
        out += _delimited(_PROPERTIES, b"".join(_named(k, _schema(v)) for k, v in schema["properties"].items()))
    for key, value in schema.items():
        if key.startswith("x-"):
            # the value is YAML text, of which JSON is a part
            out += _delimited(_EXTENSION, _delimited(1, key) + _delimited(2, _delimited(2, orjson.dumps(value).decode())))
    return bytes(out)


def document(v2: Obj) -> bytes:
    """The document without its paths."""
    info = _delimited(1, v2["info"]["title"]) + _delimited(2, v2["info"]["version"])
    definitions = b"".join(_named(name, _schema(schema)) for name, schema in v2["definitions"].items())
    return _delimited(_SWAGGER, v2["swagger"]) + _delimited(_ABOUT, info) + _delimited(_PATHS, b"") + _delimited(_DEFINITIONS, definitions)


_INFO = {"title": "Kubernetes", "version": "unversioned"}
_WRITE = ("dryRun", "fieldManager", "fieldValidation")


def _cached(core: Core, name: str, make: Callable[[], Obj]) -> bytes:
    """A document for the present set of resources."""
    return core.derived(f"openapi {name}", core.resources.revision, lambda: orjson.dumps(make()))


def _operation(resource: Resource, action: str, base: str) -> Obj:
    names = ("pretty",) if action in ("get", "list") else (*_WRITE, "force") if action == "patch" else _WRITE
    text = {"type": "string", "uniqueItems": True}
    schema, v3 = {"$ref": base + definition_name(resource) + ("List" if action == "list" else "")}, base == _V3
    answer: Obj = {"description": "OK"} | ({"content": {"application/json": {"schema": schema}}} if v3 else {"schema": schema})
    return {
        "operationId": f"{action}{resource.group.replace('.', '_')}{resource.version}{resource.kind}",
        "parameters": [{"name": name, "in": "query", **({"schema": text} if v3 else text)} for name in names],
        "responses": {"200": answer},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(resource, resource.kind),
    }


def _paths(resources: list[Resource], base: str) -> Obj:
    out: Obj = {}
    for resource in resources:
        if "list" not in resource.verbs:
            continue
        out[resource.path] = {"get": _operation(resource, "list", base), "post": _operation(resource, "post", base)}
        out[resource.path + "/{name}"] = {action: _operation(resource, action, base) for action in ("get", "put", "patch", "delete")}
    return out


def _root(core: Core) -> Obj:
    """The index of /openapi/v3: one document a group version."""
    found = sorted({(r.group, r.version, r.api_version) for r in core.resources})
    paths: Obj = {}
    for group, _, version in found:
        place = f"{'apis' if group else 'api'}/{version}"
        digest = hashlib.sha256(f"{place} {core.resources.revision}".encode()).hexdigest()[:32].upper()
        paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


def _v3(resources: list[Resource]) -> Obj:
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": _paths(resources, _V3),
        "components": {"schemas": build(resources, _V3)},
    }


def _v2(core: Core) -> Obj:
    resources = list(core.resources)
    definitions = build(resources, _V2)
    return {"swagger": "2.0", "info": _INFO, "paths": _paths(resources, _V2), "definitions": definitions}


def answer(core: Core, rest: list[str], request: web.BaseRequest) -> web.Response:
    """Serve a document. Raises 404, or 406 to those who only read protobuf."""
    accept = request.headers.get("Accept", "")
    if rest == ["v2"] and (MEDIA_TYPE in accept or CONTENT_TYPE in accept):
        body = core.derived("openapi v2 protobuf", core.resources.revision, lambda: document(_v2(core)))
        return respond(body, headers={"Content-Type": CONTENT_TYPE})
    if "protobuf" in accept and "json" not in accept and "*/*" not in accept:
        raise not_acceptable(("application/json",))
    if rest == ["v2"]:
        body = _cached(core, "v2", lambda: _v2(core))
    elif rest == ["v3"]:
        body = _cached(core, "v3", lambda: _root(core))
    else:  # those of one group and version
        resources = [r for r in core.resources if rest == ["v3", "apis" if r.group else "api", *r.api_version.split("/")]]
        if not resources:
            raise path_not_found()
        body = _cached(core, "/".join(rest), lambda: _v3(resources))
    return respond(body)
