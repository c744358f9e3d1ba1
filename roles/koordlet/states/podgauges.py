"""Gauges of containers' batch and mid requests and limits, rebuilt with every pod list (KLO-SI-02)."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.quantity import QuantityError, parse_value
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.model import PodState
from roles.koordlet.states.nodestate import EXTENDED_UNITS


def export_container_resources(metrics: Metrics, pods: Sequence[PodState]) -> None:
    """Requests carry the unit ``integer`` and limits ``byte`` whatever the resource, as consumers of these names expect."""
    metrics.container_requests.clear()
    metrics.container_limits.clear()
    for pod in pods:
        for container in pod.containers:
            if container.spec is None or container.status is None:
                continue
            labels = (pod.uid, pod.name, pod.namespace, container.id, container.name)
            resources = container.spec.resources
            for gauge, values, unit in (
                (metrics.container_requests, resources.requests, "integer"),
                (metrics.container_limits, resources.limits, "byte"),
            ):
                for name in EXTENDED_UNITS:
                    if name not in values:
                        continue
                    try:
                        gauge.set(parse_value(values[name]), name, unit, *labels)
                    except QuantityError:
                        continue
