"""`koord simulate`: what it says is what koord's own code does, and it changes nothing (BEY-SIM-01)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api import kinds, names
from koord.apiserver.testing import running_server
from koord.cli import main
from koord.kube.client import Client
from koord.process.errors import ConfigurationError
from roles.scheduler import testing
from roles.scheduler.whatif import unknown
from roles.tools.simulate import answer as answer_module
from roles.tools.simulate.answer import Simulator
from roles.tools.simulate.changes import Changes, apply
from roles.tools.simulate.cluster import Cluster, read
from roles.tools.simulate.moving import moves
from tests.benchmarks import scheduling

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
MIRRORED = {"metadata": {"annotations": {names.ANNOTATION_CONFIG_MIRROR: "x"}}}


def node(name: str, cpu: str = "8", **labels: str) -> Obj:
    amounts = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def metric(name: str, cpu: str) -> Obj:
    used = {"resources": {"cpu": cpu, "memory": "4Gi"}}
    usage = {"nodeUsage": used, "systemUsage": used}
    kind = kinds.NODEMETRICS
    status = {"updateTime": NOW, "nodeMetric": usage, "podsMetric": []}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "status": status}


def pod(name: str, on: str = "", cpu: str = "2", owner: str = "ReplicaSet", **more: Any) -> Obj:
    meta: Obj = {"name": name, "namespace": "default", "uid": f"u-{name}", **more.pop("metadata", {})}
    if owner:
        controller = {"apiVersion": "apps/v1", "kind": owner, "name": more.pop("by", "web"), "uid": "rs", "controller": True}
        meta["ownerReferences"] = [controller]
    if template := more.pop("hash", ""):
        meta["labels"] = {"pod-template-hash": template}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], **({"nodeName": on} if on else {}), **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running" if on else "Pending"}}


def deployment(name: str, replicas: int, cpu: str = "2", **labels: str) -> Obj:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    template = {"metadata": {"labels": {"app": name, **labels}}, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": replicas, "template": template}}


def written(path: Path, *objects: Obj) -> str:
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def simulate(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(main, ["simulate", *arguments, "-o", "json"])
    try:
        return result.exit_code, json.loads(result.output)
    except ValueError:
        return result.exit_code, result.output


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Three nodes of 8 cores with 6 of them requested, and half of that used."""
    nodes = [node(f"n{number}") for number in range(3)]
    pods = [pod(f"web-{number}-{each}", f"n{number}") for number in range(3) for each in range(3)]
    listed = {"apiVersion": "v1", "kind": "List", "items": [*nodes, *pods]}
    return written(tmp_path / "cluster.yaml", listed, *(metric(f"n{number}", "3") for number in range(3)))


