"""Where pods may be put: not on a node that does not take them, not into room that is held for others, not towards a closed node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from roles.sandbox.world.configuration import LOUD, POOL
from roles.sandbox.world.invariants.base import (
    MIGRATION_JOB,
    NODE,
    POD,
    RESERVATION,
    WORLD,
    Invariant,
    Obj,
    bound_by,
    finished,
    free,
    node_of,
    owner_of,
    requests,
    reservation_of,
    role_of,
)
from roles.sandbox.world.invariants.community import rules, tainted
from roles.sandbox.world.invariants.migrations import moves

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History

_NEVER = float("-inf")


class Snapshots(Invariant):
    """Follows since when nodes, and the pods on them, are as they are. `who` decides had heard of it if it was so for `lag` seconds, or
    much longer where it was hurt lately."""

    hears = frozenset({WORLD, POD, NODE})
    who: ClassVar[str]
    lag = 1.5
    hurt, after = 100.0, 150.0  # seconds for which it may not have heard, and for how long after a fault began that may be so

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._hurt = _NEVER
        self._changed: dict[str, float] = {}  # when a node's taints, cordon or labels did

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb == "fault":
            target = entry.text.partition(" of ")[2]
            if not target or target.startswith((self.who, "requests", "apiserver")):
                self._hurt = entry.time
        elif entry.bucket == NODE and rules(entry.old) != rules(entry.new):
            self._changed[entry.key] = entry.time
        return iter(())

    def known(self, now: float) -> float:
        """What was so before that time is known to who decides at `now`."""
        return now - (self.hurt if now - self._hurt < self.after else self.lag) * self.history.pace


class BoundWhereItMay(Snapshots):
    """A pod gets a node only that takes it: by its taints, its pool, the pods on it that one of them shuns, and by topology spread."""

    who = "scheduler"

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._moved: dict[str, float] = {}  # by node and by workload: when a pod came, left, or got other labels
        self._set = _NEVER  # when a node came or went

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket == NODE and (entry.old is None or entry.new is None):
            self._set = entry.time
        if entry.bucket != POD:
            return
        if bound_by(entry) and role_of(entry.author) == self.who and entry.time - self.history.wiped > self.after:
            yield from (f"{entry.key} got {node_of(entry.new)}: {why}" for why in self._refusals(entry))
        if _place(entry.old) != _place(entry.new):
            for one in (node_of(entry.old), node_of(entry.new), owner_of(entry.obj)):
                self._moved[one] = entry.time

    def _refusals(self, entry: Entry) -> Iterator[str]:
        pod, name = entry.obj, node_of(entry.new)
        node, known = self.history.of(NODE).get(name), self.known(self._decided(pod, entry.time))
        if node is None or self._changed.get(name, _NEVER) > known:
            return
        affinity = pod["spec"].get("affinity") or {}
        required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms") or ()
        if tainted(node) or node["spec"].get("unschedulable"):
            yield "its taints do not let it"
        if terms and (node["metadata"].get("labels") or {}).get(POOL) not in terms[0]["matchExpressions"][0]["values"]:
            yield "it is of another pool"
        if self._moved.get(name, _NEVER) <= known and any(_apart(pod, other) or _apart(other, pod) for other in self._others(pod, name)):
            yield "a pod is there beside which it may not be"
        constraints = pod["spec"].get("topologySpreadConstraints")
        if constraints and max(self._set, self._moved.get(owner_of(pod), _NEVER)) <= known:
            mine = [one for one in self.history.of(POD).values() if owner_of(one) == owner_of(pod)]
            there = Counter(node_of(one) for one in mine if not finished(one) and not one["metadata"].get("deletionTimestamp"))
            # who has no node yet may have been decided before: bindings are written in any order
            if not there[""] and there[name] - min(there[each] for each in self.history.of(NODE)) > int(constraints[0]["maxSkew"]):
                yield "its pods are spread unevenly then"

    def _others(self, pod: Obj, name: str) -> Iterator[Obj]:
        return (other for other in self.pods_of(name) if other["metadata"]["uid"] != pod["metadata"]["uid"])

    def _decided(self, pod: Obj, bound: float) -> float:
        """When the node was found: a binding whose answers were lost comes much later."""
        name = pod["metadata"]["name"]
        for time, _, record in reversed(self.history.records):
            if record.verdict == "Scheduled" and record.subject.name == name:
                return time
        return bound - self.hurt


def _place(pod: Obj | None) -> object:
    meta, spec, status = ((pod or {}).get(part) or {} for part in ("metadata", "spec", "status"))
    return spec.get("nodeName"), meta.get("labels"), meta.get("deletionTimestamp"), status.get("phase") in ("Succeeded", "Failed")


def _apart(pod: Obj, other: Obj) -> bool:
    """Whether a pod shuns another one: what workloads of a world shun is loud."""
    return bool((pod["spec"].get("affinity") or {}).get("podAntiAffinity")) and LOUD in (other["metadata"].get("labels") or {})


class ReservedIsHeld(Invariant):
    """The CPU and memory that a reservation holds on a node go to nobody else."""

    hears = frozenset({POD})
    seconds = 60.0  # after all was lost, in which a scheduler may believe in what was before

    def see(self, entry: Entry) -> Iterator[str]:
        if not bound_by(entry) or entry.time - self.history.wiped < self.seconds:
            return
        name = node_of(entry.new)
        held = [one for one in self.history.of(RESERVATION).values() if _holds(one, name)]
        if not held:
            return
        used = {reservation_of(pod) for pod in self.pods_of(name)}
        room = free(self, name)
        for one in held:
            if one["metadata"]["name"] in used:
                continue
            wants = requests({"spec": one["spec"]["template"]["spec"]})
            for resource, amount in ((each, wants[each]) for each in ("cpu", "memory") if each in wants):  # cards are DeviceOnce's
                left = room.get(resource, 0)
                room[resource] = left - amount
                if 0 <= left < amount:
                    yield f"{entry.key} on {name}: {resource} {left} are left of {amount} that {one['metadata']['name']} holds"


def _holds(reservation: Obj, node: str) -> bool:
    status = reservation.get("status") or {}
    return status.get("phase") == "Available" and status.get("nodeName") == node and not reservation["metadata"].get("deletionTimestamp")


class TargetsAreOpen(Snapshots):
    """No pod is moved towards a node that is tainted or cordoned."""

    who = "descheduler"
    lag = 3.0

    def see(self, entry: Entry) -> Iterator[str]:
        yield from super().see(entry)
        if entry.bucket != POD or not moves(self.history, entry):
            return
        for job in self.history.of(MIGRATION_JOB).values():
            status, pod = job.get("status") or {}, (job.get("spec") or {}).get("podRef") or {}
            target = str(status.get("nodeName") or "")
            if pod.get("uid") != entry.obj["metadata"]["uid"] or status.get("phase") != "Running" or not target:
                continue
            node = self.history.of(NODE).get(target)
            closed = tainted(node) or bool(((node or {}).get("spec") or {}).get("unschedulable"))
            if closed and self._changed.get(target, _NEVER) <= self.known(entry.time):
                yield f"{entry.key} moves to {target}, which takes no pods"
