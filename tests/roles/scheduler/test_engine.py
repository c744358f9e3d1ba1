"""Profiles, plugins of one's own, configuration mistakes, what-ifs: the deciding part as a whole."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.kinds import NODES, PODS
from koord.config.errors import InvalidConfig
from koord.config.scheduler import KubeSchedulerConfiguration
from roles.scheduler import testing
from roles.scheduler.cluster.columns import Columns
from roles.scheduler.engine import Engine, registry
from roles.scheduler.framework.events import ASSIGNED_POD, NODE, Action, ClusterEvent, Subscription
from roles.scheduler.framework.interfaces import Filter, Forget, Point, Rejection, Reserve
from roles.scheduler.framework.registry import PluginError
from roles.scheduler.framework.status import SUCCESS, Status, unschedulable
from roles.scheduler.plugins.basic import PrioritySort
from roles.scheduler.whatif import Simulation, Snapshot
from tests.support import patience

LISTED = """
import numpy as np
from koord.config.model import ConfigModel
from roles.scheduler.cluster.changes import NODE
from roles.scheduler.framework.interfaces import Filter, Rejection


class ListedArgs(ConfigModel):
    labels: tuple[str, ...] = ()
    pair: tuple[str, int] = ("", 0)
    kinds: set[str] = set()
    zones: frozenset[str] = frozenset()
    per_pool: dict[str, tuple[str, ...]] = {}
    maybe: tuple[str, ...] | None = None


class Listed(Filter):
    name = "Listed"
    Args = ListedArgs
    reads = NODE

    def filter(self, ctx, rows):
        return np.ones(len(ctx.cluster.labels.column("x").ids[rows]), dtype=bool)

    def rejection(self, ctx, code):
        return Rejection((str(tuple(dict(self.args).values())),), resolvable=False)
