"""All that a pod says about devices: amounts, hints, joint allocation, partitions (SCH-DEV-02, SCH-DEV-10). Pure, kept with the shape."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from koord.api import annotations as api
from koord.api import names
from koord.api.quantity import parse_value
from koord.api.selectors import Selector, SelectorError, from_label_selector
from roles.scheduler.cluster.podinfo import PodShape
from roles.scheduler.plugins.device_share.amounts import GPU, WHOLE, InvalidRequest, Wanted, wanted_of

APPLY_FOR_ALL: Final = "ApplyForAll"
REQUESTS_AS_COUNT: Final = "RequestsAsCount"
DEVICE_LEVEL: Final = "DeviceLevel"
PCIE_LEVEL: Final = "PCIeLevel"
SAME_PCIE: Final = "SamePCIe"
RESTRICTED: Final = "Restricted"
BEST_EFFORT: Final = "BestEffort"

SCOPE_DEVICE, SCOPE_PCIE, SCOPE_NODE = (api.DEVICE_SCOPE_RANK[name] for name in ("Device", "PCIe", "Node"))


@dataclass(frozen=True, slots=True)
class Hint:
    """What a pod says about one type. `scope` is the rank of the required topology scope, 0 for none; None as selector takes any device,
    None as `functions` wants no virtual function."""

    selector: Selector | None = None
    functions: Selector | None = None
    scope: int = 0
    for_all: bool = False
    alone_on_switch: bool = False


NO_HINT = Hint()


@dataclass(frozen=True, slots=True)
class Joint:
    """Types to be had close together, the leading one first."""

    types: tuple[str, ...]
    same_pcie: bool


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The pod keeps to GPU partitions. `bandwidth` of the ring in bytes, 0 for any."""

    restricted: bool
    bandwidth: int


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a pod asks for. Requests with equal `key`s are alike."""

    wanted: tuple[Wanted, ...]
    hints: Mapping[str, Hint]
    joint: Joint | None
    partition: PartitionSpec | None
    provider: str
    key: Hashable

    def hint(self, kind: str) -> Hint:
        """The hint of a type."""
        return self.hints.get(kind, NO_HINT)

    def of(self, kind: str) -> Wanted | None:
        """What is wanted of a type."""
        return next((wanted for wanted in self.wanted if wanted.type == kind), None)

    @property
    def alone(self) -> frozenset[str]:
        """Types whose PCIe switches the pod wants for itself."""
        return frozenset(kind for kind, hint in self.hints.items() if hint.alone_on_switch)

    @property
    def plain(self) -> bool:
        """Whether counting devices with enough left decides, without looking at which ones they are."""
        return not self.hints and self.joint is None and self.partition is None and not self.provider


def request_of(shape: PodShape) -> DeviceRequest | None:
    """The request of a pod; None for one without devices. Raises InvalidRequest with what is wrong and what is accepted."""
    wanted = wanted_of(shape.amounts)
    if not wanted:
        return None
    annotations = shape.annotations
    try:
        hints = {kind: _hint(kind, hint) for kind, hint in (api.parse_device_hints(annotations) or {}).items()}
        partition = _partition(annotations)
        joint = api.parse_device_joint_allocate(annotations)
    except api.AnnotationError as error:
        raise InvalidRequest(str(error)) from error
    requested = {item.type for item in wanted}
    hints = {kind: hint for kind, hint in hints.items() if kind in requested}
    wanted = tuple(_with_strategy(item, *hints[item.type][1:]) if item.type in hints else item for item in wanted)
    compiled = {kind: hint for kind, (hint, _, _) in hints.items() if hint != NO_HINT}
    near = None
    if joint is not None:
        if joint.required_scope not in ("", SAME_PCIE):
            raise _bad(names.ANNOTATION_DEVICE_JOINT_ALLOCATE, "requiredScope", joint.required_scope, SAME_PCIE)
        left = tuple(kind for kind in dict.fromkeys(joint.device_types) if kind in requested and not compiled.get(kind, NO_HINT).for_all)
        near = Joint(left, joint.required_scope == SAME_PCIE) if len(left) > 1 else None
    provider = shape.labels.get(names.LABEL_GPU_ISOLATION_PROVIDER, "") if GPU in requested else ""
    texts = tuple(
        annotations.get(key, "")
        for key in (names.ANNOTATION_DEVICE_ALLOCATE_HINT, names.ANNOTATION_DEVICE_JOINT_ALLOCATE, names.ANNOTATION_GPU_PARTITION_SPEC)
    )
    return DeviceRequest(wanted, compiled, near, partition, provider, (wanted, texts, provider))


def _bad(key: str, where: str, value: str, accepted: str) -> InvalidRequest:
    return InvalidRequest(f"annotation {key}: {where} {value!r} is not known; accepted: {accepted}")


def _hint(kind: str, hint: api.DeviceHint) -> tuple[Hint, str, str]:
    """The compiled hint with its strategy and exclusive policy."""
    key = names.ANNOTATION_DEVICE_ALLOCATE_HINT
    try:
        selector = from_label_selector(hint.selector) if hint.selector is not None else None
        functions = from_label_selector(hint.vf_selector) if hint.vf_selector is not None else None
    except SelectorError as error:
        raise InvalidRequest(f"annotation {key}: {kind}: {error}") from error
    strategy, exclusive, scope = hint.allocate_strategy, hint.exclusive_policy, hint.required_topology_scope
    if strategy not in ("", APPLY_FOR_ALL, REQUESTS_AS_COUNT):
        raise _bad(key, f"{kind}.allocateStrategy", strategy, f"{APPLY_FOR_ALL}, {REQUESTS_AS_COUNT}")
    if exclusive not in ("", DEVICE_LEVEL, PCIE_LEVEL):
        raise _bad(key, f"{kind}.exclusivePolicy", exclusive, f"{DEVICE_LEVEL}, {PCIE_LEVEL}")
    if scope and scope not in api.DEVICE_SCOPE_RANK:
        raise _bad(key, f"{kind}.requiredTopologyScope", scope, ", ".join(api.DEVICE_SCOPE_RANK))
    for_all = strategy == APPLY_FOR_ALL and kind != GPU
    compiled = Hint(selector, functions, api.DEVICE_SCOPE_RANK.get(scope, 0), for_all, exclusive == PCIE_LEVEL)
    return compiled, strategy, exclusive


def _with_strategy(wanted: Wanted, strategy: str, exclusive: str) -> Wanted:
    """RequestsAsCount: the amount is a number of devices, one unit of each, or all of each where nobody else may use it."""
    if wanted.type == GPU or strategy != REQUESTS_AS_COUNT or wanted.count > 1:
        return wanted
    ((name, amount),) = wanted.unit
    return replace(wanted, count=amount, unit=((name, WHOLE if exclusive == DEVICE_LEVEL else 1),))


def _partition(annotations: Mapping[str, str]) -> PartitionSpec | None:
    spec = api.parse_gpu_partition_spec(annotations)
    if spec is None:
        return None
    if spec.allocate_policy not in ("", RESTRICTED, BEST_EFFORT):
        raise _bad(names.ANNOTATION_GPU_PARTITION_SPEC, "allocatePolicy", spec.allocate_policy, f"{RESTRICTED}, {BEST_EFFORT}")
    return PartitionSpec(spec.allocate_policy == RESTRICTED, parse_value(spec.ring_bus_bandwidth or 0))


_MEMO = "DeviceShare"


def request_for(shape: PodShape) -> DeviceRequest | InvalidRequest | None:
    """`request_of`, worked out once for each shape; an invalid request comes back as what is wrong with it."""
    found: Any = shape.memo.get(_MEMO, _MEMO)
    if found is _MEMO:
        try:
            found = request_of(shape)
        except InvalidRequest as error:
            found = error
        shape.memo[_MEMO] = found
    answer: DeviceRequest | InvalidRequest | None = found
    return answer
