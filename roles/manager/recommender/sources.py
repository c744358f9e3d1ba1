"""Where usage comes from: metrics.k8s.io per container, NodeMetrics per pod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import orjson

from koord import seams
from koord.api.objects import NodeMetric, Pod, ResourceMap
from koord.api.quantity import QuantityError, parse_milli, parse_value
from koord.api.times import TimeError, parse_time
from koord.kube.client import Client
from koord.kube.errors import ApiError
from koord.kube.informers import Informer
from roles.manager.noderesource.reports import PodUsages
from roles.manager.recommender import samples
from roles.manager.recommender.samples import Sample

log = logging.getLogger("koord.manager")

_RETRY_AFTER = 600.0  # a cluster without the resource metrics API is asked again after ten minutes
_AGAIN = 60.0  # one whose metrics server fails, or is being restarted, after a minute
_FRESH = 10.0  # one list of a namespace serves all Recommendations that look within so many seconds


class MetricsAPI:
    """The resource metrics API, if the cluster serves it."""

    def __init__(self, client: Client, clock: Callable[[], float] = seams.monotonic) -> None:
        self._client, self._clock = client, clock
        self._absent_until = 0.0
        self._listed: dict[str, tuple[float, dict[str, Any]]] = {}

    async def of_namespace(self, namespace: str) -> dict[str, Any] | None:
        """PodMetrics by pod name; None where the API is not served or does not answer."""
        now = self._clock()
        if now < self._absent_until:
            return None
        kept = self._listed.get(namespace)
        if kept is not None and now - kept[0] < _FRESH:
            return kept[1]
        status = 0
        try:
            status, body = await self._client.raw("GET", f"/apis/metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/pods")
            items = (orjson.loads(body).get("items") or []) if status == 200 else None
        except (ApiError, orjson.JSONDecodeError, AttributeError):
            items = None
        if items is None:
            self._absent_until = now + (_RETRY_AFTER if status in (403, 404) else _AGAIN)
            return None
        found = {item["metadata"]["name"]: item for item in items if isinstance(item, dict) and item.get("metadata", {}).get("name")}
        self._listed = {name: kept for name, kept in self._listed.items() if now - kept[0] < _FRESH}
        self._listed[namespace] = (now, found)
        return found


def of_pod_metrics(pod: Pod, item: dict[str, Any]) -> list[Sample]:
    """Samples out of a PodMetrics; empty when it cannot be read."""
    try:
        used = [(c["name"], _cores(c["usage"].get("cpu", 0)), float(parse_value(c["usage"].get("memory", 0)))) for c in item["containers"]]
        return list(samples.of_containers(pod, parse_time(item["timestamp"]), used))
    except (QuantityError, TimeError, KeyError, TypeError, AttributeError) as error:
        log.warning("PodMetrics %s/%s: %s; it is left out", pod.metadata.namespace, pod.metadata.name, error)
        return []


def _cores(text: Any) -> float:
    """CPU of a usage, which may be given in nano-cores."""
    if isinstance(text, str) and text.endswith("n") and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 30:
        return int(text[:-1]) / 1e9
    return parse_milli(text) / 1000


class NodeMetrics:
    """What the agents report, by pod."""

    def __init__(self, informer: Informer[NodeMetric]) -> None:
        self._informer = informer

    def of_pod(self, pod: Pod) -> Iterator[Sample]:
        """Samples of the pod's containers; none when its node has not reported it."""
        metric = self._informer.get(pod.spec.node_name) if pod.spec.node_name else None
        if metric is None or not metric.status.update_time:
            return
        meta, entries = pod.metadata, metric.status.pods_metric
        if isinstance(entries, PodUsages):
            found = entries.of(meta.namespace, meta.name)
            if found is not None:
                try:
                    yield from samples.of_pod(pod, parse_time(metric.status.update_time), found[0] / 1000, float(found[1]))
                except TimeError as error:
                    log.warning("NodeMetric %s: updateTime: %s; it is left out", metric.metadata.name, error)
            return
        for entry in entries:
            if entry.name == meta.name and entry.namespace == meta.namespace:
                try:
                    cpu, memory = _amounts(entry.pod_usage)
                    yield from samples.of_pod(pod, parse_time(metric.status.update_time), cpu, memory)
                except (QuantityError, TimeError) as error:
                    log.warning("NodeMetric %s: pod %s/%s: %s; it is left out", metric.metadata.name, meta.namespace, meta.name, error)
                return


def _amounts(usage: ResourceMap) -> tuple[float, float]:
    return parse_milli(usage.resources.get("cpu", 0)) / 1000, float(parse_value(usage.resources.get("memory", 0)))
