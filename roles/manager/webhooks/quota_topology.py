"""The quota tree as this replica knows it: fed by the informer, and at once by what it admitted itself; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from koord.accounting.resources import ResourceVector, parse
from koord.api import names
from koord.api.annotations import AnnotationError, parse_quota_resources, quota_namespaces
from koord.api.objects import ElasticQuota
from koord.api.quantity import QuantityError

ASSUMED_SECONDS = 30.0
"""Seconds. What was admitted and is never shown by the informer was refused elsewhere: what the informer has shown counts again."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What the rules need of an ElasticQuota. Amounts in base units."""

    name: str
    namespace: str
    parent: str
    is_parent: bool
    is_root: bool
    force_update: bool
    tree_id: str
    min: ResourceVector
    max: ResourceVector
    guaranteed: ResourceVector
    namespaces: tuple[str, ...]


def read_quota(quota: ElasticQuota) -> Quota:
    """Raises QuantityError for a malformed quantity in spec."""
    labels, annotations = quota.metadata.labels, quota.metadata.annotations
    return Quota(
        name=quota.metadata.name,
        namespace=quota.metadata.namespace,
        parent=labels.get(names.LABEL_QUOTA_PARENT) or names.QUOTA_ROOT,
        is_parent=labels.get(names.LABEL_QUOTA_IS_PARENT) == "true",
        is_root=labels.get(names.LABEL_QUOTA_IS_ROOT) == "true",
        force_update=labels.get(names.LABEL_QUOTA_ALLOW_FORCE_UPDATE) == "true",
        tree_id=labels.get(names.LABEL_QUOTA_TREE_ID, ""),
        min=parse(quota.spec.min),
        max=parse(quota.spec.max),
        guaranteed=_guaranteed(annotations),
        namespaces=quota_namespaces(annotations),
    )


def _guaranteed(annotations: Mapping[str, str]) -> ResourceVector:
    """What the scheduler guarantees; nothing where that cannot be read."""
    try:
        return parse(parse_quota_resources(annotations, names.ANNOTATION_QUOTA_GUARANTEED))
    except AnnotationError:
        return {}


class QuotaTopology:
    """Quotas by name (names are cluster-unique by convention), children by parent, namespaces by binding."""

    def __init__(self, *, guarantee_usage: bool = False) -> None:
        self.guarantee_usage = guarantee_usage
        self._quotas: dict[str, Quota] = {}
        self._children: dict[str, set[str]] = {}
        self._bound: dict[str, dict[str, None]] = {}  # by namespace, the quotas that list it: the one that did first holds it
        self._assumed: dict[str, tuple[float, Quota | None]] = {}  # until when, and what the informer has shown

    def on_quota(self, quota: ElasticQuota) -> None:
        """The informer shows a quota; one whose spec cannot be read is left as it was."""
        try:
            self._put(read_quota(quota))
        except QuantityError:
            return
        self._assumed.pop(quota.metadata.name, None)

    def on_quota_gone(self, quota: ElasticQuota) -> None:
        """The informer shows a deletion. A namesake in another namespace keeps its place."""
        known = self._quotas.get(quota.metadata.name)
        if known is not None and known.namespace == quota.metadata.namespace:
            self._assumed.pop(known.name, None)
            self._drop(known.name)

    def assume(self, quota: Quota, now: float) -> None:
        """This replica admits the quota, or a change of it; `now` is the time of a clock that does not jump."""
        shown = self._assumed[quota.name][1] if quota.name in self._assumed else self._quotas.get(quota.name)
        self._assumed[quota.name] = (now + ASSUMED_SECONDS, shown)
        self._put(quota)

    def expire(self, now: float) -> None:
        """Take back what was admitted and never came to be: another webhook refused it, or the write met a conflict."""
        for name in [name for name, (until, _) in self._assumed.items() if until < now]:
            self._take_back(name)

    def withdraw(self, quota: Quota) -> None:
        """This replica does not admit the quota after all; what is known by now from elsewhere stays."""
        if quota.name in self._assumed and self._quotas.get(quota.name) is quota:
            self._take_back(quota.name)

    def _take_back(self, name: str) -> None:
        _, shown = self._assumed.pop(name)
        if shown is None:
            self._drop(name)
        else:
            self._put(shown)

    def _put(self, quota: Quota) -> None:
        before = self._quotas.get(quota.name)
        lost = set(before.namespaces).difference(quota.namespaces) if before is not None else ()
        if before is not None:
            self._orphan(before)
        self._unbind(quota.name, lost)
        self._quotas[quota.name] = quota
        self._children.setdefault(quota.parent, set()).add(quota.name)
        for namespace in quota.namespaces:
            self._bound.setdefault(namespace, {})[quota.name] = None

    def _drop(self, name: str) -> None:
        quota = self._quotas.pop(name, None)
        if quota is None:
            return
        self._orphan(quota)
        self._unbind(name, quota.namespaces)

    def _orphan(self, quota: Quota) -> None:
        siblings = self._children.get(quota.parent, set())
        siblings.discard(quota.name)
        if not siblings:
            self._children.pop(quota.parent, None)

    def _unbind(self, name: str, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            listed = self._bound.get(namespace, {})
            listed.pop(name, None)
            if not listed:
                self._bound.pop(namespace, None)

    def get(self, name: str) -> Quota | None:
        """A quota by name."""
        return self._quotas.get(name)

    def of_namespace(self, namespace: str) -> Quota | None:
        """The quota that lists the namespace."""
        return self._quotas.get(next(iter(self._bound.get(namespace, ())), ""))

    def children(self, name: str) -> list[Quota]:
        """Quotas whose parent is `name`, sorted."""
        return [self._quotas[child] for child in sorted(self._children.get(name, ()))]

    def cycle_of(self, name: str, parent: str | None = None) -> list[str]:
        """The quotas of the cycle that a quota is in, or would be in below another `parent`; empty when its way up ends."""
        quota = self.get(name)
        above, seen = parent if parent is not None else quota.parent if quota is not None else names.QUOTA_ROOT, [name]
        while above != names.QUOTA_ROOT:
            if above == name:
                return seen
            if above in seen:  # a cycle further up, that this quota hangs on
                return []
            seen.append(above)
            quota = self.get(above)
            above = quota.parent if quota is not None else names.QUOTA_ROOT
        return []

    def __iter__(self) -> Iterator[Quota]:
        return iter(self._quotas.values())

    def dump(self) -> list[dict[str, object]]:
        """Every quota as plain data, for /elasticQuota."""
        return [
            {
                "name": quota.name,
                "namespace": quota.namespace,
                "parent": quota.parent,
                "isParent": quota.is_parent,
                "treeID": quota.tree_id,
                "min": quota.min,
                "max": quota.max,
                "guaranteed": quota.guaranteed,
                "namespaces": quota.namespaces,
                "children": [child.name for child in self.children(quota.name)],
            }
            for quota in sorted(self, key=lambda quota: quota.name)
        ]


def resolve(labels: Mapping[str, str], namespace: str, quotas: QuotaTopology, label_only: bool) -> str:
    """A pod's quota: its label; else the quota named like the namespace, in it; else the one that lists it; else the default."""
    name = labels.get(names.LABEL_QUOTA_NAME, "")
    if name or label_only:
        return name
    own = quotas.get(namespace)
    if own is not None and own.namespace == namespace:
        return own.name
    bound = quotas.of_namespace(namespace)
    return bound.name if bound else names.QUOTA_DEFAULT
