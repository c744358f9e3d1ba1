"""Node locks against an API server that others write to (SCH-DEV-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.kinds import NODES, PODS
from koord.api.times import format_time
from koord.apiserver.testing import running_server
from koord.kube.client import Client
from roles.scheduler.plugins.device_share.locks import EXPIRES_AFTER, acquire, release

KEY, NOW, MINE = "hami.io/mutex.lock", 1_800_000_000.0, ("default", "mine")


async def annotation(client: Client) -> str | None:
    node = await client.get(NODES, "n")
    found: str | None = (node["metadata"].get("annotations") or {}).get(KEY)
    return found


async def mark(client: Client, text: str | None) -> None:
    await client.patch(NODES, "n", {"metadata": {"annotations": {KEY: text}}})


def with_node(story: Callable[[Client], Any]) -> None:
    async def run() -> None:
        async with running_server() as server, server.client() as client:
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
            await story(client)

    asyncio.run(run())


@pytest.mark.feature("SCH-DEV-15")
def test_who_holds_a_lock_and_for_how_long() -> None:
    async def story(client: Client) -> None:
        assert await acquire(client, "n", KEY, MINE, NOW) == ""
        assert await annotation(client) == f"{format_time(NOW)},default,mine"
        assert await acquire(client, "n", KEY, MINE, NOW + 1) == ""  # one's own is renewed
        other = {"name": "other"}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": other, "spec": spec}, "default")
        await mark(client, f"{format_time(NOW)},default,other")
        assert "is locked by pod default/other" in await acquire(client, "n", KEY, MINE, NOW + EXPIRES_AFTER - 1)
        assert await acquire(client, "n", KEY, MINE, NOW + EXPIRES_AFTER) == ""
        for text in ("yesterday,default,other", "a lock", f"{format_time(NOW)},default,nobody"):
            await mark(client, text)
            assert await acquire(client, "n", KEY, MINE, NOW) == ""

    with_node(story)


@pytest.mark.feature("SCH-DEV-15")
def test_only_ones_own_lock_is_taken_off() -> None:
    async def story(client: Client) -> None:
        await mark(client, f"{format_time(NOW)},default,other")
        await release(client, "n", KEY, MINE)
        assert await annotation(client) is not None
        await mark(client, f"{format_time(NOW)},default,mine")
        await release(client, "n", KEY, MINE)
        assert await annotation(client) is None
        await release(client, "gone", KEY, MINE)  # no node, no lock: nothing to complain of

    with_node(story)


@pytest.mark.feature("SCH-DEV-15")
def test_a_node_that_changes_meanwhile_is_looked_at_again() -> None:
    class Busy:
        """A client before whose first write somebody else locks the node."""

        def __init__(self, client: Client) -> None:
            self.client, self.writes = client, 0

        async def get(self, *args: Any) -> Any:
            return await self.client.get(*args)

        async def patch(self, *args: Any) -> Any:
            self.writes += 1
            if self.writes == 1:
                await mark(self.client, f"{format_time(NOW)},kube-system,busy")
            return await self.client.patch(*args)

    async def story(client: Client) -> None:
        busy = Busy(client)
        assert await acquire(busy, "n", KEY, MINE, NOW) == ""  # that pod does not exist
        assert busy.writes == 2
        assert await annotation(client) == f"{format_time(NOW)},default,mine"

    with_node(story)
