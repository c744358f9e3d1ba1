"""Gangs: all or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import GANG, GANG_MIN, POD, Invariant, Obj, annotations_of, bound_by, node_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class GangWhole(Invariant):
    """When all is calm a gang has at least its minimum of members on nodes, or none that it never had whole."""

    hears = frozenset({POD})

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._ever: dict[str, set[str]] = defaultdict(set)

    def see(self, entry: Entry) -> Iterator[str]:
        if bound_by(entry) and (gang := annotations_of(entry.new).get(GANG)):
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
            if 0 < placed < least and len(self._ever[gang]) < least:
                yield f"{gang}: {placed} of {len(pods)} members have a node, its minimum is {least}"
