"""Which pods belong to which quota, kept with every change of a pod: a review never walks the pods of the cluster; pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from koord.api import names
from koord.api.objects import Pod
from roles.manager.webhooks.quota_topology import Quota, QuotaTopology, resolve


class QuotaPods:
    """Names of pods by namespace, and keys by the quota that their label names."""

    def __init__(self) -> None:
        self._spaces: dict[str, set[str]] = {}
        self._labelled: dict[str, set[str]] = {}
        self._labels: dict[str, str] = {}

    def on_pod(self, pod: Pod) -> None:
        """A pod was added or changed."""
        metadata = pod.metadata
        label = metadata.labels.get(names.LABEL_QUOTA_NAME, "")
        self._spaces.setdefault(metadata.namespace, set()).add(metadata.name)
        if not label and not self._labels:
            return
        key = pod.key
        before = self._labels.get(key, "")
        if before == label:
            return
        _leave(self._labelled, before, key)
        self._labels.pop(key, None)
        if label:
            self._labels[key] = label
            self._labelled.setdefault(label, set()).add(key)

    def on_pod_gone(self, pod: Pod) -> None:
        """A pod was deleted."""
        key, metadata = pod.key, pod.metadata
        _leave(self._spaces, metadata.namespace, metadata.name)
        _leave(self._labelled, self._labels.pop(key, ""), key)

    def any_of(self, quota: Quota) -> bool:
        """Whether pods name the quota, or live in its namespace or one that it lists."""
        return quota.name in self._labelled or any(space in self._spaces for space in (quota.name, *quota.namespaces))

    def of(self, name: str, quotas: QuotaTopology, label_only: bool) -> Iterator[str]:
        """Keys of the pods that count for a quota: by label, else by namespace."""
        spaces = [space for space in self._spaces if resolve({}, space, quotas, label_only) == name]
        keys = (f"{space}/{name}" for space in spaces for name in self._spaces[space])
        unlabelled = (key for key in keys if key not in self._labels)
        return chain(self._labelled.get(name, ()), unlabelled)


def _leave(groups: dict[str, set[str]], name: str, key: str) -> None:
    members = groups.get(name)
    if members is not None:
        members.discard(key)
        if not members:
            del groups[name]
