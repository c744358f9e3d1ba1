"""When faults have stopped all goes well again, and then nothing more happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.invariants.base import (
    DEVICE,
    GANG,
    LEASES,
    MIGRATION_JOB,
    POD,
    QUOTA_LABEL,
    RESERVATION,
    WORLD,
    Invariant,
    annotations_of,
    finished,
    node_of,
    owner_of,
    picky,
    requests,
    role_of,
)
from roles.sandbox.world.invariants.claims import claimed
from roles.sandbox.world.invariants.placement import cards_used

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History, Obj

RESTLESS = ("/leases/", "/events", "/elasticquotas", "/nodemetrics")
"""Collections whose objects change as long as anything is in use."""


BACK_OFF = 10.0
"""Seconds within which a pod that waits is tried again after something has changed."""


class WhatFitsIsBound(Invariant):
    """When all is calm no pod waits that fits onto a node by its plain requests."""

    def _just_changed(self) -> set[str]:
        """Nodes that got room, and pods that came, so lately that nobody need have tried yet."""
        found = set()
        for entry in reversed(self.history.entries):
            if entry.time < self.history.clock() - BACK_OFF:
                break
            if entry.bucket == "pod" and entry.old is None:
                found.add(entry.key)
            if entry.bucket == "pod" and node_of(entry.old) and (entry.new is None or finished(entry.new)):
                found.add(node_of(entry.old))
            if entry.bucket == RESERVATION and entry.old is not None and _holds(entry.old) and not _holds(entry.new):
                found.add(entry.old["status"]["nodeName"])
            if entry.bucket == "node" and _room(entry.old) != _room(entry.new):
                found.add(entry.key)
        return found

    def end(self) -> Iterator[str]:
        return self._waiting(self._just_changed())

    def open(self) -> bool:
        return any(True for _ in self._waiting(set()))

    def _waiting(self, fresh: set[str]) -> Iterator[str]:
        free: dict[str, dict[str, int]] = {}
        for name, node in self.history.of("node").items():
            room = (node.get("status") or {}).get("allocatable") or {}
            if name in fresh or (node.get("spec") or {}).get("unschedulable") or (node.get("spec") or {}).get("taints"):
                continue
            free[name] = {key: parse_milli(value) if key == "cpu" else parse_value(value) for key, value in room.items()}
        held = any(map(_holds, self.history.of(RESERVATION).values()))
        for pod in self.pods():
            for resource, amount in requests(pod).items():
                if resource in free.get(node_of(pod), {}):
                    free[node_of(pod)][resource] -= amount
        cards = cards_used(self.pods())
        for card in claimed(self.history):
            cards[card] += 100
        places = sorted(free.items())
        for key, pod in sorted(self.history.of("pod").items()):
            if node_of(pod) or finished(pod) or pod["metadata"].get("deletionTimestamp") or annotations_of(pod).get(GANG) or held:
                continue
            if picky(pod) or key in fresh:
                continue
            labels = pod["metadata"].get("labels") or {}
            if labels.get(QUOTA_LABEL) or labels.get("koordinator.sh/qosClass") in ("LSE", "LSR"):
                continue  # CPUs of its own are more than so much CPU
            wants = requests(pod)
            count = sum(int(reference["name"].rpartition("-")[2]) for reference in pod["spec"].get("resourceClaims") or ())
            for place, left in places:
                share = wants.get("koordinator.sh/gpu-core", 0)
                devices = ((self.history.of(DEVICE).get(place) or {}).get("spec") or {}).get("devices") or ()
                if share and all(cards.get((place, "gpu", device["minor"]), 0) + share > 100 for device in devices):
                    continue
                if count and sum(not cards.get((place, "gpu", device["minor"])) for device in devices) < count:
                    continue
                if all(left.get(resource, 0) >= amount for resource, amount in wants.items()):
                    yield f"{key} waits although {place} has room for {dict(wants)}"
                    break


def _room(node: Obj | None) -> object:
    return ((node or {}).get("status") or {}).get("allocatable")


def _holds(reservation: Obj | None) -> bool:
    """Whether a reservation keeps room on a node."""
    return ((reservation or {}).get("status") or {}).get("phase") == "Available"


class NobodyCrashes(Invariant):
    """A role ends because it is asked to, has lost its lease, or met no API server, or not its namespace, for too long at its start, and of
    nothing else."""

    hears = frozenset({WORLD})

    def see(self, entry: Entry) -> Iterator[str]:
        role = role_of(entry.key)
        if entry.verb != "ended" or entry.text == "ended":
            return
        causes = ("connection refused", 'namespaces "koordinator-system" not found')
        unheard = "the first webhook sync did not finish" in entry.text and any(cause in entry.text for cause in causes)
        if role == "koordlet" or (role in LEASES and "lease" not in entry.text and not unheard):
            yield f"{entry.key} ended: {entry.text}"


class NothingIsDeadInside(Invariant):
    """When all is calm no task of a role has died without anybody's notice, and every role says that it is well."""

    def end(self) -> Iterator[str]:
        for name, what in self.history.ailments():
            yield f"{name}: {what}"


