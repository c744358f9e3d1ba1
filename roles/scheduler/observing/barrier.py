"""The sync barrier (gate SyncBarrier): a new leader waits until its caches have seen what the old one wrote."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from koord import seams
from koord.api.kinds import PODS
from koord.kube.client import Client
from koord.kube.errors import ApiError, NotFound
from roles.scheduler.options import Barrier

log = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_ANNOTATION = "scheduling.koordinator.sh/sync-barrier-"


def version_key(resource_version: str) -> tuple[int, str]:
    """Orders resource versions as decimal strings: the longer one is newer, equally long ones compare as text."""
    return (len(resource_version), resource_version)


async def wait(barrier: Barrier, client: Client, pods: Any, lease: str) -> bool:
    """Patch the barrier pod and wait until the pod informer shows it; True when it did.

    Informer handlers run before the store is seen, so whatever was assigned before the patch is in the caches then. A missing pod
    ends the wait at once, the timeout with a warning, also when the API server has failed for so long.
    """
    key = f"{barrier.namespace}/{barrier.name}"
    try:
        async with asyncio.timeout(barrier.timeout):
            wanted = await _marked(barrier, client, lease)
            while wanted is not None:
                seen = pods.get(key)
                if seen is not None and version_key(str(seen.metadata.resource_version)) >= wanted:
                    return True
                await seams.sleep(_POLL)
    except TimeoutError:
        log.warning("sync barrier: pod %s did not show up within %.0f s; scheduling starts without it", key, barrier.timeout)
    return False


async def _marked(barrier: Barrier, client: Client, lease: str) -> tuple[int, str] | None:
    """Patch the pod; returns its version, None where there is no such pod."""
    failure = ""
    while True:
        stamp = seams.utcnow().isoformat(timespec="microseconds").replace("+00:00", "000Z")
        try:
            body = {"metadata": {"annotations": {_ANNOTATION + lease: stamp}}}
            patched = await client.patch(PODS, barrier.name, body, barrier.namespace)
        except NotFound:
            log.info("no sync barrier: there is no pod %s/%s", barrier.namespace, barrier.name)
            return None
        except ApiError as error:
            if str(error) != failure:
                log.warning("sync barrier: pod %s/%s could not be patched: %s; trying again", barrier.namespace, barrier.name, error)
            failure = str(error)
            await seams.sleep(_POLL)
        else:
            return version_key(str(patched["metadata"]["resourceVersion"]))
