"""What is remembered of one container of a workload: histograms of its usage, shared by all replicas (MGR-REC-01)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from koord.accounting.histogram import RECOMMENDER_CPU, RECOMMENDER_MEMORY, CheckpointError, DecayingHistogram
from roles.manager.recommender.memory import HOUR, OOM_BUMP, OOM_FACTOR, MemoryHistory
from roles.manager.recommender.policy import DAY, EXPIRES_AFTER, Policy

MIN_CPU_WEIGHT = 0.1
RECENT_HALF_LIFE = 6 * HOUR
"""Of what a pod follows that is resized in place: its target may move at any time."""


@dataclass(slots=True)
class _Peak:
    """The highest memory of one replica's container in its present window of a day."""

    begin: float
    value: float
    time: float
    counted: bool = True
    """Whether it is in the histogram for this replica; else the highest one of all replicas before a restart stands for it."""


class ContainerGroup:
    """All replicas of one container. Times are seconds since the epoch; replicas are told apart by pod uid."""

    def __init__(self, half_life: float, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.cpu = DecayingHistogram(RECOMMENDER_CPU, half_life)
        self.recent_cpu = DecayingHistogram(RECOMMENDER_CPU, RECENT_HALF_LIFE)
        self.history = MemoryHistory()
        self.memory = DecayingHistogram(RECOMMENDER_MEMORY, half_life)
        self.first = 0.0
        self.last = 0.0
        self.samples = 0
        self.covered = 0.0  # seconds that samples stand for: until the next one, an hour at most
        self._newest: dict[str, float] = {}
        self._peaks: dict[str, _Peak] = {}
        self._kills: dict[str, float] = {}
        # From before a restart, for all replicas together: a checkpoint does not grow with them.
        self._known_until = 0.0
        self._open: _Peak | None = None

    def add(self, replica: str, time: float, *, cpu: float, memory: float, cpu_request: float, now: float = inf) -> bool:
        """A usage sample: CPU and its request in cores, memory in bytes. False when it is not newer than the replica's last one.

        `time` is by the clock of the replica's node; one that is ahead of `now` is told as of now, and what it said is no bar to what is
        measured once it was put right. What is negative was not measured, and would make the checkpoint unreadable.
        """
        if cpu < 0 or memory < 0 or time < 0:
            return False
        if _seen(time, self._known_until or -inf, now) or _seen(time, self._newest.get(replica, -inf), now):
            return False
        self._newest[replica] = time
        time = min(time, now)
        self.cpu.add(cpu, max(cpu_request, MIN_CPU_WEIGHT), time)
        self.recent_cpu.add(cpu, 1.0, time)
        self.history.feed(time, memory, self.memory_percentile)
        self._remember_peak(replica, memory, time)
        if self.samples and time > self.last:
            self.covered += min(time - self.last, HOUR)
        self.first = min(self.first, time) if self.samples else time
        self.last = max(self.last, time)
        self.samples += 1
        return True

    def memory_percentile(self) -> float:
        """The policy's percentile of daily peaks, with its margin; bytes."""
        return self.memory.percentile(self.policy.memory_percentile) * (1 + self.policy.margin)

    def out_of_memory(self, replica: str, time: float, *, request: float, now: float = inf) -> bool:
        """The kernel killed the container: it needed more than it had, so its peak is raised. `request`: what it had, in bytes.

        False when that kill is known: a pod's status tells of it until the next one. `time` and `now` as in `add`.
        """
        if time < 0 or _seen(time, self._kills.get(replica, self._known_until), now):
            return False
        self._kills[replica] = time
        time = min(time, now)
        if request:
            self.history.killed(request)
        peak = self._peaks.get(replica)
        seen = max(peak.value if peak is not None else 0.0, request)
        self._remember_peak(replica, max(seen * OOM_FACTOR, seen + OOM_BUMP), time)
        self.last = max(self.last, time)
        return True

    def _remember_peak(self, replica: str, value: float, time: float) -> None:
        peak = self._peaks.get(replica)
        if peak is None and self._open is not None:
            peak = self._peaks[replica] = replace(self._open, counted=False)
        if peak is None or time >= peak.begin + DAY:
            self._peaks[replica] = _Peak(time, value, time)
        elif value > peak.value:
            if peak.counted:
                self.memory.subtract(peak.value, 1.0, peak.time)
            peak.value, peak.time, peak.counted = value, time, True
        else:
            return
        self.memory.add(value, 1.0, time)

    def forget_replicas(self, present: frozenset[str]) -> None:
        """Drop what is kept of each replica that is gone; its samples stay in the histograms."""
        for table in (self._newest, self._peaks, self._kills):
            for replica in table.keys() - present:
                del table[replica]

    def expired(self, now: float) -> bool:
        """Whether there was no sample for eight days."""
        return now - self.last > EXPIRES_AFTER

    @property
    def confidence(self) -> float:
        """Days of history, as far as samples cover them; each stands for an hour at most."""
        return min(self.last - self.first, self.covered) / DAY

    # ---------------------------------------------------------------- checkpoints

    def to_checkpoint(self) -> dict[str, Any]:
        """A JSON-able copy."""
        return {
            "cpu": self.cpu.to_checkpoint(),
            "memory": self.memory.to_checkpoint(),
            "first": self.first,
            "last": self.last,
            "samples": self.samples,
            "covered": self.covered,
            "recentCPU": self.recent_cpu.to_checkpoint(),
            "history": self.history.to_checkpoint(),
            **({"open": [peak.begin, peak.value, peak.time]} if (peak := self._highest_open()) else {}),
        }

    def _highest_open(self) -> _Peak | None:
        """The highest peak of a window that is not over."""
        present = [peak for peak in (*self._peaks.values(), self._open) if peak is not None and self.last < peak.begin + DAY]
        return max(present, key=lambda peak: peak.value, default=None)

    @classmethod
    def from_checkpoint(cls, half_life: float, data: Mapping[str, Any], policy: Policy | None = None) -> ContainerGroup:
        """The group of a checkpoint. Raises CheckpointError saying what is wrong with it."""
        group = cls(half_life, policy)
        group.cpu = DecayingHistogram.from_checkpoint(RECOMMENDER_CPU, half_life, _part(data, "cpu"))
        group.memory = DecayingHistogram.from_checkpoint(RECOMMENDER_MEMORY, half_life, _part(data, "memory"))
        group.first, group.last = _number(data.get("first"), "first"), _number(data.get("last"), "last")
        group.samples = int(_number(data.get("samples"), "samples"))
        # Earlier versions counted samples, one a minute, and kept neither recent CPU nor the history.
        group.covered = _number(data.get("covered", min(group.samples * 60.0, group.last - group.first)), "covered")
        group.recent_cpu = DecayingHistogram.from_checkpoint(RECOMMENDER_CPU, RECENT_HALF_LIFE, _part(data, "recentCPU"))
        group.history = MemoryHistory.from_checkpoint(_part(data, "history"))
        group._known_until = group.last
        # Earlier versions wrote the peaks of all replicas.
        peaks = [_peak(numbers, f"peaks.{replica}") for replica, numbers in _part(data, "peaks").items()]
        if "open" in data:
            peaks.append(_peak(data["open"], "open"))
        group._open = max(peaks, key=lambda peak: peak.value, default=None)
        return group


def _seen(time: float, last: float, now: float) -> bool:
    """Whether what is told of `time` was there when `last` was the newest; a `last` that is still to come was by a clock that was ahead."""
    return time == last or time < last <= now


def _peak(numbers: Any, where: str) -> _Peak:
    if not isinstance(numbers, list) or len(numbers) != 3:
        raise CheckpointError(f"{where}: a list of three numbers is wanted")
    begin, value, time = (_number(number, where) for number in numbers)
    return _Peak(begin, value, time)


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{name}: a map is wanted, not {type(found).__name__}")
    return found


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 63:
        raise CheckpointError(f"{where}: {value!r} is not a number from 0 to 2^63")
    return float(value)
