"""What a Device object says of a node's devices, read once (SCH-DEV-01). Pure."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from koord.accounting.resources import ResourceVector, parse
from koord.api import names
from koord.api.annotations import AnnotationError, GPUPartition, parse_gpu_partitions
from koord.api.deprecated import rewrite_device
from koord.api.objects import Device, DeviceInfo
from koord.api.quantity import parse_value

log = logging.getLogger(__name__)

UNKNOWN_NUMA = -1
_MAX_NUMA = 1023  # what a kernel can have


class VirtualFunction(NamedTuple):
    """A virtual function of a card; sorts by address."""

    bus_id: str
    minor: int


class FunctionGroup(NamedTuple):
    """Virtual functions with common labels, ascending by address."""

    labels: Mapping[str, str]
    functions: tuple[VirtualFunction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Card:
    """One device. `amounts` are what it has, in base units; an unhealthy card has nothing. `numa` and `pcie` are None where the
    topology is not known at all, `numa` is UNKNOWN_NUMA where only the NUMA node is not."""

    type: str
    minor: int
    id: str
    healthy: bool
    amounts: ResourceVector
    labels: Mapping[str, str]
    numa: int | None
    pcie: str | None
    groups: tuple[FunctionGroup, ...]

    @property
    def shape(self) -> Hashable:
        """All that choosing looks at: cards of equal shapes are alike on every node."""
        groups = tuple((tuple(sorted(group.labels.items())), group.functions) for group in self.groups)
        labels, amounts = tuple(sorted(self.labels.items())), tuple(sorted(self.amounts.items()))
        return self.type, self.minor, self.healthy, amounts, labels, self.numa, self.pcie, groups


class Partition(NamedTuple):
    """GPUs that may be handed out together. `bandwidth` of the ring in bytes, None where it is not given."""

    minors: tuple[int, ...]
    bandwidth: int | None
    score: int


PartitionTable = Mapping[int, tuple[Partition, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Inventory:
    """The devices of a node by type, ascending by minor. `partitions` None: the object has no table. Machines of one build have equal
    `shape`s."""

    cards: Mapping[str, tuple[Card, ...]]
    partitions: PartitionTable | None
    honors_partitions: bool
    vendor: str
    model: str
    shape: bytes

    def card(self, kind: str, minor: int) -> Card | None:
        """The card of a type and minor."""
        return next((card for card in self.cards.get(kind, ()) if card.minor == minor), None)

    def same(self, other: Inventory) -> bool:
        """Whether both say the same of the same devices."""
        return self._told() == other._told()

    def _told(self) -> tuple[Any, ...]:
        return self.shape, self.vendor, self.model, tuple(card.id for of_type in self.cards.values() for card in of_type)

    def dark(self) -> Inventory:
        """The same devices, none of them healthy: the object is gone, but what runs on them still does."""
        cards = {kind: tuple(replace(c, healthy=False, amounts={}) for c in found) for kind, found in self.cards.items()}
        return replace(self, cards=cards, shape=b"dark" + self.shape)


def read_device(device: Device) -> Inventory:
    """The inventory of a Device object. Raises ValueError that names the device for amounts that cannot be read.

    A device without a minor, or with one that another of its type has, is left out with a warning; so is a malformed table of partitions.
    """
    rewrite_device(device)
    meta = device.metadata
    labels = meta.labels or {}
    found: dict[str, dict[int, Card]] = {}
    for index, info in enumerate(device.spec.devices):
        if info.minor is None or not info.type:
            log.warning("Device %s: spec.devices[%d] has no type or no minor; it is left out", meta.name, index)
            continue
        of_type = found.setdefault(info.type, {})
        if info.minor in of_type:
            log.warning("Device %s: spec.devices[%d]: duplicate minor %d of type %s", meta.name, index, info.minor, info.type)
            continue
        try:
            of_type[info.minor] = _card(info)
        except ValueError as error:
            raise ValueError(f"spec.devices[{index}] ({info.type} {info.minor}): {error}") from error
    cards = {kind: tuple(of_type[minor] for minor in sorted(of_type)) for kind, of_type in sorted(found.items())}
    partitions = _partitions(device)
    honors = labels.get(names.LABEL_NODE_GPU_PARTITION_POLICY) == names.GPU_PARTITION_POLICY_HONOR
    vendor, model = labels.get(names.LABEL_GPU_VENDOR, ""), labels.get(names.LABEL_GPU_MODEL, "")
    table = tuple(sorted(partitions.items())) if partitions is not None else None
    shape = (tuple(card.shape for of_type in cards.values() for card in of_type), table, honors)
    digest = hashlib.blake2b(repr(shape).encode(), digest_size=16).digest()
    return Inventory(cards, partitions, honors, vendor, model, digest)


def _card(info: DeviceInfo) -> Card:
    topology = info.topology
    groups = tuple(
        FunctionGroup(group.labels or {}, tuple(sorted(VirtualFunction(vf.bus_id, vf.minor) for vf in group.vfs)))
        for group in info.vf_groups
    )
    minor = info.minor
    assert minor is not None
    return Card(
        info.type, minor, info.id, info.health, parse(info.resources) if info.health else {}, info.labels or {},
        _numa(topology.node_id) if topology is not None else None, topology.pcie_id if topology is not None else None, groups,
    )  # fmt: skip


def _numa(node: int) -> int:
    return node if 0 <= node <= _MAX_NUMA else UNKNOWN_NUMA


def _partitions(device: Device) -> PartitionTable | None:
    try:
        table = parse_gpu_partitions(device.metadata.annotations)
    except AnnotationError as error:
        log.warning("Device %s: %s; it counts as absent", device.metadata.name, error)
        return None
    if table is None:
        return None
    wrong = [f"{size}: {list(p.minors)}" for size, partitions in table.items() for p in partitions if len(set(p.minors)) != size]
    if wrong:
        log.warning("Device %s: partitions of another size than their key are left out: %s", device.metadata.name, "; ".join(wrong[:4]))
    return {size: _rows(p for p in partitions if len(set(p.minors)) == size) for size, partitions in table.items()}


def _rows(partitions: Iterable[GPUPartition]) -> tuple[Partition, ...]:
    return tuple(
        Partition(
            tuple(sorted(item.minors)),
            None if item.ring_bus_bandwidth is None else parse_value(item.ring_bus_bandwidth),
            item.allocation_score,
        )
        for item in partitions
    )