"""

DOC = Path(__file__).resolve().parents[3] / "docs" / "scheduler.md"


def config(**profile: Any) -> KubeSchedulerConfiguration:
    return KubeSchedulerConfiguration.model_validate({"profiles": [{"schedulerName": testing.SCHEDULER, **profile}]})


def names(engine: Engine, point: Point) -> list[str]:
    return [entry.name for entry in engine.frameworks[testing.SCHEDULER].layout[point]]


@pytest.mark.feature("SCH-FW-01")
def test_plugins_merge_in_kube_schedulers_order() -> None:
    engine = Engine(
        config(
            plugins={
                "filter": {"enabled": [{"name": "LoadAwareScheduling"}, {"name": "NodePorts"}], "disabled": [{"name": "TaintToleration"}]},
                "score": {"enabled": [{"name": "NodeAffinity", "weight": 9}, {"name": "LoadAwareScheduling"}]},
                "postFilter": {"disabled": [{"name": "*"}]},
            }
        ),
        registry(),
    )
    filters = names(engine, Point.FILTER)
    assert filters[0] == "NodePorts"
    assert filters[1:4] == ["NodeUnschedulable", "NodeAffinity", "NodeResourcesFit"]
    assert filters[-1] == "LoadAwareScheduling"
    assert "TaintToleration" not in filters
    weights = {entry.name: entry.weight for entry in engine.frameworks[testing.SCHEDULER].layout[Point.SCORE]}
    assert (weights["NodeAffinity"], weights["TaintToleration"], weights["PodTopologySpread"], weights["LoadAwareScheduling"]) == (
        9,
        3,
        2,
        1,
    )
    assert names(engine, Point.POST_FILTER) == []
    assert names(engine, Point.QUEUE_SORT) == ["PrioritySort"]


@pytest.mark.feature("SCH-FW-01")
@pytest.mark.parametrize(
    ("plugins", "weight"),
    [
        ({}, 3),
        ({"score": {"enabled": [{"name": "TaintToleration"}]}}, 1),
        ({"multiPoint": {"enabled": [{"name": "TaintToleration"}]}}, 1),
        ({"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 7}]}}, 7),
        ({"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 7}]}, "score": {"enabled": [{"name": "TaintToleration"}]}}, 1),
        ({"filter": {"enabled": [{"name": "TaintToleration"}]}}, 3),
    ],
)
def test_a_plugin_that_is_listed_has_the_weight_that_stands_there(plugins: dict[str, Any], weight: int) -> None:
    engine = Engine(config(plugins=plugins), registry())
    assert {entry.name: entry.weight for entry in engine.frameworks[testing.SCHEDULER].layout[Point.SCORE]}["TaintToleration"] == weight


@pytest.mark.feature("SCH-FW-01")
def test_a_default_plugin_that_is_disabled_and_listed_comes_where_it_is_listed() -> None:
    again = [{"name": "DefaultPreemption"}]
    point = {"disabled": again, "enabled": [{"name": "ElasticQuota"}, *again]}
    engine = Engine(config(plugins={"postFilter": point}), registry())
    assert names(engine, Point.POST_FILTER)[-2:] == ["ElasticQuota", "DefaultPreemption"]
    every = {"disabled": again, "enabled": [{"name": "Coscheduling"}, *again]}
    engine = Engine(config(plugins={"multiPoint": every}), registry())
    assert names(engine, Point.POST_FILTER)[-2:] == ["Coscheduling", "DefaultPreemption"]


@pytest.mark.feature("SCH-KS-05")
def test_an_added_affinity_with_null_for_an_empty_list_is_understood() -> None:
    term = {"matchExpressions": [{"key": "pool", "operator": "Exists", "values": None}], "matchFields": None}
    added = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": None,
    }
    written = config(pluginConfig=[{"name": "NodeAffinity", "args": {"addedAffinity": added}}])
    nodes = [testing.node("a"), testing.node("b", labels={"pool": "x"})]
    assert Simulation(Snapshot(nodes), config=written, now=1e6).fits(testing.pod()).node == "b"


REQUIRED, PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))
GOOD: dict[str, Any] = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {REQUIRED: {"nodeSelectorTerms": list(terms)}}


def expression(**wrong: Any) -> dict[str, Any]:
    return required(GOOD, {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"], **wrong}]})


def field(**wrong: Any) -> dict[str, Any]:
    return required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"], **wrong}]})


@pytest.mark.feature("SCH-KS-05")
@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("added", "where", "complaint"),
    [
        ({"requiredDuringScheduling": {"nodeSelectorTerms": [GOOD]}}, "requiredDuringScheduling", f"did you mean {REQUIRED!r}?"),
        (required(), f"{REQUIRED}.nodeSelectorTerms", "needs at least one term"),
        ({REQUIRED: {}}, f"{REQUIRED}.nodeSelectorTerms", "needs at least one term"),
        (required(GOOD, {}), f"{REQUIRED}.nodeSelectorTerms[1]", "needs matchExpressions or matchFields"),
        (required({"matchExpression": []}), f"{REQUIRED}.nodeSelectorTerms[0].matchExpression", "did you mean 'matchExpressions'?"),
        (expression(operator="in"), f"{REQUIRED}.nodeSelectorTerms[1].matchExpressions[0].operator", "should be 'In', 'NotIn', "),
        (expression(value="a"), f"{REQUIRED}.nodeSelectorTerms[1].matchExpressions[0].value", "did you mean 'values'?"),
        (expression(values=[]), f"{REQUIRED}.nodeSelectorTerms[1]", "pool: operator In needs at least one value"),
        (expression(operator="Exists"), f"{REQUIRED}.nodeSelectorTerms[1]", "pool: operator Exists takes no values"),
        (expression(operator="Gt"), f"{REQUIRED}.nodeSelectorTerms[1]", "pool: operator Gt needs exactly one integer"),
        (expression(key=""), f"{REQUIRED}.nodeSelectorTerms[1]", "'' is no valid label key"),
        (field(key="metadata.namespace"), f"{REQUIRED}.nodeSelectorTerms[0]", "accepted: metadata.name"),
        (field(operator="Exists"), f"{REQUIRED}.nodeSelectorTerms[0]", "accepted: In, NotIn"),
        ({PREFERRED: [{"weight": 0, "preference": GOOD}]}, f"{PREFERRED}[0].weight", "greater than or equal to 1, got 0"),
        ({PREFERRED: [{"weight": 1}]}, f"{PREFERRED}[0].preference", "is required"),
        ({PREFERRED: [{"weight": 1, "preference": {}}]}, f"{PREFERRED}[0].preference", "needs matchExpressions or matchFields"),
    ],
)  # fmt: skip
def test_an_added_affinity_that_would_match_nothing_is_refused(added: dict[str, Any], where: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"addedAffinity\.{re.escape(where)}: .*{re.escape(complaint)}") as refused:
        Engine(config(pluginConfig=[{"name": "NodeAffinity", "args": {"addedAffinity": added}}]), registry())
    assert len(refused.value.errors) == 1


@pytest.mark.feature("SCH-KS-05")
def test_an_added_affinity_may_ask_for_names_and_prefer() -> None:
    added = {
        **required({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}),
        PREFERRED: [{"weight": 5, "preference": {"matchExpressions": [{"key": "generation", "operator": "Gt", "values": ["2"]}]}}],
    }
    written = config(pluginConfig=[{"name": "NodeAffinity", "args": {"addedAffinity": added}}])
    nodes = [testing.node("a", labels={"generation": "3"}), testing.node("b"), testing.node("c", labels={"generation": "3"})]
    assert Simulation(Snapshot(nodes), config=written, now=1e6).fits(testing.pod()).node == "c"


@pytest.mark.feature("SCH-FW-01")
def test_a_file_in_which_coscheduling_sorts_the_queue_is_still_understood() -> None:
    """As Koordinator's own manifests had it up to 1.6. It is the one plugin at that point."""
    coscheduling = {"name": "Coscheduling"}
    for disabled in ([{"name": "*"}], [{"name": "PrioritySort"}], []):
        engine = Engine(config(plugins={"queueSort": {"disabled": disabled, "enabled": [coscheduling]}}), registry())
        assert names(engine, Point.QUEUE_SORT) == ["PrioritySort"]


