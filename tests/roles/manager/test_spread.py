"""An edit of slo-controller-config is previewed and comes to the nodes at a bounded pace, shrinking before growing (MGR-NR-01)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.config.gates import MANAGER, FeatureGates
from koord.config.slo import SLOConfig
from koord.decisions.recorder import Recorder
from koord.kube.errors import Forbidden, NotFound
from koord.kube.informers import InformerFactory
from koord.kube.patch import apply_merge_patch
from koord.process import metrics
from roles.manager.controllers.nodemetric import NodeMetricController
from roles.manager.controllers.noderesource import SPREAD, NodeResourceController
from roles.manager.controllers.nodeslo import NodeSLOController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.metrics import Metrics
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.noderesource.spread import AT_ONCE, Move, Spread
from roles.manager.options import Options

pytestmark = pytest.mark.feature("MGR-NR-01")
BATCH = "kubernetes.io/batch-cpu"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
OLD = SLOConfig()


def raw(obj: Any) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(obj))


class Cluster:
    """Nodes, an API server whose answers come back as watch events, and a clock that is set by hand."""

    def __init__(self, make: Any, nodes: int, **options: Any) -> None:
        self.make, self.now, self.version, self.options = make, 1e9, 0, options
        self.written: list[tuple[str, str]] = []
        self.events: list[str] = []
        self.objects = {f"n{number}": make.node(f"n{number}") for number in range(nodes)}
        self.present: dict[str, Any] = {}
        self.slos: list[str] = []
        self.reports = {name: make.metric(name, system=("1", "1Gi")) for name in self.objects}
        self.asked: list[str] = []
        self.config: dict[str, str] = {}
        self.memory: dict[str, Any] | None = None
        self.forbidden = False
        self.start()
        self.configure(colocation={"enable": True, "degradeTimeMinutes": 10**6})
        for name in self.objects:
            self.show(name)
            self.state.node_metrics.receive(name, "1", raw(self.reports[name]))
        self.state.spreads = True

    def start(self) -> None:
        """A process that knows nothing yet."""
        self.state = ClusterState(InformerFactory(self), Options(**self.options))  # type: ignore[arg-type]
        kit = Metrics(metrics.registry("manager"))
        self.controller = NodeResourceController(
            self.state, Writer(self), kit, Recorder("manager"), plugins=PLUGIN_NAMES, gates=FeatureGates(MANAGER),  # type: ignore[arg-type]
            clock=lambda: self.now, events=self,  # type: ignore[arg-type]
        )  # fmt: skip
        self.slo = NodeSLOController(self.state, Writer(self), kit)  # type: ignore[arg-type]
        self.metric = NodeMetricController(self.state, Writer(self), kit)  # type: ignore[arg-type]
        for controller in (self.controller, self.slo, self.metric):
            controller.attach()

    async def restart(self) -> None:
        """Another process takes the lead: its lists first, then what it has to know, then the controllers."""
        self.start()
        self.configure()
        for name in self.objects:
            self.show(name)
            self.state.node_metrics.receive(name, "1", raw(self.reports[name]))
            if name in self.present:
                self.state.node_slos.receive(name, "1", raw(self.present[name]))
        for controller in (self.controller, self.slo, self.metric):
            await controller.prepare()
        for seen in (self.written, self.events, self.slos, self.asked):
            seen.clear()
        await self.settle()

    def say(self, colocation: dict[str, Any], **keys: Any) -> None:
        """Edit the ConfigMap, whether or not anybody looks."""
        self.config = {"colocation-config": orjson.dumps(colocation).decode(), **{k: orjson.dumps(v).decode() for k, v in keys.items()}}

    def configure(self, colocation: dict[str, Any] | None = None, **keys: Any) -> None:
        self.version += 1
        if colocation is not None:
            self.say(colocation, **keys)
        data = self.config
        metadata = {"name": "slo-controller-config", "namespace": "koordinator-system"}
        if data:
            self.state.config_maps.receive(
                "koordinator-system/slo-controller-config", str(self.version), raw({"metadata": metadata, "data": data})
            )
        else:  # there is no ConfigMap
            self.state.config_synced()

    def show(self, name: str) -> None:
        self.version += 1
        self.state.nodes.receive(name, str(self.version), raw(self.objects[name]))

    def event(self, about: Any, kind: str, reason: str, text: str) -> None:
        self.events.append(f"{kind} {reason}: {text}")

    async def patch(self, kind: Any, name: str, body: Any, namespace: str | None = None, **_: Any) -> dict[str, Any]:
        if kind.kind == "ConfigMap":
            if self.forbidden:
                raise Forbidden(403, "Forbidden", "no")
            if self.memory is None:
                raise NotFound(404, "NotFound", name)
            self.memory = body
            return body
        if kind.kind == "NodeSLO":
            self.slos.append(name)
            self.present[name] = apply_merge_patch(self.present[name], body)
            self.version += 1
            self.state.node_slos.receive(name, str(self.version), raw(self.present[name]))
            return {}
        if kind.kind == "NodeMetric":
            self.asked.append(name)
            self.reports[name] = apply_merge_patch(self.reports[name], body)
            self.version += 1
            self.state.node_metrics.receive(name, str(self.version), raw(self.reports[name]))
            return {}
        node, changes = self.objects[name], (body.get("status") or {}).get("allocatable") or {}
        for section in ("capacity", "allocatable"):
            for resource, text in ((body.get("status") or {}).get(section) or {}).items():
                node["status"][section].pop(resource, None) if text is None else node["status"][section].update({resource: text})
        annotations = {"annotations": (body.get("metadata") or {}).get("annotations") or {}}
        node["metadata"] = apply_merge_patch(node["metadata"], annotations)
        if BATCH in changes:
            self.written.append((name, changes[BATCH]))
        self.show(name)
        return {}

    async def create(self, kind: Any, obj: Any, namespace: str | None = None) -> Any:
        name = obj["metadata"]["name"]
        if kind.kind == "ConfigMap":
            self.memory = obj
            return obj
        self.slos.append(name)
        self.present[name] = obj
        self.state.node_slos.receive(name, "1", raw(obj))
        return obj

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if self.memory is None:
            raise NotFound(404, "NotFound", name)
        return self.memory

    async def settle(self) -> None:
        """Work off what is queued now."""
        for controller in (self.controller, self.slo, self.metric):
            for _ in range(2000):
                due = getattr(controller, "due", None)
                if len(controller.queue):
                    await controller._work_one()
                elif due is not None and len(due):
                    key = await due.get()
                    await controller.reconcile(key)
                    due.done(key)
                else:
                    break

    async def minutes(self, minutes: float) -> None:
        for _ in range(round(minutes * 20)):
            self.now += 3
            self.controller.queue.add(SPREAD)
            await self.settle()


async def _work_one(self: Any) -> None:
    key = await self.queue.get()
    if key == "*":
        await self._queue_everything()
    else:
        await self._work(key)


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (NodeResourceController, NodeSLOController, NodeMetricController):
        monkeypatch.setattr(kind, "_work_one", _work_one, raising=False)


def test_an_edit_is_told_first_and_reaches_a_fifth_of_the_nodes_a_minute(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 100)
        await cluster.settle()
        assert len(cluster.written) == 100, "without an edit nothing waits"
        cluster.written.clear()
        for n in range(3):  # on one node Batch holds more than will be left
            pod = make.pod(f"b{n}", "n7", requests={BATCH: "6000", "kubernetes.io/batch-memory": "1Gi"})
            cluster.state.pods.receive(f"default/b{n}", "1", raw(pod))
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 40})
        await cluster.settle()
        (told,) = cluster.events
        assert told.startswith("Warning ConfigSpread: 100 nodes change")
        assert "100 nodes shrink, 0 grow" in told
        assert "on 1 nodes more is requested than is left then, by" in told
        assert len(cluster.written) == 5, "a quarter of a minute's nodes first"
        await cluster.minutes(1)
        assert len(cluster.written) == 25
        await cluster.minutes(2)
        assert len(cluster.written) == 65
        await cluster.minutes(3)
        assert sorted(name for name, _ in cluster.written) == sorted(cluster.objects), "each once"
        assert len({amount for _, amount in cluster.written}) == 1

    asyncio.run(main())


def test_what_is_measured_counts_at_once_on_a_node_that_waits(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 60)
        await cluster.settle()
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 90})
        await cluster.settle()
        waits = next(name for name in cluster.objects if cluster.state.spread.former(name) is not None)
        cluster.state.node_metrics.receive(waits, "2", raw(make.metric(waits, system=("30", "1Gi"))))
        await cluster.settle()
        assert cluster.state.spread.former(waits) is not None
        assert cluster.objects[waits]["status"]["allocatable"][BATCH] == "0"

    asyncio.run(main())


def test_nodes_that_an_edit_does_not_concern_do_not_wait_and_few_nodes_never_do(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 60)
        for name in ("n1", "n2"):
            cluster.objects[name]["metadata"]["labels"]["pool"] = "a"
            cluster.show(name)
        await cluster.settle()
        cluster.written.clear()
        entry = {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuReclaimThresholdPercent": 90}
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "nodeConfigs": [entry]})
        await cluster.settle()
        assert {name for name, _ in cluster.written} == {"n1", "n2"}
        assert not cluster.state.spread.active

    asyncio.run(main())


def test_node_slos_come_with_their_nodes(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 60)
        await cluster.settle()
        cluster.slos.clear()
        strategy = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 50}}
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6}, **{"resource-threshold-config": strategy})
        await cluster.settle()
        assert 0 < len(cluster.slos) <= 12
        await cluster.minutes(6)
        assert sorted(cluster.slos) == sorted(cluster.objects)

    asyncio.run(main())


@pytest.mark.feature("MGR-NM-01")
def test_how_agents_measure_comes_with_their_nodes(make: Any) -> None:
    """What is left for Batch follows from it."""

    async def main() -> None:
        cluster = Cluster(make, 60)
        cluster.reports["n9"] = make.metric("n9", minutes_ago=1.1 * 10**6)
        cluster.state.node_metrics.receive("n9", "2", raw(cluster.reports["n9"]))
        await cluster.settle()
        cluster.asked.clear()
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "metricMemoryCollectPolicy": "usageWithPageCache"})
        await cluster.settle()
        (told,) = cluster.events
        assert told.startswith("Normal ConfigSpread: 60 nodes change")
        first = list(cluster.asked)
        assert 1 < len(first) <= 12
        assert "n9" in first, "a node that does not report may do so again when it is asked otherwise"
        await cluster.restart()
        assert cluster.asked == [], "nobody goes ahead a second time"
        await cluster.minutes(6)
        assert sorted(first + cluster.asked) == sorted(cluster.objects)

    asyncio.run(main())


def test_a_node_that_cannot_be_decided_holds_up_neither_an_edit_nor_the_next_leader(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = Cluster(make, 40)
        await cluster.settle()
        observe = NodeResourceController.observe

        def fails(self: Any, node: Any, *args: Any) -> Any:
            if node.metadata.name == "n7":
                raise OverflowError("a number beyond all bounds")
            return observe(self, node, *args)

        monkeypatch.setattr(NodeResourceController, "observe", fails)
        cluster.written.clear()
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 40})
        await cluster.minutes(1)
        cluster.say({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 50})
        await cluster.restart()
        await cluster.minutes(6)
        offered = {name: obj["status"]["allocatable"][BATCH] for name, obj in cluster.objects.items()}
        former = offered.pop("n7")
        assert set(offered.values()) == {"15k"}
        assert former == "18200", "what stands on the node that fails stays"
        assert not cluster.state.spread.active

    asyncio.run(main())


def test_nothing_is_spread_while_reports_are_missing(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 60)
        await cluster.settle()
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 90})
        await cluster.settle()
        cluster.controller.brake.held.add("n1")
        before = len(cluster.written)
        await cluster.minutes(3)
        assert len(cluster.written) == before
        cluster.controller.brake.held.clear()
        await cluster.minutes(10)
        assert not cluster.state.spread.active

    asyncio.run(main())


LESS = {"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 40}
EVICT = {"resource-threshold-config": {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 50}}}


def test_the_next_leader_goes_on_at_the_same_pace(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 100)
        await cluster.settle()
        cluster.written.clear()
        cluster.configure(LESS, **EVICT)
        await cluster.settle()
        await cluster.minutes(1)
        done = {name for name, _ in cluster.written}
        assert len(done) == 25
        await cluster.restart()
        assert cluster.events == [told for told in cluster.events if told.startswith("Normal ConfigSpread: 75 nodes change")] != []
        assert (cluster.written, cluster.slos) == ([], []), "nobody goes ahead a second time"
        await cluster.minutes(1)
        assert len(cluster.written) == 20
        assert {name for name, _ in cluster.written} == set(cluster.slos)
        await cluster.minutes(4)
        assert sorted(done | {name for name, _ in cluster.written}) == sorted(cluster.objects)
        assert not done & {name for name, _ in cluster.written}
        await cluster.restart()
        assert (cluster.written, cluster.slos, cluster.events, cluster.state.spread.active) == ([], [], [], False)

    asyncio.run(main())


def test_an_edit_that_came_while_nobody_led_is_spread_too(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 100)
        cluster.controller.queue.add(SPREAD)
        await cluster.settle()
        cluster.configure(LESS)
        await cluster.settle()
        await cluster.minutes(2)
        cluster.say({**LESS, "cpuReclaimThresholdPercent": 20}, **EVICT)
        await cluster.restart()
        wanted = {"60": 0, "40": 0, "20": 0}
        for name in cluster.objects:
            config = cluster.state.spread.former(name) or cluster.state.config
            wanted[str(config.keys["colocation-config"].cluster["cpuReclaimThresholdPercent"])] += 1
        assert wanted == {"60": 55, "40": 45, "20": 0}, "each keeps what it had until its turn"
        await cluster.minutes(6)
        assert not cluster.state.spread.active
        assert len(cluster.written) == len(cluster.slos) == 100

    asyncio.run(main())


def test_what_was_kept_is_believed_only_as_far_as_nodes_follow_it(make: Any) -> None:
    """Another version of the manager led meanwhile: nobody is taken back to what it had long left."""

    async def main() -> None:
        cluster = Cluster(make, 100)
        cluster.controller.queue.add(SPREAD)
        await cluster.settle()
        old = cluster.memory
        cluster.configure(LESS, **EVICT)
        await cluster.minutes(8)
        cluster.memory = old
        await cluster.restart()
        assert (cluster.written, cluster.slos, cluster.state.spread.active) == ([], [], False)

    asyncio.run(main())


@pytest.mark.parametrize("state", ["", "[]", '{"version": 1}', '{"version": 1, "present": {"colocation-config": 1}, "former": []}', "{"])
def test_a_memory_that_cannot_be_read_keeps_nobody_from_leading(make: Any, state: str) -> None:
    async def main() -> None:
        cluster = Cluster(make, 20)
        await cluster.settle()
        cluster.memory = {"data": {"state": state}}
        cluster.say(LESS)
        await cluster.restart()
        assert len(cluster.written) == 20
        assert orjson.loads(cluster.memory["data"]["state"])["present"] == cluster.config

    asyncio.run(main())


def test_an_edit_goes_its_way_where_it_may_not_be_kept(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = Cluster(make, 100)
        cluster.forbidden = True
        await cluster.settle()
        cluster.written.clear()
        cluster.configure(LESS)
        await cluster.minutes(6)
        assert len(cluster.written) == 100

    asyncio.run(main())
    assert len([line for line in caplog.messages if "koord-manager-config-spread" in line]) == 1


def test_a_key_that_cannot_be_read_keeps_its_last_good_value_over_a_restart(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 20)
        cluster.configure(LESS, **EVICT)
        await cluster.minutes(2)
        cluster.config = {**cluster.config, "colocation-config": "{", "resource-threshold-config": "[]"}
        await cluster.restart()
        assert (cluster.written, cluster.slos, cluster.state.spread.active) == ([], [], False)
        assert cluster.state.config.cluster_enabled

    asyncio.run(main())


OWN = {
    "interference-config": {"clusterStrategy": {"actions": ["squeeze", "evict"]}},
    "resource-tuning-config": {"clusterStrategy": {"cpu": {"enable": True}}},
    "memory-offloading-config": {"clusterStrategy": {"enable": True}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": 1.2},
}


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.feature("MGR-NSLO-01")
@pytest.mark.parametrize("how", ["edited", "deleted", "begun", "begun, and another edit", "edited, and another leader"])
def test_keys_that_are_taken_out_leave_the_nodes_also_under_the_next_leader(make: Any, how: str) -> None:
    """Nobody leads when the keys go, or the ConfigMap; or who leads ends in the middle; co-location is off."""

    async def main() -> None:
        cluster = Cluster(make, 40)
        cluster.configure({"enable": False}, **OWN)
        await cluster.minutes(8)
        for name, node in cluster.objects.items():
            node["metadata"]["annotations"][RATIO] = "1.20"
            cluster.show(name)
        await cluster.settle()

        def left() -> tuple[int, int]:
            written = [any((slo["spec"].get("extensions") or {}).values()) for slo in cluster.present.values()]
            return sum(written), sum(node["metadata"]["annotations"][RATIO] == "1.20" for node in cluster.objects.values())

        assert left() == (40, 40)
        begun = 40
        if how.startswith("begun"):
            cluster.configure({"enable": False})
            await cluster.minutes(1)
            begun = left()[0]
            assert 0 < begun < 40
        cluster.say({"enable": False, "metricReportIntervalSeconds": 61} if "another" in how else {"enable": False})
        if how == "deleted":
            cluster.config = {}
        await cluster.restart()
        assert left() == (begun, begun), "they wait for their turn"
        if how == "edited, and another leader":
            await cluster.minutes(1)
            await cluster.restart()
        await cluster.minutes(8)
        assert left() == (0, 0)
        await cluster.restart()
        assert (cluster.written, cluster.slos, cluster.state.spread.active) == ([], [], False)

    asyncio.run(main())


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.parametrize("kept", [False, True])
def test_a_configuration_that_comes_after_the_start_is_not_waited_for(make: Any, kept: bool) -> None:
    """What stood on the nodes is kept for a while where nothing says whether co-location is on, and is not taken away once it is said."""

    async def main() -> None:
        cluster = Cluster(make, 60)
        if kept:
            cluster.controller.queue.add(SPREAD)
        await cluster.settle()
        said, cluster.config = dict(cluster.config), {}
        await cluster.restart()
        await cluster.minutes(2)
        assert cluster.controller.brake.held
        cluster.config = said
        cluster.configure()
        await cluster.settle()
        assert not cluster.controller.brake.held
        await cluster.minutes(6)
        assert not cluster.state.spread.active
        assert {obj["status"]["allocatable"].get(BATCH) for obj in cluster.objects.values()} == {"18200"}

    asyncio.run(main())


def test_all_at_once_where_that_is_asked_for(make: Any) -> None:
    async def main() -> None:
        cluster = Cluster(make, 60, config_spread=0.0)
        await cluster.settle()
        cluster.written.clear()
        cluster.configure({"enable": True, "degradeTimeMinutes": 10**6, "cpuReclaimThresholdPercent": 90})
        await cluster.settle()
        assert len(cluster.written) == 60

    asyncio.run(main())


MOVES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=AT_ONCE + 1, max_size=60)


@given(MOVES, st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=60), st.floats(0.01, 1))
def test_property_the_pace_is_kept_and_shrinking_comes_first(
    moves: list[tuple[int, int]], rounds: list[tuple[float, bool]], share: float
) -> None:
    spread, now, let_go = Spread(share), 0.0, []
    spread.begin([f"n{n}" for n in range(len(moves))], OLD)
    assert spread.release(now) == [], "nobody goes before all are previewed"
    for n, (before, after) in enumerate(moves):
        spread.found(f"n{n}", Move(before, after))
    limit = max(share * len(moves), AT_ONCE)
    for passed, held in rounds:
        now += passed
        gone = spread.release(now, held=held)
        assert not (gone and held and let_go), "held, once it is under way"
        let_go += [(now, name) for name in gone]
        waiting = [moves[int(name[1:])] for name in (f"n{n}" for n in range(len(moves))) if spread.former(name) is not None]
        shrinks = [after < before for before, after in waiting]
        if any(shrinks) and gone:
            assert all(moves[int(name[1:])][1] < moves[int(name[1:])][0] for name in gone), "what shrinks goes first"
    for begin, _ in let_go:
        within = [name for at, name in let_go if begin <= at <= begin + 60]
        assert len(within) <= limit * 1.25 + AT_ONCE + 1
    assert len({name for _, name in let_go}) == len(let_go)


def test_an_edit_upon_an_edit_keeps_what_counted_for_those_that_wait() -> None:
    spread, newer = Spread(0.2), SLOConfig()
    names = [f"n{n}" for n in range(50)]
    spread.begin(names, OLD)
    for name in names:
        spread.found(name, Move(1, 2))
    gone = spread.release(0.0)
    spread.begin(names, newer)
    assert all(spread.former(name) is newer for name in gone)
    assert all(spread.former(name) is OLD for name in names if name not in gone)


def test_who_does_not_lead_keeps_no_version_of_the_configuration(make: Any) -> None:
    """A tool that touches the ConfigMap every minute: nobody asks for former texts on a standby."""
    state = Cluster(make, 20).state
    state.spreads = False
    metadata = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    for percent in range(40, 60):
        data = {"colocation-config": orjson.dumps({"enable": True, "cpuReclaimThresholdPercent": percent}).decode()}
        state.config_maps.receive(state.config_key, str(1000 + percent), raw({"metadata": metadata, "data": data}))
    assert len(state._texts) == 1
    assert dict(state.texts) == data
