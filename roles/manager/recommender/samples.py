"""Usage of containers out of what is measured: per container, or per pod and then shared out (MGR-REC-01). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from koord.api.objects import Container, Pod
from koord.api.quantity import milli_or, value_or
from koord.api.times import TimeError, parse_time

_OOM_KILLED = "OOMKilled"


class Sample(NamedTuple):
    """What a container used: cores and bytes, at seconds since the epoch; its CPU request in cores."""

    container: str
    replica: str
    time: float
    cpu: float
    memory: float
    cpu_request: float


class Kill(NamedTuple):
    """A container that ran out of memory; `request` is what it had in bytes: its limit, else its request."""

    container: str
    replica: str
    time: float
    request: float


def watched(pod: Pod) -> list[Container]:
    """Containers that run as long as the pod: main ones and sidecars."""
    return [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.is_sidecar)]


def request(container: Container, resource: str) -> float:
    """A request in cores or bytes; 0 without one, or with one that cannot be read."""
    text = container.resources.requests.get(resource)
    return milli_or(text) / 1000 if resource == "cpu" else float(value_or(text))


def had(container: Container) -> float:
    """Bytes that the container could use: its limit, or without one what it asked for."""
    return float(value_or(container.resources.limits.get("memory"))) or request(container, "memory")


def of_containers(pod: Pod, time: float, used: Iterable[tuple[str, float, float]]) -> Iterator[Sample]:
    """Samples of (container, cores, bytes); names that the pod does not have are passed over."""
    containers = {c.name: c for c in watched(pod)}
    for name, cpu, memory in used:
        container = containers.get(name)
        if container is not None:
            yield Sample(name, pod.metadata.uid, time, cpu, memory, request(container, "cpu"))


def of_pod(pod: Pod, time: float, cpu: float, memory: float) -> Iterator[Sample]:
    """Samples of a whole pod's usage, shared out in proportion to the requests; equally where none are made."""
    containers = watched(pod)
    cpu_shares, memory_shares = (_shares([request(c, resource) for c in containers]) for resource in ("cpu", "memory"))
    for container, cpu_share, memory_share in zip(containers, cpu_shares, memory_shares, strict=True):
        yield Sample(container.name, pod.metadata.uid, time, cpu * cpu_share, memory * memory_share, request(container, "cpu"))


def _shares(requests: list[float]) -> list[float]:
    total = sum(requests)
    return [amount / total for amount in requests] if total > 0 else [1 / len(requests)] * len(requests)


def kills(pod: Pod) -> Iterator[Kill]:
    """Ends for lack of memory that the pod's status tells of."""
    containers = {c.name: c for c in watched(pod)}
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        container = containers.get(status.name)
        for state in (status.last_state, status.state):
            ended = state.terminated
            if container is None or ended is None or ended.reason != _OOM_KILLED or not ended.finished_at:
                continue
            try:
                yield Kill(status.name, pod.metadata.uid, parse_time(ended.finished_at), had(container))
            except TimeError:
                continue
