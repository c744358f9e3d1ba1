"""The example of docs/dra.md does what the page says, on the embedded API server."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml

from koord.api.kinds import DEVICECLASSES, DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES
from tests.roles.scheduler.conftest import live
from tests.support.docs import ROOT, fences

KINDS = {kind.kind: kind for kind in (DEVICECLASSES, DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES)}
BLOCKS = tuple(fences((ROOT / "docs" / "dra.md").read_text(encoding="utf-8")))


@pytest.mark.feature("SCH-DRA-01")
@pytest.mark.feature("SCH-DRA-15")
def test_the_example_allocates_as_the_page_says() -> None:
    objects, (rule,), (config,) = (list(yaml.safe_load_all(text)) for kind, text in BLOCKS if kind == "yaml")
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
