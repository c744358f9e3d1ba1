"""DefaultPreBind: what the preBind plugins want written, in one patch (SCH-PB-01).

A pod is patched as a pod; what is drafted for a reserve pod goes to the Reservation that it stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from koord.api.kinds import PODS, RESERVATIONS
from koord.kube.errors import Conflict
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.context import BindDraft, CycleContext
from roles.scheduler.framework.interfaces import PreBindPatch
from roles.scheduler.framework.status import SUCCESS, Status, error

log = logging.getLogger(__name__)

_ATTEMPTS = 5  # of a write that meets another writer; the client repeats throttled and lost requests by itself


class DefaultPreBind(PreBindPatch):
    """Carries the UID, so that a new object of the same name is never touched. An object that is being deleted is not bound."""

    name = "DefaultPreBind"

    async def apply(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        client, pod = self.handle.client, ctx.pod
        if client is None:
            return error("no API server to write to")
        body = _body(pod, draft)
        if body is None:
            return SUCCESS
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if pod.reservation:
                    written = await client.patch(RESERVATIONS, pod.reservation, body)
                else:
                    written = await client.patch(PODS, pod.name, body, pod.namespace, type="strategic")
                break
            except Conflict as failure:
                if attempt == _ATTEMPTS or "uid" in failure.message.lower():
                    raise  # (another object has the name by now)
        if written["metadata"].get("deletionTimestamp"):
            what = f"reservation {pod.reservation}" if pod.reservation else f"pod {pod.key}"
            return error(f"{what} is being deleted")
        return SUCCESS

    async def withdraw(self, ctx: CycleContext, written: Mapping[str, str]) -> None:
        client, pod = self.handle.client, ctx.pod
        kind, name, namespace = (RESERVATIONS, pod.reservation, None) if pod.reservation else (PODS, pod.name, pod.namespace)
        assert client is not None  # something was written
        for attempt in range(1, _ATTEMPTS + 1):
            meta = (await client.get(kind, name, namespace))["metadata"]
            present = meta.get("annotations") or {}
            ours: dict[str, None] = {key: None for key, value in written.items() if present.get(key) == value}
            if meta["uid"] != pod.pod.metadata.uid or not ours:
                return
            version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            try:
                await client.patch(kind, name, {"metadata": {**version, "annotations": ours}}, namespace)
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise
                continue
            log.warning("pod %s was bound by others: took off what was written for node %s: %s", pod.key, ctx.node, ", ".join(ours))
            return


def _body(pod: PodInfo, draft: BindDraft) -> dict[str, Any] | None:
    """The patch with the object's UID; None when a pod shows all of it already."""
    metadata: dict[str, Any] = {}
    for field, wanted, present in (
        ("annotations", draft.annotations, draft.present if draft.present is not None else pod.pod.metadata.annotations or {}),
        ("labels", draft.labels, pod.labels),
    ):
        found = dict(wanted) if pod.reservation else _changes(wanted, present)
        if found:
            metadata[field] = found
    return {"metadata": {"uid": pod.pod.metadata.uid, **metadata}} if metadata else None


def _changes(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    """Entries that differ from what is there: None removes a key, and one that is not there need not be removed."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}
