"""Gangs: all or nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import GANG, GANG_MIN, NODE, POD, Invariant, Obj, annotations_of, bound_by, node_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class GangWhole(Invariant):
    """When all is calm a gang has at least its minimum of members on nodes, or none that it never had whole.

    A member counts as placed that was released with the others and whose node was closed or left before its binding was done."""

    hears = frozenset({POD, NODE})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._ever: dict[str, set[str]] = defaultdict(set)
        self._lost: dict[str, float] = {}  # when a node was closed or removed last

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket == NODE and _closed(entry.new) and not _closed(entry.old):
            self._lost[entry.key] = entry.time
        elif bound_by(entry) and (gang := annotations_of(entry.new).get(GANG)):
            self._ever[gang].add(entry.obj["metadata"]["uid"])
        return iter(())

    def end(self) -> Iterator[str]:
        members: dict[str, list[Obj]] = defaultdict(list)
        for pod in self.history.of("pod").values():
            gang = annotations_of(pod).get(GANG)
            if gang and not pod["metadata"].get("deletionTimestamp"):
                members[gang].append(pod)
        for gang, pods in sorted(members.items()):
            least = int(annotations_of(pods[0]).get(GANG_MIN, "1"))
            placed = sum(1 for pod in pods if node_of(pod))
            if 0 < placed < least and len(self._ever[gang]) + self._deprived(gang, pods) < least:
                yield f"{gang}: {placed} of {len(pods)} members have a node, its minimum is {least}"

    def _deprived(self, gang: str, pods: list[Obj]) -> int:
        """How many members without a node were released to one that was then closed or removed."""
        records = [(time, each.verdict, each) for time, _, each in self.history.records]
        whole = max((time for time, verdict, each in records if verdict == "Released" and each.subject.name == gang), default=math.inf)
        chosen = {each.subject.name: each.message.rpartition(" ")[2] for *when, each in records if when == [whole, "Scheduled"]}
        nodes = (chosen.get(pod["metadata"]["name"], "") for pod in pods if not node_of(pod))
        return sum(1 for node in nodes if self._lost.get(node, -math.inf) > whole)


def _closed(node: Obj | None) -> bool:
    spec = (node or {"spec": {"unschedulable": True}}).get("spec") or {}
    return bool(spec.get("unschedulable") or spec.get("taints"))
