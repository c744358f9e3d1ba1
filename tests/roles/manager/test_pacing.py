"""Controllers at scale: the loop that answers webhooks and renews the lease is never held, and what is urgent is written first."""

import asyncio
import gc
import time

import msgspec
import orjson
import pytest

from koord.api.objects import NodeMetric, Pod, convert
from koord.config.gates import MANAGER, FeatureGates
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from koord.process import metrics
from roles.manager.controllers.base import EVERYTHING, Controller, Turns
from roles.manager.controllers.nodemetric import NodeMetricController
from roles.manager.controllers.noderesource import NodeResourceController
from roles.manager.controllers.nodeslo import NodeSLOController
from roles.manager.controllers.ranked import RankedQueue
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.options import Options
from tests.support import patience

NODES = 2000
PODS = 110
HELD = 0.020
"""CPU seconds that one turn of the loop may take on an idle machine. Without turns an edit would hold it for seconds."""


class ApiServer:
    """Takes writes, each when `answer` lets it."""

    def __init__(self):
        self.writes = []
        self.under_way = self.most = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def patch(self, kind, name, body, namespace=None, *, type="merge", subresource=None):
        self.writes.append((name, body, subresource))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.answer.wait()
        self.under_way -= 1
        return {}

    async def create(self, kind, obj, namespace=None):
        self.writes.append((obj["metadata"]["name"], obj, None))
        return obj


def raw(obj):
    return msgspec.Raw(orjson.dumps(obj))


class Cluster:
    """Nodes that are alike: the objects of one stand for those of all, which keeps 5,000 × 110 pods small."""

    def __init__(self, make, nodes, **strategy):
        self.api = ApiServer()
        self.state = ClusterState(InformerFactory(self.api), Options())
        self.strategy = {"enable": True, "updateTimeThresholdSeconds": 10**6, "degradeTimeMinutes": 10**4, **strategy}
        pods = [convert(make.pod(f"p{n}", "n", requests={"cpu": "500m", "memory": "1Gi"}), Pod) for n in range(PODS)]
        self.state.pods.by_index = lambda index, value: pods
        entries = [("default", f"p{n}", "koord-prod", (f"{1 + n}m", f"{1 + n}Mi")) for n in range(PODS)]
        shown = convert(make.metric("n", system=("1", "1Gi"), pods=entries), NodeMetric)
        self.configure()
        for number in range(nodes):
            name = f"n{number}"
            self.state.nodes.receive(name, "1", raw(make.node(name)))
            self.state.node_metrics._objects[name] = shown

    def configure(self, **more):
        name = "koordinator-system/slo-controller-config"
        data = {"colocation-config": orjson.dumps({**self.strategy, **more}).decode()}
        namespace, _, short = name.partition("/")
        self.state.config_maps.receive(name, "", raw({"metadata": {"name": short, "namespace": namespace}, "data": data}))

    def noderesource(self):
        parts = (self.state, Writer(self.api), Metrics(metrics.registry("manager")), Recorder("manager"))
        return NodeResourceController(*parts, plugins=PLUGIN_NAMES, gates=FeatureGates(MANAGER))


async def longest_turn(idle):
    """CPU seconds of the longest turn of the loop until `idle()`, and how many turns there were."""
    longest, turns = 0.0, 0
    while not idle():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest, turns = max(longest, time.thread_time() - began), turns + 1
    return longest, turns


@pytest.mark.feature("MGR-NR-01")
@pytest.mark.timeout(300)
def test_an_edit_of_the_config_with_thousands_of_nodes_never_holds_the_loop(make):
    async def main():
        cluster = Cluster(make, NODES)
        made = Metrics(metrics.registry("manager"))
        noderesource, writer = cluster.noderesource(), Writer(cluster.api)
        controllers = [noderesource, NodeSLOController(cluster.state, writer, made), NodeMetricController(cluster.state, writer, made)]
        for controller in controllers:
            controller.attach()
            controller.queue._ready.clear()
        gc.collect()
        gc.freeze()
        gc.disable()  # as the process does: its collections are rare and have bench rows of their own
        try:
            tasks = [asyncio.create_task(controller.run()) for controller in controllers]
            decided = []
            noderesource._record = lambda inputs, plan: decided.append(inputs.node.metadata.name)
            edit = {"nodeConfigs": [{"name": "x", "nodeSelector": {"matchLabels": {"no": "such"}}, "cpuReclaimThresholdPercent": 50}]}
            began = time.thread_time()
            cluster.configure(**edit)
            edited = time.thread_time() - began
            longest, turns = await longest_turn(lambda: len(set(decided)) == NODES and not any(map(len, (c.queue for c in controllers))))
            assert edited < patience.seconds(HELD), "the edit itself only notes what is to be done"
            assert longest < patience.seconds(HELD)
            assert turns > NODES / 10
        finally:
            gc.enable()
            gc.unfreeze()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_a_controller_that_never_waits_lets_others_have_the_loop():
    class Busy(Controller):
        name = "busy"

        def __init__(self):
            super().__init__()
            self.done = []
            self.turns = Turns(1.0, clock=lambda: len(self.done) * 0.4)

        def attach(self):
            pass

        def keys(self):
            return [f"k{number}" for number in range(50)]

        async def reconcile(self, key):
            self.done.append(key)

    async def main():
        busy = Busy()
        busy.queue.add(EVERYTHING)
        task = asyncio.create_task(busy.run())
        seen = []
        while len(busy.done) < 50:
            await asyncio.sleep(0)
            seen.append(len(busy.done))
        task.cancel()
        assert busy.done == busy.keys()
        assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 4, "a slice is three keys, never all of them"

    asyncio.run(main())


