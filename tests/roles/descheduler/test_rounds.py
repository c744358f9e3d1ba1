"""Rounds over random clusters: limits hold at every instant, and what a dry run lists is what happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import seams
from koord.api import objects
from koord.api.objects import Node, Pod
from koord.apiserver.testing import running_server
from koord.decisions.recorder import Recorder
from koord.kube.informers import InformerFactory
from roles.descheduler import app, registry
from roles.descheduler.acting import ClusterActing
from roles.descheduler.app import App, Options
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import Evict, Outcome, PluginError, Turn
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, NoController
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.limits import Limits
from roles.descheduler.framework.plugin import Plugin
from roles.descheduler.framework.round import Profile, Rounds
from roles.descheduler.snapshot import NodeView, node_view
from tests.roles.descheduler.support import configuration, metric, node, pod
from tests.support import patience
from tests.support.examples import examples

PLUGINS = {
    "PodLifeTime": {"states": ["Running"]},
    "RemovePodsViolatingNodeTaints": {},
    "RemoveDuplicates": {},
    "LowNodeUtilization": {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 50}},
    "HighNodeUtilization": {"thresholds": {"cpu": 30}},
    "CustomPriority": {
        "evictionOrder": [{"name": zone, "nodeSelector": {"matchLabels": {"zone": zone}}} for zone in ("a", "b")],
    },
    "FragmentationAware": {"imbalanceThreshold": 0.05},
    "ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 5},
    "LowNodeLoad": {
        "lowThresholds": {"cpu": 30},
        "highThresholds": {"cpu": 50},
        "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"},
    },
}


def made(name: str, interval: float = 0.0) -> Plugin:
    row = registry.PLUGIN_TYPES[name]
    plugin: Plugin = row.make(row.args.model_validate(PLUGINS[name]), interval)
    return plugin


@dataclass
class Evictor(NoController):
    """Evicts in memory; some pods it refuses, and at each eviction it checks the limits on what it has been asked for."""

    limits: Limits
    refused: frozenset[str] = frozenset()
    name: str = "Evictor"
    gone: list[Pod] = field(default_factory=list)

    def filter(self, pod: Pod) -> str:
        return ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        await asyncio.sleep(0)
        nodes = Counter(item.spec.node_name for item in [*self.gone, pod])
        namespaces = Counter(item.metadata.namespace for item in [*self.gone, pod])
        assert self.limits.per_node is None or max(nodes.values()) <= self.limits.per_node
        assert self.limits.per_namespace is None or max(namespaces.values()) <= self.limits.per_namespace
        assert self.limits.total is None or len(self.gone) + 1 <= self.limits.total
        assert pod not in self.gone, "a pod leaves once"
        if pod.metadata.name in self.refused:
            return EvictResult(False, "refused")
        self.gone.append(pod)
        return EvictResult(True)


class Nothing:
    """Acts on nothing but the evictor."""

    def may_write(self) -> bool:
        return True

    async def evict(self, evictor: Evictor, pod: Pod, options: EvictOptions) -> EvictResult:
        return await evictor.evict(pod, options)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        return EvictResult(True)

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        return EvictResult(True)

    async def where(self, pod: Pod) -> str:
        return ""

    def waited(self, seconds: float) -> None:
        pass

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        return False


Cluster = list[tuple[str, bool, list[tuple[int, str, str]]]]  # zone, tainted, pods as (tenths of a core, namespace, image)

clusters: st.SearchStrategy[Cluster] = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.booleans(),
        st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["n1", "n2"]), st.sampled_from(["x", "y"])), max_size=6),
    ),
    min_size=2,
    max_size=5,
)
limit = st.none() | st.integers(0, 4)


def views(cluster: Cluster, now: float = 1000.0) -> list[NodeView]:
    found = []
    for number, (zone, tainted, pods) in enumerate(cluster):
        taints = [{"key": "t", "effect": "NoSchedule"}] if tainted else []
        name = f"n{number}"
        there = []
        for index, (tenths, namespace, image) in enumerate(pods):
            body = pod(f"p{number}-{index}", name, cpu=f"{tenths * 100}m", memory="1Gi", namespace=namespace, image=image)
            body["metadata"]["uid"] = body["metadata"]["name"]
            there.append(objects.convert(body, Pod))
        load = metric(name, "100m")
        load["status"]["updateTime"] = "1970-01-01T00:16:39Z"
        load["status"]["podsMetric"] = [
            {"namespace": item.metadata.namespace, "name": item.metadata.name, "podUsage": {"resources": {"cpu": f"{tenths * 100}m"}}}
            for item, (tenths, _, _) in zip(there, pods, strict=True)
        ]
        found.append(
            node_view(
                objects.convert(node(name, labels={"zone": zone}, taints=taints), Node),
                there,
                objects.convert(load, objects.NodeMetric),
                now=now,
            )
        )
    return found


def run(cluster: Cluster, names: Iterable[str], evictor: Evictor, *, dry_run: bool = False) -> Outcome:
    plugins: dict[str, list[Plugin]] = {"deschedule": [], "balance": []}
    for name in names:
        plugin = made(name)
        plugins[plugin.point].append(plugin)
    rounds = Rounds([Profile("p", None, evictor, [evictor], plugins)], selector=None, limits=evictor.limits, dry_run=dry_run)
    return asyncio.run(rounds.run(views(cluster), 1000.0, Nothing()))


@pytest.mark.feature("DS-FW-03")
@examples(48)
@given(
    clusters,
    st.lists(st.sampled_from(sorted(PLUGINS)), min_size=1, max_size=4, unique=True),
    limit,
    limit,
    limit,
    st.frozensets(st.sampled_from([f"p{n}-{i}" for n in range(5) for i in range(6)])),
)
def test_property_limits_hold_at_every_instant(
    cluster: Cluster, names: list[str], node_limit: int | None, namespace_limit: int | None, total: int | None, refused: frozenset[str]
) -> None:
    evictor = Evictor(Limits(node_limit, namespace_limit, total), refused)
    outcome = run(cluster, names, evictor)
    assert not outcome.errors
    assert outcome.evicted == len(evictor.gone)
    listed = [record.subject.name for record in outcome.records if record.verdict == "Evicted"]
    assert listed == [item.metadata.name for item in evictor.gone]


@pytest.mark.feature("DS-FW-03")
@examples(32)
@given(clusters, st.lists(st.sampled_from(sorted(PLUGINS)), min_size=1, max_size=4, unique=True), limit, limit)
def test_property_a_dry_run_lists_what_would_happen(cluster: Cluster, names: list[str], node_limit: int | None, total: int | None) -> None:
    limits = Limits(node_limit, None, total)
    listed = run(cluster, names, Evictor(limits), dry_run=True)
    evictor = Evictor(limits)
    done = run(cluster, names, evictor)
    would = [record.subject.name for record in listed.records if record.verdict == "WouldEvict"]
    assert would == [item.metadata.name for item in evictor.gone]
    assert listed.evicted == done.evicted


class Grumpy:
    """A plugin that asks for one eviction and then fails."""

    name = "Grumpy"
    point = "deschedule"

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.turns = 0

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        self.turns += 1
        yield Evict(nodes[0].pods[0].pod, "why not")
        if self.error is not None:
            raise self.error


@pytest.mark.feature("DS-FW-01")
@pytest.mark.feature("DS-FW-02")
@pytest.mark.parametrize("error", [PluginError("no"), ValueError("a mistake")])
def test_a_profile_with_errors_ends_the_round_after_its_own_plugins(error: Exception) -> None:
    cluster: Cluster = [("a", False, [(1, "n1", "x"), (2, "n1", "x")]), ("b", False, [])]
    evictor, bad, well, later, balance = Evictor(Limits()), Grumpy(error), Grumpy(None), Grumpy(None), Grumpy(None)
    profiles = [
        Profile("first", None, evictor, [evictor], {"deschedule": [bad, well], "balance": [balance]}),
        Profile("second", None, evictor, [evictor], {"deschedule": [later], "balance": []}),
    ]
    rounds = Rounds(profiles, selector=None, limits=Limits(), dry_run=False)
    outcome = asyncio.run(rounds.run(views(cluster), 1000.0, Nothing()))
    assert [plugin.turns for plugin in (bad, well, later, balance)] == [1, 1, 0, 0]
    assert len(outcome.errors) == 1
    assert outcome.evicted == 2


class Confused(Grumpy):
    """A plugin that yields something else where it means an eviction."""

    def __init__(self, wanted: Any) -> None:
        super().__init__(None)
        self.wanted = wanted

    def turn(self, nodes: list[NodeView], handle: Handle) -> Any:
        yield self.wanted


class Returning(Confused):
    def turn(self, nodes: list[NodeView], handle: Handle) -> Any:
        return self.wanted


@pytest.mark.feature("DS-FW-02")
@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        (Confused(Counter()), "turn yielded Counter, not an effect such as Evict or PAUSE"),
        (Confused(None), "turn yielded NoneType, not an effect such as Evict or PAUSE"),
        (Returning(None), "turn returned NoneType, not a generator: it has no yield"),
        (Returning([]), "turn returned list, not a generator: it has no yield"),
    ],
)
def test_a_turn_that_yields_no_effect_is_told_so_with_its_line(plugin: Confused, told: str, caplog: pytest.LogCaptureFixture) -> None:
    evictor = Evictor(Limits())
    profile = Profile("first", None, evictor, [evictor], {"deschedule": [plugin], "balance": []})
    rounds = Rounds([profile], selector=None, limits=Limits(), dry_run=False)
    outcome = asyncio.run(rounds.run(views([("a", False, [(1, "n1", "x")]), ("b", False, [])]), 1000.0, Nothing()))
    assert outcome.errors == [f"profile first: Grumpy: TypeError: {told}"]
    assert "yielded" not in told or "yield self.wanted" in caplog.text


@pytest.mark.feature("DS-FW-02")
def test_every_filter_must_agree() -> None:
    class No(Evictor):
        def filter(self, pod: Pod) -> str:
            return "no" if pod.metadata.name == "p0-0" else ""

    class Late(Evictor):
        def pre_eviction_filter(self, pod: Pod) -> str:
            return "not now" if pod.metadata.name == "p0-1" else ""

    cluster: Cluster = [("a", False, [(1, "n1", "x"), (2, "n1", "x"), (3, "n1", "x")]), ("b", False, [])]
    evictor, no, late = Evictor(Limits()), No(Limits()), Late(Limits())
    profile = Profile("p", None, evictor, [evictor, no, late], {"deschedule": [made("PodLifeTime")], "balance": []})
    outcome = asyncio.run(Rounds([profile], selector=None, limits=Limits(), dry_run=False).run(views(cluster), 1000.0, Nothing()))
    assert [item.metadata.name for item in evictor.gone] == ["p0-2"]
    assert [record.message for record in outcome.records if record.verdict == "NotEvicted"] == ["not now"]


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-LNL-07")
@examples(60)
@given(clusters)
def test_property_load_moves_only_from_hot_to_low_and_never_too_much(cluster: Cluster) -> None:
    """No node is relieved further than it must be, and no target is promised more than its high threshold leaves (here 5 of 10 cores)."""
    before = {view.name: view for view in views(cluster)}
    cores = {entry.pod.metadata.name: (entry.usage or {})["cpu"] for view in before.values() for entry in view.pods}
    load = {name: (view.usage or {})["cpu"] for name, view in before.items()}
    outcome = run(cluster, ["LowNodeLoad"], Evictor(Limits()))
    promised: Counter[str] = Counter()
    for record in outcome.records:
        if record.verdict != "Evicted":
            continue
        source, target = str(record.numbers["node"]), str(record.numbers["target"])
        used = cores[record.subject.name]
        assert load[source] > 5000, "a node that is cool gives nothing"
        assert load[target] <= 3000, "only low nodes are targets"
        assert not before[target].node.spec.taints
        load[source] -= used
        promised[target] += used
    for target, used in promised.items():
        assert load[target] + used <= 5000


@pytest.mark.feature("DS-CFG-03")
def test_a_process_that_does_not_lead_any_more_writes_nothing() -> None:
    from roles.descheduler.acting import ClusterActing

    leads = True

    class Once(Evictor):
        async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
            nonlocal leads
            leads = False  # the lease is lost while the first pod leaves
            return await super().evict(pod, options)

    async def nowhere(pod: Pod) -> str:
        return ""

    async def never(pod: Pod, leaving: Sequence[Pod]) -> bool:
        return False

    cluster: Cluster = [("a", False, [(1, "n1", "x"), (2, "n1", "x"), (3, "n1", "x")]), ("b", False, [])]
    evictor = Once(Limits())
    acting = ClusterActing(None, lambda: leads, nowhere, never)  # type: ignore[arg-type]
    profile = Profile("p", None, evictor, [evictor], {"deschedule": [made("PodLifeTime")], "balance": []})
    outcome = asyncio.run(Rounds([profile], selector=None, limits=Limits(), dry_run=False).run(views(cluster), 1000.0, acting))
    assert len(evictor.gone) == 1
    refused = [record.message for record in outcome.records if record.verdict == "NotEvicted"]
    assert len(refused) == 2
    assert all("does not lead any more" in message for message in refused)


@pytest.mark.feature("DS-FW-03")
def test_a_limit_that_keeps_many_pods_is_told_in_few_words() -> None:
    cluster: Cluster = [("a", False, [(1, "n1", "x")] * 60), ("b", False, [])]
    evictor = Evictor(Limits(total=3))
    outcome = run(cluster, ["PodLifeTime"], evictor)
    assert len(evictor.gone) == 3
    told = [record for record in outcome.records if record.verdict == "NotEvicted"]
    assert {record.message for record in told} == {"the round has had its 3 evictions"}
    (note,) = [record.message for record in outcome.records if record.verdict == "Round"]
    assert note == f"the round has had its 3 evictions: {60 - 3 - len(told)} more pods would have left"


@pytest.mark.feature("DS-FW-01")
def test_a_round_that_has_waited_for_its_evictions_leaves_the_rest_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction takes a second (a slow webhook); what was seen at the beginning is not decided on for ever."""
    late = [0.0]

    class Slow(NoController):
        name = "Slow"

        def filter(self, pod: Pod) -> str:
            return ""

        async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
            late[0] += 1.0
            return EvictResult(True)

    async def nowhere(*_: object) -> Any:
        return ""

    async def scenario() -> list[list[bool]]:
        acting = ClusterActing(None, lambda: True, nowhere, nowhere, 3.0)  # type: ignore[arg-type]
        found = []
        for _ in range(2):
            acting.begin()
            results = [await acting.evict(Slow(), Pod(), EvictOptions("p", "r")) for _ in range(8)]
            assert all("the next one goes on" in result.message for result in results if not result.accepted)
            found.append([result.accepted for result in results])
        return found

    monkeypatch.setattr(seams, "monotonic", lambda: late[0])
    assert asyncio.run(scenario()) == [[True] * 4 + [False] * 4] * 2


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.parametrize("how", ["profiles", "pools"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["done", "dry run"])
def test_what_was_sent_to_a_node_counts_for_later_decisions_of_the_round(how: str, dry_run: bool) -> None:
    """Two hot nodes, and one with room for a pod of one of them: whoever decides second does not send another one there."""
    zones: Cluster = [("a", False, [(30, "n1", "x")] * 2), ("b", False, [(30, "n2", "x")] * 2), ("t", False, [])]
    selectors = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone, "t"]}]} for zone in "ab"]
    args: dict[str, Any] = PLUGINS["LowNodeLoad"]
    if how == "pools":
        plugins = [{**args, "nodeSelector": selectors[0], "nodePools": [{"name": "b", "nodeSelector": selectors[1]}]}]
    else:
        plugins = [{**args, "evictableNamespaces": {"include": [namespace]}} for namespace in ("n1", "n2")]
    evictor = Evictor(Limits())
    row = registry.PLUGIN_TYPES["LowNodeLoad"]
    profiles = [
        Profile(str(number), None, evictor, [evictor], {"deschedule": [], "balance": [row.make(row.args.model_validate(each), 0.0)]})
        for number, each in enumerate(plugins)
    ]
    rounds = Rounds(profiles, selector=None, limits=Limits(), dry_run=dry_run)
    outcome = asyncio.run(rounds.run(views(zones), 1000.0, Nothing()))
    assert outcome.evicted == 1


