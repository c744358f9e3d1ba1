"""The code of the plugin guide, run as it stands there (BEY-DOC-01)."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from koord.api.kinds import PODMIGRATIONJOBS
from koord.api.names import ANNOTATION_MIGRATION_RELIEF
from koord.api.objects import Node, Pod, convert
from roles.descheduler import registry
from roles.descheduler.config import parse_configuration
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import PluginType
from roles.descheduler.relief import Relief
from roles.descheduler.snapshot import NodeView, node_view
from roles.koordlet.actuation.writes import Hold, Kind, Write, sequence
from roles.koordlet.extensions import Extensions, load
from roles.koordlet.host import parse
from roles.koordlet.options import Options
from roles.koordlet.qos.outcome import Outcome, OutcomeError, Strategy
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import SLO
from roles.koordlet.store import kinds
from roles.koordlet.testing import FakeNode
from roles.manager.webhooks.review import Refusal, Request
from roles.sandbox.scenario import Scenario
from tests.roles.descheduler import support
from tests.roles.descheduler.support import configuration
from tests.roles.koordlet.act.conftest import World, build
from tests.support import patience
from tests.support.docs import ROOT

GUIDE = (ROOT / "docs" / "plugin-guide.md").read_text()
DESCHEDULER = (ROOT / "docs" / "descheduler.md").read_text()
TIER = "kubepods.slice/kubepods-besteffort.slice"


def block(name: str, page: str = GUIDE) -> str:
    """The block of a page that begins with the name of its file."""
    found = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", page, re.DOTALL)
    assert found is not None, f"the guide has lost {name}"
    return found.group(1)


def test_every_block_of_code_is_tried_here() -> None:
    assert set(re.findall(r"```python\n# (\S+)", GUIDE)) == {
        "memory_ceiling.py",
        "tight_memory.py",
        "test_tight_memory.py",
        "memory_stall.py",
        "own_shares.py",
        "owner_label.py",
    }
    assert GUIDE.count("```python") == 6


def test_the_strategy_goes_from_a_host_tree_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "memory_ceiling.py").write_text(block("memory_ceiling.py"))
    extensions = load([str(tmp_path / "memory_ceiling.py")], "MemoryCeiling=true")
    made = [one for one in extensions.strategies if "MemoryCeiling" in str(one)]
    assert len(made) == 1
    machine = build(tmp_path / "machine")
    machine.put("memory.limit_in_bytes", TIER, "-1")
    world = World(machine)
    strategy: Strategy[Any] = made[0](Options(), lambda gate: True)  # type: ignore[operator]
    assert world.decide(strategy).batches == (), "not measured: nothing is changed"
    world.sample("node_memory_usage", 10e9)
    state = world.run(strategy)
    assert machine.get("memory.limit_in_bytes", TIER) == str(32 * 2**30), "half of the node's 64 GiB"
    assert world.decide(strategy, state).records == (), "told once"


def test_the_strategy_that_holds_a_file_passes_its_test(tmp_path: Path) -> None:
    for name in ("tight_memory.py", "test_tight_memory.py"):
        (tmp_path / name).write_text(block(name))
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=patience.seconds(60))
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    (made,) = load([str(tmp_path / "tight_memory.py")], "TightMemory=true").strategies
    machine = build(tmp_path / "machine")
    machine.put("cpu.cfs_quota_us", TIER, "-1")
    world = World(machine)
    strategy: Strategy[Any] = made(Options(), lambda gate: True)
    world.sample("node_memory_usage", 60 * 2.0**30)
    state = world.run(strategy)
    assert machine.get("cpu.cfs_quota_us", TIER) == "320000", "a fifth of 16 CPUs"
    other = Write("cpu.cfs_quota_us", TIER, "900000")
    machine.executor.apply((sequence(other),), rule="Other", now=world.now)
    assert machine.get("cpu.cfs_quota_us", TIER) == "320000", "the file is held"
    world.now += 1
    world.sample("node_memory_usage", 10 * 2.0**30)
    world.run(strategy, state)
    assert machine.get("cpu.cfs_quota_us", TIER) == "900000", "what the other wants"


def test_a_strategy_reads_what_the_kernel_says(tmp_path: Path) -> None:
    space: dict[str, Any] = {}
    exec(compile(block("memory_stall.py"), "memory_stall.py", "exec"), space)
    node, told = FakeNode(tmp_path), tmp_path / "proc/pressure/memory"
    assert space["memory_stall"](node.snapshot()) is None
    told.parent.mkdir()
    told.write_text("some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n")
    assert space["memory_stall"](node.snapshot()) == 12.5


@pytest.mark.parametrize(("v2", "text", "shares"), [(False, "1024", 1024), (True, "39", 998)])
def test_a_strategy_reads_what_a_group_has(tmp_path: Path, v2: bool, text: str, shares: int) -> None:
    space: dict[str, Any] = {}
    exec(compile(block("own_shares.py"), "own_shares.py", "exec"), space)
    node = FakeNode(tmp_path, v2=v2)
    pod = node.pod("a", qos="BE", kube_qos="BestEffort")
    assert space["own_shares"](node.snapshot(), pod.cgroup_dir) is None
    node.put("cpu.shares", pod.cgroup_dir, text)
    assert space["own_shares"](node.snapshot(), pod.cgroup_dir) == shares


@pytest.mark.parametrize(("v2", "none"), [(False, "9223372036854771712"), (True, "max")])
def test_a_sample_and_a_limit_of_a_container(tmp_path: Path, v2: bool, none: str) -> None:
    """What the guide says of containers: how they are measured in a test, and how their memory limit is read."""
    assert "sample(kinds.CONTAINER_MEMORY, 1e9, pod.containers[0].id)" in GUIDE
    node = FakeNode(tmp_path, v2=v2)
    container = node.pod("a", qos="BE", kube_qos="BestEffort").containers[0]
    node.sample(kinds.CONTAINER_MEMORY, 1e9, container.id)
    snapshot = node.snapshot()
    assert snapshot.metrics.last(kinds.CONTAINER_MEMORY, container_id=container.id) == 1e9
    path = snapshot.host.cgroups.file("memory.limit_in_bytes", container.cgroup_dir)
    limits = []
    for text in (none, "4096"):
        node.put("memory.limit_in_bytes", container.cgroup_dir, text)
        limits.append(parse.memory_limit(path, node.snapshot().host.files.read(path)))
    assert limits == [-1, 4096]


class Holding(Strategy[int]):
    """Holds a file from its first decision until the third."""

    name = "Holding"

    def initial(self) -> int:
        return 0

    def decide(self, snapshot: Snapshot, slo: SLO, state: int, now: float) -> Outcome[int]:
        hold = {0: Hold.TAKE, 2: Hold.RELEASE}.get(state)
        writes = [Write("cpu.shares", TIER, "50" if state == 0 else "", hold=hold)] if hold is not None else []
        return Outcome(state + 1, batches=(sequence(*writes),))


class HoldingToo(Holding):
    name = "HoldingToo"


@pytest.mark.parametrize(("v2", "own"), [(False, "1000"), (True, "39")])
def test_a_hold_lasts_until_it_is_released(tmp_path: Path, v2: bool, own: str) -> None:
    """What the guide says of decisions that do not repeat it, and of two that want to hold a file."""
    node, first, second = FakeNode(tmp_path, v2=v2), Holding(Options(), lambda gate: True), HoldingToo(Options(), lambda gate: True)
    node.put("cpu.shares", TIER, own)
    held = "2" if v2 else "50"
    state = node.run(first).state
    assert node.get("cpu.shares", TIER) == held
    node.now += 1
    state = node.run(first, state).state
    assert node.get("cpu.shares", TIER) == held
    state_of_second = node.run(second).state
    assert node.snapshot().holder("cpu.shares", TIER) == "Holding"
    node.run(first, state)
    assert (node.get("cpu.shares", TIER), node.snapshot().holder("cpu.shares", TIER)) == (held, "HoldingToo")
    state_of_second = node.run(second, state_of_second).state
    node.run(second, state_of_second)
    assert (node.get("cpu.shares", TIER), node.snapshot().holder("cpu.shares", TIER)) == (own, "")


class Bounded(Strategy[bool]):
    """Bounds the processes of each container while the state is False, by a file that is not in koordlet's table; `kind` says how."""

    name = "Bounded"
    kind = Kind.FILE

    def initial(self) -> bool:
        return False

    def decide(self, snapshot: Snapshot, slo: SLO, state: bool, now: float) -> Outcome[bool]:
        def write(directory: str) -> Write:
            path = snapshot.host.root.cgroup_path("pids", directory, "pids.max") if self.kind is Kind.FILE else directory
            return Write("pids.max", path, "" if state else "100", kind=self.kind, hold=Hold.RELEASE if state else Hold.TAKE)

        writes = [write(container.cgroup_dir) for pod in snapshot.pods for container in pod.containers]
        return Outcome(not state, batches=(sequence(*writes),))