@pytest.mark.feature("SCH-CFG-01")
@pytest.mark.parametrize(
    ("profile", "complaint"),
    [
        ({"plugins": {"filter": {"enabled": [{"name": "Nope"}]}}}, "plugin 'Nope' does not exist"),
        ({"plugins": {"permit": {"enabled": [{"name": "NodePorts"}]}}}, "plugin 'NodePorts' does not implement permit"),
        ({"plugins": {"bind": {"disabled": [{"name": "*"}]}}}, "at least one bind plugin"),
        ({"pluginConfig": [{"name": "Nope", "args": {}}]}, "plugin 'Nope' does not exist"),
        ({"pluginConfig": [{"name": "NodePorts", "args": {"a": 1}}]}, "takes no arguments"),
        ({"pluginConfig": [{"name": "DefaultPreemption", "args": {"minCandidateNodesPercentage": 101}}]}, "minCandidateNodesPercentage"),
        ({"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategie": {}}}]}, "did you mean 'scoringStrategy'"),
        ({"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignored_resources": []}}]}, "did you mean 'ignoredResources'"),
        ({"pluginConfig": [{"name": "NodeResourcesFit", "args": {"kind": "OtherArgs"}}]}, "accepted: NodeResourcesFitArgs"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(profile: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Engine(config(**profile), registry())


@pytest.mark.feature("SCH-CFG-01")
def test_load_aware_args_default_and_refuse() -> None:
    points = {"filter": {"enabled": [{"name": "LoadAwareScheduling"}]}}
    engine = Engine(config(plugins=points), registry())
    args = engine.frameworks[testing.SCHEDULER].plugins["LoadAwareScheduling"].args
    assert (args.usage_thresholds, args.resource_weights) == ({"cpu": 65, "memory": 95}, {"cpu": 1, "memory": 1})
    assert (args.estimated_scaling_factors, args.node_metric_expiration_seconds) == ({"cpu": 85, "memory": 70}, 180)
    for bad in ({"nodeMetricExpirationSeconds": 0}, {"resourceWeights": {"example.com/x": 1}}, {"usageThresholds": {"cpu": 101}}):
        with pytest.raises(InvalidConfig, match=next(iter(bad))):
            Engine(config(plugins=points, pluginConfig=[{"name": "LoadAwareScheduling", "args": bad}]), registry())


@pytest.mark.feature("SCH-FW-02")
def test_the_command_line_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
        "- schedulerName: s\n  pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: Fullest}}\n"
    )
    run = [sys.executable, "-m", "koord.cli", "scheduler"]
    done = subprocess.run([*run, f"--config={file}"], capture_output=True, text=True, check=False, timeout=patience.seconds(30))
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pluginConfig[0].args.scoringStrategy.type" in done.stderr
    assert subprocess.run([*run, "--no-such-flag"], capture_output=True, check=False, timeout=patience.seconds(30)).returncode == 2
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    good = subprocess.run(
        [*run, f"--config={file}", "--validate-config"], capture_output=True, text=True, check=False, timeout=patience.seconds(30)
    )
    assert (good.returncode, good.stdout) == (0, f"{file}: valid (1 profile(s))\n")


@pytest.mark.feature("SCH-FW-07")
def test_the_worked_example_of_the_guide(tmp_path: Path) -> None:
    example = re.search(r"```python\n# quiet_hours\.py\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert example is not None, "docs/scheduler.md has lost its example"
    (tmp_path / "quiet_hours.py").write_text(example.group(1))
    plugins = registry([str(tmp_path)])
    profile = {
        "plugins": {"filter": {"enabled": [{"name": "QuietHours"}]}, "score": {"enabled": [{"name": "QuietHours", "weight": 5}]}},
        "pluginConfig": [{"name": "QuietHours", "args": {"label": "maintenance"}}],
    }
    nodes = [testing.node("n1", labels={"maintenance": "now"}), testing.node("n2", labels={"maintenance": "soon"}), testing.node("n3")]
    simulation = Simulation(Snapshot(nodes=nodes), config=config(**profile), now=0.0, plugins=plugins)
    assert simulation.fits(testing.pod()).node == "n3"
    assert simulation.fits(testing.pod(nodeSelector={"maintenance": "soon"})).node == "n2"
    refused = simulation.fits(testing.pod(nodeSelector={"maintenance": "now"}))
    assert "1 node(s) were under maintenance" in refused.message
    with pytest.raises(PluginError, match="neither a Python file nor a folder"):
        registry([str(tmp_path / "nothing")])
    (tmp_path / "quiet_hours.py").write_text("import nothing_of_that_name")
    with pytest.raises(PluginError, match="cannot be loaded"):
        registry([str(tmp_path)])


@pytest.mark.feature("SCH-FW-07")
def test_the_example_with_a_state_of_its_own_passes_its_test(tmp_path: Path) -> None:
    for name in ("team_limit.py", "test_team_limit.py"):
        block = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", DOC.read_text(), re.DOTALL)
        assert block is not None, f"docs/scheduler.md has lost {name}"
        (tmp_path / name).write_text(block.group(1))
    assert len(re.findall("```python", DOC.read_text())) == 4, "another block is to be tried here"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=patience.seconds(60))
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
    pods = [testing.pod(node="n1", labels={"team": "red"}) for _ in range(2)]
    profile = {"plugins": {"multiPoint": {"enabled": [{"name": "TeamLimit"}]}}}
    snapshot = Snapshot(nodes=[testing.node("n1"), testing.node("n2")], pods=pods)
    simulation = Simulation(snapshot, config=config(**profile), now=0.0, plugins=registry([str(tmp_path)]))
    assert [one.node for one in simulation.place([testing.pod(labels={"team": "red"}) for _ in range(3)])] == ["n2", "n2", ""]


def annotated(thing: str) -> dict[str, str]:
    return {"example.com/licences": thing}


def licences(directory: Path) -> Path:
    """The example of the docs that reads annotations, as a file."""
    block = re.search(r"```python\n# licences\.py\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert block is not None, "docs/scheduler.md has lost licences.py"
    file = directory / "licences.py"
    file.write_text(block.group(1))
    return file


@pytest.mark.feature("SCH-FW-07")
def test_the_example_that_reads_annotations_follows_them(tmp_path: Path) -> None:
    plugin = registry([str(licences(tmp_path))])["Licences"]
    world = testing.World({"plugins": {"multiPoint": {"enabled": [{"name": "Licences"}]}}}, plugins=[plugin], verify=1)
    world.add_nodes(testing.node("n1", annotations=annotated("5")), testing.node("n2", annotations=annotated("9")), testing.node("n3"))

    def ask(number: str) -> str:
        return world.decide(testing.pod(annotations=annotated(number))).node

    assert (ask("9"), ask("10")) == ("n2", "")
    world.add_pods(testing.pod(uid="a", node="n2", annotations=annotated("6")))
    assert (ask("3"), ask("4"), ask("6")) == ("n1", "n1", "")
    world.add_pods(testing.pod(uid="a", node="n2", annotations=annotated("3")))
    assert ask("6") == "n2", "the pod needs fewer"
    world.add_nodes(testing.node("n2", annotations=annotated("12")))
    assert ask("9") == "n2"
    world.remove_nodes("n2")
    assert ask("9") == ""
    world.add_nodes(testing.node("n2", annotations=annotated("12")))
    assert (ask("9"), ask("10")) == ("n2", "")
    world.remove_pods("a")
    assert ask("12") == "n2"
    assert not world.framework.trust.unkept


@pytest.mark.feature("SCH-FW-07")
def test_annotations_that_only_a_plugin_of_others_reads_wake_pods(scheduler: Any, tmp_path: Path) -> None:
    async def run() -> None:
        plugins = {"multiPoint": {"enabled": [{"name": "Licences"}]}}
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}]}

        async def change(name: str, number: str) -> None:
            await live.client.patch(PODS, name, {"metadata": {"annotations": annotated(number)}}, "default")

        async with scheduler(config, plugin_paths=(str(licences(tmp_path)),)) as live:
            await live.node("n", annotations=annotated("5"))
            await live.pod("first", cpu="100m", meta={"annotations": annotated("5")})
            await live.bound("first")
            for name in ("second", "third"):
                await live.pod(name, cpu="100m", meta={"annotations": annotated("4")})
                await live.refused(name)
            await change("second", "0")
            assert await live.bound("second") == "n", "it needs none any more"
            await change("first", "1")
            assert await live.bound("third") == "n", "there is room now"

    asyncio.run(run())


