"""LowNodeLoad's formulas, by the worked examples of its specification and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import objects
from roles.descheduler.cost import canonical_int32
from roles.descheduler.framework.effects import Evict, Pause
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.lownodeload.args import AnomalyCondition, LowNodeLoadArgs
from roles.descheduler.plugins.lownodeload.classify import NodeClass, classify, quantity_at
from roles.descheduler.plugins.lownodeload.detector import Detectors
from roles.descheduler.plugins.lownodeload.order import leaving_order, node_score, usage_score
from roles.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from roles.descheduler.plugins.lownodeload.room import headroom
from roles.descheduler.snapshot import NodeView, node_view, pod_view


def pool_of(**args: object):
    return LowNodeLoadArgs.model_validate(args).pools()[0]


def node(name: str, *, cpu: str = "10", memory: str = "10Gi", unschedulable: bool = False) -> objects.Node:
    return objects.convert(
        {
            "metadata": {"name": name},
            "spec": {"unschedulable": unschedulable},
            "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
        },
        objects.Node,
    )


def pod(name: str, cpu: str = "1", **spec: object) -> objects.Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return objects.convert(
        {
            "metadata": {"name": name, "uid": name, "namespace": "d", "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u"}]},
            "spec": {"containers": [container], **spec},
            "status": {"phase": "Running"},
        },
        objects.Pod,
    )


def view(name: str, used_milli: int, *, prod_milli: int = 0, unschedulable: bool = False) -> NodeView:
    usage = {"cpu": used_milli, "memory": 0, "pods": 0}
    found = NodeView(node(name, unschedulable=unschedulable), {"cpu": 10000, "memory": 10 << 30, "pods": 110}, [], usage)
    found.capacity = found.allocatable
    found.prod_usage = {"cpu": prod_milli, "memory": 0, "pods": 0}
    return found


@pytest.mark.feature("DS-LNL-01")
def test_threshold_quantities_truncate_in_doubles() -> None:
    assert quantity_at(67.5, 15900) == 10732
    assert quantity_at(63, 33_554_432_001) == 21_139_292_160


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-LNL-03")
def test_the_table_of_classes() -> None:
    pool = pool_of(lowThresholds={"cpu": 30}, highThresholds={"cpu": 70}, prodLowThresholds={"cpu": 20}, prodHighThresholds={"cpu": 50})
    views = [
        view("low-and-prod-low", 1000),
        view("low", 3000, prod_milli=2500),
        view("low-but-cordoned", 1000, unschedulable=True),
        view("normal", 5000, prod_milli=3000),
        view("prod-low", 5000, prod_milli=1000),
        view("prod-hot", 6000, prod_milli=5001),
        view("hot", 7001, prod_milli=6000),
        view("exactly-high", 7000, prod_milli=3000),
    ]
    assert {placed.view.name: placed.node_class for placed in classify(views, pool)} == {
        "low-and-prod-low": NodeClass.BOTH_LOW,
        "low": NodeClass.LOW,
        "low-but-cordoned": NodeClass.NORMAL,
        "normal": NodeClass.NORMAL,
        "prod-low": NodeClass.PROD_LOW,
        "prod-hot": NodeClass.PROD_HOT,
        "hot": NodeClass.HOT,
        "exactly-high": NodeClass.NORMAL,
    }


@pytest.mark.feature("DS-LNL-02")
def test_deviation_thresholds_lie_around_the_average() -> None:
    pool = pool_of(useDeviationThresholds=True, lowThresholds={"cpu": 10}, highThresholds={"cpu": 10})
    placed = {entry.view.name: entry for entry in classify([view("a", 2000), view("b", 5000), view("c", 8000)], pool)}
    assert placed["a"].bounds.low["cpu"] == 4000
    assert placed["a"].bounds.high["cpu"] == 6000
    assert placed["a"].bounds.high["memory"] == 10 << 30  # not named: ignored
    assert [placed[name].node_class for name in "abc"] == [NodeClass.BOTH_LOW, NodeClass.PROD_LOW, NodeClass.HOT]


@pytest.mark.feature("DS-LNL-04")
def test_a_node_is_abnormal_from_the_round_after_n() -> None:
    condition, detectors = AnomalyCondition(timeout=60.0, consecutive_abnormalities=4), Detectors(300)
    marks = [detectors.marked("n", condition, now) for now in range(0, 160, 20)]
    assert marks == [False, False, False, False, True, True, True, False]


@pytest.mark.feature("DS-LNL-04")
def test_a_round_in_which_the_node_is_not_hot_breaks_the_run() -> None:
    condition, detectors = AnomalyCondition(consecutive_abnormalities=2), Detectors(300)
    assert not detectors.marked("n", condition, 0)
    assert not detectors.marked("n", condition, 10)
    detectors.clean_round({"n"})
    assert [detectors.marked("n", condition, now) for now in (30, 40, 50)] == [False, False, True]


@pytest.mark.feature("DS-LNL-06")
def test_the_pod_that_just_covers_the_excess_leaves_first() -> None:
    views = []
    for name, used in (("a", 2300), ("b", 2000), ("c", 1900), ("d", 5000)):
        views.append(pod_view(pod(name), {"cpu": used}))
    views.append(pod_view(pod("unmeasured"), None))
    order = leaving_order(views, {"cpu": 2000}, {"cpu": 1})
    assert [entry.pod.metadata.name for entry in order] == ["b", "a", "d", "c", "unmeasured"]
    two = pod_view(pod("x"), {"cpu": 500, "memory": 1250})
    assert usage_score(two, {"cpu": 1000, "memory": 1000}, {"cpu": 2, "memory": 1}) == pytest.approx(0.9333, abs=1e-4)


@pytest.mark.feature("DS-LNL-06")
def test_lower_classes_leave_before_better_matches() -> None:
    batch = pod_view(pod("batch", priority=5500), {"cpu": 1})
    prod = pod_view(pod("prod", priority=9500), {"cpu": 2000})
    assert [entry.pod.metadata.name for entry in leaving_order([prod, batch], {"cpu": 2000}, {"cpu": 1})] == ["batch", "prod"]


@pytest.mark.feature("DS-LNL-06")
def test_node_score_in_integers() -> None:
    assert node_score({"cpu": 5200, "memory": 30 << 30}, {"cpu": 8000, "memory": 32 << 30}, {"cpu": 1, "memory": 3}) == 865


@pytest.mark.parametrize(
    ("text", "value"), [("-5", -5), ("0", 0), ("12", 12), ("+1", None), ("007", None), ("2147483648", None), ("x", None)]
)
def test_costs_are_canonical_integers(text: str, value: int | None) -> None:
    assert canonical_int32(text) == value


@pytest.mark.feature("DS-LNL-08")
def test_usage_is_system_plus_pods_that_are_still_there() -> None:
    metric = objects.convert(
        {
            "metadata": {"name": "n"},
            "status": {
                "updateTime": "1970-01-01T00:01:00Z",
                "nodeMetric": {"systemUsage": {"resources": {"cpu": "500m", "memory": "1Gi"}}},
                "podsMetric": [
                    {"namespace": "d", "name": "here", "podUsage": {"resources": {"cpu": "2", "memory": "1Gi"}}},
                    {"namespace": "d", "name": "gone", "podUsage": {"resources": {"cpu": "4", "memory": "4Gi"}}},
                ],
            },
        },
        objects.NodeMetric,
    )
    found = node_view(node("n"), [pod("here", priority=9500)], metric, now=100)
    assert found.usage == {"cpu": 2500, "memory": 2 << 30, "pods": 1}
    assert found.prod_usage == {"cpu": 2000, "memory": 1 << 30, "pods": 1}
    assert found.metric_age == 40


@given(st.lists(st.integers(0, 10000), min_size=1, max_size=12), st.integers(0, 100), st.integers(0, 100))
def test_property_every_measured_node_has_exactly_one_class(usages: list[int], one: int, other: int) -> None:
    low, high = sorted((one, other))
    pool = pool_of(lowThresholds={"cpu": low}, highThresholds={"cpu": high})
    placed = classify([view(f"n{i}", used) for i, used in enumerate(usages)], pool)
    assert len(placed) == len(usages)
    for entry in placed:
        used = (entry.view.usage or {})["cpu"]
        if entry.node_class == NodeClass.HOT:
            assert used > entry.bounds.high["cpu"]
        if entry.node_class in (NodeClass.LOW, NodeClass.BOTH_LOW):
            assert used <= entry.bounds.low["cpu"]


@pytest.mark.feature("DS-LNL-05")
def test_a_pool_takes_from_the_top_level_what_it_leaves_out() -> None:
    args = LowNodeLoadArgs.model_validate(
        {
            "lowThresholds": {"cpu": 30},
            "highThresholds": {"cpu": 60},
            "resourceWeights": {"cpu": 3},
            "anomalyCondition": {"timeout": "90s", "consecutiveAbnormalities": 7},
            "nodePools": [
                {"name": "own", "highThresholds": {"cpu": 80}, "anomalyCondition": {"consecutiveNormalities": 9}},
                {"name": "bare"},
            ],
        }
    )
    top, own, bare = args.pools()
    assert (top.anomaly.timeout, top.anomaly.consecutive_abnormalities, top.anomaly.consecutive_normalities) == (90.0, 7, 3)
    assert (own.anomaly.timeout, own.anomaly.consecutive_abnormalities, own.anomaly.consecutive_normalities) == (90.0, 7, 9)
    assert (own.low["cpu"], own.high["cpu"], own.weights["cpu"]) == (30, 80, 3)
    assert (bare.low, bare.high, bare.anomaly) == (top.low, top.high, top.anomaly)


@pytest.mark.feature("DS-LNL-04")
@pytest.mark.parametrize("interval", [60.0, 300.0, 1200.0])
def test_a_round_remembers_the_one_before_whatever_the_interval(interval: float) -> None:
    """With an interval of detectorCacheTimeout (five minutes) or more, every round began to count anew, and no node was ever abnormal."""
    args = LowNodeLoadArgs.model_validate({"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 60}})
    plugin = LowNodeLoad(args, interval)
    told = []
    for number in range(7):
        handle = Handle("p", "LowNodeLoad", number * (interval + 0.5), [])
        assert all(isinstance(effect, Pause) for effect in plugin.turn([view("hot", 9000), view("low", 1000)], handle))
        told += [record.message for record in handle.records if record.verdict == "Relieved"]
    assert "hot in 5 rounds in a row" in told[4]
    assert "rounds in a row" not in told[5]


def relieving(nodes: list[NodeView], **args: object) -> list[tuple[str, str]]:
    """Pods that leave in a round that grants all of them, and where to."""
    plugin = LowNodeLoad(LowNodeLoadArgs.model_validate({"anomalyCondition": {"consecutiveAbnormalities": 1}, **args}), 60.0)
    found: list[tuple[str, str]] = []
    turn, answer = plugin.turn(nodes, Handle("p", "LowNodeLoad", 0.0, [])), None
    while True:
        try:
            effect = turn.send(answer)
        except StopIteration:
            return found
        answer = True
        if isinstance(effect, Evict):
            found.append((effect.pod.metadata.name, effect.target))
            next(each for each in nodes if each.name == effect.pod.spec.node_name).take(effect.pod.metadata.uid)


def with_pods(found: NodeView, *used_milli: int, prod: bool = False) -> NodeView:
    """A node with pods that use so much of what it uses."""
    priority = {"priority": 9500} if prod else {}
    for number, used in enumerate(used_milli):
        made = pod(f"{found.name}-{number}", nodeName=found.name, **priority)
        found.pods.append(pod_view(made, {"cpu": used}))
    return found


@pytest.mark.feature("DS-LNL-07")
def test_a_target_that_will_be_full_takes_no_room_from_the_others() -> None:
    """A node was silent while pods came to it: what they will use above its threshold was taken from the room of all low nodes, and no
    pod left the hot one."""
    silent = view("silent", 200)
    silent.arriving = {"cpu": 14000, "pods": 7}
    free = view("free", 2000)
    nodes = [with_pods(view("hot", 8000), 2500, 2500), free, silent]
    assert relieving(nodes, lowThresholds={"cpu": 30}, highThresholds={"cpu": 60}) == [("hot-0", "free")]
    placed = classify([free, silent], pool_of(lowThresholds={"cpu": 30}, highThresholds={"cpu": 60}))
    assert headroom(placed, {}, prod=False)["cpu"] == 4000


@pytest.mark.feature("DS-LNL-08")
@pytest.mark.parametrize("told", [{}, {"cpu": "1"}, {"memory": "1Gi"}])
def test_a_report_without_a_resource_does_not_say_that_it_is_unused(told: dict[str, str]) -> None:
    """Such a node counted as low, and pods were sent to it."""

    def left(usage: dict[str, str]) -> list[tuple[str, str]]:
        status = {"updateTime": "1970-01-01T00:00:00Z", "nodeMetric": {"systemUsage": {"resources": usage}}}
        metric = objects.convert({"metadata": {"name": "mute"}, "status": status}, objects.NodeMetric)
        thresholds = {"lowThresholds": {"cpu": 30, "memory": 30}, "highThresholds": {"cpu": 60, "memory": 60}}
        return relieving([with_pods(view("hot", 8000), 2500), node_view(node("mute"), [], metric, now=0.0)], **thresholds)

    assert left(told) == []
    assert left({"cpu": "1", "memory": "1Gi"}) == [("hot-0", "mute")]


@pytest.mark.feature("DS-LNL-07")
def test_what_the_last_pod_took_beyond_the_room_of_all_pods_is_not_missing_for_prod_pods() -> None:
    """The first pass spent more than there was, for a pod may be larger than what is left, and the second one began below zero."""
    nodes = [
        with_pods(view("hot", 9000), 3000),
        with_pods(view("prod-hot", 5500, prod_milli=5500), 700, 700, prod=True),
        view("both-low", 5000),
        view("prod-low", 5200, prod_milli=3600),
    ]
    thresholds = {
        "lowThresholds": {"cpu": 50},
        "highThresholds": {"cpu": 60},
        "prodLowThresholds": {"cpu": 40},
        "prodHighThresholds": {"cpu": 45},
    }
    assert [name for name, _ in relieving(nodes, nodeFit=False, **thresholds)] == ["hot-0", "prod-hot-0", "prod-hot-1"]
