"""The books against a recount of everything, hooks, revoking, and patches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.api.objects import ElasticQuota
from koord.api.objects_crd import ElasticQuotaStatus
from koord.config.scheduler import KubeSchedulerConfiguration, Profile
from roles.scheduler import testing
from roles.scheduler.engine import Engine, registry
from roles.scheduler.framework.gangs import NoGangs
from roles.scheduler.framework.registry import PluginError
from roles.scheduler.plugins.elastic_quota import hooks as hooks_module
from roles.scheduler.plugins.elastic_quota.args import HookPluginArgs
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache, Rules
from roles.scheduler.plugins.elastic_quota.hooks import QuotaHook
from roles.scheduler.plugins.elastic_quota.revoke import Revoker, victims
from roles.scheduler.plugins.elastic_quota.status import patch_of
from tests.support.examples import examples

PREFIX = "quota.scheduling.koordinator.sh/"
PROFILE = {"plugins": {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve")}}
QUOTAS = ("a", "b", "c")


def quota(
    name: str, top: dict[str, str], low: dict[str, str] | None = None, *, version: int = 1, namespace: str = "quotas", **labels: str
) -> Any:
    annotations = {PREFIX + key: value for key, value in json.loads(labels.pop("notes", "{}")).items()}
    return msgspec.convert(
        {
            "metadata": {
                "name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "resourceVersion": str(version),
                "labels": {PREFIX + key.replace("_", "-"): value for key, value in labels.items()}, "annotations": annotations,
            },
            "spec": {"max": top, "min": low or {}},
        },
        ElasticQuota,
    )  # fmt: skip


def world(**args: Any) -> tuple[testing.World, QuotaCache]:
    content: dict[str, Any] = {**PROFILE, "pluginConfig": [{"name": "ElasticQuota", "args": args}]}
    made = testing.World(content)
    plugin: Any = made.framework.plugins["ElasticQuota"]
    return made, plugin.cache


def pod(uid: str, quota: str, cpu: int, *, node: str = "", **more: Any) -> Any:
    labels = {PREFIX + "name": quota} if quota else {}
    return testing.pod(uid, uid=uid, cpu=str(cpu), labels={**labels, **more.pop("labels", {})}, node=node, **more)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("see"), st.integers(0, 5), st.sampled_from(("", *QUOTAS)), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("gone"), st.integers(0, 5)),
        st.tuples(st.just("quota"), st.sampled_from(QUOTAS), st.sampled_from(("", "a")), st.booleans()),
        st.tuples(st.just("no quota"), st.sampled_from(QUOTAS)),
        st.tuples(st.just("suppose"), st.integers(0, 5)),
    ),
    max_size=25,
)


@examples(60)
@given(steps)
def test_every_pod_counts_exactly_once_whatever_happens(actions: list[tuple[Any, ...]]) -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu="100"))
    objects: dict[str, Any] = {}
    pods: dict[str, Any] = {}
    for action in actions:
        kind, uid = action[0], f"p{action[1]}"
        if kind == "see":
            assigned = action[4] or (uid in pods and bool(pods[uid].node_name))
            info = made.parser.parse(pod(uid, action[2], action[3], node="n" if assigned else ""))
            pods[uid] = info
            cache.pod_seen(info)
            if assigned:
                made.cluster.add_pod(info, "n")
        elif kind == "gone":
            pods.pop(uid, None)
            cache.pod_gone(uid)
            made.cluster.remove_pod(uid)
        elif kind == "quota":
            name, parent = action[1], action[2] if action[2] != action[1] else ""
            new = quota(name, {"cpu": "9", **({"memory": "90Gi"} if action[3] else {})}, parent=parent)
            cache.quota_event(objects.get(name), new)
            objects[name] = new
        elif kind == "no quota" and action[1] in objects:
            cache.quota_event(objects.pop(action[1]), None)
        elif kind == "suppose":
            with made.state.suppose() as supposed:
                supposed.remove(uid)
    cache.settle()
    for _, node in cache.quotas():
        mine = [info for info in pods.values() if (info.shape.labels.get(PREFIX + "name") or "?") in objects]
        home = [info for info in mine if info.shape.labels[PREFIX + "name"] == node.name]
        if node.name == "koordinator-default-quota":
            home = [info for info in pods.values() if info not in mine]
        for resource in ("cpu", "memory"):
            known = resource in node.spec.max
            requested = sum(info.shape.amounts[resource] for info in home) if known else 0
            used = sum(info.shape.amounts[resource] for info in home if info.node_name) if known else 0
            assert node.self_request.get(resource, 0) == requested
            assert node.self_used.get(resource, 0) == used
    total_used = sum(info.shape.amounts["cpu"] for info in pods.values() if info.node_name)
    attached = cache.trees[""].root.used.get("cpu", 0)
    detached = sum(q.used.get("cpu", 0) for _, q in cache.quotas() if q.parent is None and q.name != "koordinator-root-quota")
    assert attached + detached == total_used


@pytest.mark.feature("SCH-EQ-02")
def test_where_a_pod_belongs() -> None:
    made, cache = world()
    made.add_nodes(testing.node("n"))
    cache.quota_event(None, quota("team", {"cpu": "9"}, notes=json.dumps({"namespaces": '["shared"]'})))
    cache.quota_event(None, quota("own", {"cpu": "9"}, namespace="own"))
    cache.quota_event(None, quota("elsewhere", {"cpu": "9"}))

    def home(namespace: str, label: str = "") -> str:
        return cache.resolve(made.parser.parse(pod("x", label, 1, namespace=namespace)).shape)

    assert home("shared") == "team"
    assert home("own") == "own"
    assert home("own", "team") == "team"
    assert home("elsewhere") == "koordinator-default-quota"  # the quota of that name is in another namespace
    assert home("shared", "nobody") == "koordinator-default-quota"


own = st.sampled_from(("quotas", *QUOTAS))
spaces = st.lists(st.tuples(st.booleans(), st.sampled_from(QUOTAS), own, st.sets(st.sampled_from(QUOTAS))), max_size=12)


@pytest.mark.feature("SCH-EQ-02")
@examples(60)
@given(spaces)
def test_pods_follow_the_namespaces_of_quotas(actions: list[tuple[bool, str, str, set[str]]]) -> None:
    made, cache = world()
    made.add_nodes(testing.node("n"))
    pods = [made.parser.parse(pod(f"{space}-{label}", label, 1, namespace=space, node="n")) for space in QUOTAS for label in ("", "a")]
    for info in pods:
        cache.pod_seen(info)
        made.cluster.add_pod(info, "n")
    objects: dict[tuple[str, str], Any] = {}
    for version, (there, name, namespace, listed) in enumerate(actions, 1):
        before, after = objects.pop((name, namespace), None), None
        if there:
            notes = json.dumps({"namespaces": json.dumps(sorted(listed))})
            after = objects[name, namespace] = quota(name, {"cpu": "9"}, namespace=namespace, version=version, notes=notes)
        if before is not None or after is not None:
            cache.quota_event(before, after)
        cache.settle()
        for info in pods:
            member = cache.member(info.uid)
            assert member is not None
            assert member.quota.name == cache.resolve(info.shape)
        for _, node in cache.quotas():
            used = sum(1000 for info in pods if cache.resolve(info.shape) == node.name)
            assert node.self_used.get("cpu", 0) == node.self_request.get("cpu", 0) == used


def test_without_a_default_quota_pods_are_free_until_their_quota_comes() -> None:
    rules = Rules(default_max={"cpu": 10}, system_max={}, namespace="k", label_only=True)
    cache = QuotaCache(rules, lambda: 0.0)
    made = testing.World()
    cache.pod_seen(made.parser.parse(pod("x", "late", 2)))
    cache.pod_seen(made.parser.parse(pod("y", "", 2)))
    assert cache.trees[""].root.child_request == {}
    cache.quota_event(None, quota("late", {"cpu": "9"}))
    cache.settle()
    assert cache.trees[""].root.child_request == {"cpu": 2000}


def test_a_malformed_quota_keeps_its_last_good_state_and_a_second_one_of_its_name_waits() -> None:
    _, cache = world()
    problems: list[tuple[str, str]] = []
    cache.refused = lambda name, problem: problems.append((name, problem))
    first = quota("a", {"cpu": "4"})
    cache.quota_event(None, first)
    cache.quota_event(first, quota("a", {"cpu": "four"}, version=2))
    cache.quota_event(None, quota("a", {"cpu": "7"}, namespace="some"))
    assert [name for name, _ in problems] == ["quotas/a", "some/a"]
    assert "'four' is not a quantity" in problems[0][1]
    assert cache.quota("a")[1].spec.max == {"cpu": 4000}  # type: ignore[index]
    cache.quota_event(first, None)
    assert cache.quota("a")[1].spec.max == {"cpu": 7000}  # type: ignore[index]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_namesakes_in_two_trees_the_older_has_the_tree_whichever_comes_first(order: tuple[int, int]) -> None:
    cache = QuotaCache(Rules(default_max={"cpu": 10}, system_max={}, namespace="k", trees=True), lambda: 0.0)
    made = testing.World()
    objects = [quota("team", {"cpu": top}, namespace=space, tree_id=tree) for space, tree, top in (("a", "one", "4"), ("b", "two", "7"))]
    member = made.parser.parse(pod("x", "team", 2))
    for place in order:
        cache.quota_event(None, objects[place])
        cache.pod_seen(member)
        cache.settle()
    assert (cache.tree_name("team"), sorted(cache.trees)) == ("one", ["", "one"])
    assert cache.trees["one"].root.child_request == {"cpu": 2000}
    assert cache.trees[""].root.child_request.get("cpu", 0) == 0
    moved = quota("team", {"cpu": "5"}, namespace="a", tree_id="three", version=2)
    cache.quota_event(objects[0], moved)
    assert (cache.tree_name("team"), cache.quota("team")[1].spec.max) == ("one", {"cpu": 5000})  # type: ignore[index]
    cache.quota_event(moved, None)
    cache.settle()
    assert (cache.tree_name("team"), sorted(cache.trees)) == ("two", ["", "two"])
    assert cache.trees["two"].root.child_request == {"cpu": 2000}


def test_terminating_pods_may_be_left_out_at_once_or_after_their_grace() -> None:
    made = testing.World()
    deleted = pod("x", "", 2)
    end = {"deletion_timestamp": "1970-01-01T00:01:40Z", "deletion_grace_period_seconds": 30}
    meta = msgspec.structs.replace(deleted.metadata, **end)
    info = made.parser.parse(msgspec.structs.replace(deleted, metadata=meta))
    for rules, at, counts in (({}, 500, True), ({"drop_terminating": True}, 0, False), ({"drop_overdue": True}, 120, True)):
        cache = QuotaCache(Rules(default_max={"cpu": 10**6}, system_max={}, namespace="k", **rules), lambda at=at: float(at))  # type: ignore[misc]
        cache.pod_seen(info)
        assert (cache.member("x") is not None) is counts
    cache.sweep(129.0)
    assert cache.member("x") is not None
    cache.sweep(130.0)
    assert cache.member("x") is None


@pytest.mark.feature("SCH-EQ-07")
def test_a_what_if_about_an_unknown_pod_reckons_with_its_request() -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu="6"), testing.node("m", cpu="6"))
    for name in ("a", "b"):
        made.feed("ElasticQuota", quota(name, {"cpu": "10"}))
    assert made.schedule(pod("x", "a", 6)).scheduled
    refused = made.decide(pod("y", "b", 7))
    assert "runtime: cpu:6" in refused.message()
    assert made.decide(pod("z", "b", 6)).scheduled
    assert cache.quota("b")[1].request.get("cpu", 0) == 0  # type: ignore[index]


@pytest.mark.feature("SCH-EQ-01")
def test_profiles_share_one_set_of_books_with_one_keeper() -> None:
    profiles = [{"schedulerName": name, **PROFILE} for name in ("one", "two")]
    content = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": profiles}
    engine = Engine(KubeSchedulerConfiguration.model_validate(content), registry(entry_points=False))
    plugins: list[Any] = [engine.frameworks[name].plugins["ElasticQuota"] for name in ("one", "two")]
    assert plugins[0].cache is plugins[1].cache
    assert [feed.kind.kind for plugin in plugins for feed in plugin.feeds()].count("ElasticQuota") == 1
    for plugin in plugins:
        plugin.handle.metrics = CollectorRegistry()
    assert [len(list(plugin.controllers())) for plugin in plugins] == [2, 0]


# ---------------------------------------------------------------- revoking


def member(name: str, cpu: int, priority: int, start: str, *, preemptible: bool = True) -> Any:
    status = SimpleNamespace(start_time=start)
    shape, pod = SimpleNamespace(priority=priority), SimpleNamespace(status=status)
    info = SimpleNamespace(key=name, uid=name, priority=priority, shape=shape, deleting=False, pod=pod)
    return SimpleNamespace(pod=info, amount={"cpu": cpu}, assigned=True, preemptible=preemptible)


@pytest.mark.feature("SCH-EQ-09")
@pytest.mark.parametrize(
    ("runtime", "gone"),
    [
        (10, []), (9, ["young"]), (7, ["young"]), (6, ["young", "old"]), (4, ["young", "great"]), (3, ["young", "great"]),
        (0, ["young", "old", "great"]),
    ],
)  # fmt: skip
def test_the_least_important_go_first_and_come_back_where_there_is_room(runtime: int, gone: list[str]) -> None:
    members = [
        member("old", 2, 1, "2026-01-01T00:00:00Z"), member("young", 3, 1, "2026-01-02T00:00:00Z"),
        member("great", 4, 9, "2026-01-03T00:00:00Z"), member("kept", 1, 0, "2026-01-04T00:00:00Z", preemptible=False),
    ]  # fmt: skip
    assert [pod.key for pod in victims(members, {"cpu": 10}, {"cpu": runtime}, NoGangs())] == gone


def test_one_that_is_not_needed_comes_back() -> None:
    members = [member("small", 1, 1, "2026-01-02T00:00:00Z"), member("big", 5, 2, "2026-01-01T00:00:00Z")]
    assert [pod.key for pod in victims(members, {"cpu": 6}, {"cpu": 1}, NoGangs())] == ["big"]


@pytest.mark.feature("SCH-EQ-05")
@pytest.mark.parametrize("how", ["the node goes", "its devices go"])
def test_a_resource_that_no_node_has_any_more_is_shared_as_after_a_restart(how: str) -> None:
    runtimes = []
    for restarted in (False, True):
        made, cache = world()
        made.add_nodes(testing.node("n", cpu="4"))
        if not restarted:
            made.add_nodes(testing.node("g", cpu="4", **{"nvidia.com/gpu": "8"}))
        for name in ("a", "b"):
            made.feed("ElasticQuota", quota(name, {"cpu": "8", "nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "4"}))
            made.add_pods(pod(name, name, 1, requests={"nvidia.com/gpu": "2"}))
        cache.trees[""].refresh_all()
        if how == "its devices go":
            made.add_nodes(testing.node("g", cpu="4"))
        elif not restarted:
            made.remove_nodes("g")
        cache.trees[""].refresh_all()
        runtimes.append([(found.name, found.runtime, found.scaled_min) for _, found in cache.quotas()])
    assert runtimes[0] == runtimes[1]


@pytest.mark.feature("SCH-EQ-09")
def test_over_use_is_borne_for_a_while() -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu="4"))
    made.feed("ElasticQuota", quota("a", {"cpu": "10"}))
    for number in range(3):
        made.add_pods(pod(f"p{number}", "a", 2, node="n"))
    cache.trees[""].refresh_all()
    revoker = Revoker(10.0)
    assert revoker.due(cache, 100.0, NoGangs()) == []
    assert revoker.due(cache, 110.0, NoGangs()) == []
    assert len(revoker.due(cache, 110.1, NoGangs())) == 1
    assert revoker.due(cache, 115.0, NoGangs()) == []  # it has the same time again


@pytest.mark.feature("SCH-EQ-09")
@pytest.mark.parametrize(("preemptible", "cpu", "gone"), [("false", "20", []), ("true", "20", ["gpu"]), ("false", "14", ["p1"])])
def test_what_is_over_takes_none_who_has_nothing_of_it(preemptible: str, cpu: str, gone: list[str]) -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu=cpu, **{"nvidia.com/gpu": "7"}))  # one of eight has failed
    made.feed("ElasticQuota", quota("a", {"cpu": "20", "nvidia.com/gpu": "8"}))
    labels = {PREFIX + "name": "a", PREFIX + "preemptible": preemptible}
    made.add_pods(testing.pod("gpu", uid="gpu", cpu="1", labels=labels, node="n", priority=9, requests={"nvidia.com/gpu": "8"}))
    for number in range(5):
        made.add_pods(pod(f"p{number}", "a", number + 1, node="n", priority=number))
    cache.trees[""].refresh_all()
    revoker = Revoker(0.0)
    assert revoker.due(cache, 100.0, NoGangs()) == []
    assert [victim.name for _, victim in revoker.due(cache, 100.1, NoGangs())] == gone


@pytest.mark.feature("SCH-EQ-09")
@pytest.mark.parametrize(("leaves", "gone"), [(2, []), (1, ["p0"])])
def test_nobody_goes_instead_of_who_is_leaving(leaves: int, gone: list[str]) -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu="6"))
    made.feed("ElasticQuota", quota("a", {"cpu": "10"}))
    going = pod("going", "a", leaves, node="n", priority=9)
    meta = msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    made.add_pods(msgspec.structs.replace(going, metadata=meta))
    for number, cpu in enumerate((2, 2, 2, 2 - leaves)):
        made.add_pods(pod(f"p{number}", "a", cpu, node="n", priority=number))
    cache.trees[""].refresh_all()
    revoker = Revoker(0.0)
    assert revoker.due(cache, 100.0, NoGangs()) == []
    assert [victim.name for _, victim in revoker.due(cache, 100.1, NoGangs())] == gone


# ---------------------------------------------------------------- hooks


class Recording(QuotaHook):
    """Keeps what it is told; refuses pods whose name says so."""

    told: list[str] = []

    def __init__(self, key: str, args: Any) -> None:
        self.key = key
        self.bad = args["bad"]

    def pre_update(self, old: Any, new: Any, state: dict[str, Any]) -> None:
        state["seen"] = True

    def post_update(self, old: Any, new: Any, state: dict[str, Any]) -> None:
        assert state["seen"]
        self.told.append(f"{old.name if old else '-'} > {new.name if new else '-'}")

    def pod_updated(self, quota: str, pod: Any) -> None:
        self.told.append(f"{quota}: {pod.name}")

    def annotations(self, quota: Any) -> dict[str, str]:
        return {"example.com/seen": quota.name}

    def check_pod(self, quota: Any, pod: Any) -> str:
        if pod.name == "crash":
            raise RuntimeError("no idea")
        return "it is bad" if pod.name == self.bad else ""


@pytest.mark.feature("SCH-EQ-12")
def test_hooks_follow_quotas_and_have_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "factories", lambda: {"recording": Recording})
    Recording.told.clear()
    made, cache = world(hookPlugins=[{"key": "mine", "factoryKey": "recording", "factoryArgs": {"bad": "bad"}}])
    made.add_nodes(testing.node("n"))
    shown = quota("a", {"cpu": "9"})
    made.feed("ElasticQuota", shown)
    made.feed("ElasticQuota", shown, shown)  # nothing changed
    assert Recording.told == ["- > a"]
    assert "quota hook mine: it is bad" in made.decide(pod("bad", "a", 1)).message()
    assert "quota hook mine: RuntimeError: no idea" in made.decide(pod("crash", "a", 1)).message()
    assert made.decide(pod("good", "a", 1)).scheduled
    info = made.add_pods(pod("placed", "a", 1, node="n"))[0]
    cache.pod_seen(info)
    cache.quota_event(shown, None)
    assert Recording.told[1:] == ["a: placed", "a > -"]


@pytest.mark.feature("SCH-EQ-12")
def test_an_unknown_hook_factory_stops_the_start() -> None:
    with pytest.raises(PluginError, match=r"no factory 'nobody' for hook 'k'; available: none is installed"):
        world(hookPlugins=[{"key": "k", "factoryKey": "nobody"}])
    with pytest.raises(ValueError, match="key"):
        HookPluginArgs.model_validate({"key": "", "factoryKey": "x"})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"delayEvictTime": "-1s"}, "delayEvictTime"), ({"defaultQuotaGroupMax": {"cpu": "-1"}}, "defaultQuotaGroupMax"),
        ({"systemQuotaGroupMax": {"cpu": "much"}}, "systemQuotaGroupMax"), ({"typo": 1}, "typo"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(args: dict[str, Any], text: str) -> None:
    assert Profile.model_validate({"schedulerName": "x"})
    with pytest.raises(Exception, match=text):
        world(**args)


# ---------------------------------------------------------------- patches


@pytest.mark.feature("SCH-EQ-10")
def test_a_patch_says_only_what_differs_and_takes_away_what_is_gone() -> None:
    made, cache = world()
    made.add_nodes(testing.node("n", cpu="10"))
    shown = quota("a", {"cpu": "10"}, notes=json.dumps({"request": '{"cpu":"2000m"}', "runtime": "no json"}))
    shown = msgspec.structs.replace(shown, status=ElasticQuotaStatus(used={"memory": "1Gi"}))
    made.feed("ElasticQuota", shown)
    made.add_pods(pod("x", "a", 2, node="n"))
    cache.trees[""].refresh_all()
    node = cache.quota("a")[1]  # type: ignore[index]
    assert patch_of(node, shown, {}) == {
        "metadata": {"annotations": {PREFIX + "runtime": '{"cpu":"2"}', PREFIX + "child-request": '{"cpu":"2"}'}, "uid": "quotas/a"},
        "status": {"used": {"cpu": "2", "memory": None}},
    }
    idle = quota("b", {"cpu": "10"})
    made.feed("ElasticQuota", idle)
    cache.trees[""].refresh_all()
    assert patch_of(cache.quota("b")[1], idle, {}) is None  # type: ignore[index]
    assert patch_of(cache.quota("b")[1], idle, {"example.com/x": "1"}) == {  # type: ignore[index]
        "metadata": {"annotations": {"example.com/x": "1"}, "uid": "quotas/b"}
    }
