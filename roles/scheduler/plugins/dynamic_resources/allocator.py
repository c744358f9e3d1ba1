"""Which devices of a node a pod's claims get: the first that fit, in the order of pools, slices and devices (SCH-DRA-01 to -07). Pure.

Requests are served in the order of the claims. Where a later one cannot be served, another choice is made for an earlier one, so that an
allocation is found when there is any. Between devices that are alike no choice is tried twice: what fails with one fails with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

from koord.api.objects_resource import DeviceConstraint
from roles.scheduler.plugins.dynamic_resources.amounts import Amount, Amounts, consumed
from roles.scheduler.plugins.dynamic_resources.devices import DeviceId, DeviceView, PoolId, Values
from roles.scheduler.plugins.dynamic_resources.pools import Pool
from roles.scheduler.plugins.dynamic_resources.preferring import Candidate, InUse, ranked
from roles.scheduler.plugins.dynamic_resources.requests import Ask, RequestError, Wanted

MOST_DEVICES = 32
"""Devices of one claim."""
MOST_STEPS = 20_000
"""Choices that are tried for one node before it counts as full."""
_STEPS_BETWEEN_LOOKS = 64  # at the time
_STEPS_BEFORE_COUNTING = 128  # a search that is longer may be for devices that there are too few of
_NOTHING: Amounts = {}
_NONE_DRAWN: Mapping[DeviceId, Amounts] = {}


class Used(Protocol):
    """What claims have of devices now."""

    @property
    def taken(self) -> Collection[DeviceId]:
        """Devices that a claim has for itself."""

    @property
    def shared(self) -> Mapping[DeviceId, Amounts]:
        """What claims have of devices that several may use."""


class AllocatedDevice(NamedTuple):
    """One device of an allocation. `consumed` is what it takes of a device that several may use, None for one of its own."""

    ask: Ask
    device: DeviceView
    consumed: Amounts | None


Allocation = tuple[AllocatedDevice, ...]


class _TooFewError(Exception):
    """Whatever is tried, there are too few devices."""


class TookTooLong(RequestError):
    """The time that a search may take is over."""


def allocate(
    claims: Sequence[Wanted], stock: Stock, used: Used, expired: Callable[[], bool] | None = None, *, together: bool = False
) -> tuple[Allocation, ...] | None:
    """One allocation for each claim, or None when there is none; `expired` is asked now and then whether to give up. Devices are tried in
    their order, or so that they are kept `together` and whole. Raises RequestError for what cannot be decided, TookTooLong when it was
    given up."""
    search = _Search(claims, stock, used, expired, together=together)
    try:
        return tuple(tuple(given) for given in search.given) if search.claim(0) else None
    except _TooFewError:
        return None


class Stock:
    """The devices of some pools in the order in which they are tried. Remembers which of them selectors take."""

    __slots__ = ("_selected", "pools", "slots")

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        devices = ((pool, device) for pool in self.pools for device in pool.devices)
        self.slots = tuple(Candidate(at, pool, device) for at, (pool, device) in enumerate(devices))
        self._selected: dict[object, list[bool]] = {}

    def selected(self, ask: Ask) -> Iterator[Candidate]:
        """Those that class and request select; looked at one by one, as the first is often good enough. Raises RequestError."""
        known = self._selected.setdefault(ask.selectors, [])
        for at, slot in enumerate(self.slots):
            if at == len(known):
                known.append(ask.wants(slot.device.kind))
            if known[at]:
                yield slot


class _Search:
    def __init__(
        self, claims: Sequence[Wanted], stock: Stock, used: Used, expired: Callable[[], bool] | None, *, together: bool
    ) -> None:  # fmt: skip
        self._claims = claims
        self._together = together
        self._expired = expired
        self._pools = stock.pools
        self._stock = stock
        self._used = used
        self.given: list[list[AllocatedDevice]] = [[] for _ in claims]
        self._choosing: dict[DeviceId, set[int]] = {}  # devices chosen in this search, with the claims that have them
        self._drawing: dict[DeviceId, dict[str, Amount]] = {}  # what this search takes of shared devices
        self._sharers: dict[DeviceId, int] = {}
        self._left: dict[PoolId, dict[tuple[str, str], Amount]] = {}  # of the counters of pools
        self._constraints = [[_Constraint(one) for one in claim.constraints] for claim in claims]
        self._failed: set[tuple[object, ...]] = set()  # what was found not to lead anywhere
        self._steps = 0

    # ---------------------------------------------------------------- the order of choices

    def claim(self, number: int) -> bool:
        """Serve the claims from a number on."""
        return number >= len(self._claims) or self._request(number, 0)

    def _request(self, claim: int, number: int) -> bool:
        requests = self._claims[claim].requests
        if number >= len(requests):
            return self.claim(claim + 1)
        state = (claim, number, self._state(claim))
        if state in self._failed:
            return False
        if any(self._serve(claim, number, ask) for ask in requests[number]):
            return True
        self._failed.add(state)
        return False

    def _state(self, claim: int) -> tuple[object, ...]:
        """All on which it depends whether the rest can be served: equal when the same sorts of devices are chosen, whoever has them."""
        chosen = sorted(
            repr((number, given.device.id) if given.ask.admin else given.device.id if given.device.kind.multiple else _sort(given.device))
            for number, given_to in enumerate(self.given)
            for given in given_to
        )
        drawn = sorted((device, *sorted(amounts.items())) for device, amounts in self._drawing.items())
        return tuple(chosen), repr(drawn), tuple(one.state for one in self._constraints[claim]), len(self.given[claim])

    def _serve(self, claim: int, number: int, ask: Ask) -> bool:
        """Serve one request by one of its alternatives, and all that comes after it."""
        if ask.number:
            if len(self.given[claim]) + ask.number > MOST_DEVICES:
                return False
            return self._some(claim, number, ask, ask.number, 0, self._ranked(claim, number, ask) if self._together else None)
        return self._every(claim, number, ask)

    def _ranked(self, claim: int, number: int, ask: Ask) -> list[Candidate]:
        """The devices of a request, the best first."""
        further = [
            next(iter(asks))
            for at, wanted in enumerate(self._claims)
            for of, asks in enumerate(wanted.requests)
            if (at, of) > (claim, number) and asks
        ]
        chosen = [given.device for given_to in self.given for given in given_to]
        others = [[slot.device for slot in self._stock.selected(other)] for other in further]
        use = InUse(
            lambda device: device in self._used.taken or bool(self._choosing.get(device)),
            lambda device: self._used.shared.get(device, _NOTHING), lambda pool: self._left.get(pool.id) or unconsumed(pool, self._used),
        )  # fmt: skip
        return ranked(list(self._stock.selected(ask)), ask.number, chosen, others, use)

    def _some(self, claim: int, number: int, ask: Ask, left: int, start: int, order: Sequence[Candidate] | None) -> bool:
        """So many devices more, each another one; those of a request are chosen in order, as sets do not differ by it."""
        if not left:
            return self._request(claim, number + 1)
        failed: set[tuple[object, ...]] = set()
        for at, slot in enumerate(order) if order is not None else ((slot.at, slot) for slot in self._stock.selected(ask)):
            if at < start:
                continue
            alike = self._alike(slot)
            if alike in failed or not self._take(claim, ask, slot):
                continue
            if self._some(claim, number, ask, left - 1, at + 1, order):
                return True
            self._give_back(claim, slot)
            failed.add(alike)
        return False

    def _every(self, claim: int, number: int, ask: Ask) -> bool:
        """All devices that are selected, none of which may be in use."""
        for pool in self._pools:
            if pool.incomplete:
                raise RequestError(f"request {ask.label}: asks for all devices, but resource pool {pool.name} is currently being updated")
            if pool.problem:
                raise RequestError(f"request {ask.label}: asks for all devices, but resource pool {pool.name} is invalid: {pool.problem}")
        # What claims have left when the search begins says what all are: the pod's other requests may not make them fewer.
        wanted = [slot for slot in self._stock.selected(ask) if self._draws(ask, slot.device, _NONE_DRAWN) is not None]
        if not wanted or len(self.given[claim]) + len(wanted) > MOST_DEVICES:
            return False
        taken: list[Candidate] = []
        for slot in wanted:
            if not self._take(claim, ask, slot):
                break
            taken.append(slot)
        else:
            if self._request(claim, number + 1):
                return True
        for slot in reversed(taken):
            self._give_back(claim, slot)
        return False

    def _alike(self, slot: Candidate) -> tuple[object, ...]:
        """Equal for devices of which one fails where the other did."""
        return (slot.device.id,) if slot.device.kind.multiple else _sort(slot.device)

    # ---------------------------------------------------------------- one device

    def _take(self, claim: int, ask: Ask, slot: Candidate) -> bool:
        """Choose a device if it can be had as things are."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise RequestError(f"request {ask.label}: no allocation was found in {MOST_STEPS} tries")
        if self._steps == _STEPS_BEFORE_COUNTING and not all(self._enough(claim) for claim in self._claims):
            raise _TooFewError
        if self._expired is not None and not self._steps % _STEPS_BETWEEN_LOOKS and self._expired():
            raise TookTooLong("timed out trying to allocate devices")
        device = slot.device
        chosen = self._choosing.get(device.id)
        if ask.admin:
            if chosen and claim in chosen:
                return False
        elif chosen or device.id in self._used.taken:
            return False
        if not ask.bears(device.taints):
            return False
        draws = self._draws(ask, device)
        counts = bool(device.consumes) and not (device.kind.multiple and self._shared(device))
        if draws is None or (counts and not self._counters(slot)):
            return False
        constraints = self._constraints[claim]
        for at, constraint in enumerate(constraints):
            if not constraint.add(ask, device):
                for earlier in constraints[:at]:
                    earlier.remove()
                if counts:
                    self._return(slot)
                return False
        if device.kind.multiple:
            drawing = self._drawing.setdefault(device.id, {})
            self._sharers[device.id] = self._sharers.get(device.id, 0) + 1
            for name, value in draws.items():
                drawing[name] = drawing.get(name, 0) + value
        else:
            self._choosing.setdefault(device.id, set()).add(claim)
        self.given[claim].append(AllocatedDevice(ask, device, draws if device.kind.multiple else None))
        return True

    def _give_back(self, claim: int, slot: Candidate) -> None:
        device, given = slot.device, self.given[claim].pop()
        for constraint in self._constraints[claim]:
            constraint.remove()
        if given.consumed is not None:
            drawing = self._drawing[device.id]
            for name, value in given.consumed.items():
                drawing[name] -= value
            self._sharers[device.id] -= 1
        else:
            self._choosing[device.id].discard(claim)
        if device.consumes and not (device.kind.multiple and self._shared(device)):
            self._return(slot)

    def _shared(self, device: DeviceView) -> bool:
        """Whether somebody uses a device for several already: what it takes of counters is taken once."""
        return bool(self._sharers.get(device.id)) or device.id in self._used.shared

    def _enough(self, claim: Wanted) -> bool:
        """Whether there are as many devices as each constraint is about: with one value, or with values of their own. Choosing them one by
        one finds out only once all sets of fewer were tried."""
        for constraint in map(_Constraint, claim.constraints):
            covered = [asks for asks in claim.requests if asks and all(map(constraint.covers, asks))]
            needed = sum(min(ask.number or 1 for ask in asks) for asks in covered)
            in_use = () if any(ask.admin for asks in covered for ask in asks) else self._used.taken
            devices = [slot.device for slot in self._stock.slots if slot.device.id not in in_use]
            if needed > constraint.most(devices):
                return False
        return True

    def _draws(self, ask: Ask, device: DeviceView, drawn: Mapping[DeviceId, Amounts] | None = None) -> Amounts | None:
        """What the request takes of a device's capacities; None when they are not enough beside what claims have and what is `drawn`, as
        far as this search has come where that is not given."""
        kind = device.kind
        if not kind.capacity:
            return None if ask.capacity else _NOTHING
        taken = consumed(ask.capacity, kind.capacity)
        if taken is None:
            return None
        before, drawing = self._used.shared.get(device.id, _NOTHING), (self._drawing if drawn is None else drawn).get(device.id, _NOTHING)
        enough = all(value + before.get(name, 0) + drawing.get(name, 0) <= kind.totals[name] for name, value in taken.items())
        return taken if enough else None

    def _counters(self, slot: Candidate) -> bool:
        """Take of the counters of a pool what the device needs; False, and nothing taken, when they do not have it."""
        left = self._left.get(slot.pool.id)
        if left is None:
            left = self._left[slot.pool.id] = unconsumed(slot.pool, self._used)
        wanted = slot.device.consumes
        if any(left[counter_set, counter] < value for counter_set, counter, value in wanted):
            return False
        for counter_set, counter, value in wanted:
            left[counter_set, counter] -= value
        return True

    def _return(self, slot: Candidate) -> None:
        left = self._left[slot.pool.id]
        for counter_set, counter, value in slot.device.consumes:
            left[counter_set, counter] += value


