"""NodeResourceTopology: resources of a node by NUMA zone. Koordinator reads and writes v1alpha1; v1alpha2 is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import AGE, Column, Int64, Model, Quantity, Resource

APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}


class CostInfo(Model):
    """Distance to another zone."""

    name: str = Field(description="Name of the other zone.")
    value: Int64 = Field(description="The distance.")


class AttributeInfo(Model):
    """A fact."""

    name: str = Field(description="Name of the fact.")
    value: str = Field(description="The fact.")


class ResourceInfo(Model):
    """A resource of a zone."""

    name: str = Field(description="Name of the resource.")
    capacity: Quantity = Field(description="What the zone has.")
    allocatable: Quantity = Field(description="What pods may use of it.")
    available: Quantity = Field(description="What is left of that.")


class Zone(Model):
    """A part of the node."""

    name: str = Field(description="Name of the zone; NUMA zones are called node-<id>.")
    type: str = Field(description="Type of the zone; Node for NUMA zones.")
    parent: str | None = Field(None, description="Name of the zone above.")
    costs: list[CostInfo] | None = Field(None, description="Distances to other zones.")
    attributes: list[AttributeInfo] | None = Field(None, description="Facts about the zone.")
    resources: list[ResourceInfo] | None = Field(None, description="Resources of the zone.")


class NodeResourceTopology(Resource):
    """Resources of a node by zone (v1alpha1); the object has the node's name."""

    resource: ClassVar[kinds.Kind] = kinds.NODERESOURCETOPOLOGIES
    crd_annotations: ClassVar[dict[str, str]] = APPROVED
    columns: ClassVar[tuple[Column, ...]] = (Column("Policies", ".topologyPolicies"), AGE)

    topology_policies: list[str] = Field(description="Topology policies of the kubelet.")
    zones: list[Zone] = Field(description="The zones.")


class NodeResourceTopologyV1Alpha2(Resource):
    """Resources of a node by zone (v1alpha2); the object has the node's name."""

    resource: ClassVar[kinds.Kind] = replace(kinds.NODERESOURCETOPOLOGIES, version="v1alpha2")
    crd_annotations: ClassVar[dict[str, str]] = APPROVED
    columns: ClassVar[tuple[Column, ...]] = (Column("Policies", ".topologyPolicies"), AGE)

    topology_policies: list[str] | None = Field(None, description="Topology policies of the kubelet; attributes say the same.")
    zones: list[Zone] = Field(description="The zones.")
    attributes: list[AttributeInfo] | None = Field(None, description="Facts about the node.")