@pytest.mark.feature("BEY-SIM-01")
class TestAnswers:
    def test_a_workload_that_fits(self, cluster: str, tmp_path: Path) -> None:
        code, answer = simulate("-s", cluster, "-f", written(tmp_path / "add.yaml", deployment("api", 3)))
        assert (code, answer["fits"]) == (0, True)
        assert sorted(fate["node"] for fate in answer["fates"]) == ["n0", "n1", "n2"]
        (cpu,) = [use for use in answer["uses"] if use["resource"] == "cpu"]
        assert (cpu["requested"], cpu["available"]) == ([18000, 24000], [24000, 24000])

    def test_one_that_does_not_says_why_and_what_would_help(self, cluster: str, tmp_path: Path) -> None:
        add = written(tmp_path / "add.yaml", deployment("api", 9))
        code, answer = simulate("-s", cluster, "-f", add)
        assert (code, answer["fits"]) == (2, False)
        stuck = [fate for fate in answer["fates"] if not fate["node"]]
        assert len(stuck) == 6
        assert "3 Insufficient cpu" in stuck[0]["message"]
        assert answer["helps"] == ["2 more nodes like n0 (--more 2=n0)"]
        assert simulate("-s", cluster, "-f", add, "--more", "2=n0")[0] == 0
        assert simulate("-s", cluster, "-f", add, "--more", "1=n0")[0] == 2

    def test_pods_count_in_the_quota_that_their_namespace_belongs_to(self, cluster: str, tmp_path: Path) -> None:
        key = "quota.scheduling.koordinator.sh/namespaces"
        team: Obj = {"apiVersion": kinds.ELASTICQUOTAS.api_version, "kind": "ElasticQuota"}
        team["metadata"] = {"name": "team", "namespace": "quotas", "annotations": {key: '["default"]'}}
        team["spec"] = {"min": {"cpu": "40"}, "max": {"cpu": "40"}}
        api = written(tmp_path / "api.yaml", deployment("api", 2))
        there = written(tmp_path / "team.yaml", team)
        code, answer = simulate("-s", cluster, "-s", there, "-f", api)
        told = {"quota": "team", "resource": "cpu", "used": [18000, 22000], "max": 40000}
        assert (code, answer["quotas"][:1]) == (0, [told])
        code, answer = simulate("-s", cluster, "-f", api, "-f", there)  # the pods that are there come into it
        assert (code, answer["quotas"][:1]) == (0, [{**told, "used": [0, 22000]}])

    def test_objects_whose_pods_nobody_makes_here_are_named(self, cluster: str, tmp_path: Path) -> None:
        agents = deployment("agents", 1, "100") | {"kind": "DaemonSet"}
        nightly = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "jobs"}}
        nightly["spec"] = {"jobTemplate": {"spec": {"template": agents["spec"]["template"]}}}
        training = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "training"}}
        training["spec"] = {"pytorchReplicaSpecs": {"Worker": {"replicas": 9, "template": agents["spec"]["template"]}}}
        place: Obj = {"apiVersion": kinds.RESERVATIONS.api_version, "kind": "Reservation", "metadata": {"name": "place"}}
        place["spec"] = {"template": agents["spec"]["template"], "owners": [{"object": {"name": "p"}}]}
        add = written(tmp_path / "add.yaml", deployment("api", 1), agents, nightly, training, place)
        code, answer = simulate("-s", cluster, "-f", add)
        named = ["DaemonSet default/agents", "CronJob jobs/nightly", "PyTorchJob training"]
        assert (code, answer["not_simulated"]) == (0, named), answer
        told = CliRunner().invoke(main, ["simulate", "-s", cluster, "-f", add]).output
        assert "Not simulated: it is not known which pods these make\n" + "".join(f"  {name}\n" for name in named) in told

    @pytest.mark.parametrize(
        ("there", "added", "fits"),
        [
            (pod("web", cpu="20", owner=""), pod("web", cpu="12", owner=""), False),
            (pod("web", cpu="20", owner=""), pod("web", cpu="4", owner=""), True),
            (pod("web", "n0", "5", owner=""), pod("web", cpu="6", owner=""), True),
            (pod("web-0", "n0", "4", "StatefulSet"), deployment("web", 2, "4") | {"kind": "StatefulSet"}, True),
            (pod("web-abc-x", "n0", "5", by="web-abc", hash="abc"), deployment("web", 1, "6"), True),
            (pod("other-abc-x", "n0", "5", by="other-abc", hash="abc"), deployment("web", 1, "6"), False),
        ],
        ids=["waits, too large still", "waits, small enough now", "bound", "StatefulSet", "Deployment", "another's"],
    )
    def test_what_is_added_takes_the_place_of_what_has_its_name(self, there: Obj, added: Obj, fits: bool, tmp_path: Path) -> None:
        code, answer = simulate("-s", written(tmp_path / "c.yaml", node("n0"), there), "-f", written(tmp_path / "a.yaml", added))
        assert (code, answer["fits"]) == (0 if fits else 2, fits)
        assert not any(fate["waited"] for fate in answer["fates"])

    @pytest.mark.parametrize(
        ("spec", "succeeded", "count"),
        [
            ({"parallelism": 5}, 0, 5),
            ({"parallelism": 5, "completions": 3}, 0, 3),
            ({"parallelism": 5, "completions": 3}, 2, 1),
            ({"completions": 3}, 0, 1),
            ({"parallelism": 5, "suspend": True}, 0, 0),
        ],
    )
    def test_a_job_has_the_pods_that_its_controller_would_make(self, spec: Obj, succeeded: int, count: int, tmp_path: Path) -> None:
        job = deployment("etl", 1, "1")
        job |= {"apiVersion": "batch/v1", "kind": "Job", "status": {"succeeded": succeeded}}
        job["spec"] = {"template": job["spec"]["template"], **spec}
        _, answer = simulate("-s", written(tmp_path / "c.yaml", node("n0")), "-f", written(tmp_path / "a.yaml", job))
        assert len(answer["fates"]) == count

    def test_new_nodes_have_the_devices_and_the_cpu_topology_of_their_shape(self, tmp_path: Path) -> None:
        """Whatever is asked: they are as two real ones."""
        per_card = {names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100", names.RESOURCE_GPU_MEMORY: "80Gi"}

        def machine(name: str) -> list[Obj]:
            made = node(name, "32")
            for part in ("capacity", "allocatable"):
                made["status"][part] |= {
                    names.RESOURCE_GPU_CORE: "200",
                    names.RESOURCE_GPU_MEMORY_RATIO: "200",
                    names.RESOURCE_GPU_MEMORY: "160Gi",
                }
            cards = [{"type": "gpu", "minor": minor, "id": f"{name}-{minor}", "health": True, "resources": per_card} for minor in (0, 1)]
            topology = json.dumps({"detail": [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(32)]})
            meta = {"name": name, "annotations": {names.ANNOTATION_NRT_CPU_TOPOLOGY: topology}}
            described = [
                (kinds.DEVICES, {"spec": {"devices": cards}}),
                (kinds.NODERESOURCETOPOLOGIES, {"topologyPolicies": ["None"], "zones": []}),
            ]
            return [made, *({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **body} for kind, body in described)]

        def gpu(name: str) -> Obj:
            made = pod(name, owner="")
            asked = {names.RESOURCE_GPU_CORE: "60", names.RESOURCE_GPU_MEMORY_RATIO: "60"}
            made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", **asked}, "limits": {"cpu": "1", **asked}}
            return made

        def bound(name: str) -> Obj:
            spec = {names.ANNOTATION_RESOURCE_SPEC: json.dumps({"requiredCPUBindPolicy": "FullPCPUs"})}
            made = pod(name, owner="", priority=9500, metadata={"labels": {names.LABEL_POD_QOS: "LSR"}, "annotations": spec})
            made["spec"]["containers"][0]["resources"] = {
                "requests": {"cpu": "16", "memory": "1Gi"},
                "limits": {"cpu": "16", "memory": "1Gi"},
            }
            return made

        one, two = written(tmp_path / "1.yaml", *machine("n0")), written(tmp_path / "2.yaml", *machine("n0"), *machine("n1"))
        for asked, count in ((gpu, 5), (gpu, 4), (bound, 4)):
            add = written(tmp_path / "add.yaml", *(asked(f"p{number}") for number in range(count)))
            _, alone = simulate("-s", one, "-f", add)
            more, real = simulate("-s", one, "-f", add, "--more", "1=n0"), simulate("-s", two, "-f", add)
            assert more[0] == real[0] == (0 if count == 4 else 2), (more, real)
            assert alone["helps"][-1].startswith("1 more node like n0" if count == 4 else "2 more nodes like n0")

    def test_a_drained_node_gives_its_pods_to_others_and_loses_those_that_nobody_makes_again(self, cluster: str, tmp_path: Path) -> None:
        more = written(tmp_path / "more.yaml", pod("bare", "n0", "100m", ""), pod("agent", "n0", "100m", "DaemonSet"), node("n3"))
        code, answer = simulate("-s", cluster, "-s", more, "--drain", "n0")
        assert code == 2
        assert answer["lost"] == ["default/bare"]
        assert {fate["left"] for fate in answer["fates"]} == {"n0"}
        assert sorted(fate["pod"] for fate in answer["fates"]) == ["default/web-0-0", "default/web-0-1", "default/web-0-2"]
        assert all(fate["node"] in ("n1", "n2", "n3") for fate in answer["fates"])
        assert answer["free"] == ["n0"]

    @pytest.mark.parametrize("change", [("--drain", "n0"), ("--fewer", "1=n0")])
    @pytest.mark.parametrize(
        "asked",
        [
            {names.ANNOTATION_RESERVATION_AFFINITY: json.dumps({"reservationSelector": {"team": "shop"}})},
            {names.ANNOTATION_GANG_NAME: "g", names.ANNOTATION_GANG_MIN_AVAILABLE: "2"},
        ],
        ids=["reservation", "gang"],
    )
    def test_a_pod_that_leaves_asks_for_what_it_asked_for(self, asked: dict[str, str], change: tuple[str, str], tmp_path: Path) -> None:
        """As a new pod with the same annotations, without what the scheduler gave to it on the old node."""
        given = {names.ANNOTATION_RESERVATION_ALLOCATED: '{"name": "r", "uid": "r"}'}
        nodes = [node("n0", size="small"), node("n1")]
        there = pod("web-0", "n0", metadata={"annotations": {**asked, **given}})
        code, answer = simulate("-s", written(tmp_path / "there.yaml", *nodes, there), *change)
        new = written(tmp_path / "new.yaml", pod("web-0", metadata={"annotations": asked}))
        assert simulate("-s", written(tmp_path / "nodes.yaml", nodes[1]), "-f", new)[0] == 2
        assert (code, [fate["node"] for fate in answer["fates"]]) == (2, [""])

    @pytest.mark.parametrize(
        "its",
        [{"owner": "DaemonSet"}, {"owner": "Node"}, {"owner": "", "metadata": {"annotations": {names.ANNOTATION_CONFIG_MIRROR: "x"}}}],
    )
    def test_what_belongs_to_a_node_stays_on_a_drained_one_and_ends_with_one_that_goes(self, its: dict[str, Any], tmp_path: Path) -> None:
        cluster = written(tmp_path / "c.yaml", node("n0", size="small"), node("n1"), pod("agent", "n0", **its))
        for change, left in ((("--drain", "n0"), 2000), (("--fewer", "1=n0"), 0)):
            code, answer = simulate("-s", cluster, *change)
            (cpu,) = [use for use in answer["uses"] if use["resource"] == "cpu"]
            assert (code, answer["lost"], answer["fates"], cpu["requested"]) == (0, [], [], [2000, left])
        assert "n0" in simulate("-s", cluster, "--drain", "n0")[1]["free"]

    def test_fewer_nodes_go_empty_first(self, cluster: str, tmp_path: Path) -> None:
        empty = written(tmp_path / "more.yaml", node("spare"), metric("spare", "0"))
        assert simulate("-s", cluster, "-s", empty, "--fewer", "1=n0")[1]["fates"] == []
        code, answer = simulate("-s", cluster, "-s", empty, "--fewer", "2=n0")
        assert (code, len(answer["fates"]), len([fate for fate in answer["fates"] if fate["node"]])) == (2, 3, 2)

    def test_what_was_pending_before_is_told_apart(self, cluster: str, tmp_path: Path) -> None:
        code, answer = simulate("-s", cluster, "-s", written(tmp_path / "p.yaml", pod("big", cpu="20")))
        assert (code, answer["fits"]) == (0, True)
        assert [(fate["pod"], fate["node"], fate["waited"]) for fate in answer["fates"]] == [("default/big", "", True)]

    def test_admission_and_overcommit_are_the_managers(self, cluster: str, tmp_path: Path) -> None:
        """A profile makes best-effort pods of new ones; what nodes offer them follows slo-controller-config and usage."""
        config = {"enable": True, "cpuReclaimThresholdPercent": 60, "memoryReclaimThresholdPercent": 65}
        data = {"colocation-config": json.dumps(config)}
        slo = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config", "namespace": "x"}, "data": data}
        kind = kinds.CLUSTERCOLOCATIONPROFILES
        spec = {"selector": {"matchLabels": {"tier": "batch"}}, "qosClass": "BE", "priorityClassName": "koord-batch"}
        profile = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "batch"}, "spec": spec}
        klass = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "koord-batch"}, "value": 5500}
        idle = [node("idle"), metric("idle", "1")]
        add = written(tmp_path / "add.yaml", deployment("etl", 1, tier="batch"), profile)
        code, answer = simulate("-s", cluster, "-s", written(tmp_path / "m.yaml", slo, klass, *idle), "-f", add)
        assert (code, [fate["node"] for fate in answer["fates"]]) == (0, ["idle"])
        (batch,) = [use for use in answer["uses"] if use["resource"] == "kubernetes.io/batch-cpu"]
        assert batch["requested"] == [0, 2000]
        assert batch["available"][1] >= 2000
        code, answer = simulate("-s", cluster, "-s", written(tmp_path / "m.yaml", slo, *idle), "-f", add)
        assert code == 2
        assert "PriorityClass 'koord-batch' does not exist" in answer["refused"]["default/etl-0"]
        code, answer = simulate("-s", cluster, "-s", written(tmp_path / "m.yaml", slo, klass, *idle), "-f", add, "--usage", "6")
        assert (code, [fate["node"] for fate in answer["fates"]]) == (2, [""]), "a busy node offers nothing"

    def test_usage_makes_nodes_hot(self, cluster: str) -> None:
        assert simulate("-s", cluster)[1]["hot"] == []
        assert simulate("-s", cluster, "--usage", "2")[1]["hot"] == [[f"n{number}", 37, 75] for number in range(3)]

    def test_text_and_page_say_the_same(self, cluster: str, tmp_path: Path) -> None:
        arguments = ["simulate", "-s", cluster, "-f", written(tmp_path / "add.yaml", deployment("<api>", 9))]
        text = CliRunner().invoke(main, arguments).output
        page = CliRunner().invoke(main, [*arguments, "-o", "html"]).output
        for said in ("It does not fit: 3 pods get a node, 6 do not.", "2 more nodes like n0"):
            assert said in text
            assert said in page
        assert "<api>" in text
        assert "&lt;api&gt;" in page
        assert "<script" not in page


