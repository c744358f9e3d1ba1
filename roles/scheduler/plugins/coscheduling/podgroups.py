"""Keeping the status of PodGroups (SCH-GANG-09): members from the cache, and those that have ended from a view of its own.

The scheduler forgets a pod when it has ended, a PodGroup must not: `scheduled` keeps counting members that ran to their end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from koord.api.gangs import gang_name as gang_name_of
from koord.api.kinds import PODGROUPS, SCHEDULING_PODGROUPS, SCHEDULING_PODGROUPS_V1ALPHA2, Kind
from koord.api.objects import Pod, PodGroup, SchedulingPodGroup
from koord.kube.errors import ApiError, NotFound
from koord.kube.servertime import clock_of
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.coscheduling.cache import Gang, GangCache, bound_at
from roles.scheduler.plugins.coscheduling.conditions import due
from roles.scheduler.plugins.coscheduling.phases import Member, over, patch, step

log = logging.getLogger(__name__)

ENDED = "status.phase!=Running,status.phase!=Pending,status.phase!=Unknown"
_RETRY = 2.0  # seconds
_REST = 0.05
_REST_PER_MEMBER = 0.0002


@dataclass(slots=True, eq=False)
class Ended:
    """A member that has ended, by gang. `until` is up to when it was one, RFC 3339 in UTC, "" when nothing tells."""

    gang: str
    key: str
    member: Member
    until: str


def ended_member(pod: Pod) -> Ended | None:
    """What is kept of a pod that has ended; None for one that is in no gang."""
    meta = pod.metadata
    name = gang_name_of(meta.labels, meta.annotations or {})
    if not name:
        return None
    return Ended(f"{meta.namespace}/{name}", meta.uid, _member(meta.uid, pod, placed=bool(pod.spec.node_name)), _until(pod))


def _until(pod: Pod) -> str:
    """When a pod that has ended was at work last: when it finished, but not before it got its node, as the node's clock may be behind. Of
    one that is being deleted the end tells nothing: it may have been asked to go with an earlier PodGroup."""
    ends = [one.state.terminated for one in pod.status.container_statuses] if pod.metadata.deletion_timestamp is None else []
    return max([bound_at(pod), *(end.finished_at or "" for end in ends if end is not None)]) or pod.metadata.creation_timestamp or ""


class PodGroups:
    """The controller: gangs that changed are looked at by `workers` tasks, one step a time."""

    def __init__(self, handle: Handle, cache: GangCache, workers: int, clock: Callable[[], float] | None = None) -> None:
        self._handle = handle
        self._cache = cache
        self._workers = workers
        self._clock = clock or clock_of(handle.client)
        self._ended: dict[str, dict[str, Ended]] = {}
        self._dirty: dict[str, None] = {}
        self._busy: set[str] = set()
        self._wake = asyncio.Event()

    # ---------------------------------------------------------------- observing

    def ended(self, old: Ended | None, new: Ended | None) -> None:
        """A pod that has ended appeared, changed or was deleted."""
        if old is not None:
            members = self._ended.get(old.gang, {})
            members.pop(old.key, None)
            if not members:
                self._ended.pop(old.gang, None)
        if new is not None:
            self._ended.setdefault(new.gang, {})[new.key] = new
        for item in (old, new):
            if item is not None:
                self._mark(item.gang)

    def changed(self, gang: Gang) -> None:
        """Something about a gang changed."""
        if gang.pod_group is not None or gang.native is not None:
            self._mark(gang.id)

    def _mark(self, identity: str) -> None:
        self._dirty[identity] = None
        self._wake.set()

    def members(self, gang: Gang) -> Iterator[Member]:
        """All children, with those that have ended; each once. What ended before there was the PodGroup was another one's of its name."""
        past = self._ended.get(gang.id, {})
        began = (gang.pod_group.metadata.creation_timestamp or "") if gang.pod_group is not None else ""
        for pod in gang.children.values():
            if pod.uid not in past:
                yield _member(pod.uid, pod.pod, placed=bool(pod.node_name))
        yield from (ended.member for ended in past.values() if not ended.until or ended.until >= began)

    # ---------------------------------------------------------------- writing

    async def run(self) -> None:
        """Keep all statuses, until cancelled."""
        for identity, gang in self._cache.gangs.items():
            if gang.pod_group is not None or gang.native is not None:
                self._dirty[identity] = None
        await asyncio.gather(*(self._work() for _ in range(self._workers)))

    async def _work(self) -> None:
        while True:
            identity = next((identity for identity in self._dirty if identity not in self._busy), None)
            if identity is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            del self._dirty[identity]
            self._busy.add(identity)
            try:
                await self.sync(identity)
            except DEFECTS as failure:  # of one group, which is to hold up no other
                if ends_us(failure):
                    raise
                log.exception("PodGroup %s could not be looked at", identity)
                asyncio.get_running_loop().call_later(_RETRY, self._mark, identity)
            finally:
                # Members change one by one: a group that was looked at rests a little, a big one longer.
                gang = self._cache.gangs.get(identity)
                rest = _REST + (len(gang.children) * _REST_PER_MEMBER if gang is not None else 0.0)
                asyncio.get_running_loop().call_later(rest, self._rested, identity)

    def _rested(self, identity: str) -> None:
        self._busy.discard(identity)
        if identity in self._dirty:
            self._wake.set()

    async def sync(self, identity: str) -> None:
        """Bring the status of one PodGroup a step forward."""
        await self._handle.gate.passed()
        gang = self._cache.gangs.get(identity)
        if gang is None or not self._handle.may_write():
            return
        if gang.native is not None:
            await self._tell(gang, gang.native)
            return
        group = gang.pod_group
        if group is None or over(group):
            return
        body = patch(group.status, step(group, self.members(gang), self._clock()))
        if body is not None:
            # The answer comes through the watch, and with it the next step.
            await self._write(gang, PODGROUPS, group, body)

    async def _tell(self, gang: Gang, group: SchedulingPodGroup) -> None:
        """Conditions of a PodGroup of scheduling.k8s.io, in the version in which it was read."""
        conditions = due(gang, self._clock())
        if not conditions:
            return
        kind = SCHEDULING_PODGROUPS_V1ALPHA2 if group.api_version == SCHEDULING_PODGROUPS_V1ALPHA2.api_version else SCHEDULING_PODGROUPS
        await self._write(gang, kind, group, {"status": {"conditions": conditions}}, type="strategic", subresource="status")

    async def _write(self, gang: Gang, kind: Kind, group: PodGroup | SchedulingPodGroup, body: dict[str, Any], **how: Any) -> None:
        meta = group.metadata
        try:
            await self._handle.api.patch(kind, meta.name, {"metadata": {"uid": meta.uid}, **body}, meta.namespace, **how)
        except NotFound:
            return
        except ApiError as error:
            log.warning("status of PodGroup %s could not be written, it is tried again: %s", gang.id, error)
            asyncio.get_running_loop().call_later(_RETRY, self._mark, gang.id)


def _member(uid: str, pod: Pod, *, placed: bool) -> Member:
    return Member(uid, pod.status.phase, placed, tuple(f"{pod.metadata.namespace}/{owner.name}" for owner in pod.metadata.owner_references))
