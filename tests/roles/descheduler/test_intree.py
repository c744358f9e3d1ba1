"""Koordinator's own plugins beside LowNodeLoad, through the role's door: nodes and pods in, evictions, cordons and annotations out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from koord.api import kinds, names
from koord.api.objects import Node, Pod, convert
from koord.config.errors import InvalidConfig
from roles.descheduler.build import Options
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import Cordon, Evict
from roles.descheduler.framework.handle import Handle
from roles.descheduler.plugins.custompriority import PATIENCE, CustomPriority, CustomPriorityArgs
from roles.descheduler.snapshot import node_view
from tests.roles.descheduler.support import Obj, after_rounds, configuration, descheduling, eventually, node, pod, put

LEVELS = [
    {"name": "pricey", "nodeSelector": {"matchLabels": {"cost": "hi"}}},
    {"name": "middle", "nodeSelector": {"matchLabels": {"cost": "mid"}}},
    {"name": "cheap", "nodeSelector": {"matchLabels": {"cost": "lo"}}},
]
COST = names.ANNOTATION_POD_DELETION_COST


def priced(hi: str = "10", lo: str = "3", **more: Any) -> list[Obj]:
    return [node("x", cpu=hi, labels={"cost": "hi"}), node("y", cpu=lo, labels={"cost": "lo"}, **more)]


def custom(args: Obj, objects: list[Obj], **top: Any):
    return after_rounds(
        objects, configuration({"balance": ["CustomPriority"]}, {"CustomPriority": {"evictionOrder": LEVELS, **args}}, **top)
    )


@pytest.mark.feature("DS-CP-01")
def test_pods_leave_expensive_nodes_for_cheaper_ones_without_overbooking_them() -> None:
    pods = [pod("a", "x", cpu="1"), pod("b", "x", cpu="1500m"), pod("c", "x", cpu="2"), pod("there", "y", cpu="500m")]
    done = custom({}, [*priced(), *pods])
    # 2500m are free: the two smallest fit together, the third would not beside them
    assert done.pods == {"c", "there"}
    assert done.records("Evicted")[0].numbers["reason"] == "evicting from pricey priority resource to lower priority resource"
    assert done.records("Evicted")[0].numbers["target"] == "y"


@pytest.mark.feature("DS-CP-01")
def test_after_five_pods_in_a_row_that_fit_nowhere_a_node_is_left_alone() -> None:
    locked = {"nodeSelector": {"nowhere": "yes"}}
    objects = [*priced(), *(pod(f"p{i}", "x", cpu=f"{100 + i}m", **locked) for i in range(5)), pod("would-fit", "x", cpu="200m")]
    assert "would-fit" in custom({}, objects).pods
    assert "would-fit" not in custom({}, [item for item in objects if item["metadata"]["name"] != "p4"]).pods
    assert custom({"nodeFit": False}, objects).pods == set()


@pytest.mark.feature("DS-CP-01")
def test_what_custom_priority_leaves_alone() -> None:
    labelled = pod("labelled", "x", meta={"labels": {"app": "web"}, "ownerReferences": pod("o", "x")["metadata"]["ownerReferences"]})
    objects = [*priced(), labelled, pod("plain", "x"), pod("elsewhere", "x", namespace="other")]
    assert custom({"podSelectors": [{"name": "web", "selector": {"matchLabels": {"app": "web"}}}]}, objects).pods == {"plain", "elsewhere"}
    assert custom({"evictableNamespaces": {"include": ["other"]}}, objects).pods == {"labelled", "plain"}
    assert len(custom({"paused": True}, objects).pods) == 3
    assert len(custom({"dryRun": True}, objects).pods) == 3
    assert len(custom({}, [node("x", labels={"cost": "hi"}), node("y"), *objects[2:]]).pods) == 3  # one level only


@pytest.mark.feature("DS-CP-02")
def test_a_node_is_drained_whole_or_not_at_all() -> None:
    args = {"mode": "DrainNode", "autoCordon": True}
    small, big = pod("small", "x", cpu="1"), pod("big", "x", cpu="4")
    daemon = pod("daemon", "x", meta={"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2"}]})

    async def scenario(objects: list[Obj]) -> tuple[set[str], bool]:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": {"evictionOrder": LEVELS, **args}})
        async with descheduling(objects, text) as running:
            await running.wait_rounds(1)
            found = await running.client.get(kinds.NODES, "x")
            return await running.pods(), bool(found["spec"].get("unschedulable"))

    assert asyncio.run(scenario([*priced(), small, big, daemon])) == ({"small", "big", "daemon"}, False)
    # the daemon does not stand in the way
    assert asyncio.run(scenario([*priced(lo="5"), small, big, daemon])) == ({"daemon"}, True)


@pytest.mark.feature("DS-CP-02")
def test_a_new_node_under_an_old_name_is_not_cordoned() -> None:
    """A round may be some minutes older than the node."""

    async def scenario() -> None:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": {"evictionOrder": LEVELS, "paused": True}})
        async with descheduling(priced(), text) as running:
            await running.wait_rounds(1)
            seen = convert(await running.client.get(kinds.NODES, "x"), Node)
            await running.client.delete(kinds.NODES, "x")
            await put(running.client, node("x", labels={"cost": "hi"}))
            assert not (await running.app._acting.cordon(seen, True)).accepted
            now = await running.client.get(kinds.NODES, "x")
            assert not now["spec"].get("unschedulable")
            assert (await running.app._acting.cordon(convert(now, Node), True)).accepted

    asyncio.run(scenario())


@pytest.mark.feature("DS-CP-02")
def test_a_drain_that_is_refused_takes_its_cordon_back() -> None:
    objects = [*priced(lo="8"), pod("a", "x", cpu="1"), pod("b", "x", cpu="2")]
    args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}

    async def scenario() -> None:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": args}, maxNoOfPodsToEvictTotal=1)
        async with descheduling(objects, text) as running:
            await running.wait_rounds(1)
            assert await running.pods() == {"b"}
            assert not (await running.client.get(kinds.NODES, "x"))["spec"].get("unschedulable")
            assert [record.verdict for record in running.records("Cordoned", "Uncordoned")] == ["Cordoned", "Uncordoned"]

    asyncio.run(scenario())


@pytest.mark.feature("DS-CP-02")
def test_a_drain_that_limits_stretch_keeps_its_cordon_until_it_is_over() -> None:
    """MigrationController lets two pods of a node migrate at once: the others wait for their turn, on a node that stays cordoned."""
    objects = [*priced(lo="8"), *(pod(f"p{number}", "x", cpu="1") for number in range(5))]
    args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}

    async def scenario() -> None:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": args}, deschedulingInterval="100ms")
        async with descheduling(objects, text.replace("name: DefaultEvictor", "name: MigrationController")) as running:
            await running.wait_rounds(6)
            assert [record.verdict for record in running.records("Cordoned", "Uncordoned")] == ["Cordoned"]
            assert (await running.client.get(kinds.NODES, "x"))["spec"]["unschedulable"]
            told = [record.message for record in running.records("Round")]
            assert any("node x is being drained: 2 pods were told to leave, 3 have to wait" in message for message in told)

    asyncio.run(scenario())


@pytest.mark.feature("DS-CP-02")
def test_a_drain_in_which_nothing_leaves_is_given_up_and_not_begun_anew_each_round() -> None:
    plugin = CustomPriority(CustomPriorityArgs.model_validate({"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}), 60.0)
    pods = [convert(pod(f"p{number}", "x", meta={"uid": f"p{number}"}), Pod) for number in range(3)]

    def asked(now: float, grant: int, left: int = 3) -> list[str]:
        """What a round asks for, of which so many evictions are granted."""
        source, target = (convert(each, Node) for each in priced(lo="8"))
        views = [node_view(source, pods[3 - left :], None, now=now), node_view(target, [], None, now=now)]
        turn = plugin.turn(views, Handle("p", "CustomPriority", now, []))
        answer: Any = None
        found: list[str] = []
        while True:
            try:
                effect = turn.send(answer)
            except StopIteration:
                return found
            answer = True
            if isinstance(effect, Cordon):
                found.append("cordon" if effect.on else "uncordon")
            elif isinstance(effect, Evict):
                answer = grant > 0
                grant -= 1
                found.append(effect.pod.metadata.name)

    assert asked(0.0, 0) == ["cordon", "p0", "p1", "p2", "uncordon"]
    assert asked(60.0, 3) == []  # it is left alone for a while
    assert asked(PATIENCE, 1) == ["cordon", "p0", "p1", "p2"]
    assert asked(PATIENCE + 60, 1, left=2) == ["p1", "p2"]  # in progress: nobody touches the cordon
    assert asked(PATIENCE + 120, 0, left=1) == ["p2"]
    assert asked(2 * PATIENCE + 100, 0, left=1) == ["p2", "uncordon"]  # nothing has left for half an hour


@pytest.mark.feature("DS-CP-02")
def test_a_drain_that_a_restart_has_forgotten_is_ended_by_the_next_process() -> None:
    """The cordon of a process that was killed in a drain is taken back when nothing leaves; a person's cordon stays."""

    def after_restart(annotations: dict[str, str]) -> list[str]:
        args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}
        plugin = CustomPriority(CustomPriorityArgs.model_validate(args), 60.0)
        source, target = (convert(each, Node) for each in priced(lo="8"))
        source = convert({**priced(lo="8")[0], "spec": {"unschedulable": True}}, Node)
        source.metadata.annotations.update(annotations)
        mine = [convert(pod("p0", "x", meta={"uid": "p0"}), Pod)]
        found: list[str] = []
        for now in (0.0, 60.0, PATIENCE + 60.0):
            views = [node_view(source, mine, None, now=now), node_view(target, [], None, now=now)]
            turn, answer = plugin.turn(views, Handle("p", "CustomPriority", now, [])), None
            with contextlib.suppress(StopIteration):
                while True:
                    effect = turn.send(answer)
                    found += ["cordon" if effect.on else "uncordon"] if isinstance(effect, Cordon) else []
                    answer = not isinstance(effect, Evict)
        return found

    assert "uncordon" in after_restart({names.ANNOTATION_DRAIN_CORDONED: "true"})
    assert after_restart({}) == []


