"""Pods that a permit plugin holds: allowed, rejected or timed out, each once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.status import Status, error, unschedulable

Resume = Callable[[Status], None]


@dataclass(slots=True)
class WaitingPod:
    """A held pod. `deadlines` are by plugin that holds it still, in seconds; `resume` is called with success or the refusal."""

    pod: PodInfo
    node: str
    deadlines: dict[str, float]
    resume: Resume


class WaitingPods:
    """All held pods of a process, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}
        self._ends: list[
            tuple[float, str]
        ] = []  # a heap of when waits may be over; those of pods that are not held any more are passed over

    def hold(self, pod: PodInfo, node: str, waits: dict[str, float], now: float, resume: Resume) -> None:
        """Hold a pod for the plugins in `waits` (seconds each; however long: a gang may wait for hours)."""
        deadlines = {plugin: now + timeout for plugin, timeout in waits.items()}
        self._pods[pod.uid] = WaitingPod(pod, node, deadlines, resume)
        heapq.heappush(self._ends, (min(deadlines.values()), pod.uid))

    def allow(self, uid: str, plugin: str) -> None:
        """A plugin lets a pod go; it goes when all that hold it do."""
        waiting = self._pods.get(uid)
        if waiting is None or waiting.deadlines.pop(plugin, None) is None:
            return
        if waiting.deadlines:
            heapq.heappush(self._ends, (min(waiting.deadlines.values()), uid))
        else:
            del self._pods[uid]
            waiting.resume(Status())

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        """Send a held pod back; False when it is not held."""
        waiting = self._pods.pop(uid, None)
        if waiting is None:
            return False
        waiting.resume(unschedulable(reason).by(plugin))
        return True

    def fail(self, uid: str, reason: str) -> None:
        """Send a held pod back, by no plugin's will: it is tried again after a rest."""
        waiting = self._pods.pop(uid, None)
        if waiting is not None:
            waiting.resume(error(reason))

    def drop(self, uid: str) -> None:
        """A pod is held no longer, and nobody need be told."""
        self._pods.pop(uid, None)

    def expire(self, now: float) -> int:
        """Reject pods whose shortest wait is over; returns how many."""
        over = 0
        while (time := self.next_deadline()) is not None and time <= now:
            uid = heapq.heappop(self._ends)[1]
            deadlines = self._pods[uid].deadlines
            plugin = min(deadlines, key=deadlines.__getitem__)
            self.reject(uid, plugin, f"timed out waiting on permit by {plugin}")
            over += 1
        return over

    def next_deadline(self) -> float | None:
        """When the next wait is over, None when nobody waits."""
        ends = self._ends
        while ends and not self._holds(*ends[0]):
            heapq.heappop(ends)
        return ends[0][0] if ends else None

    def _holds(self, time: float, uid: str) -> bool:
        waiting = self._pods.get(uid)
        return waiting is not None and min(waiting.deadlines.values()) == time

    def get(self, uid: str) -> WaitingPod | None:
        """A held pod."""
        return self._pods.get(uid)

    def all(self) -> Iterable[WaitingPod]:
        """All held pods."""
        return list(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)
