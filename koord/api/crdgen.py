"""CustomResourceDefinitions from the models (API-CRD-01, API-CRD-02): ``python -m koord.api.crdgen OUTDIR``.

A model's annotations say everything: required fields, constraints, defaults that are not None, descriptions, and ``Wire`` where the
wire has a spelling of its own (quantities, int-or-string, free objects). Schemas are structural.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from koord.api.v1alpha1 import (
    clustercolocationprofile,
    clusternetworktopology,
    device,
    elasticquota,
    elasticquotaprofile,
    nodemetric,
    noderesourcetopology,
    nodeslo,
    podgroup,
    podmigrationjob,
    recommendation,
    reservation,
    scheduleexplanation,
)
from koord.api.v1alpha1.common import Column, Model, Resource, Wire

Schema = dict[str, Any]

# Every CRD: the versions it serves, the stored one last.
CRDS: tuple[tuple[type[Resource], ...], ...] = (
    (clustercolocationprofile.ClusterColocationProfile,),
    (nodemetric.NodeMetric,),
    (nodeslo.NodeSLO,),
    (reservation.Reservation,),
    (device.Device,),
    (podmigrationjob.PodMigrationJob,),
    (clusternetworktopology.ClusterNetworkTopology,),
    (scheduleexplanation.ScheduleExplanation,),
    (elasticquota.ElasticQuota,),
    (podgroup.PodGroup,),
    (elasticquotaprofile.ElasticQuotaProfile,),
    (recommendation.Recommendation,),
    (noderesourcetopology.NodeResourceTopology, noderesourcetopology.NodeResourceTopologyV1Alpha2),
)

_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
}


class SchemaError(TypeError):
    """A model with an annotation that has no structural schema; the message names the field."""


def schema_of(annotation: Any, metadata: Iterable[Any] = ()) -> Schema:
    """The structural schema of a type with its ``Annotated`` metadata. Raises SchemaError."""
    if get_origin(annotation) is Annotated:
        inner, *own = get_args(annotation)
        return schema_of(inner, (*own, *metadata))
    extras = list(metadata)
    replaced = next((extra.schema for extra in extras if isinstance(extra, Wire) and extra.replace), None)
    schema = _bare(annotation) if replaced is None else dict(replaced)
    for extra in extras:
        _constrain(schema, extra)
    return schema


def _bare(annotation: Any) -> Schema:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return schema_of(members[0])
    elif origin is Literal:
        return {"type": "string", "enum": list(get_args(annotation))}
    elif origin is list:
        return {"type": "array", "items": schema_of(get_args(annotation)[0])}
    elif origin is dict:
        return {"type": "object", "additionalProperties": schema_of(get_args(annotation)[1])}
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return model_schema(annotation)
    elif annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    raise SchemaError(f"no structural schema for {annotation!r}")


def _constrain(schema: Schema, extra: Any) -> None:
    """Add one piece of metadata to a schema."""
    match extra:
        case Wire(schema=more, replace=False):
            schema.update(more)
        case FieldInfo():
            for nested in extra.metadata:
                _constrain(schema, nested)
        case annotated_types.Ge(ge=bound):
            _bound(schema, "minimum", bound)
        case annotated_types.Le(le=bound):
            _bound(schema, "maximum", bound)
        case annotated_types.MinLen(min_length=length):
            schema["minItems" if schema.get("type") == "array" else "minLength"] = length
        case annotated_types.MaxLen(max_length=length):
            schema["maxItems" if schema.get("type") == "array" else "maxLength"] = length
        case _:
            if pattern := getattr(extra, "pattern", None):
                schema["pattern"] = pattern


def _bound(schema: Schema, key: str, bound: Any) -> None:
    # the limits of int32 and int64 are said by the format
    if abs(bound) < (1 << 31) - 1:
        schema[key] = bound


def field_schema(field: FieldInfo) -> Schema:
    """The schema of a model's field, with its description and default."""
    annotation = field.annotation
    metadata: list[Any] = list(field.metadata)
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        # the metadata of a field typed ``X | None`` belongs to X; a union of several stays whole
        annotation = members[0] if len(members) == 1 else annotation
    schema = schema_of(annotation, metadata)
    if field.description:
        schema = {"description": field.description, **{key: value for key, value in schema.items() if key != "description"}}
    if not field.is_required() and field.default is not None:
        schema["default"] = field.default
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("wireNullable"):
        schema["nullable"] = True
    return schema


def model_schema(model: type[BaseModel]) -> Schema:
    """The schema of a model: an object."""
    properties: Schema = {}
    required: list[str] = []
    for name, field in model.model_fields.items():
        wire_name = field.alias or name
        try:
            properties[wire_name] = field_schema(field)
        except SchemaError as error:
            raise SchemaError(f"{model.__name__}.{name}: {error}") from None
        extra = field.json_schema_extra
        if field.is_required() or (isinstance(extra, dict) and extra.get("wireRequired")):
            required.append(wire_name)
    schema: Schema = {"type": "object"}
    if doc := model.__doc__:
        schema["description"] = " ".join(doc.split())
    if properties:
        schema["properties"] = dict(sorted(properties.items()))
    if required:
        schema["required"] = sorted(required)
    if issubclass(model, Model):
        schema.update(model.wire_schema)
    return schema


def _column(column: Column) -> Schema:
    entry: Schema = {"jsonPath": column.path, "name": column.name, "type": column.type}
    if column.description:
        entry["description"] = column.description
    return entry


def _version(model: type[Resource], *, stored: bool) -> Schema:
    schema = model_schema(model)
    schema["properties"]["metadata"] = {"type": "object"}  # nothing else is allowed there
    version: Schema = {"name": model.resource.version, "served": True, "storage": stored, "schema": {"openAPIV3Schema": schema}}
    if model.columns:
        version["additionalPrinterColumns"] = [_column(column) for column in model.columns]
    if "status" in model.resource.subresources:
        version["subresources"] = {"status": {}}
    return version


def crd(models: tuple[type[Resource], ...]) -> Schema:
    """The CustomResourceDefinition that serves these versions and stores the last one."""
    kind = models[-1].resource
    names: Schema = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    metadata: Schema = {"name": kind.crd_name}
    if models[-1].crd_annotations:
        metadata["annotations"] = dict(models[-1].crd_annotations)
    spec: Schema = {
        "group": kind.group,
        "names": names,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "versions": [_version(model, stored=model is models[-1]) for model in models],
    }
    if len(models) > 1:
        spec["conversion"] = {"strategy": "None"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def all_crds() -> list[Schema]:
    """Every CustomResourceDefinition."""
    return [crd(models) for models in CRDS]


def render(definition: Schema) -> str:
    """A definition as YAML."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    body: str = yaml.dump(definition, Dumper=Dumper, sort_keys=False, width=140, allow_unicode=True)
    return f"# Generated by `make crds` from koord/api/v1alpha1. Do not edit.\n---\n{body}"


def write(directory: Path) -> list[Path]:
    """Write ``<group>_<plural>.yaml`` for every CRD, remove files of that pattern that are no longer made; returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for definition in all_crds():
        spec = definition["spec"]
        path = directory / f"{spec['group']}_{spec['names']['plural']}.yaml"
        path.write_text(render(definition), encoding="utf-8")
        written.append(path)
    for stale in set(directory.glob("*_*.yaml")) - set(written):
        stale.unlink()
    return written


def main(arguments: typing.Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m koord.api.crdgen OUTDIR", file=sys.stderr)
        return 2
    for path in write(Path(arguments[0])):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