def test_a_strategy_writes_a_file_without_a_row(tmp_path: Path) -> None:
    node, strategy = FakeNode(tmp_path), Bounded(Options(), lambda gate: True)
    pod = node.pod("a", qos="BE", kube_qos="BestEffort")
    file = Path(node.host.root.cgroup_path("pids", pod.containers[0].cgroup_dir, "pids.max"))
    file.parent.mkdir(parents=True)
    file.write_text("max\n")
    state = node.run(strategy).state
    assert file.read_text().strip() == "100"
    node.now += 1
    node.run(strategy, state)
    assert file.read_text().strip() == "max"
    strategy.kind = Kind.CGROUP
    with pytest.raises(OutcomeError, match=r"pids\.max is not one of the files"):
        node.decide(strategy)


class Settled(Strategy[str]):
    """Says what its settings are."""

    name = "Settled"
    interval = 1.0  # type: ignore[assignment]

    def initial(self) -> str:
        return ""

    def decide(self, snapshot: Any, slo: SLO, state: str, now: float) -> Outcome[str]:
        return Outcome(str(slo.extensions["tightMemory"]))


def test_a_strategy_has_settings(tmp_path: Path) -> None:
    """What the guide says of NodeSLO extensions, and how a test sets them."""
    assert 'extensions.slo_extension("tightMemory", {"high": 90})' in GUIDE
    assert "FakeNode(tmp_path, register=register)" in GUIDE

    def register(extensions: Extensions) -> None:
        extensions.slo_extension("tightMemory", {"high": 90})

    node, strategy = FakeNode(tmp_path, register=register), Settled(Options(), lambda gate: True)
    assert node.decide(strategy).state == "{'high': 90}"
    node.slo = {"extensions": {"tightMemory": {"high": 95}}}
    assert node.decide(strategy).state == "{'high': 95}"


