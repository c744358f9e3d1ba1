"""What is written of claims: allocations and reservations before a pod is bound, and their release when it is not (SCH-DRA-08)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from koord import seams
from koord.api.kinds import PODS, RESOURCECLAIMS
from koord.api.times import format_time
from koord.kube.errors import ApiError, Conflict, NotFound
from roles.scheduler.cluster.defects import DEFECTS, ends_us
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.handle import Handle
from roles.scheduler.plugins.dynamic_resources.claims import Assumed, Claims
from roles.scheduler.plugins.dynamic_resources.extended import Extended, claim_of

log = logging.getLogger(__name__)

FINALIZER = "resource.kubernetes.io/delete-protection"
_ATTEMPTS = 5  # of a write that meets another writer
_STANDBY = 1.0  # seconds between looks at the lease, where something is left to be given back
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before a release is tried again
_EARLY = 0.01  # a timer may come so many seconds before its time
LEASE_LOST = "the lease is lost: no more writes"
_DELETE = "<delete>"
_MAPPING = ("containerName", "resourceName", "requestName")
Obj = dict[str, Any]
Given = list[tuple[Any, ...]]


class Carried(NamedTuple):
    """A pod that has a place: its UID and name, its claims, and those that are allocated for it, or for it and others of its gang. `own` is
    the claim that stands for its extended resources, under a name that cannot be until it is made; `made` is its UID then. `devices` are
    those of each claim with which the place was chosen."""

    uid: str
    name: str
    keys: tuple[str, ...]
    open: tuple[str, ...]
    own: str = ""
    extended: Extended | None = None
    made: str = ""
    devices: Mapping[str, Given] = {}


class Writer:
    """Writes one claim after another; each with the version that was read, so that nobody's change is lost."""

    def __init__(self, handle: Handle, cache: Claims) -> None:
        self._handle = handle
        self._cache = cache

    async def write(self, key: str, carried: Carried) -> str:
        """Allocate a claim if that is to be done, and reserve it for the pod. Returns why not, "" if it is done. Raises ApiError."""
        client, (namespace, _, name) = self._handle.client, key.partition("/")
        if client is None:
            return "no API server to write to"
        assumed = self._cache.assumed.get(key) if key in carried.open else None
        known = self._cache.claims.get(key)
        if known is None:
            return f"resourceclaim {name} is gone"
        uid = known.metadata.uid
        # A claim that has no allocation as it was seen need not be read first: the version that is written with tells. One that is reserved
        # for the pod already is read, for nothing is written: it may have been given back, which is not seen yet.
        shown: Obj | None = None
        if known.status.allocation is None and not known.status.reserved_for:
            meta = {"uid": uid, "resourceVersion": known.metadata.resource_version, "finalizers": list(known.metadata.finalizers)}
            shown = {"metadata": meta, "status": {}}
        for _ in range(_ATTEMPTS):
            if not self._handle.may_write():
                return LEASE_LOST
            if shown is None:
                shown = await client.get(RESOURCECLAIMS, name, namespace)
            problem = _problem(shown, uid, name, carried.devices.get(key), carried.uid, open_=assumed is not None)
            if problem is not None:
                return problem
            try:
                allocated = (shown.get("status") or {}).get("allocation")  # for another pod of its gang
                await self._put(shown, name, namespace, assumed.status if assumed is not None and not allocated else None, carried)
            except Conflict:
                shown = None
                continue
            return ""
        return f"resourceclaim {name}: others write it all the time"

    async def make(self, pod: PodInfo, carried: Carried) -> tuple[str, Carried]:
        """Make the claim that stands for a pod's extended resources, allocated, and tell the pod. Returns why not ("" if it is done), and
        what is carried now. Raises ApiError."""
        client, assumed, wanted = self._handle.client, self._cache.assumed.get(carried.own), carried.extended
        if client is None or assumed is None or wanted is None or not self._handle.may_write():
            return LEASE_LOST, carried
        body = claim_of(pod.name, pod.pod.metadata.uid, FINALIZER, msgspec.json.decode(msgspec.json.encode(wanted.spec)))
        made = await client.create(RESOURCECLAIMS, body, pod.namespace)
        key, uid = f"{pod.namespace}/{made['metadata']['name']}", made["metadata"]["uid"]
        self._cache.named(carried.own, key, uid)
        carried = carried._replace(own=key, made=uid)
        try:
            await self._put(made, made["metadata"]["name"], pod.namespace, assumed.status, carried)
            if not self._handle.may_write():
                return LEASE_LOST, carried
            mappings = [dict(zip(_MAPPING, mapping, strict=True)) for mapping in wanted.mappings]
            told = {"extendedResourceClaimStatus": {"resourceClaimName": made["metadata"]["name"], "requestMappings": mappings}}
            patch = {"metadata": {"uid": pod.pod.metadata.uid}, "status": told}
            await client.patch(PODS, pod.name, patch, pod.namespace, subresource="status")
        except ApiError as failure:
            return f"resourceclaim {made['metadata']['name']}: {failure}", carried
        return "", carried

    async def _put(self, shown: Obj, name: str, namespace: str, allocation: Obj | None, carried: Carried) -> None:
        client, status = self._handle.api, shown.get("status") or {}
        finalizers = shown["metadata"].get("finalizers") or []
        if allocation is not None and FINALIZER not in finalizers:
            body = {"metadata": {**_identity(shown), "finalizers": [*finalizers, FINALIZER]}}
            shown = await client.patch(RESOURCECLAIMS, name, body, namespace)
            if not self._handle.may_write():
                return
        consumer = {"resource": "pods", "name": carried.name, "uid": carried.uid}
        wanted: Obj = {"reservedFor": [*(status.get("reservedFor") or ()), consumer]}
        if allocation is not None:
            wanted["allocation"] = {**allocation, "allocationTimestamp": format_time(seams.now())}
        body = {"metadata": _identity(shown), "status": wanted}
        await client.patch(RESOURCECLAIMS, name, body, namespace, subresource="status")


