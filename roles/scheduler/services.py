"""The services API: what the scheduler and its plugins know, as JSON under `/apis/v1/` (SCH-FW-10, SCH-LA-10). 503 on a standby."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from koord.api import names
from koord.process.requests import Request, Response
from roles.scheduler.cluster.cluster import Cluster
from roles.scheduler.cluster.vocabulary import CPU, MEMORY
from roles.scheduler.framework.framework import Framework, plugins_of
from roles.scheduler.framework.interfaces import PageError
from roles.scheduler.framework.steps import Steps
from roles.scheduler.gate import Gate
from roles.scheduler.turns import Turns

_PREFIX = "/apis/v1"
_NOT_LEADING = "this scheduler is not the leader"

Answer = Callable[[dict[str, str]], Any]


def install(ops: Any, cluster: Cluster, frameworks: Mapping[str, Framework], leading: Callable[[], bool], gate: Gate) -> list[str]:
    """Register the routes on the HTTP server; returns their paths."""
    pages: dict[str, Answer] = {f"{_PREFIX}/nodes/{{name}}": lambda match: node_view(cluster, match["name"])}
    for plugin in plugins_of(frameworks):
        for endpoint in plugin.endpoints():
            # The first profile that has the plugin answers for it.
            pages.setdefault(f"{_PREFIX}/plugins/{plugin.name}/{endpoint.path}", endpoint.answer)
    paths = sorted(pages)
    pages[f"{_PREFIX}/__services__"] = lambda match: {"GET": paths}
    for path, answer in pages.items():
        ops.route("GET", path, _handler(answer, leading, gate))
    return paths


def _handler(answer: Answer, leading: Callable[[], bool], gate: Gate) -> Any:
    async def handle(request: Request) -> Response:
        if not leading():
            return _json({"message": _NOT_LEADING}, 503)
        await gate.passed()
        try:
            found = answer({**request.query, **request.match_info})
        except PageError as failure:
            return _json({"message": str(failure)}, 500)
        if found is None:
            return _json({"message": f"{request.path} is not known"}, 404)
        return _json(found, 200)

    return handle


def settled(answer: Callable[[], Steps[Any]], turns: Turns) -> Any:
    """A page about all of the scheduler's state, in slices, between which nobody else looks at that state or changes it."""

    async def handle(request: Request) -> Response:
        return _json(await turns.take(answer()), 200)

    return handle


def _json(content: Any, status: int) -> Response:
    return Response(body=orjson.dumps(content, default=str), status=status, content_type="application/json")


def node_view(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """A node as the scheduler counts it: amounts by resource in base units (milli-CPU, bytes). None for an unknown node."""
    slot = cluster.slot_of(name)
    if slot < 0:
        return None
    row = cluster.row(slot)
    resources = list(cluster.vocabulary.resources)[: len(cluster.free)]
    allocatable = {name: int(cluster.allocatable[index][slot]) for index, name in enumerate(resources)}
    remaining = {name: int(cluster.free[index][slot]) for index, name in enumerate(resources)}
    counts = {name for name in resources if allocatable[name] or remaining[name]}
    return {
        "node": name,
        "known": row.view is not None,
        "unschedulable": bool(cluster.unschedulable[slot]),
        "pods": sorted(pod.key for pod in row.pods.values() if not pod.reservation),
        "reservations": sorted(pod.reservation for pod in row.pods.values() if pod.reservation),
        "podsWithAffinity": sorted(
            pod.key for pod in row.pods.values() if pod.shape.affinity or pod.shape.anti_affinity or pod.shape.preferred_affinity
        ),
        "podsWithRequiredAntiAffinity": sorted(pod.key for pod in row.pods.values() if pod.shape.anti_affinity),
        "pvcRefCounts": dict(Counter(f"{pod.namespace}/{claim}" for pod in row.pods.values() for claim in pod.shape.claims)),
        "imageStates": dict(row.view.images) if row.view is not None else {},
        "nonZeroRequested": {
            name: int(cluster.allocatable[index][slot] - cluster.non_zero_free[index][slot])
            for index, name in ((CPU, names.RESOURCE_CPU), (MEMORY, names.RESOURCE_MEMORY))
        },
        "usedPorts": sorted({port for pod in row.pods.values() for port in pod.shape.ports}),
        "allocatable": {name: allocatable[name] for name in sorted(counts)},
        "requested": {name: allocatable[name] - remaining[name] for name in sorted(counts)},
        "remaining": {name: remaining[name] for name in sorted(counts)},
        "generation": cluster.changes.position,
    }
