"""Elastic quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.invariants.base import POD, QUOTA, QUOTA_LABEL, Invariant, Obj, bound_by, finished, free, node_of, requests

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class QuotaWithinMax(Invariant):
    """Pods of a quota are assigned only within its max."""

    hears = frozenset({POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._members: dict[str, set[str]] = defaultdict(set)  # keys of the pods that name a quota, or have

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != POD:
            return
        label = label_of(entry.obj)
        if label:
            (self._members[label].discard if entry.new is None else self._members[label].add)(entry.key)
        if not bound_by(entry):
            return
        quota = next((q for q in self.history.of(QUOTA).values() if q["metadata"]["name"] == label), None)
        if quota is None:
            return
        most = (quota.get("spec") or {}).get("max") or {}
        total: dict[str, int] = defaultdict(int)
        pods = self.history.of("pod")
        for key in self._members[label] & pods.keys():
            pod = pods[key]
            if node_of(pod) and not finished(pod) and label_of(pod) == label:
                for resource, amount in requests(pod).items():
                    total[resource] += amount
        for resource, limit in most.items():
            bound = parse_milli(limit) if resource == "cpu" else parse_value(limit)
            if total[resource] > bound:
                yield f"{entry.key}: quota {label} has {resource} {total[resource]} of {bound}"


class MinimumIsReturned(Invariant):
    """When all is calm a quota that is below its minimum does not wait for what it has lent to others.

    Where the nodes have so much room together, and no node has it, nothing that is lent is missing: others may keep what they have.
    """

    hears = frozenset({POD})
    seconds = 40.0  # for which a pod has waited: revoking takes its delay and the victims' grace

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._since: dict[str, float] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == "pod" and entry.verb == "ADDED":
            self._since[entry.key] = entry.time
        return iter(())

    def end(self) -> Iterator[str]:
        return self._waiting(self.seconds)

    def open(self) -> bool:
        return any(True for _ in self._waiting(0.0))

    def _waiting(self, seconds: float) -> Iterator[str]:
        quotas = {quota["metadata"]["name"]: quota.get("spec") or {} for quota in self.history.of(QUOTA).values()}
        used: dict[str, int] = defaultdict(int)
        for pod in self.pods():
            used[label_of(pod)] += requests(pod).get("cpu", 0)
        least_of = {name: parse_milli(spec["min"].get("cpu", "0")) for name, spec in quotas.items() if spec.get("min")}
        room = sum(max(free(self, name).get("cpu", 0), 0) for name in self.history.of("node"))
        lent = [name for name, least in least_of.items() if used[name] > least]
        for key, pod in sorted(self.history.of("pod").items()):
            name, wants = label_of(pod), requests(pod).get("cpu", 0)
            least = least_of.get(name, 0)
            waits = not node_of(pod) and not finished(pod) and not pod["metadata"].get("deletionTimestamp")
            if waits and wants > room and used[name] + wants <= least and self.history.clock() - self._since.get(key, 0.0) > seconds:
                others = [other for other in lent if other != name]
                if others:
                    yield f"{key} waits: {name} uses {used[name]} of the {least} it is guaranteed, {', '.join(others)} use more than theirs"


def label_of(pod: Obj) -> str:
    """The quota that a pod names, or ""."""
    return str((pod["metadata"].get("labels") or {}).get(QUOTA_LABEL) or "")
