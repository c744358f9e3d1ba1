"""Gangs as units: a gang that runs with its minimum loses nobody (SCH-GANG-01, DS-ARB-02).

Members beyond the minimum may leave one by one. Who was asked to leave counts as gone at once, whatever the caches still show.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from koord.api import kinds, names
from koord.api.gangs import gang_minimum, gang_name
from koord.api.objects import Pod, PodGroup
from koord.kube.informers import Informer, InformerFactory
from roles.descheduler.picture import FINISHED

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds


def gang_key(pod: Pod) -> str:
    """`namespace/name` of the pod's gang, "" for a pod without one."""
    name = gang_name(pod.metadata.labels, pod.metadata.annotations)
    return f"{pod.metadata.namespace}/{name}" if name else ""


class Gangs:
    """Gangs by their members in the cache of pods, and their PodGroups."""

    def __init__(self, informers: InformerFactory, pods: Informer[Pod]) -> None:
        self._pods = pods
        self._pods.index("gang", lambda pod: gang_key(pod) or None)
        self._groups = informers.informer(kinds.PODGROUPS, PodGroup, optional=True)
        self._gone: set[str] = set()  # uids of members whose eviction was accepted, for as long as the cache shows them alive
        self._assumed: dict[str, Pod] = {}  # members that would have left, in a dry run
        self._waited = False
        pods.add_handler(on_delete=lambda pod: self._gone.discard(pod.metadata.uid))

    def refuse(self, pod: Pod, leaves: Callable[[Pod], bool] = lambda pod: False) -> str:
        """Why the pod's gang cannot do without it, "" when it can, or there is none. `leaves` says of a member that it is on its way out.

        A gang whose minimum is not known loses nobody; a pod that has ended, or never ran, is no loss."""
        key = gang_key(pod)
        if not key or not _runs(pod):
            return ""
        minimum = self._minimum(pod, key)
        if minimum is None:
            return f"the minimum of its gang {key} is not known"
        there = sum(
            1
            for each in self._pods.by_index("gang", key)
            if each.metadata.uid != pod.metadata.uid and _runs(each) and not self._going(each) and not leaves(each)
        )
        return f"its gang {key} would have {there} of the {minimum} members that it needs" if there < minimum else ""

    async def wait_synced(self) -> None:
        """Wait for the first list of PodGroups, but only a moment: where they may not be read, their members stay, and nobody else."""
        if self._waited:
            return
        self._waited = True
        try:
            await asyncio.wait_for(self._groups.wait_synced(), PATIENCE)
        except TimeoutError:
            log.warning(
                "PodGroups cannot be listed (is list and watch of podgroups.scheduling.sigs.k8s.io allowed?): members are not moved"
            )

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count the pod as gone until the next round, or until what is returned is called."""
        self._assumed[pod.metadata.uid] = pod

        def take_back() -> None:
            self._assumed.pop(pod.metadata.uid, None)

        return take_back

    def forget_assumed(self) -> None:
        """A new round: nothing has left in thought."""
        self._assumed.clear()

    def left(self, pod: Pod) -> None:
        """The pod was told to leave."""
        if gang_key(pod):
            self._gone.add(pod.metadata.uid)

    def _going(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._gone or pod.metadata.uid in self._assumed

    def _minimum(self, pod: Pod, key: str) -> int | None:
        group = self._groups.get(key)
        if group is not None:
            return max(group.spec.min_member, 0)
        if names.LABEL_POD_GROUP in pod.metadata.labels:
            return None  # only its PodGroup could tell, which is gone or may not be read
        return gang_minimum(pod.metadata.labels, pod.metadata.annotations)


def _runs(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in FINISHED and pod.metadata.deletion_timestamp is None
