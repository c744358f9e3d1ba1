"""Defaults that depend on other fields, and what a created or updated object has set for it; the others are in `schema/rules.json`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from koord.apiserver.facts import containers, qos_class
from koord.apiserver.schema.builtin import now
from koord.apiserver.schema.lists import put_member
from koord.apiserver.schema.rules import creating, defaulting
from koord.apiserver.store import Obj

# -- pods ----------------------------------------------------------------------------------------------------------------------------


@defaulting("V1Container", "V1EphemeralContainer")
def _container(container: Obj) -> None:
    """Images of the tag latest, or of none at all, are always pulled."""
    if "imagePullPolicy" not in container:
        image = container.get("image") or ""
        tag = image.rsplit("/", 1)[-1].partition(":")[2]
        container["imagePullPolicy"] = "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"


@defaulting("V1Volume")
def _volume(volume: Obj) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}


@defaulting("V1PodSpec")
def _pod_spec(spec: Obj) -> None:
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif "serviceAccount" in spec:
        spec["serviceAccountName"] = spec["serviceAccount"]
    if spec.get("hostNetwork"):
        for container in containers(spec):
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort"))


@defaulting("V1Pod")
def _pod(pod: Obj) -> None:
    """Only pods get these, templates do not: a limit without a request is the request too."""
    spec = pod.get("spec")
    if spec is None:
        return
    spec.setdefault("enableServiceLinks", True)
    for container in containers(spec):
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = {**limits, **(container["resources"].get("requests") or {})}


@creating("V1Pod")
def _new_pod(pod: Obj) -> None:
    """The status of a new pod."""
    spec = pod.get("spec") or {}
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    status = pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        text = "Scheduling is blocked due to non-empty scheduling gates"
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": text, "lastTransitionTime": now()}
        status["conditions"] = [gated]


# -- workloads -----------------------------------------------------------------------------------------------------------------------


@defaulting("V1ReplicationController")
def _replication_controller(obj: Obj) -> None:
    labels = ((obj["spec"].get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        obj["spec"].setdefault("selector", dict(labels))
        obj["metadata"].setdefault("labels", dict(labels))


@defaulting("V1StatefulSetSpec")
def _claim_templates(spec: Obj) -> None:
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("apiVersion", "v1")
        claim["status"] = {"phase": "Pending"}


@defaulting("V1Job")
def _job(obj: Obj) -> None:
    spec = obj["spec"]
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
        spec["parallelism"] = 1


@creating("V1Job")
def _new_job(obj: Obj) -> None:
    """A job without a selector of its own selects its pods by its uid; one without labels has theirs."""
    spec, meta = obj["spec"], obj["metadata"]
    labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
    if not spec.get("manualSelector"):
        for prefix in ("batch.kubernetes.io/", ""):
            labels.setdefault(prefix + "controller-uid", meta["uid"])
            labels.setdefault(prefix + "job-name", meta["name"])
        spec.setdefault("selector", {}).setdefault("matchLabels", {})["batch.kubernetes.io/controller-uid"] = meta["uid"]
    if labels and not meta.get("labels"):
        meta["labels"] = dict(labels)


TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


@defaulting("V1DaemonSet")
def _daemon_set(obj: Obj) -> None:
    """How often the template has changed, which an update counts (`rest/write.py`)."""
    obj["metadata"].setdefault("annotations", {}).setdefault(TEMPLATE_GENERATION, "1")


# -- the others ----------------------------------------------------------------------------------------------------------------------


def _paired(obj: Obj, one: str, all_: str, address: Callable[[Any], Any], made: Callable[[Any], Any]) -> None:
    """The single address of older clients is the first of all, and counts where they differ."""
    first, known = obj.get(one), obj.get(all_)
    if first and (not known or address(known[0]) != first):
        obj[all_] = [made(first)]
    elif known and address(known[0]):
        obj[one] = address(known[0])


@defaulting("V1PodStatus")
def _pod_addresses(status: Obj) -> None:
    _paired(status, "podIP", "podIPs", lambda entry: entry.get("ip"), lambda ip: {"ip": ip})


@defaulting("V1NodeSpec")
def _node_ranges(spec: Obj) -> None:
    _paired(spec, "podCIDR", "podCIDRs", lambda entry: entry, lambda text: text)


@defaulting("V1NodeStatus")
def _node(status: Obj) -> None:
    """What is allocatable is the capacity, unless said."""
    if status.get("capacity"):
        status.setdefault("allocatable", dict(status["capacity"]))


@defaulting("V1Namespace")
def _namespace(obj: Obj) -> None:
    """The label by which selectors can name a namespace."""
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


@creating("V1Namespace")
def _new_namespace(obj: Obj) -> None:
    finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


@creating("V1PersistentVolume")
def _new_volume(obj: Obj) -> None:
    obj["status"]["lastPhaseTransitionTime"] = now()


@defaulting("V1NetworkPolicySpec")
def _network_policy(spec: Obj) -> None:
    """A policy is about what comes in, and about what goes out where it says something of that."""
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


@defaulting("V1LimitRangeItem")
def _limits(item: Obj) -> None:
    """What a container is given that says nothing: the most there is, and a request as large as its limit, or else the least."""
    if item.get("type") == "Container":
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        put_member(item, "default", limits)
        put_member(item, "defaultRequest", requests)


@defaulting("V1Secret")
def _secret(obj: Obj) -> None:
    plain = obj.pop("stringData", None)
    if plain:
        obj.setdefault("data", {}).update({key: base64.b64encode(value.encode()).decode() for key, value in plain.items()})


@defaulting("V1ServicePort")
def _service_port(port: Obj) -> None:
    if not port.get("targetPort"):
        port["targetPort"] = port.get("port", 0)


@defaulting("V2HorizontalPodAutoscalerSpec")
def _autoscaler(spec: Obj) -> None:
    if not spec.get("metrics"):
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]


@defaulting("V1CustomResourceDefinitionSpec")
def _definition(spec: Obj) -> None:
    names = spec["names"]
    kind = names.get("kind") or ""
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", kind + "List" if kind else "")
