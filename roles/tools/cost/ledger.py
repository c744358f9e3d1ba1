"""Who pays what of nodes' cost, for how much they request, use and leave to others. Pure (BEY-COST-01).

Of each node and resource (CPU, memory), for a time in which nothing changes:

* A pod pays the node's rate for what it requests. Where requests are more than there is, all are cut in proportion.
* Batch and mid pods pay their own rate for what they request; for what they use if they request nothing of it.
* What they pay is given back to those whose resources they run on: to the pods that request more than they use, and to what nobody
  requested, in proportion (`credit`), up to what it costs. What is left goes to the nodes (`idle`).
* What nobody requested is idle. So everything that is paid, less credits, and idle together are the node's cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from koord.accounting.resources import ResourceVector
from roles.tools.cost.prices import TIERS, NodeRates, Prices

GIB = 2**30
RESOURCES = ("cpu", "memory")
_UNIT = {"cpu": 1000.0, "memory": float(GIB)}  # of base units in what is priced


class Owner(NamedTuple):
    """Whose costs are one sum. `quota` "" for none."""

    namespace: str
    quota: str = ""
    qos: str = ""


@dataclass(slots=True)
class Pod:
    """What a pod on a node requests and uses (milli-cores, bytes). `used` None: not measured."""

    owner: Owner
    requests: ResourceVector
    used: ResourceVector | None = None


@dataclass(slots=True)
class Node:
    """What a node has (milli-cores, bytes) and costs."""

    rates: NodeRates
    capacity: ResourceVector


@dataclass(slots=True)
class Sums:
    """Of one resource, in core-hours or GiB-hours and in money. `idle` is requested and not used, where use is measured."""

    requested: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    reclaimed: float = 0.0
    paid: float = 0.0
    credit: float = 0.0

    def add(self, other: Sums) -> None:
        """Add another."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Row:
    """What one owner requested, used and paid. `hours` are pod-hours, `measured` those of which use is known."""

    cpu: Sums = field(default_factory=Sums)
    memory: Sums = field(default_factory=Sums)
    hours: float = 0.0
    measured: float = 0.0

    @property
    def cost(self) -> float:
        """What is paid in the end."""
        return self.cpu.paid - self.cpu.credit + self.memory.paid - self.memory.credit

    def add(self, other: Row) -> None:
        """Add another."""
        self.cpu.add(other.cpu)
        self.memory.add(other.memory)
        self.hours += other.hours
        self.measured += other.measured


@dataclass(slots=True)
class Whole:
    """A node's hours, cost and what nobody paid, by resource."""

    hours: float = 0.0
    cost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0.0))
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0.0))
    amount: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0.0))
    unrequested: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0.0))


class Ledger:
    """The sums of a time, by owner and by node."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.rows: dict[Owner, Row] = {}
        self.nodes: dict[str, Whole] = {}

    def spend(self, seconds: float, name: str, node: Node, pods: Iterable[Pod]) -> None:
        """A node and its pods were like this for so long."""
        if seconds <= 0:
            return
        hours, there = seconds / 3600, [*pods]
        whole = self.nodes.setdefault(name, Whole())
        whole.hours += hours
        for pod in there:
            row = self._row(pod.owner)
            row.hours += hours
            row.measured += hours * (pod.used is not None)
        for resource in RESOURCES:
            self._share(resource, hours, node, there, whole)

    def _row(self, owner: Owner) -> Row:
        return self.rows.setdefault(owner, Row())

    def _share(self, resource: str, hours: float, node: Node, pods: list[Pod], whole: Whole) -> None:
        unit, rate = _UNIT[resource], getattr(node.rates, resource)
        capacity = node.capacity.get(resource, 0) / unit
        requests = [pod.requests.get(resource, 0) / unit for pod in pods]
        uses = [None if pod.used is None else pod.used.get(resource, 0) / unit for pod in pods]
        asked = sum(requests)
        scale = min(1.0, capacity / asked) if asked else 1.0
        payments = [self._tiers(resource, pod, used) for pod, used in zip(pods, uses, strict=True)]
        left = [0.0 if used is None else max(0.0, amount * scale - used) for amount, used in zip(requests, uses, strict=True)]
        unrequested = capacity - asked * scale
        pool, paid = unrequested + sum(left), sum(amount for amount, _ in payments)
        credit = min(rate, paid / pool) if pool > 0 else 0.0
        for pod, request, used, (payment, claim), unused in zip(pods, requests, uses, payments, left, strict=True):
            sums: Sums = getattr(self._row(pod.owner), resource)
            measured = used or 0.0
            sums.requested += (request + claim) * hours
            sums.used += measured * hours
            if used is not None:
                sums.idle += max(0.0, request + claim - used) * hours
            sums.reclaimed += measured * hours * (claim > 0)
            sums.paid += (rate * request * scale + payment) * hours
            sums.credit += credit * unused * hours
        whole.amount[resource] += capacity * hours
        whole.cost[resource] += rate * capacity * hours
        whole.unrequested[resource] += unrequested * hours
        whole.idle[resource] += (rate * unrequested - credit * unrequested - (paid - credit * pool)) * hours

    def _tiers(self, resource: str, pod: Pod, used: float | None) -> tuple[float, float]:
        """What a pod pays at other rates in an hour, and how much it claims there."""
        payment = claim = 0.0
        for name, (tier, what) in TIERS.items():
            if what == resource and name in pod.requests:
                amount = pod.requests[name] / _UNIT[resource] or used or 0.0
                claim += amount
                payment += amount * getattr(getattr(self._prices, tier), resource)
        return payment, claim

    # ---------------------------------------------------------------- sums

    def total(self, what: str) -> dict[str, float]:
        """`cost`, `idle`, `amount` or `unrequested` of all nodes, by resource."""
        return {resource: sum(getattr(node, what)[resource] for node in self.nodes.values()) for resource in RESOURCES}

    @property
    def cost(self) -> float:
        """Of all nodes."""
        return sum(sum(node.cost.values()) for node in self.nodes.values())

    @property
    def idle(self) -> float:
        """What nobody paid of it; less than nothing where batch and mid pods pay more than there is unused."""
        return sum(sum(node.idle.values()) for node in self.nodes.values())

    def by(self, *fields: str) -> dict[tuple[str, ...], Row]:
        """Rows summed by fields of owners, the dearest first."""
        found: dict[tuple[str, ...], Row] = {}
        for owner, row in self.rows.items():
            found.setdefault(tuple(getattr(owner, name) for name in fields), Row()).add(row)
        return dict(sorted(found.items(), key=lambda item: (-item[1].cost, item[0])))
