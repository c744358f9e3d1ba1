"""metrics.k8s.io in the sandbox, asked by the real kubectl."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koord.api.kinds import CUSTOMRESOURCEDEFINITIONS, NODEMETRICS, NODES, PODMETRICS, PODS
from koord.apiserver.testing import running_server
from koord.kube.informers import InformerFactory
from roles.sandbox.resource_metrics import ResourceMetrics, crds
from tests.support import patience


def report(cpu: str, *pods: str) -> dict[str, Any]:
    entries = [{"namespace": "default", "name": name, "podUsage": {"resources": {"cpu": "250m", "memory": "64Mi"}}} for name in pods]
    usage = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "2Gi"}}}
    return {"status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": usage, "podsMetric": entries}}


@pytest.mark.kubectl
def test_kubectl_top_shows_what_is_reported() -> None:
    async def kubectl(config: str, *words: str) -> list[list[str]]:
        asked = await asyncio.create_subprocess_exec("kubectl", f"--kubeconfig={config}", *words, stdout=-1, stderr=-1)
        out, told = await asyncio.wait_for(asked.communicate(), patience.seconds(60))
        assert asked.returncode == 0, told.decode()
        return [line.split() for line in out.decode().splitlines()[1:]]

    async def scenario() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            for crd in crds():
                await client.create(CUSTOMRESOURCEDEFINITIONS, crd)
            amounts = {"cpu": "8", "memory": "16Gi"}
            await client.create(NODES, {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": amounts}})
            await client.patch(NODES, "n1", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
            for name in ("web", "job"):
                pod = {"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}
                await client.create(PODS, pod, "default")
            await client.create(NODEMETRICS, {"apiVersion": NODEMETRICS.api_version, "kind": NODEMETRICS.kind, "metadata": {"name": "n1"}})
            await client.patch(NODEMETRICS, "n1", report("1500m", "web", "job"), subresource="status")
            informers = InformerFactory(client)
            reports = informers.informer(NODEMETRICS)
            informers.start()
            await informers.wait_synced()
            published = ResourceMetrics(client, reports)
            await published.look()
            config = str(server.kubeconfig_path)
            assert await kubectl(config, "top", "nodes") == [["n1", "1500m", "18%", "2048Mi", "12%"]]
            assert [row[0] for row in await kubectl(config, "get", "nodemetrics", "-o", "custom-columns=KIND:.kind")] == ["NodeMetric"]
            assert sorted(await kubectl(config, "top", "pods", "-n", "default")) == [["job", "250m", "64Mi"], ["web", "250m", "64Mi"]]
            await client.patch(NODEMETRICS, "n1", report("2", "web"), subresource="status")
            async with asyncio.timeout(patience.seconds(30)):
                while len((reports.get("n1") or {})["status"]["podsMetric"]) != 1:
                    await asyncio.sleep(0.02)
            await published.look()
            assert await kubectl(config, "top", "nodes") == [["n1", "2000m", "25%", "2048Mi", "12%"]]
            assert [item["metadata"]["name"] for item in (await client.list(PODMETRICS, "default")).items] == ["web"]
            await informers.stop()

    asyncio.run(scenario())