HEALTHY = """
from roles.scheduler.cluster.changes import NODE
from roles.scheduler.framework.events import NODE as NODE_EVENTS, Action, Subscription
from roles.scheduler.framework.interfaces import Filter, Rejection


class Healthy(Filter):
    name = "Healthy"
    reads = NODE

    def filter_row(self, ctx, slot):
        return any(each.type == "FansFailed" and each.status == "True" for each in ctx.cluster.row(slot).view.node.status.conditions)

    def rejection(self, ctx, code):
        return Rejection(("node(s) had broken fans",), resolvable=False)

    def subscriptions(self):
        return (Subscription(NODE_EVENTS, Action.UPDATE_CONDITIONS),)
"""


@pytest.mark.feature("SCH-FW-07")
def test_a_condition_of_a_node_wakes_pods(scheduler: Any, tmp_path: Path) -> None:
    (tmp_path / "healthy.py").write_text(HEALTHY)

    async def run() -> None:
        config = {"profiles": [{"schedulerName": "koord-scheduler", "plugins": {"filter": {"enabled": [{"name": "Healthy"}]}}}]}

        async def fans(failed: str) -> None:
            conditions = [{"type": "FansFailed", "status": failed}]
            await live.client.patch(NODES, "n", {"status": {"conditions": conditions}}, subresource="status")

        async with scheduler(config, plugin_paths=(str(tmp_path / "healthy.py"),)) as live:
            await live.node("n")
            await fans("True")
            cluster = live.app.engine.cluster
            while (slot := cluster.slot_of("n")) < 0 or (view := cluster.row(slot).view) is None or not view.node.status.conditions:
                await asyncio.sleep(0.005)
            await live.pod("p", cpu="100m")
            await live.refused("p")
            await fans("False")
            assert await live.bound("p") == "n"

    asyncio.run(run())