def request(labels: dict[str, str]) -> Request:
    pod = {"metadata": {"name": "p", "labels": labels}}
    return Request("u", "CREATE", "", "pods", "", "default", "p", pod, None, username="alice")


def test_the_webhook_admits_refuses_and_changes() -> None:
    space: dict[str, Any] = {}
    exec(compile(block("owner_label.py"), "owner_label.py", "exec"), space)
    owner = space["OWNER"]
    asyncio.run(space["validate"](request({owner: "team-a"}), None))
    with pytest.raises(Refusal, match="must name the owner"):
        asyncio.run(space["validate"](request({}), None))
    changed = asyncio.run(space["mutate"]({"metadata": {"name": "p"}}, request({}), None))
    assert changed["metadata"]["labels"] == {owner: "alice"}


def test_the_sandbox_takes_plugins() -> None:
    """What the guide says to try them with."""
    assert "koord sandbox up --plugin-path quiet_hours.py --scheduler-config scheduler.yaml" in GUIDE
    assert Scenario().scheduler.plugin_paths == []


def load_plugin(monkeypatch: pytest.MonkeyPatch, name: str, row: Callable[[ModuleType], PluginType]) -> PluginType:
    """A descheduler plugin of a page, imported and registered; `row` makes its registry row."""
    module = ModuleType(f"roles.descheduler.plugins.{name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block(f"{name}.py", DESCHEDULER), f"{name}.py", "exec"), vars(module))
    made = row(module)
    monkeypatch.setitem(registry.PLUGIN_TYPES, made.name, made)
    monkeypatch.setitem(registry.POINTS, made.name, frozenset({made.point}))
    monkeypatch.setitem(registry.ARGS, made.name, made.args)
    return made


def space_of(name: str) -> dict[str, Any]:
    tests: dict[str, Any] = {}
    exec(compile(block(f"test_{name}.py", DESCHEDULER), f"test_{name}.py", "exec"), tests)
    return tests


def test_the_descheduler_plugin_lets_pods_of_old_images_go(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = block("registry.py", DESCHEDULER)
    row = load_plugin(monkeypatch, "old_images", lambda module: eval(registered, {"_row": registry._row, "old_images": module}))
    text = configuration({"deschedule": ["OldImages"]}, {"OldImages": {"images": ["web:1"]}})
    assert parse_configuration(text, "test").profiles[0].plugins.deschedule.enabled[0].name == "OldImages"
    assert row.make(row.args.model_validate({"images": ["web:1"]}), 300.0).args.images == ["web:1"]
    tests = space_of("old_images")
    tests["test_pods_of_an_old_image_leave"]()
    tests["test_a_round_evicts_them"]()
    assert DESCHEDULER.count("```python") == 5, "another block is to be tried here"


def test_a_descheduler_plugin_is_tried_in_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the docs: a dry run lists pods that have no owners."""
    load_plugin(monkeypatch, "old_images", lambda module: registry._row(module.OldImages, module.OldImagesArgs))
    found = re.search(r"```yaml\n(apiVersion: descheduler/v1alpha2\n.*?OldImages.*?)```", DESCHEDULER, re.DOTALL)
    assert found is not None
    pods = [support.pod("old", "n1", image="web:1", owned=False), support.pod("new", "n1", image="web:2", owned=False)]
    outcome = support.after_rounds([support.node("n1"), support.node("n2"), *pods], f"{found.group(1)}\ndryRun: true\n")
    assert outcome.subjects("WouldEvict") == ["old"]
    assert outcome.pods == {"old", "new"}


def test_the_descheduler_plugin_that_minds_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugin(monkeypatch, "namespace_cap", lambda module: registry._row(module.NamespaceCap, module.NamespaceCapArgs))
    space_of("namespace_cap")["test_the_youngest_leave_for_the_node_with_the_fewest"]()
    text = configuration({"balance": ["NamespaceCap"]}, {"NamespaceCap": {"maxPerNode": 2}}, deschedulingInterval="100ms")
    text = text.replace("name: DefaultEvictor", "name: MigrationController")
    full = [support.pod(f"n2-{number}", "n2") for number in range(2)]
    nodes = [support.node(name) for name in ("n1", "n2", "n3")]

    async def rounds() -> None:
        async with support.descheduling([*nodes, *(support.pod(f"n1-{number}", "n1") for number in range(3)), *full], text) as running:

            async def jobs() -> list[dict[str, Any]]:
                return (await running.client.list(PODMIGRATIONJOBS)).items

            (job,) = await support.eventually(jobs)
            assert job["spec"]["podRef"]["name"].startswith("n1-")
            assert set(Relief.read(job["metadata"]["annotations"][ANNOTATION_MIGRATION_RELIEF]).nodes) == {"n3"}  # type: ignore[union-attr]

            async def left() -> bool:
                return len(await running.pods()) == 4

            await support.eventually(left)

    asyncio.run(rounds())


@pytest.mark.parametrize(("done", "asked"), [(True, ["a"]), (False, ["a", "a"])])
def test_effects_are_done_or_not(done: bool, asked: list[str]) -> None:
    class Twice:
        name = "Twice"

        def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
            yield PAUSE
            if not (yield Evict(nodes[0].pods[0].pod, "once")):
                yield Evict(nodes[0].pods[0].pod, "again")

    pod = convert({**support.pod("a", "n1"), "metadata": {"name": "a", "uid": "a"}}, Pod)
    node = node_view(convert(support.node("n1"), Node), [pod], None, now=0.0)
    assert [effect.pod.metadata.name for effect in support.effects(Twice(), [node], done=done)] == asked
    assert len(node.pods) == (0 if done else 1)