def _identity(shown: Obj) -> Obj:
    return {"uid": shown["metadata"]["uid"], "resourceVersion": shown["metadata"]["resourceVersion"]}


def _problem(shown: Obj, uid: str, name: str, devices: Given | None, pod: str, *, open_: bool) -> str | None:
    """Why a claim cannot be written as it is now; "" when it says already what it is to say, None when it can be written."""
    status = shown.get("status") or {}
    if shown["metadata"].get("uid") != uid or shown["metadata"].get("deletionTimestamp"):
        return f"resourceclaim {name} got deleted in the meantime"
    reserved = any(consumer.get("uid") == pod for consumer in status.get("reservedFor") or ())
    found = status.get("allocation")
    if found is None:
        return None if open_ else f"resourceclaim {name} is not allocated any more"
    if devices is not None and devices_of(found) != devices:
        return f"resourceclaim {name} got allocated elsewhere in the meantime"
    return "" if reserved else None


def devices_of(allocation: Obj) -> Given:
    """What tells one allocation of a claim from another."""
    results = (allocation.get("devices") or {}).get("results") or ()
    return [tuple(one.get(key) for key in ("request", "driver", "pool", "device", "shareID")) for one in results]


class _Release(NamedTuple):
    """What is to be given back: of which claim (its UID), whether it is to be free, what was assumed of it. With `version` the claim is to
    be free as it was seen in that version, or not at all; without the pod has it reserved, or has nothing to give back."""

    uid: str
    free: bool
    assumed: Assumed | None = None
    version: str = ""