@pytest.mark.feature("DS-CP-02")
@pytest.mark.parametrize("restart", [False, True])
def test_a_drain_ends_when_a_person_uncordons_its_node(restart: bool) -> None:
    """Nobody else leaves, and the cordon is not put back, by the next process neither."""
    objects = [*priced(lo="8"), *(pod(f"p{number}", "x", cpu="1") for number in range(5))]
    args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}
    text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": args}, deschedulingInterval="100ms")

    async def scenario() -> None:
        async with descheduling(objects, text.replace("name: DefaultEvictor", "name: MigrationController")) as running:
            await eventually(lambda: running.records("Cordoned"))
            await running.wait_rounds(running.rounds() + 2)
            if restart:
                running.app._rounds.profiles[0].plugins["balance"][:] = [CustomPriority(CustomPriorityArgs.model_validate(args), 0.1)]
            await running.client.patch(kinds.NODES, "x", {"spec": {"unschedulable": None}})
            await eventually(lambda: any("somebody has uncordoned it" in record.message for record in running.records("Round")))
            jobs = len((await running.client.list(kinds.PODMIGRATIONJOBS)).items)
            await running.wait_rounds(running.rounds() + 5)
            found = await running.client.get(kinds.NODES, "x")
            assert not found["spec"].get("unschedulable")
            assert names.ANNOTATION_DRAIN_CORDONED not in found["metadata"].get("annotations", {})
            assert len(running.records("Cordoned")) == 1
            assert len((await running.client.list(kinds.PODMIGRATIONJOBS)).items) == jobs

    asyncio.run(scenario())


