"""The three ways in which a pod leaves (DS-MC-08). Each names the pod by its uid, so that no other pod is ever hit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from koord import seams
from koord.api import kinds, names
from koord.api.objects import Pod
from koord.api.times import format_time
from koord.kube import errors
from koord.kube.client import Client
from koord.process.errors import FatalError

ATTEMPTS = 5  # of a soft eviction that meets 409 or 429
PAUSE = 0.05  # seconds, doubling


@dataclass(frozen=True, slots=True)
class Order:
    """One eviction. `options` is a metav1.DeleteOptions; `trigger` and `reason` are told with a soft eviction."""

    pod: Pod
    options: dict[str, Any]
    trigger: str
    reason: str
    now: float


Evictor = Callable[[Client, Order], Awaitable[None]]


async def _eviction(client: Client, order: Order) -> None:
    meta = order.pod.metadata
    await client.evict(meta.namespace, meta.name, uid=meta.uid, options=order.options)


async def ask(client: Client, pod: Pod, options: Mapping[str, Any]) -> None:
    """Ask the Eviction API whether the pod may leave: budgets and webhooks answer, nothing happens. Raises ApiError if it may not."""
    meta = pod.metadata
    await client.evict(meta.namespace, meta.name, uid=meta.uid, options={**options, "dryRun": ["All"]})


async def _delete(client: Client, order: Order) -> None:
    meta = order.pod.metadata
    await client.delete(kinds.PODS, meta.name, meta.namespace, preconditions={"uid": meta.uid}, options=order.options)


async def _soft(client: Client, order: Order) -> None:
    told = {"timestamp": format_time(order.now), "deleteOptions": order.options, "initiator": order.trigger, "reason": order.reason}
    await _annotate(client, order.pod, orjson.dumps(told).decode())


async def _annotate(client: Client, pod: Pod, value: str | None) -> None:
    meta = pod.metadata
    body = {"metadata": {"uid": meta.uid, "annotations": {names.ANNOTATION_SOFT_EVICTION: value}}}
    for attempt in range(ATTEMPTS):
        try:
            await client.patch(kinds.PODS, meta.name, body, meta.namespace, field_manager="koord-descheduler")
            return
        except (errors.Conflict, errors.TooManyRequests):
            if attempt == ATTEMPTS - 1:
                raise
        await seams.sleep(PAUSE * 2**attempt)


async def take_back(client: Client, pod: Pod) -> None:
    """Take a soft eviction back that nobody has followed. Raises ApiError."""
    await _annotate(client, pod, None)


EVICTORS_BY_NAME: dict[str, Evictor] = {"Eviction": _eviction, "Delete": _delete, "SoftEviction": _soft}


def asked_softly(pod: Pod) -> bool:
    """Whether the pod has been asked to leave."""
    return names.ANNOTATION_SOFT_EVICTION in pod.metadata.annotations


def ambiguous(error: errors.ApiError) -> bool:
    """Whether the write may have taken place in spite of the error: no answer came, or one that leaves it open.

    A 500 in the API server's own words (two disruption budgets on one pod, say) is an answer, unless it tells of a time that ran out."""
    if isinstance(error, errors.Unreachable):
        return True
    if not isinstance(error, errors.ServerError):
        return False
    late = error.reason in ("Timeout", "ServerTimeout") or "timed out" in error.message or "deadline exceeded" in error.message
    return error.status != 500 or late or not error.answered


def refusal(error: errors.ApiError) -> str:
    """What the API server refused an eviction with, causes included: which disruption budget, and what it lacks."""
    causes = [str(cause["message"]) for cause in error.details.get("causes") or () if cause.get("message")]
    return " ".join([str(error), *causes])


async def require_evictions(client: Client) -> None:
    """The API server must offer pods/eviction. Raises FatalError if it does not, ApiError if it cannot be asked.

    A server that does not let us ask is taken at its best.
    """
    status, body = await client.raw("GET", "/api/v1")
    if status in (401, 403):
        return
    if status != 200:
        raise errors.from_response(status, body)
    served = {item.get("name") for item in orjson.loads(body).get("resources") or ()}
    if "pods/eviction" not in served:
        raise FatalError("the API server does not offer the pods/eviction subresource, without which pods cannot be evicted")
