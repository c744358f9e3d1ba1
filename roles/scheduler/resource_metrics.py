"""`/metrics/resources`: what every running pod requests and may use, under kube-scheduler's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from koord import seams
from koord.api import names
from koord.process.metrics import Collected, expose
from koord.process.requests import Request, Response
from roles.scheduler.cluster.podinfo import PodInfo

_LABELS = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")
_BYTES = (names.RESOURCE_MEMORY, names.RESOURCE_EPHEMERAL_STORAGE)


def pod_resources(pods: Iterable[PodInfo]) -> Iterator[Metric]:
    """One sample a pod and resource: cores, bytes, or whole numbers."""
    request = GaugeMetricFamily("kube_pod_resource_request", "Resources requested by pods that have not ended.", labels=_LABELS)
    limit = GaugeMetricFamily("kube_pod_resource_limit", "Resources that pods that have not ended may use.", labels=_LABELS)
    for pod in pods:
        spec = pod.pod.spec
        priority = "" if spec.priority is None else str(spec.priority)
        about = (pod.namespace, pod.name, pod.node_name, spec.scheduler_name, priority)
        for family, amounts in ((request, pod.shape.amounts), (limit, pod.shape.limits)):
            for resource, amount in amounts.items():
                if amount:
                    unit, value = _in_unit(resource, amount)
                    family.add_metric((*about, resource, unit), value)
    yield request
    yield limit


def _in_unit(resource: str, amount: int) -> tuple[str, float]:
    if resource == names.RESOURCE_CPU:
        return "cores", amount / 1000
    if resource in _BYTES or resource.startswith(names.RESOURCE_HUGEPAGES_PREFIX):
        return "bytes", float(amount)
    return "integer", float(amount)


def resource_page(pods: Callable[[], Iterable[PodInfo]]) -> Any:
    """A handler that answers with the samples of these pods; there are none on a standby."""

    async def answer(request: Request) -> Response:
        body, kind = await seams.to_thread(_page, list(pods()), request.headers.get("Accept", ""))
        return Response(body=body, headers={"Content-Type": kind})

    return answer


def _page(pods: list[PodInfo], accept: str) -> tuple[bytes, str]:
    """Seconds of work for a hundred thousand pods, which change no more once they are parsed: nothing for the event loop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(lambda: pod_resources(pods)))  # type: ignore[arg-type]
    return expose(registry, accept)