@pytest.mark.feature("MGR-NR-01")
def test_what_shrinks_is_written_first_and_sixteen_writes_are_under_way(make):
    async def main():
        cluster = Cluster(make, 40)
        controller = cluster.noderesource()
        for number in range(40):
            # all hold 19200 - 1000 - 6105 milli: even ones have promised more, odd ones less
            has = str(40_000 + number) if number % 2 == 0 else str(100 - number)
            stands = {"kubernetes.io/batch-cpu": has, "kubernetes.io/batch-memory": "1Gi"}
            cluster.state.nodes.receive(f"n{number}", "2", raw(make.node(f"n{number}", allocatable=stands, extra=stands)))
        controller.attach()
        cluster.api.answer.clear()
        task = asyncio.create_task(controller.run())
        await longest_turn(lambda: cluster.api.under_way == 16 and not len(controller.queue))
        for _ in range(100):
            await asyncio.sleep(0)
        assert cluster.api.most == 16
        assert len(controller.due) == 24
        cluster.api.answer.set()
        await longest_turn(lambda: len(cluster.api.writes) == 40)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # the first sixteen took what was decided by then; of the rest all that shrinks goes before all that grows
        rest = [int(name[1:]) % 2 for name, _, _ in cluster.api.writes[16:]]
        assert rest == sorted(rest)
        assert {1} != set(rest) != {0}
        _, body, subresource = cluster.api.writes[0]
        assert subresource == "status"
        assert {"status", "metadata"} == set(body), "one request carries both"

    asyncio.run(main())


@pytest.mark.feature("MGR-NR-01")
def test_what_was_just_written_is_not_written_again_before_the_watch_tells_of_it(make):
    async def main():
        cluster = Cluster(make, 1)
        controller, node = cluster.noderesource(), make.node("n0")
        patch, decided = cluster.api.patch, []
        controller._record = lambda inputs, plan: decided.append(plan)

        async def written(kind, name, body, namespace=None, **how):
            controller.queue.add(name)  # its report came meanwhile
            await patch(kind, name, body, namespace, **how)
            node["metadata"].update(
                resourceVersion="2", annotations={**(node["metadata"].get("annotations") or {}), **body["metadata"]["annotations"]}
            )
            for section, amounts in body["status"].items():
                node["status"][section] = {**node["status"][section], **amounts}
            return node

        cluster.api.patch = written
        cluster.state.nodes.receive("n0", "1", raw({**node, "metadata": {**node["metadata"], "resourceVersion": "1"}}))
        controller.attach()
        task = asyncio.create_task(controller.run())
        await longest_turn(lambda: len(decided) >= 3 and not len(controller.queue) and not len(controller.due))
        assert len(cluster.api.writes) == 1
        # What others have made of it counts once the watch shows it.
        cluster.state.nodes.receive("n0", "3", raw({**make.node("n0"), "metadata": {**node["metadata"], "resourceVersion": "3"}}))
        await longest_turn(lambda: len(cluster.api.writes) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_ranks_decide_and_a_key_is_there_once():
    async def main():
        queue = RankedQueue("q")
        for key, rank in (("grow", (1, -0.5)), ("shrink", (0, -0.1)), ("collapse", (0, -0.9)), ("more", (1, -0.7))):
            queue.put(key, rank)
        queue.put("grow", (0, -0.5))
        queue.put("grow", (0, -0.5))
        assert len(queue) == 4
        assert [await queue.get() for _ in range(3)] == ["collapse", "grow", "shrink"]
        queue.put("grow", (0, -1.0))  # while it is worked on
        assert len(queue) == 1
        queue.done("grow")
        assert [await queue.get(), await queue.get()] == ["grow", "more"]
        assert queue.failed("more") == 0.005
        queue.done("grow")
        queue.close()

    asyncio.run(main())
