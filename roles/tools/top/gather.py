"""What `koord top` looks at, read from the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from koord.api.kinds import NODEMETRICS, NODES, NODESLOS, PODS, Kind
from koord.api.objects import Node, NodeMetric, NodeSLO, Pod, convert
from koord.api.objects_meta import Object
from koord.kube.client import Client
from koord.kube.errors import NotFound
from roles.tools.top.rows import Row, row

T = TypeVar("T", bound=Object)


async def gather(client: Client, names: frozenset[str], selector: str, now: float) -> list[Row]:
    """A row for each node, of all or of those named. Raises ApiError."""
    asked = await asyncio.gather(
        client.list(NODES, label_selector=selector),
        _named(client, NODEMETRICS, NodeMetric),
        _named(client, NODESLOS, NodeSLO),
        # Only running pods hold what they ask for.
        client.list(PODS, field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"),
        return_exceptions=True,  # none goes on when the connections are closed
    )
    nodes, metrics, slos, pods = (_answer(one) for one in asked)
    placed: dict[str, list[Pod]] = {}
    for pod in _readable(pods.items, Pod):
        placed.setdefault(pod.spec.node_name, []).append(pod)
    return [
        row(node, metrics.get(name), slos.get(name), placed.get(name, ()), now)
        for node in _readable(nodes.items, Node)
        if (name := node.metadata.name) in names or not names
    ]


def _answer(found: Any) -> Any:
    if isinstance(found, BaseException):
        raise found
    return found


def _readable(objects: Iterable[dict[str, Any]], projection: type[T]) -> Iterator[T]:
    """The objects that can be read: one that cannot must not take the others from sight."""
    for obj in objects:
        with suppress(msgspec.ValidationError):
            yield convert(obj, projection)


async def _named(client: Client, kind: Kind, projection: type[T]) -> Mapping[str, T]:
    """Objects by name; none where the kind is not served."""
    try:
        found: list[dict[str, Any]] = (await client.list(kind)).items
    except NotFound:
        return {}
    return {one.metadata.name: one for one in _readable(found, projection)}
