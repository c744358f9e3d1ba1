"""/openapi/v2 and /openapi/v3: documents made on demand and kept until the served resources change."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from koord.apiserver.errors import not_acceptable, path_not_found
from koord.apiserver.openapi.schemas import build, definition_name

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]

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


def _field(number: int, content: bytes | str) -> bytes:
    """A length-delimited field."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _named(name: str, value: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, value))


def _schema(schema: Obj) -> bytes:
    """One schema. Only what a validating client looks at is written."""
    out = bytearray()
    if "$ref" in schema:
        out += _field(_REF, schema["$ref"])
    for number, key in ((_FORMAT, "format"), (_DESCRIPTION, "description")):
        if schema.get(key):
            out += _field(number, schema[key])
    for name in schema.get("required") or ():
        out += _field(_REQUIRED, name)
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        out += _field(_ADDITIONAL, _field(1, _schema(more)))
    if schema.get("type"):
        out += _field(_TYPE, _field(1, schema["type"]))
    if isinstance(schema.get("items"), dict):
        out += _field(_ITEMS, _field(1, _schema(schema["items"])))
    for inner in schema.get("allOf") or ():
        out += _field(_ALL_OF, _schema(inner))
    if schema.get("properties"):
        out += _field(_PROPERTIES, b"".join(_named(k, _schema(v)) for k, v in schema["properties"].items()))
    for key, value in schema.items():
        if key.startswith("x-"):
            # the value is YAML text, of which JSON is a part
            out += _field(_EXTENSION, _field(1, key) + _field(2, _field(2, orjson.dumps(value).decode())))
    return bytes(out)


def document(v2: Obj) -> bytes:
    """The document without its paths."""
    info = _field(1, v2["info"]["title"]) + _field(2, v2["info"]["version"])
    definitions = b"".join(_named(name, _schema(schema)) for name, schema in v2["definitions"].items())
    return _field(_SWAGGER, v2["swagger"]) + _field(_ABOUT, info) + _field(_PATHS, b"") + _field(_DEFINITIONS, definitions)


_V2, _V3 = "#/definitions/", "#/components/schemas/"
_INFO = {"title": "Kubernetes", "version": "unversioned"}
_WRITE = ("dryRun", "fieldManager", "fieldValidation")


def _cached(core: Core, name: str, make: Any) -> bytes:
    """A document for the present set of resources."""
    key, revision = f"openapi {name}", core.resources.revision
    found = core.cache.get(key)
    if found is None or found[0] != revision:
        made = make()
        found = core.cache[key] = (revision, made if isinstance(made, bytes) else orjson.dumps(made))
    body: bytes = found[1]
    return body


def _parameters(names: tuple[str, ...], *, v3: bool) -> list[Obj]:
    kind = {"schema": {"type": "string", "uniqueItems": True}} if v3 else {"type": "string", "uniqueItems": True}
    return [{"name": n, "in": "query", **kind} for n in names]


def _operation(resource: Resource, action: str, *, v3: bool) -> Obj:
    names = ("pretty",) if action in ("get", "list") else (*_WRITE, "force") if action == "patch" else _WRITE
    schema = {"$ref": (_V3 if v3 else _V2) + definition_name(resource) + ("List" if action == "list" else "")}
    answer: Obj = {"description": "OK"}
    if v3:
        answer["content"] = {"application/json": {"schema": schema}}
    else:
        answer["schema"] = schema
    return {
        "operationId": f"{action}{resource.group.replace('.', '_')}{resource.version}{resource.kind}",
        "parameters": _parameters(names, v3=v3),
        "responses": {"200": answer},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": resource.group, "kind": resource.kind, "version": resource.version},
    }


def _paths(resources: list[Resource], *, v3: bool) -> Obj:
    out: Obj = {}
    for resource in resources:
        if "list" not in resource.verbs:
            continue
        collection = resource.path("{namespace}" if resource.namespaced else None)
        out[collection] = {"get": _operation(resource, "list", v3=v3), "post": _operation(resource, "post", v3=v3)}
        one = {"get": _operation(resource, "get", v3=v3), "put": _operation(resource, "put", v3=v3)}
        one |= {"patch": _operation(resource, "patch", v3=v3), "delete": _operation(resource, "delete", v3=v3)}
        out[collection + "/{name}"] = one
    return out


def _root(core: Core) -> Obj:
    """The index of /openapi/v3: one document a group version."""
    found = sorted({(r.group, r.version) for r in core.resources})
    paths: Obj = {}
    for group, version in found:
        place = f"apis/{group}/{version}" if group else f"api/{version}"
        digest = hashlib.sha256(f"{place} {core.resources.revision}".encode()).hexdigest()[:32].upper()
        paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


def _v3(resources: list[Resource]) -> Obj:
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": _paths(resources, v3=True),
        "components": {"schemas": build(resources, _V3, wrap=True)},
    }


def _v2(core: Core) -> Obj:
    resources = list(core.resources)
    definitions = build(resources, _V2, wrap=False)
    return {"swagger": "2.0", "info": _INFO, "paths": _paths(resources, v3=False), "definitions": definitions}


def answer(core: Core, rest: list[str], request: web.BaseRequest) -> web.Response:
    """Serve a document. Raises 404, or 406 to those who only read protobuf."""
    accept = request.headers.get("Accept", "")
    if rest == ["v2"] and (MEDIA_TYPE in accept or CONTENT_TYPE in accept):
        body = _cached(core, "v2 protobuf", lambda: document(_v2(core)))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache, private"})
    if "protobuf" in accept and "json" not in accept and "*/*" not in accept:
        raise not_acceptable(("application/json",))
    if rest == ["v2"]:
        body = _cached(core, "v2", lambda: _v2(core))
    elif rest == ["v3"]:
        body = _cached(core, "v3", lambda: _root(core))
    elif rest[:2] == ["v3", "api"] and len(rest) == 3:
        body = _group_version(core, "", rest[2])
    elif rest[:2] == ["v3", "apis"] and len(rest) == 4:
        body = _group_version(core, rest[2], rest[3])
    else:
        raise path_not_found()
    return web.Response(body=body, headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})


def _group_version(core: Core, group: str, version: str) -> bytes:
    resources = [r for r in core.resources.of_group(group) if r.version == version]
    if not resources:
        raise path_not_found()
    return _cached(core, f"v3 {group}/{version}", lambda: _v3(resources))
