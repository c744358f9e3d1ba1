"""Thousands of quotas: what a change costs does not grow with them, and leaves what a start from the same objects would find."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import quota_namespaces
from koord.api.objects import ElasticQuota
from koord.kube.errors import ApiError
from roles.scheduler import testing
from roles.scheduler.cluster.nodeview import NodeView
from roles.scheduler.plugins.elastic_quota import status, upkeep
from roles.scheduler.plugins.elastic_quota.args import ElasticQuotaArgs
from roles.scheduler.plugins.elastic_quota.cache import QuotaCache, Rules
from roles.scheduler.plugins.elastic_quota.metrics import QuotaMetrics
from roles.scheduler.plugins.elastic_quota.model import DEFAULT, DEFAULT_TREE, ROOT
from tests.support.counting import counting
from tests.support.examples import examples

PREFIX = "quota.scheduling.koordinator.sh/"
NAMES = ("a", "b", "c", "d", "e")
ABOVE = {"a": ("", "b"), "b": ("", "a", "c"), "c": ("", "a", "b", "missing"), "d": ("", "missing", "e"), "e": ("", "d")}
TREES = {"d": "other", "e": "other"}  # a quota's tree is fixed at first sight
SPACES = ("quotas", *NAMES)


def quota(
    name: str, *, namespace: str = "quotas", spaces: Any = (), spec: Any = None, total: Any = None, created: int = 0, **labels: str
) -> ElasticQuota:
    notes = {"namespaces": json.dumps(sorted(spaces)), **({"total-resource": json.dumps(total)} if total else {})}
    content = {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            "labels": {PREFIX + key.replace("_", "-"): value for key, value in labels.items()},
            "annotations": {PREFIX + key: value for key, value in notes.items()},
        },
        "spec": {"max": {"cpu": "9"}} if spec is None else spec,
    }  # fmt: skip
    return msgspec.convert(content, ElasticQuota)


def cache_of(**rules: Any) -> QuotaCache:
    known = {"default_max": {"cpu": 10**6}, "system_max": {"cpu": 10**6}, "namespace": "k", "trees": True}
    return QuotaCache(Rules(**{**known, **rules}), lambda: 0.0)


# ---------------------------------------------------------------- the same as made anew

AMOUNT = st.integers(0, 9)
SPEC = st.tuples(AMOUNT, AMOUNT, st.booleans())
CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.just("quota"), st.sampled_from((*NAMES, ROOT)), st.sampled_from(("quotas", *NAMES)), st.integers(0, 3), SPEC,
            st.sets(st.sampled_from(SPACES)), st.booleans(), st.booleans(),
        ),
        st.tuples(st.just("no quota"), st.sampled_from((*NAMES, ROOT)), st.sampled_from(("quotas", *NAMES))),
        st.tuples(
            st.just("pod"), st.integers(0, 5), st.sampled_from(("", "", *NAMES)), st.sampled_from(SPACES), st.integers(1, 4), st.booleans()
        ),
        st.tuples(st.just("no pod"), st.integers(0, 5)),
        st.tuples(st.just("node"), st.integers(0, 2), AMOUNT),
        st.tuples(st.just("settle")),
    ),
    max_size=30,
)  # fmt: skip


class Objects:
    """What there is, in the order in which it came, and a cache that was told of each change."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self.rules, self.told = rules, cache_of(**rules)
        self.parser = testing.World().parser
        self.quotas: dict[str, dict[str, ElasticQuota]] = {}
        self.pods: dict[str, Any] = {}
        self.births, self.created = count(), dict[tuple[str, str], int]()
        self.nodes = {9: NodeView(testing.node("n9", cpu="1"))}  # without any node nobody knows what there is to be shared
        self.told.node_set(9, None, self.nodes[9])

    def change(self, kind: str, *about: Any) -> None:
        if kind == "settle":
            self.told.settle()
        elif kind == "node":
            slot, cpu = about
            before = self.nodes.pop(slot, None)
            if before is not None and not cpu:
                self.told.node_removed(slot, before)
            elif cpu:
                self.nodes[slot] = NodeView(testing.node(f"n{slot}", cpu=str(cpu)))
                self.told.node_set(slot, before, self.nodes[slot])
        elif kind in ("pod", "no pod"):
            uid = f"p{about[0]}"
            self.pods.pop(uid, None)
            self.told.pod_gone(uid)
            if kind == "pod":
                self.pods[uid] = self._pod(uid, *about[1:])
                see(self.told, self.pods[uid])
        else:
            self._quota(*about)

    def _pod(self, uid: str, label: str, space: str, cpu: int, assigned: bool) -> Any:
        labels = {PREFIX + "name": label} if label else {}
        return self.parser.parse(testing.pod(uid, uid=uid, cpu=str(cpu), namespace=space, labels=labels, node="n" if assigned else ""))

    def _quota(self, name: str, namespace: str, *how: Any) -> None:
        known = self.quotas.setdefault(name, {})
        before = known.get(namespace)
        if how:
            place, (low, more, memory), spaces, root, outside = how
            above, tree = ABOVE.get(name, ("",)), TREES.get(name, "")
            spec = {"min": {"cpu": str(low)}, "max": {"cpu": str(low + more), **({"memory": "1Gi"} if memory else {})}}
            labels = {"parent": above[place % len(above)], "tree_id": tree, "is_root": str(root).lower()}
            labels["ignore_default_tree"] = str(outside).lower()
            if before is None:
                self.created[name, namespace] = next(self.births) // 2  # two in a second
            created, total = self.created[name, namespace], {"cpu": str(more)}
            known[namespace] = quota(name, namespace=namespace, spaces=spaces, spec=spec, total=total, created=created, **labels)
            self.told.quota_event(before, known[namespace])
        elif before is not None:
            del known[namespace]
            self.told.quota_event(before, None)
        if not known:
            del self.quotas[name]

    def in_cycle(self, name: str) -> bool:
        seen: list[str] = []
        while name in self.quotas and name not in seen:
            seen.append(name)
            name = self.holder(name).metadata.labels[PREFIX + "parent"]
        return name in seen

    def holder(self, name: str) -> ElasticQuota:
        return min(self.quotas[name].values(), key=age)

    def anew(self) -> QuotaCache:
        made = cache_of(**self.rules)
        for slot, view in self.nodes.items():
            made.node_set(slot, None, view)
        listed = [found for known in self.quotas.values() for found in known.values()]
        for found in sorted(listed, key=lambda found: (found.metadata.namespace, found.metadata.name)):  # as the API server lists them
            made.quota_event(None, found)
        for pod in self.pods.values():
            see(made, pod)
        return made