@pytest.mark.feature("BEY-SIM-01")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Node\nmetadata: {name: n0, labels: x}", "Node n0: metadata.labels must be a mapping of strings"),
        ("kind: Node\nmetadata: {name: n0}\nstatus: [5]", "Node n0: status must be a mapping"),
        (
            "kind: Node\nmetadata: {name: n0}\nstatus: {allocatable: {cpu: many}}",
            "Node n0: status.allocatable: cpu: 'many' is not a quantity",
        ),
        ("kind: Pod\nmetadata: {name: p}\nspec: [null]", "Pod p: spec must be a mapping"),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {cpu: many}}}]}",
            "Pod p: containers: limits: cpu: 'many' is not a quantity",
        ),
        (
            "kind: ConfigMap\nmetadata: {name: slo-controller-config}\ndata: {colocation-config: 5}",
            "ConfigMap slo-controller-config: Expected `str`",
        ),
        ("kind: PriorityClass\nmetadata: {name: c}\nvalue: x", "PriorityClass c: Expected `int`, got `str` - at `$.value`"),
        ("kind: ClusterColocationProfile\nmetadata: {name: c}\nspec: {selector: [x]}", "ClusterColocationProfile c: Expected `object"),
        (
            "kind: NodeMetric\nmetadata: {name: n0}\nstatus: {nodeMetric: {nodeUsage: {resources: {cpu: null}}}}",
            "NodeMetric n0: status.nodeMetric.nodeUsage.resources: cpu: None is not a quantity",
        ),
    ],
)
def test_an_object_that_no_api_server_would_have_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.yaml").write_text(f"apiVersion: v1\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        list(read(["all.yaml"]))
    assert str(caught.value).startswith(f"all.yaml, object 1: {told}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give either --snapshot, or --kubeconfig or --context"),
        (["-s", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["-s", "bad.yaml"], "bad.yaml: while parsing"),
        (["-s", "day.yaml"], "day.yaml, object 1: must be an object with apiVersion and kind"),
        (["-s", "list.yaml"], "list.yaml, object 1: must be an object with apiVersion and kind"),
        (["-s", "good.yaml", "--drain", "n9"], "node 'n9' is not in the snapshot"),
        (["-s", "good.yaml", "--more", "n9"], "--more 'n9' must be NUMBER=NODE, such as 3=node-a"),
        (["-s", "good.yaml", "--more", "²=n0"], "--more '²=n0' must be NUMBER=NODE, such as 3=node-a"),
        (["-s", "good.yaml", "--usage", "nan"], "Invalid value for '--usage': 'nan' is not a number of the range 0<=x<=100."),
        (["-s", "good.yaml", "--fewer", "3=n0"], "there are 1 nodes like 'n0', 3 cannot go"),
        (["-s", "good.yaml", "--feature-gates", "Nope=true"], "Nope"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("{a: [")
    Path("day.yaml").write_text("since: 2024-02-30\n")
    Path("list.yaml").write_text("- 1\n")
    written(Path("good.yaml"), node("n0"))
    result = CliRunner().invoke(main, ["simulate", *arguments])
    assert result.exit_code == (2 if not arguments or {"--feature-gates", "--more", "--usage"} & set(arguments) else 1)
    assert told in result.output
    assert result.output.count("\n") == 1


@pytest.mark.feature("BEY-SIM-01")
def test_a_live_cluster_is_read_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = Client._call

    async def watched(self: Client, method: str, path: str, obj: Any = None, **options: Any) -> Any:
        asked.append(method)
        return await call(self, method, path, obj, **options)

    async def scenario() -> tuple[int, Any]:
        async with running_server(crds=True) as server, server.client() as client:
            for number in range(2):
                made = node(f"n{number}")
                await client.create(kinds.NODES, made)
                await client.patch(kinds.NODES, made["metadata"]["name"], {"spec": {"taints": None}})
            monkeypatch.setattr(Client, "_call", watched)
            add = written(tmp_path / "add.yaml", deployment("api", 2, "6"))
            try:
                return await asyncio.to_thread(simulate, "--kubeconfig", str(server.kubeconfig_path), "-f", add)
            finally:
                monkeypatch.undo()

    code, answer = asyncio.run(scenario())
    assert code == 0, answer
    assert sorted(fate["node"] for fate in answer["fates"]) == ["n0", "n1"]
    assert set(asked) == {"GET"}


@pytest.mark.feature("BEY-SIM-01")
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 9), max_size=8), st.data())
def test_property_the_books_agree_and_no_node_is_given_more_than_it_has(sizes: list[int], asked: list[int], data: st.DataObject) -> None:
    cluster = Cluster()
    for number, size in enumerate(sizes):
        cluster.put(node(f"n{number}", str(size)))
    pods = tuple(pod(f"p{number}", cpu=str(cpu)) for number, cpu in enumerate(asked))
    drain = tuple(data.draw(st.sets(st.sampled_from([f"n{number}" for number in range(len(sizes))]), max_size=2)))
    simulator = Simulator(unknown({"koord-scheduler"}), now=1.0)
    answer = simulator.ask(cluster, apply(cluster, Changes(pods, drain), NOW))
    assert {fate.pod for fate in answer.fates} == {f"default/p{number}" for number in range(len(asked))}
    load = dict.fromkeys((f"n{number}" for number in range(len(sizes))), 0)
    for fate in answer.placed:
        assert fate.node not in drain
        load[fate.node] += asked[int(fate.pod.removeprefix("default/p"))]
    assert all(load[f"n{number}"] <= size for number, size in enumerate(sizes))
    left = [size - load[f"n{number}"] for number, size in enumerate(sizes) if f"n{number}" not in drain]
    for fate in answer.pending:
        assert asked[int(fate.pod.removeprefix("default/p"))] > max(left, default=0), "whoever waits fits nowhere"
    (requested,) = [use.requested for use in answer.uses if use.resource == "cpu"] or [(0, 0)]
    assert requested == (0, 1000 * sum(load.values()))
    for line in answer.helps:
        count, like = line.split("--more ")[1].rstrip(")").split("=")
        again = simulator.ask(cluster, apply(cluster, Changes(pods, drain, ((int(count), like),)), NOW))
        assert again.fits, "what is said to help helps"
    assert orjson.dumps(answer.as_json())


