"""Carrying decisions out: evictions by a profile's evictor, cordons and annotations through the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Node, Pod
from koord.kube import errors
from koord.kube.client import Client
from roles.descheduler.framework.evicting import Evicting, EvictOptions, EvictResult

log = logging.getLogger(__name__)

NOT_LEADING = EvictResult(False, "this process does not lead any more")
SHARE = 1 / 6  # of the interval of rounds, that a round may wait for answers: its snapshot is as old


@dataclass(eq=False)
class ClusterActing:
    """Acts on a cluster while `may_write` says that this process leads; `where` answers for dry runs, `rehearse` before pods move for
    others. A round that has waited for more than `longest` seconds (0: no limit) for answers evicts nobody any more: what it knows is as
    old."""

    _client: Client
    may_write: Callable[[], bool]
    where: Callable[[Pod], Coroutine[Any, Any, str]]
    rehearse: Callable[[Pod, Sequence[Pod]], Coroutine[Any, Any, bool]]
    _longest: float = 0.0
    _waited: float = 0.0

    def begin(self) -> None:
        """A new round, on a new snapshot."""
        self._waited = 0.0

    def waited(self, seconds: float) -> None:
        """The round has waited for somebody else's answer."""
        self._waited += seconds

    def too_long(self, seconds: float) -> bool:
        """Whether a snapshot is too old to begin with."""
        return 0 < self._longest < seconds

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        """Ask the evictor; an error of the API server is a refusal."""
        if not self.may_write():
            return NOT_LEADING
        if 0 < self._longest < self._waited:
            return EvictResult(
                False, f"this round has waited {self._waited:.0f} s for answers, and nothing was looked at since: the next one goes on"
            )
        began = seams.monotonic()
        try:
            return await evictor.evict(pod, options)
        except errors.ApiError as error:
            log.warning("%s could not evict pod %s/%s: %s", evictor.name, pod.metadata.namespace, pod.metadata.name, error)
            return EvictResult(False, f"the API server refused: {error}")
        finally:
            self.waited(seams.monotonic() - began)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        """Patch spec.unschedulable, and leave a note that it was the descheduler, which a later process finds. The node must still be the
        same one: a machine that is set up anew often has the name of the old one."""
        note = {"uid": node.metadata.uid, "annotations": {names.ANNOTATION_DRAIN_CORDONED: "true" if on else None}}
        return await self._patch(kinds.NODES, node.metadata.name, {"metadata": note, "spec": {"unschedulable": on or None}})

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        """Patch one annotation, unless it is there already. The pod must still be the same one."""
        if pod.metadata.annotations.get(key) == value:
            return EvictResult(True)
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": {key: value}}}
        return await self._patch(kinds.PODS, pod.metadata.name, body, pod.metadata.namespace)

    async def _patch(self, kind: kinds.Kind, name: str, body: dict[str, Any], namespace: str | None = None) -> EvictResult:
        if not self.may_write():
            return NOT_LEADING
        try:
            await self._client.patch(kind, name, body, namespace, field_manager="koord-descheduler")
        except errors.ApiError as error:
            log.warning("%s %s could not be patched: %s", kind.kind, name, error)
            return EvictResult(False, f"the API server refused: {error}")
        return EvictResult(True)
