"""ResourceQuota: nothing is made that is more than a namespace may have."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from koord import seams
from koord.api.quantity import Quantity
from koord.api.times import parse_time
from koord.apiserver.admission.matching import CREATE, Attributes
from koord.apiserver.errors import forbidden
from koord.apiserver.facts import containers, ended, qos_class, same_wish
from koord.apiserver.store import DELETED, Bucket, Entry, Event, Obj
from koord.apiserver.turns import Turn

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.state import State


Amounts = dict[str, Quantity]

ONE, ZERO = Quantity(1), Quantity(0)
_NATIVE = ("cpu", "memory", "ephemeral-storage")
# a pod under a quota of one of these must say how much it wants, in every container
COMPUTE = frozenset(("cpu", "memory", *(f"{part}.{name}" for part in ("requests", "limits") for name in ("cpu", "memory"))))
# objects that are counted under a short name beside count/RESOURCE.GROUP
_COUNTED = frozenset({"configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"})
_CLASS = ".storageclass.storage.k8s.io/"
STANDARD = COMPUTE | _COUNTED | {
    "pods", "services.nodeports", "services.loadbalancers", "requests.storage", "ephemeral-storage", "requests.ephemeral-storage",
    "limits.ephemeral-storage",
}  # fmt: skip
POD_SCOPES = ("BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating")


def usage(group: str, plural: str, obj: Obj, now: float) -> Amounts:
    """What one object uses at a time (Unix seconds)."""
    out: Amounts = {f"count/{plural}.{group}" if group else f"count/{plural}": ONE}
    if group:
        return out
    if plural in _COUNTED:
        out[plural] = ONE
    more = _EVALUATORS.get(plural)
    if more is not None:
        more(obj, out, now)
    return out


# -- pods ----------------------------------------------------------------------------------------------------------------------------


def _pod(pod: Obj, out: Amounts, now: float) -> None:
    if _over(pod, now):
        return
    out["pods"] = ONE
    spec = pod.get("spec") or {}
    for name, amount in pod_total(spec, "requests").items():
        out[f"requests.{name}"] = amount
        if name in _NATIVE or name.startswith("hugepages-"):
            out[name] = amount
    for name, amount in pod_total(spec, "limits").items():
        if name in _NATIVE:
            out[f"limits.{name}"] = amount


def _over(pod: Obj, now: float) -> bool:
    """A pod that has ended, or should have ended by now, uses nothing but its place among the objects."""
    if ended(pod):
        return True
    meta = pod["metadata"]
    if not meta.get("deletionTimestamp") or "deletionGracePeriodSeconds" not in meta:
        return False
    return bool(now > parse_time(meta["deletionTimestamp"]) + meta["deletionGracePeriodSeconds"])


def pod_total(spec: Obj, part: str) -> Amounts:
    """Requests or limits of a whole pod: containers and sidecars together, or the largest init container; pod-level amounts; overhead."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        _sum(total, _amounts(container, part))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        wanted = _amounts(container, part)
        if container.get("restartPolicy") == "Always":
            _sum(total, wanted)
            _sum(sidecars, wanted)
            wanted = dict(sidecars)
        else:
            _sum(wanted, sidecars)
        _largest(peak, wanted)
    _largest(total, peak)
    total |= _amounts(spec, part)
    overhead = (spec.get("overhead") or {}).items()
    _sum(total, {name: Quantity(text) for name, text in overhead if part == "requests" or total.get(name)})
    return total


def _amounts(holder: Obj, part: str, of: str = "resources") -> Amounts:
    """The quantities in a part of an object's resources (or of another member)."""
    return {name: Quantity(text) for name, text in ((holder.get(of) or {}).get(part) or {}).items()}


