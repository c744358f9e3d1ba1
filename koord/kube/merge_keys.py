"""How the lists of Kubernetes' own kinds merge in a strategic merge patch: the published `x-kubernetes-patch-*` facts.

`TYPES[type][field]` is a `Field`; a field that is not listed is atomic (a list is replaced, a map is merged by key).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """How one field merges.

    `type` names the type of the field (of its elements, for a list); "" if nothing below it merges specially.
    `merge` is true for a list that is merged; `key` is the merge key of a merged list of objects, "" for a list of scalars.
    `whole` is true for an object that is replaced.
    """

    type: str = ""
    merge: bool = False
    key: str = ""
    whole: bool = False

    def key_of(self, item: Any) -> Any:
        """What an element of the list is told by: its merge key, or itself."""
        return item.get(self.key) if self.key and isinstance(item, Mapping) else item


def _by(key: str, type_: str = "") -> Field:
    return Field(type_, True, key)


def _of(type_: str) -> Field:
    return Field(type_)


_SCALARS = Field("", True, "")
_CONDITIONS = {"conditions": _by("type")}
_CONTAINER = {"ports": _by("containerPort"), "env": _by("name"), "volumeMounts": _by("mountPath"), "volumeDevices": _by("devicePath")}
_POD_SPEC = {
    "volumes": _by("name"),
    "containers": _by("name", "Container"),
    "initContainers": _by("name", "Container"),
    "ephemeralContainers": _by("name", "Container"),
    "imagePullSecrets": _by("name"),
    "hostAliases": _by("ip"),
    "topologySpreadConstraints": _by("topologyKey"),
    "schedulingGates": _by("name"),
    "resourceClaims": _by("name"),
}

TYPES: dict[str, dict[str, Field]] = {
    "": {},
    "ObjectMeta": {"ownerReferences": _by("uid"), "finalizers": _SCALARS},
    "Container": _CONTAINER,
    "PodSpec": _POD_SPEC,
    "PodStatus": {
        "conditions": _by("type"),
        "podIPs": _by("ip"),
        "hostIPs": _by("ip"),
        "resourceClaimStatuses": _by("name"),
    },
    "PodTemplate": {"metadata": _of("ObjectMeta"), "spec": _of("PodSpec")},
    "WorkloadSpec": {"template": _of("PodTemplate")},
    "JobTemplate": {"metadata": _of("ObjectMeta"), "spec": _of("WorkloadSpec")},
    "CronJobSpec": {"jobTemplate": _of("JobTemplate")},
    "Conditions": _CONDITIONS,
    "NodeSpec": {"podCIDRs": _SCALARS},
    "NodeStatus": {"conditions": _by("type"), "addresses": _by("type")},
    "ServiceSpec": {"ports": _by("port")},
    "CSINodeSpec": {"drivers": _by("name")},
    "ResourceClaimStatus": {"reservedFor": _by("uid")},
    "PodDisruptionBudgetSpec": {"selector": Field(whole=True)},
    "ValidatingAdmissionPolicySpec": {"matchConditions": _by("name"), "variables": _by("name")},
    "Webhook": {"matchConditions": _by("name")},
}

_META = {"metadata": _of("ObjectMeta")}
_CONDITIONED = {**_META, "status": _of("Conditions")}
_WORKLOAD = {**_CONDITIONED, "spec": _of("WorkloadSpec")}

# kind -> fields of the object itself. Kinds that are not here have nothing but metadata that merges.
KINDS: dict[str, dict[str, Field]] = {
    "Pod": {**_META, "spec": _of("PodSpec"), "status": _of("PodStatus")},
    "PodTemplate": {**_META, "template": _of("PodTemplate")},
    "Node": {**_META, "spec": _of("NodeSpec"), "status": _of("NodeStatus")},
    "Namespace": _CONDITIONED,
    "Service": {**_CONDITIONED, "spec": _of("ServiceSpec")},
    "ServiceAccount": {**_META, "secrets": _by("name")},
    "PersistentVolumeClaim": _CONDITIONED,
    "ReplicationController": _WORKLOAD,
    "ReplicaSet": _WORKLOAD,
    "Deployment": _WORKLOAD,
    "StatefulSet": _WORKLOAD,
    "DaemonSet": _WORKLOAD,
    "Job": _WORKLOAD,
    "CronJob": {**_META, "spec": _of("CronJobSpec")},
    "PodDisruptionBudget": {**_CONDITIONED, "spec": _of("PodDisruptionBudgetSpec")},
    "HorizontalPodAutoscaler": _CONDITIONED,
    "CSINode": {**_META, "spec": _of("CSINodeSpec")},
    "ResourceClaim": {**_META, "status": _of("ResourceClaimStatus")},
    "MutatingWebhookConfiguration": {**_META, "webhooks": _by("name", "Webhook")},
    "ValidatingWebhookConfiguration": {**_META, "webhooks": _by("name", "Webhook")},
    "ValidatingAdmissionPolicy": {**_META, "spec": _of("ValidatingAdmissionPolicySpec")},
}


def fields_of_kind(kind: str) -> dict[str, Field]:
    """Merge facts of a kind by its name (`Pod`)."""
    return KINDS.get(kind, _META)
