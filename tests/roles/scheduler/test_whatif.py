"""What-ifs answer as the live scheduler does: gangs, nominations, gates, plugins of the user (SCH-FW-06)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kinds import PODGROUPS, PODS
from koord.api.names import LABEL_POD_GROUP
from koord.api.objects import ElasticQuota, Pod, PodGroup
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler import testing
from roles.scheduler.engine import registry
from roles.scheduler.framework.interfaces import Filter, Rejection
from roles.scheduler.whatif import Scheduler, Simulation, Snapshot, configured
from tests.roles.scheduler.gang.conftest import profile
from tests.support.examples import examples

pytestmark = pytest.mark.feature("SCH-FW-06")

QUOTA = "quota.scheduling.koordinator.sh/name"


def config(**extra: Any) -> KubeSchedulerConfiguration:
    return KubeSchedulerConfiguration.model_validate({"profiles": [{**profile(), **extra}]})


def group(name: str, least: int) -> PodGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"minMember": least}}, PodGroup)


def member(name: str, gang: str = "g", **content: Any) -> Pod:
    return testing.pod(name, labels={LABEL_POD_GROUP: gang}, **content)


def simulation(nodes: int = 1, cpu: str = "2", *, pods: tuple[Pod, ...] = (), groups: tuple[PodGroup, ...] = (), **more: Any) -> Simulation:
    snapshot = Snapshot([testing.node(f"n{n}", cpu=cpu) for n in range(nodes)], pods, objects={"PodGroup": groups})
    return Simulation(snapshot, **{"config": config(), "now": 1e6, **more})


@pytest.mark.feature("SCH-GANG-06")
def test_a_gang_is_placed_together_or_not_at_all() -> None:
    found = simulation(groups=(group("g", 3),)).place([member(f"m{n}") for n in range(3)])
    assert [placement.node for placement in found] == ["", "", ""]
    assert any("Insufficient cpu" in placement.message for placement in found)
    roomy = simulation(2, groups=(group("g", 3),))
    assert all(placement.placed for placement in roomy.place([member(f"m{n}") for n in range(3)]))
    assert roomy.fits(testing.pod("last")).placed
    assert not roomy.fits(testing.pod("more", cpu="2")).placed, "members keep their nodes"


@pytest.mark.feature("SCH-GANG-05")
def test_a_gang_of_which_some_are_pending_in_the_snapshot() -> None:
    waiting = tuple(member(f"m{n}") for n in range(2))
    assert simulation(2, pods=waiting, groups=(group("g", 3),)).fits(member("m2")).placed
    refused = simulation(2, pods=waiting[:1], groups=(group("g", 3),)).fits(member("m2"))
    assert not refused.placed
    assert "g" in refused.message
    assert not simulation(2, groups=()).fits(member("alone", "nobody")).placed, "there is no PodGroup"


def test_asking_leaves_no_trace_of_a_gang() -> None:
    found = simulation(2, pods=tuple(member(f"m{n}") for n in range(2)), groups=(group("g", 3),))
    for _ in range(2):
        assert found.fits(member("m2", uid="m2")).placed
        assert found.node_of("m2") == ""
    assert sum(placement.placed for placement in found.place([testing.pod() for _ in range(4)])) == 4


def test_room_that_is_nominated_to_another_is_kept() -> None:
    preemptor = testing.pod("preemptor", cpu="2", priority=9500, status={"nominatedNodeName": "n0"})
    found = simulation(pods=(preemptor,))
    assert not found.fits(testing.pod(cpu="1", priority=0)).placed
    assert found.fits(testing.pod(cpu="1", priority=9501)).placed
    assert found.place([preemptor])[0].node == "n0"
    leaving = msgspec.structs.replace(
        preemptor, metadata=msgspec.structs.replace(preemptor.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert simulation(pods=(leaving,)).fits(testing.pod(cpu="1", priority=0)).placed, "nothing places it any more"


def test_a_preemption_keeps_its_room() -> None:
    there = tuple(testing.pod(f"low{n}", node="n0", cpu="1", priority=0) for n in range(2))
    found = simulation(pods=there)
    first, second = found.place([testing.pod("high", cpu="2", priority=100), testing.pod("middle", cpu="1", priority=50)])
    assert first.nominated == "n0"
    assert len(first.victims) == 2
    assert not second.placed
    assert not second.victims


@pytest.mark.feature("SCH-FW-11")
def test_gates_are_those_of_the_live_scheduler() -> None:
    foreign = testing.pod("foreign", cpu="2", priority=9500, scheduler="other", status={"nominatedNodeName": "n0"})
    assert simulation(pods=(foreign,)).fits(testing.pod(cpu="1", priority=0)).placed
    assert not simulation(pods=(foreign,), gates={"CrossSchedulerNomination": True}).fits(testing.pod(cpu="1", priority=0)).placed


def test_a_plugin_of_the_user_has_its_say() -> None:
    class Even(Filter):
        name = "Even"

        def filter_row(self, ctx: Any, slot: int) -> int:
            return int(ctx.cluster.name_of(slot)[-1] in "13579")

        def rejection(self, ctx: Any, code: int) -> Rejection:
            return Rejection(("odd",))

    plugins = registry(entry_points=False)
    plugins.add(Even, "the test")
    settings_ = KubeSchedulerConfiguration.model_validate(
        {"profiles": [{"schedulerName": testing.SCHEDULER, "plugins": {"filter": {"enabled": [{"name": "Even"}]}}}]}
    )
    found = simulation(4, config=settings_, plugins=plugins)
    assert {placement.node for placement in found.place([testing.pod(cpu="2") for _ in range(4)])} == {"n0", "n2", ""}


def test_the_configuration_of_a_scheduler_is_read_as_it_does(tmp_path: Any) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: mine\n")
    read = configured(str(file), feature_gates="CrossSchedulerNomination=true")
    assert [one.scheduler_name for one in read.config.profiles] == ["mine"]
    assert read.gates["CrossSchedulerNomination"]
    assert "PodDisruptionBudget" in read.kinds()
    assert {"PodGroup", "ElasticQuota"} <= Scheduler(config(plugins=QUOTAS), registry(entry_points=False)).kinds().keys()
    assert read.simulate(Snapshot([testing.node("n")]), now=1e6).fits(testing.pod(scheduler="mine")).node == "n"
    # a node without CSI drivers, as kube-apiserver writes it
    (bare,) = read.kinds()["CSINode"].read([{"metadata": {"name": "n"}, "spec": {"drivers": None}}])
    assert bare.spec.drivers == ()


QUOTAS = {
    **profile()["plugins"],
    "preFilter": {"enabled": [{"name": "Coscheduling"}, {"name": "ElasticQuota"}]},
    "reserve": {"enabled": [{"name": "Coscheduling"}, {"name": "ElasticQuota"}]},
}

SHAPES = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["1", "2"]), "gang": st.sampled_from(["", "", "a", "b"]), "quota": st.sampled_from(["", "q"])}
)


@examples(16)
@given(pods=st.lists(SHAPES, min_size=1, max_size=7), nodes=st.integers(1, 3), least=st.integers(2, 3), nominated=st.booleans())
def test_whatever_is_asked_one_by_one_is_what_is_placed_then(pods: list[dict[str, Any]], nodes: int, least: int, nominated: bool) -> None:
    """What `fits` says of a pod is what becomes of it when it is placed; and no gang is placed in part."""
    meta = {"name": "q", "namespace": "default", "uid": "q"}
    quota = msgspec.convert({"metadata": meta, "spec": {"max": {"cpu": "3"}, "min": {"cpu": "3"}}}, ElasticQuota)
    made = []
    for number, spec in enumerate(pods):
        labels = {LABEL_POD_GROUP: spec["gang"]} if spec["gang"] else {}
        made.append(testing.pod(f"p{number}", cpu=spec["cpu"], labels={**labels, **({QUOTA: "q"} if spec["quota"] else {})}))
    waiting = [testing.pod("high", cpu="2", priority=9500, status={"nominatedNodeName": "n0"})] if nominated else []
    snapshot = Snapshot(
        [testing.node(f"n{n}", cpu="4") for n in range(nodes)], [*waiting, *made],
        objects={"PodGroup": [group("a", least), group("b", least)], "ElasticQuota": [quota]},
    )  # fmt: skip

    def fresh() -> Simulation:
        return Simulation(snapshot, config=config(plugins=QUOTAS), now=1e6, seed=7)

    asked, placing = fresh(), fresh()
    for pod in made:
        guess = asked.fits(pod)
        assert (guess.placed, guess.verdict) == ((found := fresh().place([pod])[0]).placed, found.verdict)
    found = {placement.pod.split("/")[1]: placement.placed for placement in placing.place(made)}
    for gang in ("a", "b"):
        members = [found[pod.metadata.name] for pod in made if pod.metadata.labels.get(LABEL_POD_GROUP) == gang]
        assert not any(members) or sum(members) >= least


LIVE = {"profiles": [profile()]}


@pytest.mark.parametrize(("least", "nodes"), [(2, 2), (3, 2), (3, 3), (2, 1)])
def test_a_live_scheduler_does_what_was_foretold(scheduler: Any, least: int, nodes: int) -> None:
    """A gang of three and a pod by itself, on nodes that take one CPU each."""
    body = {"apiVersion": PODGROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": least}}
    gates: list[Any] = [{"name": "later"}]
    order = ["m0", "m1", "m2", "alone"]

    async def run() -> None:
        async with scheduler(LIVE, crds=True) as live:
            for number in range(nodes):
                await live.node(f"n{number}", cpu="1")
            await live.client.create(PODGROUPS, body, "default")
            for number in range(3):
                await live.pod(f"m{number}", meta={"labels": {LABEL_POD_GROUP: "g"}}, schedulingGates=gates)
            await live.pod("alone", schedulingGates=gates)
            listed = sorted((await live.client.list(PODS)).items, key=lambda item: order.index(item["metadata"]["name"]))
            for item in listed:
                del item["spec"]["schedulingGates"]
            groups = [msgspec.convert(item, PodGroup) for item in (await live.client.list(PODGROUPS)).items]
            made = [testing.node(f"n{number}", cpu="1") for number in range(nodes)]
            foretold = Simulation(Snapshot(made, objects={"PodGroup": groups}), config=config(), now=1e6).place(
                [msgspec.convert(item, Pod) for item in listed]
            )
            for name in order:
                await live.client.patch(PODS, name, {"spec": {"schedulingGates": None}}, "default")
            placed = {placement.pod.split("/")[1] for placement in foretold if placement.placed}
            for placement in foretold:
                name = placement.pod.split("/")[1]
                if placement.placed:
                    await live.bound(name)
                else:
                    await live.refused(name)
            for name in set(order) - placed:
                assert not (await live.get(name))["spec"].get("nodeName")

    asyncio.run(run())
