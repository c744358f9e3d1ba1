"""Defaults of everything that is not a pod or a workload."""

from __future__ import annotations

import base64
from typing import Any

from koord.apiserver.defaulting.pods import fill

Obj = dict[str, Any]


_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion",
    "operatingSystem", "architecture",
)  # fmt: skip


def default_node(obj: Obj) -> None:
    """What is allocatable is the capacity, unless said; the parts of the status that are never absent."""
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    if "allocatable" not in status and status.get("capacity"):
        status["allocatable"] = dict(status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    info = status.setdefault("nodeInfo", {})
    for key in _NODE_INFO:
        info.setdefault(key, "")


def default_namespace(obj: Obj) -> None:
    """The label by which selectors can name a namespace."""
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def create_namespace(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    finalizers = spec.setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def update_namespace(new: Obj, old: Obj) -> None:
    """spec.finalizers change only through the subresource finalize."""
    new["spec"] = old.get("spec", {})


def default_secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()


def default_service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    obj.setdefault("status", {"loadBalancer": {}})


def default_pvc(obj: Obj) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def create_pvc(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def default_pv(obj: Obj) -> None:
    fill(obj.setdefault("spec", {}), persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")


def create_pv(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def default_pdb(obj: Obj) -> None:
    obj.setdefault("spec", {})


def create_pdb(obj: Obj) -> None:
    obj["status"] = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def default_priority_class(obj: Obj) -> None:
    fill(obj, value=0, preemptionPolicy="PreemptLowerPriority")


def default_storage_class(obj: Obj) -> None:
    fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def default_match(match: Obj, *rules: str) -> None:
    """What a webhook, a policy or a binding looks at; `rules` are the keys of its lists of rules."""
    fill(match, matchPolicy="Equivalent").setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    for key in rules:
        for rule in match.get(key) or ():
            rule.setdefault("scope", "*")


def _webhook(hook: Obj) -> None:
    default_match(fill(hook, failurePolicy="Fail", timeoutSeconds=10), "rules")
    service = (hook.get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def default_mutating_webhooks(obj: Obj) -> None:
    for hook in obj.get("webhooks") or ():
        _webhook(hook)
        hook.setdefault("reinvocationPolicy", "Never")


def default_validating_webhooks(obj: Obj) -> None:
    for hook in obj.get("webhooks") or ():
        _webhook(hook)


def default_crd(obj: Obj) -> None:
    """Names that follow from the kind, and the strategy None."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind") or ""
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", kind + "List" if kind else "")
    spec.setdefault("conversion", {}).setdefault("strategy", "None")
