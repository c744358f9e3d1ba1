"""Telling users why a gang waits before anything was tried, and what of its description could not be taken (G-2, G-8).

A gang comes in pod by pod, so nothing is told before it was quiet for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice

from koord import seams
from koord.api.kinds import PODGROUPS
from koord.api.names import ANNOTATION_GANG_MIN_AVAILABLE
from koord.kube.references import ObjectRef, reference
from roles.scheduler.cluster.defects import DEFECTS
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.coscheduling.cache import WAITING, Gang, GangCache, some_of
from roles.scheduler.plugins.coscheduling.spec import FROM_POD_GROUP, minimum_text

log = logging.getLogger(__name__)

_QUIET = 1.0  # seconds without a change before a gang is spoken of
_LOOK = 0.25
_IDLE = 1.0  # seconds between two looks while nothing is to be told
_LOOKED_AT = 20  # members, and gangs of the group, whose own words are compared with the gang's


def problems_of(gang: Gang, cache: GangCache) -> Iterator[str]:
    """What is wrong with a gang's description, one sentence each."""
    spec = gang.spec
    if spec is None:
        for pod in list(gang.children.values())[:_LOOKED_AT]:
            text = minimum_text(pod)
            if text is not None:
                yield f"pod {pod.key}: minimum {text[:64]!r} is no whole number of 32 bits"
        return
    yield from spec.problems
    for pod in list(gang.children.values())[:_LOOKED_AT]:
        text = minimum_text(pod)
        if text is not None and text != str(spec.min_number):
            who = "the PodGroup" if spec.origin == FROM_POD_GROUP else "the gang's first pod"
            key = ANNOTATION_GANG_MIN_AVAILABLE
            yield f"pod {pod.key} says {key}={text[:64]!r}, {who} {spec.min_number}: what {who} says holds"
            break
    if len(gang.children) > 1:
        children = list(gang.children.values())
        if len({pod.priority for pod in children}) > 1:
            yield "its pods have different priorities: the whole gang is tried when its first pod's turn comes"
    groups = set(spec.groups)
    for identity, other in islice(cache.group_gangs(gang), _LOOKED_AT):  # the others tell themselves where they differ from these
        if other is not None and other.spec is not None and set(other.spec.groups) != groups:
            yield f"gang {identity} of its group lists {some_of(other.spec.groups)}, not {some_of(spec.groups)}"


class Notices:
    """Writes conditions of pods that wait for their gang to be complete, and events about gangs."""

    def __init__(self, handle: Handle, cache: GangCache) -> None:
        self._handle = handle
        self._cache = cache
        self._due: dict[str, float] = {}  # gang id -> when it may be spoken of
        self._told: dict[str, tuple[str, tuple[str, ...]]] = {}

    def changed(self, gang: Gang) -> None:
        """Something about a gang changed."""
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:  # nobody listens yet
            return
        for identity, _ in self._cache.group_gangs(gang):
            self._due[identity] = now + _QUIET

    async def run(self) -> None:
        """Speak of gangs that were quiet for a moment, until cancelled."""
        loop = asyncio.get_running_loop()
        for identity in self._cache.gangs:
            self._due.setdefault(identity, loop.time() + _QUIET)
        while True:
            next_due = min(self._due.values(), default=float("inf"))
            await seams.sleep(min(_IDLE, max(_LOOK, next_due - loop.time())))
            now = loop.time()
            self._cache.metrics.waiting(sum(1 for gang in self._cache.gangs.values() if gang.stages[WAITING]))
            for identity in [identity for identity, due in self._due.items() if due <= now]:
                if self._due[identity] > now:  # it changed while others were spoken of
                    continue
                del self._due[identity]
                gang = self._cache.gangs.get(identity)
                if gang is None:
                    self._told.pop(identity, None)
                elif self._handle.may_write():
                    try:
                        self.tell(gang)
                    except DEFECTS:
                        log.exception("gang %s could not be spoken of", identity)
                    await seams.sleep(0)  # of a group all gangs are due together

    def tell(self, gang: Gang) -> None:
        """The state of one gang, where it was not told already."""
        waits = ""
        if not self._cache.satisfied(gang):
            shortage = self._cache.shortage(gang)
            waits = f"gang {gang.id}: {shortage}" if shortage else ""
        problems = tuple(problems_of(gang, self._cache))
        ready = gang.ready()
        if waits:
            text = "; ".join((waits, *problems))
            for pod in ready:
                self._handle.report(pod, text)
        before = self._told.get(gang.id, ("", ()))
        self._told[gang.id] = (waits, problems)
        about = _about(gang, ready)
        if about is None:
            return
        if waits and waits != before[0]:
            self._handle.event(about, "Warning", "GangNotReady", waits)
        for problem in problems:
            if problem not in before[1]:
                self._handle.event(about, "Warning", "InvalidGang", f"gang {gang.id}: {problem}")


def _about(gang: Gang, ready: list[PodInfo]) -> ObjectRef | None:
    """The object that events of a gang are about: its PodGroup, else one of its pods."""
    if gang.pod_group is not None:
        return reference(gang.pod_group, PODGROUPS)
    if gang.native is not None:
        return ObjectRef("PodGroup", gang.name, gang.namespace, gang.native.metadata.uid, gang.native.api_version)
    pods = ready or list(gang.children.values())
    return ObjectRef("Pod", pods[0].name, pods[0].namespace, pods[0].pod.metadata.uid, "v1") if pods else None
