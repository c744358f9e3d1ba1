"""`koord replay` of the manager's and the descheduler's decisions (BEY-REPLAY-01)."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import orjson
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.objects import Node, NodeMetric, Pod, convert
from koord.api.times import format_time
from koord.cli import main
from koord.config.slo import parse
from koord.decisions.deltas import leaf_applied, leaf_changes
from roles.descheduler.build import Options, rounds_with
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import Outcome
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, NoController
from roles.descheduler.journal import DeschedulerFile, Heard, HeardActing, Round, seen
from roles.descheduler.snapshot import node_view
from roles.manager.journal import Journal, ManagerFile
from roles.manager.noderesource.inputs import NodePods, pod_input
from roles.manager.noderesource.model import Inputs
from roles.manager.noderesource.plan import PLUGIN_NAMES, decide
from roles.manager.noderesource.reports import ReportKeeper
from tests.roles.descheduler.test_gpuroom import holder, machine, waiting

pytestmark = pytest.mark.feature("BEY-REPLAY-01")

START = 1_767_261_600.0
SLO = {"enable": True, "cpuReclaimThresholdPercent": 60}


def replay(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def told(log: Path, *arguments: Any) -> dict[str, Any]:
    done = replay(log, "-o", "json", *arguments)
    assert done.exit_code in (0, 2), done.output
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def slo(path: Path, **colocation: Any) -> Path:
    data = {"colocation-config": orjson.dumps({**SLO, **colocation}).decode()}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}, "data": data}))
    return path


def node(number: int, **more: str) -> Node:
    shape = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    body = {"metadata": {"name": f"n{number}", "uid": f"node-{number}", "labels": {"kubernetes.io/hostname": f"n{number}"}},
            "status": {"capacity": shape | more, "allocatable": shape | more}}  # fmt: skip
    return convert(body, Node)


def pod(number: int, where: int, priority: int = 9500, **meta: Any) -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number % 7}", "uid": f"set-{number % 7}", "controller": True}
    body = {
        "metadata": {"name": f"web-{number}", "namespace": "shop", "uid": f"u{number}", "ownerReferences": [owner], **meta},
        "spec": {"nodeName": f"n{where}", "priority": priority,
                 "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "3Gi"}}}]},
        "status": {"phase": "Running"},
    }  # fmt: skip
    return convert(body, Pod)


def metric(number: int, pods: list[Pod], now: float, load: list[int]) -> NodeMetric:
    use = [{"namespace": each.metadata.namespace, "name": each.metadata.name, "priority": "koord-prod", "qos": "LS",
            "podUsage": {"resources": {"cpu": f"{cpu}m", "memory": f"{700_000 + 37 * cpu}Ki"}}}
           for each, cpu in zip(pods, load, strict=True)]  # fmt: skip
    total = {"cpu": f"{sum(load) + 900}m", "memory": f"{2_000_000 + 37 * sum(load)}Ki"}
    spread = {"duration": "5m0s", "usage": {name: {"resources": total} for name in ("avg", "p50", "p90", "p95", "p99")}}
    body = {
        "nodeUsage": {"resources": total},
        "systemUsage": {"resources": {"cpu": "900m", "memory": "2000000Ki"}},
        "aggregatedNodeUsages": [spread],
    }
    return convert(
        {"metadata": {"name": f"n{number}"}, "status": {"updateTime": format_time(now), "nodeMetric": body, "podsMetric": use}}, NodeMetric
    )  # fmt: skip


# ---------------------------------------------------------------- the manager


def managed(folder: Path, nodes: int, pods: int, moments: int, seed: int = 0, *, zones: bool = False, **limits: Any) -> int:
    """Decisions of a manager: pods come and go, use changes, the node shows what was decided."""
    chance, count = random.Random(seed), 0
    config = parse({"colocation-config": orjson.dumps(SLO).decode()}, previous=None).config
    file = ManagerFile(str(folder / "manager.replay.jsonl"), **{"max_bytes": 2**26, "keep": 99, "compress": True} | limits)
    journal, keeper = Journal(file, PLUGIN_NAMES), ReportKeeper()
    there = {number: [pod(number * 1000 + n, number, chance.choice((9500, 5500))) for n in range(pods)] for number in range(nodes)}
    standing = {number: node(number) for number in range(nodes)}
    known = {number: NodePods(lambda: ()).totals for number in range(nodes)}
    last: dict[int, float] = {}
    for moment in range(moments):
        now = START + 60 * moment + chance.random()
        for number, mine in there.items():
            if moment == 0 or chance.random() < 0.1:
                mine[chance.randrange(pods)] = pod(number * 1000 + pods + moment, number)
                known[number] = NodePods.of([made for each in mine if (made := pod_input(each))]).totals
            report = keeper(metric(number, mine, now - (400 if chance.random() < 0.05 else 5), [chance.randrange(2000) for _ in mine]))
            inputs = Inputs(
                node=standing[number], strategy=config.colocation_for(standing[number]), now=now, metric=report,
                pods=NodePods(lambda mine=mine: [made for each in mine if (made := pod_input(each))], known[number]),  # type: ignore[misc]
            )  # fmt: skip
            plan = decide(inputs, cluster_enabled=True, plugins=PLUGIN_NAMES, last_write=last.get(number))
            journal.decided(inputs, plan, True, last.get(number))
            count += 1
            if plan.body:
                last[number] = now
                standing[number] = node(number, **{name: str(amount) for name, amount in plan.resources.items()})
    file.close()
    return count


@given(
    nodes=st.integers(1, 3),
    pods=st.integers(1, 12),
    moments=st.integers(1, 12),
    seed=st.integers(0, 999),
    size=st.sampled_from([3000, 2**26]),
)
@settings(max_examples=8, deadline=None)
def test_property_what_nodes_offer_is_calculated_again(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, pods: int, moments: int, seed: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    count = managed(folder, nodes, pods, moments, seed, max_bytes=size)
    found = told(folder)
    assert (found["role"], found["decisions"], found["same"]) == ("manager", count, count)
    for file in folder.glob("*.gz"):
        assert replay(file, "--role", "manager").exit_code == 0, "each file can be read without the others"


def test_a_decision_takes_less_than_three_hundred_bytes(tmp_path: Path) -> None:
    """Of nodes with thirty pods that report each minute."""
    count = managed(tmp_path, 5, 30, 40)
    assert len(gzip.compress((tmp_path / "manager.replay.jsonl").read_bytes(), 6)) / count < 300


def test_another_slo_config_is_told_by_the_rule_that_makes_the_difference(tmp_path: Path) -> None:
    managed(tmp_path, 2, 5, 6)
    found = told(tmp_path, "--with", slo(tmp_path / "slo.yaml", cpuReclaimThresholdPercent=50))
    assert (found["same"], found["repeated"]) == (0, 12)
    (group,) = [group for group in found["groups"] if group["what"].startswith("less")]
    assert (group["what"], group["cause"]) == ("less kubernetes.io/batch-cpu", "BatchResource, cpuReclaimThresholdPercent")
    one = group["differences"][0]
    assert one["numbers"].startswith("cpuReclaimThresholdPercent 60 -> 50; cpu.margin 25600 -> 32000")
    assert int(one["then"]) - int(one["now"]) == 6400
    unchanged = told(tmp_path, "--with", slo(tmp_path / "slo.yaml"))
    dated = slo(tmp_path / "slo.yaml")
    dated.write_text(dated.read_text().replace("metadata:", "metadata:\n  annotations: {checked: 2026-02-30}"))
    assert told(tmp_path, "--with", dated)["same"] == unchanged["same"], "what looks like a date is a text, as for Kubernetes"
    assert unchanged["same"] == unchanged["decisions"]
    off = told(tmp_path, "--with", slo(tmp_path / "slo.yaml", enable=False))
    assert {group["cause"] for group in off["groups"]} == {"BatchResource, enable"}


def test_the_manager_of_another_version_is_asked(tmp_path: Path) -> None:
    count = managed(tmp_path, 1, 2, 3)
    done = replay(tmp_path, "-o", "decisions")
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == count
    assert all(line["same"] and line["node"] == line["then"] for line in lines)


# ---------------------------------------------------------------- the descheduler

PROFILE = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
deschedulingInterval: 60s
maxNoOfPodsToEvictPerNode: {most}
profiles:
- name: default
  pluginConfig:
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      lowThresholds: {{cpu: 30}}
      highThresholds: {{cpu: {high}}}
      anomalyCondition: {{consecutiveAbnormalities: 1}}
      detectorCacheTimeout: 5m
      evictableNamespaces: {{exclude: []}}
  plugins:
    evict: {{disabled: [{{name: "*"}}], enabled: [{{name: DefaultEvictor}}]}}
    filter: {{disabled: [{{name: "*"}}], enabled: [{{name: DefaultEvictor}}]}}
    deschedule: {{disabled: [{{name: "*"}}]}}
    balance: {{disabled: [{{name: "*"}}], enabled: [{{name: LowNodeLoad}}]}}
"""


