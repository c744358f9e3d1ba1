"""`koord replay`: the decisions of a scheduler's log, made again (BEY-REPLAY-01)."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.objects import Node, Pod, convert
from koord.cli import main
from koord.decisions.deltas import applied, difference
from roles.sandbox.world import runner
from roles.sandbox.world.spec import Spec
from roles.scheduler import testing
from roles.scheduler.journal.journal import JournalFile
from roles.scheduler.journal.lines import Beginning, Change
from roles.tools.replay.cli import command
from tests.benchmarks.scheduling import run_app
from tests.support.fulldisk import full_disk
from tests.support.processes import KOORD

pytestmark = pytest.mark.feature("BEY-REPLAY-01")

NEW = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: koord-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
"""


def replay(*arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def told(log: Path, *arguments: Any) -> dict[str, Any]:
    done = replay(log, "-o", "json", *arguments)
    assert done.exit_code in (0, 2), done.output
    found: dict[str, Any] = orjson.loads(done.stdout)
    assert (found["same"] == found["decisions"]) == (done.exit_code == 0)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of twenty pods on three nodes."""
    folder = tmp_path_factory.mktemp("log")
    run_app(3, [testing.pod(f"p{number}", uid=f"u{number}", cpu="1") for number in range(20)], log=folder)
    return folder


def test_the_same_configuration_decides_the_same(log: Path) -> None:
    done = replay(log)
    assert (done.exit_code, done.stdout) == (0, "20 of 20 decisions are as they were (100 %).\n")
    assert told(log)["alike"] == 20


def test_other_decisions_are_told_by_the_plugin_that_makes_them_with_its_numbers(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "new.yaml"
    config.write_text(NEW)
    found = told(log, "--with", config)
    assert found["repeated"] == 20 > found["same"]
    first = found["groups"][0]
    assert (first["what"], first["cause"]) == ("another node", "NodeResourcesFit")
    one = first["differences"][0]
    assert f"gives {one['now']}" in one["numbers"]
    assert "; then " in one["numbers"]
    assert sum(group["count"] for group in found["groups"]) == 20 - found["same"]
    done = replay(log, "--with", config, "--diff")
    assert done.exit_code == 2
    assert done.stdout.count(" -> ") == 20 - found["same"]


def test_a_filter_that_is_new_says_whom_it_keeps_off(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "new.yaml"
    config.write_text(NEW.replace("MostAllocated", "LeastAllocated") + "  - name: NodeAffinity\n    args: {addedAffinity: "
        "{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: new, operator: Exists}]}]}}}\n"
    )  # fmt: skip
    found = told(log, "--with", config)
    assert found["same"] == 0
    assert [(group["what"], group["cause"], group["count"]) for group in found["groups"]] == [("no node any more", "NodeAffinity", 20)]


def test_another_version_is_asked_for_its_decisions(log: Path) -> None:
    found = told(log, "--with", KOORD)
    assert (found["decisions"], found["same"]) == (20, 20)
    assert replay(log, "--with", "0.0.1-none").exit_code == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n", b'["*",1,"Pod",0,{},0]\n["~",0,"Pod",7,{}]\n', b"\x00\xff\n", b'["head",{"format":99}]\n["s"]\n', b'["head"]\n'],
)
def test_what_is_no_journal_is_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.replay.jsonl"
    file.write_bytes(content)
    done = CliRunner().invoke(main, ["replay", str(file)])
    assert done.exit_code == 1
    assert " replay: error: " in done.output
    assert done.output.count("\n") == 1


def test_a_torn_last_line_is_no_mistake(log: Path, tmp_path: Path) -> None:
    file = next(log.glob("*.replay.jsonl"))
    whole = file.read_bytes()
    torn = tmp_path / "scheduler.replay.jsonl"
    torn.write_bytes(whole[: whole.rindex(b'["d"') + 20])
    assert told(torn)["decisions"] == 19
    packed = tmp_path / "scheduler.replay.jsonl.1.gz"
    packed.write_bytes(gzip.compress(whole))
    assert told(packed)["decisions"] == 20


def test_a_disk_that_was_full_for_a_moment_leaves_what_was_written_before_and_begins_anew(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.replay.jsonl"
    shutil.copy(next(log.glob("*.replay.jsonl")), path)
    head = orjson.loads(path.read_bytes().partition(b"\n")[0])[1]
    file, pod = JournalFile(str(path)), testing.pod("late")
    with full_disk(path):
        file.put(Change(1.0, "Pod", None, pod))
    file.put(Change(2.0, "Pod", pod, testing.pod("late", labels={"a": "b"})))  # makes no sense without the one before
    assert told(path)["decisions"] == 20
    file.put(Beginning(head, (("Pod", pod),)))
    assert path.read_bytes().startswith(b'["head",')
    assert told(tmp_path)["decisions"] == 20


@given(
    nodes=st.integers(1, 4),
    pods=st.lists(st.tuples(st.sampled_from(["100m", "500m", "1", "2"]), st.integers(0, 3)), min_size=1, max_size=24),
)
@settings(deadline=None, max_examples=4)
def test_property_every_decision_is_made_again(tmp_path_factory: pytest.TempPathFactory, nodes: int, pods: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("log")
    made = [testing.pod(f"p{n}", uid=f"u{n}", cpu=cpu, priority=priority, labels={"n": str(n)}) for n, (cpu, priority) in enumerate(pods)]
    run_app(nodes, made, log=folder)
    found = told(folder)
    assert found["decisions"] >= len(pods)
    assert found["alike"] == found["same"] == found["decisions"]
    shutil.rmtree(folder)


def journals(folder: Path, **limits: Any) -> Callable[[], None]:
    """Every scheduler, manager and descheduler of a world keeps a replay log."""

    def mutate() -> None:
        from roles.descheduler.app import App as Descheduler
        from roles.descheduler.journal import DeschedulerFile
        from roles.manager.app import App as Manager
        from roles.manager.journal import ManagerFile
        from roles.scheduler.app import App
        from roles.scheduler.journal.journal import FileJournal, JournalFile

        made, count = App.__init__, iter(range(1000))

        def keep(role: Any, file: Any) -> None:
            inner = role.__init__

            def init(self: Any, *args: Any, **more: Any) -> None:
                path = folder / f"{os.getpid()}-{next(count)}" / f"{file.role}.replay.jsonl"
                inner(self, *args, replay_log=file(str(path), **limits), **more)

            role.__init__ = init

        keep(Manager, ManagerFile)
        keep(Descheduler, DeschedulerFile)

        def init(self: App, *args: Any, **more: Any) -> None:
            path = folder / f"{os.getpid()}-{next(count)}" / "scheduler.replay.jsonl"
            made(self, *args, journal=FileJournal(JournalFile(str(path), **limits)), **more)

        App.__init__ = init  # type: ignore[method-assign]

    return mutate


def replayed(folder: Path, seed: int, **spec: Any) -> Counter[str]:
    """Live a world with crashes, lost answers, gangs, quotas and preemption, and decide all of it again. How many decisions, by role."""
    result = runner.run(Spec(seed=seed, **spec), mutate=journals(folder, max_bytes=random.Random(seed).choice((60_000, 2**26)), keep=99))
    assert not result.failure
    decisions: Counter[str] = Counter()
    for log in folder.iterdir():
        found = told(log)
        assert found["alike"] == found["same"] == found["decisions"], (seed, found["groups"])
        decisions[found["role"]] += found["decisions"]
    return decisions


def test_a_history_with_faults_is_decided_again_to_the_last_decision(tmp_path: Path) -> None:
    decisions = replayed(tmp_path, 2, minutes=0.8, calm=15.0, hostile=0, koordlets=0, managers=1, deschedulers=1)
    assert decisions["scheduler"] > 10
    assert decisions["manager"] > 5
    assert decisions["descheduler"] > 5


@pytest.mark.skipif("HYPOTHESIS_PROFILE" not in os.environ, reason="the long run: make fuzz")
def test_property_of_histories(tmp_path: Path) -> None:
    for seed in range(100):
        replayed(tmp_path / str(seed), seed)


# ---------------------------------------------------------------- objects as differences

TEXT = st.sampled_from(["", "a", "b"])
MAPPING = st.dictionaries(TEXT, TEXT)
BODIES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": TEXT, "labels": MAPPING, "annotations": MAPPING}),
        "spec": st.fixed_dictionaries(
            {}, optional={
                "nodeName": TEXT, "priority": st.integers(0, 2), "nodeSelector": st.dictionaries(TEXT, TEXT),
                "containers": st.lists(st.fixed_dictionaries({"name": TEXT}), max_size=2),
                "affinity": st.just({"nodeAffinity": {}}), "tolerations": st.lists(st.fixed_dictionaries({"key": TEXT}), max_size=2),
            },
        ),
    }
)  # fmt: skip


@given(old=BODIES, new=BODIES)
@settings(max_examples=60)
def test_property_a_difference_makes_the_new_object_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = convert(old, Pod), convert(new, Pod)
    change = orjson.loads(msgspec.json.encode(difference(before, after)))
    base = orjson.loads(msgspec.json.encode(before))
    assert convert(applied(base, change), Pod) == after
    assert difference(convert({}, Node), convert({}, Node)) == {}