class Releases:
    """Gives back, in the background and as long as it takes, what was written for pods that were not bound after all."""

    def __init__(self, handle: Handle, cache: Claims) -> None:
        self._handle = handle
        self._cache = cache
        self._waiting: dict[tuple[str, str], _Release] = {}  # by claim and pod
        self._later: dict[tuple[str, str], tuple[int, float]] = {}  # of those that failed: how often, and when they are tried again
        self._wake = asyncio.Event()

    def release(self, carried: Carried) -> None:
        """A pod was not bound: its claims are not reserved for it, and those that were allocated for it are not allocated."""
        for key in carried.keys:
            claim = self._cache.claims.get(key)
            if claim is not None:
                mine = self._cache.assumed.get(key)
                mine = mine if mine is not None and mine.pod == carried.uid else None
                self._put(key, carried.uid, _Release(claim.metadata.uid, key in carried.open, mine))
            else:
                self._cache.forget(key, carried.uid)
        if carried.made:
            self.delete(carried.own, carried.made)
        elif carried.own:
            self._cache.forget(carried.own, carried.uid)

    def delete(self, key: str, uid: str) -> None:
        """A claim that stands for extended resources of a pod that was not bound goes."""
        self._put(key, _DELETE, _Release(uid, True, self._cache.assumed.get(key)))

    def deallocate(self, key: str, uid: str, pod: str, version: str) -> None:
        """A claim that nobody uses but perhaps a pod that waits is to be allocated anew, if it still is as it was seen."""
        if (key, pod) not in self._waiting:
            self._put(key, pod, _Release(uid, True, version=version))

    def _put(self, key: str, pod: str, release: _Release) -> None:
        self._waiting[key, pod] = release
        self._later.pop((key, pod), None)
        self._cache.releasing.add((key, pod))
        self._cache.version += 1
        self._wake.set()

    async def run(self) -> None:
        """Work off what waits, until cancelled. What fails is tried again later, and does not hold up the rest."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            for (key, pod), release in list(self._waiting.items()):
                failures, due = self._later.get((key, pod), (0, 0.0))
                if due > loop.time() + _EARLY:
                    continue
                if not self._handle.may_write():
                    await seams.sleep(_STANDBY)
                    self._wake.set()
                    break
                try:
                    await self._one(key, pod, release)
                except DEFECTS as failure:
                    if ends_us(failure):
                        raise
                    trace = None if isinstance(failure, ApiError) else failure
                    log.warning("resourceclaim %s cannot be given back: %s; trying again", key, failure, exc_info=trace)
                    if self._waiting.get((key, pod)) is release:
                        pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                        self._later[key, pod] = failures + 1, loop.time() + pause
                        loop.call_later(pause, self._wake.set)
                    continue
                self._later.pop((key, pod), None)
                if self._waiting.get((key, pod)) is not release:
                    self._wake.set()  # there is more to give back meanwhile
                    continue
                del self._waiting[key, pod]
                self._given_back(key, pod, release)

    def _given_back(self, key: str, pod: str, release: _Release) -> None:
        """What was assumed of a claim is no more; nobody else tells of it where nothing had been written."""
        self._cache.releasing.discard((key, pod))
        self._cache.version += 1
        mine = self._cache.assumed.get(key)
        if mine is not None and mine is release.assumed:
            self._cache.forget(key, mine.pod)
        if release.assumed is not None:
            self._handle.wake(
                lambda pod: bool(pod.shape.template.spec.resource_claims or pod.shape.amounts.keys() & self._cache.backed), True
            )
        else:
            self._handle.wake(lambda waiting: waiting.uid == pod, False)  # it may have been tried before this

    async def _one(self, key: str, pod: str, release: _Release) -> None:
        client, (namespace, _, name) = self._handle.api, key.partition("/")
        for _ in range(_ATTEMPTS):
            if self._handle.cluster.slot_of_pod(pod) >= 0:
                return  # another leader has bound the pod meanwhile, with what had been written for it
            try:
                shown = await client.get(RESOURCECLAIMS, name, namespace)
            except NotFound:
                return
            status = shown.get("status") or {}
            reserved = status.get("reservedFor") or []
            left = [consumer for consumer in reserved if consumer.get("uid") != pod]
            if shown["metadata"].get("uid") != release.uid:
                return
            if pod == _DELETE:
                await self._delete(shown, name, namespace)
                return
            seen = not release.version or shown["metadata"].get("resourceVersion") == release.version
            if not seen or (left if release.version else len(left) == len(reserved)):
                return  # it is another one by now, others use it, or the pod does not
            wanted: Obj = {"reservedFor": left or None}
            if release.free and not left:
                wanted |= {"allocation": None, "devices": None}
            try:
                body = {"metadata": _identity(shown), "status": wanted}
                await client.patch(RESOURCECLAIMS, name, body, namespace, subresource="status")
            except Conflict:
                continue
            except NotFound:
                return
            return

    async def _delete(self, shown: Obj, name: str, namespace: str) -> None:
        """Free a claim, take the finalizer off and delete it. Raises ApiError: then all of it is tried again."""
        client = self._handle.api
        try:
            status = {"reservedFor": None, "allocation": None, "devices": None}
            body = {"metadata": {"uid": shown["metadata"]["uid"]}, "status": status}
            await client.patch(RESOURCECLAIMS, name, body, namespace, subresource="status")
            left = [finalizer for finalizer in shown["metadata"].get("finalizers") or () if finalizer != FINALIZER]
            await client.patch(RESOURCECLAIMS, name, {"metadata": {**_uid(shown), "finalizers": left or None}}, namespace)
            await client.delete(RESOURCECLAIMS, name, namespace, preconditions=_uid(shown))
        except NotFound:
            return


def _uid(shown: Obj) -> Obj:
    return {"uid": shown["metadata"]["uid"]}
