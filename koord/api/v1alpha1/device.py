"""Device: the devices of a node and who holds them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from koord.api import kinds
from koord.api.v1alpha1.common import DeviceInfo, Int32, Model, Resource


class DeviceSpec(Model):
    """Devices of a node."""

    devices: list[DeviceInfo] | None = Field(None, description="The devices.")


class DeviceAllocationItem(Model):
    """Who holds which devices."""

    name: str | None = Field(None, description="Name of the holder.")
    namespace: str | None = Field(None, description="Namespace of the holder.")
    uuid: str | None = Field(None, description="UID of the holder.")
    minors: list[Int32] | None = Field(None, description="Minor numbers of the devices.")


class DeviceAllocation(Model):
    """Allocations of a device type."""

    type: str | None = Field(None, description="Type of the devices.")
    entries: list[DeviceAllocationItem] | None = Field(None, description="Who holds which.")


class DeviceStatus(Model):
    """Allocations on the node."""

    allocations: list[DeviceAllocation] | None = Field(None, description="Allocations by device type.")


class Device(Resource):
    """Devices of a node; the object has the node's name."""

    resource: ClassVar[kinds.Kind] = kinds.DEVICES

    spec: DeviceSpec | None = Field(None, description="The devices of the node.")
    status: DeviceStatus | None = Field(None, description="Who holds them.")
