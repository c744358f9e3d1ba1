"""The example of docs/dra.md does what the page says, on the embedded API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from koord.api.kinds import DEVICECLASSES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES
from tests.roles.scheduler.conftest import live
from tests.support.docs import ROOT, fences

KINDS = {kind.kind: kind for kind in (DEVICECLASSES, PODS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, RESOURCESLICES)}


@pytest.mark.feature("SCH-DRA-01")
def test_the_example_allocates_as_the_page_says() -> None:
    blocks = dict(fences((ROOT / "docs" / "dra.md").read_text(encoding="utf-8")))
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(blocks["yaml"]))

    async def run() -> None:
        async with live() as cluster:
            await cluster.node("node-0")
            await cluster.node("node-1")
            for item in objects:
                await cluster.client.create(KINDS[item["kind"]], item, item["metadata"].get("namespace"))
            assert await cluster.bound("train") == "node-0"
            name = (await cluster.get("train"))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
            claim = await cluster.client.get(RESOURCECLAIMS, name, "default")
            said = json.loads(blocks["json"])
            stamp = claim["status"]["allocation"].pop("allocationTimestamp")
            assert len(stamp) == len(said.pop("allocationTimestamp"))
            assert claim["status"]["allocation"] == said
            second = {**objects[-1], "metadata": {"name": "second", "namespace": "default"}}
            await cluster.client.create(PODS, second, "default")
            assert "cannot allocate all claims" in (await cluster.refused("second"))["message"]

    asyncio.run(run())
