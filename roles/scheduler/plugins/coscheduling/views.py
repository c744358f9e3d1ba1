"""Gangs as the services API shows them. Sets are objects whose keys are the members."""

from __future__ import annotations

from typing import Any

from koord.api import names
from roles.scheduler.plugins.coscheduling.cache import BOUND, PENDING, RELEASED, WAITING, Gang, GangCache, Stage
from roles.scheduler.plugins.coscheduling.spec import FROM_POD

View = dict[str, Any]


def gang_list(cache: GangCache) -> View:
    """All gangs by id."""
    return {identity: gang_view(gang) for identity, gang in sorted(cache.gangs.items())}


def one_gang(cache: GangCache, identity: str) -> View | None:
    """A gang, None for an unknown one."""
    gang = cache.gangs.get(identity)
    return gang_view(gang) if gang is not None else None


def gang_view(gang: Gang) -> View:
    """One gang; the waiting time is in nanoseconds."""
    spec, group = gang.spec, gang.group

    def keys(*stages: Stage) -> View:
        return {pod.key: {} for stage in stages for pod in gang.at(stage)}

    return {
        "name": gang.id,
        "waitTime": round(spec.wait_time * 1e9) if spec is not None else 0,
        "createTime": spec.created if spec is not None else "",
        "mode": spec.mode if spec is not None else names.GANG_MODE_STRICT,
        "gangMatchPolicy": spec.match_policy if spec is not None else "",
        "minRequiredNumber": spec.min_number if spec is not None else 0,
        "totalChildrenNum": spec.total if spec is not None else 0,
        "gangGroup": list(spec.groups) if spec is not None else [],
        "children": {pod.key: {} for pod in gang.children.values()},
        "pendingChildren": keys(PENDING),
        "waitingForBindChildren": keys(WAITING, RELEASED),
        "boundChildren": keys(BOUND),
        "onceResourceSatisfied": group.once_satisfied,
        "gangGroupInfo": {
            "gangGroupId": group.id,
            "onceResourceSatisfied": group.once_satisfied,
            "representativePodKey": gang.children[group.representative].key if group.representative in gang.children else "",
            "bindingMembers": len(group.binding),
        },
        "gangFrom": spec.origin if spec is not None else FROM_POD,
        "hasGangInit": spec is not None,
        "problems": list(spec.problems) if spec is not None else [],
    }
