"""What pods of one service or owner have in common: the selector that PodTopologySpread's default constraints count by (SCH-KS-07)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from koord.api.kinds import REPLICASETS, REPLICATIONCONTROLLERS, SERVICES, STATEFULSETS, Kind
from koord.api.objects import LabelSelector, ObjectMeta
from koord.api.objects_meta import Projection
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cluster.terms import Selector, label_selector, map_selector
from roles.scheduler.framework.interfaces import Feed


class _MapSpec(Projection):
    selector: dict[str, str] = {}


class _LabelSpec(Projection):
    selector: LabelSelector | None = None


class SelectedByMap(Projection):
    """A Service or ReplicationController as far as its selector goes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _MapSpec = _MapSpec()


class SelectedByLabels(Projection):
    """A ReplicaSet or StatefulSet as far as its selector goes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _LabelSpec = _LabelSpec()


_OWNERS: dict[str, tuple[Kind, type[Any]]] = {
    "ReplicaSet": (REPLICASETS, SelectedByLabels),
    "StatefulSet": (STATEFULSETS, SelectedByLabels),
    "ReplicationController": (REPLICATIONCONTROLLERS, SelectedByMap),
}


_NAMESPACES = 1024  # whose pods' selectors are kept
_KEPT = 4096  # selectors of a namespace that are kept


class DefaultSelectors:
    """Follows services and owners. A selector is part of the shape's key: whoever gets another one gets another shape."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, dict[str, str]]] = {}
        self._owners: dict[tuple[str, str, str], Selector] = {}
        self._known: dict[str, dict[Any, Selector]] = {}  # by namespace

    def feeds(self) -> Sequence[Feed]:
        """What must be observed."""
        feeds = [Feed(SERVICES, SelectedByMap, self._service)]
        feeds.extend(Feed(kind, projection, self._observer(name)) for name, (kind, projection) in _OWNERS.items())
        return feeds

    def _service(self, old: Any, new: Any) -> None:
        if old is not None and new is not None and old.spec.selector == new.spec.selector:
            return
        meta = (new or old).metadata
        services = self._services.setdefault(meta.namespace, {})
        if new is None:
            services.pop(meta.name, None)
            if not services:
                del self._services[meta.namespace]
        else:
            services[meta.name] = new.spec.selector
        self._known.pop(meta.namespace, None)

    def _observer(self, kind: str) -> Callable[[Any, Any], None]:
        def observe(old: Any, new: Any) -> None:
            if old is not None and new is not None and old.spec.selector == new.spec.selector:
                return
            meta = (new or old).metadata
            key = (kind, meta.namespace, meta.name)
            if new is None:
                self._owners.pop(key, None)
            elif isinstance(new.spec.selector, dict):
                self._owners[key] = map_selector(new.spec.selector)
            else:
                self._owners[key] = label_selector(new.spec.selector) or ()
            self._known.pop(meta.namespace, None)

        return observe

    def selector(self, pod: PodInfo) -> Selector:
        """The labels that services selecting the pod ask for, and what its owner asks for; () when there is neither."""
        if not self._services and not self._owners:
            return ()
        owner = pod.metadata.controller
        kind = owner.kind if owner is not None and owner.kind in _OWNERS else ""
        key = (pod.shape.digest, kind, owner.name if owner is not None and kind else "", tuple(pod.unique_labels.items()))
        if len(self._known) > _NAMESPACES:  # most of them may be gone
            self._known.clear()
        mine = self._known.setdefault(pod.namespace, {})
        known = mine.get(key)
        if known is None:
            if len(mine) > _KEPT:
                mine.clear()
            known = mine[key] = self._find(pod, kind, key[2])
        return known

    def _find(self, pod: PodInfo, kind: str, owner: str) -> Selector:
        common: dict[str, str] = {}
        for wanted in self._services.get(pod.namespace, {}).values():
            if wanted and all(pod.labels.get(key) == value for key, value in wanted.items()):
                common.update(wanted)
        own = self._owners.get((kind, pod.namespace, owner), ()) if kind else ()
        selector = map_selector(common)
        return selector + tuple(requirement for requirement in own if requirement not in selector)
