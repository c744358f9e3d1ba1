"""Projections of dynamic resource allocation (`resource.k8s.io/v1`): claims, templates, classes and slices. See ``koord.api.objects``."""

from __future__ import annotations

from typing import Any

from msgspec import field

from koord.api.objects_cluster import Taint
from koord.api.objects_meta import Condition, Object, ObjectMeta, Projection, ResourceList
from koord.api.objects_pod import NodeSelector, Toleration

Raw = dict[str, Any]


class CELDeviceSelector(Projection):
    """An expression over one device."""

    expression: str = ""


class DeviceSelector(Projection):
    """One selector; None is a sort that is not known here."""

    cel: CELDeviceSelector | None = None


class DeviceToleration(Toleration):
    """A taint of devices that a request bears."""


class CapacityRequirements(Projection):
    """Amounts that a request needs of each of its devices."""

    requests: ResourceList = {}


class DeviceSubRequest(Projection):
    """What a request wants, or one of its alternatives (then with a name)."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Projection):
    """One request of a claim: either `exactly`, or the first of `first_available` that can be had."""

    name: str = ""
    exactly: DeviceSubRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Projection):
    """What the devices of some requests (none named: of all) have in common, or do not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Projection):
    """Parameters for a driver."""

    requests: tuple[str, ...] = ()
    opaque: Raw | None = None


class DeviceClaim(Projection):
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(Projection):
    """resource/v1 ResourceClaimSpec."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Projection):
    """One device that was allocated."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: ResourceList = {}
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class DeviceAllocationResult(Projection):
    """The devices of a claim."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()


class AllocationResult(Projection):
    """What a claim got, and the nodes from which that can be used (None: all)."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class AllocatedDeviceStatus(Projection):
    """What its driver says of an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()


class ResourceClaimConsumerReference(Projection):
    """Who may use a claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Projection):
    """resource/v1 ResourceClaimStatus."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Object):
    """resource/v1 ResourceClaim."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Projection):
    """What claims are made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object):
    """resource/v1 ResourceClaimTemplate."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(Projection):
    """resource/v1 DeviceClassSpec."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object):
    """resource/v1 DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class Counter(Projection):
    """An amount of a shared counter."""

    value: str | int | float = "0"


class CounterSet(Projection):
    """Counters of a pool that its devices share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(Projection):
    """What a device takes of a counter set while it is allocated."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}


class CapacityRequestPolicyRange(Projection):
    """Amounts from `min` to `max`, in steps."""

    min: str | int | float | None = None
    max: str | int | float | None = None
    step: str | int | float | None = None


class CapacityRequestPolicy(Projection):
    """Which amounts of a capacity can be asked for."""

    default: str | int | float | None = None
    valid_values: tuple[str | int | float, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Projection):
    """How much of something a device has."""

    value: str | int | float = "0"
    request_policy: CapacityRequestPolicy | None = None


class DeviceTaint(Taint):
    """Why a device is not for everybody."""


class DeviceTaintSelector(Projection):
    """Devices of a rule: those that are all of what is said; with nothing said all devices."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Projection):
    """resource/v1 DeviceTaintRuleSpec. Without a selector it is about no device."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Object):
    """resource/v1 DeviceTaintRule; v1beta2 is the same."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class Device(Projection):
    """One device of a slice. `attributes` are as the API has them: {"string": "a"} and the like."""

    name: str = ""
    attributes: dict[str, Raw] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(Projection):
    """To which pool a slice belongs, in which generation, and how many slices that has."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Projection):
    """resource/v1 ResourceSliceSpec."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object):
    """resource/v1 ResourceSlice."""

    spec: ResourceSliceSpec = ResourceSliceSpec()
