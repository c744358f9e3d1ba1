"""Gangs as victims: what they have above their minimum goes, or all of them; and never for a part of another gang."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.names import ANNOTATION_GANG_GROUPS, LABEL_POD_GROUP
from roles.scheduler import testing
from roles.scheduler.cluster.audit import recount
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.cycle.record import record_of, victim_records
from roles.scheduler.plugins.elastic_quota.revoke import victims as revoked

from .conftest import profile

QUOTA = "quota.scheduling.koordinator.sh/"
JOBS = ("Coscheduling",)
PLAIN = ("DefaultPreemption",)


class World(testing.World):
    """A cluster whose plugins are told of pods as a live scheduler's are."""

    def __init__(self, *others: str, post_filter: tuple[str, ...], **args: Any) -> None:
        super().__init__(profile(*others, post_filter=post_filter, **args))

    def see(self, pod: Any) -> PodInfo:
        info = self.parser.parse(pod)
        for plugin in self.framework.plugins.values():
            if hasattr(plugin, "pod_seen"):
                plugin.pod_seen(info)
        if info.node_name:
            self.cluster.add_pod(info, info.node_name)
        return info

    def gang(self, name: str, minimum: int, *nodes: str, priority: int = 1, groups: str = "", **more: Any) -> list[PodInfo]:
        notes = {ANNOTATION_GANG_GROUPS: groups} if groups else {}
        meta = {"name": name, "namespace": "default", "annotations": notes}
        self.feed("PodGroup", {"metadata": meta, "spec": {"minMember": minimum}})
        labels = {LABEL_POD_GROUP: name, **more.pop("labels", {})}
        return [
            self.see(testing.pod(f"{name}-{number}", node=node, priority=priority, labels=labels, **{"cpu": "4", **more}))
            for number, node in enumerate(nodes)
        ]

    def alone(self, name: str, node: str, *, priority: int = 1, cpu: str = "4", **more: Any) -> PodInfo:
        return self.see(testing.pod(name, node=node, priority=priority, cpu=cpu, **more))

    def quota(self, name: str, cpu: int) -> None:
        amounts = {"cpu": str(cpu)}
        self.feed("ElasticQuota", {"metadata": {"name": name, "namespace": "q"}, "spec": {"min": amounts, "max": amounts}})


def world(nodes: int, *others: str, post_filter: tuple[str, ...] = PLAIN, cpu: str = "4", **args: Any) -> World:
    made = World(*others, post_filter=post_filter, **args)
    made.add_nodes(*(testing.node(f"n{number}", cpu=cpu) for number in range(nodes)))
    return made


def gone(decision: Decision) -> list[str]:
    return sorted(pod.name for pod in decision.victims)


def high(cpu: str = "4", **more: Any) -> Any:
    return testing.pod("high", cpu=cpu, priority=100, **more)


BOTH = pytest.mark.parametrize(("post_filter", "args"), [(PLAIN, {}), (JOBS, {"enablePreemption": True})])


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.feature("SCH-JP-01")
@BOTH
def test_pods_by_themselves_go_before_a_gang_is_broken_up(post_filter: tuple[str, ...], args: Any) -> None:
    made = world(4, post_filter=post_filter, **args)
    made.gang("team", 3, "n0", "n1", "n2")
    made.alone("single", "n3")
    assert gone(made.decide(high())) == ["single"]


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.feature("SCH-JP-01")
@BOTH
def test_what_is_above_the_minimum_goes_alone_and_the_records_say_so(post_filter: tuple[str, ...], args: Any) -> None:
    made = world(3, post_filter=post_filter, **args)
    made.gang("team", 2, "n0", "n1", "n2")
    decision = made.decide(high())
    (victim,) = decision.victims
    assert decision.nominate == victim.node_name
    (record,) = victim_records(decision, now=1.0)
    assert (record.verdict, record.subject.name) == ("Preempted", victim.name)
    assert "above the minimum of job default/team" in record.message
    assert any(term.note == "above the minimum of job default/team" for term in record_of(decision, now=1.0).terms)


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.feature("SCH-JP-01")
@BOTH
def test_a_gang_at_its_minimum_goes_as_a_whole_the_smaller_one_first(post_filter: tuple[str, ...], args: Any) -> None:
    made = world(5, post_filter=post_filter, **args)
    made.gang("large", 3, "n0", "n1", "n2")
    made.gang("small", 2, "n3", "n4")
    decision = made.decide(high())
    assert gone(decision) == ["small-0", "small-1"]
    assert {record.message.partition("; ")[2] for record in victim_records(decision, now=1.0)} == {"the whole of job default/small"}


