"""How many evictions a workload or a namespace sees in a while (DS-MC-09). Pure: time is an argument.

A bucket is made full by the first eviction, which takes a token; it fills with n/duration tokens a second. After a restart the buckets are
filled again from the jobs that tell when their pods left (`replay` in `controller.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.kube.ratelimit import TokenBucket
from roles.descheduler.migration.args import NAMESPACE, WORKLOAD, MigrationControllerArgs, ObjectLimiter
from roles.descheduler.migration.limits import maximum
from roles.descheduler.migration.step import Hold

IDLE = 1.5  # a bucket that nobody has used for so many durations is full again and forgotten


@dataclass(slots=True)
class _Bucket:
    tokens: TokenBucket
    used: float


@dataclass(slots=True)
class Limiter:
    """The buckets of one kind of object. `seconds` is the duration of the arguments; 0 switches the limiter off."""

    kind: str
    seconds: float
    burst: int
    buckets: dict[str, _Bucket] = field(default_factory=dict)

    def hold(self, key: str, now: float) -> Hold | None:
        """Why the object has to wait, None if it need not."""
        bucket = self.buckets.get(key)
        if bucket is None or (pause := bucket.tokens.wait(now)) <= 0.0:
            return None
        return Hold(f"the {self.kind} has had its evictions", pause)

    def take(self, key: str, allowed: int, now: float) -> None:
        """Count an eviction where `allowed` are allowed a duration. 0 counts nothing."""
        if self.seconds <= 0 or not key or allowed <= 0:
            return
        rate = allowed / self.seconds
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = _Bucket(TokenBucket(rate, max(1, self.burst)), now)
        bucket.tokens.qps = rate  # the workload may have been scaled
        bucket.tokens.reserve(now)
        bucket.used = max(bucket.used, now)
        self._forget(now)

    def give_back(self, key: str) -> None:
        """An eviction that was counted did not take place."""
        bucket = self.buckets.get(key)
        if bucket is not None:
            bucket.tokens.give_back()

    def _forget(self, now: float) -> None:
        for key in [key for key, bucket in self.buckets.items() if now - bucket.used > IDLE * self.seconds]:
            del self.buckets[key]


class ObjectLimiters:
    """The limiters of one profile."""

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._limiters: dict[str, Limiter] = {
            kind: Limiter(kind, entry.duration, entry.burst) for kind, entry in args.object_limiters.items() if entry.duration > 0
        }

    def hold(self, workload: str, namespace: str, now: float) -> Hold | None:
        """What an eviction has to wait for. `workload` is the uid of the pod's controller, "" if it has none."""
        found = [limiter.hold(key, now) for limiter, key in self._keys(workload, namespace)]
        return max((hold for hold in found if hold is not None), key=lambda hold: hold.seconds, default=None)

    def take(self, workload: str, replicas: int | None, namespace: str, now: float) -> None:
        """Count an eviction. `replicas` None: the workload is not known, so nothing is counted for it."""
        for limiter, key in self._keys(workload, namespace):
            limiter.take(key, self._allowed(limiter.kind, replicas), now)

    def give_back(self, workload: str, namespace: str) -> None:
        """The eviction did not take place."""
        for limiter, key in self._keys(workload, namespace):
            limiter.give_back(key)

    def _keys(self, workload: str, namespace: str) -> list[tuple[Limiter, str]]:
        keys: Mapping[str, str] = {WORKLOAD: workload, NAMESPACE: namespace}
        return [(limiter, keys[kind]) for kind, limiter in self._limiters.items() if keys[kind]]

    def _allowed(self, kind: str, replicas: int | None) -> int:
        entry: ObjectLimiter = self._args.object_limiters[kind]
        if kind == NAMESPACE:  # a percentage of a namespace has no meaning: it counts as 0, which counts nothing
            return entry.max_migrating if isinstance(entry.max_migrating, int) else 0
        if replicas is None:
            return 0
        share = entry.max_migrating if entry.max_migrating is not None else self._args.max_migrating_per_workload
        return maximum(replicas, share)
