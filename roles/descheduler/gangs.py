"""Gangs as units: a gang that runs with its minimum loses nobody (SCH-GANG-01, DS-ARB-02).

Members beyond the minimum may leave one by one, unless the group is only disrupted as one.
Who was asked to leave counts as gone at once, whatever the caches still show.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from koord.api import kinds, names
from koord.api.gangs import gang_id, gang_minimum, gang_name
from koord.api.objects import Pod, PodGroup, SchedulingPodGroup, SchedulingWorkload
from koord.api.objects_scheduling import GroupPolicy
from koord.kube.informers import Informer, InformerFactory
from roles.descheduler.snapshot import FINISHED

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds


class Gangs:
    """Gangs by their members in the cache of pods, and what says how many they need: PodGroups of koord, PodGroups of Kubernetes in
    either version, Workloads of 1.35."""

    def __init__(self, informers: InformerFactory, pods: Informer[Pod]) -> None:
        self._pods = pods
        self._pods.index("gang", lambda pod: gang_id(pod) or None)
        self._groups = informers.informer(kinds.PODGROUPS, PodGroup, optional=True)
        versions = (kinds.SCHEDULING_PODGROUPS, kinds.SCHEDULING_PODGROUPS_V1ALPHA2)
        self._native = [informers.informer(kind, SchedulingPodGroup, optional=True) for kind in versions]
        self._workloads = informers.informer(kinds.SCHEDULING_WORKLOADS_V1ALPHA1, SchedulingWorkload, optional=True)
        self._gone: set[str] = set()  # uids of members whose eviction was accepted, for as long as the cache shows them alive
        self._assumed: dict[str, Pod] = {}  # members that would have left, in a dry run
        self._waited = False
        pods.add_handler(on_delete=lambda pod: self._gone.discard(pod.metadata.uid))

    def refuse(self, pod: Pod, leaves: Callable[[Pod], bool] = lambda pod: False) -> str:
        """Why the pod's gang cannot do without it, "" when it can, or there is none. `leaves` says of a member that it is on its way out.

        A gang whose minimum is not known loses nobody; a pod that has ended, or never ran, is no loss."""
        key = gang_id(pod)
        if not key or not _runs(pod):
            return ""
        minimum, as_one = self._minimum(pod, key)
        if as_one:
            return f"its gang {key} is disrupted only as a whole"
        if minimum is None:
            return f"the minimum of its gang {key} is not known"
        there = sum(
            1
            for each in self._pods.by_index("gang", key)
            if each.metadata.uid != pod.metadata.uid and _runs(each) and not self._going(each) and not leaves(each)
        )
        return f"its gang {key} would have {there} of the {minimum} members that it needs" if there < minimum else ""

    def whole(self, pod: Pod) -> list[Pod]:
        """The running members of the pod's gang, by name; nobody where its minimum is not known."""
        key = gang_id(pod)
        if not key or not _runs(pod) or self._minimum(pod, key)[0] is None:
            return []
        members = [each for each in self._pods.by_index("gang", key) if _runs(each) and not self._going(each)]
        return sorted(members, key=lambda each: (each.metadata.namespace, each.metadata.name))

    async def wait_synced(self) -> None:
        """Wait for the first lists of what describes gangs, but only a moment: where it may not be read, members stay, and nobody else."""
        if self._waited:
            return
        self._waited = True
        native = [*(each.wait_synced() for each in self._native), self._workloads.wait_synced()]
        done = await asyncio.gather(*(_in_time(each) for each in (self._groups.wait_synced(), *native)))
        groups = ["scheduling.sigs.k8s.io", *("scheduling.k8s.io" for _ in native)]
        for group in sorted({group for group, synced in zip(groups, done, strict=True) if not synced}):
            what = "podgroups" if group.startswith("scheduling.sigs") else "podgroups and workloads"
            log.warning("gangs of %s cannot be listed (is list and watch of %s allowed?): their members are not moved", group, what)

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
        if gang_id(pod):
            self._gone.add(pod.metadata.uid)

    def _going(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._gone or pod.metadata.uid in self._assumed

    def _minimum(self, pod: Pod, key: str) -> tuple[int | None, bool]:
        """How many members the gang needs, None when nothing tells; and whether its members are only disrupted together."""
        labels, annotations = pod.metadata.labels, pod.metadata.annotations
        if not gang_name(labels, annotations):
            return self._native_minimum(pod)
        group = self._groups.get(key)
        if group is not None:
            return max(group.spec.min_member, 0), False
        if names.LABEL_POD_GROUP in labels:
            return None, False  # only its PodGroup could tell, which is gone or may not be read
        return gang_minimum(labels, annotations), False

    def _native_minimum(self, pod: Pod) -> tuple[int | None, bool]:
        namespace, spec = pod.metadata.namespace, pod.spec
        if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
            name = f"{namespace}/{spec.scheduling_group.pod_group_name}"
            group = next((found for each in self._native if (found := each.get(name)) is not None), None)
            return (None, False) if group is None else (_needed(group.spec.scheduling_policy), group.spec.disrupted_as_one)
        reference = spec.workload_ref
        workload = self._workloads.get(f"{namespace}/{reference.name}") if reference is not None else None
        if reference is None or workload is None:
            return None, False
        policy = next((each.policy for each in workload.spec.pod_groups if each.name == reference.pod_group), None)
        return (None if policy is None else _needed(policy)), False


def _needed(policy: GroupPolicy) -> int | None:
    """How many pods of a group have to run together; None for a policy that is not known."""
    if policy.gang is not None:
        return max(policy.gang.min_count, 0)
    return 0 if policy.basic is not None else None


async def _in_time(synced: Awaitable[object]) -> bool:
    try:
        await asyncio.wait_for(synced, PATIENCE)
    except TimeoutError:
        return False
    return True


def _runs(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in FINISHED and pod.metadata.deletion_timestamp is None
