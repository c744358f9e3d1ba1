"""Whole worlds: the same seed is the same history, and a planted defect is betrayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from roles.sandbox.cli import command
from roles.sandbox.world import runner
from roles.sandbox.world.mutants import MUTANTS
from roles.sandbox.world.world import Spec

ROOT = Path(__file__).resolve().parents[4]
SMALL = ["--nodes=2", "--pods=8", "--minutes=0.5", "--faults=4"]


def lived(seed: int, hash_seed: str) -> str:
    line = [sys.executable, "-m", "koord.cli", "sandbox", "world", f"--seed={seed}", *SMALL]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_seed_tells_the_same_history_byte_for_byte() -> None:
    assert lived(3, "1") == lived(3, "2")


@pytest.mark.skipif("KOORD_WORLD" not in os.environ, reason="forks inside the test process: set KOORD_WORLD=1; make world does the same")
def test_seeds_differ_and_hold() -> None:
    runner.prepare()
    results = [runner.run(Spec(seed=seed, nodes=2, pods=8, minutes=0.5, faults=4)) for seed in (1, 2)]
    assert [result.violations for result in results] == [(), ()]
    assert [result.failure for result in results] == ["", ""]
    assert results[0].digest != results[1].digest


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_every_planted_defect_can_be_planted(name: str) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            MUTANTS[name].plant()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif("KOORD_WORLD" not in os.environ, reason="forks inside the test process: set KOORD_WORLD=1; make world does the same")
def test_a_planted_defect_is_betrayed_and_shrunk() -> None:
    """Pods that do not fit are bound: the checker names the rule, and fewer faults show it as well."""
    runner.prepare()
    spec = Spec(seed=5, nodes=2, pods=24, minutes=0.5, faults=3, calm=30)
    mutate = MUTANTS["requests-are-not-checked"].plant
    result = runner.run(spec, mutate=mutate)
    assert "NodeNotOvercommitted" in {name for _, name, _ in result.violations}
    smaller, again = runner.shrink(spec, mutate)
    assert not again.held
    assert smaller.plan == ()
    assert 0 < len(smaller.workloads) < 10


def test_bad_flags_are_said() -> None:
    done = CliRunner().invoke(command, ["world", "--kinds=flood"])
    assert done.exit_code == 2
    assert "flood: accepted are lose-request" in done.output
    done = CliRunner().invoke(command, ["world", "--mutant=none"])
    assert done.exit_code == 2
