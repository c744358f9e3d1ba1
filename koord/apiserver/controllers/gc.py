"""Owner references: what belongs to a deleted object is deleted with it, before it (foreground), or let go (orphan).

Unlike kube-controller-manager this collector acts only on deletions that it sees: an object whose owner never was here is left alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.apiserver.controllers.queue import Controller
from koord.apiserver.rest.context import DeleteOptions
from koord.apiserver.rest.delete import FOREGROUND, ORPHAN, delete_now
from koord.apiserver.schema.lists import put_member
from koord.apiserver.store import DELETED, Bucket, Entry, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_BUCKET, _PODS = "/namespaces", "/pods"
_FINALIZER = "kubernetes"
# Not served: owners that are gone and whose dependents have not been seen to yet, by their uid, for the next life of a data directory.
OWNERS_GONE = "koord/ownersgone"
# so many objects that are gone are known: a controller may make something for one before it hears that it is gone
_GONE = 16_384


class NamespaceController(Controller[str]):
    """Empties and finalizes namespaces that are Terminating."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._terminating: set[str] = set()

    def start(self) -> None:
        for entry in self.core.store.bucket(_BUCKET).select(None):
            if entry.obj["metadata"].get("deletionTimestamp"):
                self._begin(entry.name)
        self.core.store.listeners.append(self._on_event)

    def _begin(self, name: str) -> None:
        self._terminating.add(name)
        self.add(name)

    def _on_event(self, event: Event) -> None:
        entry = event.entry
        if not entry.namespace:
            if entry.raw.startswith(b'{"kind":"Namespace","apiVersion":"v1",'):
                if event.type == DELETED:
                    self._terminating.discard(entry.name)
                elif entry.name in self._terminating or entry.obj["metadata"].get("deletionTimestamp"):
                    self._begin(entry.name)
        elif event.type == DELETED and entry.namespace in self._terminating:
            self.add(entry.namespace)

    def work(self, name: str) -> Iterator[None]:
        """Delete what is left, the pods first; when nothing is, take the finalizer off."""
        core = self.core
        if self._going(name) is None:
            self._terminating.discard(name)
            return
        for bucket in self._filled():
            for key in [entry.key for entry in bucket.select(name)]:
                found = bucket.entries.get(key)
                resource = core.resources.serving_bucket(bucket.name)
                if found is None:
                    continue
                if resource is None:
                    bucket.remove(found.namespace, found.name)
                elif not found.obj["metadata"].get("deletionTimestamp"):
                    delete_now(core, resource, found, DeleteOptions(propagation="Background"))
                yield
            if bucket.name == _PODS and next(bucket.select(name), None) is not None:
                return  # until they are gone, what they use stays
        entry = self._going(name)
        # what waits for its finalizers or grace period, and what came meanwhile: its end asks for this again
        if entry is None or any(next(bucket.select(name), None) is not None for bucket in self._filled()):
            return
        obj = entry.copy()
        spec = obj.setdefault("spec", {})
        put_member(spec, "finalizers", [f for f in spec.get("finalizers") or () if f != _FINALIZER])
        if obj != entry.obj or not (spec or obj["metadata"].get("finalizers")):
            core.settle(core.resources.builtin("", "namespaces"), entry, obj)

    def _going(self, name: str) -> Entry | None:
        """A namespace that is Terminating."""
        entry = self.core.store.bucket(_BUCKET).get("", name)
        return entry if entry is not None and entry.obj["metadata"].get("deletionTimestamp") else None

    def _filled(self) -> list[Bucket]:
        filled = (bucket for name, bucket in self.core.store.buckets.items() if bucket.entries and name != _BUCKET)
        return sorted(filled, key=lambda bucket: bucket.name != _PODS)


# (bucket, key), or ("", uid) of an owner that is gone
Where = tuple[str, str]