def unconsumed(pool: Pool, used: Used) -> dict[tuple[str, str], Amount]:
    """What allocated devices leave of a pool's counters."""
    left = dict(pool.counters)
    for other in (*pool.devices, *pool.others):
        if other.consumes and (other.id in used.taken or other.id in used.shared):
            for counter_set, counter, value in other.consumes:
                left[counter_set, counter] -= value
    return left


def _sort(device: DeviceView) -> tuple[object, ...]:
    """Equal for devices that can stand in for one another."""
    return device.like, device.id[:2] if device.consumes else ""


class _Constraint:
    """What the devices chosen so far have in common (match), or have already (distinct); one entry for each device that it was asked of."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests)
        self._distinct = constraint.match_attribute is None
        self._name = constraint.match_attribute or constraint.distinct_attribute or ""
        self._states: list[Values | None] = []

    def covers(self, ask: Ask) -> bool:
        """Whether it is about the devices of a request."""
        return not self._requests or ask.request in self._requests or ask.label in self._requests

    def most(self, devices: Iterable[DeviceView]) -> float:
        """How many of these devices it may allow at most."""
        values: dict[object, float] = {}
        for device in devices:
            for value in device.kind.values(self._name) or ():
                values[value] = values.get(value, 0) + (inf if device.kind.multiple else 1)  # the same for several requests
        return len(values) if self._distinct else max(values.values(), default=0)

    def add(self, ask: Ask, device: DeviceView) -> bool:
        """Whether the device may be chosen, too; then it counts."""
        before = self._states[-1] if self._states else None
        if not self.covers(ask):
            self._states.append(before)
            return True
        values = device.kind.values(self._name)
        if not values:
            return False
        if self._distinct:
            after = values if before is None else before | values
            if before is not None and before & values:
                return False
        else:
            after = values if before is None else before & values
        if not after:
            return False
        self._states.append(after)
        return True

    @property
    def state(self) -> Values | None:
        """What the devices chosen so far leave open."""
        return self._states[-1] if self._states else None

    def remove(self) -> None:
        """Undo the last `add` that succeeded."""
        self._states.pop()