@pytest.mark.feature("SCH-JP-01")
@BOTH
def test_gangs_of_one_group_go_together(post_filter: tuple[str, ...], args: Any) -> None:
    made = world(3, post_filter=post_filter, **args)
    groups = '["default/ps","default/workers"]'
    made.gang("workers", 2, "n0", "n1", groups=groups)
    made.gang("ps", 1, "n2", groups=groups)
    assert gone(made.decide(high())) == ["ps-0", "workers-0", "workers-1"]


@pytest.mark.feature("SCH-JP-01")
@BOTH
def test_a_gang_with_a_member_that_must_stay_is_left_alone(post_filter: tuple[str, ...], args: Any) -> None:
    made = world(3, post_filter=post_filter, **args)
    made.gang("team", 3, "n0", "n1")
    made.see(testing.pod("team-2", node="n2", cpu="4", priority=500, labels={LABEL_POD_GROUP: "team"}))
    decision = made.decide(high())
    assert gone(decision) == []
    assert "preemption" in decision.message()
    # One above the minimum may go all the same.
    made.gang("team", 2)
    assert len(made.decide(high()).victims) == 1


@pytest.mark.feature("SCH-JP-01")
def test_a_job_prefers_the_nodes_of_a_gang_that_goes_anyway() -> None:
    made = world(6, post_filter=JOBS, enablePreemption=True)
    made.gang("a", 3, "n0", "n2", "n4")
    made.gang("b", 3, "n1", "n3", "n5")
    job = made.gang("job", 3, "", "", "", priority=100)
    assert gone(made.decide(job[0])) == ["a-0", "a-1", "a-2"]


GANGS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 200])), max_size=4)


@pytest.mark.feature("SCH-KS-12")
@pytest.mark.feature("SCH-JP-01")
@given(
    gangs=GANGS, alone=st.lists(st.sampled_from([1, 2, 3, 200]), max_size=4), wanted=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    where=st.randoms(use_true_random=False), jobs=st.booleans(),
)  # fmt: skip
def test_no_gang_is_left_below_its_minimum_and_nobody_goes_in_vain(
    gangs: list[tuple[int, int, int]], alone: list[int], wanted: list[int], where: Any, jobs: bool
) -> None:
    made = world(3, post_filter=JOBS if jobs else PLAIN, cpu="8", **({"enablePreemption": True} if jobs else {}))
    free = [8, 8, 8]
    sizes: dict[str, tuple[int, int]] = {}

    def seat() -> str:
        slot = where.randrange(3)
        if free[slot] < 2:
            return ""
        free[slot] -= 2
        return f"n{slot}"

    for number, (size, minimum, priority) in enumerate(gangs):
        nodes = [node for node in (seat() for _ in range(size)) if node]
        made.gang(f"g{number}", minimum, *nodes, priority=priority, cpu="2")
        sizes[f"default/g{number}"] = (len(nodes), minimum)
    for number, priority in enumerate(alone):
        if node := seat():
            made.alone(f"a{number}", node, priority=priority, cpu="2")
    job = [made.parser.parse(testing.pod(cpu=str(cpu), priority=100)) for cpu in wanted]
    if jobs:
        made.feed("PodGroup", {"metadata": {"name": "job", "namespace": "default"}, "spec": {"minMember": len(wanted)}})
        labels = {LABEL_POD_GROUP: "job"}
        job = [made.see(testing.pod(f"job-{n}", cpu=str(cpu), priority=100, labels=labels)) for n, cpu in enumerate(wanted)]
    decision = made.decide(job[0])
    lost: dict[str, int] = {}
    gangs = made.state.gangs
    for victim in decision.victims:
        assert victim.priority < 100
        lost[gangs.of(victim)] = lost.get(gangs.of(victim), 0) + 1
    for gang, count in lost.items():
        if gang:
            size, minimum = sizes[gang]
            assert count == size or count <= max(0, size - minimum), (gang, count, size, minimum)
    if not decision.victims:
        return
    assert fits(made, decision, job if jobs else job[:1], decision.victims)
    # Nobody may stay: neither one by himself, nor one that his gang could spare, nor a whole gang.
    for victim in decision.victims:
        gang = gangs.of(victim)
        whole = bool(gang) and lost[gang] == sizes[gang][0]
        back = [p for p in decision.victims if (gangs.of(p) == gang if whole else p is victim)]
        assert not fits(made, decision, job if jobs else job[:1], tuple(p for p in decision.victims if p not in back))


