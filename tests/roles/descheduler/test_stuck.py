"""Why a node is still hot: what keeps its pods, and the smallest change that would help; told by the role and by `koord why`."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import kinds
from koord.decisions.record import Record
from roles.descheduler.plugins.lownodeload.stuck import NO_PLACE, Kept, advice, smallest_change
from roles.tools.explain import explain
from roles.tools.facts import Gathered
from tests.roles.descheduler.migration.test_relief import MANY, budget, play_whole, report
from tests.roles.descheduler.migration.test_whole import configuration
from tests.support.wholecluster import Whole, at_work, descheduling

ADVICE = "smallest change that would help"


@pytest.mark.feature("DS-LNL-06")
@given(st.lists(st.tuples(st.integers(0, 900), st.sampled_from("ab")), max_size=7), st.integers(1, 2500))
def test_the_smallest_change_is_as_small_as_it_can_be(pods: list[tuple[int, str]], excess: int) -> None:
    kept = [Kept(f"p{number}", {"cpu": cpu}, (reason,), True) for number, (cpu, reason) in enumerate(pods)]
    found = smallest_change(kept, {"cpu": excess})
    sizes = [
        len(some)
        for reason in "ab"
        for count in range(1, len(kept) + 1)
        for some in combinations([each for each in kept if each.reasons == (reason,)], count)
        if sum(each.usage["cpu"] for each in some) >= excess
    ]
    assert (len(found.pods) if found is not None else None) == min(sizes, default=None)


@pytest.mark.feature("DS-LNL-06")
def test_what_would_not_help_is_not_advised() -> None:
    several = Kept("a", {"cpu": 900}, ("its budget", "a limit"), True)
    homeless = Kept("b", {"cpu": 900}, ("its budget",), False)
    placeless = Kept("c", {"cpu": 900}, (NO_PLACE,), False, "n2 would be above its threshold by 300 of cpu")
    excess = {"cpu": 500}
    assert smallest_change([several, homeless], excess) is None
    assert "kept by several things at once" in advice([several, homeless], {}, excess, {})
    assert "n2 would be above its threshold by 300 of cpu" in advice([several, homeless, placeless], {}, excess, {})
    assert "use too little cpu" in advice([Kept("d", {"cpu": 100}, ("its budget",), True)], {}, excess, {})
    assert "no pod's leaving would help" in advice([several], {}, excess, {"cpu": 20})
    assert "have to be let through" in advice([several], {"d/x": "2 pods migrate already"}, excess, {})


@pytest.mark.feature("DS-LNL-06")
@pytest.mark.feature("DS-ARB-02")
def test_a_node_that_a_budget_keeps_hot_says_so_and_the_advised_change_helps() -> None:
    async def scenario(plan: Whole) -> None:
        world = plan.world
        await plan.client.delete(kinds.NODES, "n3")
        workers = await plan.workload({"p0": "n1", "p1": "n1"})
        app = (await plan.client.get(kinds.PODS, "p0", "default"))["metadata"]["labels"]["app"]
        await budget(world, "hold", app)
        use = {"n1": (5.0, 0.7), "n2": (1.0, 0.7)}
        await report(world, use)
        async with (
            at_work(workers),
            descheduling(plan.client, configuration(migration=MANY, deschedulingInterval="300ms")) as (_, recorder),
        ):

            async def told() -> list[Record]:
                return [record for record in recorder.ring.find(kind="Node", name="n1") if record.verdict == "Relieved"]

            record = (await world.until(told))[-1]
            terms = {term.name: term for term in record.terms}
            kept = terms["disruption budget hold allows no disruption now"]
            assert (kept.value, kept.unit, terms["cpu above its threshold"].value) == (2, "pods", 400)
            assert terms[ADVICE].note.startswith("without this for default/p")
            assert terms[ADVICE].note.endswith("it would be hot no more: disruption budget hold allows no disruption now")
            assert terms[ADVICE].note.count("default/p") == 1
            found = explain(
                "Node", Gathered(records=recorder.ring.find(kind="Node", name="n1")), namespace="", name="n1", now=record.time + 1
            )
            assert found is not None
            assert found.summary.startswith(
                "Node n1 is hot (descheduler): still hot after 0 evictions; pods that stay: 2 x disruption budget"
            )
            await plan.client.patch(
                kinds.PODDISRUPTIONBUDGETS, "hold", {"status": {"disruptionsAllowed": 1}}, "default", subresource="status"
            )

            async def cool() -> bool:
                return (await report(world, use))["n1"] <= 6.0

            await world.until(cool)
            await plan.until_ended(1)

    play_whole(scenario)
