"""`koord recommend backtest` through the command line (BEY-REC-01)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from roles.manager.recommender.backtest import VPA_DEFAULTS, Series, Usage, replay
from roles.manager.recommender.fleets import SHAPES, fleet
from roles.manager.recommender.policy import DAY
from roles.tools.recommend import command

pytestmark = pytest.mark.feature("BEY-REC-01")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["backtest", *arguments])
    return result.exit_code, result.output


def test_made_up_fleets_beside_the_published_defaults() -> None:
    code, out = run("--synthetic=diurnal,idle", "--containers=4", "--days=4", "--recommendation-margin-fraction=0.3", "-o", "json")
    assert code == 0, out
    rows = json.loads(out)
    assert [(row["source"], row["policy"]) for row in rows] == [
        ("diurnal", "koord"), ("diurnal", "VPA defaults"), ("idle", "koord"), ("idle", "VPA defaults"),
    ]  # fmt: skip
    assert all(row["containerDays"] == 4 * 3 for row in rows)
    ours, theirs = rows[:2]
    assert ours["memorySlack"] > theirs["memorySlack"], "more margin, more slack"
    assert ours["samplesAboveCPU"] <= theirs["samplesAboveCPU"]
    code, out = run("--synthetic=idle", "--containers=2", "--days=3")
    assert code == 0
    assert out.splitlines()[0].split()[:2] == ["source", "policy"]
    assert out.count("%") == 8


def test_a_csv_file_with_a_kill(tmp_path) -> None:
    path = tmp_path / "usage.csv"
    lines = ["timestamp,workload,container,replica,cpu,memory"]
    for minute in range(0, 3 * 1440, 10):
        memory = "4Gi" if minute == 2 * 1440 + 600 else "400000000"
        lines.append(f"{60 * minute},web,main,r1,0.5,{memory}")
    path.write_text("\n".join(lines))
    code, out = run(str(path), "-o", "json")
    assert code == 0, out
    (ours, _) = json.loads(out)
    assert ours["containerDays"] == 2
    assert ours["oomFree"] == 0.5
    assert ours["kills"] == [{"workload": "web", "container": "main", "time": 60 * (2 * 1440 + 600)}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2", "no column timestamp, workload"),
        ("timestamp,workload,container,replica,cpu,memory\nnoon,w,c,r,1,1", ":2: timestamp: 'noon'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,1,1\n2,w,c,r,-1,1", ":3: cpu: '-1'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,1,4Xi", ":2: memory: '4Xi'"),
    ],
)
def test_bad_files_name_the_place(tmp_path, text, said) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, out = run(str(path))
    assert code == 1
    assert said in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to replay"),
        (["--synthetic=odd"], "accepted: diurnal"),
        (["--prometheus=http://127.0.0.1:1"], "needs --namespace"),
        (["--prometheus=http://127.0.0.1:1", "--namespace=n"], "ClientConnector"),
        (["--synthetic=idle", "--recommender-cpu-percentile=7"], "--recommender-cpu-percentile"),
    ],
)
def test_mistakes_are_one_line(arguments, said) -> None:
    code, out = run(*arguments)
    assert code == 1
    assert said in out


@given(st.lists(st.tuples(st.floats(0, 8), st.floats(1e6, 1e10)), min_size=30, max_size=60))
def test_property_shares_are_shares_and_more_margin_never_kills_more_on_the_second_day(uses) -> None:
    step = 2 * DAY / len(uses)
    series = [Series("w", "c", "r", [Usage(n * step, cpu, memory) for n, (cpu, memory) in enumerate(uses)])]
    plain = replay(series, VPA_DEFAULTS)
    assert plain.days == 1
    assert 0 <= plain.cpu_slack <= 1
    assert 0 <= plain.memory_slack <= 1
    assert 0 <= plain.oom_free <= 1
    import dataclasses

    roomy = replay(series, dataclasses.replace(VPA_DEFAULTS, margin=1.0))
    assert roomy.killed_days <= plain.killed_days
    assert roomy.starved <= plain.starved


def test_fleets_are_the_same_for_one_seed() -> None:
    for shape in SHAPES:
        assert fleet(shape, containers=1, days=2) == fleet(shape, containers=1, days=2)
        assert fleet(shape, containers=1, days=2) != fleet(shape, containers=1, days=2, seed=2)
