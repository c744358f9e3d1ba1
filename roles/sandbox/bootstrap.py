"""What an empty API server needs before the roles start: namespaces, priority classes, the profile and the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from koord.api.kinds import CLUSTERCOLOCATIONPROFILES, CONFIGMAPS, NAMESPACES, PRIORITYCLASSES, Kind
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists
from roles.sandbox import objects
from roles.sandbox.process_kubelet.node import LEASE_NAMESPACE
from roles.sandbox.scenario import Scenario


async def ensure(client: Client, kind: Kind, obj: dict[str, Any], namespace: str | None = None) -> None:
    """Create an object unless it is there already. Raises ApiError."""
    with suppress(AlreadyExists):
        await client.create(kind, obj, namespace)


async def ground(client: Client, namespaces: Iterable[tuple[str, dict[str, str]]]) -> None:
    """Create what every cluster of koord has: its namespaces with their labels, the priority classes, the profile. Raises ApiError."""
    for name, labels in namespaces:
        await ensure(client, NAMESPACES, objects.namespace(name, labels))
    for name, value in objects.PRIORITY_CLASSES:
        await ensure(client, PRIORITYCLASSES, objects.priority_class(name, value))
    await ensure(client, CLUSTERCOLOCATIONPROFILES, objects.profile())


async def bootstrap(client: Client, scenario: Scenario, *, strategies: bool) -> None:
    """Create everything that the roles and the demo count on. Raises ApiError."""
    namespaces: tuple[tuple[str, dict[str, str]], ...] = (
        ("default", {}),
        ("kube-system", {}),
        (LEASE_NAMESPACE, {}),
        (objects.SYSTEM_NAMESPACE, {"control-plane": "koordinator"}),
        (scenario.service.namespace, {}),
        (scenario.batch.namespace, {objects.COLOCATION_LABEL: "true"}),
        (scenario.batch.unmanaged_namespace, {}),
    )
    await ground(client, namespaces)
    await configure(client, scenario, strategies=strategies)


async def configure(client: Client, scenario: Scenario, *, strategies: bool) -> None:
    """Write slo-controller-config, with the strategies on or off. Raises ApiError."""
    wanted = objects.slo_config(scenario.config_data(strategies=strategies))
    try:
        await client.create(CONFIGMAPS, wanted, objects.SYSTEM_NAMESPACE)
    except AlreadyExists:
        await client.patch(CONFIGMAPS, objects.SLO_CONFIG, {"data": wanted["data"]}, objects.SYSTEM_NAMESPACE)
