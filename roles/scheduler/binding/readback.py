"""Looking what became of a binding whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.kinds import PODS, RESERVATIONS
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.planner.placements import Found

_ENDED = frozenset(("Succeeded", "Failed"))


class ReadBack:
    """Reads pods and Reservations: what the informer has if that decides, else the API server."""

    def __init__(self, client: Client, cached: Callable[[PodInfo], PodInfo | None]) -> None:
        self._client = client
        self._cached = cached

    async def placed(self, pod: PodInfo, node: str) -> Found:
        """Where a pod is that was to be bound to the node. Never raises an ApiError."""
        known = self._cached(pod)
        if known is not None and known.uid == pod.uid and known.node_name:
            return Found.HERE if known.node_name == node else Found.ELSEWHERE
        try:
            found = await self._read(pod)
        except NotFound:
            return Found.GONE
        except ApiError:
            return Found.UNREADABLE
        meta, status = found["metadata"], found.get("status") or {}
        where = (status if pod.reservation else found.get("spec") or {}).get("nodeName") or ""
        if meta.get("uid") != pod.pod.metadata.uid or status.get("phase") in _ENDED:
            return Found.GONE
        if where:
            return Found.HERE if where == node else Found.ELSEWHERE
        return Found.GONE if meta.get("deletionTimestamp") else Found.PENDING

    async def leaving(self, pod: PodInfo) -> bool | None:
        """Whether a pod that was to be deleted is gone or on its way out; None when that cannot be read."""
        try:
            found = await self._read(pod)
        except NotFound:
            return True
        except ApiError:
            return None
        meta = found["metadata"]
        return bool(meta.get("uid") != pod.pod.metadata.uid or meta.get("deletionTimestamp"))

    async def _read(self, pod: PodInfo) -> dict[str, Any]:
        found: dict[str, Any]
        if pod.reservation:
            found = await self._client.get(RESERVATIONS, pod.reservation)
        else:
            found = await self._client.get(PODS, pod.name, pod.namespace)
        return found
