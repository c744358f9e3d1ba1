"""Pools as a node sees them: of the newest generation, complete or not, with the counters that their devices share (SCH-DRA-01,
SCH-DRA-06). Pure; in the order in which devices are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from roles.scheduler.plugins.dynamic_resources.devices import DeviceView, PoolId, SliceView


class Pool(NamedTuple):
    """`devices` can be used from the node; `others` cannot, and may take of the counters. `problem`: why nothing is allocated from it."""

    id: PoolId
    devices: tuple[DeviceView, ...] = ()
    others: tuple[DeviceView, ...] = ()
    counters: Mapping[tuple[str, str], Any] = {}
    incomplete: bool = False
    problem: str = ""

    @property
    def conditional(self) -> bool:
        """Whether pods wait for conditions of a device."""
        return any(device.conditions for device in self.devices)

    @property
    def name(self) -> str:
        """As messages name it."""
        return "/".join(self.id)


def pool_of(slices: Iterable[SliceView], name: str, labels: Mapping[str, str]) -> Pool | None:
    """A pool, of all its slices, for a node; None when it has nothing for the node now."""
    every = list(slices)
    relevant = [one for one in every if one.relevant(name, labels)]
    if not relevant:
        return None
    newest = max(one.generation for one in relevant)
    if any(one.generation > newest for one in every):
        return None  # it is being replaced, and nothing of the new one is for this node
    current = [one for one in every if one.generation == newest]
    identity = current[0].pool
    if len(current) != max(one.total for one in current):
        return Pool(identity, incomplete=True)
    return _built(identity, sorted(current, key=lambda one: one.name), name, labels)


def _built(identity: PoolId, slices: list[SliceView], name: str, labels: Mapping[str, str]) -> Pool | None:
    here: list[DeviceView] = []
    others: list[DeviceView] = []
    counters: dict[tuple[str, str], Any] = {}
    for one in slices:
        if one.broken:
            return Pool(identity, problem=one.broken)
        if one.counters is not None:
            double = {counter_set for counter_set, _ in one.counters} & {counter_set for counter_set, _ in counters}
            if double:
                return Pool(identity, problem=f"duplicate counter set name {min(double)}")
            counters.update(one.counters)
        for device in one.devices:
            (here if device.place.holds(name, labels) else others).append(device)
    problem = _problem(here, (*here, *others), counters)
    if problem:
        return Pool(identity, problem=problem)
    taking = tuple(device for device in others if device.consumes)
    return Pool(identity, tuple(here), taking, counters) if here else None


def _problem(here: list[DeviceView], every: Iterable[DeviceView], counters: Mapping[tuple[str, str], Any]) -> str:
    names: set[str] = set()
    for device in here:
        if device.id[2] in names:
            return f"duplicate device name {device.id[2]}"
        names.add(device.id[2])
    sets = {counter_set for counter_set, _ in counters}
    for device in every:
        for counter_set, counter, _ in device.consumes:
            if counter_set not in sets:
                return f"counter set {counter_set} not found"
            if (counter_set, counter) not in counters:
                return f"counter {counter} not found in counter set {counter_set}"
    return ""
