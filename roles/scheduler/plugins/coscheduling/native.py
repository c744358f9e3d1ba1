"""Kubernetes' own pod groups as gangs (SCH-WL-01, SCH-WL-02, SCH-WL-06): PodGroups of scheduling.k8s.io, and Workloads of its v1alpha1.

A server has one of the versions or none. A PodGroup that is watched in two of them is one gang.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from koord.api import names
from koord.api.gangs import WORKLOAD, group_id
from koord.api.kinds import SCHEDULING_PODGROUPS, SCHEDULING_PODGROUPS_V1ALPHA2
from koord.api.objects import SchedulingPodGroup, SchedulingWorkload
from koord.api.objects_scheduling import GroupPolicy
from roles.scheduler.plugins.coscheduling.cache import Gang, GangCache
from roles.scheduler.plugins.coscheduling.spec import GangSpec, Whole

FROM_GROUP = "PodGroup"
FROM_WORKLOAD = "Workload"
WAIT_TIME = 300.0  # seconds, as long as kube-scheduler lets members wait for one another


def as_v1beta1(group: SchedulingPodGroup) -> SchedulingPodGroup:
    """The PodGroup with the version that it was read in: items of lists do not tell."""
    return replace(group, api_version=SCHEDULING_PODGROUPS.api_version)


def as_v1alpha2(group: SchedulingPodGroup) -> SchedulingPodGroup:
    """As `as_v1beta1`."""
    return replace(group, api_version=SCHEDULING_PODGROUPS_V1ALPHA2.api_version)


class NativeGroups:
    """Tells the cache what PodGroups and Workloads say."""

    def __init__(self, cache: GangCache) -> None:
        self._cache = cache
        self._workloads: dict[str, SchedulingWorkload] = {}
        cache.describe = self.describe

    def group_event(self, old: SchedulingPodGroup | None, new: SchedulingPodGroup | None) -> None:
        """A PodGroup appeared, changed or went."""
        present = new or old
        assert present is not None
        identity = group_id(present.metadata.namespace, present.metadata.name)
        if new is None:
            gang = self._cache.gangs.get(identity)
            if gang is not None and gang.native is not None and gang.native.metadata.uid == present.metadata.uid:
                self._cache.withdrawn(identity)
            return
        gang = self._cache.gang(identity)
        gang.native = new
        spec = new.spec
        constraints = spec.scheduling_constraints
        domain = next((entry.key for entry in constraints.topology), "") if constraints is not None else ""
        whole = Whole.ALWAYS if spec.disrupted_as_one else Whole.NEVER
        created = new.metadata.creation_timestamp or ""
        made = _spec(identity, spec.scheduling_policy, FROM_GROUP, created, domain=domain, whole=whole, priority=spec.priority)
        if made is not None:
            self._cache.declare(gang, made)

    def workload_event(self, old: SchedulingWorkload | None, new: SchedulingWorkload | None) -> None:
        """A Workload of v1alpha1 appeared, changed or went."""
        present = new or old
        assert present is not None
        meta = present.metadata
        key = f"{meta.namespace}/{meta.name}"
        if new is None:
            self._workloads.pop(key, None)
        else:
            self._workloads[key] = new
        for gang in list(self._replicas(meta.namespace, meta.name)):
            spec = self.describe(gang)
            if spec is None:
                self._cache.withdrawn(gang.id)
            else:
                self._cache.declare(gang, spec)

    def _replicas(self, namespace: str, name: str) -> Iterator[Gang]:
        start = f"{namespace}/{WORKLOAD}{name}:"
        return (gang for identity, gang in self._cache.gangs.items() if identity.startswith(start))

    def describe(self, gang: Gang) -> GangSpec | None:
        """What a gang of a Workload is; None without the Workload, or when it has no such group."""
        namespace, _, rest = gang.id.partition(f"/{WORKLOAD}")
        name, _, group = rest.partition(":")
        workload = self._workloads.get(f"{namespace}/{name}") if rest else None
        if workload is None:
            return None
        wanted = group.partition(":")[0]
        policy = next((entry.policy for entry in workload.spec.pod_groups if entry.name == wanted), None)
        return _spec(gang.id, policy, FROM_WORKLOAD, workload.metadata.creation_timestamp or "") if policy is not None else None


def _spec(
    identity: str, policy: GroupPolicy, origin: str, created: str, *,
    domain: str = "", whole: Whole = Whole.NEVER, priority: int | None = None,
) -> GangSpec | None:  # fmt: skip
    """The gang of a policy; None for one that this scheduler does not know."""
    if policy.gang is None and policy.basic is None:
        return None
    basic = policy.gang is None and not domain  # where they share a domain, not even those of a basic group go without a plan
    minimum = policy.gang.min_count if policy.gang is not None else 0 if basic else 1
    return GangSpec(
        min_number=minimum,
        total=minimum,
        mode=names.GANG_MODE_STRICT,
        match_policy=names.GANG_MATCH_WAITING_AND_RUNNING,
        wait_time=WAIT_TIME,
        groups=(identity,),
        topology=None,
        created=created,
        origin=origin,
        basic=basic,
        domain=domain,
        whole=whole,
        priority=priority,
    )