@pytest.mark.feature("BEY-SIM-01")
def test_a_curve_asks_the_same_for_each_hour(tmp_path: Path) -> None:
    config = {"colocation-config": '{"enable": true, "cpuReclaimThresholdPercent": 60}'}
    slo = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config", "namespace": "x"}, "data": config}
    cluster = written(tmp_path / "c.yaml", node("n0"), metric("n0", "2"), slo)
    code, answer = simulate("-s", cluster, "--curve", "0.5,1,3")
    assert code == 0
    hours = answer["hours"]
    assert [(hour["usage"], hour["hot"]) for hour in hours] == [(0.5, []), (1.0, []), (3.0, ["n0"])]
    assert hours[0]["batch"] > hours[1]["batch"] > hours[2]["batch"]
    assert "--curve 'a' must be factors" in simulate("-s", cluster, "--curve", "a")[1]


@pytest.mark.feature("BEY-SIM-01")
@given(
    nodes=st.integers(1, 4), seed=st.integers(0, 2**16),
    asked=st.lists(st.tuples(st.sampled_from(["500m", "3", "9", "20"]), st.integers(0, 2)), min_size=1, max_size=24),
)  # fmt: skip
@settings(max_examples=5 if "HYPOTHESIS_PROFILE" not in os.environ else 1000, deadline=None)
def test_property_what_is_simulated_is_what_the_live_scheduler_does(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, seed: int, asked: list[tuple[str, int]]
) -> None:
    """Every pod, to the node, ties too: the seed is the same."""
    folder = tmp_path_factory.mktemp("cluster")
    pods = [testing.pod(f"p{number}", uid=f"u{number}", cpu=cpu, priority=priority) for number, (cpu, priority) in enumerate(asked)]
    names_ = [f"n{number}" for number in range(nodes)]
    cluster = [{"apiVersion": "v1", "kind": "Node"} | msgspec.to_builtins(testing.node(name, cpu="32", memory="256Gi")) for name in names_]
    kind = kinds.NODEMETRICS
    about = {"apiVersion": kind.api_version, "kind": kind.kind}
    cluster += [about | scheduling.metric(name, number, time.time()) for number, name in enumerate(names_)]
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [scheduling.PROFILE]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    add = written(folder / "add.yaml", *({"apiVersion": "v1", "kind": "Pod"} | msgspec.to_builtins(pod) for pod in pods))
    arguments = ["-s", written(folder / "cluster.yaml", *cluster), "-f", add, "--config", str(folder / "config.yaml"), "--seed", str(seed)]
    _, answer = simulate(*arguments)
    found = {fate["pod"]: fate["node"] for fate in answer["fates"]}
    live = scheduling.run_app(nodes, pods, seed=seed, bound=sum(1 for node in found.values() if node)).app.engine.cluster
    slots = {pod.metadata.name: live.slot_of_pod(pod.metadata.uid) for pod in pods}
    assert found == {f"default/{name}": live.name_of(slot) if slot >= 0 else "" for name, slot in slots.items()}