class GarbageCollector(Controller[Where]):
    """Keeps an index from owners to dependents and follows deletions."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._dependents: dict[str, set[Where]] = {}
        self._alive: dict[str, Where] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def start(self) -> None:
        for bucket in list(self.core.store.buckets.values()):
            if bucket.name != OWNERS_GONE:
                for entry in bucket.entries.values():
                    self._learn(bucket.name, entry)
                    self._follow(bucket.name, entry)
        for entry in self.core.store.bucket(OWNERS_GONE).entries.values():
            self.add(("", entry.name))
        self.core.store.listeners.append(self._on_event)

    # -- observe -----------------------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        entry, name = event.entry, event.bucket
        meta = entry.obj["metadata"]
        if name == OWNERS_GONE:
            return
        if event.type == DELETED:
            self._alive.pop(meta["uid"], None)
            self._gone[meta["uid"]] = None
            if len(self._gone) > _GONE:
                self._gone.popitem(last=False)
            for ref in meta.get("ownerReferences") or ():
                self._drop(ref["uid"], (name, entry.key))
                owner = self._alive.get(ref["uid"])
                if owner is not None:
                    self.add(owner)
            if self._dependents.get(meta["uid"]):
                self._leave_behind(meta["uid"])
            return
        before = event.prev.obj["metadata"].get("ownerReferences") if event.prev is not None else None
        if event.prev is None or before != meta.get("ownerReferences"):
            for ref in before or ():
                self._drop(ref["uid"], (name, entry.key))
            self._learn(name, entry)
            for ref in meta.get("ownerReferences") or ():
                if ref["uid"] in self._gone:
                    self._leave_behind(ref["uid"])
        self._follow(name, entry)

    def _follow(self, bucket: str, entry: Entry) -> None:
        """See to an object that waits for the collector."""
        meta = entry.obj["metadata"]
        if meta.get("deletionTimestamp"):
            finalizers = meta.get("finalizers") or ()
            if ORPHAN in finalizers or FOREGROUND in finalizers:
                self.add((bucket, entry.key))

    def _leave_behind(self, uid: str) -> None:
        """See to the dependents of what is gone, in this life or the next: nothing else on disk tells an owner that is gone from one that
        never was here. The write that asks for it is answered after this.
        """
        self.add(("", uid))
        if self.core.store.disk is not None:
            meta = {"name": uid, "uid": uid}
            self.core.store.bucket(OWNERS_GONE).put("", uid, {"kind": "OwnerGone", "apiVersion": "koord/v1", "metadata": meta})

    def _learn(self, bucket: str, entry: Entry) -> None:
        meta = entry.obj["metadata"]
        self._alive[meta["uid"]] = (bucket, entry.key)
        self._gone.pop(meta["uid"], None)
        for ref in meta.get("ownerReferences") or ():
            self._dependents.setdefault(ref["uid"], set()).add((bucket, entry.key))

    def _drop(self, uid: str, where: Where) -> None:
        found = self._dependents.get(uid)
        if found is not None:
            found.discard(where)
            if not found:
                del self._dependents[uid]

    # -- act ---------------------------------------------------------------------------------------------------------------------

    def _dependents_of(self, uid: str) -> Iterator[tuple[Bucket, Entry]]:
        """Those that there are when their turn comes."""
        for where in sorted(self._dependents.get(uid, ())):
            bucket = self.core.store.bucket(where[0])
            entry = bucket.entries.get(where[1])
            if entry is not None and where in self._dependents.get(uid, ()):
                yield bucket, entry

    def work(self, where: Where) -> Iterator[None]:
        if where[0]:
            yield from self._work_finalizers(where)
        else:
            yield from self._owner_gone(where[1])
            self.core.store.bucket(OWNERS_GONE).remove("", where[1])

    def _owner_gone(self, uid: str) -> Iterator[None]:
        """Delete the dependents that have no other owner left; the others only lose the reference."""
        for bucket, entry in self._dependents_of(uid):
            others = [r for r in entry.obj["metadata"].get("ownerReferences") or () if r["uid"] != uid]
            if any(r["uid"] in self._alive for r in others):
                self._let_go(bucket, entry, uid)
            elif not entry.obj["metadata"].get("deletionTimestamp"):
                self._delete(bucket, entry, "Background")
            yield

    def _delete(self, bucket: Bucket, entry: Entry, propagation: str) -> None:
        resource = self.core.resources.serving_bucket(bucket.name)
        if resource is not None:
            finalizers = entry.obj["metadata"].get("finalizers") or ()
            kept = "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else propagation
            delete_now(self.core, resource, entry, DeleteOptions(propagation=kept))

    def _let_go(self, bucket: Bucket, entry: Entry, uid: str) -> None:
        obj = entry.copy()
        put_member(obj["metadata"], "ownerReferences", [r for r in obj["metadata"]["ownerReferences"] if r["uid"] != uid])
        bucket.put(entry.namespace, entry.name, obj)

    def _work_finalizers(self, where: Where) -> Iterator[None]:
        """An object that waits for the collector: orphan its dependents, or wait until those that block it are gone."""
        entry = self.core.store.bucket(where[0]).entries.get(where[1])
        if entry is None or not entry.obj["metadata"].get("deletionTimestamp"):
            return
        meta = entry.obj["metadata"]
        uid, finalizers = meta["uid"], meta.get("finalizers") or ()
        seen: set[Where] = set()
        if ORPHAN in finalizers:
            for inner, dependent in self._dependents_of(uid):
                seen.add((inner.name, dependent.key))
                self._let_go(inner, dependent, uid)
                yield
            self._remove_finalizer(where, uid, ORPHAN, seen)
        elif FOREGROUND in finalizers:
            blocked = False
            for inner, dependent in self._dependents_of(uid):
                seen.add((inner.name, dependent.key))
                blocked = self._before_owner(inner, dependent, uid) or blocked
                yield
            if not blocked:
                self._remove_finalizer(where, uid, FOREGROUND, seen)

    def _before_owner(self, bucket: Bucket, dependent: Entry, uid: str) -> bool:
        """Delete a dependent of what goes after it; whether the owner has to wait for it."""
        refs = dependent.obj["metadata"].get("ownerReferences") or ()
        if not dependent.obj["metadata"].get("deletionTimestamp"):
            if any(r["uid"] != uid and r["uid"] in self._alive for r in refs):
                self._let_go(bucket, dependent, uid)
                return False
            has_own = bool(self._dependents.get(dependent.obj["metadata"]["uid"]))
            self._delete(bucket, dependent, "Foreground" if has_own else "Background")
        return dependent.key in bucket.entries and any(r["uid"] == uid and r.get("blockOwnerDeletion") for r in refs)

    def _remove_finalizer(self, where: Where, uid: str, finalizer: str, seen: set[Where]) -> None:
        """Let an object go, unless it has got dependents that have not been `seen`: then it is looked at again."""
        entry = self.core.store.bucket(where[0]).entries.get(where[1])
        resource = self.core.resources.serving_bucket(where[0])
        if entry is None or resource is None or entry.obj["metadata"]["uid"] != uid:
            return
        if self._dependents.get(uid, set()) - seen:
            self.add(where)
            return
        obj = entry.copy()
        meta = obj["metadata"]
        put_member(meta, "finalizers", [f for f in meta.get("finalizers") or () if f != finalizer])
        self.core.settle(resource, entry, obj)