@pytest.mark.feature("DS-CP-02")
def test_the_cordon_of_a_drain_is_marked() -> None:
    objects = [*priced(lo="8"), pod("a", "x", cpu="1"), pod("b", "x", cpu="2")]
    args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True}

    async def scenario() -> None:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": args})
        async with descheduling(objects, text) as running:
            await running.wait_rounds(1)
            found = await running.client.get(kinds.NODES, "x")
            assert found["spec"]["unschedulable"]
            assert found["metadata"]["annotations"][names.ANNOTATION_DRAIN_CORDONED] == "true"

    asyncio.run(scenario())


@pytest.mark.feature("DS-CP-02")
def test_a_dry_drain_touches_nothing_and_lists_everything() -> None:
    args = {"evictionOrder": LEVELS, "mode": "DrainNode", "autoCordon": True, "dryRun": True}

    async def scenario() -> None:
        text = configuration({"balance": ["CustomPriority"]}, {"CustomPriority": args})
        async with descheduling([*priced(lo="8"), pod("a", "x"), pod("b", "x")], text) as running:
            await running.wait_rounds(1)
            assert await running.pods() == {"a", "b"}
            assert not (await running.client.get(kinds.NODES, "x"))["spec"].get("unschedulable")
            assert len(running.records("WouldEvict")) == 2
            assert running.records("WouldEvict")[0].numbers["reason"] == "drain node x (sourcePriority=pricey)"
            assert running.subjects("WouldCordon") == ["x"]

    asyncio.run(scenario())


