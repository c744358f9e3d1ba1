"""ResourceQuota: nothing is made that is more than a namespace may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.quantity import Quantity
from koord.apiserver.admission.attributes import CREATE, Attributes
from koord.apiserver.errors import forbidden
from koord.apiserver.quota.usage import CHANGING, ZERO, Amounts, selects, shown, unsaid, usage

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.store import Bucket, Entry

Obj = dict[str, Any]

# (key of a quota, what an object adds to it)
Charges = list[tuple[str, Amounts]]

BUCKET = "/resourcequotas"
_PARTS = ("", "resize")


class Quotas:
    """The quotas of the store; `take` and `recount` are all that writes their status."""

    def __init__(self, core: Core, *, on: bool = True) -> None:
        self._core = core
        self._on = on
        self._bucket: Bucket = core.store.bucket(BUCKET)

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
                hard, used = self._status(entry)
                more = {n: a for n, a in wanted.items() if n in hard and a}
                self._limit(attributes, entry.name, hard, used, more)
                if more:
                    charges.append((entry.key, more))
        return charges

    def take(self, charges: Charges) -> None:
        """Count what is about to be stored; nothing may be waited for between this and the store."""
        for key, more in charges:
            entry = self._bucket.entries.get(key)
            if entry is not None:
                hard, used = self._status(entry)
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

    def _status(self, entry: Entry) -> tuple[Amounts, Amounts]:
        """(hard, used) of a quota; counted now where its controller has not come to it yet."""
        spec, status = entry.obj.get("spec") or {}, entry.obj.get("status") or {}
        hard = {name: Quantity(text) for name, text in (spec.get("hard") or {}).items()}
        if status.get("hard") != spec.get("hard"):
            return hard, self._count(entry, hard)
        return hard, {name: Quantity(text) for name, text in (status.get("used") or {}).items()}

    def _count(self, entry: Entry, hard: Amounts) -> Amounts:
        """What the objects of the namespace use of a quota."""
        used = dict.fromkeys(hard, ZERO)
        now = seams.now()
        for bucket in list(self._core.store.buckets.values()):
            resource = self._core.resources.serving_bucket(bucket.name)
            if resource is None or not resource.namespaced or not _counts(resource.group, resource.plural, hard):
                continue
            for found in bucket.select(entry.namespace):
                if selects(entry.obj, resource.plural, found.obj):
                    for name, amount in usage(resource.group, resource.plural, found.obj, now).items():
                        if name in used:
                            used[name] = used[name] + amount
        return used

    def recount(self, key: str) -> None:
        """Bring the status of a quota up to date."""
        entry = self._bucket.entries.get(key)
        if entry is not None and not entry.obj["metadata"].get("deletionTimestamp"):
            hard = {name: Quantity(text) for name, text in ((entry.obj.get("spec") or {}).get("hard") or {}).items()}
            self._write(entry, hard, self._count(entry, hard))

    def _write(self, entry: Entry, hard: Amounts, used: Amounts) -> None:
        entry = self._bucket.entries.get(entry.key) or entry
        status = {"hard": {n: str(a) for n, a in hard.items()}, "used": {n: str(used.get(n, ZERO)) for n in hard}}
        if (entry.obj.get("status") or {}) != status and hard:
            obj = entry.copy()
            obj["status"] = status
            self._bucket.put(entry.namespace, entry.name, obj)


def _counts(group: str, plural: str, hard: Amounts) -> bool:
    """Whether objects of a resource can use anything of a quota."""
    return (not group and plural in CHANGING) or plural in hard or f"count/{plural}.{group}".rstrip(".") in hard
