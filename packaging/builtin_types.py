"""Makes `koord/apiserver/schema/builtin.json`, the field tables of the built-in types, from the installed `kubernetes` package.

Run `.venv/bin/python packaging/builtin_types.py` after that dependency changes. The table holds names, types and which fields are
required; descriptions stay in the package and are read from there when somebody asks for OpenAPI.

A field's type is one string: `s` string, `i` integer, `I` one of 32 bits, `n` number, `b` boolean, `t` time, `T` time with microseconds,
`q` quantity, `x` integer or string, `y` base64 bytes, `o` an object without a schema, `j` any JSON, `[…` list of, `{…` map of, else the
name of a type; `A|B`: an object of type A, or else a B; `!` at the end: required.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from typing import Any

from koord.apiserver.protobuf.decode import INLINE, INLINE_IN, member, message_name, pool
from koord.apiserver.resources import BUILTIN
from koord.apiserver.schema.builtin import TABLE

# what the package's types do not tell: quantities are strings there, micro times are times, int-or-string is an object
_QUANTITY_MAPS = {
    "limits", "requests", "capacity", "allocatable", "overhead", "hard", "used", "default", "defaultRequest", "max", "min",
    "maxLimitRequestRatio", "allocatedResources", "podFixed", "consumedCapacity",
}  # fmt: skip
_QUANTITIES = {
    "V1EmptyDirVolumeSource.sizeLimit", "V1ResourceFieldSelector.divisor", "V2MetricTarget.averageValue", "V2MetricTarget.value",
    "V2MetricValueStatus.averageValue", "V2MetricValueStatus.value", "V1CSIStorageCapacity.capacity",
    "V1CSIStorageCapacity.maximumVolumeSize", "V2HPAScalingRules.tolerance", "V1Counter.value", "V1DeviceCapacity.value",
    "V1CapacityRequestPolicy.default", "V1CapacityRequestPolicyRange.max", "V1CapacityRequestPolicyRange.min",
    "V1CapacityRequestPolicyRange.step",
}  # fmt: skip
_MICRO = {
    "V1LeaseSpec.acquireTime", "V1LeaseSpec.renewTime", "CoreV1Event.eventTime", "EventsV1Event.eventTime",
    "CoreV1EventSeries.lastObservedTime", "EventsV1EventSeries.lastObservedTime",
}  # fmt: skip
_SCHEMA = "V1JSONSchemaProps"
_SPECIAL = {
    "V1CapacityRequestPolicy.validValues": "[q",
    **{f"{_SCHEMA}.{key}": "j" for key in ("default", "example")},
    **{f"{_SCHEMA}.{key}": f"{_SCHEMA}|b" for key in ("additionalItems", "additionalProperties")},
    f"{_SCHEMA}.enum": "[j",
    f"{_SCHEMA}.items": f"{_SCHEMA}|[{_SCHEMA}",
    f"{_SCHEMA}.dependencies": f"{{{_SCHEMA}|[s",
}
_NAMES = {
    ("", "Event"): "CoreV1Event",
    ("events.k8s.io", "Event"): "EventsV1Event",
    ("autoscaling", "HorizontalPodAutoscaler"): "V2HorizontalPodAutoscaler",
    ("resource.k8s.io", "ResourceClaim"): "ResourceV1ResourceClaim",
}
_EXTRA = ("V1Eviction", "V1Scale", "V1DeleteOptions", "AuthenticationV1TokenRequest")
_SCALARS = {"str": "s", "int": "i", "float": "n", "bool": "b", "datetime": "t", "bytes": "y", "object": "o", "date": "t"}


def _type(text: str, owner: str, field: str, annotation: str) -> str:
    """The short form of one entry of `openapi_types`."""
    if f"{owner}.{field}" in _SPECIAL:
        return _SPECIAL[f"{owner}.{field}"]
    if text.startswith("List["):
        return "[" + _type(text[5:-1], owner, "", annotation)
    if text.startswith("Dict["):
        inner = text[5:-1].split(",", 1)[1].strip()
        if inner == "str" and field in _QUANTITY_MAPS:
            return "{q"
        return "{" + _type(inner, owner, "", annotation)
    if f"{owner}.{field}" in _QUANTITIES:
        return "q"
    if f"{owner}.{field}" in _MICRO:
        return "T"
    if text == "object" and "int" in annotation and "str" in annotation:
        return "x"
    return _SCALARS.get(text, text)


def _walk(models: Any, name: str, out: dict[str, dict[str, str]]) -> None:
    if name in out:
        return
    model = getattr(models, name)
    fields: dict[str, str] = {}
    out[name] = fields
    by_wire = {(info.serialization_alias or attr): info for attr, info in model.model_fields.items()}
    for attr, wire in model.attribute_map.items():
        info = by_wire[wire]
        short = _type(model.openapi_types[attr], name, wire, str(info.annotation))
        fields[wire] = short + ("!" if info.is_required() else "")
        ref = re.sub(r"^[\[{]+|\|.*", "", short)
        if len(ref) > 1:
            _walk(models, ref, out)


def _members(message: Any) -> dict[str, Any]:
    """The fields of a message by their names in JSON, where embedded structs have none of their own."""
    found: dict[str, Any] = {}
    for field in message.fields:
        inner = field.message_type is not None and (field.name in INLINE or field.full_name in INLINE_IN)
        found |= _members(field.message_type) if inner else {member(field): field}
    return found


def _narrow(name: str, message: Any, types: dict[str, dict[str, str]], seen: set[str]) -> None:
    """Tell integers of 32 bits from the others, which the package does not: the published protobuf messages do."""
    members = _members(message)
    for wire, short in types[name].items() if name not in seen else ():
        seen.add(name)
        field = members.get(wire)
        if field is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            field = field.message_type.fields_by_name["value"]
        bare = short.strip("[{!")
        if bare == "i" and field.type == field.TYPE_INT32:
            types[name][wire] = short.replace("i", "I")
        elif bare in types and field.message_type is not None:
            _narrow(bare, field.message_type, types, seen)


def model_name(group: str, version: str, kind: str) -> str:
    """The class of the `kubernetes` package for a kind."""
    return _NAMES.get((group, kind), f"{version[:1].upper()}{version[1:]}{kind}")


def build() -> dict[str, Any]:
    """The whole table."""
    models = importlib.import_module("kubernetes.client.models")
    types: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    for group, version, kind, *_ in BUILTIN:
        name = model_name(group, version, kind)
        _walk(models, name, types)
        kinds[f"{group}/{version}/{kind}"] = name
    for name in _EXTRA:
        _walk(models, name, types)
    seen: set[str] = set()
    for kind, name in {**kinds, "autoscaling/v1/Scale": "V1Scale"}.items():
        with contextlib.suppress(KeyError):  # definitions and some reviews are in no published message
            message = pool().FindMessageTypeByName(message_name(*kind.removeprefix("/").rsplit("/", 1)))
            _narrow(name, message, types, seen)
    return {"kinds": kinds, "types": dict(sorted(types.items()))}


def main() -> None:
    text = json.dumps(build(), separators=(",", ":"))
    TABLE.write_text(text.replace('"V', '\n"V') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
