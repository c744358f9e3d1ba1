"""Leader election on a Lease: one holder at a time, and a holder that knows at once when it is none any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from koord import seams
from koord.api.kinds import LEASES
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.events import EventRecorder
from koord.kube.leadership import JITTER, Fence, Identity, Leadership, Timing, own_identity
from koord.kube.references import ObjectRef

__all__ = ["Fence", "Identity", "LeaderElector", "Leadership", "Timing"]

log = logging.getLogger("koord.kube.leases")

STALLED = 4.0  # lease durations for which the lease is renewed although the loop of the role shows no sign of life
LOOK = 1.5  # seconds at most between two looks of a standby, so that it leads within two seconds of a release
RELEASE_TIMEOUT = 1.5  # seconds
END_OF_WORK = 2.0  # seconds that the leader's work has to end when it is cancelled


class LeaderElector:
    """Competes for a Lease, on a thread, a connection and a pace of its own: nothing that the role does delays a renewal.

    Times of other machines are never compared with ours: a lease is taken over when *we* have seen no change of it for its
    duration, or at once when its holder is an earlier container of our own pod. The lease of a holder that ends in order is
    released, so that the next one need not wait.

    A loop that is blocked keeps its lease for four lease durations. Beyond that the role counts as dead and its lease runs out.
    `events` lends its component to the events of the election, which go out on the lease's own connection.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str | Identity | None = None,
        *,
        timing: Timing | None = None,
        leadership: Leadership | None = None,
        release_on_cancel: bool = True,
        clock: Callable[[], float] = seams.boot_time,
        wall_clock: Callable[[], float] = seams.now,
        on_new_leader: Callable[[str], object] | None = None,
        events: EventRecorder | None = None,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.name = name
        self.who = Identity(identity) if isinstance(identity, str) else identity or own_identity()
        self.timing = timing or Timing()
        self.leadership = leadership or Leadership(self.timing.renew_deadline, clock)
        self.release_on_cancel = release_on_cancel
        self.leader = ""
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_new_leader = on_new_leader
        self._events = events
        self._sign_of_life = float("-inf")
        self._apart: seams.Apart[bool] | None = None

    def healthy(self, tolerance: float = 20.0) -> tuple[bool, str]:
        """A health probe: failing when we should lead but have not renewed for the lease's duration plus `tolerance` seconds."""
        held = self.leadership
        if held.over or held.renewed_at == float("-inf"):
            return True, f"not leading; the leader is {self.leader or 'unknown'}"
        since = self._clock() - held.renewed_at
        if since > self.timing.lease_duration + tolerance:
            return False, f"the lease has not been renewed for {since:.0f} s"
        return True, f"leading, renewed {since:.0f} s ago"

    async def run(self, on_started: Callable[[Leadership], Awaitable[object]], on_stopped: Callable[[], object] | None = None) -> bool:
        """Wait for leadership, then run `on_started(leadership)` for as long as it is held. To be called once.

        Returns True if `on_started` ended by itself, False if the lease was lost (`on_started` is cancelled then; the caller
        should end the process). The lease is released when the work has ended, also if `run` is cancelled.
        """
        taken = asyncio.Event()
        self._alive()
        apart = self._apart = seams.Apart(lambda apart: self._compete(apart, taken), f"lease {self.name}")
        apart.done.add_done_callback(self._ended)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._beat()), loop.create_task(taken.wait()), loop.create_task(self.leadership.lost.wait())]
        _, acquired, lost = tasks
        try:
            await asyncio.wait({acquired, lost}, return_when=asyncio.FIRST_COMPLETED)
            try:
                return await self._lead(lost, on_started) if taken.is_set() else False
            finally:
                if on_stopped is not None:
                    on_stopped()
        finally:
            for task in tasks:
                task.cancel()
            await self.release()

    async def release(self) -> None:
        """End the election and wait until the lease is released, for two seconds at most. A step of the end: `Phase.LEASE`."""
        self._end(released=True)
        if self._apart is not None:
            self._apart.cancel()
            await asyncio.wait({self._apart.done}, timeout=RELEASE_TIMEOUT + 0.5)

    def _ended(self, done: asyncio.Future[bool]) -> None:
        if not done.cancelled() and done.exception() is not None:
            log.error("lease %s/%s: the election failed unexpectedly", self.namespace, self.name, exc_info=done.exception())
        self._end()

    async def _lead(self, lost: asyncio.Future[Any], on_started: Callable[[Leadership], Awaitable[object]]) -> bool:
        work = asyncio.ensure_future(on_started(self.leadership))
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not self.leadership.over:
                work.result()
                return True
            log.error("lost the lease %s/%s", self.namespace, self.name)
            return False
        finally:
            work.cancel()
            await asyncio.wait({work}, timeout=END_OF_WORK)

    def _end(self, *, released: bool = False) -> None:
        self.leadership.end(released=released)
        self.leadership.lost.set()

    def _alive(self) -> None:
        self._sign_of_life = self._clock()

    async def _beat(self) -> None:
        while True:
            self._alive()
            await seams.sleep(self.timing.retry_period / 2)

    # -- on the lease's own thread --

    async def _compete(self, apart: seams.Apart[bool], taken: asyncio.Event) -> bool:
        """Acquire and renew until it is lost (False); cancelled to release."""
        client = self.client.lane()
        lease = _Lease(client, self, lambda leader: self._seen(leader, apart))
        events = EventRecorder(client, self._events.component, self._events.host) if self._events is not None else None
        try:
            await self._acquire(lease)
            self._tell(events, "became leader")
            apart.post(taken.set)
            await self._renew(lease)
            self.leadership.end()
            apart.post(self.leadership.lost.set)
            self._tell(events, "stopped leading")
            return False
        except asyncio.CancelledError:
            if self.release_on_cancel:
                await lease.release()
            raise
        finally:
            try:
                if events is not None:
                    await events.stop()
            finally:  # the end of the process comes while the loss of the lease is being told
                await client.close()

    def _tell(self, events: EventRecorder | None, what: str) -> None:
        if events is not None:
            about = ObjectRef(LEASES.kind, self.name, self.namespace, api_version=LEASES.api_version)
            events.event(about, "Normal", "LeaderElection", f"{self.who.name} {what}")

    async def _acquire(self, lease: _Lease) -> None:
        log.info("waiting for the lease %s/%s as %s", self.namespace, self.name, self.who.name)
        failure = ""
        while True:
            sent_at = self._clock()
            try:
                async with asyncio.timeout(self.timing.renew_deadline):
                    taken = await lease.attempt()
            except (errors.ApiError, TimeoutError) as error:
                taken = False
                text = str(error) or "no answer in time"
                if text != failure:
                    log.warning("lease %s/%s: %s; trying again", self.namespace, self.name, text)
                failure = text
            if taken:
                self.leadership.extend(sent_at)
                log.info("leading: took the lease %s/%s", self.namespace, self.name)
                return
            await seams.sleep(min(self.timing.retry_period, LOOK) * (1.0 + (JITTER - 1.0) * seams.rng().random()))

    async def _renew(self, lease: _Lease) -> None:
        """Renew until it fails for longer than the deadline, somebody else holds the lease, or the role is dead."""
        leadership, timing = self.leadership, self.timing
        patience = max(timing.retry_period, timing.renew_deadline / 2)  # seconds for one try, so that there is time for another
        while True:
            await seams.sleep(min(timing.retry_period, max(0.0, leadership.remaining)))
            left = leadership.remaining
            if left <= 0.0:
                return
            silent = self._clock() - self._sign_of_life
            if silent > STALLED * timing.lease_duration:
                log.critical("lease %s/%s: no sign of life of the role for %.0f s; not renewed", self.namespace, self.name, silent)
                continue
            sent_at = self._clock()
            try:
                async with asyncio.timeout(min(left, patience)):
                    held = await lease.attempt()
            except (errors.ApiError, TimeoutError) as error:
                log.warning("lease %s/%s: renewal failed: %s", self.namespace, self.name, str(error) or "no answer in time")
                continue
            if held and leadership.held:
                leadership.extend(sent_at)
            elif not held:
                return

    def _seen(self, leader: str, apart: seams.Apart[bool]) -> None:
        """The lease names a leader."""
        if leader and leader != self.leader:
            self.leader = leader
            log.info("the leader of %s/%s is %s", self.namespace, self.name, leader)
            if self._on_new_leader is not None:
                apart.post(self._on_new_leader, leader)