def used(name: str, pods: dict[str, tuple[str, str]], system: str = "1") -> Obj:
    """A report of a node with what its pods use: cpu in cores and memory in GiB."""
    made = metric(name, system)
    entries = [{"namespace": "default", "name": each, "podUsage": {"resources": {"cpu": cpu, "memory": f"{memory}Gi"}}}
               for each, (cpu, memory) in pods.items()]  # fmt: skip
    total = float(system) + sum(float(cpu) for cpu, _ in pods.values()), 4 + sum(int(memory) for _, memory in pods.values())
    made["status"]["podsMetric"] = entries
    made["status"]["nodeMetric"]["nodeUsage"] = {"resources": {"cpu": str(total[0]), "memory": f"{total[1]}Gi"}}
    return made


@pytest.mark.feature("BEY-SIM-01")
def test_host_applications_are_no_room_for_best_effort_pods(tmp_path: Path) -> None:
    report = used("n0", {"job": ("5", "1")}, "0.5")
    app = {"name": "nginx", "usage": {"resources": {"cpu": "3", "memory": "1Gi"}}, "priority": "koord-prod", "qos": "LS"}
    report["status"]["hostApplicationMetric"] = [app, {**app, "name": "crawler", "qos": "BE"}]
    job = pod("job", "n0", "1", metadata={"labels": {names.LABEL_POD_QOS: "BE"}})
    strategy = json.dumps({"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 65}})
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"resource-threshold-config": strategy}}
    config["metadata"] = {"name": names.CONFIGMAP_SLO_CONTROLLER_CONFIG, "namespace": "koordinator-system"}
    code, answer = simulate("-s", written(tmp_path / "c.yaml", node("n0", "10"), job, report, config))
    assert code == 0
    assert answer["suppressed"] == [{"node": "n0", "allowed": 3000, "wanted": 5000}]


