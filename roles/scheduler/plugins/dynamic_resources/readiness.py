"""Whether the devices of an allocated claim are ready for the pod to be bound (SCH-DRA-16): binding conditions, failures, deadlines."""

from __future__ import annotations

from collections.abc import Iterator

from koord import seams
from koord.api.objects_resource import AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim
from koord.api.times import TimeError, parse_time
from koord.kube.references import ObjectRef
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.framework.handle import Handle
from roles.scheduler.framework.status import SUCCESS, Status, error
from roles.scheduler.plugins.dynamic_resources.claims import Claims
from roles.scheduler.plugins.dynamic_resources.writing import LEASE_LOST, Carried

_LOOK = 0.1  # seconds between looks at conditions


def failed(claim: ResourceClaim) -> str:
    """Why the devices are not going to be ready, "" while they may be."""
    for result, shown in _conditional(claim):
        for condition in shown.conditions if shown is not None else ():
            if condition.type in result.binding_failure_conditions and condition.status == "True":
                told = ", ".join(part for part in (condition.reason, condition.message) if part)
                return f"device {_name(result)}: {condition.type}" + (f" ({told})" if told else "")
    return ""


def awaited(claim: ResourceClaim) -> str:
    """What is waited for yet, "" when nothing is."""
    for result, shown in _conditional(claim):
        true = {condition.type for condition in (shown.conditions if shown is not None else ()) if condition.status == "True"}
        for condition in result.binding_conditions:
            if condition not in true:
                return f"{condition} of device {_name(result)}"
    return ""


def deadline(claim: ResourceClaim, timeout: float) -> float:
    """Until when is waited for conditions, in seconds since the epoch; infinite where nobody knows since when it is."""
    stamp = claim.status.allocation.allocation_timestamp if claim.status.allocation is not None else None
    try:
        return parse_time(stamp) + timeout if stamp else float("inf")
    except TimeError:
        return float("inf")


def _conditional(claim: ResourceClaim) -> Iterator[tuple[DeviceRequestAllocationResult, AllocatedDeviceStatus | None]]:
    """Devices that have conditions, with what their driver says of them."""
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.binding_conditions:
            yield result, next((one for one in claim.status.devices if _same(one, result)), None)


def _same(one: AllocatedDeviceStatus, other: DeviceRequestAllocationResult) -> bool:
    return (one.driver, one.pool, one.device, one.share_id) == (other.driver, other.pool, other.device, other.share_id)


def _name(result: DeviceRequestAllocationResult) -> str:
    return f"{result.driver}/{result.pool}/{result.device}"


class Readiness:
    """Waits for the conditions of devices that pods are about to use, `timeout` seconds at most from the allocation on. `ended` are pods
    that went meanwhile."""

    def __init__(self, handle: Handle, cache: Claims, timeout: float) -> None:
        self._handle = handle
        self._cache = cache
        self._timeout = timeout
        self.ended: set[str] = set()

    def concerns(self, carried: Carried) -> bool:
        """Whether a device of a pod's claims has conditions."""
        return any(self._conditional(key) for key in (*carried.keys, *carried.open))

    def _conditional(self, key: str) -> bool:
        mine, claim = self._cache.assumed.get(key), self._cache.claims.get(key)
        if mine is not None:
            return any("bindingConditions" in result for result in mine.status["devices"]["results"])
        return claim is not None and any(True for _ in _conditional(claim))

    async def ready(self, pod: PodInfo, carried: Carried, node: str) -> Status:
        """Wait until the conditions of all devices hold; what was written of the claims may not be seen yet. An error when one will not, or
        not in time."""
        about = ObjectRef("Pod", pod.name, pod.namespace, pod.pod.metadata.uid)
        note = f"waiting for binding conditions for device on node {node}"
        self._handle.event(about, "Normal", "BindingConditionsPending", note, action="Scheduling")
        uids = {key: self._cache.claims[key].metadata.uid for key in carried.keys if key in self._cache.claims}
        if carried.made:
            uids[carried.own] = carried.made
        latest = seams.now() + self._timeout
        while True:
            if not self._handle.may_write():
                return error(LEASE_LOST)
            if carried.uid in self.ended:
                return error("the pod is gone")
            left = False
            for key, uid in uids.items():
                problem, waits = self._look(key, uid, latest)
                if problem:
                    return error(f"resourceclaim {key.partition('/')[2]}{problem}")
                left = left or waits
            if not left:
                return SUCCESS
            await seams.sleep(_LOOK)

    def _look(self, key: str, uid: str, latest: float) -> tuple[str, bool]:
        """What is wrong with a claim, "" if nothing is, and whether to wait for it."""
        claim, written = self._cache.claims.get(key), key in self._cache.assumed
        if claim is None and written:
            return "", True
        if claim is None or claim.metadata.uid != uid or claim.metadata.deletion_timestamp is not None:
            return " got deleted in the meantime", False
        if claim.status.allocation is None:
            problem, waits = ("" if written else " is not allocated any more"), "its allocation"
        else:
            problem, waits = failed(claim), awaited(claim)
            problem = f": {problem}" if problem else ""
        if not problem and waits and seams.now() >= min(latest, deadline(claim, self._timeout)):
            problem = f": timed out waiting for {waits}"
        return problem, bool(waits)
