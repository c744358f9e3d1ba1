"""Validation of CustomResourceDefinitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from koord.apiserver.errors import Cause, duplicate, field_forbidden, invalid_value, not_supported, required, too_many
from koord.apiserver.schema.builtin import Path_
from koord.apiserver.schema.lists import repeats
from koord.apiserver.schema.rules import checking, making, updating, warning
from koord.apiserver.schema.structural import Structural, compiled_pattern, structural
from koord.apiserver.store import Obj
from koord.apiserver.validation.names import check_name, dns_1035_label
from koord.kube.patch import json_equal

if TYPE_CHECKING:
    from koord.apiserver.cel.rules import RuleNode


_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPES = ("atomic", "map", "set")
_RIGHT: set[tuple[bytes, str]] = set()  # schemas in which nothing was wrong, and where they stood
_REMEMBERED = 256


def check_schema(schema: Obj, path: str, causes: list[Cause]) -> None:
    """Each specified node needs a type (or says that it is free), lists need the schema of their items, and defaults must hold."""
    if schema.get("$ref"):
        causes.append(field_forbidden(f"{path}.$ref", "$ref is not supported"))
        return
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    kind = schema.get("type")
    if not kind and not free:
        causes.append(required(f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        causes.append(not_supported(f"{path}.type", kind, _TYPES))
        return
    if kind == "array" and not isinstance(schema.get("items"), dict):
        causes.append(required(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties"):
        causes.append(field_forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"))
    if schema.get("uniqueItems"):
        causes.append(field_forbidden(f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity is quadratic"))
    _list_type(schema, path, causes)
    _extensions(schema, path, causes)
    _junctors(schema, path, causes)
    try:
        compiled_pattern(schema.get("pattern") or "")
    except ValueError as error:
        causes.append(invalid_value(f"{path}.pattern", schema["pattern"], f"must be a valid regular expression, but isn't: {error}"))
    for name, inner in (schema.get("properties") or {}).items():
        check_schema(inner, f"{path}.properties[{name}]", causes)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            check_schema(schema[key], f"{path}.{key}", causes)
    if schema.get("default") is not None and not causes:
        wrong: list[Cause] = []
        Structural(schema).validate(schema["default"], None, wrong)
        causes += [invalid_value(f"{path}.default{'.' + c.field if c.field else ''}", schema["default"], c.message) for c in wrong]


_FREE, _EMBEDDED, _INT_OR_STRING = (f"x-kubernetes-{name}" for name in ("preserve-unknown-fields", "embedded-resource", "int-or-string"))


def _extensions(schema: Obj, path: str, causes: list[Cause]) -> None:
    """What Kubernetes adds to JSON Schema, and does not take together."""
    where = f"{path}.{_FREE}"
    if schema.get(_FREE) is False:
        causes.append(invalid_value(where, False, "must be true or undefined"))
    if schema.get(_INT_OR_STRING):
        text = f"must be false if {_INT_OR_STRING} is true"
        causes += [invalid_value(f"{path}.{key}", True, text) for key in (_FREE, _EMBEDDED) if schema.get(key)]
    if schema.get(_EMBEDDED):
        if schema.get("type") != "object":
            causes.append(invalid_value(f"{path}.type", schema.get("type", ""), f"must be object if {_EMBEDDED} is true"))
        if not schema.get(_FREE) and not schema.get("properties"):
            causes.append(required(f"{path}.properties", f"must not be empty if {_EMBEDDED} is true without {_FREE}"))


# what a schema says of the shape of a value, which another that it has to fit as well may not
_SHAPING = {
    "type": "empty", "additionalProperties": "undefined", "default": "undefined", "title": "empty", "description": "empty",
    "nullable": "false", _FREE: "false", _EMBEDDED: "false", _INT_OR_STRING: "false", "x-kubernetes-list-map-keys": "empty",
    "x-kubernetes-list-type": "undefined", "x-kubernetes-map-type": "undefined", "x-kubernetes-validations": "empty",
}  # fmt: skip
_NUMBER_OR_TEXT = [{"type": "integer"}, {"type": "string"}]


def _junctors(schema: Obj, path: str, causes: list[Cause], *, inside: bool = False) -> None:
    """The other schemas that a value has to fit do not speak of its shape, but for being a number or a text; `inside` one not of that."""
    for key in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(key) or []
        for i, inner in enumerate(listed):
            if not inside and key == "anyOf" and listed == _NUMBER_OR_TEXT:
                continue
            if not inside and key == "allOf" and i == 0 and inner.get("anyOf") == _NUMBER_OR_TEXT:
                inner = {**inner, "anyOf": None}
            _check_nested(inner, f"{path}.{key}[{i}]", causes)
    if isinstance(schema.get("not"), dict):
        _check_nested(schema["not"], f"{path}.not", causes)


def _check_nested(schema: Obj, path: str, causes: list[Cause]) -> None:
    causes += [field_forbidden(f"{path}.{key}", f"must be {what} to be structural") for key, what in _SHAPING.items() if schema.get(key)]
    _junctors(schema, path, causes, inside=True)
    for name, inner in (schema.get("properties") or {}).items():
        if name == "metadata":
            causes.append(field_forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context"))
        _check_nested(inner, f"{path}.properties[{name}]", causes)
    if isinstance(schema.get("items"), dict):
        _check_nested(schema["items"], f"{path}.items", causes)


def rules_of(root: Structural, path: str, causes: list[Cause]) -> RuleNode | None:
    """The compiled CEL rules of a schema, None where it has none; mistakes become causes."""
    if not root.has_rules:
        return None
    from koord.apiserver.cel.rules import compile_rules

    return compile_rules(root, path, causes)


def _check_root(schema: Obj, where: str, causes: list[Cause]) -> None:
    """A whole schema; one that was found right is not walked again."""
    known = orjson.dumps(schema), where
    if known in _RIGHT:
        return
    before = len(causes)
    check_schema(schema, where, causes)
    if len(causes) == before:
        rules_of(structural(schema), where, causes)
    if not causes:
        if len(_RIGHT) >= _REMEMBERED:
            _RIGHT.clear()
        _RIGHT.add(known)


def _list_type(schema: Obj, path: str, causes: list[Cause]) -> None:
    """Keys of a list that is a map must be in every item: required, or with a default."""
    kind = schema.get("x-kubernetes-list-type")
    if kind is None:
        return
    if kind not in _LIST_TYPES:
        causes.append(not_supported(f"{path}.x-kubernetes-list-type", kind, _LIST_TYPES))
    if kind != "map":
        return
    given = schema.get("items")
    items = given if isinstance(given, dict) else {}
    if items.get("type") != "object":
        causes.append(
            invalid_value(f"{path}.items.type", items.get("type", ""), "must be object if parent array's x-kubernetes-list-type is map")
        )
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys:
        causes.append(required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"))
    properties, needed = items.get("properties") or {}, frozenset(items.get("required") or ())
    for key in keys or ():
        found = properties.get(key)
        if found is None:
            causes.append(invalid_value(f"{path}.x-kubernetes-list-map-keys", key, "entries must all be names of item properties"))
        elif key not in needed and found.get("default") is None:
            text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            causes.append(required(f"{path}.items.properties[{key}].default", text))


_APPROVED = "api-approved.kubernetes.io"
_REVIEW = "see https://github.com/kubernetes/enhancements/pull/1111"
_MOST_SELECTABLE = 8
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


def protected(group: str) -> bool:
    """Whether a group is of the Kubernetes community, whose APIs are reviewed."""
    return f".{group}".endswith((".k8s.io", ".kubernetes.io"))


def approval(meta: Obj) -> tuple[str, str]:
    """(state, what it means) of the annotation by which the API of a protected group is approved: Approved, Unapproved (which is said
    openly, and allowed), Missing or Invalid."""
    given = (meta.get("annotations") or {}).get(_APPROVED) or ""
    if not given:
        return "Missing", f'protected groups must have approval annotation "{_APPROVED}", {_REVIEW}'
    if given.startswith("unapproved"):
        return "Unapproved", f"not approved: {orjson.dumps(given).decode()}"
    try:
        url = urlsplit(given)
    except ValueError:
        url = urlsplit("")
    if url.scheme and url.netloc:
        return "Approved", f"approved in {given}"
    how = 'with either a URL or a reason starting with "unapproved"'
    return "Invalid", f'protected groups must have approval annotation "{_APPROVED}" {how}, {_REVIEW}'


@warning("V1CustomResourceDefinition")
def _unconverted(obj: Obj, warnings: list[str]) -> None:
    """Versions that a webhook is to convert, which nobody calls: reads and watches of this server wait for nobody."""
    spec = obj.get("spec") or {}
    if (spec.get("conversion") or {}).get("strategy") == "Webhook" and len(spec.get("versions") or ()) > 1:
        warnings.append(
            "this API server does not call conversion webhooks: it shows an object of one version unchanged in the others, "
            "where the next write drops what their schemas do not have"
        )


@checking("V1CustomResourceDefinition")
def _definition(obj: Obj, path: Path_, causes: list[Cause]) -> None:
    """Names, versions and schemas."""
    spec = obj.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group") or ""
    plural = names.get("plural") or ""
    # names that were accepted are of the same type, and may lack
    causes += [required(f"spec.names.{key}") for key in ("plural", "kind") if not names.get(key)]
    if group and "." not in group:
        causes.append(invalid_value("spec.group", group, "should be a domain with at least one dot"))
    if obj["metadata"].get("name") != f"{plural}.{group}":
        causes.append(invalid_value("metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group'))
    if plural:
        check_name(dns_1035_label, plural, "spec.names.plural", causes)
    kind = names.get("kind") or ""
    for key, default in (("kind", kind), ("singular", kind.lower()), ("listKind", f"{kind}List")):
        name = names.get(key) or default
        if kind and (wrong := dns_1035_label(name.lower())):
            causes.append(invalid_value(f"spec.names.{key}", name, wrong))
    if kind and kind == names.get("listKind"):
        causes.append(invalid_value("spec.names.listKind", names["listKind"], "kind and listKind may not be the same"))
    if spec.get("preserveUnknownFields"):
        text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        causes.append(invalid_value("spec.preserveUnknownFields", True, text))
    conversion = spec.get("conversion") or {}
    for key, shown in (("clientConfig", "webhookClientConfig"), ("conversionReviewVersions", "conversionReviewVersions")):
        if conversion.get("strategy") == "Webhook" and not (conversion.get("webhook") or {}).get(key):
            causes.append(required(f"spec.conversion.{shown}", "required when strategy is set to Webhook"))
    _versions(spec.get("versions") or [], causes)
    served = {version.get("name") for version in spec.get("versions") or ()}
    for i, name in enumerate((obj.get("status") or {}).get("storedVersions") or ()):
        if name not in served:
            causes.append(invalid_value(f"status.storedVersions[{i}]", name, "must appear in spec.versions"))


@making("V1CustomResourceDefinition")
def _made(obj: Obj, causes: list[Cause]) -> None:
    _approved(obj, causes)
    _schemas((obj.get("spec") or {}).get("versions") or [], [], causes)


@updating("V1CustomResourceDefinition")
def _changed(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """What was wrong before need not be mended by whoever changes something else: what is refused since then locks no definition."""
    if approval(new["metadata"])[0] != approval(old["metadata"])[0]:
        _approved(new, causes)
    known = [version.get("schema") for version in (old.get("spec") or {}).get("versions") or ()]
    _schemas((new.get("spec") or {}).get("versions") or [], known, causes)


def _approved(obj: Obj, causes: list[Cause]) -> None:
    """APIs of protected groups are approved, or say openly that they are not."""
    state, text = approval(obj["metadata"])
    if protected((obj.get("spec") or {}).get("group") or "") and state in ("Missing", "Invalid"):
        where = f"metadata.annotations[{_APPROVED}]"
        given = (obj["metadata"].get("annotations") or {}).get(_APPROVED)
        causes.append(required(where, text) if state == "Missing" else invalid_value(where, given, text))


def _versions(versions: list[Obj], causes: list[Cause]) -> None:
    stored = 0
    seen: set[str] = set()
    for i, version in enumerate(versions):
        path = f"spec.versions[{i}]"
        name = version.get("name") or ""
        if not name or dns_1035_label(name):
            causes.append(invalid_value(f"{path}.name", name, dns_1035_label(name) or "must not be empty"))
        if name in seen:
            causes.append(invalid_value("spec.versions", name, "must contain unique version names"))
        seen.add(name)
        stored += bool(version.get("storage"))
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            causes.append(required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
        _presentation(version, "spec" if len(versions) == 1 else path, causes)
    if versions and stored != 1:
        causes.append(
            invalid_value("spec.versions", [v.get("name") for v in versions], "must have exactly one version marked as storage version")
        )


def _schemas(versions: list[Obj], known: list[Obj | None], causes: list[Cause]) -> None:
    """The schemas of the versions, but for those that are known."""
    for i, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None or any(json_equal(version["schema"], one) for one in known):
            continue
        # what one version alone says is shown as said of the whole
        where = "spec.validation.openAPIV3Schema" if len(versions) == 1 else f"spec.versions[{i}].schema.openAPIV3Schema"
        if schema.get("type") != "object":
            causes.append(invalid_value(f"{where}.type", schema.get("type", ""), "must be object at the root"))
        inner = ((schema.get("properties") or {}).get("metadata") or {}).get("properties") or {}
        if not inner.keys() <= {"name", "generateName"}:
            text = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            causes.append(field_forbidden(f"{where}.properties[metadata]", text))
        if schema.get("additionalProperties") is not None:
            causes.append(field_forbidden(f"{where}.additionalProperties", "must not be used at the root"))
        _check_root(schema, where, causes)


def _selectable(version: Obj, path: str, causes: list[Cause]) -> None:
    """The fields that field selectors may name."""
    listed = [str(field.get("jsonPath") or "") for field in version.get("selectableFields") or ()]
    if len(listed) > _MOST_SELECTABLE:
        causes.append(too_many(path, len(listed), _MOST_SELECTABLE))
    again = frozenset(repeats(listed))
    for i, text in enumerate(listed):
        where = f"{path}[{i}].jsonPath"
        node: Any = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        for key in text.split(".")[1:]:
            inner = (node.get("properties") or {}).get(key) or node.get("additionalProperties")
            node = inner if isinstance(inner, dict) else {}
        if not text:
            causes.append(required(where))
        elif i in again:
            causes.append(duplicate(where, text))
        elif text[0] not in ".[":
            causes.append(invalid_value(where, text, f"is an invalid path: expected [ or . but got: {text.partition('.')[0]}"))
        elif "[" in text:
            causes.append(invalid_value(where, text, "is an invalid path: array notation is not allowed"))
        elif not node or text.split(".")[1] in ("apiVersion", "kind", "metadata"):
            causes.append(invalid_value(where, text, "is an invalid path: does not refer to a valid field"))
        elif node.get("type") not in ("boolean", "integer", "string"):
            why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
            causes.append(invalid_value(where, text, why))


def _presentation(version: Obj, path: str, causes: list[Cause]) -> None:
    """The paths of the scale subresource, the fields that selectors may name, and the columns that kubectl prints."""
    _selectable(version, f"{path}.selectableFields", causes)
    scale = (version.get("subresources") or {}).get("scale") or {}
    for key, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        if scale and not str(scale.get(key, "")).startswith(root):
            text = f"should be a json path under {root[:-1]}"
            causes.append(invalid_value(f"{path}.subresources.scale.{key}", scale.get(key, ""), text))
    for i, column in enumerate(version.get("additionalPrinterColumns") or ()):
        where = f"{path}.additionalPrinterColumns[{i}]"
        if not column.get("name"):
            causes.append(required(f"{where}.name"))
        if column.get("type") not in _COLUMN_TYPES:
            causes.append(not_supported(f"{where}.type", column.get("type") or "", _COLUMN_TYPES))
        if not str(column.get("jsonPath", "")).startswith("."):
            causes.append(invalid_value(f"{where}.JSONPath", column.get("jsonPath", ""), "must be a simple json path starting with ."))
