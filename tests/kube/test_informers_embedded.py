"""Informers on the embedded API server: real kinds, selections, custom resources, a server that goes and comes back empty."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from koord.api.kinds import NODEMETRICS, NODES, PODS
from koord.api.objects import Node, NodeMetric, Pod
from koord.apiserver import manifests
from koord.apiserver.config import ServerConfig
from koord.apiserver.core import seed
from koord.apiserver.rest.context import Options
from koord.apiserver.rest.write import create
from koord.apiserver.server import ApiServer
from koord.apiserver.testing import running_server
from koord.kube import reflector
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.informers import InformerFactory
from tests.support import patience

CRDS = Path(__file__).resolve().parents[2] / "configs" / "crds"


def pod(name: str, **labels: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_FIRST", 0.02)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT", 0.1)
    monkeypatch.setattr(reflector, "PAGE", 7)


def test_the_store_follows_the_server(eventually: Any) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            await client.create(NODES, node("n1"))
            for number in range(20):
                await client.create(PODS, pod(f"p{number}", tier="a" if number % 2 else "b"), "default")
            factory = InformerFactory(client)
            everything = factory.informer(PODS, Pod)
            some = factory.informer(PODS, Pod, namespace="default", label_selector="tier=a")
            bound = factory.informer(PODS, Pod, field_selector="spec.nodeName=n1")
            nodes = factory.informer(NODES, Node)
            everything.index("node", lambda obj: obj.spec.node_name or None)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(10))
            assert (len(everything), len(some), len(bound), len(nodes)) == (20, 10, 0, 1)
            await client.bind("default", "p1", "n1")
            await client.patch(PODS, "p2", {"metadata": {"labels": {"tier": "a"}}}, "default")
            await client.delete(PODS, "p3", "default", grace_period_seconds=0)
            await eventually(lambda: [item.key for item in bound.list()] == ["default/p1"])
            await eventually(lambda: "default/p3" not in everything and "default/p3" not in some and "default/p2" in some)
            await eventually(lambda: [item.key for item in everything.by_index("node", "n1")] == ["default/p1"])
            listed = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in (await client.list(PODS)).items}
            await eventually(lambda: {item.metadata.name: item.metadata.resource_version for item in everything.list()} == listed)
            assert [row["lists"] for row in factory.status()] == [1, 1, 1, 1]
            await factory.stop()

    asyncio.run(main())


def test_a_kind_that_is_installed_later(eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "MISSING_KIND_PERIOD", 0.05)

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            factory = InformerFactory(client)
            metrics = factory.informer(NODEMETRICS, NodeMetric, optional=True)
            factory.start()
            await asyncio.wait_for(factory.wait_synced(), patience.seconds(5))
            assert len(metrics) == 0
            await manifests.install(server.core, manifests.read(CRDS))
            body = {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}, "spec": {}}
            await client.create(NODEMETRICS, body)
            await eventually(lambda: "n1" in metrics)
            await factory.stop()

    asyncio.run(main())


def test_a_server_that_comes_back_empty(eventually: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> None:
        async with Client(ClientConfig(f"http://127.0.0.1:{port}")) as client:
            factory = InformerFactory(client)
            nodes = factory.informer(NODES, Node)
            told: list[str] = []
            nodes.add_handler(lambda obj: told.append(f"+{obj.metadata.name}"), on_delete=lambda obj: told.append(f"-{obj.metadata.name}"))
            factory.start()
            async with running_server(port=port):
                for number in range(5):
                    await client.create(NODES, node(f"old{number}"))
                await eventually(lambda: len(nodes) == 5)
            await asyncio.sleep(0.2)
            assert len(nodes) == 5  # the last known picture stays while nobody answers
            async with running_server(port=port):
                await client.create(NODES, node("new"))
                await eventually(lambda: [item.metadata.name for item in nodes.list()] == ["new"], 20)
            assert sorted(told) == sorted([*(f"+old{n}" for n in range(5)), *(f"-old{n}" for n in range(5)), "+new"])
            await factory.stop()

    asyncio.run(main())


@pytest.mark.parametrize("history", [True, False], ids=["with its history", "restarted since"])
@pytest.mark.parametrize("same", [False, True], ids=["other names", "the same names"])
def test_a_server_that_comes_back_as_another_one_and_ahead(eventually: Any, tmp_path: Path, same: bool, history: bool) -> None:
    """It is past the version that we had seen before we ask: numbers alone do not betray it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> None:
        config = ServerConfig(data_dir=tmp_path)
        another = ApiServer(None if history else config)
        seed(another.core)
        resource = another.core.resources.builtin("", "nodes")
        for name in (*(f"old{number}" if same else f"new{number}" for number in range(3)), *(f"later{number}" for number in range(9))):
            await create(another.core, resource, "", node(name), Options())
        if not history:
            await another.stop()
            another = ApiServer(config)
        async with Client(ClientConfig(f"http://127.0.0.1:{port}")) as client:
            factory = InformerFactory(client)
            nodes = factory.informer(NODES, Node)
            factory.start()
            async with running_server(port=port):
                for number in range(3):
                    await client.create(NODES, node(f"old{number}"))
                await eventually(lambda: len(nodes) == 3)
            await another.start(port=port)
            try:
                uids = {item["metadata"]["uid"] for item in (await client.list(NODES)).items}
                await eventually(lambda: {item.metadata.uid for item in nodes.list()} == uids, 10)
            finally:
                await factory.stop()
                await another.stop()

    asyncio.run(main())
