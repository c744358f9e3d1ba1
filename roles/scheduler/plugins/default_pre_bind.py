"""DefaultPreBind: what the preBind plugins want written, in one patch (SCH-PB-01, scheduler-job.md 9).

A pod is patched as a pod; what is drafted for a reserve pod goes to the Reservation that it stands for.
"""

from __future__ import annotations

from typing import Any

from koord.api.kinds import PODS, RESERVATIONS
from koord.kube.errors import Conflict
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.interfaces import PreBindPatch
from roles.scheduler.framework.status import SUCCESS, Status, error

_ATTEMPTS = 5  # of a write that meets another writer; the client repeats throttled and lost requests by itself


class DefaultPreBind(PreBindPatch):
    """Carries the UID, so that a new object of the same name is never touched. An object that is being deleted is not bound."""

    name = "DefaultPreBind"

    async def apply(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        client, pod = self.handle.client, ctx.pod
        if client is None:
            return error("no API server to write to")
        metadata: dict[str, Any] = {"uid": pod.pod.metadata.uid}
        if draft.annotations:
            metadata["annotations"] = draft.annotations
        if draft.labels:
            metadata["labels"] = draft.labels
        body = {"metadata": metadata}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if pod.reservation:
                    written = await client.patch(RESERVATIONS, pod.reservation, body)
                else:
                    written = await client.patch(PODS, pod.name, body, pod.namespace, type="strategic")
                break
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise
        if written["metadata"].get("deletionTimestamp"):
            what = f"reservation {pod.reservation}" if pod.reservation else f"pod {pod.key}"
            return error(f"{what} is being deleted")
        return SUCCESS
