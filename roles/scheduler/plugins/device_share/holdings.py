"""Who holds which devices of a node, and what is left (SCH-DEV-11, SCH-DEV-16).

What a node's devices are used for follows from the set of its holdings alone, so taking one away and putting it back leaves no trace.
An owner of a reservation holds its devices inside what the reservation holds: such shares count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from koord.accounting.resources import ResourceVector, add_into, format, parse
from koord.api import names
from koord.api.annotations import parse_device_allocations
from roles.scheduler.plugins.device_share.inventory import VirtualFunction

Place = tuple[str, int]
"""Type and minor of a device."""


class Share(NamedTuple):
    """What somebody has of one device. `amounts` are sorted by name."""

    type: str
    minor: int
    amounts: tuple[tuple[str, int], ...]
    functions: tuple[VirtualFunction, ...] = ()
    template: str = ""

    @property
    def place(self) -> Place:
        """Which device it is of."""
        return self.type, self.minor


Allocation = tuple[Share, ...]


class Holding(NamedTuple):
    """The shares of a pod. `owner_of` is the UID of the reservation that it uses, "" for none; `reserves` is true for a reserve pod.
    `alone` are types whose PCIe switches the pod has for itself."""

    key: str
    allocation: Allocation
    owner_of: str = ""
    reserves: bool = False
    alone: frozenset[str] = frozenset()


@dataclass(slots=True)
class Use:
    """What is used of each device, and its virtual functions that are."""

    amounts: dict[Place, ResourceVector]
    functions: dict[Place, frozenset[str]]

    def of(self, place: Place) -> ResourceVector:
        """What is used of one device."""
        return self.amounts.get(place, {})

    def busy(self, place: Place) -> bool:
        """Whether anything of the device is used."""
        return any(self.of(place).values()) or bool(self.functions.get(place))

    def frozen(self) -> tuple[object, ...]:
        """The same as something to compare by."""
        amounts = sorted((place, tuple(sorted((n, a) for n, a in used.items() if a))) for place, used in self.amounts.items())
        return tuple(item for item in amounts if item[1]), tuple(sorted((p, tuple(sorted(f))) for p, f in self.functions.items() if f))


def read_allocation(annotations: Mapping[str, str] | None) -> Allocation:
    """The shares that the annotation `device-allocated` names, none without it. Raises ValueError for one that cannot be read."""
    text = (annotations or {}).get(names.ANNOTATION_DEVICE_ALLOCATED)
    return _read(text) if text is not None else ()


@lru_cache(maxsize=4096)
def _read(text: str) -> Allocation:
    shares = []
    for kind, entries in sorted((parse_device_allocations({names.ANNOTATION_DEVICE_ALLOCATED: text}) or {}).items()):
        for entry in entries:
            extension = entry.extension
            functions = tuple(VirtualFunction(vf.bus_id, vf.minor) for vf in extension.vfs) if extension is not None else ()
            template = extension.gpu_shared_resource_template if extension is not None else ""
            shares.append(Share(kind, entry.minor, tuple(sorted(parse(entry.resources).items())), functions, template))
    return tuple(shares)


def write_allocation(allocation: Allocation, ids: Mapping[Place, str]) -> dict[str, list[dict[str, object]]]:
    """The annotation's content. `ids` are those of the Device entries."""
    content: dict[str, list[dict[str, object]]] = {}
    for share in allocation:
        entry: dict[str, object] = {"minor": share.minor, "resources": format(dict(share.amounts))}
        if ids.get(share.place):
            entry["id"] = ids[share.place]
        extension: dict[str, object] = {}
        if share.functions:
            extension["vfs"] = [{"minor": function.minor, "busID": function.bus_id} for function in share.functions]
        if share.template:
            extension["gpuSharedResourceTemplate"] = share.template
        if extension:
            entry["extension"] = extension
        content.setdefault(share.type, []).append(entry)
    return content


def use_of(holdings: Mapping[str, Holding], reserved: Mapping[str, Holding], released: frozenset[str] = frozenset()) -> Use:
    """What pods use, and what reservations keep for owners to come. `reserved` are the reservations by UID, also those that are not
    among the holdings at the moment; of the `released` ones only what owners use counts."""
    use = Use({}, {})
    for uid, holding in holdings.items():
        if uid not in reserved:
            _add(use, holding.allocation)
    for uid, reservation in reserved.items():
        if uid not in released:
            _add(use, remainder(reservation, owners_of(uid, holdings)))
    return use


def owners_of(uid: str, holdings: Mapping[str, Holding]) -> list[Holding]:
    """Holdings of the pods that use a reservation."""
    return [holding for holding in holdings.values() if holding.owner_of == uid]


def remainder(reservation: Holding, owners: Iterable[Holding]) -> Allocation:
    """What a reservation has left: its shares less its owners', never below nothing."""
    taken: dict[Place, ResourceVector] = {}
    functions: set[tuple[Place, str]] = set()
    for owner in owners:
        for share in owner.allocation:
            add_into(taken.setdefault(share.place, {}), dict(share.amounts))
            functions.update((share.place, function.bus_id) for function in share.functions)
    left = []
    for share in reservation.allocation:
        gone = taken.get(share.place, {})
        amounts_left = tuple((name, max(0, amount - gone.get(name, 0))) for name, amount in share.amounts)
        rest = tuple(function for function in share.functions if (share.place, function.bus_id) not in functions)
        left.append(share._replace(amounts=amounts_left, functions=rest))
    return tuple(left)


def _add(use: Use, allocation: Allocation) -> None:
    for share in allocation:
        add_into(use.amounts.setdefault(share.place, {}), dict(share.amounts))
        if share.functions:
            use.functions[share.place] = use.functions.get(share.place, frozenset()) | {f.bus_id for f in share.functions}
