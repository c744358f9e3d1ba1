"""Reviews, quota writes, the lease and bulk work do not wait for one another; what is not there is asked for once."""

import asyncio

import pytest

from koord.api.kinds import NAMESPACES, PRIORITYCLASSES
from koord.kube.config import ClientConfig
from koord.kube.errors import NotFound, Unreachable
from roles.manager.clients import Clients
from roles.manager.options import Options
from roles.manager.webhooks.live import BURST, FRESH, STALE, LiveReads


class ApiServer:
    """Knows `objects`; answers when `open`."""

    def __init__(self, **objects):
        self.objects, self.asked = objects, []
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, kind, name, namespace=None):
        self.asked.append(name)
        await self.open.wait()
        found = self.objects.get(name) or NotFound(404, "NotFound", name)
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_one_read_a_key_and_second_shared_by_all_who_ask():
    async def main():
        server, clock = ApiServer(there={"metadata": {"name": "there"}}), Clock()
        live = LiveReads(server, clock)
        server.open.clear()
        waiting = [asyncio.create_task(live.get(PRIORITYCLASSES, "missing")) for _ in range(50)]
        gone = asyncio.create_task(live.get(PRIORITYCLASSES, "missing"))
        await asyncio.sleep(0)
        gone.cancel()  # the others still get their answer
        server.open.set()
        assert await asyncio.gather(*waiting) == [None] * 50
        assert server.asked == ["missing"]
        assert [await live.get(PRIORITYCLASSES, "missing") for _ in range(100)] == [None] * 100
        assert server.asked == ["missing"]
        # older than a second: the old answer at once, a new one in the background
        clock.now += FRESH
        server.open.clear()
        server.objects["missing"] = {"metadata": {"name": "missing"}}
        assert [await live.get(PRIORITYCLASSES, "missing") for _ in range(100)] == [None] * 100
        await asyncio.sleep(0)
        assert server.asked == ["missing"] * 2
        server.open.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert await live.get(PRIORITYCLASSES, "missing") == {"metadata": {"name": "missing"}}
        # much older: waited for
        clock.now += STALE
        del server.objects["missing"]
        assert await live.get(PRIORITYCLASSES, "missing") is None
        assert await live.get(NAMESPACES, "there") == {"metadata": {"name": "there"}}

    asyncio.run(main())


def test_made_up_names_are_not_all_asked_for():
    async def main():
        server = ApiServer()
        live = LiveReads(server, Clock())
        assert [await live.get(NAMESPACES, f"made-up-{number}") for number in range(1000)] == [None] * 1000
        assert len(server.asked) == BURST

    asyncio.run(main())


def test_an_api_server_that_cannot_tell_is_an_error_that_is_not_asked_for_again_at_once():
    async def main():
        server, clock = ApiServer(odd=Unreachable("refused")), Clock()
        live = LiveReads(server, clock)
        for _ in range(3):
            with pytest.raises(Unreachable, match="refused"):
                await live.get(PRIORITYCLASSES, "odd")
        assert server.asked == ["odd"]

    asyncio.run(main())


@pytest.mark.feature("MGR-PROC-01")
def test_only_bulk_work_is_paced():
    async def main():
        clients = Clients.of(ClientConfig("http://127.0.0.1:1"), Options(qps=1.0, burst=1))
        try:
            transports = {id(client.transport) for client in (clients.watches, clients.reviews, clients.quotas, clients.bulk)}
            assert len(transports) == 4
            await clients.bulk.transport.limiter.acquire()
            stuck = asyncio.create_task(clients.bulk.transport.limiter.acquire())
            for client in (clients.watches, clients.reviews, clients.quotas):
                for _ in range(1000):
                    assert await client.transport.limiter.acquire() == 0.0
            assert not stuck.done()
            stuck.cancel()
        finally:
            await clients.close()

    asyncio.run(main())


@pytest.mark.feature("MGR-POD-M-01")
def test_a_profile_that_names_a_missing_class_costs_no_read_a_pod(bed, make):
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "p"},
        "spec": {"selector": {"matchLabels": {"app": "etl"}}, "qosClass": "BE", "priorityClassName": "no-such"},
    }

    async def test(bed):
        await bed.create(profile)
        manager = await bed.start(qps=1.0, burst=1)

        async def refused():
            answer = await manager.review("/mutate-pod", make.pod("w", labels={"app": "etl"}))
            return not answer["allowed"] and "does not exist" in answer["status"]["message"]

        await bed.until(refused)
        asked = []
        reviews = manager.app.clients.reviews
        get = reviews.get

        async def count(kind, name, namespace=None, **more):
            asked.append(name)
            return await get(kind, name, namespace, **more)

        reviews.get = count
        for _ in range(40):
            assert await refused()
        assert asked.count("no-such") <= 5

    bed(test)