class _Lease:
    """The object: taken, renewed and released by compare and swap."""

    def __init__(self, client: Client, elector: LeaderElector, seen: Callable[[str], None]) -> None:
        self.client = client
        self.namespace, self.name, self.who, self.timing = elector.namespace, elector.name, elector.who, elector.timing
        self._leadership = elector.leadership
        self._seen = seen
        self._clock, self._wall_clock = elector._clock, elector._wall_clock
        self._lease: dict[str, Any] | None = None
        self._observed: tuple[Any, ...] = ()
        self._observed_at = float("-inf")
        self._lasts = 0.0  # seconds for which the lease that we saw is good
        self._sent = False

    async def attempt(self) -> bool:
        """Take or renew the lease; False if somebody else holds it."""
        lease = self._lease
        if lease is None or self._holder(lease) != self.who.name:
            try:
                lease = await self.client.get(LEASES, self.name, self.namespace)
            except errors.NotFound:
                lease = None
        if lease is None:
            if self._still_led():  # deleted, or lost with the server's data: its holder does not know of it yet
                return False
            return await self._write(None, {"leaseTransitions": 0, "acquireTime": self._now()})
        self._observe(lease)
        spec = lease.get("spec") or {}
        if self._holder(lease) == self.who.name:
            return await self._write(lease, {})
        if self._still_led():
            return False
        return await self._write(lease, {"leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1, "acquireTime": self._now()})

    def _still_led(self) -> bool:
        """Whether the holder that we saw last may believe that it leads."""
        holder = self._observed[0] if self._observed else None
        if not holder or holder == self.who.name or not isinstance(holder, str) or self.who.succeeds(holder):
            return False
        return self._clock() < self._observed_at + self._lasts

    @staticmethod
    def _holder(lease: dict[str, Any]) -> str:
        holder = (lease.get("spec") or {}).get("holderIdentity")
        return holder if isinstance(holder, str) else ""

    def _observe(self, lease: dict[str, Any]) -> None:
        """Note when we saw the lease change, by our own clock."""
        spec = lease.get("spec") or {}
        state = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        duration = spec.get("leaseDurationSeconds")
        self._lasts = float(duration) if isinstance(duration, (int, float)) and duration > 0 else self.timing.lease_duration
        if state != self._observed:
            self._observed = state
            self._observed_at = self._clock()
        self._lease = lease
        self._seen(self._holder(lease))

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _write(self, lease: dict[str, Any] | None, changes: dict[str, Any]) -> bool:
        spec = {**((lease or {}).get("spec") or {}), **changes}
        spec |= {
            "holderIdentity": self.who.name,
            "leaseDurationSeconds": max(1, round(self.timing.lease_duration)),
            "renewTime": self._now(),
        }
        body = {**(lease or {"metadata": {"name": self.name, "namespace": self.namespace}}), "spec": spec}
        body |= {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        self._sent = True
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
        return self._holder(lease) == self.who.name and self._leadership.held

    async def release(self) -> None:
        """Give the lease up if it is ours, so that the next leader need not wait for it to expire."""
        if not self._sent:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                # a write that was cut off by our end may or may not have arrived: then ask
                lease = self._lease or await self.client.get(LEASES, self.name, self.namespace)
                if self._holder(lease) != self.who.name:
                    return
                spec = {**(lease.get("spec") or {}), "leaseDurationSeconds": 1, "renewTime": self._now()}
                spec.pop("holderIdentity", None)  # an empty one is refused by some servers
                await self.client.replace(LEASES, {**lease, "spec": spec}, self.namespace)
            log.info("released the lease %s/%s", self.namespace, self.name)
        except (errors.ApiError, TimeoutError) as error:
            log.warning("lease %s/%s could not be released: %s", self.namespace, self.name, str(error) or "no answer in time")
        self._lease = None
