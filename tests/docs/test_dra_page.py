"""The example of docs/dra.md does what the page says, on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
import yaml

from koord.api.kinds import DEVICECLASSES, DEVICES, DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES
from koord.apiserver.testing import running_server
from roles.sandbox.scenario import Scenario
from tests.roles.manager.conftest import BASE, Bed
from tests.roles.scheduler.conftest import live, running_app
from tests.support.claims import results
from tests.support.docs import ROOT, fences

KINDS = {
    kind.kind: kind for kind in (DEVICECLASSES, DEVICES, DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES)
}
BLOCKS = tuple(fences((ROOT / "docs" / "dra.md").read_text(encoding="utf-8")))
YAML = tuple(list(yaml.safe_load_all(text)) for kind, text in BLOCKS if kind == "yaml")


@pytest.mark.feature("SCH-DRA-01")
@pytest.mark.feature("SCH-DRA-15")
def test_the_example_allocates_as_the_page_says() -> None:
    objects, (rule,), (config,) = YAML[:3]
    allocation = next(text for kind, text in BLOCKS if kind == "json")

    async def run() -> None:
        async with live(config) as cluster:
            await cluster.node("node-0")
            await cluster.node("node-1")
            for item in (rule, *objects):
                await cluster.client.create(KINDS[item["kind"]], item, item["metadata"].get("namespace"))
            assert "cannot allocate all claims" in (await cluster.refused("train"))["message"]
            await cluster.client.delete(DEVICETAINTRULES, rule["metadata"]["name"])
            assert await cluster.bound("train") == "node-0"
            name = (await cluster.get("train"))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
            claim = await cluster.client.get(RESOURCECLAIMS, name, "default")
            said = json.loads(allocation)
            stamp = claim["status"]["allocation"].pop("allocationTimestamp")
            assert len(stamp) == len(said.pop("allocationTimestamp"))
            assert claim["status"]["allocation"] == said
            second = {**objects[-1], "metadata": {"name": "second", "namespace": "default"}}
            await cluster.client.create(PODS, second, "default")
            assert "cannot allocate all claims" in (await cluster.refused("second"))["message"]

    asyncio.run(run())


@pytest.mark.feature("SCH-DRA-20")
@pytest.mark.feature("SCH-DRA-21")
def test_the_devices_of_a_node_are_published_and_claimed_as_the_page_says(tmp_path: Path) -> None:
    (settings,), objects = YAML[3:]
    gates = Scenario.model_validate(settings).manager.feature_gates

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(running_server(crds=True))
            client = await stack.enter_async_context(server.client())
            bed = Bed(server, client, tmp_path, stack)
            await bed.create(*BASE)
            cluster = await stack.enter_async_context(running_app(client, server.url))
            await cluster.node("node-0")
            await cluster.node("node-1")
            await bed.start(gates=gates)
            for item in objects:
                await client.create(KINDS[item["kind"]], item, item["metadata"].get("namespace"))
            assert await cluster.bound("train-near") == "node-0"
            name = (await cluster.get("train-near"))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
            assert results(await client.get(RESOURCECLAIMS, name, "default")) == ["gpu=node-0/gpu-1", "nic=node-0/rdma-0"]

    asyncio.run(run())
