"""One try of a gang group: its pods are taken one after another, nothing else in between (SCH-GANG-06, scheduler-job.md 10.7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import CycleContext

DRAFT = "Coscheduling"
"""Key in `CycleContext.drafts`."""


def drafted(ctx: CycleContext) -> Round | None:
    """The round as a decision would leave it, None for a pod that is in none."""
    found: Round | None = ctx.drafts.get(DRAFT)
    return found


@dataclass(slots=True)
class Round:
    """`gang` is the gang of the pod that began, `group` its group's id, `started` in seconds since the epoch.

    `failure` is why the first pod that found no node found none; `plan` maps pod UIDs to nodes where the whole group was planned.
    """

    gang: str
    group: str
    first: str
    started: float
    attempted: set[str] = field(default_factory=set)
    todo: deque[str] = field(default_factory=deque)
    failure: str = ""
    preempted: bool = False  # victims are going: members keep the nodes that they were planned on as nominations
    room_for: dict[str, str] = field(default_factory=dict)  # by plugin, the pod for which it looked for room
    doomed: PodInfo | None = None  # the member that found no node and for whose sake everybody gives his place back
    plan: dict[str, str] | None = None
    batch: bool = False  # the plan is carried out as one batch: whole, or not at all and without preemption
    offered: dict[str, int] = field(default_factory=dict)  # pods of the job that each node takes, as planned
    places: tuple[tuple[str, int], ...] = ()  # where the plan failed, how many pods each place in the network takes together
    unplanned: bool | None = None  # whether the plan failed, None before one is made

    def draft(self) -> Round:
        """The round as one decision leaves it. It shares what decisions do not change: pods are tried, and taken from the list, when
        decisions are carried out."""
        return replace(self)

    def follow(self, plan: dict[str, str]) -> None:
        """From now on only pods of a plan are tried, each on its node."""
        self.plan = plan
        self.todo = deque(uid for uid in plan if uid not in self.attempted)

    def next(self, ready: Callable[[], Iterable[PodInfo]]) -> str:
        """UID of a pod that was not tried yet, "" when all were. `ready` lists the pending pods; it is asked when the list is used up, so
        that pods that came meanwhile are tried too."""
        for fresh in (False, True):
            if fresh and self.plan is None:
                self.todo.extend(pod.uid for pod in ready() if pod.uid not in self.attempted)
            while self.todo:
                uid = self.todo.popleft()
                if uid not in self.attempted:
                    self.attempted.add(uid)
                    return uid
        return ""