def _sum(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _largest(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount


# -- other kinds ---------------------------------------------------------------------------------------------------------------------


def _service(service: Obj, out: Amounts, now: float) -> None:
    spec = service.get("spec") or {}
    kind = spec.get("type")
    ports = len(spec.get("ports") or ())
    if kind == "LoadBalancer":
        out["services.loadbalancers"] = ONE
    if kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False):
        out["services.nodeports"] = Quantity(ports)


def _claim(claim: Obj, out: Amounts, now: float) -> None:
    spec = claim.get("spec") or {}
    name = spec.get("storageClassName") or (claim["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    storage = _amounts(spec, "requests").get("storage")
    if name:
        out[f"{name}{_CLASS}persistentvolumeclaims"] = ONE
    if storage is not None:
        out["requests.storage"] = storage
        if name:
            out[f"{name}{_CLASS}requests.storage"] = storage


_EVALUATORS: dict[str, Callable[[Obj, Amounts, float], None]] = {"pods": _pod, "services": _service, "persistentvolumeclaims": _claim}
# kinds whose use may change after they were made
CHANGING = frozenset(_EVALUATORS)


# -- quotas --------------------------------------------------------------------------------------------------------------------------


def scopes(quota: Obj) -> Iterator[Obj]:
    """The requirements of a quota, its `scopes` and its `scopeSelector` alike."""
    spec = quota.get("spec") or {}
    for name in spec.get("scopes") or ():
        yield {"scopeName": name, "operator": "Exists"}
    yield from (spec.get("scopeSelector") or {}).get("matchExpressions") or ()


def selects(quota: Obj, plural: str, obj: Obj) -> bool:
    """Whether an object falls under a quota. Scopes are about pods: a quota with scopes counts nothing else."""
    wanted = list(scopes(quota))
    return not wanted or (plural == "pods" and all(_in_scope(scope, obj.get("spec") or {}) for scope in wanted))


def _in_scope(scope: Obj, spec: Obj) -> bool:
    name = scope.get("scopeName")
    if name in ("Terminating", "NotTerminating"):
        return bool((spec.get("activeDeadlineSeconds") is not None) == (name == "Terminating"))
    if name in ("BestEffort", "NotBestEffort"):
        return bool((qos_class(spec) == "BestEffort") == (name == "BestEffort"))
    if name == "CrossNamespacePodAffinity":
        return any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in _affinity_terms(spec))
    value = spec.get("priorityClassName") or None
    operator, values = scope.get("operator"), scope.get("values") or ()
    if operator in ("Exists", "DoesNotExist"):
        return bool((value is not None) == (operator == "Exists"))
    return bool((value in values) == (operator == "In"))


def _affinity_terms(spec: Obj) -> Iterator[Obj]:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = (spec.get("affinity") or {}).get(kind) or {}
        yield from rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted.get("podAffinityTerm") or {}


def unsaid(hard: Iterable[str], spec: Obj) -> str:
    """What the containers of a pod leave open although a quota limits it: ``cpu for: a,b; limits.memory for: a``, "" for nothing."""
    wanted = sorted(COMPUTE.intersection(hard))
    if not wanted or any((spec.get("resources") or {}).get(part) for part in ("requests", "limits")):
        return ""
    missing: dict[str, list[str]] = {}
    for container in containers(spec):
        for name in wanted:
            part, _, resource = name.rpartition(".")
            if resource not in _amounts(container, part or "requests"):
                missing.setdefault(name, []).append(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(names))}" for name, names in missing.items())


def shown(amounts: Amounts) -> str:
    """``pods=1,requests.cpu=2``, as in the messages of refusals."""
    return ",".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))


# (key of a quota, what an object adds to it)
Charges = list[tuple[str, Amounts]]

BUCKET = "/resourcequotas"
_PARTS = ("", "resize")


