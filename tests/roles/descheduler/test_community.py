"""The adapted community plugins through the role's door: nodes and pods in, evictions out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from koord.api import kinds
from koord.api.objects import Node, Pod, convert
from roles.descheduler import registry
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import Evict
from roles.descheduler.framework.handle import Handle
from roles.descheduler.snapshot import node_view
from tests.roles.descheduler.support import Obj, after_rounds, configuration, descheduling, metric, node, pod


def left(plugin: str, args: Obj, objects: list[Obj], *, point: str = "deschedule", evictor: Obj | None = None, rounds: int = 1, **top: Any):
    """Names of the pods that are left after a round, and the outcome."""
    text = configuration({point: [plugin]}, {plugin: args, "DefaultEvictor": evictor or {}}, **top)
    done = after_rounds(objects, text, rounds)
    return done.pods, done


def two(**labels: Any) -> list[Obj]:
    return [node("n1"), node("n2", **labels)]


def container(**state: Any) -> Obj:
    restarts = state.pop("restarts", 0)
    return {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": restarts, "state": state}


def owner(kind: str, uid: str = "1") -> Obj:
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "r", "uid": uid, "controller": True}]}


@pytest.mark.feature("DS-K8S-01")
def test_pod_life_time_wants_all_of_its_criteria() -> None:
    waiting = {"containerStatuses": [container(waiting={"reason": "ImagePullBackOff"})]}
    pods = [
        pod("pulls", "n1", status=waiting),
        pod("runs", "n1", status={"containerStatuses": [container(running={})]}),
        pod("pulls-for-a-job", "n1", status=waiting, meta=owner("Job")),
        pod("ended", "n1", status={"phase": "Succeeded"}),
    ]
    args = {"states": ["ImagePullBackOff", "Succeeded"], "ownerKinds": {"exclude": ["Job"]}}
    assert left("PodLifeTime", args, [*two(), *pods])[0] == {"runs", "pulls-for-a-job"}


@pytest.mark.feature("DS-K8S-01")
def test_pod_life_time_by_age_condition_and_exit_code() -> None:
    stuck = {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}
    failed = {"containerStatuses": [container(terminated={"exitCode": 137, "reason": "OOMKilled"})]}
    pods = [pod("stuck", "n1", status=stuck), pod("killed", "n2", status=failed), pod("fine", "n1")]
    filters = [{"type": "Ready", "status": "False", "minTimeSinceLastTransitionSeconds": 3600}]
    assert left("PodLifeTime", {"conditions": filters}, [*two(), *pods])[0] == {"killed", "fine"}
    assert left("PodLifeTime", {"exitCodes": [137]}, [*two(), *pods])[0] == {"stuck", "fine"}
    assert left("PodLifeTime", {"maxPodLifeTimeSeconds": 3600}, [*two(), *pods])[0] == {"stuck", "killed", "fine"}


@pytest.mark.feature("DS-K8S-02")
def test_failed_pods_leave_by_reason_age_and_owner() -> None:
    def failed(name: str, reason: str, **more: Any) -> Obj:
        return pod(name, "n1", status={"phase": "Failed", "reason": reason}, **more)

    pods = [failed("affine", "NodeAffinity"), failed("other", "Evicted"), failed("job", "NodeAffinity", meta=owner("Job")), pod("ok", "n1")]
    args = {"minPodLifetimeSeconds": 0, "reasons": ["NodeAffinity"], "excludeOwnerKinds": ["Job"]}
    assert left("RemoveFailedPods", args, [*two(), *pods])[0] == {"other", "job", "ok"}
    assert left("RemoveFailedPods", {}, [*two(), *pods])[0] == {"affine", "other", "job", "ok"}  # an hour by default


@pytest.mark.feature("DS-K8S-02")
def test_bare_failed_pods_leave_only_when_the_evictor_lets_them() -> None:
    bare = pod("bare", "n1", owned=False, status={"phase": "Failed"})
    args = {"minPodLifetimeSeconds": 0}
    assert left("RemoveFailedPods", args, [*two(), bare])[0] == {"bare"}
    assert left("RemoveFailedPods", args, [*two(), bare], evictor={"evictFailedBarePods": True})[0] == set()


@pytest.mark.feature("DS-K8S-03")
def test_restarts_are_summed_and_the_worst_goes_first() -> None:
    pods = [
        pod("five", "n1", status={"containerStatuses": [container(running={}, restarts=5)]}),
        pod("nine", "n1", status={"containerStatuses": [container(waiting={"reason": "CrashLoopBackOff"}, restarts=9)]}),
        pod("init", "n1", status={"initContainerStatuses": [container(running={}, restarts=30)]}),
        pod("four", "n1", status={"containerStatuses": [container(running={}, restarts=4)]}),
    ]
    everything = left("RemovePodsHavingTooManyRestarts", {"podRestartThreshold": 5}, [*two(), *pods])[1]
    assert everything.subjects("Evicted") == ["nine", "five"]
    crashing = {"podRestartThreshold": 5, "states": ["CrashLoopBackOff"], "includingInitContainers": True}
    assert left("RemovePodsHavingTooManyRestarts", crashing, [*two(), *pods])[0] == {"five", "init", "four"}


@pytest.mark.feature("DS-K8S-04")
def test_taints_that_are_not_tolerated() -> None:
    taints = [{"key": "a", "value": "x", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}]
    only = [{"key": "a", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]
    both = [*only, {"key": "soft", "operator": "Exists"}]
    pods = [pod("none", "n2"), pod("hard", "n2", tolerations=only), pod("both", "n2", tolerations=both), pod("away", "n1")]
    objects = [*two(taints=taints), *pods]
    plugin = "RemovePodsViolatingNodeTaints"
    assert left(plugin, {}, objects)[0] == {"hard", "both", "away"}
    assert left(plugin, {"includePreferNoSchedule": True}, objects)[0] == {"both", "away"}
    assert left(plugin, {"excludedTaints": ["a=x"]}, objects)[0] == {"none", "hard", "both", "away"}
    assert left(plugin, {"includedTaints": ["b"]}, objects)[0] == {"none", "hard", "both", "away"}


def affinity(kind: str, value: str, weight: int = 10) -> Obj:
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": [value]}]}
    if kind == "required":
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "preference": term}]}}


@pytest.mark.feature("DS-K8S-05")
def test_node_affinity_is_violated_only_if_another_node_would_do() -> None:
    pods = [
        pod("go", "n1", affinity=affinity("required", "ssd")),
        pod("nowhere", "n1", affinity=affinity("required", "nvme")),
        pod("too-big", "n1", affinity=affinity("required", "ssd"), cpu="11"),
        pod("there", "n2", affinity=affinity("required", "ssd")),
        pod("rather", "n1", affinity=affinity("preferred", "ssd")),
    ]
    objects = [*two(labels={"disk": "ssd"}), *pods]
    plugin, long = "RemovePodsViolatingNodeAffinity", "DuringSchedulingIgnoredDuringExecution"
    assert left(plugin, {"nodeAffinityType": [f"required{long}"]}, objects)[0] == {"nowhere", "too-big", "there", "rather"}
    assert left(plugin, {"nodeAffinityType": [f"preferred{long}"]}, objects)[0] == {"go", "nowhere", "too-big", "there"}


@pytest.mark.feature("DS-K8S-05")
@pytest.mark.feature("DS-FIT-01")
def test_a_pod_with_gpus_fits_where_the_number_of_cards_is_not_offered() -> None:
    """The pod webhook writes over how many cards a request is spread; nodes offer the cards alone."""
    gpus = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    target = node("n2", labels={"disk": "ssd"})
    for kind in ("capacity", "allocatable"):
        target["status"][kind] = {**target["status"][kind], **gpus}
    asked = {"cpu": "1", **gpus, "koordinator.sh/gpu.shared": "1"}
    container = {"name": "c", "image": "i", "resources": {"requests": asked, "limits": asked}}
    moving = pod("trains", "n1", affinity=affinity("required", "ssd"), containers=[container])
    args = {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]}
    assert left("RemovePodsViolatingNodeAffinity", args, [node("n1"), target, moving])[0] == set()


@pytest.mark.feature("DS-K8S-06")
def test_of_two_pods_that_exclude_one_another_the_less_important_leaves() -> None:
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    meta = {"labels": {"app": "db"}, "ownerReferences": owner("ReplicaSet")["ownerReferences"]}
    pods = [
        pod("low", "n1", meta=meta, affinity=apart, priority=1, priorityClassName="low"),
        pod("high", "n1", meta=meta, affinity=apart, priority=9, priorityClassName="high"),
        pod("other-node", "n2", meta=meta, affinity=apart),
        pod("not-excluding", "n1", meta=meta),
    ]
    classes = [{"kind": "PriorityClass", "metadata": {"name": name}, "value": value} for name, value in (("low", 1), ("high", 9))]
    remaining, _ = left("RemovePodsViolatingInterPodAntiAffinity", {}, [*classes, *two(), *pods])
    # low goes beside high, high beside not-excluding; who is alone on its node stays
    assert remaining == {"other-node", "not-excluding"}


@pytest.mark.feature("DS-K8S-07")
def test_duplicates_are_spread_evenly() -> None:
    pods = [pod(f"d{i}", "n1") for i in range(5)] + [pod("other", "n1", image="different"), pod("own", "n1", meta=owner("Job", "2"))]
    remaining, done = left("RemoveDuplicates", {}, [*two(), *pods], point="balance")
    # five pods over two nodes: three may stay
    assert len(remaining & {f"d{i}" for i in range(5)}) == 3
    assert {"other", "own"} <= remaining
    assert "5 pods of ReplicaSet default/r, 3 would be even" in done.records("Evicted")[0].message
    assert left("RemoveDuplicates", {"excludeOwnerKinds": ["ReplicaSet"]}, [*two(), *pods], point="balance")[0] >= {"d0", "d1", "d2", "d3"}
    tainted = [node("n1"), node("n2", taints=[{"key": "a", "effect": "NoSchedule"}])]
    assert len(left("RemoveDuplicates", {}, [*tainted, *pods], point="balance")[0]) == 7  # only one node could take them


def spread(name: str, where: str, *, skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> Obj:
    constraint = {"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "web"}}}
    meta = {"labels": {"app": "web"}, "ownerReferences": owner("ReplicaSet")["ownerReferences"]}
    return pod(name, where, meta=meta, topologySpreadConstraints=[constraint], **more)


@pytest.mark.feature("DS-K8S-08")
def test_topology_spread_moves_as_few_pods_as_needed() -> None:
    nodes = [node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"}), node("outside")]
    plugin = "RemovePodsViolatingTopologySpreadConstraint"
    pods = [spread(f"w{i}", "n1") for i in range(5)] + [spread("b0", "n2")]
    assert len(left(plugin, {}, [*nodes, *pods], point="balance")[0]) == 4  # 5:1 becomes 3:3 with maxSkew 1
    wide = [spread(f"w{i}", "n1", skew=3) for i in range(5)] + [spread("b0", "n2", skew=3)]
    assert len(left(plugin, {}, [*nodes, *wide], point="balance")[0]) == 5
    soft = [spread(f"w{i}", "n1", when="ScheduleAnyway") for i in range(5)]
    assert len(left(plugin, {}, [*nodes, *soft], point="balance")[0]) == 5
    assert len(left(plugin, {"constraints": ["ScheduleAnyway"]}, [*nodes, *soft], point="balance")[0]) < 5


@pytest.mark.feature("DS-K8S-08")
def test_topology_spread_moves_no_pod_that_min_domains_would_leave_without_a_place() -> None:
    """With fewer domains than minDomains the scheduler takes one to be empty: zone b, with one pod, may take no second one."""
    nodes = [node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"})]
    plugin, pods = "RemovePodsViolatingTopologySpreadConstraint", [*(spread(f"w{i}", "n1") for i in range(5)), spread("b0", "n2")]
    for each in pods:
        each["spec"]["topologySpreadConstraints"][0]["minDomains"] = 3
    assert len(left(plugin, {}, [*nodes, *pods], point="balance")[0]) == 6
    third = node("n3", labels={"zone": "c"})
    assert len(left(plugin, {}, [*nodes, third, *pods], point="balance")[0]) == 3  # 5:1:0 becomes 2:2:2


@pytest.mark.feature("DS-K8S-08")
def test_topology_spread_leaves_pods_that_fit_nowhere_else() -> None:
    nodes = [node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"}, cpu="1")]
    pods = [spread(f"w{i}", "n1", cpu="2") for i in range(4)]
    plugin = "RemovePodsViolatingTopologySpreadConstraint"
    assert len(left(plugin, {}, [*nodes, *pods], point="balance")[0]) == 4
    assert len(left(plugin, {"topologyBalanceNodeFit": False}, [*nodes, *pods], point="balance")[0]) == 2


@pytest.mark.feature("DS-K8S-08")
def test_topology_spread_gives_nothing_to_domains_that_take_nothing() -> None:
    """Zone a takes no pod, and the scheduler counts it: with maxSkew 1 no other zone gets a second one, with 2 none gets a third."""
    taints = [{"key": "world", "effect": "NoSchedule"}]
    nodes = [node("n1", labels={"zone": "a"}, taints=taints), node("n2", labels={"zone": "b"}), node("n3", labels={"zone": "c"})]
    plugin = "RemovePodsViolatingTopologySpreadConstraint"
    for skew, many, stay in ((1, 2, 3), (1, 5, 6), (2, 5, 5)):
        pods = [spread("b0", "n2", skew=skew), *(spread(f"c{number}", "n3", skew=skew) for number in range(many))]
        assert len(left(plugin, {}, [*nodes, *pods], point="balance")[0]) == stay, (skew, many)


class Anybody:
    """A filter that lets every pod go."""

    name = "anybody"

    def filter(self, pod: Pod) -> str:
        return ""


@pytest.mark.feature("DS-K8S-08")
@pytest.mark.parametrize(
    ("migrates", "told", "leave"), [("n3", False, 0), ("n3", True, 1), ("n1", False, 0), ("n1", True, 0), ("", False, 1)]
)
def test_topology_spread_counts_a_pod_where_it_is_until_it_is_told_to_leave(migrates: str, told: bool, leave: int) -> None:
    """A migration that waits may come to nothing: who relies on it makes the spread uneven, or evicts one pod too many."""
    views = []
    for name, count in (("n1", 2 if migrates == "n3" else 3), ("n2", 2), ("n3", 1)):
        bodies = [spread(f"{name}-{each}", name, skew=1) for each in range(count)]
        made = [convert({**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}}, Pod) for body in bodies]
        views.append(node_view(convert(node(name, labels={"zone": name}), Node), made, None, now=0.0))
    for view in [each for each in views if each.name == migrates]:
        view.pods[0].leaving, view.pods[0].accepted = True, told
    plugin = registry.PLUGIN_TYPES["RemovePodsViolatingTopologySpreadConstraint"]
    made = plugin.make(plugin.args.model_validate({}), 60.0)
    turn, answer, gone = made.turn(views, Handle("p", "q", 0.0, [Anybody()])), None, []
    with contextlib.suppress(StopIteration):
        while True:
            effect = turn.send(answer)
            answer = True
            gone += [effect.pod.metadata.name] if isinstance(effect, Evict) else []
    assert len(gone) == leave
    assert f"{migrates}-0" not in gone


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(("skew", "there", "leaves"), [(1, 1, False), (2, 1, True), (1, 0, True)])
def test_node_fit_asks_where_topology_spread_lets_the_pod_go(skew: int, there: int, leaves: bool) -> None:
    """The tainted zone stays empty, so that another one may have maxSkew pods at most."""
    nodes = [node("n1", labels={"zone": "a"}, taints=[{"key": "t", "effect": "NoSchedule"}]), node("n2", labels={"zone": "b"})]
    pods = [spread("a0", "n1", skew=skew), *(spread(f"b{number}", "n2", skew=skew) for number in range(there))]
    found = left("RemovePodsViolatingNodeTaints", {}, [*nodes, *pods], evictor={"nodeFit": True})[0]
    assert ("a0" not in found) is leaves
    soft = [spread("a0", "n1", when="ScheduleAnyway"), *pods[1:]]
    assert "a0" not in left("RemovePodsViolatingNodeTaints", {}, [*nodes, *soft], evictor={"nodeFit": True})[0]


@pytest.mark.feature("DS-K8S-09")
def test_low_node_utilization_goes_by_requests_until_the_target_is_met() -> None:
    nodes = [node("full"), node("empty"), node("half")]
    pods = [pod(f"p{i}", "full") for i in range(9)] + [pod(f"h{i}", "half") for i in range(5)]
    args = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 70}}
    remaining, done = left("LowNodeUtilization", args, [*nodes, *pods], point="balance")
    assert len([name for name in remaining if name.startswith("p")]) == 7
    assert "cpu requests(90.00%)>target(70.00%)" in done.records("Evicted")[0].message
    more = {**args, "evictionLimits": {"node": 1}}
    assert len([name for name in left("LowNodeUtilization", more, [*nodes, *pods], point="balance")[0] if name.startswith("p")]) == 8
    stop = {**args, "numberOfNodes": 1}
    assert len(left("LowNodeUtilization", stop, [*nodes, *pods], point="balance")[0]) == 14
    quiet = {**args, "evictableNamespaces": {"exclude": ["default"]}}
    assert len(left("LowNodeUtilization", quiet, [*nodes, *pods], point="balance")[0]) == 14


@pytest.mark.feature("DS-K8S-09")
def test_low_node_utilization_by_what_koordlet_reports() -> None:
    """By requests no node is full; by usage one is, and its pods leave until it is not."""
    objects = [node("busy"), node("calm"), node("mute"), *(pod(f"p{i}", "busy", cpu="100m") for i in range(6))]
    objects += [metric("busy", "2", {f"p{i}": "1" for i in range(6)}), metric("calm", "1")]
    args = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 60}}
    assert len(left("LowNodeUtilization", args, objects, point="balance")[0]) == 6
    for source in ({"source": "KubernetesMetrics"}, {"metricsServer": True}):
        remaining, done = left("LowNodeUtilization", {**args, "metricsUtilization": source}, objects, point="balance")
        assert len(remaining) == 4
        assert "cpu usage(80.00%)>target(60.00%)" in done.records("Evicted")[0].message
        assert any("node mute is left out" in record.message for record in done.records("Round"))


@pytest.mark.feature("DS-CFG-01")
def test_the_grace_period_of_the_whole_file() -> None:
    async def scenario(evictor: str, args: Obj) -> Obj:
        text = configuration(
            {"deschedule": ["PodLifeTime"]}, {"PodLifeTime": {"states": ["Running"]}, evictor: args}, gracePeriodSeconds=77
        )
        slow = pod("p", "n1", terminationGracePeriodSeconds=30)
        async with descheduling([*two(), slow], text.replace("name: DefaultEvictor", f"name: {evictor}")) as running:
            await running.wait_rounds(1)
            if evictor == "MigrationController":
                (job,) = (await running.client.list(kinds.PODMIGRATIONJOBS)).items
                return dict(job["spec"]["deleteOptions"])
            return dict((await running.client.get(kinds.PODS, "p", "default"))["metadata"])

    assert asyncio.run(scenario("DefaultEvictor", {}))["deletionGracePeriodSeconds"] == 77
    assert asyncio.run(scenario("MigrationController", {})) == {"gracePeriodSeconds": 77}
    mine = {"defaultDeleteOptions": {"gracePeriodSeconds": 5}}
    assert asyncio.run(scenario("MigrationController", mine)) == {"gracePeriodSeconds": 5}


@pytest.mark.feature("DS-K8S-10")
def test_high_node_utilization_empties_the_emptiest() -> None:
    nodes = [node("full"), node("nearly-empty")]
    pods = [pod(f"p{i}", "full") for i in range(6)] + [pod("last", "nearly-empty"), pod("no-cpu", "nearly-empty", cpu="", memory="1Gi")]
    args = {"thresholds": {"cpu": 20}}
    remaining, _ = left("HighNodeUtilization", args, [*nodes, *pods], point="balance")
    assert remaining == {f"p{i}" for i in range(6)}
    only = {**args, "evictionModes": ["OnlyThresholdingResources"]}
    assert left("HighNodeUtilization", only, [*nodes, *pods], point="balance")[0] == {f"p{i}" for i in range(6)} | {"no-cpu"}


@pytest.mark.feature("DS-K8S-10")
def test_a_node_with_more_requested_than_it_has_takes_no_room_from_the_others() -> None:
    """A node may have shrunk under its pods; what it has too little of was taken from what the others had left."""
    nodes = [node("shrunk", cpu="2"), node("half"), node("nearly-empty")]
    pods = [*(pod(f"s{i}", "shrunk", cpu="4") for i in range(3)), *(pod(f"p{i}", "half") for i in range(4)), pod("last", "nearly-empty")]
    remaining, _ = left("HighNodeUtilization", {"thresholds": {"cpu": 20}}, [*nodes, *pods], point="balance")
    assert "last" not in remaining


@pytest.mark.feature("DS-K8S-01")
@pytest.mark.parametrize(
    ("plugin", "args", "wanted"),
    [
        ("PodLifeTime", {}, "at least one of maxPodLifeTimeSeconds, states, conditions, exitCodes"),
        ("PodLifeTime", {"states": ["Lost"]}, "states[0]: 'Lost' is not known"),
        ("RemovePodsHavingTooManyRestarts", {}, "podRestartThreshold: is required"),
        ("RemovePodsViolatingNodeTaints", {"includedTaints": ["a"], "excludedTaints": ["b"]}, "only one of"),
        ("RemovePodsViolatingNodeAffinity", {}, "nodeAffinityType: must name at least one"),
        ("RemoveFailedPods", {"namespaces": {"include": ["a"], "exclude": ["b"]}}, "only one of include and exclude"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 50}, "targetThresholds": {"cpu": 40}}, "50 must not be above"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 5}, "targetThresholds": {"memory": 40}}, "the same resources"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 5}, "targetThresholds": {"cpu": 9}, "metricsUtilization": {}}, "is not served"),
        (
            "LowNodeUtilization",
            {"thresholds": {"cpu": 5}, "targetThresholds": {"cpu": 9}, "metricsUtilization": {"source": "Prometheus"}},
            "with source Prometheus the one resource is MetricResource",
        ),
        ("HighNodeUtilization", {"thresholds": {"cpu": 101}}, "101 must be from 0 to 100"),
        ("DefaultEvictor", {"priorityThreshold": {"value": 1, "name": "x"}}, "only one of value and name"),
        ("DefaultEvictor", {"podProtections": {"extraEnabled": ["PodsWithPVCs"]}}, "did you mean 'PodsWithPVC'"),
        ("DefaultEvictor", {"evictFailedBarePods": True, "podProtections": {"extraEnabled": ["PodsWithPVC"]}}, "cannot be mixed"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_the_start(plugin: str, args: Obj, wanted: str) -> None:
    from koord.config.errors import InvalidConfig
    from roles.descheduler import registry
    from roles.descheduler.build import Options

    row = registry.PLUGIN_TYPES.get(plugin)
    sets = {row.point: [plugin]} if row is not None else {}
    with pytest.raises(InvalidConfig) as refused:
        Options(parse_configuration(configuration(sets, {plugin: args}), "test"), "test")
    assert wanted in str(refused.value)


def test_arguments_of_an_adapted_plugin_that_does_not_run_do_not_matter() -> None:
    from roles.descheduler.build import Options

    Options(parse_configuration(configuration({}, {"PodLifeTime": {"states": ["Lost"]}}), "test"), "test")


def test_a_field_that_a_community_plugin_does_not_know_is_ignored_but_told(caplog: pytest.LogCaptureFixture) -> None:
    from roles.descheduler.build import Options

    args = {"maxPodLifeTimeSeconds": 1, "maxPodLifetimeSecond": 5, "namespaces": {"include": ["a"], "includes": []}}
    Options(parse_configuration(configuration({"deschedule": ["PodLifeTime"]}, {"PodLifeTime": args}), "test"), "test")
    assert "maxPodLifetimeSecond: PodLifeTime does not know this argument; did you mean 'maxPodLifeTimeSeconds'?" in caplog.text
