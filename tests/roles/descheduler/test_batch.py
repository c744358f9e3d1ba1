"""Batch work: gangs keep their minimum whichever evictor is asked, and what a restart costs decides who leaves first."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api import kinds, names
from koord.api.objects import Pod, convert
from koord.api.times import format_time
from roles.descheduler.cost import lost, restart_cost
from roles.descheduler.plugins.community.common import least_important_first
from roles.descheduler.plugins.lownodeload.order import leaving_order
from roles.descheduler.snapshot import pod_view
from tests.roles.descheduler.support import Obj, after_rounds, configuration, node, pod

NOW = 1_700_000_000.0
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
IN_B = {"key": "zone", "operator": "In", "values": ["b"]}
TAINTS = [{"key": "leave", "effect": "NoSchedule"}]
EVICTORS = ("DefaultEvictor", "MigrationController")
DIRECTLY = {
    "defaultJobMode": "EvictDirectly",
    "maxMigratingPerNode": 0,
    "maxMigratingPerWorkload": "90%",
    "maxUnavailablePerWorkload": "90%",
}
FREE = {
    **DIRECTLY,
    "evictQPS": "1000",
    "evictBurst": 100,
    "objectLimiters": {"workload": {"duration": "0s"}},
    "arbitrationArgs": {"interval": "10ms"},
}


def members(count: int, **meta: Any) -> list[Obj]:
    return [pod(f"m{number}", "n1" if number % 2 else "n2", meta=meta) for number in range(count)]


def left(objects: list[Obj], evictor: str, *, rounds: float = 3, at_most: int | None = None, **top: Any) -> set[str]:
    """The pods that are left after rounds in which every pod is asked to leave."""
    text = configuration(
        {"deschedule": ["RemovePodsViolatingNodeTaints"]}, {"MigrationController": FREE}, deschedulingInterval="100ms", **top
    )
    done = after_rounds(
        [node("n1", taints=TAINTS), node("n2", taints=TAINTS), *objects],
        text.replace("name: DefaultEvictor", f"name: {evictor}"),
        rounds,
        at_most,
    )
    if top.get("dryRun"):
        return {each["metadata"]["name"] for each in objects if each["kind"] == "Pod"} - set(done.subjects("WouldEvict"))
    return done.pods


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("evictor", EVICTORS)
def test_a_gang_keeps_its_minimum_also_within_one_round(evictor: str, dry_run: bool) -> None:
    group = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 3}}
    found = left(
        [group, *members(5, labels={names.LABEL_POD_GROUP: "g"})],
        evictor,
        rounds=1 if dry_run else 3,
        at_most=None if dry_run else 3,
        dryRun=dry_run,
    )
    assert len(found) == 3


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize(
    ("meta", "count"),
    [
        ({"annotations": {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_GANG_MIN_AVAILABLE: "2"}}, 2),
        ({"labels": {names.LABEL_POD_GROUP_NAME_DEPRECATED: "g", names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED: "3"}}, 3),
        ({"annotations": {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_GANG_MIN_AVAILABLE: "many"}}, 4),
        ({"labels": {names.LABEL_POD_GROUP: "gone"}}, 4),  # only its PodGroup could tell
        ({"annotations": {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_DESCHEDULER_EVICT: "true"}}, 0),
    ],
)
def test_gangs_that_pods_describe_keep_their_minimum_and_unknown_ones_everybody(meta: Obj, count: int) -> None:
    assert len(left(members(4, **meta), "DefaultEvictor", at_most=count)) == count


GANG = {"gang": {"minCount": 3}}


@pytest.mark.feature("DS-ARB-02")
@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize("evictor", EVICTORS)
@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"schedulingPolicy": GANG}, [3]),
        ({"schedulingPolicy": GANG, "disruptionMode": {"all": {}}}, [5]),  # together or not at all
        ({"schedulingPolicy": {"basic": {}}}, [0, 1, 2, 3, 4]),  # limits of migrations keep some
        (None, [5]),  # nothing tells how many it needs
    ],
)
def test_a_pod_group_of_kubernetes_keeps_its_minimum(evictor: str, spec: Obj | None, counts: list[int]) -> None:
    group = {
        "apiVersion": kinds.SCHEDULING_PODGROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": spec,
    }
    objects = members(5)
    for each in objects:
        each["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert len(left(([group] if spec is not None else []) + objects, evictor, at_most=counts[-1])) in counts


@pytest.mark.feature("DS-FLT-01")
@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize("evictor", EVICTORS)
def test_a_pod_whose_eviction_cost_says_never_stays_whichever_evictor_is_asked(evictor: str) -> None:
    pods = [pod("never", "n1", meta={"annotations": {names.ANNOTATION_EVICTION_COST: str(2**31 - 1)}}), pod("dear", "n1"), pod("x", "n2")]
    assert left(pods, evictor, at_most=1) == {"never"}


def work(name: str, *, started: float, saved: float | None = None, owner: Obj | None = JOB, cost: str = "") -> Pod:
    annotations = {names.ANNOTATION_LAST_CHECKPOINT: format_time(saved)} if saved is not None else {}
    annotations |= {names.ANNOTATION_EVICTION_COST: cost} if cost else {}
    meta = {"name": name, "namespace": "d", "uid": name, "annotations": annotations, "ownerReferences": [owner] if owner else []}
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    return convert({"metadata": meta, "spec": spec, "status": {"phase": "Running", "startTime": format_time(started)}}, Pod)


@pytest.mark.feature("DS-LNL-06")
def test_the_work_that_would_be_lost_comes_before_how_well_a_pod_fits_the_excess() -> None:
    pods = {
        "a-day": work("a-day", started=NOW - 86_400),
        "saved": work("saved", started=NOW - 86_400, saved=NOW - 200),
        "young": work("young", started=NOW - 30),
        "serves": work("serves", started=NOW - 86_400, owner=None),
        "from-the-future": work("from-the-future", started=NOW - 86_400, saved=NOW + 900),
    }
    assert {name: round(lost(each, NOW)) for name, each in pods.items()} == {
        "a-day": 86_400, "saved": 200, "young": 30, "serves": 0, "from-the-future": 86_400,
    }  # fmt: skip
    assert restart_cost(pods["saved"], NOW) == 2
    fits_best = {"a-day": 2000, "saved": 1500, "young": 100}
    views = [pod_view(pods[name], {"cpu": cpu}) for name, cpu in fits_best.items()]
    assert [view.pod.metadata.name for view in leaving_order(views, {"cpu": 2000}, {"cpu": 1}, NOW)] == ["young", "saved", "a-day"]


@pytest.mark.feature("DS-K8S-09")
@pytest.mark.feature("DS-K8S-07")
def test_eviction_cost_decides_among_equals_in_the_plugins_of_the_community() -> None:
    views = [pod_view(work(name, started=NOW, cost=cost), None) for name, cost in (("a", "5"), ("b", ""), ("c", "-3"), ("d", "+7"))]
    assert [view.pod.metadata.name for view in least_important_first(views, NOW)] == ["c", "b", "d", "a"]
    dear = {"annotations": {names.ANNOTATION_EVICTION_COST: "10"}}
    crowd = [pod("a", "n1"), pod("dear", "n1", meta=dear)]
    text = configuration({"balance": ["RemoveDuplicates"]}, {"RemoveDuplicates": {}})
    assert after_rounds([node("n1"), node("n2"), *crowd], text).pods == {"dear"}


ONE_OF_TWO = {
    "RemovePodsViolatingNodeTaints": {},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 3},
    "PodLifeTime": {"states": ["Running"]},
    "CustomPriority": {"evictionOrder": [{"name": zone, "nodeSelector": {"matchLabels": {"zone": zone}}} for zone in ("a", "b")]},
}


@pytest.mark.feature("DS-K8S-11")
@pytest.mark.parametrize("name", ONE_OF_TWO)
def test_of_two_pods_that_are_equal_to_a_plugin_the_one_whose_eviction_costs_more_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord.apiserver.rest.context.now", lambda: "2026-01-01T00:00:00Z")  # one is made as late as the other
    restarts = {"containerStatuses": [{"name": "c", "restartCount": 5}]}
    far = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [IN_B]}]}}}
    pods = [
        pod("a-dear", "n1", meta={"annotations": {names.ANNOTATION_EVICTION_COST: "10"}}, status=restarts, affinity=far),
        pod("b", "n1", status=restarts, affinity=far),
    ]
    nodes = [node("n1", labels={"zone": "a"}, taints=TAINTS), node("n2", labels={"zone": "b"})]
    point = "balance" if name == "CustomPriority" else "deschedule"
    text = configuration({point: [name]}, {name: ONE_OF_TWO[name]}, maxNoOfPodsToEvictTotal=1)
    assert after_rounds([*nodes, *pods], text).pods == {"a-dear"}


@pytest.mark.feature("DS-K8S-09")
def test_of_two_pods_that_cost_the_same_the_one_that_loses_less_work_leaves_first() -> None:
    day, hour = work("a-day", started=NOW - 86_400), work("z-hour", started=NOW - 3600)
    assert [view.pod.metadata.name for view in least_important_first([pod_view(day, None), pod_view(hour, None)], NOW)] == [
        "z-hour",
        "a-day",
    ]
