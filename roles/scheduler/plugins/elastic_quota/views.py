"""Quotas as the services API shows them. Amounts are ResourceLists."""

from __future__ import annotations

from typing import Any

from koord.accounting.resources import format
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache
from roles.scheduler.plugins.elastic_quota.model import ROOT
from roles.scheduler.plugins.elastic_quota.tree import Quota


def quota_list(cache: QuotaCache, query: dict[str, str]) -> dict[str, Any]:
    """All quotas but roots by name; `tree` selects one tree, `includePods=true` adds their pods."""
    wanted = query.get("tree")
    pods = query.get("includePods") == "true"
    return {
        quota.name: quota_view(cache, tree, quota, pods=pods)
        for tree, quota in cache.quotas()
        if quota.name != ROOT and (not wanted or tree == wanted)
    }


def one_quota(cache: QuotaCache, query: dict[str, str]) -> dict[str, Any] | None:
    """The quota `name`, None when there is none."""
    found = cache.quota(query["name"])
    if found is None:
        return None
    return quota_view(cache, cache.tree_name(found[1].name), found[1], pods=query.get("includePods") == "true")


def quota_view(cache: QuotaCache, tree: str, quota: Quota, *, pods: bool) -> dict[str, Any]:
    """One quota."""
    spec = quota.spec
    view: dict[str, Any] = {
        "name": spec.name,
        "parentName": spec.parent,
        "isParent": spec.is_parent,
        "runtimeVersion": quota.version,
        "allowLentResource": spec.lends,
        "tree": tree,
        "max": format(spec.max),
        "min": format(spec.min),
        "autoScaleMin": format(quota.scaled_min),
        "used": format(quota.used),
        "nonPreemptibleUsed": format(quota.non_preemptible_used),
        "request": format(quota.request),
        "nonPreemptibleRequest": format(quota.non_preemptible_request),
        "sharedWeight": format(spec.weight),
        "runtime": format(quota.limit()),
        "childRequest": format(quota.child_request),
        "allocated": format(quota.allocated),
        "guaranteed": format(quota.guaranteed),
        "selfUsed": format(quota.self_used),
        "selfRequest": format(quota.self_request),
        "selfNonPreemptibleUsed": format(quota.self_non_preemptible_used),
        "selfNonPreemptibleRequest": format(quota.self_non_preemptible_request),
    }
    if pods:
        view["podCache"] = {
            member.pod.key: {"isAssigned": member.assigned, "resource": format(member.amount)} for member in cache.members(spec.name)
        }
    return view
