"""Quota hooks (SCH-EQ-12): code of others that follows quotas and has a say in admission and status.

A factory is an entry point of the group `koord.scheduler.quota_hooks`: `factory(key, args)` returns a QuotaHook, one for each tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from koord import seams
from koord.api.objects import ElasticQuota
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.plugins.elastic_quota.args import HookPluginArgs
from roles.scheduler.plugins.elastic_quota.model import QuotaSpec
from roles.scheduler.plugins.elastic_quota.tree import Quota

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "koord.scheduler.quota_hooks"


class QuotaHook:
    """Base of hooks: override what you need. Hooks must not wait and must not change what they are handed."""

    def is_updated(self, old: ElasticQuota, new: ElasticQuota) -> bool:
        """Whether a quota is to be applied anew although its spec did not change."""
        return False

    def pre_update(self, old: QuotaSpec | None, new: QuotaSpec | None, state: dict[str, Any]) -> None:
        """Before a quota is created (old None), changed, or deleted (new None). `state` is shared with `post_update`."""

    def post_update(self, old: QuotaSpec | None, new: QuotaSpec | None, state: dict[str, Any]) -> None:
        """And after."""

    def pod_updated(self, quota: str, pod: PodInfo) -> None:
        """A pod that has a node changed."""

    def annotations(self, quota: Quota) -> dict[str, str]:
        """Annotations to be written on the quota."""
        return {}

    def check_pod(self, quota: Quota, pod: PodInfo) -> str:
        """Why the pod is not let into the quota, "" when it is."""
        return ""


Factory = Callable[[str, Any], QuotaHook]


def factories() -> dict[str, Factory]:
    """Factories of installed packages by name."""
    return {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP)}


class Hooks:
    """The configured hooks, an instance for each tree. Raises ValueError for a factory that is not there. A hook that fails is logged and
    passed over, but where it has a say in admission its failure refuses the pod."""

    def __init__(self, configured: Sequence[HookPluginArgs]) -> None:
        known = factories() if configured else {}
        self._makers: list[tuple[str, Factory, Any]] = []
        for hook in configured:
            if hook.factory_key not in known:
                available = ", ".join(sorted(known)) or "none is installed"
                raise ValueError(f"hookPlugins: no factory {hook.factory_key!r} for hook {hook.key!r}; available: {available}")
            self._makers.append((hook.key, known[hook.factory_key], hook.factory_args))
        self._by_tree: dict[str, list[tuple[str, QuotaHook]]] = {}
        self.took: Callable[[str, str, float], None] = lambda key, operation, seconds: None

    def __bool__(self) -> bool:
        """Whether any is configured."""
        return bool(self._makers)

    def of(self, tree: str) -> list[tuple[str, QuotaHook]]:
        """The hooks of a tree with their keys."""
        found = self._by_tree.get(tree)
        if found is None:
            found = self._by_tree[tree] = [(key, make(key, args)) for key, make, args in self._makers]
        return found

    def tell(self, tree: str, operation: str, what: Callable[[QuotaHook], Any]) -> list[Any]:
        """Call every hook of a tree; answers of those that failed are left out. `operation` names the call in the metrics."""
        answers: list[Any] = []
        for key, hook in self.of(tree):
            started = seams.perf_counter()
            try:
                answers.append(what(hook))
            except Exception:
                log.exception("quota hook %s failed", key)
            self.took(key, operation, seams.perf_counter() - started)
        return answers

    def check(self, tree: str, quota: Quota, pod: PodInfo) -> str:
        """The first hook's refusal of a pod, with the hook's key."""
        for key, hook in self.of(tree):
            started = seams.perf_counter()
            try:
                reason = hook.check_pod(quota, pod)
            except Exception as error:
                log.exception("quota hook %s failed", key)
                reason = f"{type(error).__name__}: {error}"
            self.took(key, "CheckPod", seams.perf_counter() - started)
            if reason:
                return f"quota hook {key}: {reason}"
        return ""
