"""What nodes promise to batch pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.invariants.base import NODE_METRIC, POD, WORLD, Invariant, Obj, bound_by, node_of, requests, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class NoPromiseFromSilence(Invariant):
    """A node whose agent is silent for longer than the limit offers no batch resources.

    A manager that begins with a clock that was put back cannot tell how old a report is: for it silence begins then.
    """

    hears = frozenset({NODE_METRIC, WORLD})
    limit = 85.0  # degradeTimeMinutes of the world's configuration, and the manager's time to see it
    missed = 25.0  # after which a report is overdue

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._last: dict[str, float] = {}
        self._behind: set[str] = set()  # managers whose clock was put back
        self._begun = 0.0  # when one of these began

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE_METRIC and role_of(entry.author) in ("kubelet", "koordlet"):
            self._last[entry.key] = entry.time
        elif entry.verb == "fault" and entry.key == "clock":
            name, _, by = entry.text.partition(" of ")[2].partition(" by ")
            if role_of(name) == "manager" and by.startswith("-"):
                self._behind.add(name)
        elif entry.verb == "started" and entry.key in self._behind:
            self._begun = entry.time
        return iter(())

    def end(self) -> Iterator[str]:
        return self._offering(self.limit)

    def open(self) -> bool:
        return any(True for _ in self._offering(self.missed))

    def _offering(self, limit: float) -> Iterator[str]:
        for name, node in sorted(self.history.of("node").items()):
            offered = ((node.get("status") or {}).get("allocatable") or {}).get("kubernetes.io/batch-cpu")
            if offered is None or parse_value(offered) == 0:
                continue
            last = self._last.get(name)
            if last is None or self.history.clock() - max(last, self._begun) > limit * self.history.pace:
                yield f"{name} offers batch-cpu {offered}; its agent reported last at {last}"


BATCH_CPU = "kubernetes.io/batch-cpu"


def batch_of(node: dict[str, object] | None) -> int | None:
    """The batch-cpu that a node offers, in milli-CPU."""
    status = (node or {}).get("status")
    offered = (status.get("allocatable") or {}).get(BATCH_CPU) if isinstance(status, dict) else None
    return None if offered is None else parse_value(offered)


class PromisesAreBacked(Invariant):
    """What the manager offers to batch pods is at most the reclaimed share of a node without what its services use; when all is calm,
    what it has offered once, too."""

    hears = frozenset({NODE_METRIC, "node"})
    reclaimed = 0.60  # cpuReclaimThresholdPercent, as it is by default
    seconds = 90.0  # reports that the manager may have looked at
    reports = 45.0  # two of them
    slack = 0.9  # a difference of a tenth is not written (resourceDiffThreshold), by default

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._services: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE_METRIC and entry.new is not None:
            used = 0
            for item in (entry.new.get("status") or {}).get("podsMetric") or ():
                if item.get("priority") == "koord-prod":
                    used += parse_milli(((item.get("podUsage") or {}).get("resources") or {}).get("cpu", "0"))
            self._services[entry.key].append((entry.time, used))
        if entry.bucket != "node" or role_of(entry.author) != "manager" or entry.new is None:
            return
        offered, before = batch_of(entry.new), batch_of(entry.old)
        if offered is None or offered == before:
            return
        yield from self._judge(entry.key, entry.new, offered)

    def end(self) -> Iterator[str]:
        for name, node in sorted(self.history.of("node").items()):
            yield from self._judge(name, node, (batch_of(node) or 0) * self.slack)

    def open(self) -> bool:
        nodes = sorted(self.history.of("node").items())
        return any(True for name, node in nodes for _ in self._judge(name, node, (batch_of(node) or 0) * self.slack, self.reports))

    def _judge(self, name: str, node: Obj, offered: float, seconds: float = seconds) -> Iterator[str]:
        capacity = parse_milli(((node.get("status") or {}).get("capacity") or {}).get("cpu", "0"))
        since = self.history.clock() - seconds * self.history.pace
        services = min((used for at, used in self._services[name] if at > since), default=0)
        if offered > max(self.reclaimed * capacity - services, 0) + 1:
            yield f"{name} offers {batch_of(node)} milli-CPU of {capacity} to batch pods while its services use {services}"


class WhatIsLeftIsOffered(Invariant):
    """When all is calm, a node that reports offers batch pods at least half of what its reports and the requests on it leave for sure.

    Reports of a node whose clock is wrong look old, and so do those of all nodes to a manager with such a clock.
    """

    hears = frozenset({WORLD, NODE_METRIC, POD})
    reclaimed = PromisesAreBacked.reclaimed
    seconds = 55.0  # for which a node has left it, and reported
    report = 25.0  # for which it must have, for there to be more to see
    least = 500  # milli-CPU below which it is no matter

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._used: dict[str, list[tuple[float, int]]] = defaultdict(list)  # what the whole node used, by its reports
        self._asked: dict[str, float] = {}  # when what is requested of a node changed last
        self._wrong: list[str] = []  # whose clock is

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE_METRIC and entry.new is not None and role_of(entry.author) in ("kubelet", "koordlet"):
            found = (((entry.new.get("status") or {}).get("nodeMetric") or {}).get("nodeUsage") or {}).get("resources") or {}
            self._used[entry.key].append((entry.time, parse_milli(found.get("cpu", "0"))))
        elif entry.verb == "fault" and entry.key == "clock":
            self._wrong.append(entry.text.partition(" of ")[2].partition(" ")[0])
        elif entry.bucket == "pod" and (node := node_of(entry.obj)):
            self._asked[node] = entry.time if bound_by(entry) or entry.new is None else self._asked.get(node, entry.time)
        return iter(())

    def end(self) -> Iterator[str]:
        return self._kept_back(self.seconds, 2)

    def open(self) -> bool:
        return any(True for _ in self._kept_back(self.report, 1))

    def _kept_back(self, seconds: float, reports: int) -> Iterator[str]:
        if not any(role_of(program) == "manager" for program in self.history.programs):
            return
        if any(role_of(name) == "manager" for name in self._wrong):
            return
        for name, node in sorted(self.history.of("node").items()):
            since = self.history.clock() - seconds * self.history.pace
            lately = [used for at, used in self._used[name] if at >= since]
            if any(wrong.endswith(f"-{name}") for wrong in self._wrong) or len(lately) < reports or self._asked.get(name, since) > since:
                continue
            asked = sum(requests(pod).get("cpu", 0) for pod in self.pods_of(name))
            capacity = parse_milli(((node.get("status") or {}).get("capacity") or {}).get("cpu", "0"))
            left = int(self.reclaimed * capacity) - asked - max(lately)
            if left > self.least and (batch_of(node) or 0) < left / 2:
                yield f"{name} offers {batch_of(node)} of the {left} milli-CPU that are left on it for batch pods at least"


class BatchWithinPromise(Invariant):
    """Batch pods are assigned only within what the node offered lately."""

    hears = frozenset({"node", POD})
    seconds = 75.0  # in which a scheduler may act on an older cache

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._offers: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == "node" and (offered := batch_of(entry.new)) is not None:
            offers = self._offers[entry.key]
            if not offers or offers[-1][1] != offered:
                offers.append((entry.time, offered))
        if not bound_by(entry) or BATCH_CPU not in requests(entry.obj):
            return
        name, since = node_of(entry.new), entry.time - self.seconds * self.history.pace
        used = sum(requests(pod).get(BATCH_CPU, 0) for pod in self.pods_of(name))
        offers = self._offers[name]
        most = max([offered for at, offered in offers if at >= since] + [offered for at, offered in offers if at < since][-1:], default=0)
        if used > most:
            yield f"{entry.key} on {name}: batch-cpu {used} of {most}"
