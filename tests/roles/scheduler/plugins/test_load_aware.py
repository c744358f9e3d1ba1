"""LoadAwareScheduling: thresholds, estimates, expiry; and columns that follow single pods equal ones built afresh."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import NodeMetric
from koord.api.times import format_time
from roles.scheduler import testing
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent
from roles.scheduler.framework.status import SUCCESS
from roles.scheduler.queue.queue import SchedulingQueue
from tests.support.examples import examples

NOW = 1_000_000.0
POINTS = {"filter": {"enabled": [{"name": "LoadAwareScheduling"}]}, "reserve": {"enabled": [{"name": "LoadAwareScheduling"}]}}
ONLY = {"disabled": [{"name": "*"}], "enabled": [{"name": "LoadAwareScheduling", "weight": 1}]}


def world(**args: Any) -> testing.World:
    config = [{"name": "LoadAwareScheduling", "args": args}]
    found = testing.World({"plugins": {**POINTS, "score": ONLY}, "pluginConfig": config}, now=NOW)
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi"))
    return found


def metric(name: str = "n", *, cpu: str = "1", memory: str = "1Gi", age: float = 0.0, pods: Any = (), **info: Any) -> dict[str, Any]:
    reported = [{"namespace": "default", "name": p, "priority": c, "podUsage": {"resources": {"cpu": u}}} for p, c, u in pods]
    usage = {"nodeUsage": {"resources": {"cpu": cpu, "memory": memory}}, **info}
    return {
        "metadata": {"name": name}, "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {"updateTime": format_time(NOW - age), "nodeMetric": usage, "podsMetric": reported},
    }  # fmt: skip


def pod(cpu: str, **more: Any) -> Any:
    return testing.pod(cpu=cpu, memory="100Mi", limits={"cpu": cpu, "memory": "100Mi"}, **more)


@pytest.mark.feature("SCH-LA-01")
def test_usage_with_the_estimate_is_held_against_the_threshold() -> None:
    found = world(usageThresholds={"cpu": 50, "memory": 90})
    found.feed("NodeMetric", metric(cpu="3"))
    assert found.decide(pod("2")).scheduled  # 3 + 1.7 of 10
    refused = found.decide(pod("3"))  # 3 + 2.55 = 55.5 %
    assert refused.message().startswith("0/1 nodes are available: 1 node(s) cpu usage exceed threshold.")
    assert found.decide(pod("3", ownerReferences=[{"kind": "DaemonSet", "name": "d", "uid": "u"}])).scheduled


@pytest.mark.feature("SCH-LA-01")
def test_nobody_is_evicted_because_a_node_is_busy() -> None:
    """Without the pod that has just come the estimate would be below the threshold: that is no reason to take it away."""
    found = world(usageThresholds={"cpu": 50, "memory": 90})
    found.add_pods(pod("4", name="low", node="n", priority=1))
    found.feed("NodeMetric", metric(cpu="1"))
    refused = found.decide(pod("2", priority=100))  # 1 + 3.4 + 1.7 of 10
    assert refused.message() == (
        "0/1 nodes are available: 1 node(s) cpu usage exceed threshold. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert not refused.victims


@pytest.mark.feature("SCH-LA-02")
def test_prod_pods_are_judged_by_prod_usage_alone() -> None:
    found = world(usageThresholds={"cpu": 50}, prodUsageThresholds={"cpu": 40})
    found.add_pods(pod("1", name="web", node="n", labels={"koordinator.sh/priority-class": "koord-prod"}))
    found.feed("NodeMetric", metric(cpu="9", pods=[("web", "koord-prod", "1"), ("spark", "koord-batch", "7")]))
    assert found.decide(pod("1")).scheduled
    assert not found.decide(pod("1", labels={"koordinator.sh/priority-class": "koord-batch"})).scheduled


@pytest.mark.feature("SCH-LA-10")
def test_the_debug_page_tells_what_prod_pods_use_from_what_they_are_charged_on_top() -> None:
    found = world(usageThresholds={"cpu": 50}, prodUsageThresholds={"cpu": 40})
    prod, batch = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("prod", "batch"))
    since = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(NOW - 3600)}]}
    found.add_pods(
        pod("2", name="new", node="n", labels=prod), pod("2", name="old", node="n", labels=prod, status=since),
        pod("2", name="odd", node="n", labels=prod), pod("2", name="spark", node="n", labels=batch),
    )  # fmt: skip
    reported = [("new", "koord-prod", "1"), ("old", "koord-prod", "1500m"), ("odd", "koord-batch", "1"), ("spark", "koord-batch", "1")]
    found.feed("NodeMetric", metric(cpu="5", pods=reported))
    page = found.framework.plugins["LoadAwareScheduling"].endpoints()[0].answer({"name": "n"})  # type: ignore[attr-defined]
    assert (page["prodUsage"]["cpu"], page["prodDelta"]["cpu"]) == (2500, 700 + 1700)  # an odd one is charged whole
    assert page["prodDeltaPods"] == ["default/new", "default/odd"]


@pytest.mark.feature("SCH-LA-03")
def test_aggregated_thresholds_replace_the_plain_ones() -> None:
    found = world(usageThresholds={"cpu": 10}, aggregated={"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"})
    windows = [{"duration": d, "usage": {"p95": {"resources": {"cpu": c}}}} for d, c in (("5m0s", "9"), ("30m0s", "4"))]
    found.feed("NodeMetric", metric(cpu="9", aggregatedNodeUsages=windows))
    assert found.decide(pod("1")).scheduled  # the longest window counts
    assert "node(s) cpu aggregated usage exceed threshold" in found.decide(pod("2")).message()


@pytest.mark.feature("SCH-LA-04")
@pytest.mark.feature("SCH-LA-09")
def test_a_node_has_thresholds_and_raw_allocatable_of_its_own() -> None:
    found = world(usageThresholds={"cpu": 50})
    own = {"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 90}})}
    found.feed("NodeMetric", metric(cpu="6"))
    assert not found.decide(pod("1")).scheduled
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", annotations=own))
    assert found.decide(pod("1")).scheduled
    raw = {**own, "node.koordinator.sh/raw-allocatable": json.dumps({"cpu": "7"})}
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", annotations=raw))
    assert not found.decide(pod("1")).scheduled
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", annotations={"scheduling.koordinator.sh/usage-thresholds": "{"}))
    assert not found.decide(pod("1")).scheduled


@pytest.mark.feature("SCH-LA-01")
@pytest.mark.feature("SCH-NRV-01")
def test_usage_is_a_share_of_what_the_node_reservation_leaves() -> None:
    found = world(usageThresholds={"cpu": 50})
    found.feed("NodeMetric", metric(cpu="3"))
    assert found.decide(pod("1")).scheduled  # 3 + 0.85 of 10
    kept = {"node.koordinator.sh/reservation": json.dumps({"resources": {"cpu": "4"}})}
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", annotations=kept))
    assert "cpu usage exceed threshold" in found.decide(pod("1")).message()  # of 6
    raw = {**kept, "node.koordinator.sh/raw-allocatable": json.dumps({"cpu": "10"})}
    found.add_nodes(testing.node("n", cpu="20", memory="10Gi", annotations=raw))
    assert found.decide(pod("1")).scheduled  # an amplified node counts by what it really has


@pytest.mark.feature("SCH-LA-05")
def test_a_metric_expires_as_time_passes() -> None:
    found = world(usageThresholds={"cpu": 50}, nodeMetricExpirationSeconds=100)
    found.feed("NodeMetric", metric())
    assert found.decide(pod("1")).scheduled
    found.state.now = NOW + 99
    assert found.decide(pod("1")).scheduled
    found.state.now = NOW + 100
    assert "node(s) nodeMetric expired" in found.decide(pod("1")).message()
    found.state.now = NOW
    found.feed("NodeMetric", metric())
    assert found.decide(pod("1")).scheduled
    lenient = world(usageThresholds={"cpu": 50}, nodeMetricExpirationSeconds=100, enableScheduleWhenNodeMetricsExpired=True)
    lenient.feed("NodeMetric", metric(cpu="9", age=200))
    assert lenient.decide(pod("1")).scheduled


@pytest.mark.feature("SCH-LA-07")
def test_pods_not_yet_reported_are_charged() -> None:
    found = world(usageThresholds={"cpu": 50})
    found.feed("NodeMetric", metric(cpu="1"))
    assert found.schedule(pod("2")).scheduled  # 1 + 1.7
    assert found.schedule(pod("2")).scheduled  # 1 + 1.7 + 1.7
    assert not found.schedule(pod("2")).scheduled


@pytest.mark.feature("SCH-LA-08")
def test_the_least_used_node_wins() -> None:
    found = world(usageThresholds={"cpu": 0, "memory": 0})
    found.add_nodes(testing.node("m", cpu="10", memory="10Gi"))
    found.feed("NodeMetric", metric("n", cpu="4", memory="4Gi"))
    found.feed("NodeMetric", metric("m", cpu="1", memory="6Gi"))
    decision = found.decide(pod("1"))
    assert decision.node == "m"
    # room of m: (10 - 1 - .85) / 10 and (10 - 6) / 10 of memory less the estimate of 70 MiB
    assert decision.total == (81 + 39) // 2
    assert found.decide(pod("1")).evaluation.terms(decision.slot) == (("LoadAwareScheduling", 60.0),)


STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "metric"]), st.integers(0, 5), st.integers(0, 9)), max_size=25)


@pytest.mark.feature("SCH-LA-07")
@examples(40)
@given(plan=STEPS)
def test_columns_that_follow_pods_equal_columns_built_afresh(plan: list[tuple[str, int, int]]) -> None:
    args = {
        "prodUsageThresholds": {"cpu": 60},
        "aggregated": {"usageThresholds": {"cpu": 70}, "usageAggregationType": "p90", "usageAggregatedDuration": "5m0s"},
    }
    found = world(**args, prodUsageIncludeSys=True)
    on_node: dict[int, Any] = {}
    last: dict[str, Any] | None = None
    for kind, number, value in plan:
        if kind == "add" and number not in on_node:
            labels = {"koordinator.sh/priority-class": ("koord-prod", "koord-batch")[value % 2]}
            on_node[number] = found.add_pods(pod(f"{value + 1}00m", name=f"p{number}", uid=f"u{number}", node="n", labels=labels))[0]
        elif kind == "remove" and number in on_node:
            found.cluster.remove_pod(on_node.pop(number).uid)
        elif kind == "metric":
            windows = [{"duration": "5m0s", "usage": {"p90": {"resources": {"cpu": "2"}}}}] if value % 2 else []
            reported = [(f"p{value % 6}", "koord-prod", "300m"), (f"p{number}", "koord-batch", "2")]
            last = metric(cpu=f"{value}", age=30.0 * number, pods=reported[: value % 3], aggregatedNodeUsages=windows)
            found.feed("NodeMetric", last)
    fresh = world(**args, prodUsageIncludeSys=True)
    for info in on_node.values():
        fresh.cluster.add_pod(info, "n")
    if last is not None:
        fresh.feed("NodeMetric", last)
    ours, theirs = (w.framework.plugins["LoadAwareScheduling"].columns for w in (found, fresh))  # type: ignore[attr-defined]
    a, b = found.cluster.slot_of("n"), fresh.cluster.slot_of("n")
    for mine, other in zip(ours.classes, theirs.classes, strict=True):
        for name in ("used", "limit", "room"):
            for left, right in zip(getattr(mine, name), getattr(other, name), strict=True):
                assert np.isclose(left[a], right[b], rtol=0, atol=0, equal_nan=True), name


@pytest.mark.feature("SCH-LA-06")
@pytest.mark.parametrize(
    ("pod_of", "percent"),
    [
        ({"cpu": "2"}, 17),  # 85 % of the request
        ({"cpu": "1", "limits": {"cpu": "4"}}, 34),  # 85 % of the larger limit
        ({"cpu": None, "memory": None}, 2.5),  # 250m when nothing is asked for
        ({"cpu": "2", "annotations": {"scheduling.koordinator.sh/load-estimated-scaling-factors": '{"cpu": 50}'}}, 10),
        (
            {
                "cpu": None, "memory": None, "labels": {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"},
                "requests": {"kubernetes.io/batch-cpu": "3000"}, "limits": {"kubernetes.io/batch-cpu": "3000"},
            },
            25.5,
        ),
    ],
)  # fmt: skip
def test_what_a_pod_will_use_is_estimated_from_what_it_asks_for(pod_of: dict[str, Any], percent: float) -> None:
    """The highest usage that still lets the pod in tells the estimate: usage + estimate must round to 50 % of ten CPUs at most."""
    found = world(usageThresholds={"cpu": 50}, allowCustomizeEstimation=True)
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", **{"kubernetes.io/batch-cpu": "10000"}))
    room = 5000 - int(percent * 100)
    found.feed("NodeMetric", metric(cpu=f"{room + 49}m"))
    assert found.decide(testing.pod(**pod_of)).scheduled
    found.feed("NodeMetric", metric(cpu=f"{room + 51}m"))
    assert "1 node(s) cpu usage exceed threshold" in found.decide(testing.pod(**pod_of)).message()


@pytest.mark.feature("SCH-LA-06")
@pytest.mark.parametrize("factor", [-9000, 10**30, 10**400], ids=["negative", "huge", "more than a float"])
def test_factors_of_a_guest_hide_nothing_of_what_its_node_uses(factor: int) -> None:
    """Neither while it is there, nor from when it has left until the next report."""
    found = world(usageThresholds={"cpu": 65}, allowCustomizeEstimation=True)
    found.feed("NodeMetric", metric(cpu="9"))
    own = {"scheduling.koordinator.sh/load-estimated-scaling-factors": json.dumps({"cpu": factor})}
    assert "1 node(s) cpu usage exceed threshold" in found.decide(testing.pod(cpu="1", annotations=own)).message()
    (guest,) = found.add_pods(testing.pod(node="n", cpu="1", annotations=own))
    assert not found.decide(pod("2")).scheduled
    found.cluster.remove_pod(guest.uid)
    assert not found.decide(pod("2")).scheduled


@pytest.mark.feature("BEY-ABN-01")
def test_an_abnormal_node_keeps_a_share_of_its_score() -> None:
    found = world()
    found.add_nodes(testing.node("other", cpu="10", memory="10Gi"))
    for name in ("n", "other"):
        found.feed("NodeMetric", metric(name, cpu="1"))
    abnormal = {"node.koordinator.sh/abnormal": '{"penalty": 40, "reasons": ["it was slow"]}'}
    found.add_nodes(testing.node("n", cpu="10", memory="10Gi", annotations=abnormal))
    whole = found.decide(pod("1"))
    assert (whole.node, whole.total) == ("other", 85)  # mean of 81 for CPU and 89 for memory
    found.add_nodes(testing.node("other", cpu="10", memory="10Gi", annotations={"node.koordinator.sh/abnormal": '{"penalty": 80}'}))
    lowered = found.decide(pod("1"))
    assert (lowered.node, lowered.total) == ("n", 51)  # 60 % of it
    found.add_nodes(testing.node("other", cpu="10", memory="10Gi", annotations={"node.koordinator.sh/abnormal": "rubbish"}))
    assert found.decide(pod("1")).node == "other"


@pytest.mark.feature("SCH-LA-01")
def test_a_report_brings_a_pod_back_only_if_it_lets_the_pod_onto_that_node() -> None:
    found = world(usageThresholds={"cpu": 65}, nodeMetricExpirationSeconds=180)
    found.add_nodes(testing.node("cool", cpu="10", memory="10Gi"))
    waiting = found.parser.parse(pod("2"))
    subscription = next(s for s in found.framework.subscriptions["LoadAwareScheduling"] if s.resource == "NodeMetric")

    def helps(name: str, cpu: str, *, age: float = 0.0) -> tuple[bool, bool]:
        """After a report, for a pod that waits and for one that was in flight."""
        body = metric(name, cpu=cpu, age=age)
        found.feed("NodeMetric", body)
        event = ClusterEvent("NodeMetric", Action.UPDATE, None, msgspec.convert(body, NodeMetric))
        kept = subscription.keep(event) if subscription.keep is not None else event
        assert "podUsage" not in repr(kept)
        return subscription.helps(waiting, event), subscription.helps(waiting, kept)

    assert helps("n", "9") == (False, False)
    assert helps("n", "8.5") == (False, False)  # less, and still too much
    assert helps("cool", "1") == (False, False)  # it would have been let in before too
    assert helps("cool", "0.5") == (False, False)
    assert helps("n", "2") == (True, True)
    assert helps("n", "8", age=600) == (False, False)  # expired: it is refused for that
    assert helps("n", "2") == (True, True)
    assert helps("unknown", "1") == (False, False)


@pytest.mark.feature("SCH-LA-01")
def test_what_a_pod_in_flight_missed_is_not_hidden_by_later_reports() -> None:
    found = world(usageThresholds={"cpu": 65})
    found.feed("NodeMetric", metric(cpu="9"))
    queue = SchedulingQueue(
        sort_key=lambda item, entered: (entered,), pre_enqueue=lambda item: SUCCESS,
        subscriptions={testing.SCHEDULER: found.framework.subscriptions},
    )  # fmt: skip
    waiting = found.parser.parse(pod("2"))
    queue.add(waiting, NOW)
    assert queue.pop(NOW) is not None
    refused = found.decide(waiting)
    for cpu in ("2", "1.9"):
        body = metric(cpu=cpu)
        found.feed("NodeMetric", body)
        queue.on_event(ClusterEvent("NodeMetric", Action.UPDATE, None, msgspec.convert(body, NodeMetric)), NOW)
    queue.requeue(waiting.uid, NOW, rejected_by=refused.rejected_by)
    assert queue.counts()["backoff"] == 1


class Waiting:
    """Pods that LoadAwareScheduling refused, in a queue of their own."""

    def __init__(self, found: testing.World, *pods: Any) -> None:
        self.world, self.now = found, NOW
        self.queue = SchedulingQueue(
            sort_key=lambda item, entered: (entered,), pre_enqueue=lambda item: SUCCESS,
            subscriptions={testing.SCHEDULER: found.framework.subscriptions},
        )  # fmt: skip
        for item in pods:
            self.queue.add(found.parser.parse(item), NOW)
        self.try_all()

    def try_all(self) -> int:
        """Try whoever is due ten seconds later; returns how many were."""
        tried, self.now = 0, self.now + 10.0
        while (entry := self.queue.pop(self.now)) is not None:
            decision = self.world.decide(entry.pod)
            if decision.scheduled:
                self.queue.done(entry.pod.uid)
            else:
                self.queue.requeue(entry.pod.uid, self.now, rejected_by=decision.rejected_by)
            tried += 1
        return tried

    def report(self, name: str, cpu: str, age: float = 0.0) -> int:
        """A node reports; returns how many pods were tried for it."""
        body = metric(name, cpu=cpu, age=age)
        self.world.feed("NodeMetric", body)
        return self.told("NodeMetric", Action.UPDATE, None, msgspec.convert(body, NodeMetric))

    def changed(self, node: Any, action: Action) -> int:
        """A node changed."""
        cluster = self.world.cluster
        old = cluster.row(cluster.slot_of(node.metadata.name)).view
        self.world.add_nodes(node)
        return self.told(NODE, action, old, cluster.row(cluster.slot_of(node.metadata.name)).view)

    def told(self, *event: Any) -> int:
        """Something happened."""
        self.queue.on_event(ClusterEvent(*event), self.now)
        return self.try_all()


@pytest.mark.feature("SCH-LA-01")
@pytest.mark.parametrize(("of_node", "of_pod", "opened", "action"), [
    ({"labels": {"pool": "b"}}, {"nodeSelector": {"pool": "a"}}, {"labels": {"pool": "a"}}, Action.UPDATE_LABELS),
    ({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, {}, {}, Action.UPDATE_TAINTS),
    ({"unschedulable": True}, {}, {}, Action.UPDATE_TAINTS),
    ({"memory": "50Mi"}, {}, {"memory": "10Gi"}, Action.UPDATE_ALLOCATABLE),
])  # fmt: skip
def test_a_report_brings_no_pod_back_that_the_node_keeps_out_anyhow(of_node: Any, of_pod: Any, opened: Any, action: Action) -> None:
    """It is looked at when that is over."""
    found = world(usageThresholds={"cpu": 65})
    found.add_nodes(testing.node("n", cpu="10", labels={"pool": "a"}), testing.node("other", cpu="10", **of_node))
    for name in ("n", "other"):
        found.feed("NodeMetric", metric(name, cpu="9"))
    waiting = Waiting(found, pod("2", **of_pod))
    for _ in range(3):
        assert waiting.report("other", "1") == waiting.report("other", "9") == 0
    assert waiting.report("other", "1") == 0
    assert waiting.changed(testing.node("other", cpu="10", **opened), action) == 1
    assert not len(waiting.queue)


@pytest.mark.feature("SCH-LA-05")
@pytest.mark.parametrize(("cpu", "tried"), [("1", 1), ("8", 0)])
@pytest.mark.parametrize("lets_in", [False, True])
def test_the_first_report_after_a_silence_brings_those_back_whom_the_last_one_kept_out(lets_in: bool, cpu: str, tried: int) -> None:
    """Nobody was told when the last one expired, if that let them in."""
    found = world(usageThresholds={"cpu": 65}, nodeMetricExpirationSeconds=180, enableScheduleWhenNodeMetricsExpired=lets_in)
    found.feed("NodeMetric", metric(cpu="9"))
    waiting = Waiting(found, pod("2"))
    assert waiting.queue.counts()["unschedulable"] == 1
    found.state.now += 300
    assert waiting.report("n", cpu, age=-300) == tried


@pytest.mark.feature("SCH-LA-01")
def test_what_does_not_make_a_node_less_busy_brings_nobody_back() -> None:
    found = world(usageThresholds={"cpu": 65})
    found.feed("NodeMetric", metric(cpu="7"))
    waiting = Waiting(found, pod("2"))
    assert waiting.changed(testing.node("n", cpu="10", annotations={"written": "by others"}), Action.UPDATE_ANNOTATIONS) == 0
    (guest,) = found.add_pods(testing.pod(cpu="1", node="n"))
    found.cluster.remove_pod(guest.uid)
    assert waiting.told(ASSIGNED_POD, Action.DELETE, guest, None) == 0
    limits = {"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 95}})}
    assert waiting.changed(testing.node("n", cpu="10", annotations=limits), Action.UPDATE_ANNOTATIONS) == 1
    assert not len(waiting.queue)


@pytest.mark.feature("SCH-LA-01")
def test_a_report_of_a_busy_node_during_an_attempt_is_no_reason_for_another(caplog: pytest.LogCaptureFixture) -> None:
    found = world(usageThresholds={"cpu": 50})
    found.feed("NodeMetric", metric(cpu="6"))
    waiting = Waiting(found)
    waiting.queue.add(found.parser.parse(pod("2")), NOW)
    entry: Any = waiting.queue.pop(NOW)
    waiting.report("n", "6.5")
    waiting.queue.requeue(entry.pod.uid, waiting.now, rejected_by=found.decide(entry.pod).rejected_by)
    assert waiting.queue.counts()["unschedulable"] == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.feature("SCH-LA-01")
def test_a_report_that_helps_nobody_is_looked_at_once_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(usageThresholds={"cpu": 65})
    found.feed("NodeMetric", metric(cpu="9"))
    waiting = Waiting(found, *(pod("3", labels={"app": str(number)}) for number in range(20)), pod("2"))
    plugin: Any = found.framework.plugins["LoadAwareScheduling"]
    asked: list[str] = []
    refuses = plugin._refuses
    monkeypatch.setattr(plugin, "_refuses", lambda item, *rest, **more: asked.append(item.name) or refuses(item, *rest, **more))
    for cpu in ("9", "8", "6"):  # with 65 % the least of them would need it at 5.1 or below
        assert waiting.report("n", cpu) == 0
    assert not asked
    assert waiting.queue.counts()["unschedulable"] == 21
    body = metric("n", cpu="4")
    found.feed("NodeMetric", body)
    assert waiting.queue.on_event(ClusterEvent("NodeMetric", Action.UPDATE, None, msgspec.convert(body, NodeMetric)), waiting.now) == 1
