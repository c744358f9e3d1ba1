"""Evictions in background: somebody else (live migration, say) takes the pod away when its eviction is asked for (DS-K8S-11).

The Eviction API has no answer for that yet: a webhook refuses with 429 and says that it was triggered. Such a pod is annotated by its
owner, and while it is on its way nobody asks again.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api import names
from koord.api.objects import Pod
from koord.kube import errors

GATE = "EvictionsInBackground"
TRIGGERED = "Eviction triggered"
PATIENCE = 600.0  # seconds for which who was asked may take to say, by the other annotation, that it is at work


def wanted(pod: Pod) -> bool:
    """Whether the pod is only asked to leave, and somebody else takes it away."""
    return names.ANNOTATION_REQUEST_EVICT_ONLY in pod.metadata.annotations


def goes_on(pod: Pod) -> bool:
    """Whether who takes the pod away says that it is at work."""
    return wanted(pod) and names.ANNOTATION_EVICTION_IN_PROGRESS in pod.metadata.annotations


def triggered(pod: Pod, refusal: errors.ApiError) -> bool:
    """Whether a refusal of the Eviction API says that the eviction was begun in background."""
    return wanted(pod) and isinstance(refusal, errors.TooManyRequests) and TRIGGERED in refusal.message


class Background:
    """Who was asked to leave in background, and when. `on` False: nothing is different."""

    def __init__(self, clock: Callable[[], float], *, on: bool) -> None:
        self._clock = clock
        self._on = on
        self._asked: dict[str, float] = {}

    def under_way(self, pod: Pod) -> bool:
        """Whether somebody is taking the pod away."""
        if not self._on or not wanted(pod):
            return False
        if goes_on(pod):
            return True
        return self._clock() - self._asked.get(pod.metadata.uid, -PATIENCE) < PATIENCE

    def begun(self, pod: Pod, refusal: errors.ApiError) -> bool:
        """Whether a refusal of the Eviction API says that it was begun in background; it is under way from then on."""
        if not self._on or not triggered(pod, refusal):
            return False
        now = self._clock()
        self._asked = {uid: at for uid, at in self._asked.items() if now - at < PATIENCE}
        self._asked[pod.metadata.uid] = now
        return True
