"""The workload behind a pod: how many replicas it wants and which pods are its own (DS-WL-01).

Kinds that are common are watched, with nothing kept but their names, uids and replicas (a batch Job's counts of pods). Any other kind is
asked for its `scale` subresource ahead of time (`refresh`), so that `of` can answer at once; which kinds have one is asked once in a while
(`learn`). A workload of a kind that has none wants as many pods as it has now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import orjson

from koord import seams
from koord.api import kinds
from koord.api.kinds import Kind
from koord.api.objects import Object, OwnerReference, Pod, Projection
from koord.kube import errors
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from roles.descheduler.cluster import ClusterState
from roles.descheduler.snapshot import FINISHED

log = logging.getLogger(__name__)

CLONESETS = Kind("apps.kruise.io", "v1alpha1", "CloneSet", "clonesets", True)
KRUISE_STATEFULSETS = Kind("apps.kruise.io", "v1beta1", "StatefulSet", "statefulsets", True)
WATCHED = (
    kinds.REPLICATIONCONTROLLERS,
    kinds.DEPLOYMENTS,
    kinds.REPLICASETS,
    kinds.STATEFULSETS,
    CLONESETS,
    KRUISE_STATEFULSETS,
    kinds.JOBS,
)
_KINDS = {(kind.group, kind.kind): kind for kind in WATCHED}
SCALE_LIFETIME = 10.0  # seconds for which an answer of a scale subresource is believed
DISCOVERY_LIFETIME = 600.0  # seconds for which the API server's word about a group is believed
UNSERVED_LIFETIME = 30.0  # the same where it does not know a kind: its definition may be on its way
PATIENCE = 5.0  # seconds
AT_ONCE = 1000  # pods that are looked at before others get their turn


class ReplicasSpec(Projection):
    """The fields of a workload's spec that count here; None means 1."""

    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None


class ObservedStatus(Projection):
    """That a controller has looked at the workload; of a batch Job, what has become of its pods."""

    observed_generation: int = 0
    active: int = 0
    succeeded: int = 0


