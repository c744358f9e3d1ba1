"""Evictions in background: somebody else (live migration, say) takes the pod away when its eviction is asked for (DS-K8S-11).

The Eviction API has no answer for that yet: a webhook refuses with 429 and says that it was triggered. Such a pod is annotated by its
owner, and while it is on its way nobody asks again.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api import names
from koord.api.objects import Pod
from koord.kube import errors

TRIGGERED = "Eviction triggered"
PATIENCE = 600.0  # seconds for which who was asked may take to say, by the other annotation, that it is at work


class Background:
    """Who was asked to leave in background, and when. `on` False: nothing is different."""

    def __init__(self, clock: Callable[[], float], *, on: bool) -> None:
        self._clock = clock
        self._on = on
        self._asked: dict[str, float] = {}

    def under_way(self, pod: Pod) -> bool:
        """Whether somebody is taking the pod away."""
        if not self._wanted(pod):
            return False
        if names.ANNOTATION_EVICTION_IN_PROGRESS in pod.metadata.annotations:
            return True
        return self._clock() - self._asked.get(pod.metadata.uid, -PATIENCE) < PATIENCE

    def begun(self, pod: Pod, refusal: errors.ApiError) -> bool:
        """Whether a refusal of the Eviction API says that it was begun in background; it is under way from then on."""
        if not self._wanted(pod) or not isinstance(refusal, errors.TooManyRequests) or TRIGGERED not in refusal.message:
            return False
        now = self._clock()
        self._asked = {uid: at for uid, at in self._asked.items() if now - at < PATIENCE}
        self._asked[pod.metadata.uid] = now
        return True

    def _wanted(self, pod: Pod) -> bool:
        return self._on and names.ANNOTATION_REQUEST_EVICT_ONLY in pod.metadata.annotations
