"""Kubernetes' own pod groups through the scheduler's door: PodGroups of scheduling.k8s.io in, bindings and conditions out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koord.api.kinds import PODS, SCHEDULING_PODGROUPS
from koord.api.names import LABEL_POD_GROUP, LABEL_QUOTA_NAME
from koord.api.objects import ElasticQuota, Node, Pod, SchedulingPodGroup, SchedulingWorkload
from koord.api.objects_resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler import testing
from roles.scheduler.whatif import Placement, Simulation, Snapshot
from tests.support import patience
from tests.support.claims import DRIVER, claim, device, device_class, of_claim, of_template, slice_of, template

from .conftest import profile

Obj = dict[str, Any]


async def group(g: Any, name: str, minimum: int | None, **spec: Any) -> Obj:
    """A PodGroup; basic without a minimum."""
    policy: Obj = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    body = {
        "apiVersion": SCHEDULING_PODGROUPS.api_version, "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, **spec},
    }  # fmt: skip
    made: Obj = await g.client.create(SCHEDULING_PODGROUPS, body, "default")
    return made


async def member(g: Any, name: str, of: str, *, cpu: str = "1", **spec: Any) -> Obj:
    grace = spec.pop("grace", 0)
    made: Obj = await g.live.pod(name, cpu=cpu, schedulingGroup={"podGroupName": of}, terminationGracePeriodSeconds=grace, **spec)
    return made


async def told(g: Any, name: str, kind: str, status: str) -> Obj:
    """The condition of a PodGroup once it is so."""
    found: Obj = {}
    for _ in patience.tries(400):
        shown = await g.client.get(SCHEDULING_PODGROUPS, name, "default")
        found = {c["type"]: c for c in (shown.get("status") or {}).get("conditions") or ()}
        if found.get(kind, {}).get("status") == status:
            return dict(found[kind])
        await asyncio.sleep(0.02)
    raise AssertionError(f"PodGroup {name} never said {kind}={status}: {found}")


@pytest.mark.feature("SCH-WL-02")
@pytest.mark.feature("SCH-WL-04")
def test_a_gang_waits_for_its_pod_group_and_for_its_minimum_and_is_placed_together(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("2", "2")) as g:
            await member(g, "a0", "train")
            await g.said("a0", "no PodGroup")
            await group(g, "train", 3)
            await g.said("a0", "default/podgroup:train has 1 of 3 pods")
            await member(g, "a1", "train")
            await member(g, "a2", "train")
            await g.bound("a0", "a1", "a2")
            scheduled = await told(g, "train", "PodGroupScheduled", "True")
            assert (scheduled["reason"], scheduled["observedGeneration"]) == ("Scheduled", 1)
            await member(g, "a3", "train")  # beyond the minimum, by itself
            await g.bound("a3")
            await member(g, "a4", "train")
            await g.said("a4", "Insufficient cpu")
            assert (await told(g, "train", "PodGroupScheduled", "True")) == scheduled, "who was scheduled once stays so"

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-02")
@pytest.mark.feature("SCH-WL-04")
def test_a_gang_that_does_not_fit_holds_nothing_and_its_pod_group_says_why(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("4",)) as g:
            await group(g, "crowd", 3)
            for number in range(3):
                await member(g, f"c{number}", "crowd", cpu="2")
            failed = await told(g, "crowd", "PodGroupScheduled", "False")
            assert failed["reason"] == "Unschedulable"
            assert "Insufficient cpu" in failed["message"]
            await g.quiet()
            assert not any((await g.nodes_of()).values())
            await g.live.node("more", cpu="4")
            await g.bound("c0", "c1", "c2")
            await told(g, "crowd", "PodGroupScheduled", "True")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-02")
def test_pods_of_a_basic_group_are_scheduled_each_by_itself_once_the_group_is_there(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("2",)) as g:
            for number in range(3):
                await member(g, f"b{number}", "loose")
            await g.said("b0", "no PodGroup")
            await group(g, "loose", None)
            for _ in patience.tries(400):
                if sum(1 for node in (await g.nodes_of()).values() if node) == 2:
                    break
                await asyncio.sleep(0.02)
            nodes = await g.nodes_of()
            assert sorted(nodes.values()) == ["", "n0", "n0"], "what fits goes"
            left = next(name for name, node in nodes.items() if not node)
            await g.said(left, "Insufficient cpu")
            await told(g, "loose", "PodGroupScheduled", "True")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-02")
def test_both_kinds_of_pod_groups_of_one_name_are_two_gangs_and_koord_s_own_label_wins(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await group(g, "same", 5)
            await g.group("same", 2)
            await member(g, "native", "same")
            await g.member("a0", "same")
            await g.live.pod("both", meta={"labels": {LABEL_POD_GROUP: "same"}}, schedulingGroup={"podGroupName": "same"})
            await g.bound("a0", "both")
            await g.said("native", "default/podgroup:same has 1 of 5 pods")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-02")
def test_a_pod_group_that_is_deleted_and_made_anew_is_another(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("8",)) as g:
            await group(g, "again", 9)
            await member(g, "a0", "again")
            await g.said("a0", "has 1 of 9 pods")
            await g.client.delete(SCHEDULING_PODGROUPS, "again", "default")
            await g.said("a0", "no PodGroup")
            await group(g, "again", 1)
            await g.bound("a0")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-06")
@pytest.mark.feature("SCH-WL-04")
def test_a_group_that_is_disrupted_as_one_goes_whole_and_says_so_and_others_lose_single_pods(gangs: Any) -> None:
    async def run() -> None:
        async with gangs(nodes=("2", "2")) as g:
            await g.priority("low", 10)
            await g.priority("high", 1000)
            await group(g, "whole", 1, disruptionMode={"all": {}})
            await group(g, "single", 1)
            for number in range(2):
                await member(g, f"w{number}", "whole", priorityClassName="low", nodeName=f"n{number}", grace=30)
                await member(g, f"s{number}", "single", priorityClassName="low", nodeName=f"n{number}")
            await told(g, "whole", "PodGroupScheduled", "True")
            await g.live.pod("urgent", priorityClassName="high")
            await g.bound("urgent")
            left = sorted(name for name, node in (await g.nodes_of()).items() if node)
            assert left in (["s0", "urgent", "w0", "w1"], ["s1", "urgent", "w0", "w1"]), "one pod hurts less than a whole group"
            for name in ("s0", "s1"):
                if name in left:
                    await g.client.delete(PODS, name, "default", grace_period_seconds=0)
            await g.live.pod("urgent2", cpu="2", priorityClassName="high")
            assert (await told(g, "whole", "DisruptionTarget", "True"))["reason"] == "PreemptionByScheduler"
            for name in ("w0", "w1"):
                assert (await g.live.get(name))["metadata"].get("deletionTimestamp"), "all of them go, also from the other node"
                await g.client.delete(PODS, name, "default", grace_period_seconds=0)
            await g.bound("urgent2")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-02")
@pytest.mark.feature("SCH-WL-03")
def test_the_example_of_the_docs_is_placed(gangs: Any) -> None:
    """A PodGroup that comes after its kind did not count for anything; the pods are bound together."""
    page = (Path(__file__).parents[4] / "docs" / "scheduler-jobs.md").read_text(encoding="utf-8")
    example = page.split("### Kubernetes' own pod groups")[1].split("```yaml\n")[1].split("```")[0]
    objects = list(yaml.safe_load_all(example))

    async def run() -> None:
        async with gangs(nodes=("1", "1")) as g:
            for body in reversed(objects):
                await g.client.create(PODS if body["kind"] == "Pod" else SCHEDULING_PODGROUPS, body, "default")
            found = await g.bound("worker-0", "worker-1")
            assert set(found.values()) == {"n0", "n1"}
            await told(g, "workers", "PodGroupScheduled", "True")

    asyncio.run(run())


@pytest.mark.feature("SCH-WL-05")
def test_pods_of_a_group_share_a_domain(gangs: Any) -> None:
    """Also those that come later, and those of a basic group; what has no such label takes nobody."""

    async def run() -> None:
        async with gangs() as g:
            for name, rack in (("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b"), ("bare", "")):
                await g.live.node(name, cpu="2", labels={"rack": rack} if rack else {})
            topology = {"topology": [{"key": "rack"}]}
            await group(g, "train", 3, schedulingConstraints=topology)
            await group(g, "wide", 5, schedulingConstraints=topology)
            for number in range(5):
                await member(g, f"w{number}", "wide")
            await g.said("w0", "no domain of label rack takes 5 pods of gang group default/podgroup:wide together; they offer a: 4, b: 4")
            for number in range(3):
                await member(g, f"t{number}", "train")
            racks = {node[0] for node in (await g.bound("t0", "t1", "t2")).values()}
            assert len(racks) == 1
            await member(g, "t3", "train")
            assert (await g.live.bound("t3"))[0] in racks
            await member(g, "t4", "train")
            await g.said("t4", "no domain of label rack takes 1 pods")
            await group(g, "loose", None, schedulingConstraints=topology)
            for number in range(3):
                await member(g, f"l{number}", "loose")
            assert {node[0] for node in (await g.bound("l0", "l1", "l2")).values()} == {"a", "b"} - racks

    asyncio.run(run())


KINDS = {kind.__name__: kind for kind in (DeviceClass, ElasticQuota, ResourceClaim, ResourceClaimTemplate, ResourceSlice)}


def gathered(nodes: Sequence[Node], members: Sequence[Pod], *objects: Obj, running: Sequence[Pod] = ()) -> list[Placement]:
    """A gang of all members, which share a rack, among nodes of one rack; `objects` beside its PodGroup."""
    spec = {"schedulingPolicy": {"gang": {"minCount": len(members)}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    config = KubeSchedulerConfiguration.model_validate(
        {"profiles": [profile("ElasticQuota", post_filter=("Coscheduling",), enablePreemption=True)]}
    )
    train = msgspec.convert({"metadata": {"name": "train", "namespace": "default"}, "spec": spec}, SchedulingPodGroup)
    known: dict[str, list[Any]] = {SCHEDULING_PODGROUPS.key: [train], **{kind: [] for kind in KINDS}}
    for item in objects:
        known[item["kind"]].append(msgspec.convert(item, KINDS[item["kind"]]))
    return Simulation(Snapshot(nodes, running, objects=known), config=config, now=1e6).place(members)


def of_rack(*names: str, cpu: str = "8") -> list[Node]:
    return [testing.node(name, labels={"rack": "r"}, cpu=cpu) for name in names]


def workers(count: int, **spec: Any) -> list[Pod]:
    return [testing.pod(f"w{number}", schedulingGroup={"podGroupName": "train"}, **spec) for number in range(count)]


@pytest.mark.feature("SCH-WL-05")
@pytest.mark.feature("SCH-DRA-09")
@pytest.mark.parametrize(
    ("claims", "nodes"),
    [(of_template("one"), {"a", "b"}), (of_claim("shared"), {"a"})],
    ids=["one for each", "one for all"],
)
def test_members_with_claims_share_a_domain_where_each_node_has_a_device(claims: list[Obj], nodes: set[str]) -> None:
    devices = [slice_of(name, device("x")) for name in "ab"]
    found = gathered(of_rack("a", "b"), workers(2, resourceClaims=claims), device_class(), template("one"), claim("shared"), *devices)
    assert {one.node for one in found} == nodes, found[0].message


@pytest.mark.feature("SCH-WL-05")
@pytest.mark.feature("SCH-WL-06")
@pytest.mark.feature("SCH-DRA-18")
def test_room_for_members_with_claims_is_made_on_as_many_nodes_as_have_devices() -> None:
    devices, held, running = [slice_of(name, device("x")) for name in "ab"], [], []
    for name in "ab":
        result = {"request": "gpu", "driver": DRIVER, "pool": name, "device": "x"}
        user = {"resource": "pods", "name": f"low-{name}", "uid": f"low-{name}"}
        held.append({**claim(f"of-{name}"), "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}})
        running.append(testing.pod(f"low-{name}", uid=f"low-{name}", node=name, priority=1, resourceClaims=of_claim(f"of-{name}")))
    members = workers(2, resourceClaims=of_template("one"), priority=100)
    found = gathered(of_rack("a", "b"), members, device_class(), template("one"), *held, *devices, running=running)
    assert {*found[0].victims} == {"default/low-a", "default/low-b"}, found[0].message


@pytest.mark.feature("SCH-WL-05")
@pytest.mark.feature("SCH-EQ-07")
@pytest.mark.parametrize("alike", [True, False])
def test_members_in_a_quota_share_a_domain_whether_they_are_alike_or_not(alike: bool) -> None:
    amounts = {"cpu": "12", "memory": "640Gi"}
    quota = {"kind": "ElasticQuota", "metadata": {"name": "q", "namespace": "default"}, "spec": {"min": amounts, "max": amounts}}
    members = [
        testing.pod(
            f"w{number}",
            schedulingGroup={"podGroupName": "train"},
            labels={LABEL_QUOTA_NAME: "q", **({} if alike else {"number": str(number)})},
        )
        for number in range(8)
    ]
    found = gathered(of_rack(*(f"n{number}" for number in range(20)), cpu="4"), members, quota)
    assert len({one.node for one in found if one.placed}) == 2, found[0].message


def replica(name: str, key: str, *, pod_group: str = "workers") -> Pod:
    """A pod of a Workload of 1.35."""
    made = msgspec.to_builtins(testing.pod(name))
    made["spec"]["workloadRef"] = {"name": "train", "podGroup": pod_group, "podGroupReplicaKey": key}
    return msgspec.convert(made, Pod)


@pytest.mark.feature("SCH-WL-01")
def test_replicas_of_a_workload_s_pod_group_are_gangs_of_their_own() -> None:
    groups = [{"name": "workers", "policy": {"gang": {"minCount": 2}}}, {"name": "helpers", "policy": {"basic": {}}}]
    body = {"metadata": {"name": "train", "namespace": "default"}, "spec": {"podGroups": groups}}
    config = KubeSchedulerConfiguration.model_validate({"profiles": [profile()]})

    def place(*pods: Pod, workloads: tuple[SchedulingWorkload, ...]) -> dict[str, str]:
        snapshot = Snapshot([testing.node("n", cpu="3")], objects={"Workload": workloads})
        simulation = Simulation(snapshot, config=config, now=1e6)
        return {found.pod.removeprefix("default/"): found.node or found.message for found in simulation.place(pods)}

    workload = msgspec.convert(body, SchedulingWorkload)
    two, one, free = (replica("a0", "a"), replica("a1", "a")), replica("b0", "b"), replica("h0", "", pod_group="helpers")
    found = place(*two, one, free, workloads=(workload,))
    assert (found["a0"], found["a1"], found["h0"]) == ("n", "n", "n")
    assert "workload:train:workers:b has 1 of 2 pods" in found["b0"]
    assert "no PodGroup" in place(*two, workloads=())["a0"]
    assert "no PodGroup" in place(replica("x", "", pod_group="unknown"), workloads=(workload,))["x"]


@pytest.mark.feature("SCH-WL-06")
@pytest.mark.parametrize(("priority", "wins"), [(2000, True), (5, False)])
def test_the_priority_of_a_group_counts_not_that_of_its_pods(gangs: Any, priority: int, wins: bool) -> None:
    async def run() -> None:
        async with gangs(nodes=("2",), enablePreemption=True, post_filter=("Coscheduling",)) as g:
            await g.priority("mid", 100)
            await g.live.pod("runs", cpu="2", priorityClassName="mid", terminationGracePeriodSeconds=0)
            await g.bound("runs")
            await group(g, "job", 2, priority=priority)
            for number in range(2):
                await member(g, f"j{number}", "job")
            if wins:
                await g.bound("j0", "j1")
            else:
                await told(g, "job", "PodGroupScheduled", "False")
                await g.quiet()
                assert await g.nodes_of() == {"runs": "n0", "j0": "", "j1": ""}

    asyncio.run(run())
