"""What is there in every new cluster: namespaces, the system's priority classes, a role of the system's, the service of the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.rest.meta import prepare_create

if TYPE_CHECKING:
    from koord.apiserver.core import Core

Obj = dict[str, Any]

_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")
_PRIORITIES = (
    ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
    ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),  # noqa: E501
)  # fmt: skip
# For those that have tokens and access reviewed, as koord's roles.
_DELEGATOR = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]


def _put(core: Core, group: str, plural: str, namespace: str, obj: Obj) -> None:
    resource = core.resources.by_path(group, "v1", plural)
    assert resource is not None
    bucket = core.store.bucket(resource.bucket)
    name = obj["metadata"]["name"]
    if bucket.get(namespace, name) is None:
        if namespace:
            obj["metadata"]["namespace"] = namespace
        prepare_create(resource, obj["metadata"])
        bucket.put(namespace, name, {"kind": resource.kind, "apiVersion": resource.api_version, **obj})


def seed(core: Core) -> None:
    """Create what is missing."""
    for name in _NAMESPACES:
        labels = {"kubernetes.io/metadata.name": name}
        obj: Obj = {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        _put(core, "", "namespaces", "", obj)
    for name, value, text in _PRIORITIES:
        obj = {"metadata": {"name": name}, "value": value, "description": text, "preemptionPolicy": "PreemptLowerPriority"}
        _put(core, "scheduling.k8s.io", "priorityclasses", "", obj)
    _put(core, "rbac.authorization.k8s.io", "clusterroles", "", {"metadata": {"name": "system:auth-delegator"}, "rules": _DELEGATOR})
    labels = {"component": "apiserver", "provider": "kubernetes"}
    ports = [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]
    spec: Obj = {
        "ports": ports, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "ClusterIP", "sessionAffinity": "None",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
    }  # fmt: skip
    service = {"metadata": {"name": "kubernetes", "labels": labels}, "spec": spec, "status": {"loadBalancer": {}}}
    _put(core, "", "services", "default", service)