@pytest.mark.feature("DS-FW-01")
@pytest.mark.parametrize("slow", ["prepare", "ask"])
def test_a_round_that_has_waited_for_answers_does_not_go_on_with_what_it_saw_before(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long before the round begins is followed by another look, what takes long within it ends the evictions."""
    late = [0.0]
    looks: list[float] = []

    class Slow(Evictor):
        async def prepare(self, pods: Iterable[Pod]) -> None:
            late[0] += 30.0 * (slow == "prepare")

        async def ask(self, pod: Pod) -> None:
            late[0] += 30.0 * (slow == "ask")

    evictor = Slow(Limits())
    profile = Profile("p", None, evictor, [evictor], {"deschedule": [made("PodLifeTime")], "balance": []})
    zones: Cluster = [("a", False, [(1, "n1", "x")] * 3), ("b", False, [])]

    async def scenario() -> Outcome:
        async with running_server(crds=True) as server, server.client() as client:
            text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": PLUGINS["LowNodeLoad"]})
            options = Options(parse_configuration(text, "test"), "test")
            app = App(options, client=client, informers=InformerFactory(client), recorder=Recorder("descheduler"))
            app._rounds = Rounds([profile], selector=None, limits=Limits(), dry_run=False)

            async def seen(now: float) -> list[NodeView]:
                looks.append(late[0])
                return views(zones)

            monkeypatch.setattr(app._observer, "views", seen)
            monkeypatch.setattr(app._acting, "_longest", 10.0)
            monkeypatch.setattr(seams, "monotonic", lambda: late[0])
            return await app.round()

    outcome = asyncio.run(scenario())
    assert looks == ([0.0, 30.0] if slow == "prepare" else [0.0])
    assert outcome.evicted == (3 if slow == "prepare" else 0)


def test_the_only_round_waits_until_caches_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """`deschedulingInterval: 0`: a run that did nothing would look like one that found nothing to do."""
    monkeypatch.setattr(app, "_SOON", 0.0)
    answers, rounds = [(False, "a watch is broken"), (False, "a watch is broken"), (True, "")], list[int]()

    class Once:
        _config = SimpleNamespace(descheduling_interval=0.0)
        _informers = SimpleNamespace(fresh=lambda: answers.pop(0))

        def may_write(self) -> bool:
            return True

        async def round(self) -> None:
            rounds.append(len(answers))

    async def main() -> None:
        await App._rounds_until(Once(), SimpleNamespace(stopping=asyncio.Event()))  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(main(), patience.seconds(20)))
    assert rounds == [0]
