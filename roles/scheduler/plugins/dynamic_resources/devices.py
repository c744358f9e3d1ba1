"""Devices as they are allocated: what a slice says of each, parsed once. Devices that are alike share their kind, and with it the answers
of selectors (SCH-DRA-02)."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from koord.api.objects_resource import Device, DeviceCapacity, DeviceTaint, ResourceSlice
from koord.api.quantity import QuantityError
from roles.scheduler.cluster.terms import NodeTerm, node_term
from roles.scheduler.plugins.dynamic_resources.amounts import Amounts, amount
from roles.scheduler.plugins.dynamic_resources.taints import TaintRules, that_keep_off

if TYPE_CHECKING:
    from koord.api.objects_pod import NodeSelector

DeviceId = tuple[str, str, str]
"""(driver, pool, device)"""
PoolId = tuple[str, str]
"""(driver, pool)"""
Values = frozenset[tuple[str, Any]]

_SINGLE = {"bools": "bool", "ints": "int", "strings": "string", "versions": "version"}
_NO_VALUES: Values = frozenset()


Answers = dict[Hashable, bool | str]
"""Of selectors, for all that they look at."""
_MOST_ANSWERS = 100_000


class SelectorError(Exception):
    """A selector that cannot be compiled or evaluated for a device; says why."""


class DeviceKind:
    """What selectors look at: driver, attributes, capacities. `capacity` are those that the device has, with their policies."""

    __slots__ = ("__weakref__", "_answers", "_described", "_shared", "attributes", "capacity", "driver", "multiple", "number", "totals")

    def __init__(self, number: int, driver: str, device: Device, shared: Answers) -> None:
        self._shared = shared
        self.number = number
        self.driver = driver
        self.attributes = device.attributes
        self.capacity: Mapping[str, DeviceCapacity] = device.capacity
        self.totals: Amounts = {name: amount(capacity.value) for name, capacity in device.capacity.items()}
        self.multiple = bool(device.allow_multiple_allocations)
        self._described: dict[str, Any] | None = None
        self._answers: dict[str, bool | str] = {}

    def matches(self, expression: str) -> bool:
        """Whether a CEL expression selects devices of the kind; evaluated once. Raises SelectorError."""
        known = self._answers.get(expression)
        if known is None:
            known = self._answers[expression] = self._evaluated(expression)
        if isinstance(known, str):
            raise SelectorError(known)
        return known

    def _evaluated(self, expression: str) -> bool | str:
        from koord.apiserver.cel import devices as selectors  # 13 MiB that clusters without claims do without

        try:
            reads = selectors.compiled(expression).reads
        except selectors.CelError as error:
            return str(error)
        if reads is None:
            return self._asked(expression)
        key = (expression, self.driver, self.multiple, tuple([self._shown(part, domain, name) for part, domain, name in reads]))
        known = self._shared.get(key)
        if known is None:
            if len(self._shared) >= _MOST_ANSWERS:
                self._shared.clear()
            known = self._shared[key] = self._asked(expression)
        return known

    def _shown(self, part: str, domain: str, name: str) -> Hashable:
        """An attribute or capacity as an expression sees it."""
        values: Mapping[str, Any] = self.attributes if part == "attributes" else self.capacity
        found = values.get(f"{domain}/{name}")
        if found is None and domain == self.driver:
            found = values.get(name)
        if part == "capacity":
            return found.value if found is not None else None
        return repr(found) if found is not None else None

    def _asked(self, expression: str) -> bool | str:
        from koord.apiserver.cel import devices as selectors

        try:
            if self._described is None:
                amounts = {name: str(capacity.value) for name, capacity in self.capacity.items()}
                self._described = selectors.described(self.driver, self.attributes, amounts, self.multiple)
            return selectors.compiled(expression).matches(self._described)
        except (selectors.CelError, ValueError) as error:
            return str(error)

    def values(self, name: str) -> Values:
        """The values of a fully qualified attribute, each with its type; none when the device does not have it."""
        attribute = self.attributes.get(name)
        if attribute is None:
            domain, _, ident = name.partition("/")
            attribute = self.attributes.get(ident) if domain == self.driver else None
        for kind, value in (attribute or {}).items():
            if value is not None:
                return frozenset((_SINGLE[kind], one) for one in value) if kind in _SINGLE else frozenset(((kind, value),))
        return _NO_VALUES


class Place(NamedTuple):
    """From which nodes a slice or device can be used: one by name, those of a term, or all (neither)."""

    node: str = ""
    term: NodeTerm | None = None
    selector: NodeSelector | None = None

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether it is reachable from a node."""
        if self.node:
            return self.node == name
        return self.term is None or self.term.matches(name, labels)


