"""`koord overcommit backtest` through the command line (BEY-OVC-01)."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.manager.overcommit.predictors import CANDIDATES, Recorded, n_sigma
from roles.manager.overcommit.replay import chosen, replay
from roles.tools.overcommit import command

pytestmark = pytest.mark.feature("BEY-OVC-01")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["backtest", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Ten tasks with waves and noise of their own over four days, a sample every ten minutes."""
    rng, lines = random.Random(1), ["timestamp,workload,container,replica,cpu,memory,cpu_limit"]
    for task in range(10):
        phase = rng.uniform(0, 7)
        for n in range(4 * 144):
            cpu = max(1 + 0.3 * math.sin(n / 144 * 2 * math.pi + phase) + rng.gauss(0, 0.25), 0.0)
            lines.append(f"{n * 600},w{task},c,r,{cpu:.3f},1000,4")
    path = tmp_path / "usage.csv"
    path.write_text("\n".join(lines))
    return str(path)


def test_predictions_beside_an_oracle_and_the_best_that_keeps_its_word(recorded: str) -> None:
    code, out = run(recorded, "--tasks-per-node=5", "-o", "json")
    assert code == 0, out
    answer = json.loads(out)
    scores = {score["name"]: score for score in answer["scores"]}
    assert set(scores) == {name for name, _ in CANDIDATES} | {"oracle"}
    assert answer["nodes"] == 6, "two nodes in three groupings"
    assert scores["oracle"]["violations"] == 0
    assert scores["oracle"]["of_oracle"] == 1
    assert all(score["reclaimed"] <= scores["oracle"]["reclaimed"] + score["violations"] for score in scores.values())
    assert scores["N-sigma 3"]["violations"] >= scores["N-sigma 5"]["violations"]
    assert scores["N-sigma 3"]["reclaimed"] > scores["N-sigma 5"]["reclaimed"]
    best = scores[answer["best"]]
    assert best["violations"] <= 0.01
    assert best["of_oracle"] >= 0.79, "the goal"
    assert all(
        score["reclaimed"] <= best["reclaimed"] or score["violations"] > 0.01 or score["name"] == "oracle" for score in scores.values()
    )
    code, out = run(recorded, "--tasks-per-node=5")
    assert code == 0
    assert f"{answer['best']} " in next(line for line in out.splitlines() if "<-" in line)


def test_limits_come_from_the_file_the_flag_or_the_highest_usage(tmp_path: Path) -> None:
    lines = ["timestamp,workload,container,replica,cpu,memory", *(f"{600 * n},w,c,r,{1 + n % 2},1" for n in range(400))]
    path = tmp_path / "u.csv"
    path.write_text("\n".join(lines))

    def oracle(*flags: str) -> float:
        code, out = run(str(path), "-o", "json", *flags)
        assert code == 0, out
        return float(json.loads(out)["scores"][-1]["reclaimed"])

    assert oracle() == 0, "the limit is the highest usage, and that is used all the time"
    assert oracle("--cpu-limit=8") == 0.75


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (None, [], "nothing to replay"),
        ("timestamp,workload,container,replica,cpu,memory\n0,w,c,r,1,1\n600,w,c,r,1,1", [], "too few for a window"),
        ("timestamp,workload,container,replica,cpu,memory\n0,w,c,r,1,1\n600,v,c,r,1,1", [], "no two moments in common"),
        ("timestamp,workload,container,replica,cpu,memory,cpu_limit\n0,w,c,r,1,1,-2", [], "cpu_limit: '-2'"),
        ("", ["--violations=nan"], "'nan' is not a number of the range 0<=x<=1"),
        ("", ["--cpu-limit=inf"], "'inf' is not a number of the range x>=0"),
        ("a,b\n1,2", [], "no column timestamp"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str | None, arguments: list[str], said: str) -> None:
    files = []
    if text is not None:
        (tmp_path / "u.csv").write_text(text)
        files = [str(tmp_path / "u.csv")]
    code, out = run(*files, *arguments)
    assert code == (1 if text else 2)
    assert said in out
    assert "Traceback" not in out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(0, 4), min_size=40, max_size=40), min_size=1, max_size=3), st.floats(0, 8))
def test_property_a_prediction_never_sees_the_future(tasks: list[list[float]], last: float) -> None:
    """What comes after a moment does not change what was expected at it."""
    usage = np.array(tasks)
    changed = usage.copy()
    changed[:, -1] = last
    for _, predictor in CANDIDATES:
        found, again = (predictor(Recorded(values, np.full(len(tasks), 8.0), 600.0), 10) for values in (usage, changed))
        assert found.shape == (31,)
        assert np.allclose(found[:-1], again[:-1])


def test_who_reclaims_most_without_breaking_too_many_promises() -> None:
    quiet = Recorded(np.ones((2, 50)), np.full(2, 4.0), 600.0)
    scores = replay([quiet], horizon=1200, window=6000, candidates=[("exact", n_sigma(0)), ("wide", n_sigma(3))])
    assert [score.violations for score in scores] == [0, 0, 0]
    found = chosen(scores, 0.01)
    assert found is not None
    assert found.reclaimed == 0.75
    assert chosen([], 0.01) is None
