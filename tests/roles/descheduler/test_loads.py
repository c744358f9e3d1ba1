"""LowNodeLoad through the role's door: nodes, metrics and pods in, evictions out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koord import seams
from koord.api import kinds
from koord.api.objects import Node, NodeMetric, convert
from roles.descheduler.percentile import Percentile, shift, usage_of
from roles.descheduler.snapshot import NodeView
from tests.roles.descheduler.support import Obj, after_rounds, configuration, descheduling, eventually, metric, node, pod

ONCE = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1, "timeout": "1m"}
BASE: Obj = {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 60}, "anomalyCondition": ONCE}
OWNERS = pod("o", "x")["metadata"]["ownerReferences"]


def balanced(args: Obj, objects: list[Obj], **top: Any):
    return after_rounds(objects, configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": {**BASE, **args}}, **top))


def prod(name: str, where: str = "hot", **more: Any) -> Obj:
    return pod(name, where, cpu="100m", meta={"labels": {"koordinator.sh/priority-class": "koord-prod"}, "ownerReferences": OWNERS}, **more)


def batch(name: str, where: str = "hot", **more: Any) -> Obj:
    return pod(
        name, where, cpu="100m", meta={"labels": {"koordinator.sh/priority-class": "koord-batch"}, "ownerReferences": OWNERS}, **more
    )


@pytest.mark.feature("DS-LNL-06")
def test_a_hot_node_is_relieved_and_the_reason_says_by_how_much() -> None:
    objects = [
        node("hot"), node("idle"),
        *(pod(name, "hot", cpu="100m") for name in ("a", "b", "c")),
        metric("hot", "4", {"a": "1500m", "b": "1", "c": "500m"}), metric("idle", "1"),
    ]  # fmt: skip
    done = balanced({}, objects)
    assert done.pods == {"a", "c"}  # 1000m too much, which is just what b uses
    record = done.records("Evicted")[0]
    assert record.numbers["reason"] == "node is overutilized, node cpu usage(70.00%)>threshold(60.00%)"


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize(("system", "left"), [("2", 2), ("5500m", 3), ("6", 4)])
def test_the_low_nodes_room_bounds_what_leaves(system: str, left: int) -> None:
    """Four cores too many. Room of four cores takes two pods; half a core takes the one that is begun with; no room takes none."""
    pods = {"a": "2", "b": "2", "c": "2", "d": "2"}
    objects = [
        node("hot"), node("idle"),
        *(pod(name, "hot", cpu="100m") for name in pods),
        metric("hot", "2", pods), metric("idle", system),
    ]  # fmt: skip
    assert len(balanced({"nodeFit": False, "lowThresholds": {"cpu": 60}}, objects).pods) == left


@pytest.mark.feature("DS-LNL-06")
def test_a_node_that_stays_hot_for_want_of_room_says_how_much_room_would_help() -> None:
    pods = {"a": "2", "b": "2", "c": "2", "d": "2"}
    objects = [
        node("hot"), node("idle"),
        *(pod(name, "hot", cpu="100m") for name in pods),
        metric("hot", "2", pods), metric("idle", "5500m"),
    ]  # fmt: skip
    done = balanced({"nodeFit": False, "lowThresholds": {"cpu": 60}}, objects)
    (record,) = done.records("Relieved")
    assert "the low nodes have no room left for cpu" in record.message
    terms = {term.name: term for term in record.terms}
    assert terms["it fits no low node"].value == 3
    assert terms["smallest change that would help"].note.count("default/") == 1
    assert "idle" in terms["smallest change that would help"].note


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.parametrize(("system", "usage"), [("7", "-5"), ("-5", "7")])
def test_what_is_reported_to_use_less_than_nothing_cools_no_node(system: str, usage: str) -> None:
    """Seven of ten cores are used, whatever the other number means."""
    objects = [
        node("hot"), node("idle"), pod("strange", "hot", cpu="100m"), pod("b", "hot", cpu="100m"),
        metric("hot", system, {"strange": usage, "b": "10m"}), metric("idle", "1"),
    ]  # fmt: skip
    assert len(balanced({}, objects).pods) < 2


@pytest.mark.feature("DS-LNL-07")
def test_room_is_promised_once() -> None:
    """Both targets could take one pod of 2 cores each, but not two."""
    pods = {"a": "2", "b": "2", "c": "2", "d": "2"}
    objects = [
        node("hot"), node("t1"), node("t2"),
        *(pod(name, "hot", cpu="100m") for name in pods),
        metric("hot", "1500m", pods), metric("t1", "3"), metric("t2", "3"),
    ]  # fmt: skip
    done = balanced({"highThresholds": {"cpu": 55}, "lowThresholds": {"cpu": 30}}, objects)
    assert len(done.pods) == 2
    assert {record.numbers["target"] for record in done.records("Evicted")} == {"t1", "t2"}


@pytest.mark.feature("DS-LNL-07")
def test_a_pod_that_no_metric_tells_of_stays_with_node_fit() -> None:
    objects = [
        node("hot"), node("idle"), pod("unknown", "hot"), pod("known", "hot"),
        metric("hot", "6", {"known": "900m"}), metric("idle", "1"),
    ]  # fmt: skip
    assert balanced({}, objects).pods == {"unknown"}
    only = [item for item in objects if item["metadata"]["name"] != "known"]
    assert balanced({}, [*only[:-2], metric("hot", "7"), metric("idle", "1")]).pods == {"unknown"}
    assert balanced({"nodeFit": False}, [*only[:-2], metric("hot", "7"), metric("idle", "1")]).pods == set()


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.parametrize("whose", ["its own", "the other's"])
@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "zone"])
def test_a_pod_that_anti_affinity_keeps_off_the_low_nodes_does_not_leave_in_place_of_one_that_could(whose: str, key: str) -> None:
    """The pod that would relieve the node best could go nowhere: its migration would only use up what may migrate at once."""

    def apart(name: str) -> Obj:
        term = {"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": key}
        return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}

    def labelled(name: str) -> Obj:
        return {"meta": {"labels": {"app": name}, "ownerReferences": OWNERS}}

    best, other = (apart("noise"), {}) if whose == "its own" else ({}, apart("best"))
    objects = [
        node("hot", labels={"zone": "a"}), node("idle", labels={"zone": "b"}), node("full", labels={"zone": "b"}),
        pod("best", "hot", cpu="100m", **labelled("best"), **best), pod("next", "hot", cpu="100m", **labelled("next")),
        pod("noise", "full" if key == "zone" else "idle", cpu="100m", **labelled("noise"), **other),
        metric("hot", "5", {"best": "1500m", "next": "500m"}), metric("idle", "1"), metric("full", "5"),
    ]  # fmt: skip
    assert balanced({}, objects).pods == {"best", "noise"}


@pytest.mark.feature("DS-LNL-07")
@pytest.mark.parametrize("whose", ["both", "the first's", "the second's", "nobody's"])
@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "zone"])
def test_of_two_pods_that_exclude_one_another_one_leaves_for_the_only_low_place(whose: str, key: str) -> None:
    """The second one would be evicted for a place that its successor may not have."""

    def fields(name: str, *, apart: bool) -> Obj:
        term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": key}
        affinity = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
        return {"meta": {"labels": {"app": "web", "pod": name}, "ownerReferences": OWNERS}, **(affinity if apart else {})}

    one = pod("one", "hot-a", cpu="100m", **fields("one", apart=whose in ("both", "the first's")))
    two = pod("two", "hot-b", cpu="100m", **fields("two", apart=whose in ("both", "the second's")))
    low = ["low-a"] if key == "kubernetes.io/hostname" else ["low-a", "low-b"]
    objects = [
        node("hot-a", labels={"zone": "a"}), node("hot-b", labels={"zone": "b"}), *(node(name, labels={"zone": "c"}) for name in low),
        one, two, metric("hot-a", "7", {"one": "1500m"}), metric("hot-b", "6500m", {"two": "1"}), *(metric(name, "1") for name in low),
    ]  # fmt: skip
    done = balanced({}, objects)
    assert done.pods == (set() if whose == "nobody's" else {"two"})


PROD = {
    "lowThresholds": {"cpu": 50}, "highThresholds": {"cpu": 90}, "prodLowThresholds": {"cpu": 20}, "prodHighThresholds": {"cpu": 40},
}  # fmt: skip


@pytest.mark.feature("DS-LNL-03")
def test_prod_pods_leave_nodes_that_are_hot_for_prod_alone() -> None:
    objects = [
        node("hot"), node("idle"), prod("p1"), prod("p2"), batch("b1"),
        metric("hot", "1", {"p1": "3", "p2": "2", "b1": "2"}), metric("idle", "1"),
    ]  # fmt: skip
    done = balanced(PROD, objects)
    # Prod uses 5 cores of 10, 4 are allowed: the one that covers the excess leaves, batch does not
    assert done.pods == {"p1", "b1"}
    assert done.records("Evicted")[0].numbers["reason"] == "node is overutilized, prod cpu usage(50.00%)>threshold(40.00%)"
    classes = {record.subject.name: record.numbers["class"] for record in done.records("Classified")}
    assert classes == {"hot": "prodHot", "idle": "bothLow"}


@pytest.mark.feature("DS-LNL-03")
def test_room_that_the_first_pass_took_is_not_there_for_the_second() -> None:
    objects = [
        node("hot"), node("prodhot"), node("both"),
        batch("b1"), prod("p1", "prodhot"), prod("p2", "prodhot"),
        metric("hot", "6", {"b1": "3"}), metric("prodhot", "500m", {"p1": "2500m", "p2": "2"}), metric("both", "1"),
    ]  # fmt: skip
    args = {**PROD, "lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 60}, "nodeFit": False}
    done = balanced(args, objects)
    assert done.pods == {"p1"}  # both: 5 cores of room, 3 go to batch, 2 are left for Prod
    tight = [*objects[:-1], metric("both", "2"), node("more"), metric("more", "5")]
    assert balanced(args, tight).pods == {"p1"}
    none_left = {**args, "highThresholds": {"cpu": 40}, "prodHighThresholds": {"cpu": 40}}
    assert balanced(none_left, objects).pods == {"p1", "p2"}  # 3 cores of room, all of it taken by batch


@pytest.mark.feature("DS-LNL-05")
def test_pools_have_thresholds_of_their_own() -> None:
    gpu = {"labels": {"pool": "gpu"}}
    objects = [
        node("g-hot", **gpu), node("g-idle", **gpu), node("c-warm"), node("c-idle"),
        pod("g", "g-hot", cpu="100m"), pod("c", "c-warm", cpu="100m"),
        metric("g-hot", "7", {"g": "1"}), metric("g-idle", "4"), metric("c-warm", "5", {"c": "500m"}), metric("c-idle", "1"),
    ]  # fmt: skip
    pool = {
        "name": "gpu",
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        "lowThresholds": {"cpu": 50},
        "highThresholds": {"cpu": 75},
    }
    top = {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]}, "nodePools": [pool]}
    done = balanced(top, objects)
    assert done.pods == {"c"}
    assert done.records("Evicted")[0].numbers["target"] == "g-idle"
    # what a pool leaves out comes from the top level: c is hot above 50 %
    inherits = {**top, "highThresholds": {"cpu": 50}, "nodePools": [{"name": "gpu", "nodeSelector": pool["nodeSelector"]}]}
    assert balanced(inherits, objects).pods == {"g"}  # g-idle is above 30 %, so the gpu pool has no target


@pytest.mark.feature("DS-LNL-02")
def test_deviation_thresholds_lie_around_the_average() -> None:
    objects = [
        node("hot"), node("idle"), node("mid"), pod("p", "hot", cpu="100m"),
        metric("hot", "7", {"p": "1"}), metric("idle", "2"), metric("mid", "5"),
    ]  # fmt: skip
    args = {"useDeviationThresholds": True, "lowThresholds": {"cpu": 10}, "highThresholds": {"cpu": 20}}
    assert balanced(args, objects).pods == set()  # the average is 50 %: hot is above 70 %
    assert balanced({**args, "highThresholds": {"cpu": 31}}, objects).pods == {"p"}


@pytest.mark.feature("DS-LNL-08")
def test_amplified_nodes_are_judged_by_what_they_really_have() -> None:
    raw = {"node.koordinator.sh/raw-allocatable": json.dumps({"cpu": "10", "memory": "20Gi"})}
    objects = [
        node("hot", cpu="20", annotations=raw), node("idle"), pod("p", "hot", cpu="100m"),
        metric("hot", "6", {"p": "1"}), metric("idle", "1"),
    ]  # fmt: skip
    assert balanced({}, objects).pods == set()
    assert balanced({}, [node("hot", cpu="20"), *objects[1:]]).pods == {"p"}
    bad = {"node.koordinator.sh/raw-allocatable": "ten"}
    assert balanced({}, [node("hot", cpu="20", annotations=bad), *objects[1:]]).pods == {"p"}


@pytest.mark.feature("DS-LNL-08")
def test_what_is_not_amplified_is_as_the_status_says() -> None:
    """The annotation holds cpu and memory at most: a node that has it must not count as one without pod slots, or without memory."""
    raw = {"node.koordinator.sh/raw-allocatable": json.dumps({"cpu": "10"})}
    objects = [
        node("calm", cpu="20", annotations=raw), node("idle", cpu="20", annotations=raw), pod("p", "calm", cpu="100m"),
        metric("calm", "4", {"p": "1"}), metric("idle", "1"),
    ]  # fmt: skip
    thresholds = {"lowThresholds": {"cpu": 30, "pods": 10}, "highThresholds": {"cpu": 60, "pods": 20}}
    outcome = balanced(thresholds, objects)
    assert outcome.pods == {"p"}
    assert {record.subject.name: record.numbers["class"] for record in outcome.records("Classified")} == {
        "calm": "prodLow",
        "idle": "bothLow",
    }


@pytest.mark.feature("DS-LNL-04")
def test_a_node_must_stay_hot_for_more_than_n_rounds() -> None:
    objects = [
        node("hot"), node("idle"), pod("p", "hot", cpu="100m"), metric("hot", "6", {"p": "1"}), metric("idle", "1"),
    ]  # fmt: skip
    patient = {**BASE, "anomalyCondition": {"consecutiveAbnormalities": 2, "consecutiveNormalities": 1, "timeout": "1m"}}

    async def scenario() -> None:
        text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": patient}, deschedulingInterval="50ms")
        async with descheduling(objects, text) as running:
            await eventually(lambda: running.records("Evicted"))
            hot = [record for record in running.records("Classified") if record.subject.name == "hot"]
            waits = [record for record in running.records("Round") if "for long enough" in record.message]
            evicted = running.records("Evicted")[0].time
            assert len([record for record in hot if record.time <= evicted]) == 3
            assert len(waits) == 2

    asyncio.run(scenario())


@pytest.mark.feature("DS-LNL-06")
def test_a_pod_that_left_since_the_metrics_does_not_keep_a_node_hot() -> None:
    """The metrics stay as they are: after one eviction the node is cool for good, although they still tell of the pod."""
    pods = {"a": "1", "b": "1", "c": "1"}
    objects = [
        node("hot"), node("idle"), *(pod(name, "hot", cpu="100m") for name in pods), metric("hot", "4", pods), metric("idle", "1"),
    ]  # fmt: skip

    async def scenario() -> None:
        text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": BASE}, deschedulingInterval="50ms")
        async with descheduling(objects, text) as running:
            await running.wait_rounds(4)
            assert len(await running.pods()) == 2

    asyncio.run(scenario())


@pytest.mark.feature("DS-LNL-06")
def test_a_migration_under_way_is_not_begun_twice() -> None:
    """A ReservationFirst job waits for its place; the pod is still there, and its node must not be relieved of a second one."""
    pods = {"a": "1", "b": "1", "c": "1"}
    free = [{**owner, "controller": False} for owner in OWNERS]
    objects = [
        node("hot"), node("idle"), *(pod(name, "hot", cpu="100m", meta={"ownerReferences": free}) for name in pods),
        metric("hot", "4", pods), metric("idle", "1"),
    ]  # fmt: skip

    async def scenario() -> None:
        text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": BASE}, deschedulingInterval="100ms")
        text = text.replace("name: DefaultEvictor", "name: MigrationController")
        async with descheduling(objects, text) as running:
            await running.wait_rounds(5)
            jobs = (await running.client.list(kinds.PODMIGRATIONJOBS)).items
            assert len(jobs) == 1
            assert len(await running.pods()) == 3

    asyncio.run(scenario())


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, True),
        ({"numberOfNodes": 1}, False),
        ({"paused": True}, False),
        ({"dryRun": True}, False),
        ({"podSelectors": [{"name": "x", "selector": {"matchLabels": {"no": "such"}}}]}, False),
        ({"podSelectors": [{"name": "none"}]}, True),
        ({"evictableNamespaces": {"exclude": ["default"]}}, False),
        ({"evictableNamespaces": {"include": ["default"]}}, True),
        ({"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "hot"}}}, False),
        ({"highThresholds": {"cpu": 70}}, False),  # exactly at the threshold is not above it
        ({"lowThresholds": {"cpu": 9}}, False),
        ({"nodeMetricExpirationSeconds": 1000}, True),
    ],
)
def test_when_low_node_load_acts(args: Obj, evicted: bool) -> None:
    objects = [node("hot"), node("idle"), pod("p", "hot", cpu="100m"), metric("hot", "6", {"p": "1"}), metric("idle", "1")]
    assert (balanced(args, objects).pods == set()) is evicted


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.parametrize("args", [{"highThresholds": {}}, {"lowThresholds": {}}, {"prodLowThresholds": {"memory": 10}}])
def test_half_a_pair_of_thresholds_relieves_nothing(args: Obj, caplog: pytest.LogCaptureFixture) -> None:
    objects = [node("hot"), node("idle"), pod("p", "hot", cpu="100m"), metric("hot", "5", {"p": "500m"}), metric("idle", "1")]
    assert balanced(args, objects).pods == {"p"}
    assert "a low and a high threshold belong together" in caplog.text


@pytest.mark.feature("DS-LNL-06")
def test_a_dry_run_lists_the_same_in_every_round() -> None:
    objects = [node("hot"), node("idle"), pod("p", "hot", cpu="100m"), metric("hot", "6", {"p": "1"}), metric("idle", "1")]
    free = [{**owner, "controller": False} for owner in OWNERS]
    objects[2]["metadata"]["ownerReferences"] = free

    async def scenario() -> None:
        text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": BASE}, deschedulingInterval="50ms", dryRun=True)
        async with descheduling(objects, text.replace("name: DefaultEvictor", "name: MigrationController")) as running:
            await running.wait_rounds(4)
            assert len(running.records("WouldEvict")) >= 4

    asyncio.run(scenario())


@pytest.mark.feature("DS-LNL-06")
def test_a_node_that_stays_hot_says_why_its_pods_stay() -> None:
    objects = [
        node("hot"), node("idle"),
        pod("bare", "hot", owned=False), pod("odd", "hot", cpu="100m", nodeSelector={"disk": "none"}), pod("unknown", "hot"),
        metric("hot", "7", {"bare": "1", "odd": "1"}), metric("idle", "1"),
    ]  # fmt: skip
    done = balanced({}, objects)
    assert len(done.pods) == 3
    (record,) = done.records("Relieved")
    assert record.message.startswith("still hot after 0 evictions; pods that stay: ")
    for why in ("1 x it has no owner that would replace it", "1 x it fits no low node", "1 x no metric tells of it"):
        assert why in record.message


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-LNL-06")
@pytest.mark.parametrize(
    ("aggregated", "left"),
    [
        (None, 0),
        ({"usageAggregationType": "p50"}, 0),
        ({"usageAggregationType": "p95"}, 2),  # 7 of 10 CPU over 30 m: two pods of 600m leave
        ({"usageAggregationType": "p95", "usageAggregatedDuration": "5m"}, 1),
        ({"usageAggregationType": "p95", "usageAggregatedDuration": "7m"}, 0),  # not reported
    ],
)
def test_a_node_with_peaks_is_hot_by_its_percentile(aggregated: Obj | None, left: int) -> None:
    pods = {f"p{number}": "600m" for number in range(5)}
    report = metric("hot", "2", pods)
    info = report["status"]["nodeMetric"]
    info["nodeUsage"] = {"resources": {"cpu": "5", "memory": "6Gi"}}
    window = {name: {"resources": {"cpu": cpu}} for name, cpu in (("p50", "4"), ("p95", "7"))}
    short = {name: {"resources": {"cpu": cpu}} for name, cpu in (("p50", "4"), ("p95", "6500m"))}
    info["aggregatedNodeUsages"] = [{"duration": "5m0s", "usage": short}, {"duration": "30m0s", "usage": window}]
    objects = [node("hot"), node("cool"), report, metric("cool", "1"), *(pod(name, "hot", cpu="100m") for name in pods)]
    done = balanced({"aggregated": aggregated} if aggregated else {}, objects)
    assert len(done.records("Evicted")) == left


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.parametrize(("usual", "peak", "more"), [("5", "7", {"cpu": 2000}), ("5", "-1", {}), ("-1", "7", {}), ("0", "0", {"cpu": 0})])
def test_a_percentile_below_zero_does_not_count(usual: str, peak: str, more: dict[str, int]) -> None:
    report = metric("n", "5")
    report["status"]["nodeMetric"] |= {
        "nodeUsage": {"resources": {"cpu": usual}},
        "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": {"resources": {"cpu": peak}}}}],
    }
    assert shift(convert(report, NodeMetric), Percentile("p95")) == more


@pytest.mark.feature("DS-LNL-01")
def test_a_percentile_adds_to_what_is_used_and_takes_no_more_than_there_is() -> None:
    view = NodeView(convert(node("n"), Node), {}, [], usage={"cpu": 1000, "memory": 5}, prod_usage={"cpu": 700})
    assert usage_of(view, {"cpu": 500, "gpu": 3}, prod=False) == {"cpu": 1500, "memory": 5}
    assert usage_of(view, {"cpu": -4000}, prod=False) == {"cpu": 0, "memory": 5}
    assert usage_of(view, {"cpu": 500}, prod=True) == {"cpu": 700}


@pytest.mark.feature("DS-LNL-01")
@pytest.mark.feature("DS-K8S-09")
@pytest.mark.parametrize("dry_run", [False, True])
def test_plugins_that_come_after_one_that_goes_by_a_percentile_see_the_average(dry_run: bool) -> None:
    pods = {f"p{number}": "1" for number in range(3)}
    report = metric("n1", "1", pods)
    info = report["status"]["nodeMetric"]
    info["nodeUsage"] = {"resources": {"cpu": "4", "memory": "4Gi"}}
    info["aggregatedNodeUsages"] = [{"duration": "5m0s", "usage": {"p95": {"resources": {"cpu": "8"}}}}]
    objects = [node("n1"), node("n2"), report, metric("n2", "1"), *(pod(name, "n1", cpu="100m") for name in pods)]
    low = {**BASE, "highThresholds": {"cpu": 75 if dry_run else 90}, "aggregated": {"usageAggregationType": "p95"}, "dryRun": dry_run}
    by_usage = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}, "metricsUtilization": {"source": "KubernetesMetrics"}}
    text = configuration({"balance": ["LowNodeLoad", "LowNodeUtilization"]}, {"LowNodeLoad": low, "LowNodeUtilization": by_usage})
    done = after_rounds(objects, text)
    assert len(done.records("WouldEvict")) == dry_run  # 8 of 10 CPU at the percentile
    assert not done.records("Evicted")  # 4 of 10 on average


@pytest.mark.feature("DS-LNL-07")
def test_a_clock_that_is_set_makes_no_report_old() -> None:
    """All nodes were left out of the rounds until they had reported again; set back, a silent node's last report stayed fresh."""

    class Machine(seams.System):
        set_by = 0.0

        def now(self) -> float:
            return super().now() + self.set_by

    machine = Machine()

    async def scenario() -> None:
        objects = [node("n1"), node("n2"), metric("n1", "1"), metric("n2", "1")]
        text = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": BASE}, deschedulingInterval="50ms")
        async with descheduling(objects, text) as running:
            await running.wait_rounds(1)
            machine.set_by = 500_000.0
            await running.wait_rounds(4)
            assert not running.records("Skipped")
            assert running.records("Classified")

    token = seams.use(machine)
    try:
        asyncio.run(scenario())
    finally:
        seams.leave(token)