@pytest.mark.feature("SCH-FW-07")
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import os\nimport nothing_of_that_name\n", "mine.py:2: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("import json\n\njson.loads('{')\n", "mine.py:3: JSONDecodeError: "),
        ("x = 1\ndef f(:\n    pass\n", "mine.py:2: SyntaxError: invalid syntax"),
        ("assert False\n", "mine.py:1: AssertionError"),
        ("raise SystemExit(0)\n", "mine.py:1: SystemExit: 0"),
        ("import beside\n", "mine.py:1: ZeroDivisionError: division by zero"),
    ],
)
def test_a_plugin_that_fails_at_import_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, wanted: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside.py").write_text("\n\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    for path in (tmp_path, tmp_path / "mine.py"):
        with pytest.raises(PluginError) as caught:
            registry([str(path)])
        assert f"cannot be loaded: {tmp_path}/{wanted}" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.feature("SCH-FW-07")
@pytest.mark.parametrize(
    ("raised", "wanted"),
    [("RuntimeError('no file')", ":8: RuntimeError: no file"), ("SystemExit(0)", ":8: SystemExit: 0"), ("ValueError('no')", "no")],
)
def test_a_plugin_that_cannot_be_made_says_so_in_one_line(tmp_path: Path, raised: str, wanted: str) -> None:
    file = tmp_path / "mine.py"
    code = "from roles.scheduler.framework.interfaces import PostBind\n\n\nclass Mine(PostBind):\n    name = 'Mine'\n\n"
    file.write_text(f"{code}    def __init__(self, args, handle):\n        raise {raised}\n")
    with pytest.raises(PluginError) as caught:
        Engine(config(plugins={"postBind": {"enabled": [{"name": "Mine"}]}}), registry([str(file)]))
    place = str(file) if wanted.startswith(":") else ""
    assert str(caught.value) == f"profile 'koord-scheduler': plugin 'Mine' cannot start: {place}{wanted}"