class Count:
    """What the objects of a namespace use of a quota, counted in small steps.

    Between two steps others may write. An object counts as what it was when it was come to, or when it was first written meanwhile;
    what is written of it after that is followed. So the sum holds at the end, although no moment was ever looked at as a whole.
    """

    def __init__(self, state: State, quota: Entry) -> None:
        self._state = state
        self._quota = quota.obj
        self._namespace = quota.namespace
        self.hard = _amounts(self._quota, "hard", "spec")
        self.used = dict.fromkeys(self.hard, ZERO)
        self.over = False
        # who makes its steps: the controller, and a request that needs it sooner
        self.carriers = 0
        # what is left to count
        self.rest = self.steps()
        # nobody makes steps any more
        self.ended = asyncio.Event()
        # one time for all, so that what an object adds and what it takes away is the same
        self._now = seams.now()
        self._since = state.store.rv
        self._kinds: dict[str, tuple[str, str] | None] = {}
        self._done: set[str] = set()
        self._place = ("", "")
        # objects that were written before they were come to
        self._followed: set[tuple[str, str]] = set()

    def fits(self, quota: Entry | None) -> bool:
        """Whether it counts what a quota limits by now."""
        return quota is not None and same_wish(quota.obj, self._quota)

    def steps(self) -> Iterator[None]:
        """Count; an object a step."""
        store = self._state.store
        for bucket in list(store.buckets.values()):
            kind = self._kind(bucket.name)
            if kind is not None:
                self._place = bucket.name, ""
                for key in bucket.keys(self._namespace):
                    self._place = bucket.name, key
                    entry = bucket.entries.get(key)
                    if entry is not None and self._place not in self._followed:
                        self._count(kind, entry.obj, 1)
                    yield
            self._done.add(bucket.name)
            yield
        self.over = True

    def follow(self, event: Event) -> None:
        """Something was written."""
        entry = event.entry
        kind = self._kind(event.bucket) if entry.namespace == self._namespace and event.rv > self._since else None
        if kind is None:
            return
        here = event.bucket, entry.key
        place, last = self._place
        if event.bucket in self._done or (event.bucket == place and entry.key <= last) or here in self._followed:
            if event.prev is not None:
                self._count(kind, event.prev.obj, -1)
        else:
            self._followed.add(here)
        if event.type != DELETED:
            self._count(kind, entry.obj, 1)

    def _kind(self, bucket: str) -> tuple[str, str] | None:
        """Group and plural of what is in a bucket; None where nothing of it can count."""
        if bucket not in self._kinds:
            self._kinds[bucket] = None
            resource = self._state.resources.serving_bucket(bucket)
            if resource is not None and resource.namespaced and _may_count(self.hard, resource.group, resource.plural):
                self._kinds[bucket] = resource.group, resource.plural
        return self._kinds[bucket]

    def _count(self, kind: tuple[str, str], obj: Obj, sign: int) -> None:
        if selects(self._quota, kind[1], obj):
            for name, amount in usage(*kind, obj, self._now).items():
                if name in self.used:
                    self.used[name] = self.used[name] + (amount if sign > 0 else -amount)


