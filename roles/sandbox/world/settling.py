"""When a world has settled: nothing is under way any more, and no rule waits for the end of its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from roles.sandbox.world.history import FILE, LEASE, History
from roles.sandbox.world.invariants.base import LEASES, MIGRATION_JOB, NODE_METRIC, QUOTA, RESERVATION, finished, node_of, role_of
from roles.sandbox.world.invariants.liveness import RESTLESS

STILL = 10.0  # seconds in which nobody has written what is not written all the time
LOOK = 2.5  # seconds between two looks
SHORTEST = 30.0  # seconds of calm: what a rule looks back on in the end lies in them
WITH_AGENTS = 40.0  # where hosts have agents: these need ten to settle, and are watched for as long
_ALWAYS = frozenset({LEASE, NODE_METRIC, QUOTA, FILE, "", "node", "event", "event.events.k8s.io"})
_OVER = ("Succeeded", "Failed")


async def settled(history: History, is_open: Callable[[], bool], seconds: float, *, agents: bool) -> None:
    """Wait until the world has settled, `seconds` at most. A large world, which remembers its last entries only, takes all of them."""
    begun = history.clock()
    least = WITH_AGENTS if agents else SHORTEST
    if history.pace > 1.0 or seconds <= least:
        await asyncio.sleep(seconds)
        return
    await asyncio.sleep(least)
    while (left := begun + seconds - history.clock()) > 0:
        if not (under_way(history) or is_open()):
            return
        await asyncio.sleep(min(LOOK, left))


def under_way(history: History) -> bool:
    """Whether somebody has just written, or asked to, or an object waits for what somebody does next."""
    since = history.clock() - STILL
    for entry in reversed(history.entries):
        if entry.time <= since:
            break
        if entry.bucket not in _ALWAYS:
            return True
    for request in reversed(history.requests):
        if request.time <= since:
            break
        path = request.path.partition("?")[0]
        restless = any(part in path for part in (*RESTLESS, "/nodes/"))
        if request.method != "GET" and not restless and role_of(request.author) in LEASES:
            return True
    for pod in history.of("pod").values():
        starting = node_of(pod) and (pod.get("status") or {}).get("phase") != "Running" and not finished(pod)
        if starting or pod["metadata"].get("deletionTimestamp"):
            return True
    moving = any((job.get("status") or {}).get("phase") not in _OVER for job in history.of(MIGRATION_JOB).values())
    return moving or any((one.get("status") or {}).get("phase") not in _OVER for one in history.of(RESERVATION).values())