def fits(made: World, decision: Decision, job: list[PodInfo], victims: tuple[PodInfo, ...]) -> bool:
    """Whether the job fits on its nodes once these are gone."""
    nodes = {decision.pod.uid: decision.nominate, **{pod.uid: node for pod, node in decision.others}}
    with made.state.suppose() as supposed:
        for victim in victims:
            supposed.remove(victim.uid)
        for pod in job:
            slot = made.cluster.slot_of(nodes[pod.uid] or "") if pod.uid in nodes else made.decide(pod).slot
            if slot < 0 or made.cluster.free[0][slot] < pod.shape.amounts["cpu"]:
                return False
            supposed.add(pod, slot)
    return True


# -------------------------------------------------------------------------------- inside a quota

IN_QUOTA = ("Coscheduling", "ElasticQuota", "DefaultPreemption")


def in_quota(nodes: int, maximum: int, **args: Any) -> World:
    made = world(nodes, "ElasticQuota", post_filter=IN_QUOTA, cpu="20", **args)
    made.quota("q", maximum)
    made.quota("other", 100)
    return made


@pytest.mark.feature("SCH-EQ-08")
@pytest.mark.parametrize("preemption", [True, False])
def test_within_a_quota_room_is_made_for_all_of_a_gang_or_for_nobody(preemption: bool) -> None:
    label = {QUOTA + "name": "q"}
    made = in_quota(2, 6, enablePreemption=preemption)
    for number in range(6):
        made.alone(f"low-{number}", f"n{number % 2}", priority=number, cpu="1", labels=label)
    made.alone("foreign", "n0", cpu="1", labels={QUOTA + "name": "other"})
    job = made.gang("job", 3, "", "", "", priority=100, cpu="1", labels=label)
    decision = made.decide(job[0])
    assert gone(decision) == ["low-0", "low-1", "low-2"]
    assert {pod.name for pod, node in decision.others if node} == {"job-1", "job-2"}
    # A gang that is wider than the quota gets nobody's place, not even for its first members.
    wide = made.gang("wide", 7, *[""] * 7, priority=100, cpu="1", labels=label)
    refused = made.decide(wide[0])
    assert gone(refused) == []
    assert "Insufficient quotas" in refused.message()


@pytest.mark.feature("SCH-EQ-08")
def test_within_a_quota_a_running_gang_is_spared_or_goes_as_a_whole() -> None:
    label = {QUOTA + "name": "q"}
    made = in_quota(2, 6)
    made.gang("team", 3, "n0", "n1", "n0", cpu="1", labels=label)
    for number in range(3):
        made.alone(f"low-{number}", "n1", cpu="1", labels=label)
    assert not [name for name in gone(made.decide(testing.pod("one", cpu="1", priority=9, labels=label))) if name.startswith("team")]
    job = made.gang("job", 4, *[""] * 4, priority=100, cpu="1", labels=label)
    found = gone(made.decide(job[0]))
    assert len([name for name in found if name.startswith("team")]) in (0, 3)
    assert len(found) >= 4


