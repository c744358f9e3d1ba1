"""Pod mutate: node affinity of the pod's quota tree (MGR-POD-M-04); pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koord.api import names
from koord.api.objects import ElasticQuotaProfile
from roles.manager.webhooks.quota_topology import QuotaTopology


def apply(pod: dict[str, Any], namespace: str, quotas: QuotaTopology, profiles: Iterable[ElasticQuotaProfile]) -> None:
    """Append the tree's node selector to every required node-affinity term, in place."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    quota = quotas.get(labels.get(names.LABEL_QUOTA_NAME) or namespace) or quotas.of_namespace(namespace)
    if quota is None or not quota.tree_id:
        return
    tree = sorted(
        (profile for profile in profiles if profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID) == quota.tree_id),
        key=lambda profile: profile.key,
    )
    selector = tree[0].spec.node_selector if tree else None
    if selector is None:
        return
    expressions: list[dict[str, Any]] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ]
    for item in selector.match_expressions:
        expression: dict[str, Any] = {"key": item.key, "operator": item.operator}
        if item.values:
            expression["values"] = list(item.values)
        expressions.append(expression)
    if not expressions:
        return
    required = pod
    for member in ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        found = required.get(member)
        required[member] = required = {} if found is None else found  # null says nothing
    terms = [term or {} for term in required.get("nodeSelectorTerms") or [{}]]
    required["nodeSelectorTerms"] = [{**term, "matchExpressions": [*(term.get("matchExpressions") or []), *expressions]} for term in terms]
