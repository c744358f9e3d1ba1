"""Claims as the allocator takes them: classes looked up, selectors together, amounts parsed (SCH-DRA-01, SCH-DRA-03)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from koord.api import objects_resource as api
from koord.api.quantity import QuantityError
from roles.scheduler.plugins.dynamic_resources.amounts import Amounts, amount
from roles.scheduler.plugins.dynamic_resources.devices import DeviceKind, SelectorError

ALL, EXACT = "All", "ExactCount"


class RequestError(Exception):
    """A claim that cannot be allocated anywhere as it is; says why."""


class Ask(NamedTuple):
    """Devices of one sort: a request, or one alternative of it. `label` is what results and constraints call it; `number` 0 stands for
    all."""

    label: str
    request: str
    class_name: str
    selectors: tuple[tuple[str, str], ...]  # (where it stands, expression)
    number: int
    admin: bool
    tolerations: tuple[api.DeviceToleration, ...]
    capacity: Amounts

    def wants(self, kind: DeviceKind) -> bool:
        """Whether selectors of class and request take devices of a kind. Raises RequestError."""
        for where, expression in self.selectors:
            try:
                if not kind.matches(expression):
                    return False
            except SelectorError as error:
                raise RequestError(f"{where}: {error}") from None
        return True

    def bears(self, taints: tuple[api.DeviceTaint, ...]) -> bool:
        """Whether all taints that keep claims off are tolerated."""
        return all(any(_bears(one, taint) for one in self.tolerations) for taint in taints)


def _bears(toleration: api.DeviceToleration, taint: api.DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


class Wanted(NamedTuple):
    """A claim that is to be allocated. `requests`: the alternatives of each request, one for a request without; `least`: devices that it
    takes at least, of those that nobody uses; `spec` is what it was made of."""

    requests: tuple[tuple[Ask, ...], ...]
    constraints: tuple[api.DeviceConstraint, ...]
    least: int
    spec: api.ResourceClaimSpec


def compiled(spec: api.ResourceClaimSpec, classes: Mapping[str, api.DeviceClass]) -> Wanted:
    """A claim's specification with the classes that it names. Raises RequestError."""
    requests = tuple(_alternatives(request, classes) for request in spec.devices.requests)
    least = sum(min((_least(ask) for ask in alternatives), default=0) for alternatives in requests)
    for number, constraint in enumerate(spec.devices.constraints):
        if constraint.match_attribute is None and constraint.distinct_attribute is None:
            raise RequestError(f"constraint #{number}: of a sort that is not known here")
    return Wanted(requests, spec.devices.constraints, least, spec)


def _least(ask: Ask) -> int:
    return 0 if ask.admin else ask.number


def _alternatives(request: api.DeviceRequest, classes: Mapping[str, api.DeviceClass]) -> tuple[Ask, ...]:
    if request.exactly is not None:
        return (_ask(request.exactly, request.name, request.name, classes),)
    if not request.first_available:
        raise RequestError(f"request {request.name}: of a sort that is not known here")
    return tuple(_ask(sub, f"{request.name}/{sub.name}", request.name, classes) for sub in request.first_available)


def _ask(wanted: api.DeviceSubRequest, label: str, request: str, classes: Mapping[str, api.DeviceClass]) -> Ask:
    where = f"request {label}"
    found = classes.get(wanted.device_class_name)
    if found is None:
        raise RequestError(f"{where}: device class {wanted.device_class_name} does not exist")
    mode = wanted.allocation_mode or EXACT
    if mode not in (ALL, EXACT):
        raise RequestError(f"{where}: unsupported allocation mode {mode}")
    own = _expressions(wanted.selectors, where)
    shared = _expressions(found.spec.selectors, f"class {wanted.device_class_name}")
    try:
        capacity = {name: amount(value) for name, value in (wanted.capacity.requests if wanted.capacity is not None else {}).items()}
    except QuantityError as error:
        raise RequestError(f"{where}: {error}") from None
    count = 0 if mode == ALL else max(wanted.count, 1)
    return Ask(label, request, wanted.device_class_name, (*shared, *own), count, bool(wanted.admin_access), wanted.tolerations, capacity)


def _expressions(selectors: tuple[api.DeviceSelector, ...], where: str) -> tuple[tuple[str, str], ...]:
    found = []
    for number, selector in enumerate(selectors):
        if selector.cel is None:
            raise RequestError(f"{where}, selector #{number}: of a sort that is not known here")
        found.append((f"{where}, selector #{number}", selector.cel.expression))
    return tuple(found)