@pytest.mark.feature("BEY-SIM-01")
def test_a_moved_pod_leaves_its_cpus_and_devices_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rounds do not find the old node's allocation on the new one."""
    found: list[Cluster] = []

    def noting(*arguments: Any) -> Any:
        then, moved = moves(*arguments)
        found.append(then)
        return then, moved

    monkeypatch.setattr(answer_module, "moves", noting)
    own = {names.ANNOTATION_RESOURCE_SPEC: '{"preferredCPUBindPolicy": "FullPCPUs"}'}
    given = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset": "0-1"}', names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu": [{"minor": 0}]}'}
    pods = [pod(f"web-{number}", on="n0", cpu="1", priority=9000, metadata={"annotations": own | given}) for number in range(7)]
    report = used("n0", {f"web-{number}": ("1", "1") for number in range(7)})
    cluster = written(tmp_path / "c.yaml", node("n0"), node("n1"), *pods, report, used("n1", {}))
    assert simulate("-s", cluster, "--rounds", "8")[1]["moved"] != []
    there = found[0].all(kinds.PODS).values()
    assert {each["spec"]["nodeName"] for each in there} == {"n0", "n1"}
    for each in there:
        assert each["metadata"]["annotations"] == (own if each["spec"]["nodeName"] == "n1" else own | given)