def fragmented(args: Obj, objects: list[Obj]):
    return after_rounds(objects, configuration({"balance": ["FragmentationAware"]}, {"FragmentationAware": args}))


UNEVEN = [
    node("n1"),
    node("n2", cpu="20", memory="40Gi"),
    pod("cpu1", "n1", cpu="4", memory="1Gi"),
    pod("cpu2", "n1", cpu="2", memory="1Gi"),
    pod("even", "n1", cpu="1", memory="2Gi"),
]


@pytest.mark.feature("DS-FA-01")
def test_the_pod_whose_leaving_evens_a_node_out_most_leaves() -> None:
    done = fragmented({}, UNEVEN)
    assert done.pods == {"cpu2", "even"}
    # shares before: cpu 7/10, memory 4/20, a deviation of 0.25; after: 3/10 and 3/20
    assert done.records("Evicted")[0].numbers["reason"] == "fragmentation reduction: stdBefore=0.2500 stdAfter=0.0750 gain=0.1750"


@pytest.mark.feature("DS-FA-01")
@pytest.mark.parametrize(
    "args",
    [
        {"imbalanceThreshold": 0.25},
        {"minImprovementThreshold": 0.18},
        {"evictableNamespaces": {"exclude": ["default"]}},
        {"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}}},
        {"resources": ["cpu"]},
        {"paused": True},
        {"dryRun": True},
    ],
)
def test_when_a_fragmented_node_is_left_alone(args: Obj) -> None:
    assert fragmented(args, UNEVEN).pods == {"cpu1", "cpu2", "even"}


@pytest.mark.feature("DS-FA-01")
def test_without_node_fit_the_other_nodes_do_not_matter() -> None:
    small = [node("n1"), node("n2", cpu="1"), *UNEVEN[2:]]
    assert fragmented({}, small).pods == {"cpu1", "cpu2", "even"}
    assert fragmented({"nodeFit": False}, small).pods == {"cpu2", "even"}


@pytest.mark.feature("DS-FA-01")
def test_no_other_pod_leaves_a_node_while_the_one_that_evens_it_out_terminates() -> None:
    slow = {"terminationGracePeriodSeconds": 600}
    cpu = [pod(name, "n1", cpu="2", **slow) for name in ("a", "b", "c")]
    objects = [node("n1"), node("n2"), *cpu, pod("memory", "n1", cpu="", memory="4Gi", **slow)]
    # shares before: cpu 6/10, memory 4/20, a deviation of 0.2; without one of the three 4/10: 0.1, which is even enough
    text = configuration({"balance": ["FragmentationAware"]}, {"FragmentationAware": {}}, deschedulingInterval="50ms")
    assert after_rounds(objects, text, 4).subjects("Evicted") == ["a"]


WEB = {"labels": {"app": "web"}, "ownerReferences": pod("o", "x")["metadata"]["ownerReferences"]}
BINPACK = [
    *(node(name, cpu="8", memory="16Gi") for name in ("na", "nb", "nc")),
    pod("a1", "na", cpu="1", memory="1Gi", meta=WEB),
    pod("a-db", "na", cpu="2", memory="2Gi"),
    pod("b1", "nb", cpu="1", memory="2Gi", meta=WEB),
    pod("b2", "nb", cpu="3", memory="1Gi", meta=WEB),
    pod("b-bare", "nb", cpu="1", memory="1Gi", owned=False, meta={"labels": {"app": "web"}}),
    pod("c1", "nc", cpu="1", memory="1Gi", meta=WEB),
]
SELECT = {"podSelectors": [{"name": "s", "selector": {"matchLabels": {"app": "web"}}}]}


async def costs(client: Any) -> dict[str, str | None]:
    items = (await client.list(kinds.PODS)).items
    return {item["metadata"]["name"]: item["metadata"].get("annotations", {}).get(COST) for item in items}


@pytest.mark.feature("DS-SDB-01")
def test_pods_are_ranked_so_that_scaling_down_empties_nodes() -> None:
    async def scenario(**top: Any) -> dict[str, str | None]:
        async with descheduling(BINPACK, configuration({"balance": ["ScaleDownBinPack"]}, {"ScaleDownBinPack": SELECT}, **top)) as running:
            await running.wait_rounds(1)
            return await costs(running.client)

    wanted = {"c1": "0", "b2": "1", "b1": "2", "a1": "3", "b-bare": str(2**31 - 1), "a-db": None}
    assert asyncio.run(scenario()) == wanted
    assert set(asyncio.run(scenario(dryRun=True)).values()) == {None}


@pytest.mark.feature("DS-SDB-01")
def test_weights_decide_which_node_is_easily_emptied() -> None:
    async def scenario() -> dict[str, str | None]:
        args = {**SELECT, "resourceWeights": {"cpu": 0.001, "memory": 1}}
        objects = [
            *(node(name, cpu="8", memory="16Gi") for name in ("na", "nb")),
            pod("a", "na", cpu="4", memory="1Gi", meta=WEB),
            pod("a-other", "na", cpu="1", memory="8Gi"),
            pod("b", "nb", cpu="1", memory="4Gi", meta=WEB),
            pod("b-other", "nb", cpu="6", memory="1Gi"),
        ]
        async with descheduling(objects, configuration({"balance": ["ScaleDownBinPack"]}, {"ScaleDownBinPack": args})) as running:
            await running.wait_rounds(1)
            return await costs(running.client)

    found = asyncio.run(scenario())
    assert (found["b"], found["a"]) == ("0", "1")


@pytest.mark.feature("DS-SDB-02")
def test_evict_directly_takes_pods_in_rank_order_up_to_a_number() -> None:
    args = {**SELECT, "strategy": "EvictDirectly", "maxPodsToEvict": 2}
    done = after_rounds(BINPACK, configuration({"balance": ["ScaleDownBinPack"]}, {"ScaleDownBinPack": args}))
    assert done.pods == {"a1", "a-db", "b1", "b-bare"}
    assert done.records("Evicted")[0].numbers["reason"] == "scale-down binpack"


@pytest.mark.feature("DS-SDB-02")
def test_a_refused_pod_does_not_count() -> None:
    args = {**SELECT, "strategy": "EvictDirectly", "maxPodsToEvict": 2}
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"keep": "yes"}}, "minAvailable": 1},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1},
    }
    kept = {"labels": {"app": "web", "keep": "yes"}, "ownerReferences": WEB["ownerReferences"]}
    objects = [item if item["metadata"]["name"] != "c1" else pod("c1", "nc", memory="1Gi", meta=kept) for item in BINPACK]
    done = after_rounds([*objects, budget], configuration({"balance": ["ScaleDownBinPack"]}, {"ScaleDownBinPack": args}))
    assert done.pods == {"a1", "a-db", "c1", "b-bare"}
    assert "a disruption budget does not allow it now" in done.records("NotEvicted")[0].message