def age(found: ElasticQuota) -> tuple[Any, ...]:
    return found.metadata.creation_timestamp, found.metadata.namespace, found.metadata.name


def see(cache: QuotaCache, pod: Any) -> None:
    cache.pod_seen(pod)
    if pod.node_name:
        cache.pod_added(0, pod)


def plain(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def state(cache: QuotaCache) -> dict[str, Any]:
    """All that is decided by."""
    cache.settle()
    for tree in cache.trees.values():
        tree.refresh_all()
    quotas = {
        f"{tree}/{found.name}": {
            "spec": found.spec, "parent": found.parent and found.parent.name, "children": sorted(found.children), "limit": found.limit(),
            **{name: plain(getattr(found, name)) for name in (
                "self_request", "self_used", "self_non_preemptible_request", "self_non_preemptible_used", "child_request", "request",
                "limited", "used", "non_preemptible_request", "non_preemptible_used", "allocated", "guaranteed", "scaled_min",
            )},
            "pods": {member.pod.uid: (plain(member.amount), member.assigned) for member in cache.members(found.name)},
            "shown": cache.shown(found.name),
        }
        for tree, found in cache.quotas()
    }  # fmt: skip
    return {"quotas": quotas, "totals": {name: plain(tree.total) for name, tree in cache.trees.items()}}


@pytest.mark.feature("SCH-EQ-01")
@pytest.mark.feature("SCH-EQ-02")
@pytest.mark.feature("SCH-EQ-11")
@examples(150)
@given(changes=CHANGES, rules=st.sampled_from(({}, {"guarantee": True}, {"label_only": True}, {"trees": False})))
def test_after_any_changes_all_is_as_a_start_from_the_same_objects_finds_it(changes: list[tuple[Any, ...]], rules: dict[str, Any]) -> None:
    objects = Objects(rules)
    for change in changes:
        objects.change(*change)
    for name in (*NAMES, *NAMES):  # which quota of a cycle has no parent is told by what came last
        if objects.in_cycle(name):
            objects.change("no quota", name, objects.holder(name).metadata.namespace)
    assert state(objects.told) == state(objects.anew())
    for space in SPACES:
        holders = sorted(map(objects.holder, objects.quotas), key=age)
        listing = (found.metadata.name for found in holders if space in quota_namespaces(found.metadata.annotations))
        home = space if space in objects.quotas.get(space, ()) else next(listing, DEFAULT)
        expected = "" if "label_only" in rules else DEFAULT if home == ROOT else home
        assert objects.told.resolve(objects.parser.parse(testing.pod(namespace=space)).shape) == expected


@pytest.mark.feature("SCH-EQ-01")
@pytest.mark.parametrize("goes", [False, True])
def test_a_quota_that_had_no_parent_for_a_cycle_has_it_once_there_is_none(goes: bool) -> None:
    made, quotas = cache_of(), {name: quota(name, parent=parent) for name, parent in (("a", "b"), ("b", "c"), ("c", "a"))}
    for found in quotas.values():
        made.quota_event(None, found)
    alone = next(found for _, found in made.quotas() if found.name in quotas and found.parent is None)
    above = made.quota(quotas[alone.spec.parent].metadata.labels[PREFIX + "parent"])
    assert above is not None
    made.quota_event(quotas[above[1].name], None if goes else quota(above[1].name))  # not the one that it waits for
    assert alone.parent is not None
    assert alone.parent.name == alone.spec.parent


@pytest.mark.feature("SCH-EQ-03")
def test_another_spec_of_the_root_quota_holds_at_once() -> None:
    made = cache_of()
    made.pod_seen(testing.World().parser.parse(testing.pod("p", cpu="3")))
    made.quota_event(None, quota(ROOT, spec={"min": {"cpu": "5"}}, allow_lent_resource="false"))
    root = made.trees[DEFAULT_TREE].root
    assert (root.child_request, root.request) == ({"cpu": 3000}, {"cpu": 5000})
    made.quota_event(None, quota(ROOT, spec={}))
    assert root.request == {"cpu": 3000}


# ---------------------------------------------------------------- what it costs


def crowd(number: int) -> QuotaCache:
    """So many quotas in a tree, that have two namespaces each."""
    made = cache_of()
    for slot in range(2):
        made.node_set(slot, None, NodeView(testing.node(f"n{slot}")))
    for index in range(number):
        parent = "" if index < 4 else f"q{index % 4}"
        made.quota_event(None, quota(f"q{index}", spaces=(f"{index}-x", f"{index}-y"), parent=parent))
    for tree in made.trees.values():
        tree.refresh_all()
    return made


def work(number: int) -> dict[str, int]:
    """Calls for one change each, where there are so many quotas."""
    made, calls = crowd(number), dict[str, int]()
    first = quota("new", spaces=("x", "y"), parent="q1")
    then = quota("new", spaces=("y", "z"), parent="q2", spec={"max": {"cpu": "8"}})
    pod = testing.World().parser.parse(testing.pod("p", labels={PREFIX + "name": "new"}))
    for what, change in (
        ("a quota more", lambda: made.quota_event(None, first)),
        ("a pod more", lambda: made.pod_seen(pod)),
        ("another spec", lambda: made.quota_event(first, then)),
        ("a namesake", lambda: made.quota_event(None, quota("new", namespace="new"))),
        ("a namesake less", lambda: made.quota_event(quota("new", namespace="new"), None)),
        ("a quota less", lambda: made.quota_event(then, None)),
        ("a node more", lambda: made.node_set(2, None, NodeView(testing.node("n2")))),
    ):
        with counting() as counted:
            change()
        calls[what] = counted.number
    return calls


@pytest.mark.feature("SCH-EQ-01")
def test_a_change_costs_the_same_among_few_and_among_many() -> None:
    few, many = work(20), work(400)
    assert {what: number for what, number in many.items() if number > few[what] + 10} == {}


@pytest.mark.feature("SCH-EQ-02")
def test_a_change_of_a_known_quota_looks_through_no_other_pods() -> None:
    made, parser = cache_of(), testing.World().parser
    first = quota("a", spaces=("x",))
    made.quota_event(None, first)
    for number in range(100):
        made.pod_seen(parser.parse(testing.pod(f"p{number}", uid=f"p{number}")))
    made.settle()
    made.quota_event(first, quota("a", spaces=("x",), spec={"max": {"cpu": "8"}}))
    with counting() as counted:
        made.settle()
    assert counted.number < 10


@pytest.mark.feature("SCH-EQ-02")
def test_pods_in_a_namespace_of_the_root_quota_follow_it_from_the_default_quota() -> None:
    made = cache_of()
    made.quota_event(None, quota(ROOT, spaces=("b",)))
    made.quota_event(None, quota("b"))
    made.pod_seen(testing.World().parser.parse(testing.pod("p", uid="p", namespace="b")))
    made.settle()
    assert [member.pod.uid for member in made.members(DEFAULT)] == ["p"]
    made.quota_event(None, quota("b", namespace="b"))  # from now on the namespace is that of the quota in it
    made.settle()
    assert [member.pod.uid for member in made.members("b")] == ["p"]


@pytest.mark.feature("SCH-EQ-03")
def test_pods_are_counted_anew_only_where_other_resources_are_limited() -> None:
    made, parser = cache_of(), testing.World().parser
    first = quota("a")
    made.quota_event(None, first)
    for number in range(100):
        see(made, parser.parse(testing.pod(f"p{number}", uid=f"p{number}", memory="1Gi", labels={PREFIX + "name": "a"}, node="n")))
    with counting() as counted:
        made.quota_event(first, quota("a", spec={"max": {"cpu": "8"}}))
    assert counted.number < 500
    found = made.quota("a")
    assert found is not None
    assert (found[1].used, found[1].request, found[1].limited) == ({"cpu": 100_000}, {"cpu": 100_000}, {"cpu": 8_000})
    made.quota_event(first, quota("a", spec={"max": {"cpu": "8", "memory": "1Gi"}}))
    assert found[1].used == {"cpu": 100_000, "memory": 100 << 30}
    assert made.trees[DEFAULT_TREE].root.used == found[1].used


# ---------------------------------------------------------------- what is written


@pytest.mark.feature("SCH-EQ-10")
def test_of_many_objects_that_are_due_only_those_are_worked_out_that_a_round_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, parser = cache_of(), testing.World().parser
    for index in range(95):
        made.quota_event(None, quota(f"q{index}"))
        made.pod_seen(parser.parse(testing.pod(f"p{index}", uid=f"p{index}", labels={PREFIX + "name": f"q{index}"})))
    looked: list[str] = []
    written: list[list[str]] = []

    def patch_of(found: Any, *more: Any) -> Any:
        looked.append(found.name)
        return status.patch_of(found, *more)

    async def patch(kind: Any, name: str, body: Any, namespace: str) -> Any:
        written[-1].append(name)
        if name == "q3":
            raise ApiError(500, "it is refused")
        before = msgspec.to_builtins(made.shown(name))
        return {**before, "metadata": {**before["metadata"], "annotations": body["metadata"]["annotations"]}}

    monkeypatch.setattr(upkeep, "_PER_ROUND", 10)
    monkeypatch.setattr(upkeep, "patch_of", patch_of)
    handle: Any = SimpleNamespace(client=None, may_write=lambda: True, api=SimpleNamespace(patch=patch))
    keeper = upkeep.Upkeep(ElasticQuotaArgs(), handle, made, QuotaMetrics(None))
    for _ in range(10):
        written.append([])
        asyncio.run(keeper.write_status())
    assert max(map(len, written)) == 10
    assert sorted(name for batch in written for name in batch if name != "q3") == sorted(f"q{index}" for index in range(95) if index != 3)
    assert len(looked) < 2 * 95
    for _ in range(3):  # who is not let is tried again, and whatever is right is not looked at
        written.append([])
        asyncio.run(keeper.write_status())
    assert written[-1] == ["q3"]
    looked.clear()
    asyncio.run(keeper.write_status())
    assert looked == ["q3"]
