"""The workload behind a pod: how many replicas it wants and which pods are its own (DS-WL-01).

Kinds that are common are watched, with nothing kept but their names, uids and replicas; any other kind is asked for its `scale`
subresource, ahead of time (`refresh`), so that `of` can answer at once.
"""

from __future__ import annotations

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
from roles.descheduler.world import World

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
)
SCALE_LIFETIME = 10.0  # seconds for which an answer of a scale subresource is believed


class ReplicasSpec(Projection):
    """The one field of a workload's spec that counts here; None means 1."""

    replicas: int | None = None


class ObservedStatus(Projection):
    """That a controller has looked at the workload."""

    observed_generation: int = 0


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


class WorkloadError(Exception):
    """The workload of a pod is not known. `missing`: it is gone, or another one has its name now; else it could not be asked for."""

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


def controller_of(pod: Pod) -> OwnerReference | None:
    """The owner reference that is the pod's controller."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


class Workloads:
    """Looks workloads up in caches. Made before the informers start."""

    def __init__(self, client: Client, informers: InformerFactory, world: World, clock: Callable[[], float] = seams.monotonic) -> None:
        self._client = client
        self._world = world
        self._clock = clock
        self._informers = {(kind.group, kind.kind): informers.informer(kind, Replicated, optional=True) for kind in WATCHED}
        self._replicasets = self._informers["apps", "ReplicaSet"]
        self._replicasets.index("owner", lambda item: [owner.uid for owner in item.metadata.owner_references if owner.controller])
        self._found: dict[str, Workload] = {}  # by the uid of the pods' controller; filters ask for every pod of a cluster
        for informer in self._informers.values():
            informer.add_handler(self._changed, self._changed, self._changed)
        self._scales: dict[str, tuple[float, Workload | WorkloadError]] = {}
        self._plurals: dict[tuple[str, str], str] = {}

    async def wait_synced(self) -> None:
        """Wait for the first list of each watched kind."""
        for informer in self._informers.values():
            await informer.wait_synced()

    def of(self, pod: Pod) -> Workload | None:
        """The pod's workload, None for a pod without a controller. Raises WorkloadError."""
        owner = controller_of(pod)
        if owner is None:
            return None
        found = self._found.get(owner.uid)
        if found is None or found.namespace != pod.metadata.namespace:
            found = self.behind(owner, pod.metadata.namespace)
            if (_group(owner.api_version), owner.kind) in self._informers:
                self._found[owner.uid] = found
        return found

    def _changed(self, *_: object) -> None:
        self._found.clear()

    def behind(self, owner: OwnerReference, namespace: str) -> Workload:
        """The workload that a controller reference means. Raises WorkloadError."""
        informer = self._informers.get((_group(owner.api_version), owner.kind))
        if informer is None:
            return self._scaled(owner, namespace)
        found = informer.get(f"{namespace}/{owner.name}")
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
        pods = {pod.metadata.uid: pod for uid in sorted(workload.owner_uids) for pod in self._world.pods_of_owner(uid, workload.namespace)}
        return list(pods.values())

    async def refresh(self, pods: Iterable[Pod]) -> None:
        """Ask for the scale of the workloads of these pods that are not watched, where the last answer is too old."""
        now = self._clock()
        wanted: dict[str, tuple[OwnerReference, str]] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None or (_group(owner.api_version), owner.kind) in self._informers:
                continue
            known = self._scales.get(owner.uid)
            if known is None or now - known[0] >= SCALE_LIFETIME:
                wanted[owner.uid] = (owner, pod.metadata.namespace)
        self._scales = {uid: entry for uid, entry in self._scales.items() if now - entry[0] < 60 * SCALE_LIFETIME}
        for uid, (owner, namespace) in wanted.items():
            self._scales[uid] = (now, await self._ask(owner, namespace))

    # ---------------------------------------------------------------- the kinds

    def _of_replicaset(self, found: Replicated, namespace: str) -> Workload:
        own = frozenset({found.metadata.uid})
        owner = next((owner for owner in found.metadata.owner_references if owner.controller), None)
        if owner is not None and (owner.kind, _group(owner.api_version)) == ("Deployment", "apps"):
            return self.behind(owner, namespace)
        return Workload("ReplicaSet", namespace, found.metadata.name, found.metadata.uid, _replicas(found), own, _observed(found))

    def _replicasets_of(self, uid: str) -> frozenset[str]:
        return frozenset(item.metadata.uid for item in self._replicasets.by_index("owner", uid))

    def _scaled(self, owner: OwnerReference, namespace: str) -> Workload:
        known = self._scales.get(owner.uid)
        if known is None:
            raise WorkloadError(f"{owner.kind} {namespace}/{owner.name} has not been asked for its scale yet", missing=False)
        if isinstance(known[1], WorkloadError):
            raise known[1]
        return known[1]

    async def _ask(self, owner: OwnerReference, namespace: str) -> Workload | WorkloadError:
        what = f"{owner.kind} {namespace}/{owner.name}"
        try:
            plural = await self._plural(owner.api_version, owner.kind)
            group, _, version = owner.api_version.rpartition("/")
            kind = Kind(group, version, owner.kind, plural, True)
            scale = await self._client.get(kind, owner.name, namespace, subresource="scale")
        except errors.NotFound:
            return WorkloadError(f"{what} does not exist, or has no scale", missing=True)
        except errors.ApiError as error:
            return WorkloadError(f"the scale of {what} cannot be read: {error}", missing=False)
        uid = (scale.get("metadata") or {}).get("uid", "")
        if uid and uid != owner.uid:
            return _missing(owner, namespace, True)
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        return Workload(owner.kind, namespace, owner.name, owner.uid, replicas, frozenset({owner.uid}))

    async def _plural(self, api_version: str, kind: str) -> str:
        """The plural under which a kind with a scale is served. Raises ApiError."""
        if (api_version, kind) not in self._plurals:
            path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            status, body = await self._client.raw("GET", path)
            if status != 200:
                raise errors.from_response(status, body)
            names = {item.get("name", ""): item.get("kind") for item in orjson.loads(body).get("resources") or ()}
            plural = next((name for name, its in names.items() if its == kind and "/" not in name), "")
            if f"{plural}/scale" not in names:
                raise errors.ApiError(0, "NoScale", f"{api_version} {kind} has no scale subresource")
            self._plurals[api_version, kind] = plural
        return self._plurals[api_version, kind]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _replicas(found: Replicated) -> int:
    return 1 if found.spec.replicas is None else found.spec.replicas


def _observed(found: Replicated) -> bool:
    return found.status.observed_generation > 0


def _missing(owner: OwnerReference, namespace: str, replaced: bool) -> WorkloadError:
    why = "has another uid than the pod's owner" if replaced else "does not exist"
    return WorkloadError(f"{owner.kind} {namespace}/{owner.name} {why}", missing=True)
