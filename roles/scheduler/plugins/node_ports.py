"""NodePorts: refuse nodes on which a wanted host port is taken (SCH-KS-10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from roles.scheduler.cluster.changes import PODS
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.framework.context import CycleContext, Rows
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent, Subscription
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.interfaces import Codes, Filter, PreFilter, Rejection
from roles.scheduler.framework.status import SKIP, SUCCESS, Status

_ANY_IP = "0.0.0.0"
_TAKEN = Rejection(("node(s) didn't have free ports for the requested pod ports",))


class PortColumns(Columns):
    """Host ports in use: (protocol, port) -> slot -> how many pods hold it by IP."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, int], dict[int, Counter[str]]] = {}

    def pod_added(self, slot: int, pod: PodInfo) -> None:
        for protocol, ip, port in pod.shape.ports:
            self._used.setdefault((protocol, port), {}).setdefault(slot, Counter())[ip] += 1

    def pod_removed(self, slot: int, pod: PodInfo) -> None:
        for protocol, ip, port in pod.shape.ports:
            holders = self._used[protocol, port]
            count = holders[slot]
            count[ip] -= 1
            if not count[ip]:
                del count[ip]
            if not count:
                del holders[slot]
            if not holders:
                del self._used[protocol, port]

    def conflicting(self, ports: Sequence[tuple[str, str, int]], rows: Sequence[int]) -> set[int]:
        """Of some slots, those that hold one of the ports on an IP that collides."""
        found: set[int] = set()
        for protocol, ip, port in ports:
            holders = self._used.get((protocol, port), {})
            found.update(slot for slot in holders.keys() & rows if ip == _ANY_IP or ip in holders[slot] or _ANY_IP in holders[slot])
        return found


def clash(one: PodShape, other: PodShape) -> bool:
    """Whether pods of two shapes want the same host port."""
    return any(
        (protocol, port) == (p, q) and (ip == i or _ANY_IP in (ip, i)) for protocol, ip, port in one.ports for p, i, q in other.ports
    )


class NodePorts(PreFilter, Filter):
    """Skips pods without host ports."""

    name = "NodePorts"
    reads = PODS

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ports = handle.cluster.register("NodePorts", PortColumns())

    def pre_filter(self, ctx: CycleContext) -> Status:
        return SUCCESS if ctx.pod.shape.ports else SKIP

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        slots = ctx.cluster.slots[rows]
        taken = self._ports.conflicting(ctx.pod.shape.ports, slots.tolist())
        return np.isin(slots, list(taken)) if taken else None

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        return clash(ctx.pod.shape, other)

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        return _TAKEN

    def subscriptions(self) -> Sequence[Subscription]:
        return (Subscription(ASSIGNED_POD, Action.DELETE, _frees_port), Subscription(NODE, Action.ADD))


def _frees_port(pod: PodInfo, event: ClusterEvent) -> bool:
    wanted = {(protocol, port) for protocol, _, port in pod.shape.ports}
    return event.old is not None and any((protocol, port) in wanted for protocol, _, port in event.old.shape.ports)
