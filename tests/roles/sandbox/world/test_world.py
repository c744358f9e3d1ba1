"""Whole worlds: the same seed is the same history, and a planted defect is betrayed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from roles.sandbox.cli import command
from roles.sandbox.world import hunting, runner
from roles.sandbox.world.faults import KINDS
from roles.sandbox.world.invariants.registry import INVARIANTS
from roles.sandbox.world.mutants import planting
from roles.sandbox.world.mutants.planting import USUAL, Mutant
from roles.sandbox.world.mutants.registry import MUTANTS
from roles.sandbox.world.runner import Result
from tests.support import patience

ROOT = Path(__file__).resolve().parents[4]
SMALL = ["--nodes=2", "--pods=8", "--minutes=0.5", "--faults=4"]
_PLANT = """
import os
from roles.sandbox.world import runner
from roles.sandbox.world.mutants.registry import MUTANTS
runner.prepare()
for mutant in MUTANTS.values():
    pid = os.fork()
    if pid == 0:
        try:
            mutant.plant()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        print(mutant.name)
"""


def python(*arguments: str, hash_seed: str = "0", timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """A process of its own: worlds are forked, and a test process has threads."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    line = [sys.executable, *arguments]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def world(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "koord.cli", "sandbox", "world", *arguments, **options)


