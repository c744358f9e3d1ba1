"""The OpenAPI v2 document in its protobuf encoding, which is the only one that kubectl reads when it validates on its own side."""

from __future__ import annotations

from typing import Any

import orjson

Obj = dict[str, Any]

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
# the same in letters that MIME allows: what the answer is labelled with
CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

# field numbers of the messages Document, Info, Definitions, Schema and what they are made of
_SWAGGER, _INFO, _PATHS, _DEFINITIONS = 1, 2, 8, 9
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
    return _field(_SWAGGER, v2["swagger"]) + _field(_INFO, info) + _field(_PATHS, b"") + _field(_DEFINITIONS, definitions)
