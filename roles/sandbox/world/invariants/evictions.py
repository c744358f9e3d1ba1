"""Pods that are asked to leave: why, how often, and for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from roles.sandbox.world.invariants.base import GANG, Invariant, annotations_of, role_of

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry, History


class EvictedOnce(Invariant):
    """No pod is asked to leave twice, nor one that has ended, nor by anybody who gives no reason."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._asked: dict[str, str] = {}

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket != "pod" or role_of(entry.author) not in ("scheduler", "descheduler", "manager"):
            return
        leaving = entry.verb == "DELETED" or (
            bool(((entry.new or {}).get("metadata") or {}).get("deletionTimestamp"))
            and not ((entry.old or {}).get("metadata") or {}).get("deletionTimestamp")
        )
        if not leaving:
            return
        uid = entry.obj["metadata"]["uid"]
        if uid in self._asked:
            yield f"{entry.key} was asked to leave by {self._asked[uid]} and again by {entry.author}"
        self._asked[uid] = entry.author
        conditions = (entry.obj.get("status") or {}).get("conditions") or ()
        if role_of(entry.author) == "scheduler" and not any(c["type"] == "DisruptionTarget" for c in conditions):
            yield f"{entry.key} was removed by {entry.author} without a reason"


class OneNodeMakesRoom(Invariant):
    """For one pod that needs room, pods of one node are asked to leave, and the gangs of these; for a gang, of a node a member at most."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._nodes: dict[str, set[str]] = defaultdict(set)
        self._gangs: dict[str, set[str]] = defaultdict(set)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.bucket not in ("event", "event.events.k8s.io") or entry.verb != "ADDED" or entry.obj.get("reason") != "Preempted":
            return
        note = str(entry.obj.get("note") or entry.obj.get("message") or "")
        regarding = entry.obj.get("regarding") or entry.obj.get("involvedObject") or {}
        preemptor = note.partition("Preempted by ")[2].partition(" on node ")[0]
        node = note.partition(" on node ")[2].split(" ")[0].rstrip(".")
        victim = self.history.of("pod").get(f"{regarding.get('namespace')}/{regarding.get('name')}")
        gang = annotations_of(victim).get(GANG, "")
        if not preemptor.startswith("pod ") or not node:
            return
        nodes, gangs = self._nodes[preemptor], self._gangs[preemptor]
        if node not in nodes and len(nodes) >= self._members(preemptor.removeprefix("pod ")) and not (gang and gang in gangs):
            yield f"for {preemptor} pods of {', '.join(sorted(nodes | {node}))} were removed (last {regarding.get('name')})"
        nodes.add(node)
        gangs.add(gang)

    def _members(self, uid: str) -> int:
        """How many pods make room for themselves together with this one."""
        pods = self.history.of("pod").values()
        gang = next((annotations_of(pod).get(GANG, "") for pod in pods if pod["metadata"]["uid"] == uid), "")
        return sum(annotations_of(pod).get(GANG) == gang for pod in pods) if gang else 1
