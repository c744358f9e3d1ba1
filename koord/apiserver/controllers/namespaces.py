"""Namespace lifecycle: a namespace that is deleted loses its content first, then itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.apiserver.controllers.queue import WorkQueue
from koord.apiserver.rest.context import DeleteOptions
from koord.apiserver.rest.delete import delete_now
from koord.apiserver.store import DELETED, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core

_BUCKET = "/namespaces"
_FINALIZER = "kubernetes"


class NamespaceController:
    """Empties and finalizes namespaces that are Terminating."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._queue: WorkQueue[str] = WorkQueue("namespaces", self._sync)
        self._terminating: set[str] = set()

    def start(self) -> None:
        for entry in self.core.store.bucket(_BUCKET).select(None):
            if entry.obj["metadata"].get("deletionTimestamp"):
                self._begin(entry.name)
        self.core.store.listeners.append(self._on_event)

    def stop(self) -> None:
        self._queue.stop()

    def _begin(self, name: str) -> None:
        self._terminating.add(name)
        self._queue.add(name)

    def _on_event(self, event: Event) -> None:
        entry = event.entry
        if not entry.namespace:
            if entry.raw.startswith(b'{"kind":"Namespace","apiVersion":"v1",'):
                if event.type == DELETED:
                    self._terminating.discard(entry.name)
                elif entry.name in self._terminating or entry.obj["metadata"].get("deletionTimestamp"):
                    self._begin(entry.name)
        elif event.type == DELETED and entry.namespace in self._terminating:
            self._queue.add(entry.namespace)

    def _sync(self, name: str) -> None:
        """Delete what is left; when nothing is, take the finalizer off."""
        core = self.core
        entry = core.store.bucket(_BUCKET).get("", name)
        if entry is None or not entry.obj["metadata"].get("deletionTimestamp"):
            self._terminating.discard(name)
            return
        left = False
        for bucket_name in [b for b, bucket in core.store.buckets.items() if bucket.entries and b != _BUCKET]:
            bucket = core.store.bucket(bucket_name)
            inside = list(bucket.select(name))
            if not inside:
                continue
            resource = core.resources.serving_bucket(bucket_name)
            for found in inside:
                if resource is None:
                    bucket.remove(found.namespace, found.name)
                elif not found.obj["metadata"].get("deletionTimestamp"):
                    _, gone = delete_now(core, resource, found, DeleteOptions(propagation="Background"))
                    left = left or not gone
                else:
                    left = True
        if left:
            return
        namespaces = core.resources.by_path("", "v1", "namespaces")
        assert namespaces is not None
        obj = entry.copy()
        spec = obj.setdefault("spec", {})
        spec["finalizers"] = [f for f in spec.get("finalizers") or () if f != _FINALIZER]
        if not spec["finalizers"]:
            del spec["finalizers"]
            if not obj["metadata"].get("finalizers"):
                core.finish_deletion(namespaces, entry, obj)
                return
        if obj != entry.obj:
            core.store.bucket(_BUCKET).put("", name, obj)