class Picky(Filter, Reserve, Forget):
    """Refuses pods named `big` when they reserve; its columns and its hint know a wrong way to be called."""

    name = "Picky"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.forgotten: list[str] = []
        self.columns = handle.cluster.register("Picky", Mistaken())

    def filter_row(self, ctx: Any, slot: int) -> int:
        return 1 if ctx.pod.shape.labels.get("size") == "huge" else 0

    def rejection(self, ctx: Any, code: int) -> Rejection:
        return Rejection(("too huge",))

    def reserve(self, ctx: Any, slot: int) -> Status:
        return unschedulable("too big") if ctx.pod.name == "big" else SUCCESS

    def forget(self, pod: Any) -> None:
        self.forgotten.append(pod.name)

    def subscriptions(self) -> tuple[Subscription, ...]:
        return (
            Subscription(NODE, Action.UPDATE_LABELS, lambda pod, event: event.new.labels["open"] != event.old.labels["open"]),
            Subscription(ASSIGNED_POD, Action.DELETE, lambda pod, event: event.old.labels.get("size") == "huge"),
        )


class Mistaken(Columns):
    """Its hooks are not those of `Columns` for pods named `odd`."""

    def pod_added(self, slot: int, pod: Any) -> None:
        if pod.name == "odd":
            raise KeyError(pod.name)