class Replicated(Object):
    """A workload without its template, so that watching all of them costs little."""

    spec: ReplicasSpec = ReplicasSpec()
    status: ObservedStatus = ObservedStatus()


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload: `replicas` are those asked for; `owner_uids` are the controllers that its pods name (all ReplicaSets of a Deployment)."""

    kind: str
    namespace: str
    name: str
    uid: str
    replicas: int
    owner_uids: frozenset[str]
    observed: bool = False  # a controller looks after it: pods that it lacks are on their way

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Served:
    """The kinds of a group and version, when they were asked for, and the plurals of those that have a scale."""

    asked: float
    kinds: frozenset[str]
    scales: dict[str, str]


class WorkloadError(Exception):
    """The workload of a pod is not known. `missing`: it is gone, or another one has its name now; else it could not be asked for, or
    (`unasked`) was not yet."""

    def __init__(self, message: str, *, missing: bool, unasked: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.unasked = unasked


class Workloads:
    """Looks workloads up in caches. Made before the informers start."""

    def __init__(
        self, client: Client, informers: InformerFactory, cluster: ClusterState, clock: Callable[[], float] = seams.monotonic
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._clock = clock
        self._informers = {key: informers.informer(kind, Replicated, optional=True) for key, kind in _KINDS.items()}
        self._replicasets = self._informers["apps", "ReplicaSet"]
        self._waited = False
        self._batch_jobs = self._informers[kinds.JOBS.group, kinds.JOBS.kind]
        self._replicasets.index("owner", lambda item: [owner.uid for owner in item.metadata.owner_references if owner.controller])
        self._found: dict[str, Workload] = {}  # by the uid of the pods' controller; filters ask for every pod of a cluster
        for informer in self._informers.values():
            informer.add_handler(self._changed, self._changed, self._changed)
        self._scales: dict[str, tuple[float, Workload | WorkloadError]] = {}
        self._served: dict[str, _Served] = {}  # by apiVersion

    async def wait_synced(self) -> None:
        """Wait for the first list of each watched kind. Batch Jobs are waited for only a moment: a ClusterRole of before they were watched
        keeps their pods where they are, and nobody else's."""
        for informer in self._informers.values():
            if informer is not self._batch_jobs:
                await informer.wait_synced()
        if self._waited:
            return
        self._waited = True
        try:
            await asyncio.wait_for(self._batch_jobs.wait_synced(), PATIENCE)
        except TimeoutError:
            log.warning("batch Jobs cannot be listed (is list and watch of jobs.batch allowed?): their pods are not moved")

    def of(self, pod: Pod) -> Workload | None:
        """The pod's workload, None for a pod without a controller. Raises WorkloadError."""
        owner = pod.metadata.controller
        if owner is None:
            return None
        found = self._found.get(owner.uid)
        if found is None or found.namespace != pod.metadata.namespace:
            found = self.behind(owner, pod.metadata.namespace)
            if self._watches(owner):
                self._found[owner.uid] = found
        return found

    def _changed(self, *_: object) -> None:
        self._found.clear()

    async def lost(self, pod: Pod) -> str:
        """Why the pod's controller would make no other one, "" if it would. The API server is asked where the controller has a scale
        subresource, as its watch may be late or there is none: `of` goes by the answer then; raises ApiError."""
        owner = pod.metadata.controller
        if owner is None:
            return ""
        try:
            await self.learn([pod])
            if (kind := self._kind(owner)) is not None:
                try:
                    found = await self._scale(kind, owner, pod.metadata.namespace)
                    if not self._watches(owner):
                        self._scales[owner.uid] = (self._clock(), found)
                    return ""
                except (errors.NotFound, errors.Forbidden) as error:
                    log.debug("the scale of %s %s/%s cannot be read: %s", owner.kind, pod.metadata.namespace, owner.name, error)
            self.of(pod)
        except WorkloadError as error:
            return str(error) if error.missing else ""
        return ""

    def behind(self, owner: OwnerReference, namespace: str) -> Workload:
        """The workload that a controller reference means. Raises WorkloadError."""
        informer = self._informers.get((_group(owner.api_version), owner.kind))
        if informer is None:
            return self._scaled(owner, namespace)
        found = informer.get(f"{namespace}/{owner.name}")
        if found is None and informer is self._batch_jobs and not informer.synced:
            raise WorkloadError(f"{owner.kind} {namespace}/{owner.name} is not known: batch Jobs cannot be listed", missing=False)
        if found is None or found.metadata.uid != owner.uid:
            raise _missing(owner, namespace, found is not None)
        if informer is self._replicasets:
            return self._of_replicaset(found, namespace)
        owners = frozenset({owner.uid})
        if (owner.kind, _group(owner.api_version)) == ("Deployment", "apps"):
            owners = self._replicasets_of(owner.uid) | owners
        return Workload(owner.kind, namespace, owner.name, owner.uid, _replicas(found), owners, _observed(found))

    def pods_of(self, workload: Workload) -> list[Pod]:
        """Every pod of the workload, in any phase."""
        pods = {
            pod.metadata.uid: pod for uid in sorted(workload.owner_uids) for pod in self._cluster.pods_of_owner(uid, workload.namespace)
        }
        return list(pods.values())

    async def learn(self, pods: Iterable[Pod]) -> None:
        """Ask which kinds among the owners of these pods have a scale, where that is not known: one request a group and version."""
        await self._learn(pod.metadata.controller for pod in pods)

    async def refresh(self, pods: Iterable[Pod]) -> None:
        """Ask for the scale of the workloads of these pods, as `look_up` does: only for pods that may be about to leave."""
        await self.look_up((owner, pod.metadata.namespace) for pod in pods if (owner := pod.metadata.controller) is not None)

    async def look_up(self, owners: Iterable[tuple[OwnerReference, str]]) -> None:
        """Ask for the scale of the workloads behind these references (with their namespaces) that are not watched and have one, where the
        last answer is too old. One request a workload."""
        owners = list(owners)
        await self._learn(owner for owner, _ in owners)
        now = self._clock()
        wanted: dict[str, tuple[OwnerReference, str]] = {}
        for owner, namespace in owners:
            if self._watches(owner) or self._has_no_scale(owner):
                continue
            known = self._scales.get(owner.uid)
            if known is None or now - known[0] >= SCALE_LIFETIME:
                wanted[owner.uid] = (owner, namespace)
        self._scales = {uid: entry for uid, entry in self._scales.items() if now - entry[0] < 60 * SCALE_LIFETIME}
        for uid, (owner, namespace) in wanted.items():
            self._scales[uid] = (now, await self._ask(owner, namespace))

    async def _learn(self, owners: Iterable[OwnerReference | None]) -> None:
        now = self._clock()
        seen: dict[str, set[str]] = {}
        for number, owner in enumerate(owners, 1):
            if number % AT_ONCE == 0:
                await seams.sleep(0)
            if owner is not None and not self._watches(owner):
                seen.setdefault(owner.api_version, set()).add(owner.kind)
        for api_version, wanted in sorted(seen.items()):
            known = self._served.get(api_version)
            if known is not None and now - known.asked < (DISCOVERY_LIFETIME if wanted <= known.kinds else UNSERVED_LIFETIME):
                continue
            try:
                self._served[api_version] = await self._discover(api_version, now)
            except errors.ApiError as error:
                log.warning("the kinds of %s cannot be read: %s", api_version, error)

    # ---------------------------------------------------------------- the kinds

    def _of_replicaset(self, found: Replicated, namespace: str) -> Workload:
        own = frozenset({found.metadata.uid})
        owner = found.metadata.controller
        if owner is not None and (owner.kind, _group(owner.api_version)) == ("Deployment", "apps"):
            return self.behind(owner, namespace)
        return Workload("ReplicaSet", namespace, found.metadata.name, found.metadata.uid, _replicas(found), own, _observed(found))

    def _replicasets_of(self, uid: str) -> frozenset[str]:
        return frozenset(item.metadata.uid for item in self._replicasets.by_index("owner", uid))

    def _scaled(self, owner: OwnerReference, namespace: str) -> Workload:
        if self._has_no_scale(owner):
            there = self._cluster.pods_of_owner(owner.uid, namespace)
            count = sum(1 for pod in there if pod.status.phase not in FINISHED and pod.metadata.deletion_timestamp is None)
            return Workload(owner.kind, namespace, owner.name, owner.uid, count, frozenset({owner.uid}))
        known = self._scales.get(owner.uid)
        if known is None:
            why = f"{owner.kind} {namespace}/{owner.name} has no known scale yet"
            raise WorkloadError(why, missing=False, unasked=True)
        if isinstance(known[1], WorkloadError):
            raise known[1]
        return known[1]

    async def _ask(self, owner: OwnerReference, namespace: str) -> Workload | WorkloadError:
        what = f"{owner.kind} {namespace}/{owner.name}"
        kind = self._kind(owner)
        if kind is None:
            return WorkloadError(f"the kinds of {owner.api_version}, to which {what} belongs, cannot be read", missing=False)
        try:
            return await self._scale(kind, owner, namespace)
        except WorkloadError as error:
            return error
        except errors.ApiError as error:
            return WorkloadError(f"the scale of {what} cannot be read: {error}", missing=False)

    async def _scale(self, kind: Kind, owner: OwnerReference, namespace: str) -> Workload:
        """A workload as its scale tells. Raises WorkloadError where the API server says that it is not there, ApiError."""
        try:
            scale = await self._client.get(kind, owner.name, namespace, subresource="scale")
        except errors.NotFound as error:
            if error.details.get("name") == owner.name:
                raise _missing(owner, namespace, False) from error
            raise  # there is no such scale, or not yet
        uid = (scale.get("metadata") or {}).get("uid", "")
        if uid and uid != owner.uid:
            raise _missing(owner, namespace, True)
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        return Workload(owner.kind, namespace, owner.name, owner.uid, replicas, frozenset({owner.uid}))

    def _kind(self, owner: OwnerReference) -> Kind | None:
        """The kind of a controller that is known to have a scale, None for any other."""
        key = (_group(owner.api_version), owner.kind)
        if key in self._informers:
            return None if self._informers[key] is self._batch_jobs else _KINDS[key]
        served = self._served.get(owner.api_version)
        plural = served.scales.get(owner.kind, "") if served is not None else ""
        group, _, version = owner.api_version.rpartition("/")
        return Kind(group, version, owner.kind, plural, True) if plural else None

    def _watches(self, owner: OwnerReference) -> bool:
        return (_group(owner.api_version), owner.kind) in self._informers

    def _has_no_scale(self, owner: OwnerReference) -> bool:
        known = self._served.get(owner.api_version)
        return known is not None and owner.kind not in known.scales

    async def _discover(self, api_version: str, now: float) -> _Served:
        """The kinds of a group and version; none where it is not served. Raises ApiError."""
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        status, body = await self._client.raw("GET", path)
        if status == 404:
            return _Served(now, frozenset(), {})
        if status != 200:
            raise errors.from_response(status, body)
        served = {item.get("name", ""): item.get("kind") for item in orjson.loads(body).get("resources") or ()}
        scales = {kind: name for name, kind in served.items() if "/" not in name and f"{name}/scale" in served}
        return _Served(now, frozenset(kind for name, kind in served.items() if "/" not in name), scales)


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _replicas(found: Replicated) -> int:
    """How many pods are to run now. A batch Job without `completions` makes no more pods once one has succeeded."""
    spec, state = found.spec, found.status
    wanted = spec.parallelism if spec.replicas is None else spec.replicas
    wanted = 1 if wanted is None else wanted
    if spec.completions is not None:
        return max(0, min(wanted, spec.completions - state.succeeded))
    return min(wanted, state.active) if state.succeeded else wanted


def _observed(found: Replicated) -> bool:
    return found.status.observed_generation > 0


def _missing(owner: OwnerReference, namespace: str, replaced: bool) -> WorkloadError:
    why = "has another uid than the pod's owner" if replaced else "does not exist"
    return WorkloadError(f"{owner.kind} {namespace}/{owner.name} {why}", missing=True)