class ItSettles(Invariant):
    """When all is calm nobody sends the same write again and again, whatever comes of it.

    A pod may still be bound late: what a node offers to batch pods follows its use, which goes on changing. Of what a descheduler makes
    that counts as the same which is for the same workload, or the same migration: hot nodes may have more pods to give.
    """

    hears = frozenset({WORLD, POD})
    seconds = 20.0
    most = 3  # writes of one object: annotations, the binding, a condition
    steps = 14  # status writes of one migration from its begin to its end
    places = 6  # of one reservation: unschedulable, why that is so by now, available, its owners, succeeded or expired
    tries, young = 5, 8.0  # of a pod that was made within so many seconds before: after 1, 2, 4 and 8 s there may be another reason

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._owner: dict[str, str] = {}  # of pods, by uid; they may be gone
        self._made: dict[str, float] = {}  # when pods were made, by the path of their status

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == POD and entry.verb == "ADDED":
            meta = entry.obj["metadata"]
            self._owner[meta["uid"]] = owner_of(entry.obj)
            self._made[f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"] = entry.time
        return iter(())

    def end(self) -> Iterator[str]:
        since = self.history.clock() - self.seconds
        late: dict[tuple[str, str], int] = defaultdict(int)
        made: dict[tuple[str, str], int] = defaultdict(int)  # objects by who made them, and where
        for entry in reversed(self.history.entries):
            if entry.time <= since:
                break
            if entry.verb == "ADDED" and (why := self._made_for(entry)):
                late[entry.author, f"a {entry.obj['kind']} for {why}"] += 1
                made[entry.author, entry.request.partition("?")[0]] += 1
        for request in reversed(self.history.requests):
            if request.time <= since:
                break
            path = request.path.partition("?")[0]
            if request.method != "GET" and role_of(request.author) in LEASES and not any(part in path for part in RESTLESS):
                late[request.author, f"{request.method} {path}"] += 1
        for place, count in made.items():  # those that were refused remain
            late[place] -= count
        for (author, what), times in sorted(late.items()):
            most = self.steps if "/podmigrationjobs/" in what else self.most
            if what.endswith("/status") and "/reservations/" in what:
                most = self.places
            elif self._made.get(what.partition(" ")[2], float("-inf")) > since - self.young:
                most = self.tries
            if times > most:
                yield f"{author} sent {what} {times} times in the last {self.seconds:.0f} s"

    def _made_for(self, entry: Entry) -> str:
        """The workload whose pod is to migrate, or the migration that a place is held for; "" for what neither is."""
        obj = entry.obj
        if entry.bucket == MIGRATION_JOB:
            return self._owner.get(obj["spec"]["podRef"].get("uid", ""), "")
        if entry.bucket == RESERVATION:
            return next((owner["name"] for owner in obj["metadata"].get("ownerReferences") or ()), "")
        return ""


class NobodySpins(Invariant):
    """When all is calm a pod that nobody has room for is not tried more often than its backoff allows."""

    seconds = 30.0
    most = 12  # the first pauses are 1, 2, 4 and 8 s, then 10 s; a cycle that begins anew may begin with them

    def end(self) -> Iterator[str]:
        since = self.history.clock() - self.seconds
        tried: dict[tuple[str, str], int] = defaultdict(int)
        for time, name, record in reversed(self.history.records):
            if time <= since:
                break
            if role_of(name) == "scheduler" and record.subject.kind == "Pod" and record.role == "scheduler":
                tried[name, str(record.subject)] += 1
        for (name, pod), times in sorted(tried.items()):
            if times > self.most:
                yield f"{name} decided {times} times about {pod} in the last {self.seconds:.0f} s"
