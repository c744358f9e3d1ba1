"""What holds in every tree: nothing is shared out twice, what is guaranteed is there, and what was lent comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.scheduler import testing
from roles.scheduler.framework.gangs import NoGangs
from roles.scheduler.plugins.elastic_quota.model import QuotaSpec
from roles.scheduler.plugins.elastic_quota.revoke import Revoker
from roles.scheduler.plugins.elastic_quota.tree import QuotaTree

PREFIX = "quota.scheduling.koordinator.sh/"
AMOUNT = st.integers(0, 30)

# A quota: its parent's place in the list before it, min, what it may have more, weight, whether it lends, what its pods ask for.
QUOTA = st.tuples(st.integers(-1, 5), AMOUNT, AMOUNT, st.integers(0, 5), st.booleans(), AMOUNT)


def tree_of(entries: list[tuple[int, int, int, int, bool, int]], total: int) -> QuotaTree:
    made = QuotaTree()
    for number, (parent, low, more, weight, lends, _) in enumerate(entries):
        above = f"q{parent}" if 0 <= parent < number else None
        amounts = {"min": {"cpu": low}, "max": {"cpu": low + more}, "weight": {"cpu": weight}}
        made.set_quota(QuotaSpec(f"q{number}", **({"parent": above} if above else {}), lends=lends, is_parent=True, **amounts))
    for number, entry in enumerate(entries):
        quota = made.get(f"q{number}")
        assert quota is not None
        if not quota.children:
            made.charge_request(quota, {"cpu": entry[5]})
    made.set_total({"cpu": total})
    made.refresh_all()
    return made


@pytest.mark.feature("SCH-EQ-04")
@pytest.mark.feature("SCH-EQ-05")
@given(entries=st.lists(QUOTA, min_size=1, max_size=7), total=st.integers(0, 100))
def test_no_more_is_shared_out_than_there_is_and_mins_hold_where_they_can(entries: Any, total: int) -> None:
    made = tree_of(entries, total)
    for parent in made.quotas():
        if not parent.children:
            continue
        there = parent.runtime["cpu"]
        children = list(parent.children.values())
        assert sum(child.runtime["cpu"] for child in children) <= there
        feasible = sum(child.spec.min["cpu"] for child in children) <= there
        for child in children:
            wanted = child.limited.get("cpu", 0)
            assert child.runtime["cpu"] >= min(child.scaled_min["cpu"], wanted)
            assert child.runtime["cpu"] <= max(wanted, child.spec.min["cpu"])
            if feasible:
                assert child.runtime["cpu"] >= min(child.spec.min["cpu"], wanted)
        # Nothing lies idle that somebody may have: whoever is hungry and has a weight leaves nothing over.
        hungry = [child for child in children if child.spec.weight["cpu"] and child.runtime["cpu"] < child.limited.get("cpu", 0)]
        if hungry:
            assert sum(child.runtime["cpu"] for child in children) == there or not feasible


@pytest.mark.feature("SCH-EQ-09")
@given(
    mins=st.tuples(st.integers(1, 10), st.integers(1, 10)), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=10),
    wanted=st.integers(1, 20),
)  # fmt: skip
def test_what_was_lent_comes_back_after_the_time_and_not_before(mins: tuple[int, int], sizes: list[int], wanted: int) -> None:
    points: Any = {point: {"enabled": [{"name": "ElasticQuota"}]} for point in ("preFilter", "reserve")}
    made = testing.World({"plugins": points})
    plugin: Any = made.framework.plugins["ElasticQuota"]
    cache, total = plugin.cache, sum(mins)
    made.add_nodes(testing.node("n", cpu=str(total)))
    for name, low in zip(("a", "b"), mins, strict=True):
        spec = {"min": {"cpu": str(low)}, "max": {"cpu": str(total)}}
        made.feed("ElasticQuota", {"metadata": {"name": name, "namespace": "q"}, "spec": spec})

    def pod(quota: str, cpu: int, node: str = "") -> Any:
        info = made.parser.parse(testing.pod(cpu=str(cpu), memory="1Mi", labels={PREFIX + "name": quota}, node=node))
        plugin.pod_seen(info)
        if node:
            made.cluster.add_pod(info, node)
        return info

    used = 0
    for size in sizes:  # the borrower takes what it gets
        if used + size <= total:
            used += size
            pod("a", size, "n")
    pod("b", wanted)  # and now the owner asks
    cache.trees[""].refresh_all()
    borrower, owner = cache.quota("a")[1], cache.quota("b")[1]
    over = borrower.used["cpu"] > borrower.runtime["cpu"]
    revoker = Revoker(60.0)
    assert revoker.due(cache, 0.0, NoGangs()) == []
    assert revoker.due(cache, 60.0, NoGangs()) == []
    gone = revoker.due(cache, 60.1, NoGangs())
    assert bool(gone) == over
    for _, victim in gone:
        plugin.pod_gone(victim.uid)
        made.cluster.remove_pod(victim.uid)
    cache.trees[""].refresh_all()
    assert borrower.used.get("cpu", 0) <= borrower.runtime["cpu"]
    # Up to its min the owner gets what it wants: its share says so, and the room is there.
    due = min(wanted, mins[1]) * 1000
    assert owner.runtime["cpu"] >= due
    assert total * 1000 - borrower.used.get("cpu", 0) >= due
