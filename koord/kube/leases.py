"""Leader election on a Lease: one holder at a time, and a holder that knows at once when it is none any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from koord import seams
from koord.api.kinds import LEASES
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.events import EventRecorder, ObjectRef

log = logging.getLogger("koord.kube.leases")

JITTER = 1.2  # a retry comes after the retry period times a random number up to this


def boot_clock() -> float:
    """Seconds since boot, including time asleep: a machine that was suspended must not believe that it still leads."""
    return seams.boottime()


def default_identity() -> str:
    """`<hostname>_<uuid>`, as the upstream roles name themselves."""
    return f"{seams.hostname()}_{seams.uid()}"


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
    """What the leader holds, and writers ask before each write.

    `held` looks at the clock: it is False from the moment the renew deadline has passed since the last renewal *was sent*, also
    if the event loop stood still or a request hangs. `lost` is set (a little later, by the loop) when it is over.
    """

    def __init__(self, renew_deadline: float, clock: Callable[[], float]) -> None:
        self._deadline = renew_deadline
        self._clock = clock
        self._until = float("-inf")
        self.lost = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether we lead at this very moment."""
        return not self.lost.is_set() and self._clock() < self._until

    @property
    def remaining(self) -> float:
        """Seconds for which `held` is certain without another renewal; 0 if it is not held."""
        return max(0.0, self._until - self._clock()) if self.held else 0.0

    def extend(self, sent_at: float) -> None:
        """A renewal that was sent at `sent_at` has succeeded."""
        self._until = sent_at + self._deadline