class Like:
    """One for all devices between which no request can tell, as long as there is such a device."""

    __slots__ = ("__weakref__", "_number")

    def __init__(self, number: int) -> None:
        self._number = number

    def __repr__(self) -> str:
        return str(self._number)


class DeviceView(NamedTuple):
    """One device. `like` is equal for devices between which no request can tell; `taints` are those that keep claims off; `conditions` are
    waited for before a pod is bound, `failures` end that."""

    id: DeviceId
    kind: DeviceKind
    like: Like
    taints: tuple[DeviceTaint, ...]
    consumes: tuple[tuple[str, str, Any], ...]  # (counter set, counter, amount)
    place: Place
    binds: bool
    conditions: tuple[str, ...]
    failures: tuple[str, ...]


class SliceView(NamedTuple):
    """One slice. `total`: slices of its pool. `place` None: each device says where it is. `counters`: (set, counter) -> amount."""

    name: str
    pool: PoolId
    generation: int
    total: int
    place: Place | None
    devices: tuple[DeviceView, ...]
    counters: dict[tuple[str, str], Any] | None
    broken: str = ""

    def relevant(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node needs it: for its devices, or for the counters that they share."""
        if self.counters is not None:
            return True
        if self.place is not None:
            return self.place.holds(name, labels)
        return any(device.place.holds(name, labels) for device in self.devices)

    @property
    def node(self) -> str:
        """The one node that it is for, "" when there may be several."""
        return self.place.node if self.place is not None else ""


class Catalogue:
    """Kinds that are in use, and numbers for devices that are alike."""

    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[bytes, DeviceKind] = WeakValueDictionary()
        self._likes: WeakValueDictionary[tuple[Any, ...], Like] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._answers: Answers = {}
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode

    def read(self, slice_: ResourceSlice) -> SliceView:
        """A slice, parsed. One with an amount that is none has no devices, and says so."""
        spec = slice_.spec
        pool = (spec.driver, spec.pool.name)
        place: Place | None = _place(spec.node_name, spec.node_selector)
        if spec.per_device_node_selection:
            place = None
        counters, broken = None, ""
        devices: tuple[DeviceView, ...] = ()
        try:
            if spec.shared_counters:
                counters = {
                    (one.name, name): amount(counter.value) for one in spec.shared_counters for name, counter in one.counters.items()
                }
            devices = tuple(self._device(spec.driver, pool, device, place) for device in spec.devices)
        except QuantityError as error:
            broken = str(error)
        return SliceView(slice_.metadata.name, pool, spec.pool.generation, spec.pool.resource_slice_count, place, devices, counters, broken)

    def _device(self, driver: str, pool: PoolId, device: Device, place: Place | None) -> DeviceView:
        kind = self._kind(driver, device)
        consumes = tuple(
            (one.counter_set, name, amount(counter.value)) for one in device.consumes_counters for name, counter in one.counters.items()
        )
        own = place if place is not None else _place(device.node_name, device.node_selector)
        taints, binding = that_keep_off(device.taints), (device.binding_conditions, device.binding_failure_conditions)
        like = self._like(kind, taints, consumes, binding)
        return DeviceView((*pool, device.name), kind, like, taints, consumes, own, bool(device.binds_to_node), *binding)

    def _like(self, kind: DeviceKind, *more: Any) -> Like:
        key = (kind.number, *more)
        found = self._likes.get(key)
        if found is None:
            found = self._likes[key] = Like(next(self._numbers))
        return found

    def under(self, rules: TaintRules, slice_: SliceView) -> SliceView:
        """A slice with the taints of its devices and those of the rules."""
        if not rules:
            return slice_
        devices = []
        for device in slice_.devices:
            more = tuple(taint for taint in rules.of(device.id) if taint not in device.taints)
            if more:
                taints = (*device.taints, *more)
                like = self._like(device.kind, taints, device.consumes, (device.conditions, device.failures))
                device = device._replace(taints=taints, like=like)
            devices.append(device)
        return slice_._replace(devices=tuple(devices))

    def _kind(self, driver: str, device: Device) -> DeviceKind:
        key = self._encode((driver, device.attributes, device.capacity, bool(device.allow_multiple_allocations)))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = DeviceKind(next(self._numbers), driver, device, self._answers)
        return kind


def _place(node: str | None, selector: NodeSelector | None) -> Place:
    if node:
        return Place(node)
    terms = selector.node_selector_terms if selector is not None else ()
    return Place("", node_term(terms[0]), selector) if terms else Place()