@pytest.mark.slow
def test_a_seed_tells_the_same_history_byte_for_byte_and_seeds_differ() -> None:
    first, again, other = world("--seed=3", *SMALL, hash_seed="1"), world("--seed=3", *SMALL, hash_seed="2"), world("--seed=4", *SMALL)
    assert [first.returncode, again.returncode, other.returncode] == [0, 0, 0], first.stdout[-2000:] + other.stdout[-2000:]
    assert first.stdout == again.stdout
    assert first.stdout.splitlines()[-1] != other.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "history",
    [
        "--seed=80000 --koordlets=1",  # a what-if took an allocated claim away
        "--seed=82828",  # a new leader sat out the pause of its watch of nodes
        "--seed=83735",  # a pod was asked to leave on nodes of 40 s ago
        "--seed=84377",  # a new leader did not know what its predecessor had given to claims
        "--seed=103634",  # a job that could not be placed kept the room that was made for it
        "--seed=102523",  # pods that anti-affinity keeps off all low nodes used up what may migrate from a hot node at once
        "--seed=142029",  # pods that had just been made took devices that a victim had not left yet, again and again
        "--seed=103826",  # a new leader that reads slowly took the first old news for all
        "--seed=90176 --profiles=community",  # CPUs of an administrator were forgotten when the kubelet's changed for a moment
    ],
)
def test_histories_in_which_a_defect_was_found_hold(history: str) -> None:
    done = world("--profiles=both", *history.split())
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_planted_defect_can_be_planted() -> None:
    done = python("-c", _PLANT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_every_rule_names_its_mutant_and_every_world_can_be_lived() -> None:
    """A rule that no planted defect names may be one that never speaks."""
    rules = {kind.__name__ for kind in INVARIANTS}
    named = {mutant.rule for mutant in MUTANTS.values() if mutant.rule}
    assert named == rules, sorted(named ^ rules)
    assert len(MUTANTS) >= 40
    for mutant in MUTANTS.values():
        spec = hunting.aim(replace(USUAL, seed=3), mutant)  # raises TypeError for a field that worlds do not have
        kinds = {*spec.kinds, *(fault.kind for fault in spec.plan or ())}
        assert kinds <= set(KINDS), mutant.name
        assert hunting.aim(replace(USUAL, nodes=5), mutant).nodes == 5, "what is asked for goes before what suits the mutant"


def test_the_table_of_the_hunt_is_that_of_the_registry() -> None:
    """docs/testing.md is written by --table: it has a row for each mutant, and none for one that is no more."""
    text = (ROOT / "docs/testing.md").read_text()
    rows = hunting.read(text)
    assert [row.name for row in rows] == list(MUTANTS)
    assert hunting.written(text, rows) == text, "rows and figures are those of the command"


def test_a_table_is_written_into_its_place_and_read_again() -> None:
    rows = [hunting.Row("one", ("GangWhole",), ("GangWhole", "BoundOnce"), 7), hunting.Row("two")]
    text = hunting.written(f"before\n{hunting.BEGIN}\nold\n{hunting.END}\nafter\n", rows)
    assert hunting.read(text) == rows
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "1 of 2 planted defects are caught (50%)." in text
    with pytest.raises(ValueError, match="there is no line"):
        hunting.written("no place", rows)


def test_a_mutant_with_a_rule_is_hunted_until_that_one_speaks_alone() -> None:
    catch = hunting.Catch(Mutant("m", "", lambda: None, rule="GangWhole"))
    for seed, spoke in enumerate((["NobodyCrashes"], ["BoundOnce"], ["BoundOnce", "GangWhole"], ["GangWhole", "NobodyCrashes"])):
        assert not catch.settled
        catch.see(Result(seed, "", 0, 0.0, tuple((0.0, name, "") for name in spoke), (), 0.0))
    assert catch.settled
    assert catch.row() == hunting.Row("m", ("GangWhole", "BoundOnce"), ("BoundOnce", "GangWhole"), 3)


def test_what_a_rule_says_of_the_same_world_without_the_defect_betrays_nothing() -> None:
    catch = hunting.Catch(Mutant("m", "", lambda: None))
    told, sound = (Result(3, "", 0, 0.0, tuple((0.0, name, "") for name in names), (), 0.0) for names in (["BoundOnce"], ["BoundOnce"]))
    catch.see(told, sound)
    assert (catch.lived, catch.first, catch.settled) == (1, None, False)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_planted_defect_is_betrayed_and_shrunk() -> None:
    """Pods that do not fit are bound: the checker names the rule, and without any fault a few workloads show it as well."""
    flags = ["--seed=4", "--nodes=2", "--pods=24", "--minutes=0.5", "--faults=3", "--mutant=requests-are-not-checked"]
    done = world(*flags, "--shrink", timeout=patience.seconds(380))
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "BatchWithinPromise" in done.stdout or "NodeNotOvercommitted" in done.stdout
    lines = done.stdout.splitlines()
    assert "0 faults are needed" in lines
    needed = next(int(line.split()[0]) for line in lines if line.endswith("workloads are needed"))
    assert 0 < needed < 10


def test_a_world_that_takes_too_long_is_given_up() -> None:
    code = """
import time
from roles.sandbox.world import runner
from roles.sandbox.world.spec import Spec
print(runner.run(Spec(), mutate=lambda: time.sleep(60), limit=0.5).failure)
"""
    assert python("-c", code).stdout.strip() == "it took too long"


def test_what_killed_worlds_left_behind_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FRESH", -1.0)
    monkeypatch.setattr(runner, "_MEMORY", str(tmp_path))
    (tmp_path / "koord-world-dead" / "hosts").mkdir(parents=True)
    (tmp_path / "another").mkdir()
    with runner._scratch() as living:
        assert runner.sweep(tmp_path) == [tmp_path / "koord-world-dead"]
        assert living.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_bad_flags_are_said() -> None:
    done = CliRunner().invoke(command, ["world", "--kinds=flood"])
    assert done.exit_code == 2
    assert "flood: accepted are lose-request" in done.output
    done = CliRunner().invoke(command, ["world", "--mutant=none"])
    assert done.exit_code == 2


_DEAF = """
import sys
from roles.sandbox.world import runner
from roles.sandbox.world.invariants.checker import Checker
from roles.sandbox.world.spec import Spec


def state(rule):
    return repr({name: value for name, value in vars(rule).items() if name != "history"})

def see(self, entry):
    for rule in self._seeing:
        if rule.hears is not None and entry.bucket not in rule.hears:
            before = state(rule)
            said = [*rule.see(entry)]
            assert not said and state(rule) == before, f"{rule.name}: {entry}"
    told(self, entry)

told, Checker.see = Checker.see, see
runner.prepare()
for seed in map(int, sys.argv[1:]):
    spec = Spec(seed, nodes=2, pods=12, minutes=0.5, calm=5.0, kinds=("kill", "storm", "crash", "clock", "terminate", "restart"))
    print(seed, runner.run(spec).failure)
"""


def test_what_a_rule_does_not_hear_means_nothing_to_it() -> None:
    done = python("-c", _DEAF, "3")
    assert (done.returncode, done.stdout) == (0, "3 \n"), done.stdout + done.stderr[-2000:]


def test_what_a_defect_puts_in_is_called_as_what_it_replaces() -> None:
    """A mutant whose function takes other arguments than the product's fails for that, or shows nothing: it is refused when planted."""
    path, _, known = "roles.sandbox.world.mutants.planting:nothing", *planting.find("roles.sandbox.world.mutants.planting:nothing")[1:]
    for wrong in (lambda: None, lambda value, more: None, lambda *, value=None: None):
        with pytest.raises(TypeError, match="is replaced by a function of"):
            planting.replace(path, wrong)
    assert planting.nothing is known