class Quotas:
    """The quotas of the store; `take` and `recount` are all that writes their status."""

    def __init__(self, state: State, *, on: bool = True) -> None:
        self._state = state
        self._on = on
        self._bucket: Bucket = state.store.bucket(BUCKET)
        self._counts: dict[str, Count] = {}

    async def counted(self, resource: Resource, namespace: str, subresource: str = "") -> None:
        """Wait until the quotas that may limit a write have been counted, before it begins: for a new one there may be much to count."""
        if not self._on or not self._bucket.entries or not resource.namespaced or subresource not in _PARTS:
            return
        turn = Turn()
        while True:
            for entry in self._bucket.select(namespace):
                hard = _amounts(entry.obj, "hard", "spec")
                # the status of one that is going is not written any more
                going = entry.obj["metadata"].get("deletionTimestamp")
                if not going and not _known(entry, hard) and _may_count(hard, resource.group, resource.plural):
                    break
            else:
                return
            count = self._counts.get(entry.key)
            if count is not None and count.fits(entry):
                await count.ended.wait()  # each that waits would have a slice of its own otherwise
                continue
            with contextlib.closing(self.recount(entry.key)) as steps:
                for _ in steps:
                    await turn.give_way()

    def check(self, attributes: Attributes) -> Charges:
        """What storing the object adds to each quota. Raises StatusError 403 for one that is too much."""
        if not self._on or not self._bucket.entries or not attributes.resource.namespaced or attributes.subresource not in _PARTS:
            return []
        resource = attributes.resource
        if attributes.operation != CREATE and (resource.group or resource.plural not in CHANGING):
            return []
        obj, now = attributes.require_object(), seams.now()
        before = usage(resource.group, resource.plural, attributes.old, now) if attributes.old is not None else {}
        wanted = {n: a - before.get(n, ZERO) for n, a in usage(resource.group, resource.plural, obj, now).items()}
        charges: Charges = []
        for entry in self._bucket.select(attributes.namespace):
            if selects(entry.obj, resource.plural, obj):
                hard = _amounts(entry.obj, "hard", "spec")
                more = {n: a for n, a in wanted.items() if n in hard and a}
                self._limit(attributes, entry.name, hard, self._used(entry, hard) if more else {}, more)
                if more:
                    charges.append((entry.key, more))
        return charges

    def take(self, charges: Charges) -> None:
        """Count what is about to be stored; nothing may be waited for between this and the store."""
        for key, more in charges:
            entry = self._bucket.entries.get(key)
            if entry is not None:
                hard = _amounts(entry.obj, "hard", "spec")
                used = self._used(entry, hard)
                self._write(entry, hard, {**used, **{n: used.get(n, ZERO) + a for n, a in more.items()}})

    @staticmethod
    def _limit(attributes: Attributes, quota: str, hard: Amounts, used: Amounts, wanted: Amounts) -> None:
        resource = attributes.resource
        if resource.plural == "pods" and not resource.group:
            missing = unsaid(hard, attributes.require_object().get("spec") or {})
            if missing:
                raise forbidden("pods", "", attributes.name, f"failed quota: {quota}: must specify {missing}")
        over = [n for n, a in wanted.items() if a > ZERO and used.get(n, ZERO) + a > hard[n]]
        if over:
            asked, taken, limit = ({n: part.get(n, ZERO) for n in over} for part in (wanted, used, hard))
            why = f"exceeded quota: {quota}, requested: {shown(asked)}, used: {shown(taken)}, limited: {shown(limit)}"
            raise forbidden(resource.plural, resource.group, attributes.name, why)

    def _used(self, entry: Entry, hard: Amounts) -> Amounts:
        """What is used of a quota; counted now where nobody has come to it yet."""
        if _known(entry, hard):
            return _amounts(entry.obj, "used", "status")
        count = Count(self._state, entry)
        deque(count.rest, maxlen=0)
        return count.used

    def recount(self, key: str) -> Generator[None, None, None]:
        """Bring the status of a quota up to date, in small steps. Two may do that at once: they carry on the same count."""
        entry = self._bucket.entries.get(key)
        if entry is None or entry.obj["metadata"].get("deletionTimestamp"):
            return
        begun = self._counts.get(key)
        count = begun if begun is not None and begun.fits(entry) else self._begin(key, Count(self._state, entry))
        count.carriers += 1
        try:
            while not count.over and self._counts.get(key) is count:
                next(count.rest, None)
                if count.over:
                    self._forget(key, count)
                    entry = self._bucket.entries.get(key)
                    if entry is not None and count.fits(entry) and not entry.obj["metadata"].get("deletionTimestamp"):
                        self._write(entry, count.hard, count.used)
                else:
                    yield
        except Exception:
            self._forget(key, count)  # there is nothing to carry on
            raise
        finally:
            count.carriers -= 1
            if not count.carriers:
                self._forget(key, count)

    def _begin(self, key: str, count: Count) -> Count:
        if key in self._counts:
            self._forget(key, self._counts[key])
        self._counts[key] = count
        self._state.store.listeners.append(count.follow)
        return count

    def _forget(self, key: str, count: Count) -> None:
        if self._counts.get(key) is count:
            del self._counts[key]
            count.ended.set()
            self._state.store.listeners.remove(count.follow)

    def _write(self, entry: Entry, hard: Amounts, used: Amounts) -> None:
        entry = self._bucket.entries.get(entry.key) or entry
        status = {"hard": {n: str(a) for n, a in hard.items()}, "used": {n: str(used.get(n, ZERO)) for n in hard}}
        if (entry.obj.get("status") or {}) != status and hard:
            obj = entry.copy()
            obj["status"] = status
            self._bucket.put(entry.namespace, entry.name, obj)


def _may_count(hard: Amounts, group: str, plural: str) -> bool:
    """Whether objects of a kind may count for limits."""
    return (not group and plural in CHANGING) or plural in hard or f"count/{plural}.{group}".rstrip(".") in hard


def _known(entry: Entry, hard: Amounts) -> bool:
    """Whether the status of a quota is about its limits as they are."""
    return _amounts(entry.obj, "hard", "status") == hard
