"""ClusterRoles that are made of others, for clusters without kube-controller-manager."""

from __future__ import annotations

from typing import Any

from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.controllers.queue import Controller
from koord.apiserver.store import Event, Obj
from koord.kube.patch import json_equal

_ROLES = "rbac.authorization.k8s.io/clusterroles"


class RoleAggregation(Controller[str]):
    """Gives a role with an aggregation rule the rules of those that it selects. Keys are names of such roles."""

    def start(self) -> None:
        self.core.store.bucket(_ROLES).listeners.append(self._on_role)
        self._on_role()

    def _on_role(self, event: Event | None = None) -> None:
        for entry in self.core.store.bucket(_ROLES).entries.values():
            if entry.obj.get("aggregationRule"):
                self.add(entry.name)

    def work(self, key: str) -> None:
        bucket = self.core.store.bucket(_ROLES)
        entry = bucket.get("", key)
        if entry is None or not entry.obj.get("aggregationRule"):
            return
        others = sorted((other.name, other.obj) for other in bucket.entries.values() if other.name != key)
        rules = aggregated(entry.obj["aggregationRule"], [role for _, role in others])
        if not json_equal(rules, entry.obj.get("rules") or []):
            resource = self.core.resources.builtin("rbac.authorization.k8s.io", "clusterroles")
            self.core.settle(resource, entry, {**entry.copy(), "rules": rules})


def aggregated(rule: Obj, roles: list[Obj]) -> list[Any]:
    """The rules of the roles that one of the selectors matches, each once."""
    found: list[Any] = []
    for given in rule.get("clusterRoleSelectors") or ():
        try:
            selector = from_label_selector(given, nil_matches=False)
        except SelectorError:
            continue
        for role in roles:
            if selector.matches(role["metadata"].get("labels") or {}):
                found += [one for one in role.get("rules") or () if not any(json_equal(one, known) for known in found)]
    return found
