"""What it means to lead: the fence that writers pass, the times of a lease, the name of whoever competes for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from koord import seams

JITTER = 1.2  # a retry comes after the retry period times a random number up to this


class Fence(Protocol):
    """Whether a write may leave this process. It is asked in the step in which the bytes go out."""

    @property
    def held(self) -> bool:
        """Whether it may at this very moment."""
        ...

    @property
    def remaining(self) -> float:
        """Seconds for which that is certain; 0 if it is not held."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Raises ValueError unless lease duration > renew deadline > 1.2 × retry period > 0."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if min(self.lease_duration, self.renew_deadline, self.retry_period) <= 0:
            raise ValueError("leader election: leaseDuration, renewDeadline and retryPeriod must be greater than 0")
        if self.lease_duration <= self.renew_deadline:
            raise ValueError(
                f"leader election: leaseDuration ({self.lease_duration:g}s) must be greater than renewDeadline ({self.renew_deadline:g}s)"
            )
        if self.renew_deadline <= JITTER * self.retry_period:
            least = f"{JITTER} × retryPeriod ({self.retry_period:g}s)"
            raise ValueError(f"leader election: renewDeadline ({self.renew_deadline:g}s) must be greater than {least}")


class Leadership:
    """What the leader holds: the fence of its writes. It is made before the election, so that clients can be made with it.

    `held` looks at the clock: it is False from the moment the renew deadline has passed since the last renewal *was sent*, also
    if the process stood still or a request hangs. `lost` is set (a little later, by the loop) when it is over, for good.
    Another thread may extend and end it.
    """

    def __init__(self, renew_deadline: float, clock: Callable[[], float] = seams.boot_time) -> None:
        self._deadline = renew_deadline
        self._clock = clock
        self._until = float("-inf")
        self.over = False  # it has ended
        self._released = False
        self.lost = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether we lead at this very moment."""
        return not self.over and self._clock() < self._until

    @property
    def remaining(self) -> float:
        """Seconds for which `held` is certain without another renewal; 0 if it is not held."""
        return max(0.0, self._until - self._clock()) if self.held else 0.0

    @property
    def renewed_at(self) -> float:
        """When the last renewal was sent, by our clock; minus infinity if there was none."""
        return self._until - self._deadline

    @property
    def reports(self) -> Fence:
        """The fence of what only tells, events: closed once the lease has run out, open before it was taken and after an orderly end."""
        return _Reports(self)

    def extend(self, sent_at: float) -> None:
        """A renewal that was sent at `sent_at` has succeeded."""
        self._until = sent_at + self._deadline

    def end(self, *, released: bool = False) -> None:
        """It is over; `released`: by our own will. Callable from any thread; `lost` is set by whoever has the loop."""
        if not self.over:
            self._released = released and self._clock() < self._until
            self.over = True


@dataclass(frozen=True, slots=True)
class _Reports:
    leadership: Leadership

    @property
    def held(self) -> bool:
        leadership = self.leadership
        return leadership._until == float("-inf") or leadership._released or leadership.held

    @property
    def remaining(self) -> float:
        return (self.leadership.remaining or float("inf")) if self.held else 0.0


WRITE_AGE = 15.0
"""Seconds after which a fenced write that has not left is given up: what it was decided on is not so any more."""


class Fresh:
    """A fence that also closes by itself, `seconds` from now: what is sent later would be decided anew."""

    __slots__ = ("_fence", "_until")

    def __init__(self, fence: Fence | None, seconds: float) -> None:
        self._fence = fence
        self._until = seams.boot_time() + seconds

    @property
    def held(self) -> bool:
        """Whether the write may leave at this very moment."""
        return seams.boot_time() < self._until and (self._fence is None or self._fence.held)

    @property
    def remaining(self) -> float:
        """Seconds for which that is certain; 0 if it is not held."""
        left = max(0.0, self._until - seams.boot_time())
        return left if self._fence is None else min(left, self._fence.remaining)

    @property
    def outdated(self) -> bool:
        """Whether time alone has closed it."""
        return seams.boot_time() >= self._until and (self._fence is None or self._fence.held)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who competes. `name` is written into the lease; `pod` is the part of it that another container of the same pod shares."""

    name: str
    pod: str = ""

    def succeeds(self, holder: str) -> bool:
        """Whether the holder is dead for certain: an earlier container of this very pod, whose place we have."""
        return bool(self.pod) and holder != self.name and holder.startswith(self.pod)


def own_identity(pod: str | None = None, uid: str | None = None) -> Identity:
    """`<pod>_<pod's uid>_<random>` where POD_NAME and POD_UID are set (the manifests do), else `<hostname>_<uuid>` as upstream's roles."""
    pod = os.environ.get("POD_NAME", "") if pod is None else pod
    uid = os.environ.get("POD_UID", "") if uid is None else uid
    if not pod:
        return Identity(f"{seams.hostname()}_{seams.uid()}")
    prefix = f"{pod}_{uid}_" if uid else f"{pod}_"
    return Identity(prefix + (seams.token_hex(4) if uid else seams.uid()), prefix)
