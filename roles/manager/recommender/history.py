"""Usage from before the recommender looked: eight days out of Prometheus, an hour a sample."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import aiohttp
import orjson

from koord.api.objects import Recommendation
from roles.manager.recommender.policy import EXPIRES_AFTER

STEP = 3600
_TIMEOUT = aiohttp.ClientTimeout(total=60)
_CPU = "sum by (pod, container) (rate(container_cpu_usage_seconds_total{{{}}}[1h]))"
_MEMORY = "max by (pod, container) (max_over_time(container_memory_working_set_bytes{{{}}}[1h]))"
# How controllers name the pods that they make, old ones too.
_NAMES = {
    "Deployment": "{}-[a-z0-9]+-[a-z0-9]{{5}}",
    "StatefulSet": "{}-[0-9]+",
    "DaemonSet": "{}-[a-z0-9]{{5}}",
    "ReplicaSet": "{}-[a-z0-9]{{5}}",
    "ReplicationController": "{}-[a-z0-9]{{5}}",
    "Job": "{}-([0-9]{{1,7}}-)?[a-z0-9]{{5}}",  # with its index, if it has one
    "CronJob": "{}-[0-9]{{8}}-([0-9]+-)?[a-z0-9]{{5}}",  # with the minute that its Job was made for, since 1970
}


class HistoryError(Exception):
    """Prometheus did not give the history; the text says why."""


class Point(NamedTuple):
    """An hour of one container: cores (mean) and bytes (highest)."""

    pod: str
    container: str
    time: float
    cpu: float
    memory: float


def pods_pattern(recommendation: Recommendation, present: Iterable[str]) -> str:
    """A regular expression of the names of the target's pods: those of today, and of a workload's earlier ones."""
    names = sorted(re.escape(name).replace("\\-", "-") for name in present)
    workload = recommendation.spec.target.workload
    if recommendation.spec.target.type == "workload" and workload is not None and workload.kind in _NAMES:
        names.append(_NAMES[workload.kind].format(re.escape(workload.name).replace("\\-", "-")))
    return "|".join(names)


def _series(answer: Any) -> Iterator[tuple[str, str, float, float]]:
    """(pod, container, time, value) of a range query's answer. Raises HistoryError."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        raise HistoryError(str(answer.get("error") if isinstance(answer, dict) else "the answer is no object"))
    try:
        for series in answer["data"]["result"]:
            labels = series["metric"]
            for time, text in series["values"]:
                value = float(text)
                if math.isfinite(value) and value >= 0:
                    yield labels.get("pod", ""), labels.get("container", ""), float(time), value
    except (KeyError, TypeError, ValueError) as error:
        raise HistoryError(f"the answer has not the form of a range query's: {error!r}") from None


def points(cpu: Any, memory: Any) -> list[Point]:
    """Both answers put together, oldest first; an hour for which one of them is missing is left out. Raises HistoryError."""
    highest = {(pod, container, time): value for pod, container, time, value in _series(memory)}
    joined = [
        Point(pod, container, time, value, highest[pod, container, time])
        for pod, container, time, value in _series(cpu)
        if (pod, container, time) in highest
    ]
    return sorted(joined, key=lambda point: point.time)


async def fetch(address: str, namespace: str, pattern: str, now: float) -> list[Point]:
    """The history of the pods that match. Raises HistoryError."""
    # Both languages escape the backslash once more.
    chosen = pattern.replace("\\", "\\\\").replace('"', '\\"')
    matchers = f'namespace="{namespace}",pod=~"{chosen}",container!="",container!="POD"'
    window = {"start": str(int(now - EXPIRES_AFTER)), "end": str(int(now)), "step": str(STEP)}
    answers = []
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            for query in (_CPU, _MEMORY):
                data = {"query": query.format(matchers), **window}
                async with session.post(f"{address.rstrip('/')}/api/v1/query_range", data=data) as response:
                    answers.append(orjson.loads(await response.read()))
    except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
        raise HistoryError(f"{type(error).__name__}: {error}") from None
    return points(*answers)