@pytest.mark.parametrize(
    ("plugin", "args", "wanted"),
    [
        ("CustomPriority", {}, "evictionOrder: needs at least two entries, has 0"),
        ("CustomPriority", {"evictionOrder": LEVELS, "mode": "Drain"}, "mode: 'Drain' is not known; accepted: BestEffort, DrainNode"),
        ("CustomPriority", {"evictionOrder": [LEVELS[0], LEVELS[0]]}, "'pricey' is already used"),
        ("CustomPriority", {"evictionOrder": [LEVELS[0], {"name": "x"}]}, "evictionOrder[1].nodeSelector: is required"),
        ("FragmentationAware", {"resources": []}, "resources: must name at least one resource"),
        ("FragmentationAware", {"resources": ["cpu", "cpu"]}, "resources[1]: 'cpu' is given twice"),
        ("FragmentationAware", {"imbalanceThreshold": -1}, "imbalanceThreshold"),
        ("ScaleDownBinPack", {"strategy": "EvictDirectly"}, "maxPodsToEvict: must be more than 0"),
        ("ScaleDownBinPack", {"resourceWeights": {"cpu": 0}}, "resourceWeights.cpu: 0 must be a positive number"),
        ("ScaleDownBinPack", {"strategie": "x"}, "unknown field; did you mean 'strategy'?"),
        ("LowNodeLoad", {"lowThresholds": {"cpu": 71}, "highThresholds": {"cpu": 64}}, "71 must not be above highThresholds.cpu, 64"),
        (
            "LowNodeLoad",
            {"highThresholds": {"cpu": 70}, "nodePools": [{"name": "gpu", "lowThresholds": {"cpu": 90}}]},
            "nodePools[0].lowThresholds.cpu: 90 must not be above highThresholds.cpu, 70 from the top level",
        ),
        (
            "LowNodeLoad",
            {"prodHighThresholds": {"cpu": 60}, "nodePools": [{}, {"highThresholds": {"cpu": 50}}]},
            "nodePools[1].prodHighThresholds.cpu: 60 from the top level must not be above highThresholds.cpu, 50",
        ),
    ],
)
@pytest.mark.feature("DS-CFG-01")
def test_arguments_that_cannot_be_are_refused_at_the_start(plugin: str, args: Obj, wanted: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Options(parse_configuration(configuration({"balance": [plugin]}, {plugin: args}), "test"), "test")
    assert wanted in str(refused.value)


@pytest.mark.feature("DS-FW-03")
def test_a_plugin_that_only_lists_uses_up_nothing_of_what_others_may_evict() -> None:
    args = {"CustomPriority": {"evictionOrder": LEVELS, "dryRun": True}, "FragmentationAware": {}}
    objects = [
        node("n1", labels={"cost": "hi"}),
        node("n2", cpu="20", memory="40Gi", labels={"cost": "lo"}),
        *UNEVEN[2:],
    ]
    done = after_rounds(objects, configuration({"balance": ["CustomPriority", "FragmentationAware"]}, args, maxNoOfPodsToEvictTotal=1))
    assert len(done.records("WouldEvict")) == 1
    assert done.pods == {"cpu2", "even"}


@pytest.mark.feature("DS-FW-01")
def test_nodes_that_are_not_ready_take_no_part_and_one_node_is_not_enough() -> None:
    objects = [priced()[0], node("y", labels={"cost": "lo"}, ready="False"), pod("a", "x")]
    done = custom({}, objects)
    assert done.pods == {"a"}
    assert done.metrics.get_sample_value("koord_descheduler_rounds_total", {"result": "skipped"}) == 1


@pytest.mark.feature("DS-FW-01")
def test_rounds_go_on_at_the_interval_and_profiles_see_their_nodes_only() -> None:
    profile = {
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}},
        "plugins": {
            "deschedule": {"enabled": [{"name": "RemoveFailedPods"}]},
            "evict": {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]},
            "filter": {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "RemoveFailedPods", "args": {"minPodLifetimeSeconds": 0}}],
    }
    failed = {"status": {"phase": "Failed"}}

    async def scenario() -> None:
        text = configuration({}, profiles=[profile], deschedulingInterval="100ms")
        async with descheduling([node("n1"), node("n2"), pod("one", "n1", **failed), pod("two", "n2", **failed)], text) as running:
            await running.wait_rounds(1)
            assert await running.pods() == {"two"}
            await running.client.create(kinds.PODS, {**pod("three", "n1"), "apiVersion": "v1", "kind": "Pod"}, "default")
            await running.client.patch(kinds.PODS, "three", {"status": failed["status"]}, "default", subresource="status")

            async def only_two() -> bool:
                return await running.pods() == {"two"}

            await eventually(only_two)

    asyncio.run(scenario())
