"""LowNodeLoad as one half of a loop: nodes, a scheduler that chooses as badly as it may, and reports that are old.

Whatever the world: a migration never makes the sum of what nodes use beyond their thresholds larger, and migrations end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.times import format_time
from roles.descheduler.arrivals import Expected, expect
from roles.descheduler.framework.effects import Evict, Tell
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.lownodeload.args import LowNodeLoadArgs
from roles.descheduler.plugins.lownodeload.effect import TRIES, Effects
from roles.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from roles.descheduler.relief import Relief
from roles.descheduler.snapshot import NodeView, Snapshots, node_view
from tests.support.examples import examples

ARGS = {
    "lowThresholds": {"cpu": 40},
    "highThresholds": {"cpu": 60},
    "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"},
}
CORES, HIGH = 10_000, 6_000


class Open:
    """A filter that lets every pod go."""

    name = "open"

    def filter(self, pod: Pod) -> str:
        return ""

    def pre_eviction_filter(self, pod: Pod) -> str:
        return ""


@dataclass
class Sim:
    """Nodes by what their system uses, and pods by what they use, in milli-CPU. `reports` are what was last told of each node."""

    system: list[int]
    pods: dict[str, tuple[int, int]]  # name -> (node, milli-CPU)
    now: float = 1e9
    plugin: LowNodeLoad = field(default_factory=lambda: LowNodeLoad(LowNodeLoadArgs.model_validate(ARGS), 60.0))
    reports: dict[int, NodeMetric] = field(default_factory=dict)
    brought: dict[str, int] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)

    def report(self, node: int, peak: int = 0) -> None:
        """`peak`: how far the percentile lies above the average."""
        used = [
            {"namespace": "d", "name": name, "podUsage": {"resources": {"cpu": f"{milli}m"}}}
            for name, (where, milli) in self.pods.items()
            if where == node
        ]
        info: dict[str, Any] = {"systemUsage": {"resources": {"cpu": f"{self.system[node]}m"}}}
        if peak:
            average, high = ({"resources": {"cpu": f"{self.use(node) + more}m"}} for more in (0, peak))
            info |= {"nodeUsage": average, "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": high}}]}
        status = {"updateTime": format_time(self.now), "nodeMetric": info, "podsMetric": used}
        self.reports[node] = convert({"metadata": {"name": f"n{node}"}, "status": status}, NodeMetric)

    def use(self, node: int) -> int:
        return self.system[node] + sum(milli for where, milli in self.pods.values() if where == node)

    def excess(self) -> int:
        return sum(max(0, self.use(node) - HIGH) for node in range(len(self.system)))

    def view(self, node: int, places: list[Expected] | None = None, unheard: float = 0.0) -> NodeView:
        status = {"allocatable": {"cpu": "10", "memory": "64Gi", "pods": "110"}}
        machine = convert({"metadata": {"name": f"n{node}"}, "status": status}, Node)
        pods = [self.pod(name) for name, (where, _) in self.pods.items() if where == node]
        view = Snapshots().node(machine, pods, self.reports[node], now=self.now)
        brought = {name: {"cpu": milli} for name, milli in self.brought.items()}
        expect(view, places or [], lambda pod: brought.get(pod.metadata.name), unheard=unheard)
        return view

    def pod(self, name: str) -> Pod:
        since = format_time(self.bound.get(name, 0.0))
        meta = {"name": name, "namespace": "d", "uid": name, "creationTimestamp": "2001-01-01T00:00:00Z"}
        container = {"name": "c", "resources": {"requests": {"cpu": "10m"}}}
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
        spec = {"nodeName": f"n{self.pods[name][0]}", "containers": [container]}
        return convert({"metadata": meta, "spec": spec, "status": {"phase": "Running", "conditions": conditions}}, Pod)

    def round(self, choose: Any) -> int:
        """One round, whose pods go where the worst of schedulers puts them; how many went."""
        views = [self.view(node) for node in range(len(self.system))]
        turn = self.plugin.turn(views, Handle("p", "LowNodeLoad", self.now, [Open()]))  # type: ignore[list-item]
        wanted: list[tuple[str, Relief]] = []
        answer: Any = None
        while True:
            try:
                effect = turn.send(answer)
            except StopIteration:
                break
            answer = True
            if isinstance(effect, Evict):
                assert effect.relief is not None
                next(view for view in views if view.name == effect.pod.spec.node_name).take(effect.pod.metadata.uid)
                wanted.append((effect.pod.metadata.name, effect.relief))
        return sum(self.move(name, relief, choose) for name, relief in wanted)

    def move(self, name: str, relief: Relief, choose: Any) -> bool:
        """A place is found among the nodes that the migration names, and looked at once more before the pod leaves."""
        where = int(choose(sorted(relief.nodes))[1:])
        if relief.refuse(self.view(where)):
            return False
        before = self.excess()
        self.pods[name] = (where, self.pods[name][1])
        self.brought[name], self.bound[name] = relief.usage["cpu"], self.now
        assert self.excess() <= before, f"{name} went to n{where}, which made the excess larger: {before} -> {self.excess()}"
        return True


SYSTEMS = st.lists(st.integers(0, 5_500), min_size=3, max_size=6)
PODS = st.lists(st.tuples(st.integers(0, 2), st.integers(300, 2_500)), min_size=6, max_size=24)


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-LNL-07")
@examples(60)
@given(systems=SYSTEMS, given_pods=PODS, late=st.sets(st.integers(0, 5)))
def test_whatever_the_scheduler_chooses_no_migration_makes_the_excess_larger_and_they_end(
    systems: list[int], given_pods: list[tuple[int, int]], late: set[int]
) -> None:
    """Nodes in `late` report every third round only."""
    sim = Sim(systems, {f"p{number}": (node % len(systems), milli) for number, (node, milli) in enumerate(given_pods)})
    for node in range(len(systems)):
        sim.report(node)
    for number in range(60):
        sim.now += 20.0
        for node in range(len(systems)):
            if node not in late or number % 3 == 0:
                sim.report(node)
        if not sim.round(lambda names: max(names, key=lambda name: sim.use(int(name[1:])))) and number % 3 == 0:
            return
    raise AssertionError(f"pods move for ever: {[sim.use(node) for node in range(len(systems))]}")


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.parametrize("ahead", [0.0, 2_300.0, -2_300.0], ids=["in step", "ahead", "behind"])
def test_pods_that_came_since_the_report_and_places_that_are_held_count_on_a_target(ahead: float) -> None:
    """Whatever the clock of who wrote when the pod came."""
    sim = Sim([6_500, 2_500, 2_500], {"a": (0, 700), "b": (0, 700), "c": (0, 700)})
    for node in range(3):
        sim.report(node)
    sim.now += 5
    sim.pods["new"], sim.bound["new"], sim.brought["new"] = (1, 3_000), sim.now + ahead, 3_000  # nobody has measured it yet
    view = sim.view(1)
    assert (view.usage or {})["cpu"] == 2_500
    assert view.arriving["cpu"] == 3_000
    held = sim.view(2, [Expected("n2", {"cpu": 10}, {"cpu": 3_100}, False, "j")])
    assert (held.arriving["cpu"], held.held("cpu")) == (3_100, 10)
    relief = Relief({"cpu": 700}, {})
    turn = sim.plugin.turn([sim.view(0), view, held], Handle("p", "LowNodeLoad", sim.now, [Open()]))  # type: ignore[list-item]
    assert not [effect for effect in turn if isinstance(effect, Evict)]  # either would be hot with one pod more
    assert "none of those that were found to have room" in relief.refuse(view)


@pytest.mark.feature("DS-LNL-08")
@pytest.mark.parametrize("unheard", [6.0, 4.0], ids=["since before the report", "since after it"])
def test_a_pod_of_which_only_the_report_tells_has_come_if_nothing_was_heard_of_pods_since(unheard: float) -> None:
    """Otherwise it has left."""
    sim = Sim([2_500, 2_500], {"known": (0, 700), "unknown": (0, 900)})
    sim.report(0)
    del sim.pods["unknown"]
    sim.now += 5
    view = sim.view(0, unheard=unheard)
    assert (view.usage or {})["cpu"] == 3_200
    assert view.arriving == ({"cpu": 900, "pods": 1} if unheard > 5 else {})
    assert view.prod_arriving == view.arriving  # nobody says otherwise


def told(sim: Sim, *, grow: int = 0, stays: Collection[str] = (), listed: bool = False) -> list[Any]:
    """A round in which whoever is told to leave goes to n1 at once but for who `stays` (all in a dry run, which is `listed`), while the
    system of n0 takes so much more; what was found out."""
    views = [sim.view(node) for node in range(len(sim.system))]
    handle = Handle("p", "LowNodeLoad", sim.now, [Open()])  # type: ignore[list-item]
    turn = sim.plugin.turn(views, handle)
    found: list[Any] = []
    answer: Any = None
    while True:
        try:
            effect = turn.send(answer)
        except StopIteration:
            return found
        answer = True
        found.append(effect)
        if isinstance(effect, Evict):
            name = effect.pod.metadata.name
            views[0].take(name)
            if listed:
                handle.listed.add(name)
            if listed or name in stays:
                continue
            sim.pods[name] = (1, sim.pods[name][1])
            sim.system[0] += grow


@pytest.mark.feature("DS-LNL-06")
def test_what_a_move_has_done_is_measured_by_the_first_report_after_it() -> None:
    sim = Sim([6_000, 500], {"a": (0, 700), "b": (0, 900)})
    sim.report(0)
    sim.report(1)
    assert [type(effect) for effect in told(sim)] == [Evict, Evict]
    sim.now += 20
    assert not told(sim)  # they are gone, but nothing newer is known
    sim.now += 20
    sim.report(0)
    (found,) = [effect for effect in told(sim) if isinstance(effect, Tell)]
    assert (set(found.pods), found.helped) == ({"a", "b"}, True)
    assert found.message == "node n0 after 2 pods have left: cpu 7600 before, 6000 expected, 6000 now"


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize("listed", [False, True], ids=["that fails", "of a dry run"])
def test_a_move_that_is_begun_again_and_again_counts_once(listed: bool) -> None:
    sim = Sim([6_000, 500], {"a": (0, 700)})
    for _ in range(20):
        sim.now += 60
        sim.report(0)
        sim.report(1)
        sim.plugin._detectors[False].reset("n0")
        assert [type(effect) for effect in told(sim, stays="a", listed=listed)] == [Evict]
    sim.pods["a"] = (1, 700)
    sim.now += 60
    assert not told(sim)
    sim.now += 60
    sim.report(0)
    found = [effect.message for effect in told(sim) if isinstance(effect, Tell)]
    assert found == ([] if listed else ["node n0 after 1 pods have left: cpu 6700 before, 6000 expected, 6000 now"])
    assert not sim.plugin._effects.moves("n0")


@pytest.mark.feature("DS-LNL-06")
def test_what_has_left_is_measured_though_others_of_its_move_stay() -> None:
    sim = Sim([6_000, 500], {"a": (0, 700), "b": (0, 900)})
    sim.report(0)
    sim.report(1)
    assert [type(effect) for effect in told(sim, stays="b")] == [Evict, Evict]
    found = []
    for left in ("", "", "b"):
        sim.pods |= dict.fromkeys(left, (1, 900))
        sim.now += 60
        told(sim, stays="b")
        sim.now += 60
        sim.report(0)
        found += [effect for effect in told(sim, stays="b") if isinstance(effect, Tell)]
    assert [(found[0].pods, found[0].helped), (found[-1].pods, found[-1].helped)] == [(("a",), True), (("b",), True)]
    assert "cpu 7600 before, 6900 expected, 6900 now" in found[0].message


@pytest.mark.feature("DS-LNL-06")
def test_a_node_that_moves_do_not_help_is_left_alone_for_a_while() -> None:
    """Whatever leaves, something on the node takes its place."""
    sim = Sim([3_000, 0, 0], {f"p{number}": (0, 300) for number in range(12)})
    left: list[int] = []
    for _ in range(16):
        sim.now += 30
        for node in range(3):
            sim.report(node)
        sim.plugin._detectors[False].reset("n0")
        found = told(sim, grow=300)
        left.append(sum(isinstance(effect, Evict) for effect in found))
        sim.pods = {name: entry for name, entry in sim.pods.items() if entry[0] == 0}  # n1 digests what it gets
    assert sum(left) < 12
    assert left[-8:] == [0] * 8
    handle = Handle("p", "LowNodeLoad", sim.now, [Open()])  # type: ignore[list-item]
    assert not [*sim.plugin.turn([sim.view(node) for node in range(3)], handle)]
    (record,) = [record for record in handle.records if record.verdict == "Relieved"]
    assert ": 2 times in a row pods have left, and it did not get cooler" in record.message
    assert ", hot for " in record.message


@pytest.mark.feature("DS-LNL-07")
def test_a_relief_says_the_same_when_it_is_read_again() -> None:
    sim = Sim([6_500, 500], {"a": (0, 700)})
    sim.report(0)
    sim.report(1)
    turn = sim.plugin.turn([sim.view(0), sim.view(1)], Handle("p", "LowNodeLoad", sim.now, [Open()]))  # type: ignore[list-item]
    (evict,) = [effect for effect in turn if isinstance(effect, Evict)]
    assert evict.relief is not None
    assert Relief.read(evict.relief.write()) == evict.relief
    assert list(evict.relief.nodes) == ["n1"]
    assert Relief.read("{}") is None
    assert Relief.read("no JSON") is None
    assert Relief.read('{"usage": {}, "nodes": []}') is None
    sim.system[1] = 5_500
    sim.report(1)
    assert evict.relief.refuse(sim.view(1)) == 'node "n1" would use 6200 of cpu with the pod, above 6000 it is hot'
    sim.now += 500
    assert evict.relief.refuse(sim.view(1)) == 'node "n1" has not reported its load for 500 s'


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-LNL-07")
@pytest.mark.parametrize("seconds", ["0s", "5m"])
def test_a_place_is_looked_at_by_the_percentile_by_which_it_was_chosen(seconds: str) -> None:
    by = {"aggregated": {"usageAggregationType": "p95", "usageAggregatedDuration": seconds}}
    sim = Sim([4_500, 500], {"a": (0, 700)}, plugin=LowNodeLoad(LowNodeLoadArgs.model_validate(ARGS | by), 60.0))
    sim.report(0, peak=1_000)
    sim.report(1)
    turn = sim.plugin.turn([sim.view(0), sim.view(1)], Handle("p", "LowNodeLoad", sim.now, [Open()]))  # type: ignore[list-item]
    (evict,) = [effect for effect in turn if isinstance(effect, Evict)]
    assert evict.relief is not None
    again = Relief.read(evict.relief.write())
    assert again == evict.relief
    assert again.refuse(sim.view(1)) == ""
    sim.report(1, peak=5_000)
    assert again.refuse(sim.view(1)) == 'node "n1" would use 6200 of cpu with the pod, above 6000 it is hot'
    sim.reports[1].status.node_metric.aggregated_node_usages[0].usage["p95"].resources["cpu"] = "much"  # type: ignore[union-attr]
    assert again.refuse(sim.view(1)) == ""  # by the average, as in rounds


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize(
    ("used", "others", "after", "left_alone"),
    [(9_700, 0, 9_700, False), (9_520, 0, 9_480, False), (7_000, 2_700, 7_000, False), (7_000, 0, 7_000, True)],
    ids=["full", "full before", "full with those who leave anyway", "not full"],
)
def test_a_full_node_does_not_look_as_if_moves_were_in_vain(used: int, others: int, after: int, left_alone: bool) -> None:
    """What a pod leaves there is taken by those who were short of it, so use says nothing; below that it does."""
    sim = Sim([0, 0], {})
    for number in range(TRIES):
        sim.system[0], sim.pods = used - 300, {f"a{number}": (0, 300), f"deleted{number}": (0, others)}
        sim.report(0)
        sim.report(1)
        del sim.pods[f"deleted{number}"]  # by its user, a moment ago
        sim.plugin._detectors[False].reset("n0")
        assert [effect for effect in told(sim) if isinstance(effect, Evict)]
        sim.now += 1
        assert not told(sim)
        sim.now += 60
        sim.system[0] = after - sum(milli for where, milli in sim.pods.values() if where == 0)
        sim.report(0)
        (measured,) = [effect for effect in told(sim) if isinstance(effect, Tell)]
        assert not measured.helped
        sim.now += 60
    assert bool(sim.plugin._effects.why_not("n0", sim.now)) is left_alone


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize(("seconds", "helped"), [(-5.0, True), (5.0, False)], ids=["before", "since"])
def test_who_came_before_a_move_was_decided_and_was_in_no_report_did_not_take_the_place_of_who_left(seconds: float, helped: bool) -> None:
    sim = Sim([5_600, 500], {"a": (0, 700), "b": (0, 900)})
    sim.report(0)
    sim.report(1)
    if seconds < 0:
        sim.pods["new"] = (0, 2_000)
    assert [type(effect) for effect in told(sim)] == [Evict, Evict]
    sim.pods["new"] = (0, 2_000)
    sim.now += 20
    assert not told(sim)
    sim.now += 20
    sim.report(0)
    found = [effect for effect in told(sim) if isinstance(effect, Tell)]
    assert [each.helped for each in found] == [helped]


@pytest.mark.feature("DS-LNL-06")
def test_what_two_moves_of_a_node_have_done_together_counts_once() -> None:
    """The second one was told to leave before the first had gone; one report tells of both."""
    effects = Effects()

    def seen(at: float, used: int, *names: str) -> NodeView:
        pods = [
            convert({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"nodeName": "n1", "containers": []}}, Pod)
            for name in names
        ]
        node = convert({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "10"}}}, Node)
        info = {"systemUsage": {"resources": {"cpu": f"{used}m"}}}
        metric = convert({"metadata": {"name": "n1"}, "status": {"updateTime": format_time(at), "nodeMetric": info}}, NodeMetric)
        return node_view(node, pods, metric, now=at)

    effects.moved("n1", {"a": {"cpu": 700}}, {"cpu": 7100})
    effects.moved("n1", {"b": {"cpu": 700}}, {"cpu": 7100})
    assert effects.observe(seen(1000.0, 7100, "a", "b"), 1000.0) == []
    assert effects.observe(seen(1010.0, 7100), 1010.0) == []
    (measured,) = effects.observe(seen(1070.0, 5700), 1070.0)
    assert (measured.pods, measured.before, measured.expected, measured.after) == (("a", "b"), {"cpu": 7100}, {"cpu": 5700}, {"cpu": 5700})


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize("accepted", [False, True], ids=["asked", "accepted"])
@pytest.mark.parametrize("begun", [7100, 6400], ids=["told at once", "told when the first was leaving"])
@pytest.mark.parametrize("here", [True, False], ids=["there", "gone"])
def test_what_two_moves_have_done_is_told_apart_by_two_reports(accepted: bool, begun: int, here: bool) -> None:
    """Two pods of 700m leave a node that uses 7100m. The first report after the first has left may be without the second one already."""
    effects = Effects()

    def seen(at: float, reported: float, system: int, *names: str) -> NodeView:
        pods = [
            convert({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"nodeName": "n1", "containers": []}}, Pod)
            for name in names
        ]
        node = convert({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "10"}}}, Node)
        status = {
            "updateTime": format_time(reported),
            "nodeMetric": {"systemUsage": {"resources": {"cpu": f"{system}m"}}},
            "podsMetric": [{"namespace": "d", "name": name, "podUsage": {"resources": {"cpu": "700m"}}} for name in ("a", "b")],
        }
        metric = convert({"metadata": {"name": "n1"}, "status": status}, NodeMetric)
        return Snapshots(accepted=lambda pod: accepted).node(node, pods, metric, now=at)

    effects.moved("n1", {"a": {"cpu": 700}}, {"cpu": 7100})
    effects.moved("n1", {"b": {"cpu": 700}}, {"cpu": begun})
    assert effects.observe(seen(1010.0, 1000.0, 5700, "b"), 1010.0) == []
    (first,) = effects.observe(seen(1070.0, 1060.0, 5700, *(["b"] if here else [])), 1070.0)
    assert effects.observe(seen(1080.0, 1060.0, 5700), 1080.0) == []
    (second,) = effects.observe(seen(1130.0, 1120.0, 5700), 1130.0)
    told = [(each.pods, each.before["cpu"] - each.after["cpu"], each.helped) for each in (first, second)]
    assert told == [(("a",), 700, True), (("b",), 700, True)]
