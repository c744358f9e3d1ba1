"""A pod in the queue, with what the queue remembers of its former attempts."""

from __future__ import annotations

from typing import Any

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.events import Action, ClusterEvent

ACTIVE = "active"
BACKOFF = "backoff"
UNSCHEDULABLE = "unschedulable"
GATED = "gated"
IN_FLIGHT = "in-flight"


class Entry:
    """Times are seconds. `failures` counts consecutive rejections, `errors` consecutive internal errors; both set the backoff."""

    __slots__ = (
        "attempts", "changes", "entered", "errors", "failures", "first_attempt", "gate", "key", "pending", "pod", "ready_at", "rejected_by",
        "since_event", "state", "stopped", "ticket",
    )  # fmt: skip

    def __init__(self, pod: PodInfo, now: float) -> None:
        self.pod = pod
        self.entered = now
        self.attempts = 0
        self.failures = 0
        self.errors = 0
        self.first_attempt: float | None = None
        self.stopped = now
        self.ready_at = now
        self.rejected_by: frozenset[str] = frozenset()
        self.pending = False
        self.gate = ""
        self.state = ""
        self.key: tuple[Any, ...] = ()
        self.ticket = 0
        self.since_event = 0
        self.changes: dict[Action, ClusterEvent] = {}  # of the pod itself while it is in flight

    def __repr__(self) -> str:
        return f"Entry({self.pod.key}, {self.state})"