@pytest.mark.feature("SCH-FW-07")
def test_a_small_world_hides_no_mistake_of_a_plugin() -> None:
    world = testing.World({"plugins": {"multiPoint": {"enabled": [{"name": "Picky"}]}}}, plugins=[Picky])
    homeless = world.decide(testing.pod())
    assert world.wakes(homeless, ClusterEvent(NODE, Action.ADD, None, testing.node("n"))), "no plugin refused it: whatever happens may help"
    world.add_nodes(testing.node("n"))
    with pytest.raises(testing.RefusedError, match="too big"):
        world.schedule(testing.pod("big"))
    assert not world.cluster.row(0).pods, "it was taken back"
    assert world.framework.plugins["Picky"].forgotten == ["big"]  # type: ignore[attr-defined]
    refused = world.decide(testing.pod(labels={"size": "huge"}))
    shut, opened = testing.node("n", labels={"open": "no"}), testing.node("n", labels={"open": "yes"})
    assert world.wakes(refused, ClusterEvent(NODE, Action.UPDATE_LABELS, shut, opened))
    assert not world.wakes(refused, ClusterEvent(NODE, Action.UPDATE_LABELS, shut, shut))
    assert world.wakes(refused, ClusterEvent(ASSIGNED_POD, Action.DELETE, testing.pod(labels={"size": "huge"})))
    assert not world.wakes(refused, ClusterEvent(ASSIGNED_POD, Action.DELETE, testing.pod()))
    with pytest.raises(KeyError, match="open"):
        world.wakes(refused, ClusterEvent(NODE, Action.UPDATE_LABELS, testing.node("n"), shut))
    with pytest.raises(KeyError, match="odd"):
        world.schedule(testing.pod("odd"))


