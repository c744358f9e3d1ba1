"""When faults have stopped all goes well again, and then nothing more happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.invariants.base import (
    ANYBODYS,
    GANG,
    LEASES,
    QUOTA,
    QUOTA_LABEL,
    RESERVATION,
    Invariant,
    annotations_of,
    finished,
    node_of,
    requests,
    role_of,
)

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry


class WhatFitsIsBound(Invariant):
    """When all is calm no pod waits that fits onto a node by its plain requests."""

    def end(self) -> Iterator[str]:
        free: dict[str, dict[str, int]] = {}
        for name, node in self.history.of("node").items():
            room = (node.get("status") or {}).get("allocatable") or {}
            if (node.get("spec") or {}).get("unschedulable") or (node.get("spec") or {}).get("taints"):
                continue
            free[name] = {key: parse_milli(value) if key == "cpu" else parse_value(value) for key, value in room.items()}
        held = [r for r in self.history.of(RESERVATION).values() if (r.get("status") or {}).get("phase") == "Available"]
        for pod in self.pods():
            for resource, amount in requests(pod).items():
                if resource in free.get(node_of(pod), {}):
                    free[node_of(pod)][resource] -= amount
        for key, pod in sorted(self.history.of("pod").items()):
            if node_of(pod) or finished(pod) or pod["metadata"].get("deletionTimestamp") or annotations_of(pod).get(GANG) or held:
                continue
            labels = pod["metadata"].get("labels") or {}
            if labels.get(QUOTA_LABEL) or labels.get("koordinator.sh/qosClass") in ("LSE", "LSR"):
                continue  # CPUs of its own are more than so much CPU
            wants = requests(pod)
            for place, left in sorted(free.items()):
                if all(left.get(resource, 0) >= amount for resource, amount in wants.items()):
                    yield f"{key} waits although {place} has room for {dict(wants)}"
                    break


class NobodyCrashes(Invariant):
    """A role ends because it is asked to or has lost its lease, and of nothing else."""

    allowed = ("lost", "lease", "ended", "the first webhook sync")

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.verb != "ended":
            return
        role = role_of(entry.key)
        crashed = entry.text != "ended" if role == "koordlet" else not any(word in entry.text for word in self.allowed)
        if crashed and (role in LEASES or role == "koordlet"):
            yield f"{entry.key} ended: {entry.text}"


class ItSettles(Invariant):
    """When all is calm schedulers and deschedulers write nothing again and again.

    A pod may still be bound late: what a node offers to batch pods follows its use, which goes on changing.
    """

    seconds = 20.0
    most = 3  # writes of one object: annotations, the binding, a condition

    def end(self) -> Iterator[str]:
        since = self.history.clock() - self.seconds
        late: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in reversed(self.history.entries):
            if entry.time <= since:
                break
            if role_of(entry.author) in ("scheduler", "descheduler") and entry.bucket not in ANYBODYS | {QUOTA}:
                late[entry.bucket, entry.key].append(entry)
        for (_, key), entries in sorted(late.items()):
            if len(entries) > self.most:
                yield f"{len(entries)} writes of {key} in the last {self.seconds:.0f} s, the last {entries[0].author} {entries[0].request}"
