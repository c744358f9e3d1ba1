"""What is particular to a kind on its way into the store: one row a kind, the functions in `defaulting/` and `validation/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.apiserver import defaulting
from koord.apiserver.store import Obj
from koord.apiserver.validation import crds, devices, kinds  # noqa: F401 - registers its checks
from koord.apiserver.validation.pods import check_pod_part, check_pod_update

if TYPE_CHECKING:
    from koord.apiserver.errors import Cause


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a write that differ between kinds beside those of their types (`schema/rules.py`); each is optional."""

    # reset what a client may not set when it creates (after the status was dropped)
    create: Callable[[Obj], None] | None = None
    # the status of what is created, where that is the same for all
    status: Obj | None = None
    # spec changes through a subresource only
    keeps_spec: bool = False
    # (new, old, causes): what may not change beside the fields that are `immutable` in the table
    check_update: Callable[[Obj, Obj, list[Cause]], None] | None = None
    # (subresource, new, old, causes): what a subresource may change
    check_part: Callable[[str, Obj, Obj, list[Cause]], None] | None = None
    # a created object keeps the status that the client sent
    keeps_status: bool = False
    # stored here and not enforced: said with every object that is made, so that nobody relies on it
    warning: str = ""


NONE = Strategy()
_SCALED = {"replicas": 0}
_SCHEDULED = {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}
_BUDGET = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}

# (group, kind) -> strategy
STRATEGIES: dict[tuple[str, str], Strategy] = {
    ("", "ConfigMap"): Strategy(check_update=kinds.check_immutable_data),
    ("", "LimitRange"): Strategy(warning="this API server does not apply LimitRanges"),
    ("", "Namespace"): Strategy(defaulting.create_namespace, keeps_spec=True),
    ("", "Node"): Strategy(keeps_status=True),
    ("", "PersistentVolume"): Strategy(status={"phase": "Pending"}),
    ("", "PersistentVolumeClaim"): Strategy(status={"phase": "Pending"}),
    ("", "Pod"): Strategy(defaulting.create_pod, check_update=check_pod_update, check_part=check_pod_part),
    ("", "ReplicationController"): Strategy(status=_SCALED),
    ("", "Secret"): Strategy(check_update=kinds.check_immutable_data),
    ("apps", "DaemonSet"): Strategy(status=_SCHEDULED),
    ("apps", "ReplicaSet"): Strategy(status=_SCALED),
    ("apps", "StatefulSet"): Strategy(status=_SCALED),
    ("batch", "Job"): Strategy(defaulting.create_job),
    ("networking.k8s.io", "NetworkPolicy"): Strategy(warning="this API server has no network that could enforce NetworkPolicies"),
    ("policy", "PodDisruptionBudget"): Strategy(status=_BUDGET),
    ("resource.k8s.io", "ResourceClaim"): Strategy(check_update=devices.check_claim_update, check_part=devices.check_claim_part),
    ("resource.k8s.io", "ResourceClaimTemplate"): Strategy(check_update=devices.check_template_update),
    ("resource.k8s.io", "ResourceSlice"): Strategy(check_update=devices.check_slice_update),
}


def strategy(group: str, kind: str) -> Strategy:
    """The strategy of a kind; kinds without a row have nothing particular."""
    return STRATEGIES.get((group, kind), NONE)