class Evictor(NoController):
    """Refuses some pods, and each third eviction."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, 0

    def filter(self, pod: Pod) -> str:
        return "it is protected" if pod.metadata.uid.endswith("3") else ""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        self.asked += 1
        return EvictResult(self.asked % 3 != 0, f"answer {self.asked}")


class Acting:
    """Through the evictor."""

    def may_write(self) -> bool:
        return True

    async def evict(self, evictor: Evictor, pod: Pod, options: EvictOptions) -> EvictResult:
        return await evictor.evict(pod, options)

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        return EvictResult(True)

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        return EvictResult(True)

    async def where(self, pod: Pod) -> str:
        return ""

    def waited(self, seconds: float) -> None:
        pass

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
        return False


def moved(folder: Path, nodes: int, pods: int, moments: int, seed: int = 0, **limits: Any) -> list[Outcome]:
    """Rounds of a descheduler on nodes of which some get hot; pods that leave come back on another node."""
    chance, outcomes = random.Random(seed), []
    options = Options(parse_configuration(PROFILE.format(high=50, most=2), "test"), "test", {})
    file = DeschedulerFile(str(folder / "descheduler.replay.jsonl"), **{"max_bytes": 2**26, "keep": 99, "compress": True} | limits)
    file.options = options
    rounds = rounds_with(options, lambda profile, name, args: Evictor(name))
    standing = [node(number) for number in range(nodes)]
    there = {number: [pod(number * 1000 + n, number) for n in range(pods)] for number in range(nodes)}
    acting: Any = Acting()

    async def play() -> None:
        for moment in range(moments):
            now = START + 60 * moment + chance.random()
            views = []
            for number, mine in there.items():
                load = [chance.randrange(100, 4000 if number % 2 else 300) for _ in mine]
                views.append(node_view(standing[number], mine, metric(number, mine, now - 5, load), now=now))
            heard, snapshot = Heard(), await seen(views)
            outcome = await rounds.run(views, now, HeardActing(acting, heard), {}, (), heard)
            file.put(Round(now, snapshot, (), {}, heard.answers, outcome.records))
            outcomes.append(outcome)
            for view in views:
                left = {each.metadata.uid for each in view.everyone}
                mine = there[int(view.name[1:])]
                for each in [each for each in mine if each.metadata.uid not in left]:
                    mine.remove(each)
                    there[(int(view.name[1:]) + 1) % nodes].append(
                        pod(int(each.metadata.uid[1:]) + 100_000, (int(view.name[1:]) + 1) % nodes)
                    )
        file.close()

    asyncio.run(play())
    return outcomes


@given(
    nodes=st.integers(2, 5),
    pods=st.integers(1, 30),
    moments=st.integers(1, 8),
    seed=st.integers(0, 999),
    size=st.sampled_from([3000, 2**26]),
)
@settings(max_examples=8, deadline=None)
def test_property_rounds_are_made_again(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, pods: int, moments: int, seed: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    count = sum(len(outcome.records) for outcome in moved(folder, nodes, pods, moments, seed, max_bytes=size))
    found = told(folder)
    assert (found["role"], found["decisions"], found["same"]) == ("descheduler", count, count), found["groups"]


def test_other_thresholds_are_told_with_what_they_would_have_moved(tmp_path: Path) -> None:
    outcomes = moved(tmp_path, 4, 30, 6)
    evicted = sum(outcome.evicted for outcome in outcomes)
    assert evicted > 3
    assert any(record.message.startswith("it is protected") or "answer 3" in record.message for each in outcomes for record in each.records)
    config = tmp_path / "new.yaml"
    config.write_text(PROFILE.format(high=95, most=2))
    found = told(tmp_path, "--with", config)
    assert found["repeated"] == found["decisions"] > found["same"]
    groups = {group["what"]: group for group in found["groups"]}
    lines = [orjson.loads(line) for line in replay(tmp_path, "--with", config, "-o", "decisions").stdout.splitlines()]
    assert sum(line["then"] == "Evicted" for line in lines) == evicted
    left = [line for line in lines if (line["then"], line["node"]) == ("Evicted", "nothing")]
    assert groups["pods: Evicted -> nothing"]["count"] == len(left) > evicted / 2
    assert groups["pods: Evicted -> nothing"]["cause"] == "LowNodeLoad"
    nodes = groups["nodes: hot -> prodLow"]["differences"][0]
    assert nodes["numbers"].startswith("hot: cpu ")
    config.write_text(PROFILE.format(high=50, most=2))
    unchanged = told(tmp_path, "--with", config)
    assert unchanged["same"] == unchanged["decisions"]
    assert len(gzip.compress((tmp_path / "descheduler.replay.jsonl").read_bytes(), 6)) / found["decisions"] < 300


@pytest.mark.parametrize("would", [True, False])
def test_room_that_was_made_for_a_waiting_pod_is_made_again(tmp_path: Path, would: bool) -> None:
    """With the pods that waited then, and what the scheduler said of them."""
    config = PROFILE.format(high=50, most=2).replace("LowNodeLoad", "FragmentationAware")
    args = yaml.safe_load(config)
    args["profiles"][0]["pluginConfig"] = [{"name": "FragmentationAware", "args": {"gpus": {}}}]
    options = Options(parse_configuration(yaml.safe_dump(args), "test"), "test", {})
    file = DeschedulerFile(str(tmp_path / "descheduler.replay.jsonl"), max_bytes=2**26, keep=9, compress=True)
    file.options = options

    def known(obj: dict[str, Any]) -> Pod:
        obj["metadata"] |= {"uid": obj["metadata"]["name"], "creationTimestamp": format_time(START - 600)}
        return convert(obj, Pod)

    large = known(waiting(8))
    machines = [convert(machine(name, 8), Node) for name in ("n0", "n1")]
    small = [known(holder("small", "n0", [3]))]
    taken = [known(holder(f"p{minor}", "n1", [minor])) for minor in range(4)]

    class Asked(Acting):
        def waited(self, seconds: float) -> None:
            pass

        async def rehearse(self, pod: Pod, leaving: Sequence[Pod]) -> bool:
            return would

    async def play() -> Outcome:
        rounds = rounds_with(options, lambda profile, name, args: Evictor(name))
        views = [node_view(each, pods, None, now=START) for each, pods in zip(machines, (small, taken), strict=True)]
        heard, snapshot, acting = Heard(), await seen(views), cast(Any, Asked())
        outcome = await rounds.run(views, START, HeardActing(acting, heard), {}, (large,), heard)
        file.put(Round(START, snapshot, (large,), {}, heard.answers, outcome.records))
        file.close()
        return outcome

    outcome = asyncio.run(play())
    assert outcome.evicted == would
    found = told(tmp_path)
    assert (found["decisions"], found["same"]) == (len(outcome.records), len(outcome.records)), found["groups"]


# ---------------------------------------------------------------- what they share


def test_a_folder_holds_the_decisions_of_many_roles(tmp_path: Path) -> None:
    managed(tmp_path, 1, 2, 3)
    moved(tmp_path, 2, 3, 2)
    done = replay(tmp_path)
    assert done.exit_code == 0
    assert done.stdout.startswith("manager: 3 of 3 decisions are as they were (100 %).\n\ndescheduler: ")
    assert [each["role"] for each in told(tmp_path)["roles"]] == ["manager", "descheduler"]
    assert told(tmp_path, "--role", "manager")["decisions"] == 3
    assert told(tmp_path, "--with", slo(tmp_path / "slo.yaml"))["role"] == "manager"


@pytest.mark.parametrize("role", ["manager", "descheduler"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        b'["head",{}]\n',
        b'["head",{"format":99,"role":"x"}]\n',
        b'["~","n",7,{}]\n',
        b'["~","m",1,[0]]\n',
        b"\x00\n",
        b'["d",1]\n',
    ],
)
def test_what_is_no_log_is_one_line(role: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{role}.replay.jsonl").write_bytes(content)
    done = replay(tmp_path)
    assert done.exit_code == 1
    assert " replay: error: " in done.output
    assert done.output.count("\n") == 1


AMOUNTS = st.one_of(
    st.integers(0, 10**12).map(lambda n: f"{n}Ki"),
    st.integers(0, 10**6).map(lambda n: f"{n}m"),
    st.text(max_size=4),
    st.integers(),
    st.booleans(),
)
DATA = st.recursive(
    AMOUNTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)


@given(old=DATA, new=DATA)
@settings(max_examples=40)
def test_property_the_leaves_of_a_report_make_the_new_one_of_the_old_one(old: Any, new: Any) -> None:
    for first, second in ((old, new), (new, new), (orjson.loads(orjson.dumps(new, option=orjson.OPT_PASSTHROUGH_DATETIME)), old)):
        changes = leaf_changes(first, second)
        if changes is not None:
            assert leaf_applied(first, msgspec.json.decode(msgspec.json.encode(changes))) == second