class LeaderElector:
    """Competes for a Lease.

    Times of other machines are never compared with ours: a lease is taken over when *we* have seen no change of it for its
    duration. The lease of a holder that ends in order is released, so that the next one need not wait.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str | None = None,
        *,
        timing: Timing | None = None,
        release_on_cancel: bool = True,
        clock: Callable[[], float] = boot_clock,
        wall_clock: Callable[[], float] = seams.now,
        on_new_leader: Callable[[str], object] | None = None,
        events: EventRecorder | None = None,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.name = name
        self.identity = identity or default_identity()
        self.timing = timing or Timing()
        self.release_on_cancel = release_on_cancel
        self.leader = ""
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_new_leader = on_new_leader
        self._events = events
        self._lease: dict[str, Any] | None = None
        self._observed: tuple[Any, ...] = ()
        self._observed_at = float("-inf")
        self._leadership: Leadership | None = None
        self._lost_at: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether we lead now."""
        return self._leadership is not None and self._leadership.held

    def healthy(self, tolerance: float = 20.0) -> tuple[bool, str]:
        """A health probe: failing when we should lead but have not renewed for the lease's duration plus `tolerance` seconds."""
        held = self._leadership
        if held is None:
            return True, f"not leading; the leader is {self.leader or 'unknown'}"
        since = self._clock() - (held._until - self.timing.renew_deadline)
        if since > self.timing.lease_duration + tolerance:
            return False, f"the lease has not been renewed for {since:.0f} s"
        return True, f"leading, renewed {since:.0f} s ago"

    async def run(self, on_started: Callable[[Leadership], Awaitable[object]], on_stopped: Callable[[], object] | None = None) -> bool:
        """Wait for leadership, then run `on_started(leadership)` for as long as it is held.

        Returns True if `on_started` ended by itself, False if the lease was lost (`on_started` is cancelled then; the caller
        should end the process). Cancelling `run` cancels `on_started` and releases the lease.
        """
        try:
            leadership = await self._acquire()
            try:
                return await self._lead(leadership, on_started)
            finally:
                leadership.lost.set()
                self._leadership = None
                if on_stopped is not None:
                    on_stopped()
        finally:
            if self.release_on_cancel:
                await self._release()

    async def _acquire(self) -> Leadership:
        log.info("waiting for the lease %s/%s as %s", self.namespace, self.name, self.identity)
        failure = ""
        while True:
            sent_at = self._clock()
            try:
                async with asyncio.timeout(self.timing.renew_deadline):
                    taken = await self._try()
            except (errors.ApiError, TimeoutError) as error:
                taken = False
                text = str(error) or "no answer in time"
                if text != failure:
                    log.warning("lease %s/%s: %s; trying again", self.namespace, self.name, text)
                failure = text
            if taken:
                leadership = Leadership(self.timing.renew_deadline, self._clock)
                leadership.extend(sent_at)
                self._leadership = leadership
                log.info("leading: took the lease %s/%s", self.namespace, self.name)
                self._tell("became leader")
                return leadership
            await seams.sleep(self.timing.retry_period * (1.0 + (JITTER - 1.0) * seams.rng().random()))

    async def _lead(self, leadership: Leadership, on_started: Callable[[Leadership], Awaitable[object]]) -> bool:
        work = asyncio.ensure_future(on_started(leadership))
        renewing = asyncio.get_running_loop().create_task(self._renew(leadership), name=f"renew lease {self.name}")
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            renewing.result()
            log.error("lost the lease %s/%s", self.namespace, self.name)
            self._tell("stopped leading")
            return False
        finally:
            leadership.lost.set()
            for task in (work, renewing):
                task.cancel()
            await asyncio.wait({work, renewing}, timeout=2.0)

    async def _renew(self, leadership: Leadership) -> None:
        """Renew until it fails for longer than the deadline, or somebody else holds the lease."""
        while True:
            await seams.sleep(min(self.timing.retry_period, max(0.0, leadership.remaining)))
            left = leadership.remaining
            if left <= 0.0:
                return
            sent_at = self._clock()
            try:
                async with asyncio.timeout(left):
                    held = await self._try()
            except (errors.ApiError, TimeoutError) as error:
                log.warning("lease %s/%s: renewal failed: %s", self.namespace, self.name, str(error) or "no answer in time")
                continue
            if held and leadership.held:
                leadership.extend(sent_at)
            elif not held:
                return

    def _tell(self, what: str) -> None:
        if self._events is not None:
            about = ObjectRef(LEASES.kind, self.name, self.namespace, api_version=LEASES.api_version)
            self._events.event(about, "Normal", "LeaderElection", f"{self.identity} {what}")

    # -- the lease --

    async def _try(self) -> bool:
        """Take or renew the lease; False if somebody else holds it."""
        lease = self._lease
        if lease is None or self._holder(lease) != self.identity:
            try:
                lease = await self.client.get(LEASES, self.name, self.namespace)
            except errors.NotFound:
                lease = None
        if lease is None:
            return await self._write(None, {"leaseTransitions": 0, "acquireTime": self._now()})
        self._observe(lease)
        spec = lease.get("spec") or {}
        holder = self._holder(lease)
        if holder == self.identity:
            return await self._write(lease, {})
        duration = spec.get("leaseDurationSeconds")
        lasts = float(duration) if isinstance(duration, (int, float)) and duration > 0 else self.timing.lease_duration
        if holder and self._clock() < self._observed_at + lasts:
            return False
        return await self._write(lease, {"leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1, "acquireTime": self._now()})

    @staticmethod
    def _holder(lease: dict[str, Any]) -> str:
        holder = (lease.get("spec") or {}).get("holderIdentity")
        return holder if isinstance(holder, str) else ""

    def _observe(self, lease: dict[str, Any]) -> None:
        """Note when we saw the lease change, by our own clock."""
        spec = lease.get("spec") or {}
        state = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        if state != self._observed:
            self._observed = state
            self._observed_at = self._clock()
        self._lease = lease
        self._set_leader(self._holder(lease))

    def _set_leader(self, leader: str) -> None:
        if leader and leader != self.leader:
            self.leader = leader
            log.info("the leader of %s/%s is %s", self.namespace, self.name, leader)
            if self._on_new_leader is not None:
                self._on_new_leader(leader)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _write(self, lease: dict[str, Any] | None, changes: dict[str, Any]) -> bool:
        spec = {**((lease or {}).get("spec") or {}), **changes}
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.timing.lease_duration)),
            "renewTime": self._now(),
        }
        body = {**(lease or {"metadata": {"name": self.name, "namespace": self.namespace}}), "spec": spec}
        body |= {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        self._lease = None  # what we know is worth something again once the answer is here
        try:
            if lease is None:
                answer = await self.client.create(LEASES, body, self.namespace)
            else:
                answer = await self.client.replace(LEASES, body, self.namespace)
        except errors.NotFound:
            if lease is None:
                raise  # there is no such namespace: nobody can lead, and somebody has to be told
            return await self._reread()
        except errors.Conflict:
            return await self._reread()
        self._observe(answer)
        return True

    async def _reread(self) -> bool:
        """Somebody wrote meanwhile: we hold the lease only if it still names us (our own write whose answer was lost)."""
        try:
            lease = await self.client.get(LEASES, self.name, self.namespace)
        except errors.NotFound:
            return False
        self._observe(lease)
        return self._holder(lease) == self.identity and self._leadership is not None

    async def _release(self) -> None:
        """Give the lease up if it is ours, so that the next leader need not wait for it to expire."""
        if self.leader != self.identity:
            return
        try:
            async with asyncio.timeout(1.5):
                # a write that was cut off by our end may or may not have arrived: then ask
                lease = self._lease or await self.client.get(LEASES, self.name, self.namespace)
                if self._holder(lease) != self.identity:
                    return
                spec = {**(lease.get("spec") or {}), "leaseDurationSeconds": 1, "renewTime": self._now()}
                spec.pop("holderIdentity", None)  # an empty one is refused by some servers
                await self.client.replace(LEASES, {**lease, "spec": spec}, self.namespace)
            log.info("released the lease %s/%s", self.namespace, self.name)
        except (errors.ApiError, TimeoutError) as error:
            log.warning("lease %s/%s could not be released: %s", self.namespace, self.name, str(error) or "no answer in time")
        self._lease = None
