"""Elastic quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.quantity import parse_milli, parse_value
from roles.sandbox.world.invariants.base import QUOTA, QUOTA_LABEL, Invariant, bound_by, requests

if TYPE_CHECKING:
    from roles.sandbox.world.history import Entry


class QuotaWithinMax(Invariant):
    """Pods of a quota are assigned only within its max."""

    def see(self, entry: Entry) -> Iterator[str]:
        if not bound_by(entry):
            return
        label = (entry.obj["metadata"].get("labels") or {}).get(QUOTA_LABEL)
        quota = next((q for q in self.history.of(QUOTA).values() if q["metadata"]["name"] == label), None)
        if quota is None:
            return
        most = (quota.get("spec") or {}).get("max") or {}
        total: dict[str, int] = defaultdict(int)
        for pod in self.pods():
            if (pod["metadata"].get("labels") or {}).get(QUOTA_LABEL) == label:
                for resource, amount in requests(pod).items():
                    total[resource] += amount
        for resource, limit in most.items():
            bound = parse_milli(limit) if resource == "cpu" else parse_value(limit)
            if total[resource] > bound:
                yield f"{entry.key}: quota {label} has {resource} {total[resource]} of {bound}"
