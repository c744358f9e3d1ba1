"""Whole worlds: the same seed is the same history, and a planted defect is betrayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from roles.sandbox.cli import command

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


def test_every_planted_defect_can_be_planted() -> None:
    done = python("-c", _PLANT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_planted_defect_is_betrayed_and_shrunk() -> None:
    """Pods that do not fit are bound: the checker names the rule, and without any fault a few workloads show it as well."""
    flags = ["--seed=4", "--nodes=2", "--pods=24", "--minutes=0.5", "--faults=3", "--mutant=requests-are-not-checked"]
    done = world(*flags, "--shrink", timeout=380)
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
from roles.sandbox.world.world import Spec
print(runner.run(Spec(), mutate=lambda: time.sleep(60), limit=0.5).failure)
"""
    assert python("-c", code).stdout.strip() == "it took too long"


def test_bad_flags_are_said() -> None:
    done = CliRunner().invoke(command, ["world", "--kinds=flood"])
    assert done.exit_code == 2
    assert "flood: accepted are lose-request" in done.output
    done = CliRunner().invoke(command, ["world", "--mutant=none"])
    assert done.exit_code == 2