@pytest.mark.feature("BEY-SIM-01")
def test_the_descheduler_finds_the_pods_of_a_drained_node_where_they_went(tmp_path: Path) -> None:
    cluster = written(tmp_path / "c.yaml", node("n0"), node("n1"), *(pod(f"web-{each}", on="n0") for each in range(3)), metric("n1", "2"))
    off = tmp_path / "off.yaml"
    off.write_text("apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles: []\n")
    answer = simulate("-s", cluster, "--drain", "n0", "--rounds", "1", "--descheduler-config", str(off))[1]
    assert [name for name, _, _ in answer["hot"]] == answer["hot_then"] == ["n1"]


@pytest.mark.feature("BEY-SIM-01")
def test_the_descheduler_moves_what_it_would_move(tmp_path: Path) -> None:
    pods = [pod(f"web-{number}", on="n0", cpu="1", priority=9000) for number in range(5)]
    report = used("n0", {f"web-{number}": ("1", "1") for number in range(5)})
    cluster = written(tmp_path / "c.yaml", node("n0"), node("n1"), *pods, report, used("n1", {}))
    code, answer = simulate("-s", cluster, "--usage", "1.1", "--rounds", "8")
    assert code == 0
    assert answer["hot"] == [["n0", 75, 82]]
    assert [(each["node"], each["to"]) for each in answer["moved"]] == [("n0", "n1")] * 2, "so many that it is cool, and no more"
    assert all(each["reason"].startswith("node is overutilized, node cpu usage(") for each in answer["moved"])
    assert answer["hot_then"] == []
    crowded = written(tmp_path / "full.yaml", node("n0"), node("n1", cpu="2"), *pods, report, metric("n1", "100m"), pod("x", on="n1"))
    _, answer = simulate("-s", crowded, "--usage", "1.1", "--rounds", "8")
    assert (answer["moved"], answer["hot_then"]) == ([], ["n0"]), "nobody leaves for a node that is full"
    assert simulate("-s", cluster, "--usage", "1.1")[1]["moved"] == []
    off = tmp_path / "off.yaml"
    off.write_text("apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles: []\n")
    assert simulate("-s", cluster, "--rounds", "8", "--descheduler-config", str(off))[0] in (0, 1)