@pytest.mark.feature("SCH-FW-07")
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("from roles.scheduler.framework.interfaces import Filter\n", "no class that inherits Filter, Score or another extension point"),
        ("from roles.scheduler.framework.interfaces import Filter\nclass Mine(Filter): pass\n", "Mine has no `name`"),
    ],
)
def test_a_path_without_a_plugin_is_a_mistake(tmp_path: Path, code: str, wanted: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    for path in (tmp_path, tmp_path / "mine.py"):
        with pytest.raises(PluginError) as caught:
            registry([str(path)])
        assert str(caught.value) == f"plugin path {str(path)!r} has no plugin: {wanted}"
    (tmp_path / "other.py").write_text(LISTED)
    assert "Listed" in registry([str(tmp_path)]), "files beside a plugin need not have one"


@pytest.mark.feature("SCH-FW-07")
def test_arguments_of_a_plugin_may_be_lists(tmp_path: Path) -> None:
    (tmp_path / "listed.py").write_text(LISTED)
    plugins = registry([str(tmp_path)])

    def simulation(args: dict[str, Any]) -> Simulation:
        profile = {"plugins": {"filter": {"enabled": [{"name": "Listed"}]}}, "pluginConfig": [{"name": "Listed", "args": args}]}
        return Simulation(Snapshot(nodes=[testing.node("n1")]), config=config(**profile), now=0.0, plugins=plugins)

    args = {"labels": ["a", "b"], "pair": ["x", 1], "kinds": ["k", "k"], "zones": ["z"], "perPool": {"p": ["q"]}, "maybe": ["m"]}
    told = simulation(args).fits(testing.pod()).message
    assert "(('a', 'b'), ('x', 1), {'k'}, frozenset({'z'}), {'p': ('q',)}, ('m',))" in told
    for wrong, place in (
        ({"labels": "a"}, "args.labels: must be a list, got 'a'"),
        ({"labels": {"a": "b"}}, "args.labels: must be a list, got a mapping"),
        ({"labels": ["a", 1]}, "args.labels[1]: must be a string, got 1"),
        ({"kinds": "k"}, "args.kinds: must be a list, got 'k'"),
        ({"zones": 3}, "args.zones: must be a list, got 3"),
    ):
        with pytest.raises(InvalidConfig, match=re.escape(place)):
            simulation(wrong)


@pytest.mark.feature("SCH-FW-06")
def test_what_ifs_are_repeatable_and_keep_books() -> None:
    snapshot = Snapshot(nodes=[testing.node(f"n{i}", cpu="2") for i in range(3)], pods=[testing.pod("old", uid="old", node="n0", cpu="2")])
    pods = [testing.pod(f"p{i}", uid=f"p{i}", priority=i) for i in range(5)]
    first, second = (Simulation(snapshot, config=config(), now=0.0, seed=3) for _ in range(2))
    placements = first.place(pods)
    assert [p.node for p in placements] == [p.node for p in second.place(pods)]
    assert [p.pod for p in placements] == [f"default/p{i}" for i in (4, 3, 2, 1, 0)]
    assert [p.placed for p in placements] == [True, True, True, True, False]
    assert placements[-1].record.verdict == "Unschedulable"
    assert first.fits(testing.pod(priority=9)).victims in {("default/p0",), ("default/p1",), ("default/p2",), ("default/old",)}
    assert first.remove(["old"]) == 1
    assert first.fits(testing.pod()).node == "n0"
    assert first.fits(testing.pod()).node == "n0", "asking changes nothing"
    assert "no profile has the scheduler name" in first.fits(testing.pod(scheduler="other")).message


@pytest.mark.feature("SCH-FW-01")
def test_a_file_as_kube_scheduler_1_36_writes_it_gives_its_profile() -> None:
    """All plugins of its default profile, in its order and with its weights."""
    path = Path(__file__).resolve().parents[2] / "fixtures" / "kube-scheduler-1.36.yaml"
    content = yaml.safe_load(path.read_text())
    written = {entry["name"]: entry["weight"] or 1 for entry in content["profiles"][0]["plugins"]["multiPoint"]["enabled"]}
    engine = Engine(KubeSchedulerConfiguration.model_validate(content), registry())
    layout = engine.frameworks["default-scheduler"].layout
    found = {entry.name for point in Point for entry in layout[point]}
    assert found == written.keys() | {"DefaultPreBind"}
    assert {entry.name: entry.weight for entry in layout[Point.SCORE]}.items() <= written.items()
    plain = Engine(KubeSchedulerConfiguration.model_validate({"profiles": [{"schedulerName": "default-scheduler"}]}), registry())
    for point, entries in plain.frameworks["default-scheduler"].layout.items():
        assert [entry.name for entry in entries] == [entry.name for entry in layout[point] if entry.name != "DefaultPreBind"]
    content["profiles"][0]["plugins"]["placementScore"] = {"enabled": [{"name": "NodeResourcesFit"}]}
    with pytest.raises(PluginError, match="does not implement placementScore"):
        Engine(KubeSchedulerConfiguration.model_validate(content), registry())


@pytest.mark.feature("SCH-FW-01")
def test_profiles_that_would_sort_one_queue_in_two_ways_are_refused() -> None:
    """Also where multiPoint brings the plugin, which the configuration alone does not show."""

    class Mine(PrioritySort):
        name = "Mine"

    plugins = registry()
    plugins.add(Mine, "the test")
    mine = {"multiPoint": {"enabled": [{"name": "Mine"}], "disabled": [{"name": "PrioritySort"}]}}
    alike = [{"schedulerName": "a", "plugins": mine}, {"schedulerName": "b", "plugins": mine}]
    assert len(Engine(KubeSchedulerConfiguration.model_validate({"profiles": alike}), plugins).frameworks) == 2
    mixed = [{"schedulerName": "a"}, *alike[1:]]
    with pytest.raises(PluginError, match="profile 'b': all profiles share one queue, which PrioritySort sorts and Mine cannot"):
        Engine(KubeSchedulerConfiguration.model_validate({"profiles": mixed}), plugins)
