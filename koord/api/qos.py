"""QoS classes and how a pod gets one (API-QOS-01)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from koord.api.names import LABEL_POD_QOS, RESOURCE_CPU, RESOURCE_MEMORY
from koord.api.quantity import parse_milli

if TYPE_CHECKING:
    from koord.api.objects import Pod, ResourceList

KUBERNETES_GUARANTEED = "Guaranteed"
KUBERNETES_BURSTABLE = "Burstable"
KUBERNETES_BEST_EFFORT = "BestEffort"


class QoSClass(StrEnum):
    """Koordinator's QoS classes; NONE is a pod that says nothing."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"
    NONE = ""


_BY_TEXT = {str(member): member for member in QoSClass}
_BY_KUBERNETES = {
    KUBERNETES_GUARANTEED: QoSClass.LSR,
    KUBERNETES_BURSTABLE: QoSClass.LS,
    KUBERNETES_BEST_EFFORT: QoSClass.BE,
}


def qos_raw(labels: Mapping[str, str] | None) -> QoSClass:
    """The class that the label ``koordinator.sh/qosClass`` names; unknown text or no label is NONE."""
    if not labels:
        return QoSClass.NONE
    return _BY_TEXT.get(labels.get(LABEL_POD_QOS, ""), QoSClass.NONE)


def qos_with_default(labels: Mapping[str, str] | None, kubernetes_qos: str) -> QoSClass:
    """The labelled class, else by the Kubernetes class: ``Guaranteed`` → LSR, ``Burstable`` → LS, ``BestEffort`` → BE."""
    raw = qos_raw(labels)
    return raw if raw is not QoSClass.NONE else _BY_KUBERNETES.get(kubernetes_qos, QoSClass.NONE)


def pod_qos_raw(pod: Pod) -> QoSClass:
    """``qos_raw`` of a pod."""
    return qos_raw(pod.metadata.labels)


def pod_qos(pod: Pod) -> QoSClass:
    """``qos_with_default`` of a pod; the Kubernetes class is only computed when the label does not decide."""
    raw = qos_raw(pod.metadata.labels)
    return raw if raw is not QoSClass.NONE else _BY_KUBERNETES.get(kubernetes_qos(pod), QoSClass.NONE)


def _positive(resources: ResourceList) -> dict[str, int]:
    """cpu and memory of a ResourceList in milli, without zeros."""
    found = {}
    for name in (RESOURCE_CPU, RESOURCE_MEMORY):
        quantity = resources.get(name)
        if quantity is not None and (milli := parse_milli(quantity)) > 0:
            found[name] = milli
    return found


def kubernetes_qos(pod: Pod) -> str:
    """``status.qosClass`` if set, else computed from the spec as Kubernetes does.

    Pod-level cpu/memory resources decide alone when present; otherwise all containers and init containers count. Raises
    QuantityError for a malformed quantity.
    """
    if pod.status.qos_class:
        return pod.status.qos_class
    whole = pod.spec.resources
    if whole is not None and (whole.requests or whole.limits):
        groups = [(_positive(whole.requests), _positive(whole.limits))]
    else:
        groups = [
            (_positive(container.resources.requests), _positive(container.resources.limits))
            for containers in (pod.spec.containers, pod.spec.init_containers)
            for container in containers
        ]
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    guaranteed = True
    for wanted, capped in groups:
        for name, milli in wanted.items():
            requests[name] = requests.get(name, 0) + milli
        for name, milli in capped.items():
            limits[name] = limits.get(name, 0) + milli
        if len(capped) != 2:
            guaranteed = False
    if not requests and not limits:
        return KUBERNETES_BEST_EFFORT
    # A request left out defaults to its limit when the API server stores the pod; equal sums then mean Guaranteed.
    if guaranteed and all(requests.get(name) == limit for name, limit in limits.items()) and len(requests) == len(limits):
        return KUBERNETES_GUARANTEED
    return KUBERNETES_BURSTABLE
