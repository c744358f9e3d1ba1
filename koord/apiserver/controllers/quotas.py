"""Status of resource quotas: recounted when a quota changes, and when what an object uses becomes less or other than what was admitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord import seams
from koord.apiserver.admission.quotas import BUCKET
from koord.apiserver.controllers.queue import WorkQueue
from koord.apiserver.quota.usage import CHANGING, usage
from koord.apiserver.store import DELETED, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core


class QuotaController:
    """Looks at writes of namespaces that have a quota only."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._bucket = core.store.bucket(BUCKET)
        self._queue: WorkQueue[str] = WorkQueue("resourcequota", core.admission.quotas.recount)

    def start(self) -> None:
        for key in self._bucket.entries:
            self._queue.add(key)
        self._bucket.listeners.append(self._on_quota)
        self.core.store.listeners.append(self._on_event)

    def stop(self) -> None:
        self._queue.stop()

    def _on_quota(self, event: Event) -> None:
        if event.type != DELETED and (event.prev is None or event.prev.obj.get("spec") != event.entry.obj.get("spec")):
            self._queue.add(event.entry.key)

    def _on_event(self, event: Event) -> None:
        if not self._bucket.entries or not event.entry.namespace:
            return
        if event.type != DELETED and (event.prev is None or not self._changed(event)):
            return
        for quota in self._bucket.select(event.entry.namespace):
            self._queue.add(quota.key)

    def _changed(self, event: Event) -> bool:
        """Whether an update changes what is used, such as a pod that has ended."""
        obj = event.entry.obj
        resource = self.core.resources.by_api_version(obj["apiVersion"], obj["kind"])
        if resource is None or resource.group or resource.plural not in CHANGING or event.prev is None:
            return False
        now = seams.now()
        return usage("", resource.plural, event.prev.obj, now) != usage("", resource.plural, obj, now)
