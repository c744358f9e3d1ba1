"""What is learnt from samples, and what follows from it: the pure part."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.histogram import CheckpointError
from koord.api.objects import ClusterColocationProfile, Pod, Recommendation, convert
from roles.manager.recommender import apply, checkpoint, samples, status
from roles.manager.recommender.estimate import estimates
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.learner import Learner
from roles.manager.recommender.policy import DAY, Policy
from roles.manager.recommender.samples import Kill, Sample
from roles.manager.webhooks import pod_mutate, profiles

START = 1_700_000_000.0
EXACT = Policy(min_cpu=0, min_memory=0)


def group(cpu: float = 0.195, memory: float = 5e8, *, days: float = 4.0, samples: int = 5760) -> ContainerGroup:
    made = ContainerGroup(DAY)
    for n in range(samples):
        made.add("r", START + n * days * DAY / max(samples - 1, 1), cpu=cpu, memory=memory, cpu_request=1.0)
    return made


@pytest.mark.feature("MGR-REC-02")
def test_the_worked_example() -> None:
    made = group()
    end = made.cpu.percentile(0.9)
    found = estimates({"main": made}, EXACT)["main"]
    assert found.confidence == pytest.approx(4.0)
    assert found.target.cpu == pytest.approx(end * 1.15)
    assert found.lower.cpu == pytest.approx(end * 1.15 * (1 + 0.001 / 4) ** -2)
    assert found.upper.cpu == pytest.approx(end * 1.15 * 1.25)
    assert 0.195 <= end < 0.195 * 1.06, "the end of the bucket, not the value"


@pytest.mark.feature("MGR-REC-01")
def test_what_is_negative_is_no_sample_and_costs_no_checkpoint() -> None:
    learner = Learner(EXACT, {"c": group(samples=100)})
    made = learner.groups["c"]
    for cpu, memory, time in ((-1.0, 1e8, START + 5 * DAY), (1.0, -1e8, START + 5 * DAY), (1.0, 1e8, -6e10)):
        assert not learner.feed([Sample("c", "r", time, cpu, memory, 1.0)], [Kill("c", "r", -6e10, 1e8)])
    read, errors = checkpoint.groups_of(checkpoint.data_of(learner.groups), DAY)
    assert not errors
    assert (made.samples, read["c"].samples, made.first) == (100, 100, START)


@pytest.mark.feature("MGR-REC-02")
def test_floors_are_of_the_pod_and_values_are_rounded_up() -> None:
    found = estimates({"a": group(cpu=0.001, memory=1e6), "b": group(cpu=0.001, memory=1e6)}, Policy())
    assert found["a"].target.resources() == {"cpu": "13m", "memory": "131072k"}
    assert estimates({"a": ContainerGroup(DAY)}, Policy()) == {}, "no sample, no entry"


@pytest.mark.feature("MGR-REC-02")
def test_one_sample_bounds_nothing_from_above() -> None:
    found = estimates({"a": group(samples=1)}, Policy())["a"]
    assert found.upper.resources() == {}
    assert found.lower.resources() == {"cpu": "25m", "memory": "262144k"}, "nothing is known below the floor"
    low = status.low_confidence({"a": found})
    assert low is not None
    assert "1 samples, 0.00 days" in low.message


@pytest.mark.feature("MGR-REC-01")
def test_memory_is_the_peak_of_a_day_and_old_samples_are_dropped() -> None:
    made = ContainerGroup(DAY)
    for minute, memory in enumerate((3e8, 9e8, 2e8)):
        assert made.add("r", START + 60 * minute, cpu=0.1, memory=memory, cpu_request=0)
    assert not made.add("r", START + 60, cpu=9.0, memory=9e9, cpu_request=0), "older than the last"
    assert made.add("other", START + 60, cpu=0.1, memory=1e8, cpu_request=0), "a replica of its own"
    assert made.memory.percentile(1.0) == pytest.approx(9e8, rel=0.06)
    made.add("r", START + DAY, cpu=0.1, memory=1e8, cpu_request=0)
    assert made.memory.percentile(0.3) < 2e8, "the next day has a peak of its own"


@pytest.mark.feature("MGR-REC-01")
def test_a_clock_that_is_ahead_for_a_while_keeps_nobody_from_learning() -> None:
    def feed(learner: Learner, now: float, ahead: float) -> bool:
        """Three replicas, of which the node of one is ahead; whether all of them were new."""
        every = [Sample("main", f"r{n}", now + (0 if n else ahead), 4.0, 1e9, 1.0) for n in range(3)]
        kills = [Kill("main", one.replica, one.time - 30, 1e9) for one in every] if now % 3600 < 60 else []
        fed = [learner.feed([one], [kill for kill in kills if kill.replica == one.replica], now) for one in every]
        return all(fed)

    learner = Learner(EXACT)
    for minute in range(200):
        now = START + minute * 60
        assert feed(learner, now, 14 * DAY if minute < 30 else 0.0), minute
        assert learner.groups["main"].last <= now
    groups, errors = checkpoint.groups_of(checkpoint.data_of(learner.groups), EXACT.half_life)
    assert not errors
    assert feed(Learner(EXACT, groups), now + 60, 0.0), "nor after a restart"
    kept = learner.groups["main"]
    kept.last += 14 * DAY  # as an earlier version wrote it
    groups, errors = checkpoint.groups_of(checkpoint.data_of({"main": kept}), EXACT.half_life)
    assert feed(Learner(EXACT, groups), now + 60, 0.0)
    stuck = Sample("main", "r0", now + DAY, 1.0, 1e9, 1.0)
    assert learner.feed([stuck], (), now + 60)
    assert not learner.feed([stuck], (), now + 120), "the same sample is not another one"


@pytest.mark.feature("MGR-REC-01")
def test_a_kill_raises_the_peak_once() -> None:
    made = group(memory=4e8, samples=10, days=0.1)
    assert made.out_of_memory("r", START + DAY, request=5e8)
    assert not made.out_of_memory("r", START + DAY, request=5e8), "the status tells of it for as long as it is the last"
    assert made.memory.percentile(1.0) == pytest.approx(6e8, rel=0.06), "max(5e8 * 1.2, 5e8 + 1e8)"
    assert made.out_of_memory("r", START + DAY + 60, request=5e8)
    assert made.memory.percentile(1.0) == pytest.approx(7.2e8, rel=0.06), "it grows from kill to kill"


@pytest.mark.feature("MGR-REC-01")
def test_a_pod_is_shared_out_by_requests() -> None:
    def container(name: str, cpu: str = "") -> dict[str, object]:
        return {"name": name, "resources": {"requests": {"cpu": cpu} if cpu else {}}}

    spec = {
        "containers": [container("a", "1"), container("b", "500m")],
        "initContainers": [container("setup", "4"), {**container("side", "500m"), "restartPolicy": "Always"}],
    }
    pod = convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec}, Pod)
    found = {s.container: s for s in samples.of_pod(pod, START, 1.0, 300.0)}
    assert {name: s.cpu for name, s in found.items()} == {"a": 0.5, "b": 0.25, "side": 0.25}
    assert {name: s.memory for name, s in found.items()} == {"a": 100.0, "b": 100.0, "side": 100.0}, "no memory requests: equally"


USES = st.lists(
    st.tuples(st.sampled_from("ab"), st.floats(0, 3 * DAY), st.floats(0, 64), st.floats(0, 1e11), st.booleans()), min_size=1, max_size=40
)


@pytest.mark.feature("MGR-REC-02")
@given(USES)
def test_property_bounds_enclose_the_target_and_checkpoints_keep_it(uses: list[tuple[str, float, float, float, bool]]) -> None:
    made = ContainerGroup(DAY)
    for replica, after, cpu, memory, killed in sorted(uses, key=lambda use: use[1]):
        made.add(replica, START + after, cpu=cpu, memory=memory, cpu_request=0.5)
        if killed:
            made.out_of_memory(replica, START + after, request=memory)
    before = estimates({"c": made}, Policy())["c"]
    for low, mid, high in (
        (before.lower.cpu, before.target.cpu, before.upper.cpu),
        (*(a.memory for a in (before.lower, before.target)), before.upper.memory),
    ):
        assert low <= mid <= high
    again, errors = checkpoint.groups_of(checkpoint.data_of({"c": made}), DAY)
    assert errors == []
    after_restart = estimates(again, Policy())["c"]
    assert after_restart.confidence == before.confidence
    assert after_restart.target.cpu == pytest.approx(before.target.cpu, rel=0.06)
    assert after_restart.target.memory == pytest.approx(before.target.memory, rel=0.06)
    assert again["c"].add("a", START, cpu=1, memory=1, cpu_request=1) is (made.last < START)


@pytest.mark.feature("MGR-REC-01")
def test_a_checkpoint_does_not_grow_with_replicas() -> None:
    def of(replicas: int) -> ContainerGroup:
        made = ContainerGroup(DAY)
        for number in range(replicas):
            made.add(f"r{number}", START + number % 60, cpu=0.5, memory=1e9 + number, cpu_request=0.5)
            made.out_of_memory(f"r{number}", START + 60, request=1e9)
        return made

    sizes = [len(checkpoint.data_of({"c": of(replicas)})["container.c"]) for replicas in (10, 5000)]
    assert sizes[1] < sizes[0] + 200
    made = of(10)
    (again,), errors = checkpoint.groups_of(checkpoint.data_of({"c": made}), DAY)[0].values(), ()
    assert errors == ()
    weight = again.memory.total_weight
    for number in range(10):  # all goes on after the restart: nothing is counted twice
        assert not again.out_of_memory(f"r{number}", START + 60, request=1e9)
        assert not again.add(f"r{number}", START + 30, cpu=0.5, memory=1e9, cpu_request=0.5)
        assert again.add(f"r{number}", START + 90, cpu=0.5, memory=1e9, cpu_request=0.5)
    assert again.memory.total_weight == weight
    assert again.add("r3", START + 150, cpu=0.5, memory=9e9, cpu_request=0.5)
    assert again.memory.percentile(1.0) >= 9e9


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cpu": []}, "cpu: a map is wanted"),
        ({"samples": -1}, "samples"),
        ({"samples": 1e308}, "samples"),
        ({"peaks": {"r": [1]}}, "peaks.r"),
        ({"open": {"r": "x"}}, "open"),
        ({"memory": {"bucketWeights": {"99999": 1}, "totalWeight": 1}}, "bucket"),
    ],
)
def test_a_bad_checkpoint_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        ContainerGroup.from_checkpoint(DAY, {**group(samples=3).to_checkpoint(), **change})


def recommendation(**annotations: str) -> Recommendation:
    return convert(
        {
            "metadata": {
                "name": "r",
                "namespace": "shop",
                "annotations": {f"analysis.koordinator.sh/{k}": v for k, v in annotations.items()},
            },
            "status": {
                "conditions": [{"type": "LowConfidence", "status": "False"}],
                "podStatus": {"containerStatuses": [{"containerName": "main", "resources": {"cpu": "300m", "memory": "2Gi"}}]},
            },
        },
        Recommendation,
    )


@pytest.mark.feature("MGR-REC-02")
def test_applying_keeps_limits_and_the_quality_of_service() -> None:
    def pod(requests: dict[str, str], limits: dict[str, str]) -> dict[str, object]:
        return {"spec": {"containers": [{"name": "main", "resources": {"requests": requests, "limits": limits}}]}}

    burstable = pod({"cpu": "2", "memory": "1Gi"}, {"memory": "1536Mi"})
    assert apply.apply(burstable, recommendation()) == {"main.cpu": "300m", "main.memory": str(1536 * 2**20 - 1)}
    guaranteed = pod({"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})
    apply.apply(guaranteed, recommendation())
    resources = guaranteed["spec"]["containers"][0]["resources"]  # type: ignore[index]
    assert resources["requests"] == resources["limits"] == {"cpu": "300m", "memory": "2Gi"}
    nothing = pod({}, {})
    assert apply.apply(nothing, recommendation()) == {}
    assert nothing == pod({}, {})


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize(("limit", "cpu"), [("200m", "199m"), ("300m", "299m"), ("0.3", "299m"), ("301m", "300m"), ("1m", "0")])
def test_applying_makes_no_burstable_pod_guaranteed(limit: str, cpu: str) -> None:
    """A request that reached its limit would be another QoS class: with whole CPUs the kubelet would give them to it alone."""
    requests, limits = {"cpu": "0", "memory": "2Gi"}, {"cpu": limit, "memory": "2Gi"}
    pod: dict[str, object] = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests, "limits": limits}}]}}
    apply.apply(pod, recommendation())
    assert (requests, limits) == ({"cpu": cpu, "memory": "2Gi"}, {"cpu": limit, "memory": "2Gi"})


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize("qos", ["LSR", "LSE"])
def test_applying_leaves_cpus_alone_that_a_pod_has_for_itself(qos: str) -> None:
    """300m would be no whole core: the validating webhook would refuse the pod, which was sound as it came."""

    def pod(**labels: str) -> dict[str, object]:
        requests = {"cpu": "2", "memory": "1Gi"}
        labels = {f"koordinator.sh/{key}": value for key, value in labels.items()}
        return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}

    assert apply.apply(pod(qosClass=qos), recommendation()) == {"main.memory": "2Gi"}
    assert apply.apply(pod(), recommendation(), exclusive=True) == {"main.memory": "2Gi"}
    assert apply.apply(pod(qosClass="LS"), recommendation()) == {"main.cpu": "300m", "main.memory": "2Gi"}


@pytest.mark.feature("MGR-REC-02")
@pytest.mark.parametrize(("tier", "cpu"), [("exclusive", "2"), ("shared", "300m")])
def test_a_profile_that_makes_pods_exclusive_counts_in_its_namespaces_only(tier: str, cpu: str) -> None:
    spec = {"namespaceSelector": {"matchLabels": {"tier": "exclusive"}}, "qosClass": "LSR"}
    profile = profiles.compile_profile(convert({"metadata": {"name": "p"}, "spec": spec}, ClusterColocationProfile))

    async def namespace_labels(name: str) -> dict[str, str]:
        return {"tier": tier}

    following = SimpleNamespace(fitting=lambda namespace, labels: recommendation(mode="apply-on-create"))
    view: Any = SimpleNamespace(following=following, profiles={"p": profile}, namespace_labels=namespace_labels)
    request: Any = SimpleNamespace(namespace="shop", notes=[])
    pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    changed = asyncio.run(pod_mutate.recommendation(pod, request, view))
    assert changed["spec"]["containers"][0]["resources"]["requests"] == {"cpu": cpu}


def fitting(recommendations: list[Recommendation], namespace: str, labels: dict[str, str]) -> Recommendation | None:
    following = apply.Following()
    for each in recommendations:
        following.put(each)
    return following.fitting(namespace, labels)


@pytest.mark.feature("MGR-REC-02")
def test_who_is_followed() -> None:
    asked = recommendation(mode="apply-on-create", selector="app=web;job-name=j")
    assert fitting([asked], "shop", {"app": "web"}) is asked
    assert fitting([asked], "shop", {"job-name": "j"}) is asked
    assert fitting([asked], "other", {"app": "web"}) is None
    assert fitting([asked], "shop", {"app": "db"}) is None
    everybody = recommendation(mode="apply-on-create", selector="*")
    assert fitting([everybody], "shop", {"app": "db"}) is everybody
    for nobody in ("", "**"):  # a CronJob without jobs has no selectors
        assert fitting([recommendation(mode="apply-on-create", selector=nobody)], "shop", {"app": "db"}) is None
    assert fitting([recommendation(selector="app=web")], "shop", {"app": "web"}) is None, "nobody asked"
    assert fitting([recommendation(mode="Apply-On-Create", selector="app=web")], "shop", {"app": "web"}) is None, "a typing error"


@pytest.mark.feature("MGR-REC-02")
def test_nothing_is_kept_of_recommendations_that_are_gone() -> None:
    following, kept = apply.Following(), vars(apply.Following())
    for number in range(3):
        asked = recommendation(mode="apply-on-create", selector=f"app=web,job={number};app in (web,db);team;*")
        following.put(asked)
        assert vars(following) != kept
    following.drop(asked)
    assert vars(following) == kept


@pytest.mark.feature("MGR-REC-02")
def test_what_a_pod_is_likely_to_use_is_told_to_the_scheduler() -> None:
    def pod(requests: dict[str, str], limits: dict[str, str] | None = None, **annotations: str) -> dict[str, object]:
        container = {"name": "main", "resources": {"requests": requests, "limits": limits or {}}}
        return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}

    key = "scheduling.koordinator.sh/load-estimated-scaling-factors"
    asked = recommendation(mode="estimate-on-create")
    new = pod({"cpu": "1", "memory": "1Gi"}, {"cpu": "2"})
    assert apply.estimate(new, asked) == {"cpu": 15, "memory": 100}, "300m of 2 cores; more memory than it asks for"
    assert json.loads(new["metadata"]["annotations"][key]) == {"cpu": 15, "memory": 100}  # type: ignore[index]
    assert new["spec"] == pod({"cpu": "1", "memory": "1Gi"}, {"cpu": "2"})["spec"], "requests stay"
    assert apply.estimate(pod({"cpu": "1"}), asked) == {"cpu": 30}, "nothing is asked for in memory"
    assert apply.estimate(pod({"cpu": "1"}, **{key: "{}"}), asked) == {}, "it says so itself"
    assert apply.estimate(pod({"cpu": "x"}), asked) == {}
