"""What the models of custom resources share: the base, wire spellings, quantities, selectors, references, devices.

Models only declare what a CRD says: ``koord.api.crdgen`` reads constraints, defaults that are not None, descriptions, and ``Wire``.
Objects are read with ``koord.api.objects``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from koord.api.kinds import Kind
from koord.api.schema import INT_OR_STRING, QUANTITY_PATTERN

# Words that the API writes in capitals wherever they are not the first word of a name.
_CAPITALS = {"qos": "QOS", "be": "BE", "iops": "IOPS", "bps": "BPS", "id": "ID", "ttl": "TTL"}


def camel(name: str) -> str:
    """The wire name of an attribute: ``numa_node_id`` → ``numaNodeID``."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(_CAPITALS.get(word) or word[:1].upper() + word[1:] for word in rest)


@dataclass(frozen=True)
class Wire:
    """In ``Annotated``: keys for the OpenAPI schema of the CRD. ``replace``: they are the schema, whatever the Python type says."""

    schema: dict[str, Any]
    replace: bool = False

    def __hash__(self) -> int:
        return id(self)


class Model(BaseModel):
    """Base of every model: camelCase on the wire."""

    model_config = ConfigDict(alias_generator=camel)

    # keys that go to the schema of the object itself
    wire_schema: ClassVar[dict[str, Any]] = {}


@dataclass(frozen=True)
class Column:
    """A column of ``kubectl get``."""

    name: str
    path: str
    type: str = "string"
    description: str = ""


AGE = Column("Age", ".metadata.creationTimestamp", "date")


class Resource(Model):
    """A custom resource: metadata as it comes; what the CRD needs beyond the schema stands in class variables."""

    resource: ClassVar[Kind]
    columns: ClassVar[tuple[Column, ...]] = ()
    crd_annotations: ClassVar[dict[str, str]] = {}
    description: ClassVar[str] = ""

    api_version: str | None = Field(None, description="Versioned schema of this object.")
    kind: str | None = Field(None, description="Kind of this object.")
    metadata: Annotated[dict[str, Any], Wire({"type": "object"}, replace=True)] | None = Field(
        None, description="Standard object metadata."
    )


# ---------------------------------------------------------------- scalars


Quantity = Annotated[int | str, Wire({**INT_OR_STRING, "pattern": QUANTITY_PATTERN}, replace=True)]
ResourceList = dict[str, Quantity]
IntOrString = Annotated[int | str, Wire(INT_OR_STRING, replace=True)]
Int32 = Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1), Wire({"type": "integer", "format": "int32"}, replace=True)]
Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1), Wire({"type": "integer", "format": "int64"}, replace=True)]
Duration = str  # as Go writes it: 1h30m
Timestamp = Annotated[str, Wire({"format": "date-time"})]
# any JSON value, kept as it is; and any JSON object
AnyValue = Annotated[Any, Wire({"x-kubernetes-preserve-unknown-fields": True}, replace=True)]
AnyObject = Annotated[dict[str, Any], Wire({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, replace=True)]
Empty = Annotated[dict[str, Any], Wire({"type": "object"}, replace=True)]


# ---------------------------------------------------------------- shared structs


class LabelSelectorRequirement(Model):
    """An expression over labels."""

    key: str = Field(description="The label key that the expression is about.")
    operator: str = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: Annotated[list[str], Wire({"x-kubernetes-list-type": "atomic"})] | None = Field(
        None, description="Values for In and NotIn; empty for the others."
    )


class LabelSelector(Model):
    """A label selector. An empty one matches everything, a missing one nothing unless the field says otherwise."""

    wire_schema: ClassVar[dict[str, Any]] = {"x-kubernetes-map-type": "atomic"}

    match_labels: dict[str, str] | None = Field(None, description="Labels that must have exactly these values.")
    match_expressions: Annotated[list[LabelSelectorRequirement], Wire({"x-kubernetes-list-type": "atomic"})] | None = Field(
        None, description="Expressions that must all hold."
    )


class ObjectReference(Model):
    """A reference to an object."""

    wire_schema: ClassVar[dict[str, Any]] = {"x-kubernetes-map-type": "atomic"}

    api_version: str | None = Field(None, description="API version of the object.")
    kind: str | None = Field(None, description="Kind of the object.")
    namespace: str | None = Field(None, description="Namespace of the object.")
    name: str | None = Field(None, description="Name of the object.")
    uid: str | None = Field(None, description="UID of the object.")
    resource_version: str | None = Field(None, description="Version of the object that is meant.")
    field_path: str | None = Field(None, description="Part of the object that is meant.")


class Condition(Model):
    """A metav1.Condition."""

    type: Annotated[
        str,
        Field(
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ] = Field(description="Type of the condition in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")] = Field(
        description="A word that says why the condition is so."
    )
    message: Annotated[str, Field(max_length=32768)] = Field(description="A sentence for people about the last transition.")
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    observed_generation: Annotated[Int64, Field(ge=0)] | None = Field(
        None, description="The metadata.generation that the condition was set for."
    )


class SimpleCondition(Model):
    """A condition of koordinator's own kinds: looser than metav1.Condition."""

    type: str | None = Field(None, description="Type of the condition.")
    status: str | None = Field(None, description="True, False or Unknown.")
    reason: str | None = Field(None, description="A word that says why.")
    message: str | None = Field(None, description="A sentence for people.")
    last_probe_time: Timestamp | None = Field(None, description="When it was last looked at.")
    last_transition_time: Timestamp | None = Field(None, description="When the status last changed.")


# ---------------------------------------------------------------- devices (shared by Device and NodeMetric)


class DeviceTopology(Model):
    """Where a device hangs."""

    socket_id: Int32 = Field(description="CPU socket.")
    node_id: Int32 = Field(description="NUMA node, unique across sockets.")
    pcie_id: str = Field(description="PCIe switch, unique across NUMA nodes.")
    bus_id: str | None = Field(None, description="PCI address: domain:bus:device.function.")


class VirtualFunction(Model):
    """A virtual function."""

    minor: Int32 = Field(description="Number of the function, from 0.")
    bus_id: str | None = Field(None, description="PCI address: domain:bus:device.function.")


class VirtualFunctionGroup(Model):
    """Virtual functions that share labels."""

    labels: dict[str, str] | None = Field(None, description="Labels that select the group.")
    vfs: list[VirtualFunction] | None = Field(None, description="The functions.")


class DeviceInfo(Model):
    """One device of a node."""

    type: str | None = Field(None, description="Type of the device: gpu, rdma, fpga or another word.")
    id: str | None = Field(None, description="UUID of the device.")
    minor: Int32 | None = Field(None, description="Minor number of the device, from 0.")
    module_id: Int32 | None = Field(None, description="Physical position of the device.")
    labels: dict[str, str] | None = Field(None, description="Labels that select the device.")
    health: bool = Field(False, description="Whether the device can be used.", json_schema_extra={"wireRequired": True})
    resources: ResourceList | None = Field(None, description="What the device offers, or in a metric what is used of it.")
    topology: DeviceTopology | None = Field(None, description="Where the device hangs.")
    vf_groups: list[VirtualFunctionGroup] | None = Field(None, description="Its virtual functions, in groups.")
    conditions: list[Condition] | None = Field(None, description="Conditions of the device; Healthy is known.")
