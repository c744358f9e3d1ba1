"""The tree: what is passed up and shared out equals working everything out from scratch, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler.plugins.elastic_quota.model import DEFAULT, ROOT, SYSTEM, QuotaSpec
from roles.scheduler.plugins.elastic_quota.tree import Quota, QuotaTree
from roles.scheduler.plugins.elastic_quota.waterfill import Claim, fill, scaled_mins
from tests.support.examples import examples

RESOURCES = ("cpu", "memory", "gpu")
NAMES = ("a", "b", "c", "d", "e", DEFAULT)

Vector = dict[str, int]


def plain(vector: Vector) -> Vector:
    return {name: amount for name, amount in vector.items() if amount}


class Plain:
    """The same tree, worked out from scratch at every question."""

    def __init__(self, guarantee: bool, scale: bool) -> None:
        self.specs: dict[str, QuotaSpec] = {ROOT: QuotaSpec(ROOT, parent="", lends=False)}
        self.pods: list[tuple[str, Vector, bool, bool]] = []
        self.total: Vector = {}
        self.guarantee, self.scale = guarantee, scale

    def parent(self, name: str) -> str | None:
        parent = self.specs[name].parent
        return parent if parent in self.specs else None

    def children(self, name: str) -> list[str]:
        return sorted(other for other in self.specs if other != ROOT and self.specs[other].parent == name)

    def below(self, name: str) -> list[str]:
        return [name, *(leaf for child in self.children(name) for leaf in self.below(child))]

    def own(self, name: str, pick: Callable[[bool, bool], bool]) -> Vector:
        result: Vector = {}
        for quota, amount, preemptible, assigned in self.pods:
            if quota == name and pick(preemptible, assigned):
                for key, value in amount.items():
                    result[key] = result.get(key, 0) + value
        return result

    def tree_sum(self, name: str, pick: Callable[[bool, bool], bool]) -> Vector:
        return add(*(self.own(other, pick) for other in self.below(name)))

    def child_request(self, name: str) -> Vector:
        return add(self.own(name, lambda p, a: True), *(self.limited(child) for child in self.children(name)))

    def request(self, name: str) -> Vector:
        spec, wanted = self.specs[name], self.child_request(name)
        if spec.lends and not self.guarantee:
            return wanted
        return {key: max(wanted.get(key, 0), spec.min.get(key, 0)) for key in wanted.keys() | spec.min.keys()}

    def limited(self, name: str) -> Vector:
        return {key: min(value, self.specs[name].max.get(key, value)) for key, value in self.request(name).items()}

    def allocated(self, name: str) -> Vector:
        return add(self.own(name, lambda p, a: a), *(self.guaranteed(child) for child in self.children(name)))

    def guaranteed(self, name: str) -> Vector:
        if not self.guarantee:
            return {}
        got, low = self.allocated(name), self.specs[name].min
        return {key: max(got.get(key, 0), low.get(key, 0)) for key in got.keys() | low.keys()}

    def shared(self) -> Vector:
        used = add(*(self.tree_sum(name, lambda p, a: a) for name in (DEFAULT, SYSTEM) if name in self.specs))
        return {key: value - used.get(key, 0) for key, value in self.total.items()}

    def runtime(self, name: str) -> Vector:
        parent = self.parent(name)
        if name == ROOT:
            return self.shared()
        if parent is None:
            return self.specs[name].max
        total = self.runtime(parent) if parent == ROOT else {**self.specs[parent].max, **self.runtime(parent)}
        result = {}
        for key in self.specs[name].max:
            if parent != ROOT and key not in self.specs[parent].max:
                continue
            siblings = [child for child in self.children(parent) if key in self.specs[child].max and child not in (DEFAULT, SYSTEM)]
            lows = [self.specs[child].min.get(key, 0) for child in siblings]
            if self.scale and key in total:
                lows = scaled_mins(total[key], lows)
            claims = [
                Claim(
                    child, self.specs[child].weight.get(key, 0), max(low, self.guaranteed(child).get(key, 0)),
                    self.limited(child).get(key, 0), self.specs[child].lends and not self.guarantee,
                )
                for child, low in zip(siblings, lows, strict=True)
            ]  # fmt: skip
            result[key] = dict(zip(siblings, fill(total.get(key, 0), claims), strict=True)).get(name, 0)
        return result


def add(*vectors: Vector) -> Vector:
    result: Vector = {}
    for vector in vectors:
        for key, value in vector.items():
            result[key] = result.get(key, 0) + value
    return result


AMOUNT = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 9), max_size=3)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    def quota() -> tuple[Any, ...]:
        name = draw(st.sampled_from(NAMES))
        # Only towards names that come before: no circles; parents may be missing.
        parent = ROOT if name == DEFAULT else draw(st.sampled_from((ROOT, *NAMES[: NAMES.index(name)])))
        top = draw(st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 30), min_size=1, max_size=3))
        low = {key: draw(st.integers(0, value)) for key, value in top.items() if draw(st.booleans())}
        weight = {key: draw(st.integers(0, 9)) for key in top}
        return ("quota", QuotaSpec(name, parent=parent, lends=draw(st.booleans()), min=low, max=top, weight=weight))

    result: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(("quota", "quota", "pod", "pod", "pod", "assign", "pod gone", "remove", "total", "ask")))
        if kind == "quota":
            result.append(quota())
        elif kind == "pod":
            result.append(("pod", draw(st.sampled_from(NAMES)), draw(AMOUNT), draw(st.booleans())))
        elif kind == "total":
            result.append(("total", draw(AMOUNT)))
        else:
            result.append((kind, draw(st.integers(0, 20))))
    return result


class Both:
    """Applies a change to both trees, keeping to what the books guarantee: pods of a quota are taken off before it goes."""

    def __init__(self, guarantee: bool, scale: bool) -> None:
        self.tree, self.plain = QuotaTree(scale_min=scale, guarantee=guarantee), Plain(guarantee, scale)

    def apply(self, change: tuple[Any, ...]) -> None:
        kind, pods = change[0], self.plain.pods
        if kind == "quota":
            self.plain.specs[change[1].name] = change[1]
            self.tree.set_quota(change[1])
        elif kind == "pod" and change[1] in self.plain.specs:
            pods.append((change[1], change[2], change[3], False))
            self.tree.charge_request(self.quota(change[1]), change[2], preemptible=change[3])
        elif kind == "assign" and pods:
            name, amount, preemptible, assigned = pods.pop(change[1] % len(pods))
            pods.append((name, amount, preemptible, True))
            if not assigned:
                self.tree.charge_used(self.quota(name), amount, preemptible=preemptible)
        elif kind == "pod gone" and pods:
            self.drop(change[1] % len(pods))
        elif kind == "remove" and len(self.plain.specs) > 1:
            name = sorted(self.plain.specs.keys() - {ROOT})[change[1] % (len(self.plain.specs) - 1)]
            for index in reversed(range(len(pods))):
                if pods[index][0] == name:
                    self.drop(index)
            self.tree.remove_quota(name)
            del self.plain.specs[name]
        elif kind == "total":
            self.plain.total = change[1]
            self.tree.set_total(change[1])
        elif kind == "ask" and len(self.plain.specs) > 1:
            names = sorted(self.plain.specs)
            quota = self.quota(names[change[1] % len(names)])
            self.tree.refresh(quota)
            if quota.name not in (DEFAULT, SYSTEM):
                assert quota.runtime == self.plain.runtime(quota.name)

    def quota(self, name: str) -> Quota:
        quota = self.tree.get(name)
        assert quota is not None
        return quota

    def drop(self, index: int) -> None:
        name, amount, preemptible, assigned = self.plain.pods.pop(index)
        less = {key: -value for key, value in amount.items()}
        self.tree.charge_request(self.quota(name), less, preemptible=preemptible)
        if assigned:
            self.tree.charge_used(self.quota(name), less, preemptible=preemptible)


@examples(80)
@given(st.booleans(), st.booleans(), changes())
def test_keeping_up_equals_starting_over(guarantee: bool, scale: bool, steps: list[tuple[Any, ...]]) -> None:
    both = Both(guarantee, scale)
    for step in steps:
        both.apply(step)
    both.tree.refresh_all()
    for name, spec in both.plain.specs.items():
        quota, want = both.quota(name), both.plain
        assert plain(quota.child_request) == plain(want.child_request(name))
        assert plain(quota.request) == plain(want.request(name))
        assert plain(quota.used) == plain(want.tree_sum(name, lambda p, a: a))
        assert plain(quota.self_used) == plain(want.own(name, lambda p, a: a))
        assert plain(quota.non_preemptible_request) == plain(want.tree_sum(name, lambda p, a: not p))
        assert plain(quota.non_preemptible_used) == plain(want.tree_sum(name, lambda p, a: a and not p))
        assert plain(quota.guaranteed) == plain(want.guaranteed(name))
        if name not in (DEFAULT, SYSTEM):
            assert quota.runtime == want.runtime(name)
            assert all(share <= max(spec.max.get(key, share), quota.guaranteed.get(key, 0)) for key, share in quota.limit().items())


def tree_of(*specs: QuotaSpec, total: Vector) -> QuotaTree:
    tree = QuotaTree()
    tree.set_total(total)
    for spec in specs:
        tree.set_quota(spec)
    return tree


def spec(name: str, top: int, low: int, *, parent: str = ROOT, weight: int | None = None) -> QuotaSpec:
    return QuotaSpec(name, parent=parent, min={"cpu": low}, max={"cpu": top}, weight={"cpu": top if weight is None else weight})


def test_a_child_passes_at_most_its_max_upward() -> None:
    tree = tree_of(spec("p", 24, 10), spec("c1", 16, 4, parent="p"), spec("c2", 40, 0, parent="p", weight=16), total={"cpu": 100})
    for name in ("c1", "c2"):
        tree.charge_request(tree.get(name), {"cpu": 30})  # type: ignore[arg-type]
    tree.refresh_all()
    shares = {quota.name: quota.runtime["cpu"] for quota in tree.quotas()}
    assert shares == {ROOT: 100, "p": 24, "c1": 14, "c2": 10}
    assert tree.get("p").child_request == {"cpu": 46}  # type: ignore[union-attr]


def test_only_what_changed_is_shared_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(spec("p", 50, 0), spec("q", 50, 0), spec("p1", 9, 0, parent="p"), spec("q1", 9, 0, parent="q"), total={"cpu": 60})
    tree.refresh_all()
    seen: list[tuple[str, str]] = []
    share = QuotaTree._share

    def spy(self: QuotaTree, parent: Quota, resource: str, *rest: Any) -> None:
        seen.append((parent.name, resource))
        share(self, parent, resource, *rest)

    monkeypatch.setattr(QuotaTree, "_share", spy)
    tree.charge_request(tree.get("p1"), {"cpu": 5})  # type: ignore[arg-type]
    tree.refresh_all()
    assert seen == [(ROOT, "cpu"), ("p", "cpu"), ("p1", "cpu")]
    seen.clear()
    tree.charge_request(tree.get("p1"), {"cpu": 50})  # type: ignore[arg-type]
    tree.charge_request(tree.get("p1"), {"cpu": 50})  # type: ignore[arg-type]
    tree.charge_used(tree.get("p1"), {"cpu": 2})  # type: ignore[arg-type]
    tree.refresh_all()
    seen.clear()
    tree.charge_request(tree.get("p1"), {"cpu": 1})  # type: ignore[arg-type]
    tree.refresh_all()
    assert seen == []  # its max hides it from everybody else


def test_a_quota_without_its_parent_is_held_to_its_max_and_joins_when_the_parent_comes() -> None:
    tree = tree_of(spec("child", 9, 0, parent="p"), total={"cpu": 4})
    tree.charge_request(tree.get("child"), {"cpu": 8})  # type: ignore[arg-type]
    tree.refresh_all()
    assert tree.get("child").limit() == {"cpu": 9}  # type: ignore[union-attr]
    tree.set_quota(spec("p", 20, 0))
    tree.refresh_all()
    assert tree.get("child").limit() == {"cpu": 4}  # type: ignore[union-attr]


def test_a_circle_of_parents_competes_with_nobody() -> None:
    tree = tree_of(spec("a", 9, 0, parent="b"), spec("b", 9, 0, parent="a"), spec("c", 9, 0), total={"cpu": 4})
    tree.charge_request(tree.get("c"), {"cpu": 9})  # type: ignore[arg-type]
    tree.refresh_all()
    assert tree.get("c").limit() == {"cpu": 4}  # type: ignore[union-attr]
    assert set(tree.root.children) == {"c"}
