"""Locks on nodes that vendors' device plugins look for (SCH-DEV-15): an annotation "time,namespace,name", taken by compare and set."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from koord.api.kinds import NODES, PODS
from koord.api.times import format_time, parse_time
from koord.kube.errors import ApiError, Conflict, NotFound

if TYPE_CHECKING:
    from koord.kube.client import Client

log = logging.getLogger(__name__)

EXPIRES_AFTER = 5 * 60.0
"""Seconds after which nobody heeds a lock any more."""

_ATTEMPTS = 5


class Lock(NamedTuple):
    """Who locked a node, and when (seconds since the epoch)."""

    since: float
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{format_time(self.since)},{self.namespace},{self.name}"


def read_lock(text: str) -> Lock | None:
    """The lock in an annotation; None for what is none."""
    parts = text.split(",")
    if len(parts) != 3:
        return None
    try:
        return Lock(parse_time(parts[0]), parts[1], parts[2])
    except ValueError:
        return None


async def acquire(client: Client, node: str, key: str, pod: tuple[str, str], now: float) -> str:
    """Lock a node for a pod (namespace, name); returns "" or who is in the way. A lock that cannot be read, is too old or belongs to a pod
    that is gone is taken over."""
    for _ in range(_ATTEMPTS):
        found = await client.get(NODES, node)
        text = (found["metadata"].get("annotations") or {}).get(key, "")
        lock = read_lock(text) if text else None
        if text and lock is None:
            log.warning("node %s: annotation %s: %r is no lock; it is taken over", node, key, text)
        if lock is not None and (lock.namespace, lock.name) != pod and now - lock.since < EXPIRES_AFTER and await _there(client, lock):
            return f"node {node} is locked by pod {lock.namespace}/{lock.name} since {format_time(lock.since)} ({key})"
        metadata = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {key: str(Lock(now, *pod))}}
        try:
            await client.patch(NODES, node, {"metadata": metadata})
        except Conflict:
            continue
        return ""
    return f"node {node} changes too quickly to be locked ({key})"


async def release(client: Client, node: str, key: str, pod: tuple[str, str]) -> None:
    """Take a pod's own lock off, where it is still there. Errors are logged: the lock expires by itself."""
    try:
        found = await client.get(NODES, node)
        lock = read_lock((found["metadata"].get("annotations") or {}).get(key, ""))
        if lock is not None and (lock.namespace, lock.name) == pod:
            version = found["metadata"]["resourceVersion"]
            await client.patch(NODES, node, {"metadata": {"resourceVersion": version, "annotations": {key: None}}})
    except ApiError as error:
        log.warning("node %s: the lock %s of pod %s/%s stays until it expires: %s", node, key, *pod, error)


async def _there(client: Client, lock: Lock) -> bool:
    try:
        await client.get(PODS, lock.name, lock.namespace)
    except NotFound:
        return False
    return True
