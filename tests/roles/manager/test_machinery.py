"""The work queue, retried writes, and a zone write that somebody else gets in between."""

import asyncio

import pytest

from koord.api.kinds import NODERESOURCETOPOLOGIES
from koord.kube.errors import AlreadyExists, Conflict, NotFound, TooManyRequests
from koord.kube.workqueue import MAX_DELAY, WorkQueue
from roles.manager.controllers.ranked import RankedQueue
from roles.manager.controllers.writer import NotLeading, Writer
from roles.manager.options import check_list, selected
from tests.support import patience


@pytest.mark.parametrize("make", [WorkQueue, RankedQueue])
def test_a_queue_that_is_held_keeps_nothing(make):
    async def main():
        queue = make("q")
        queue.add("a")
        queue.add_after("b", 60)
        queue.hold()
        queue.add("c")
        queue.add_after("d", 60)
        if isinstance(queue, RankedQueue):
            queue.put("e", (0, 0.0))
            assert not queue._heap
        assert (list(queue._ready), queue._since, queue._timers) == ([], {}, {})
        queue.resume()
        queue.add("c")
        assert await queue.get() == "c"

    asyncio.run(main())


def test_queue_keeps_each_key_once_and_backs_off():
    async def main():
        queue = WorkQueue("q")
        for key in ("a", "b", "a"):
            queue.add(key)
        assert len(queue) == 2
        assert await queue.get() == "a"
        queue.add("a")
        assert len(queue) == 1  # worked on: it comes again when done
        queue.done("a")
        assert [await queue.get(), await queue.get()] == ["b", "a"]
        delays = []
        for _ in range(25):
            delays.append(queue.failed("a"))
            queue.close()
            queue.add("a")
            assert await queue.get() == "a"
        assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
        assert delays[-1] == MAX_DELAY
        queue.done("a")
        assert queue.failed("a") == 0.005
        queue.add_after("c", 0.02)
        queue.add_after("c", 3600)
        assert await asyncio.wait_for(queue.get(), patience.seconds(1)) == "a"
        assert await asyncio.wait_for(queue.get(), patience.seconds(1)) == "c"
        queue.close()

    asyncio.run(main())


@pytest.mark.feature("MGR-PROC-01")
def test_writes_are_retried_on_conflict_and_throttling_only():
    async def main():
        async def tries(*errors, leads=lambda: True):
            made = []

            async def write():
                made.append(1)
                if len(made) <= len(errors):
                    raise errors[len(made) - 1]
                return "done"

            try:
                return await Writer(None, leads).attempt(write), len(made)
            except (Conflict, NotFound, TooManyRequests, NotLeading) as error:
                return type(error).__name__, len(made)

        conflict, busy = Conflict(409, "Conflict", "c"), TooManyRequests(429, "TooManyRequests", "t")
        assert await tries(conflict, busy) == ("done", 3)
        assert await tries(*[conflict] * 9) == ("Conflict", 4)
        assert await tries(NotFound(404, "NotFound", "n")) == ("NotFound", 1)
        assert await tries(AlreadyExists(409, "AlreadyExists", "a")) == ("AlreadyExists", 1)
        assert await tries(leads=lambda: False) == ("NotLeading", 0)
        held = iter([True, False])
        assert await tries(conflict, leads=lambda: next(held)) == ("NotLeading", 1)

    asyncio.run(main())


@pytest.mark.feature("MGR-NR-BATCH-02")
def test_zone_writes_lose_no_one_elses_change(bed, make):
    def zone(name):
        return {"name": name, "type": "Node", "resources": [{"name": "cpu", "capacity": "16", "allocatable": "16", "available": "16"}]}

    async def test(bed):
        await bed.create(
            make.config(colocation_config={"enable": True}),
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": "n1"},
                "topologyPolicies": ["None"],
                "zones": [zone("node-0"), zone("node-1")],
            },
            make.node("n1"),
            make.metric("n1", system=("2", "1Gi")),
        )
        manager = await bed.start()
        inner, between = manager.client.patch, []

        async def patch(kind, *args, **options):
            # the node agent writes between the manager's read and its write, twice
            if kind is NODERESOURCETOPOLOGIES and len(between) < 2:
                between.append(1)
                current = await bed.client.get(NODERESOURCETOPOLOGIES, "n1")
                current["zones"][0]["attributes"] = [{"name": "seen", "value": str(len(between))}]
                await bed.client.replace(NODERESOURCETOPOLOGIES, current)
            return await inner(kind, *args, **options)

        manager.client.patch = patch
        await bed.client.patch(NODERESOURCETOPOLOGIES, "n1", {"zones": [zone("node-0"), zone("node-1")]})

        async def both():
            zones = (await bed.get("NodeResourceTopology", "n1"))["zones"]
            batch = [item["allocatable"] for one in zones for item in one["resources"] if item["name"] == "kubernetes.io/batch-cpu"]
            return len(between) == 2 and batch == ["8600", "8600"] and zones[0]["attributes"] == [{"name": "seen", "value": "2"}]

        await bed.until(both)

    bed(test)


def test_lists_of_names():
    assert selected("a", ("*",))
    assert not selected("a", ("*", "-a"))
    assert not selected("a", ("-a", "a", "*"))
    assert selected("a", ("a", "-a"))
    assert not selected("a", ("b",))
    with pytest.raises(ValueError, match="did you mean 'nodeslo'"):
        check_list("--controllers", ("nodesl",), ("nodeslo", "nodemetric"))
