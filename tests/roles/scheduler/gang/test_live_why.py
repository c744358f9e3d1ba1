"""`koord why`, asked about gangs and quotas of a running scheduler."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from click.testing import CliRunner

from koord.api.kinds import ELASTICQUOTAS
from koord.cli import main
from tests.support import patience

from .conftest import profile
from .test_live_topology import MUST, gather, racks, topology


async def why(g: Any, said: str, *args: str) -> str:
    """What the command prints once it says that: what came while its quota was not known yet is tried again."""
    text = ""
    for _ in patience.tries(200):
        result = await asyncio.to_thread(CliRunner().invoke, main, ["why", *args, "--endpoint", g.live.ops.url], prog_name="koord")
        text = re.sub(r" +", " ", result.output)
        if result.exit_code == 0 and re.search(said, text):
            return text
        await asyncio.sleep(0.02)
    raise AssertionError(f"{said!r} was never said: {text}")


@pytest.mark.feature("SCH-GANG-10")
@pytest.mark.feature("SCH-EQ-07")
@pytest.mark.feature("SCH-NT-02")
def test_why_a_gang_waits_and_which_quota_says_no(gangs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def run() -> None:
        given = profile("ElasticQuota", awareNetworkTopology=True)
        given["plugins"]["reserve"]["enabled"].append({"name": "ElasticQuota"})
        async with gangs(profiles=[given], options={"network_topology": True}) as g:
            await racks(g, a=("r1", "4"), b=("r1", "4"), c=("r2", "4"))
            await topology(g)
            prefix = "quota.scheduling.koordinator.sh/"
            for name, parent in (("company", ""), ("search", "company")):
                labels = {prefix + "is-parent": str(not parent).lower(), **({prefix + "parent": parent} if parent else {})}
                body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, "metadata": {"name": name, "labels": labels}}
                await g.client.create(ELASTICQUOTAS, {**body, "spec": {"max": {"cpu": "6"}, "min": {"cpu": "2"}}}, "default")
            cache = g.live.app.engine.frameworks["koord-scheduler"].plugins["ElasticQuota"].cache
            while cache.quota("search") is None:
                await asyncio.sleep(0.02)
            # More than its quota: the chain from the root, for the member and for its gang.
            await g.group("greedy", 4)
            for number in range(4):
                await g.member(f"g{number}", "greedy", cpu="2", labels={prefix + "name": "search"})
            text = await why(g, "members with a node 3", "podgroup", "default/greedy")
            missing = re.search(r"first missing member (default/g\d)", text)
            assert missing is not None
            for asked in (("podgroup", "default/greedy"), ("pod", missing.group(1))):
                text = await why(g, "search cpu 2 2 6 6 2 6", *asked)  # short of 2: the pod asks for 2, 6 of 6 are used
                assert re.findall(r"(\S+) cpu 2 2 6 6 2 6", text) == ["company", "search"]
            # More than any rack takes: what each takes.
            await g.group("wide", 9, annotations=gather(MUST))
            for number in range(9):
                await g.member(f"w{number}", "wide", cpu="1")
            text = await why(g, "best achievable 8", "podgroup", "-n", "default", "wide")
            await g.said("w0", "no place in the network takes 9 pods")
            assert re.search(r"short: r1 1 \S* ?takes 8 of 9 together", text)
            assert re.search(r"short: r2 5 \S* ?takes 4 of 9 together", text)

    asyncio.run(run())