@pytest.mark.feature("BEY-SIM-01")
def test_who_is_evicted_because_of_the_change_makes_it_one_that_does_not_fit(tmp_path: Path) -> None:
    data = {"resource-threshold-config": json.dumps({"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 70}})}
    slo = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config", "namespace": "x"}, "data": data}
    jobs = [pod(f"job-{number}", on="n0", metadata={"labels": {"koordinator.sh/qosClass": "BE"}}, priority=5000) for number in range(2)]
    report = used("n0", {"job-0": ("1", "6"), "job-1": ("1", "8")})
    cluster = written(tmp_path / "c.yaml", node("n0"), *jobs, report, slo)
    gates = ("--agent-feature-gates", "BEMemoryEvict=true")
    code, answer = simulate("-s", cluster, *gates)
    assert (code, answer["evicted"], answer["worse"]) == (0, [], [])
    code, answer = simulate("-s", cluster, *gates, "--usage", "1.3")
    assert (code, answer["worse"]) == (2, ["default/job-1"])
    assert answer["evicted"][0]["message"].startswith("the node uses 73 % of its memory (threshold 70 %)")
    assert simulate("-s", cluster, "--usage", "1.3")[0] == 0, "the gate is off as it is shipped"
    full = written(tmp_path / "full.yaml", node("n0"), *jobs, used("n0", {"job-0": ("1", "12"), "job-1": ("1", "12")}), slo)
    code, answer = simulate("-s", full, *gates)
    assert (code, [each["pod"] for each in answer["evicted"]], answer["worse"]) == (0, ["default/job-0"], []), "not because of a change"
    text = CliRunner().invoke(main, ["simulate", "-s", cluster, *gates, "--usage", "1.3"]).output
    assert "koordlet evicts\n  default/job-1  n0  BEMemoryEvict: the node uses 73 %" in text
    assert text.startswith("It does not fit: 0 pods get a node, 1 is evicted.")