@pytest.mark.feature("SCH-EQ-08")
@given(
    lows=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 100])), max_size=6), members=st.integers(2, 4), cpu=st.integers(1, 3),
    maximum=st.integers(1, 12), team=st.integers(0, 3),
)  # fmt: skip
def test_preemption_in_a_quota_admits_the_whole_gang_with_no_more_victims_than_needed(
    lows: list[tuple[int, int]], members: int, cpu: int, maximum: int, team: int
) -> None:
    label = {QUOTA + "name": "q"}
    made = in_quota(3, maximum)
    used = 0
    held: list[PodInfo] = []
    if team and team <= maximum:
        held += made.gang("team", team, *[f"n{number}" for number in range(team)], cpu="1", labels=label)
        used += team
    for number, (amount, priority) in enumerate(lows):
        if used + amount <= maximum:
            used += amount
            held.append(made.alone(f"low-{number}", f"n{number % 3}", priority=priority, cpu=str(amount), labels=label))
    job = made.gang("job", members, *[""] * members, priority=50, cpu=str(cpu), labels=label)
    decision = made.decide(job[0])
    amounts = {pod.uid: int(pod.shape.amounts["cpu"]) // 1000 for pod in held}
    free = sum(amounts[pod.uid] for pod in decision.victims)
    possible = sum(amounts[pod.uid] for pod in held if pod.priority < 50)
    if used + cpu <= maximum:
        return  # the first member is let in: what the others need is seen when it is their turn
    assert bool(decision.victims) == (used - possible + members * cpu <= maximum)
    if decision.victims:
        assert used - free + members * cpu <= maximum
        teams = [pod for pod in decision.victims if pod.name.startswith("team")]
        assert len(teams) in (0, team)
        for victim in decision.victims:
            back = sum(amounts[pod.uid] for pod in teams) if victim in teams else amounts[victim.uid]
            assert used - free + back + members * cpu > maximum


# -------------------------------------------------------------------------------- a node that went


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.parametrize(
    ("post_filter", "args", "members"),
    [(JOBS, {"enablePreemption": True}, 1), (IN_QUOTA, {"enablePreemption": True}, 2), (IN_QUOTA, {}, 1), (PLAIN, {}, 1)],
)
def test_pods_that_a_what_if_takes_off_a_node_that_went_are_counted_there_again(
    post_filter: tuple[str, ...], args: Any, members: int
) -> None:
    label = {QUOTA + "name": "q"}
    made = in_quota(2, 2, **args) if post_filter is IN_QUOTA else world(2, post_filter=post_filter, cpu="1", **args)
    team = made.gang("team", 2, "n0", "n1", cpu="1", labels=label)
    made.cluster.remove_node("n1")

    def books() -> tuple[Any, ...]:
        cluster = made.cluster
        return cluster.supposing, cluster.pod_count, {row.name: (cluster.free[0][row.slot], sorted(row.pods)) for row in cluster.rows()}

    before = books()
    job = made.gang("job", members, *[""] * members, priority=100, cpu="1", labels=label)
    assert gone(made.decide(job[0])) == ["team-0", "team-1"]
    assert books() == before
    assert recount(made.cluster) == []
    made.cluster.remove_pod(team[1].uid)
    assert made.cluster.slot_of("n1") < 0


# -------------------------------------------------------------------------------- revoking


@pytest.mark.feature("SCH-EQ-09")
@given(
    teams=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2)), max_size=3),
    alone=st.lists(st.integers(1, 3), max_size=4), runtime=st.integers(0, 12),
)  # fmt: skip
def test_what_is_revoked_leaves_no_gang_below_its_minimum(teams: list[tuple[int, int, int]], alone: list[int], runtime: int) -> None:
    label = {QUOTA + "name": "q"}
    made = in_quota(1, 100)
    sizes = {}
    for number, (size, minimum, priority) in enumerate(teams):
        made.gang(f"g{number}", minimum, *["n0"] * size, priority=priority, cpu="1", labels=label)
        sizes[f"default/g{number}"] = (size, minimum)
    for number, priority in enumerate(alone):
        made.alone(f"a{number}", "n0", priority=priority, cpu="1", labels=label)
    cache: Any = made.framework.plugins["ElasticQuota"]
    quota = cache.cache.quota("q")[1]
    gone = revoked(cache.cache.members("q"), quota.used, {"cpu": runtime * 1000}, made.state.gangs)
    used = quota.used.get("cpu", 0) // 1000
    assert used - len(gone) <= runtime  # what was lent comes back
    lost: dict[str, int] = {}
    for pod in gone:
        job = made.state.gangs.of(pod)
        lost[job] = lost.get(job, 0) + 1
    for job, count in lost.items():
        if job:
            assert count == sizes[job][0] or count <= max(0, sizes[job][0] - sizes[job][1])
    if used <= runtime:
        assert not gone


@pytest.mark.feature("SCH-EQ-09")
@pytest.mark.parametrize(("gpus", "names"), [(3, []), (2, ["team-0", "team-1"])])
def test_what_a_gang_can_spare_goes_with_it_whatever_it_holds(gpus: int, names: list[str]) -> None:
    made = in_quota(1, 100)
    amounts = {"cpu": "100", "nvidia.com/gpu": "8"}
    made.feed("ElasticQuota", {"metadata": {"name": "q", "namespace": "q"}, "spec": {"min": amounts, "max": amounts}})
    made.gang("team", 1)
    labels = {QUOTA + "name": "q", LABEL_POD_GROUP: "team"}
    made.alone("team-0", "n0", priority=2, cpu="1", labels=labels, requests={"nvidia.com/gpu": "3"})
    made.alone("team-1", "n0", priority=1, cpu="1", labels=labels)
    made.alone("other", "n0", priority=0, cpu="1", labels={QUOTA + "name": "q"})
    cache: Any = made.framework.plugins["ElasticQuota"]
    used = cache.cache.quota("q")[1].used
    assert used == {"cpu": 3000, "nvidia.com/gpu": 3}
    gone = revoked(cache.cache.members("q"), used, {"cpu": 3000, "nvidia.com/gpu": gpus}, made.state.gangs)
    assert sorted(pod.name for pod in gone) == names


def test_the_projection_of_a_podgroup_is_what_is_fed() -> None:
    """The worlds above feed PodGroups as dictionaries: a misspelt field would make every gang one without a minimum."""
    made = world(1)
    made.gang("team", 3, "n0")
    group = made.state.gangs.group("default/team")
    assert [(part.minimum, len(part.pods), part.spare) for part in group.parts] == [(3, 1, 0)]
    assert msgspec.to_builtins(made.state.gangs.of(made.alone("x", "n0"))) == ""
