"""What is particular to a kind on its way into the store: one row a kind, the functions in `defaulting/` and `validation/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord.apiserver.defaulting import cluster as default_cluster
from koord.apiserver.defaulting import pods as default_pods
from koord.apiserver.defaulting import workloads as default_workloads
from koord.apiserver.validation import cluster as check_cluster
from koord.apiserver.validation import crds as check_crds
from koord.apiserver.validation import pods as check_pods
from koord.apiserver.validation import policies as check_policies
from koord.apiserver.validation import workloads as check_workloads
from koord.apiserver.validation.pods import check_pod_part

if TYPE_CHECKING:
    from koord.apiserver.errors import Cause

Obj = dict[str, Any]
Default = Callable[[Obj], None]
Prepare = Callable[[Obj], None]
PrepareUpdate = Callable[[Obj, Obj], None]
Check = Callable[[Obj, list["Cause"]], None]
CheckUpdate = Callable[[Obj, Obj, list["Cause"]], None]
CheckPart = Callable[[str, Obj, Obj, list["Cause"]], None]


@dataclass(frozen=True, slots=True)
class Strategy:
    """The steps of a write that differ between kinds; each is optional."""

    # fill in defaults, on every write
    default: Default | None = None
    # reset what a client may not set when it creates (after the status was dropped)
    create: Prepare | None = None
    # (new, old): derive fields on update
    update: PrepareUpdate | None = None
    check: Check | None = None
    # (new, old, causes): immutable fields
    check_update: CheckUpdate | None = None
    # (subresource, new, old, causes): what a subresource may change
    check_part: CheckPart | None = None
    # a created object keeps the status that the client sent
    keeps_status: bool = False


NONE = Strategy()

# (group, kind) -> strategy
STRATEGIES: dict[tuple[str, str], Strategy] = {
    ("", "Pod"): Strategy(
        default_pods.default_pod, default_pods.create_pod, None, check_pods.check_pod, check_pods.check_pod_update, check_pod_part
    ),
    ("", "Node"): Strategy(default_cluster.default_node, None, None, check_cluster.check_node, check_cluster.check_node_update, keeps_status=True),  # noqa: E501
    ("", "Namespace"): Strategy(default_cluster.default_namespace, default_cluster.create_namespace, default_cluster.update_namespace),
    ("", "ConfigMap"): Strategy(None, None, None, check_cluster.check_config_map, check_cluster.check_immutable_data),
    ("", "Secret"): Strategy(default_cluster.default_secret, None, None, check_cluster.check_secret, check_cluster.check_immutable_data),
    ("", "Service"): Strategy(default_cluster.default_service, None, None, check_cluster.check_service, check_cluster.check_service_update),
    ("", "Event"): Strategy(None, None, None, check_cluster.check_event),
    ("", "PersistentVolumeClaim"): Strategy(default_cluster.default_pvc, default_cluster.create_pvc, None, check_cluster.check_pvc),
    ("", "PersistentVolume"): Strategy(default_cluster.default_pv, default_cluster.create_pv),
    ("", "ResourceQuota"): Strategy(None, None, None, check_policies.check_quota, check_policies.check_quota_update),
    ("", "ReplicationController"): Strategy(
        default_workloads.default_replication_controller, default_workloads.create_scaled, None, check_workloads.check_workload
    ),
    ("apps", "Deployment"): Strategy(
        default_workloads.default_deployment, None, None, check_workloads.check_workload, check_workloads.check_selector_immutable
    ),
    ("apps", "ReplicaSet"): Strategy(
        default_workloads.default_replica_set, default_workloads.create_scaled, None, check_workloads.check_workload,
        check_workloads.check_selector_immutable,
    ),
    ("apps", "StatefulSet"): Strategy(
        default_workloads.default_stateful_set, default_workloads.create_scaled, None, check_workloads.check_workload,
        check_workloads.check_selector_immutable,
    ),
    ("apps", "DaemonSet"): Strategy(
        default_workloads.default_daemon_set, default_workloads.create_daemon_set, None, check_workloads.check_workload,
        check_workloads.check_selector_immutable,
    ),
    ("batch", "Job"): Strategy(default_workloads.default_job, default_workloads.create_job, None, check_workloads.check_job),
    ("batch", "CronJob"): Strategy(default_workloads.default_cron_job, None, None, check_workloads.check_cron_job),
    ("autoscaling", "HorizontalPodAutoscaler"): Strategy(default_workloads.default_hpa, None, None, check_workloads.check_hpa),
    ("policy", "PodDisruptionBudget"): Strategy(
        default_cluster.default_pdb, default_cluster.create_pdb, None, check_cluster.check_pdb
    ),
    ("scheduling.k8s.io", "PriorityClass"): Strategy(
        default_cluster.default_priority_class, None, None, check_cluster.check_priority_class, check_cluster.check_priority_class_update
    ),
    ("storage.k8s.io", "StorageClass"): Strategy(default_cluster.default_storage_class, None, None, check_cluster.check_storage_class),
    ("coordination.k8s.io", "Lease"): Strategy(None, None, None, check_cluster.check_lease),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): Strategy(
        default_cluster.default_mutating_webhooks, None, None, check_cluster.check_webhooks
    ),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): Strategy(
        default_cluster.default_validating_webhooks, None, None, check_cluster.check_webhooks
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): Strategy(
        check_policies.default_policy, None, None, check_policies.check_policy
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): Strategy(
        check_policies.default_binding, None, None, check_policies.check_binding
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Strategy(
        default_cluster.default_crd, None, None, check_crds.check_crd, check_crds.check_crd_update
    ),
}  # fmt: skip


def strategy(group: str, kind: str) -> Strategy:
    """The strategy of a kind; kinds without a row have nothing particular."""
    return STRATEGIES.get((group, kind), NONE)
