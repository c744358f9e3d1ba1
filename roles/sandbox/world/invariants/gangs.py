"""Gangs: all or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from roles.sandbox.world.invariants.base import GANG, GANG_MIN, Invariant, Obj, annotations_of, bound_by, node_of


class GangWhole(Invariant):
    """When all is calm a gang has at least its minimum of members on nodes, or none that it never had whole."""

    def end(self) -> Iterator[str]:
        members: dict[str, list[Obj]] = defaultdict(list)
        for pod in self.history.of("pod").values():
            gang = annotations_of(pod).get(GANG)
            if gang and not pod["metadata"].get("deletionTimestamp"):
                members[gang].append(pod)
        for gang, pods in sorted(members.items()):
            least = int(annotations_of(pods[0]).get(GANG_MIN, "1"))
            placed = sum(1 for pod in pods if node_of(pod))
            ever = {e.obj["metadata"]["uid"] for e in self.history.entries if bound_by(e) and annotations_of(e.new).get(GANG) == gang}
            if 0 < placed < least and len(ever) < least:
                yield f"{gang}: {placed} of {len(pods)} members have a node, its minimum is {least}"
