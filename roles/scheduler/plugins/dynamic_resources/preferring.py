"""Which devices of a node are tried first where they are to be kept together and whole (SCH-DRA-19). Pure.

Devices stand together that have an attribute in common which says where they are: a PCIe root, or a NUMA node. A pod's devices are taken
from as few places as possible, and from places of which least is left over; of cards that are divided (by counters or by amounts) the one
that is used most already is used up first. So whole groups and whole cards stay for those who need them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from roles.scheduler.plugins.dynamic_resources.amounts import Amount, Amounts
from roles.scheduler.plugins.dynamic_resources.devices import DeviceId, DeviceKind, DeviceView
from roles.scheduler.plugins.dynamic_resources.pools import Pool

PLACES = ("pcieRoot", "numaNode", "numa")
"""Attributes that say where a device is, of any domain, the closest first."""
BEST_KEPT = 32
"""More than `kept` ever says."""


class Candidate(NamedTuple):
    """A device with its place in the order of all, and its pool."""

    at: int
    pool: Pool
    device: DeviceView


class InUse(NamedTuple):
    """What is in use on the node: whether a device is, what claims have of a shared one, what is left of a pool's counters."""

    taken: Callable[[DeviceId], bool]
    shared: Callable[[DeviceId], Amounts]
    left: Callable[[Pool], Mapping[tuple[str, str], Amount]]


def ranked(
    candidates: Sequence[Candidate], count: int, chosen: Iterable[DeviceView], others: Sequence[Iterable[DeviceView]], use: InUse
) -> list[Candidate]:
    """The candidates of a request for so many devices, best first. `chosen` are the pod's devices so far, `others` those that could serve
    each of its further requests."""
    near = [where(device.kind) for device in chosen]
    sizes = Counter(_group(one.device) for one in candidates if not use.taken(one.device.id))
    served = Counter(group for devices in others for group in {_group(device) for device in devices if not use.taken(device.id)})

    def key(one: Candidate) -> tuple[Any, ...]:
        device, group = one.device, _group(one.device)
        here = where(device.kind)
        together = sum((here.items() & other.items()) != set() for other in near)
        closest = sum(here.get(PLACES[0]) is not None and here.get(PLACES[0]) == other.get(PLACES[0]) for other in near)
        room = sizes[group] - count
        return -together, -closest, -served[group], room < 0, abs(room), _rest(one, use), one.at

    return sorted(candidates, key=key)


def where(kind: DeviceKind) -> Mapping[str, Any]:
    """What a kind of devices says of where it is."""
    found = {}
    for name in kind.attributes:
        ident = name.rpartition("/")[2]
        if ident in PLACES:
            found[ident] = kind.values(name)
    return found


def _group(device: DeviceView) -> Any:
    """Equal for devices that stand together: on a NUMA node if that is said, else at a PCIe root."""
    here = where(device.kind)
    return next((here[name] for name in reversed(PLACES) if name in here), None)


def _rest(one: Candidate, use: InUse) -> float:
    """How much is left of what the device is a part of, 0 to 1: of its counters, or of its own amounts."""
    device = one.device
    if device.consumes:
        left = use.left(one.pool)
        return _mean((left[name, counter], one.pool.counters[name, counter]) for name, counter, _ in device.consumes)
    if device.kind.multiple:
        used = use.shared(device.id)
        return _mean((total - used.get(name, 0), total) for name, total in device.kind.totals.items())
    return 1.0


def _mean(parts: Iterable[tuple[Amount, Amount]]) -> float:
    shares = [float(left / total) for left, total in parts if total]
    return sum(shares) / len(shares) if shares else 1.0


def kept(given: Sequence[DeviceView], devices: Iterable[DeviceView], use: InUse) -> int:
    """How well a choice keeps devices together and whole, 0 to 31: each further place of the pod's devices costs 2, each group of devices
    and each divided card that was whole before and is broken now 1."""
    devices = list(devices)
    mine = {device.id for device in given}
    groups = {_group(device) for device in given}
    cost = 2 * max(len(groups) - 1, 0)
    whole: dict[Any, bool] = {}
    rest: Counter[Any] = Counter()
    for device in devices:
        group = _group(device)
        if group in groups and group is not None:
            whole[group] = whole.get(group, True) and not _used(device, use)
            rest[group] += device.id not in mine
    cost += sum(whole[group] and rest[group] > 0 for group in whole)
    cost += sum(device.kind.multiple and not use.shared(device.id) for device in given)
    cost += sum(_breaks(device, counter_set, devices, mine, use) for device in given for counter_set in _sets(device))
    return max(BEST_KEPT - 1 - cost, 0)


def _sets(device: DeviceView) -> dict[str, float]:
    """The counter sets of which a device takes, and how much of each."""
    found: dict[str, float] = {}
    for counter_set, _, value in device.consumes:
        found[counter_set] = found.get(counter_set, 0.0) + float(value)
    return found


def _breaks(device: DeviceView, counter_set: str, devices: list[DeviceView], mine: set[DeviceId], use: InUse) -> bool:
    """Whether a part is the first one that is taken of a card."""
    parts = [other for other in devices if other.id[:2] == device.id[:2] and counter_set in _sets(other)]
    untouched = not any(_used(other, use) for other in parts if other.id not in mine)
    return untouched and _sets(device)[counter_set] < max(_sets(other)[counter_set] for other in parts)


def _used(device: DeviceView, use: InUse) -> bool:
    return use.taken(device.id) or bool(use.shared(device.id))
