"""Defaults of pods and pod templates, as kube-apiserver sets them."""

from __future__ import annotations

from typing import Any

from koord.api.quantity import parse_milli
from koord.apiserver.schema.formats import now

Obj = dict[str, Any]

_NEVER_LATEST = "IfNotPresent"


def fill(obj: Obj, **defaults: Any) -> Obj:
    """Set what is absent, in place; returns the object."""
    for key, value in defaults.items():
        obj.setdefault(key, value)
    return obj


def default_pod(pod: Obj) -> None:
    """Set the defaults of a Pod; after this a second call changes nothing."""
    spec = pod.get("spec")
    if spec is None:
        return
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    _requests_from_limits(spec)


def default_pod_spec(spec: Obj) -> None:
    """Set the defaults of a PodSpec."""
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(key) or ():
            _container(container)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif "serviceAccount" in spec:
        spec["serviceAccountName"] = spec["serviceAccount"]
    for volume in spec.get("volumes") or ():
        _volume(volume)
    if spec.get("hostNetwork"):
        for key in ("containers", "initContainers"):
            for container in spec.get(key) or ():
                for port in container.get("ports") or ():
                    port.setdefault("hostPort", port.get("containerPort"))


def pull_policy(image: str) -> str:
    """Always for the tag latest and for no tag at all."""
    if "@" in image:
        return _NEVER_LATEST
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return "Always" if tag in ("", "latest") else _NEVER_LATEST


def _container(container: Obj) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = pull_policy(container.get("image") or "")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        if key in container:
            _probe(container[key])
    for env in container.get("env") or ():
        source = (env.get("valueFrom") or {}).get("fieldRef")
        if source is not None:
            source.setdefault("apiVersion", "v1")
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            fill(hook["httpGet"], path="/", scheme="HTTP")


def _probe(probe: Obj) -> None:
    fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        fill(probe["httpGet"], path="/", scheme="HTTP")
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


# volume source -> fields with their defaults
_MODE = {"defaultMode": 0o644}
_VOLUMES: dict[str, Obj] = {
    "secret": _MODE,
    "configMap": _MODE,
    "downwardAPI": _MODE,
    "projected": _MODE,
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "kind": "Shared", "fsType": "ext4", "readOnly": False},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}


def _volume(volume: Obj) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source, fields in _VOLUMES.items():
        found = volume.get(source)
        if found is not None:
            fill(found, **fields)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
    for source in (volume.get("projected") or {}).get("sources") or ():
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            if "fieldRef" in item:
                item["fieldRef"].setdefault("apiVersion", "v1")
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)


def _requests_from_limits(spec: Obj) -> None:
    """A limit without a request is the request too. Only pods get this, templates do not."""
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container["resources"]
            limits = resources.get("limits")
            if limits:
                requests = resources.setdefault("requests", {})
                for name, value in limits.items():
                    requests.setdefault(name, value)


def create_pod(pod: Obj) -> None:
    """The status of a new pod."""
    spec = pod.get("spec") or {}
    status = pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        text = "Scheduling is blocked due to non-empty scheduling gates"
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": text, "lastTransitionTime": now()}
        status["conditions"] = [gated]


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort by the cpu and memory of all containers."""
    guaranteed, any_set = True, False
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
            for name in ("cpu", "memory"):
                request, limit = requests.get(name), limits.get(name)
                wanted = parse_milli(request) if request is not None else 0
                bound = parse_milli(limit) if limit is not None else 0
                any_set = any_set or wanted > 0 or bound > 0
                if bound <= 0 or (request is not None and wanted != bound):
                    guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
